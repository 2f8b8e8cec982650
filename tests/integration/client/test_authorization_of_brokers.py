"""Two brokers that know one another by their certificates: ACLs act at both, and calls stay those of their callers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest

from bus import (
    AclBindingFilter,
    AclOperation,
    Admin,
    BusError,
    NewTopic,
    Producer,
)
from bus.broker import Broker
from bus.errors import ErrorCode, JoinRefused
from bus.settings.broker import BrokerConfig
from tests.integration.grpc_api.test_listeners import wait_for_all
from tests.support.acls import allow, prefixed
from tests.support.broker_thread import running_broker
from tests.support.certificates import Authority

SUPER_USERS = "User:root;User:broker0;User:broker1"


class Pair:
    def __init__(self, folder: Path, super_users: str = SUPER_USERS) -> None:
        self.root = folder / "root"
        self.authority = Authority(folder / "pki")
        self.super_users = super_users
        self.brokers: list[Broker] = []

    def start(self, stack: ExitStack) -> None:
        for number in range(2):
            config = BrokerConfig(
                broker_id=number,
                listeners=("SSL://127.0.0.1:0",),
                ssl_keystore_location=str(self.authority.issue(f"broker{number}").both),
                ssl_truststore_location=str(self.authority.path),
                ssl_client_auth="required",
                ssl_principal_mapping_rules="RULE:CN=([^,]+),.*/$1/",
                authorizer_class_name="acl",
                super_users=self.super_users,
                offsets_topic_num_partitions=2,
            )
            self.brokers.append(stack.enter_context(running_broker(self.root, config=config)))

    def settings(self, who: str) -> dict[str, str]:
        issued = self.authority.issue(who)
        return {
            "security_protocol": "SSL",
            "ssl_ca_location": str(self.authority.path),
            "ssl_keystore_location": str(issued.both),
        }

    def admin(self, who: str, broker: int) -> Admin:
        return Admin(f"127.0.0.1:{self.brokers[broker].port}", **self.settings(who))


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    pair = Pair(tmp_path)
    with ExitStack() as stack:
        pair.start(stack)
        wait_for_all(*pair.brokers)
        yield pair


CREATE = prefixed(allow(AclOperation.CREATE, "mine-"))


def test_a_call_that_a_broker_sends_on_is_checked_as_its_callers(pair: Pair) -> None:
    """Broker 0 is the controller; what broker 1 is asked it sends on, as a super user."""
    with pair.admin("root", 1) as root, pair.admin("alice", 1) as alice, pair.admin("alice", 0) as at_controller:
        for admin in (alice, at_controller):
            with pytest.raises(BusError, match="User:alice may not Create topic mine-1"):
                admin.create_topics([NewTopic("mine-1")])
        root.create_acls([CREATE])
        alice.create_topics([NewTopic("mine-1")])
        at_controller.create_topics([NewTopic("mine-2")])
        with pytest.raises(BusError, match="User:alice may not Alter the cluster"):
            alice.create_acls([replace(CREATE, operation=AclOperation.ALL)])


def test_a_change_acts_at_every_broker_as_soon_as_it_is_answered(pair: Pair) -> None:
    write = replace(CREATE, operation=AclOperation.WRITE)
    with (
        pair.admin("root", 0) as root,
        Producer(f"127.0.0.1:{pair.brokers[1].port}", linger_ms=0, **pair.settings("alice")) as producer,
    ):
        root.create_topics([NewTopic("mine-1", 2)])
        for _ in range(3):
            root.create_acls([write])
            for partition in range(2):  # each broker leads one
                producer.send("mine-1", b"v", partition=partition).result(50)
            root.delete_acls([AclBindingFilter(principal="User:alice")])
            for partition in range(2):
                with pytest.raises(BusError) as refused:
                    producer.send("mine-1", b"v", partition=partition).result(50)
                assert refused.value.code is ErrorCode.TOPIC_AUTHORIZATION_FAILED
        assert {one.leader_id for one in root.describe_topics(["mine-1"])["mine-1"].partitions} == {0, 1}


def test_a_broker_that_may_not_act_for_the_cluster_does_not_join(tmp_path: Path) -> None:
    pair = Pair(tmp_path, "User:root;User:broker0")
    with ExitStack() as stack, pytest.raises(JoinRefused, match="User:broker1 may not ClusterAction the cluster"):
        pair.start(stack)
