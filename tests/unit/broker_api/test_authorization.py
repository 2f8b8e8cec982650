"""Permissions of callers: refusals, the memory of them, and their reports."""

from __future__ import annotations

import asyncio
import logging
import tracemalloc
from collections.abc import Awaitable
from dataclasses import replace
from typing import TypeVar

import pytest

from bus.broker_api.audit import AccessDecided, AccessLog
from bus.broker_api.authorization import Access, Authorizer, warnings_of_access
from bus.broker_api.calls import CALLS, CREATE_TOPIC, DESCRIBE_TOPIC, READ_TOPIC, WRITE_TOPIC
from bus.broker_api.requests import Caller
from bus.cluster_metadata.cluster_state import EMPTY_CLUSTER
from bus.errors import ErrorCode, Refused
from bus.runtime import tasks
from bus.runtime.tasks import LoopShares
from bus.security.acl_decisions import AclPolicy
from bus.security.acl_index import AclIndex, AclIndexDraft
from bus.security.acls import AclBinding, AclOperation, AclPermission
from bus.settings.broker import BrokerConfig
from tests.support.acls import allow, prefixed
from tests.support.virtual_time import run_virtually

T = TypeVar("T")
ALICE = Caller("connection", "/10.0.0.1", "request", "User:alice")
WRITE_ORDERS = allow(AclOperation.WRITE, "orders", host="10.0.0.1")
REFUSED = Refused(ErrorCode.TOPIC_AUTHORIZATION_FAILED, "User:alice may not Write topic orders")


class Cluster:
    def __init__(self, *acls: AclBinding, policy: AclPolicy | None = None) -> None:
        self.state = EMPTY_CLUSTER
        self.look_ups = 0
        self.add(*acls)
        self.authorizer = Authorizer(lambda: self.state, policy or AclPolicy(), LoopShares())

    def add(self, *acls: AclBinding) -> None:
        draft = AclIndexDraft(self.state.acls)
        for acl in acls:
            draft.add(acl)
        self.state = replace(self.state, acls=draft.finish())

    def remove(self, acl: AclBinding) -> None:
        draft = AclIndexDraft(self.state.acls)
        draft.remove(acl)
        self.state = replace(self.state, acls=draft.finish())

    def access(self, caller: Caller = ALICE) -> Access:
        return self.authorizer.access(caller, "Produce")


def run(waited: Awaitable[T]) -> T:
    async def wait() -> T:
        return await waited

    return asyncio.run(wait())


def test_a_refusal_says_who_may_not_do_what_and_not_by_which_rule() -> None:
    assert run(Cluster().access().refusal(WRITE_TOPIC, "orders")) == REFUSED
    deny = replace(WRITE_ORDERS, permission=AclPermission.DENY)
    assert run(Cluster(deny).access().refusal(WRITE_TOPIC, "orders")) == REFUSED


def test_the_host_is_the_address_without_what_kafka_prints_before_it() -> None:
    assert run(Cluster(WRITE_ORDERS).access().refusal(WRITE_TOPIC, "orders")) is None
    elsewhere = replace(ALICE, host="/10.0.0.2")
    assert run(Cluster(WRITE_ORDERS).access(elsewhere).refusal(WRITE_TOPIC, "orders")) == REFUSED


def test_a_change_of_the_acls_acts_on_the_next_request_of_the_same_stream() -> None:
    cluster = Cluster()
    access = cluster.access()
    assert run(access.refusal(WRITE_TOPIC, "orders")) == REFUSED
    cluster.add(WRITE_ORDERS)
    assert run(access.refusal(WRITE_TOPIC, "orders")) is None
    assert run(access.refusal(WRITE_TOPIC, "orders")) is None
    cluster.remove(WRITE_ORDERS)
    assert run(access.refusal(WRITE_TOPIC, "orders")) == REFUSED


