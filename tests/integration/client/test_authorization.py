"""Clients that are named by their certificates, and what ACLs let them do: by the SDK and by `bus acls`."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.shell_completion import ShellComplete
from click.testing import CliRunner, Result

from bus import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclResourceType,
    Admin,
    BusError,
    Consumer,
    NewTopic,
    Producer,
    TopicPartition,
)
from bus.broker import Broker
from bus.cli.main import cli
from bus.errors import ErrorCode
from bus.settings.broker import BrokerConfig
from tests.support.acls import allow
from tests.support.broker_thread import running_broker
from tests.support.certificates import Authority

# A client that took a refusal for something that passes would retry for a minute.


class Bus:
    """A broker that asks for certificates and acts by ACLs; `User:root` may do everything."""

    def __init__(self, folder: Path) -> None:
        self.authority = Authority(folder)
        self.config = BrokerConfig(
            listeners=("SSL://127.0.0.1:0",),
            ssl_keystore_location=str(self.authority.issue("broker").both),
            ssl_truststore_location=str(self.authority.path),
            ssl_client_auth="required",
            ssl_principal_mapping_rules="RULE:CN=([^,]+),.*/$1/",
            authorizer_class_name="acl",
            super_users="User:root;User:broker",
            offsets_topic_num_partitions=1,
            group_initial_rebalance_delay_ms=0,
        )
        self._issued: dict[str, str] = {}
        self.broker: Broker | None = None

    @property
    def address(self) -> str:
        assert self.broker is not None
        return f"127.0.0.1:{self.broker.port}"

    def settings(self, who: str) -> dict[str, Any]:
        if who not in self._issued:
            self._issued[who] = str(self.authority.issue(who).both)
        return {
            "security_protocol": "SSL",
            "ssl_ca_location": str(self.authority.path),
            "ssl_keystore_location": self._issued[who],
        }

    def admin(self, who: str = "root") -> Admin:
        return Admin(self.address, **self.settings(who))

    def run(self, *arguments: str, who: str = "root") -> Result:
        environment = {f"BUS_{name.upper()}": value for name, value in self.settings(who).items()}
        environment["BUS_ADDRESS"] = self.address
        return CliRunner().invoke(cli, arguments, env=environment, prog_name="bus")

    def done(self, *arguments: str, who: str = "root") -> str:
        result = self.run(*arguments, who=who)
        assert result.exit_code == 0, result.output
        return result.stdout


@pytest.fixture(scope="module")
def bus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bus]:
    bus = Bus(tmp_path_factory.mktemp("pki"))
    with running_broker(tmp_path_factory.mktemp("bus") / "root", config=bus.config) as broker:
        bus.broker = broker
        with bus.admin() as admin:
            admin.create_topics([NewTopic(name) for name in ("orders", "secret")])
        yield bus


@pytest.mark.parametrize(("super_users", "is_told"), [("", True), ("User:root", False)])
def test_a_broker_that_would_refuse_every_call_says_so(
    super_users: str, is_told: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = BrokerConfig(authorizer_class_name="acl", super_users=super_users)
    with running_broker(tmp_path / "root", config=config):
        assert ("every call is refused" in caplog.text) is is_told


def test_a_record_that_may_not_be_written_fails_at_once_and_others_go_on(bus: Bus) -> None:
    with bus.admin() as admin:
        admin.create_acls(
            [
                allow(AclOperation.WRITE, "orders", principal="User:writer"),
                allow(AclOperation.DESCRIBE, "secret", principal="User:writer"),
            ]
        )
    with Producer(bus.address, **bus.settings("writer")) as producer:
        fine, denied = producer.send("orders", b"1"), producer.send("secret", b"2")
        with pytest.raises(BusError, match="User:writer may not Write topic secret") as refused:
            denied.result(50)
        assert refused.value.code is ErrorCode.TOPIC_AUTHORIZATION_FAILED
        assert not refused.value.retriable
        with pytest.raises(BusError, match="User:writer may not Describe topic none"):
            producer.send("none", b"3")
        assert producer.send("orders", b"4").result(50).offset > fine.result(50).offset


def test_a_producer_whose_right_is_taken_away_is_refused_from_then_on(bus: Bus) -> None:
    right = allow(AclOperation.WRITE, "orders", principal="User:former")
    with bus.admin() as admin, Producer(bus.address, **bus.settings("former")) as producer:
        admin.create_acls([right])
        producer.send("orders", b"1").result(50)
        assert admin.delete_acls([AclBindingFilter(principal=right.principal)]).popitem()[1] == [right]
        with pytest.raises(BusError, match="User:former may not Write topic orders"):
            producer.send("orders", b"2").result(50)


def test_a_consumer_without_the_right_to_its_group_or_topic_raises_from_poll(bus: Bus) -> None:
    with bus.admin() as admin, Producer(bus.address, **bus.settings("root")) as producer:
        producer.send("orders", b"1").result(50)

        def poll(*acls: AclBinding) -> list[Any]:
            admin.create_acls(acls)
            settings = bus.settings("reader")
            with Consumer(bus.address, group_id="g", auto_offset_reset="earliest", **settings) as consumer:
                consumer.subscribe(["orders"])
                found: list[Any] = []
                while not found:
                    found = list(consumer.poll(timeout_ms=20_000))
                return found

        with pytest.raises(BusError) as refused:
            poll()
        assert refused.value.code in (ErrorCode.GROUP_AUTHORIZATION_FAILED, ErrorCode.TOPIC_AUTHORIZATION_FAILED)
        with pytest.raises(BusError, match=r"User:reader may not (Read|Describe) group g"):
            poll(allow(AclOperation.DESCRIBE, "orders", principal="User:reader"))
        with pytest.raises(BusError, match="User:reader may not Read topic orders"):
            poll(allow(AclOperation.READ, "g", AclResourceType.GROUP, principal="User:reader"))
        assert poll(allow(AclOperation.READ, "orders", principal="User:reader"))[0].topic == "orders"


def test_an_assigned_consumer_raises_and_is_told_which_topic(bus: Bus) -> None:
    with Consumer(bus.address, **bus.settings("stranger")) as consumer:
        consumer.assign([TopicPartition("secret", 0)])
        consumer.seek(TopicPartition("secret", 0), 0)
        with pytest.raises(BusError, match=r"User:stranger may not \w+ topic secret") as refused:
            consumer.poll(timeout_ms=20_000)
        assert refused.value.code is ErrorCode.TOPIC_AUTHORIZATION_FAILED


def test_a_transaction_without_the_right_to_its_id_is_refused(bus: Bus) -> None:
    with bus.admin() as admin:
        admin.create_acls([allow(AclOperation.WRITE, "orders", principal="User:mover")])
    producer = Producer(bus.address, transactional_id="mover-1", **bus.settings("mover"))
    try:
        with pytest.raises(BusError) as refused:
            producer.init_transactions()
        assert refused.value.code is ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    finally:
        producer.close()


def test_an_administrator_sees_what_may_be_described_and_changes_what_may_be_changed(bus: Bus) -> None:
    with bus.admin() as admin:
        admin.create_acls([allow(AclOperation.DESCRIBE, "orders", principal="User:viewer")])
    with bus.admin("viewer") as viewer:
        assert viewer.list_topics() == ["orders"]
        for call in (
            lambda: viewer.describe_topics(["secret"]),
            lambda: viewer.delete_topics(["orders"]),
            lambda: viewer.describe_cluster(),
            lambda: viewer.elect_leaders(),
            lambda: viewer.describe_acls(),
            lambda: viewer.create_acls([allow(AclOperation.ALL, "orders", principal="User:viewer")]),
            lambda: viewer.describe_user_scram_credentials(),
            lambda: viewer.describe_quota_usage(),
            lambda: viewer.describe_configs(kind="broker"),
        ):
            with pytest.raises(BusError, match="User:viewer may not"):
                call()


def test_acls_are_added_listed_checked_and_removed_by_kafkas_options_and_texts(bus: Bus) -> None:
    said = bus.done("acls", "add", "--allow-principal", "User:bob", "--operation", "Read", "--topic", "bob-1")
    resource = "`ResourcePattern(resourceType=TOPIC, name=bob-1, patternType=LITERAL)`"
    entry = "\t(principal=User:bob, host=*, operation=READ, permissionType=ALLOW)\n\n"
    assert said == f"Adding ACLs for resource {resource}:\n{entry}Current ACLs for resource {resource}:\n{entry}"
    assert bus.done("acls", "list", "--topic", "bob-1") == f"Current ACLs for resource {resource}:\n{entry}"
    prefixed = ("--topic", "bob-", "--resource-pattern-type", "prefixed")
    bus.done("acls", "add", "--deny-principal", "User:*", "--deny-host", "10.0.0.1", "--operation", "write", *prefixed)
    matching = ("--topic", "bob-1", "--resource-pattern-type", "match")
    listed = json.loads(bus.done("acls", "list", *matching, "--format", "json"))
    assert [(one["principal"], one["pattern_type"], one["permission"]) for one in listed] == [
        ("User:bob", "literal", "Allow"),
        ("User:*", "prefixed", "Deny"),
    ]

    def check(*arguments: str) -> tuple[int, str]:
        result = bus.run("acls", "check", *arguments)
        return result.exit_code, result.stdout

    assert check("bob", "describe", "topic", "bob-1") == (
        0,
        "User:bob may Describe topic bob-1: Allow User:bob Read on Topic bob-1 (literal) from *\n",
    )
    assert check("bob", "write", "topic", "bob-1") == (
        1,
        "User:bob may not Write topic bob-1: no ACL allows it\n",
    )
    code, told = check("bob", "write", "topic", "bob-1", "--host", "10.0.0.1")
    assert (code, told) == (
        1,
        "User:bob may not Write topic bob-1: Deny User:* Write on Topic bob- (prefixed) from 10.0.0.1\n",
    )
    assert check("User:root", "alter", "cluster") == (
        0,
        "User:root may Alter the cluster: a super user (super.users)\n",
    )
    said = bus.done("acls", "remove", *matching, "--force")
    assert said.count("Removing ACLs for resource") == 2
    assert bus.done("acls", "list", *matching) == ""


def test_refused_change_of_acls_prints_no_acl_as_changed(bus: Bus) -> None:
    rule = ("--allow-principal", "User:bob", "--operation", "Read", "--topic", "refused-1")
    bus.done("acls", "add", "--allow-principal", "User:looker", "--operation", "Describe", "--cluster")
    bus.done("acls", "add", *rule)
    for command in ("add", "remove"):
        result = bus.run("acls", command, *rule, who="looker")
        assert (result.exit_code, result.stdout) == (1, "")
        assert "User:looker may not Alter" in result.stderr
    bus.done("acls", "remove", *rule)


def test_names_complete_by_the_connection_that_the_options_before_name(
    bus: Bus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("bus.cli.options._COMPLETION_TIMEOUT_MS", 60_000)
    settings = {**bus.settings("root"), "ssl_key_password": ""}
    options = tmp_path / "root.properties"
    options.write_text("".join(f"{name.replace('_', '.')}={value}\n" for name, value in settings.items()))
    options.chmod(0o644)
    words = ["topics", "describe", "--address", bus.address, "--command-config", str(options)]
    found = ShellComplete(cli, {}, "bus", "_BUS_COMPLETE").get_completions(words, "sec")
    assert [one.value for one in found] == ["secret"]
    assert capfd.readouterr().err == ""


def test_short_forms_stand_for_what_producers_and_consumers_need(bus: Bus) -> None:
    def added(*options: str) -> list[str]:
        said = bus.done("acls", "add", "--allow-principal", "User:short", *options)
        adding = said.partition("Current")[0]
        return re.findall(r"name=(\S+),|operation=(\w+)", adding) and [
            name or operation for name, operation in re.findall(r"name=(\S+),|operation=(\w+)", adding)
        ]

    topic = ("--topic", "short")
    assert added("--producer", *topic) == ["short", "WRITE", "DESCRIBE", "CREATE"]
    assert added("--consumer", *topic, "--group", "g") == ["short", "READ", "DESCRIBE", "g", "READ"]
    assert added("--idempotent") == ["kafka-cluster", "IDEMPOTENT_WRITE"]
    bus.done("acls", "remove", *topic, "--force")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("add", "--topic", "t"), "expected --allow-principal or --deny-principal, found neither"),
        (("add", "--allow-principal", "User:a"), "expected --topic, --group, --cluster or --transactional-id"),
        (("add", "--allow-principal", "User:a", "--consumer", "--topic", "t"), "expected --group with --consumer"),
        (("add", "--allow-principal", "User:a", "--producer", "--group", "g"), "expected --topic with --producer"),
        (("add", "--allow-principal", "User:a", "--topic", "t", "--operation", "Peek"), "expected one of All, Read"),
        (("add", "--allow-principal", "a", "--topic", "t"), "expected a principal User:<name>, found 'a'"),
        (
            ("add", "--allow-principal", "User:a", "--group", "g", "--operation", "Write"),
            "All or one of Read, Delete, Describe, found Write",
        ),
        (("add", "--allow-principal", "User:a", "--topic", "t", "--deny-host", "1.1.1.1"), "expected --deny-principal"),
        (("remove",), "expected --topic, --group, --cluster or --transactional-id, found none"),
        (("remove", "--topic", "t", "--producer"), "expected --allow-principal or --deny-principal with --producer"),
        (("check", "a", "read", "topic"), "expected a name with topic"),
        (("check", "a", "alter", "cluster", "x"), "expected no name with cluster"),
    ],
)
def test_options_that_say_nothing_are_refused(bus: Bus, arguments: tuple[str, ...], message: str) -> None:
    result = bus.run("acls", *arguments)
    assert result.exit_code != 0
    assert message in " ".join(result.output.split())