def test_what_was_allowed_is_not_decided_again(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Cluster(WRITE_ORDERS)
    access = cluster.access()
    assert run(access.refusal(WRITE_TOPIC, "orders")) is None
    monkeypatch.setattr(AclIndex, "find", None)
    assert run(access.refusal(WRITE_TOPIC, "orders")) is None
    with pytest.raises(TypeError):
        run(access.refusal(READ_TOPIC, "orders"))
    with pytest.raises(TypeError):
        run(access.refusal(WRITE_TOPIC, "others"))


def test_names_that_are_refused_and_names_that_are_seen() -> None:
    access = Cluster(WRITE_ORDERS).access()
    assert run(access.refusals(WRITE_TOPIC, ["others", "orders", "others"])).keys() == {"others"}
    assert run(access.visible(WRITE_TOPIC, ["others", "orders"])) == {"orders"}


def test_each_denial_is_one_line_of_kafkas_at_info(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "bus.authorizer")
    deny = replace(WRITE_ORDERS, permission=AclPermission.DENY, host="*")
    access = Cluster(deny).access()
    run(access.refusals(WRITE_TOPIC, ["orders", "orders", "others"]))
    run(access.visible(WRITE_TOPIC, ["orders"]))
    assert [(record.levelname, record.getMessage()) for record in caplog.records] == [
        (
            "INFO",
            "Principal = User:alice is Denied operation = Write from host = 10.0.0.1 on resource = "
            "Topic:LITERAL:orders for request = Produce with resourceRefCount = 2 based on rule "
            "MatchingAcl(acl=StandardAcl(resourceType=TOPIC, resourceName=orders, patternType=LITERAL, "
            "principal=User:alice, host=*, operation=WRITE, permissionType=DENY))",
        ),
        (
            "INFO",
            "Principal = User:alice is Denied operation = Write from host = 10.0.0.1 on resource = "
            "Topic:LITERAL:others for request = Produce with resourceRefCount = 1 based on rule DefaultDeny",
        ),
    ]


def test_denials_that_repeat_are_one_line_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "bus.authorizer")

    async def play() -> None:
        cluster = Cluster()
        for _ in range(50):
            access = cluster.access()
            await access.refusals(WRITE_TOPIC, ["orders", "x" * 5_000])
            await access.refusal(CREATE_TOPIC, "orders")
        await asyncio.sleep(61)
        await cluster.access().refusals(WRITE_TOPIC, ["orders"])
        await asyncio.sleep(61)

    run_virtually(play())
    lines = [record.getMessage() for record in caplog.records]
    assert len(lines) == 3 + 2 + 1
    assert lines[3].endswith(
        "; the last of 98 within 60 s of this principal, operation and resource type that are not shown"
    )
    assert len(lines[3]) < 1_500
    assert " is Denied operation = Create " in lines[4]
    assert "; the last of 49 " in lines[4]
    assert " is Denied operation = Write " in lines[5]


def test_grants_and_what_a_list_leaves_out_are_lines_at_debug(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "bus.authorizer")
    access = Cluster(WRITE_ORDERS, policy=AclPolicy(frozenset({"User:root"}))).access()
    for _ in range(2):  # also what is known already
        run(access.refusals(WRITE_TOPIC, ["orders"]))
    run(access.visible(WRITE_TOPIC, ["others"]))
    run(Cluster(policy=AclPolicy(frozenset({"User:alice"}))).access().refusal(CREATE_TOPIC, "new"))
    assert [record.levelname for record in caplog.records] == ["DEBUG"] * 4
    lines = [record.getMessage() for record in caplog.records]
    assert lines[0] == lines[1]
    assert " is Allowed operation = Write " in lines[0]
    assert " is Denied operation = Write " in lines[2]
    assert " on resource = Topic:LITERAL:new for request = Produce " in lines[3]
    assert lines[3].endswith(" based on rule SuperUser")


def test_names_with_newlines_forge_no_line(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "bus.authorizer")
    caller = replace(ALICE, principal="User:a\nPrincipal = User:root is Allowed", host="/\u2028")
    refused = run(Cluster().access(caller).refusal(WRITE_TOPIC, "x\r\n2026-01-01 INFO forged"))
    assert refused is not None
    (record,) = caplog.records
    for text in (record.getMessage(), refused.message):
        assert len(text.splitlines()) == 1


def test_nothing_is_asked_without_an_authorizer() -> None:
    authorizer = Authorizer(lambda: EMPTY_CLUSTER, None, LoopShares())
    access = authorizer.access(ALICE, "Produce")
    assert access.allows_all
    assert access.is_current
    assert run(access.refusals(WRITE_TOPIC, ["orders"])) == {}
    assert run(access.visible(READ_TOPIC, ["orders"])) == {"orders"}
    assert not authorizer.is_enabled


def test_a_stream_keeps_no_more_names_than_it_may() -> None:
    access = Cluster(replace(WRITE_ORDERS, resource_name="*")).access()
    for number in range(3):
        assert not run(access.refusals(WRITE_TOPIC, [f"{number}-{name}" for name in range(6_000)]))
    assert len(access._allowed[WRITE_TOPIC]) < 16_000


def test_no_name_is_remembered_that_is_longer_than_names_can_be() -> None:
    access = Cluster(prefixed(allow(AclOperation.READ, "pay"))).access()
    long = "pay" + "x" * 4_000_000
    tracemalloc.start()
    try:
        for number in range(5):
            assert run(access.refusal(READ_TOPIC, f"{long}{number}")) is None
        assert tracemalloc.get_traced_memory()[0] < len(long)
    finally:
        tracemalloc.stop()


OPEN = BrokerConfig(
    listeners=("PLAINTEXT://127.0.0.1:1", "FAR://10.0.0.1:2", "SSL://10.0.0.1:3", "SASL_SSL://10.0.0.1:4"),
    listener_security_protocol_map=("FAR:PLAINTEXT",),
    listener_overrides={"SSL": {"ssl.client.auth": "required"}},
)


def warnings(config: BrokerConfig, *, has_acls: bool) -> list[str]:
    return warnings_of_access(config.acl_policy, config.open_listeners, has_acls=has_acls)


def test_an_authorizer_that_is_hardly_meant_is_warned_of() -> None:
    assert warnings(OPEN, has_acls=False) == []
    config = replace(OPEN, authorizer_class_name="acl")
    text = "listener FAR at 10.0.0.1:2 is without authentication: "
    text += "to ACLs, everyone who comes there from other machines is "
    assert warnings(config, has_acls=True) == [f"{text}User:ANONYMOUS"]
    [nothing, _] = warnings(config, has_acls=False)
    assert nothing.startswith("there are neither ACLs nor super.users")
    anonymous = replace(config, super_users="User:ANONYMOUS")
    assert warnings(anonymous, has_acls=False) == [f"{text}User:ANONYMOUS, a super user"]
    requested = replace(config, listener_overrides={})
    assert [line.split()[1] for line in warnings(requested, has_acls=True)] == ["FAR", "SSL"]


def test_an_item_needs_all_that_its_row_says_and_the_first_that_is_not_met_is_reported() -> None:
    cluster = Cluster(allow(AclOperation.DESCRIBE, "shown"), allow(AclOperation.READ, "mine"))
    access = cluster.access()
    access.call = replace(CALLS["ListOffsets"], item_needs=(DESCRIBE_TOPIC, READ_TOPIC))
    refused = run(access.refused_places(["mine", "shown", "secret"], str))
    assert {place: refusal.message for place, refusal in refused.items()} == {
        1: "User:alice may not Read topic shown",
        2: "User:alice may not Describe topic secret",
    }


@pytest.mark.parametrize("is_given_up", [False, True])
def test_deferred_reports_leave_the_loop_to_others_and_none_is_lost_with_the_caller(
    monkeypatch: pytest.MonkeyPatch, *, is_given_up: bool
) -> None:
    monkeypatch.setattr(tasks, "SLICE_S", 0)
    cluster, order, has_begun = Cluster(), list[str](), asyncio.Event()

    class Log(AccessLog):
        def report(self, decided: AccessDecided) -> None:
            has_begun.set()
            order.append(decided.resource.name)
            asyncio.get_running_loop().call_soon(order.append, "other")

    cluster.authorizer.log = Log()

    async def ask() -> None:
        access = cluster.access()
        async with access.deferring_reports():
            await access.refusals(WRITE_TOPIC, ["a", "b", "c"])

    async def run_all() -> None:
        asked = asyncio.ensure_future(ask())
        await has_begun.wait()
        if is_given_up:
            asked.cancel()
        await asyncio.wait([asked])
        for _ in range(20):
            await asyncio.sleep(0)

    run(run_all())
    assert order == ["a", "other", "b", "other", "c", "other"]
