"""The administrator's calls for groups, over gRPC to groups in memory."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from bus import Admin, BusError, ErrorCode, TopicPartition
from bus.client.values import OffsetAndMetadata
from bus.descriptions import CommittedOffset, GroupListing, PendingOffsets
from bus.grpc_api.v1 import bus_pb2 as pb
from tests.support.fake_groups import COMMIT_MS, FakeGroupBroker

ORDERS_0, ORDERS_1, PAY_0 = TopicPartition("orders", 0), TopicPartition("orders", 1), TopicPartition("pay", 0)


@pytest.fixture
def broker() -> Iterator[FakeGroupBroker]:
    with FakeGroupBroker() as fake:
        fake.cluster.create("orders", 2)
        fake.cluster.create("pay", 1)
        fake.append_values("orders", 0, 10)
        fake.append_values("orders", 0, 10)
        fake.append_values("orders", 1, 5)
        yield fake


@pytest.fixture
def admin(broker: FakeGroupBroker) -> Iterator[Admin]:
    with Admin(broker.address, retry_backoff_ms=1) as client:
        yield client


def test_groups_are_listed_by_state(broker: FakeGroupBroker, admin: Admin) -> None:
    broker.join("billing", "m1", [ORDERS_0])
    broker.commit("audit", {ORDERS_0: 3})
    assert admin.list_groups() == [GroupListing("audit", "", "Empty"), GroupListing("billing", "consumer", "Stable")]
    assert [group.group_id for group in admin.list_groups(["Stable"])] == ["billing"]


def test_a_description_tells_members_and_what_they_are_given(broker: FakeGroupBroker, admin: Admin) -> None:
    broker.join("billing", "m1", [ORDERS_1, ORDERS_0])
    broker.join("billing", "m2", [PAY_0], "i-2")
    described = admin.describe_groups(["billing"])["billing"]
    assert (described.state, described.protocol, described.generation, described.leader_id) == (
        "Stable",
        "range",
        2,
        "m1",
    )
    assert (described.coordinator.host, described.coordinator.port) == ("127.0.0.1", broker.port)
    first, second = described.members
    assert (first.topics, first.partitions) == (("orders",), (ORDERS_0, ORDERS_1))
    assert (first.group_instance_id, second.group_instance_id) == (None, "i-2")
    assert (second.client_id, second.client_host, second.session_timeout_ms) == ("client-m2", "/127.0.0.1", 45_000)


def test_a_description_tells_what_open_transactions_have_pending(broker: FakeGroupBroker, admin: Admin) -> None:
    broker.commit("billing", {ORDERS_0: 1})
    assert admin.describe_groups(["billing"])["billing"].pending_offsets == ()
    broker.groups["billing"].pending_offsets.append(
        pb.PendingOffsets(producer_id=7, producer_epoch=3, offset_count=2, commit_ms=99)
    )
    assert admin.describe_groups(["billing"])["billing"].pending_offsets == (PendingOffsets(7, 3, 2, 99),)


def test_bytes_of_another_protocol_are_not_read(broker: FakeGroupBroker, admin: Admin) -> None:
    broker.join("connect", "m1", [ORDERS_0])
    broker.join("broken", "m1", [ORDERS_0])
    broker.groups["connect"].protocol_type = "connect"
    broker.groups["broken"].members[0].assignment = b"\xff\xff"
    described = admin.describe_groups(["connect", "broken"])
    assert [described[name].members[0].partitions for name in ("connect", "broken")] == [(), ()]


def test_a_group_that_is_not_there_is_refused_beside_one_that_is(broker: FakeGroupBroker, admin: Admin) -> None:
    broker.commit("billing", {ORDERS_0: 1})
    with pytest.raises(BusError, match="'nobody' does not exist") as caught:
        admin.describe_groups(["billing", "nobody"])
    assert caught.value.code is ErrorCode.GROUP_ID_NOT_FOUND


def test_all_groups_are_tried_and_those_that_stay_are_named(broker: FakeGroupBroker, admin: Admin) -> None:
    broker.join("busy", "m1", [ORDERS_0])
    broker.commit("idle", {ORDERS_0: 1})
    with pytest.raises(BusError, match=r"2 of 3 failed: 'busy': NON_EMPTY_GROUP.*'nobody': GROUP_ID_NOT_FOUND"):
        admin.delete_groups(["busy", "nobody", "idle"])
    assert list(broker.groups) == ["busy"]


def test_committed_offsets_of_one_group_and_of_several(broker: FakeGroupBroker, admin: Admin) -> None:
    broker.commit("billing", {ORDERS_0: 4, PAY_0: 0})
    broker.commit("audit", {ORDERS_1: 2})
    four = CommittedOffset(4, "", -1, COMMIT_MS)
    assert admin.list_group_offsets("billing") == {ORDERS_0: four, PAY_0: CommittedOffset(0, "", -1, COMMIT_MS)}
    assert admin.list_group_offsets("billing", [ORDERS_0, ORDERS_1]) == {ORDERS_0: four}
    several = admin.list_group_offsets(["billing", "audit", "nobody"])
    assert {group_id: sorted(offsets) for group_id, offsets in several.items()} == {
        "billing": [ORDERS_0, PAY_0],
        "audit": [ORDERS_1],
        "nobody": [],
    }


def test_offsets_are_altered_with_and_without_metadata(broker: FakeGroupBroker, admin: Admin) -> None:
    admin.alter_group_offsets("billing", {ORDERS_0: 4, ORDERS_1: OffsetAndMetadata(5, "by hand")})
    found = admin.list_group_offsets("billing")
    assert [(found[one].offset, found[one].metadata) for one in (ORDERS_0, ORDERS_1)] == [(4, ""), (5, "by hand")]
    admin.alter_group_offsets("new", {})
    assert "new" not in broker.groups


def test_offsets_of_a_group_with_members_are_theirs(broker: FakeGroupBroker, admin: Admin) -> None:
    broker.join("billing", "m1", [ORDERS_0])
    with pytest.raises(BusError, match="'billing' has members") as caught:
        admin.alter_group_offsets("billing", {ORDERS_0: 4, ORDERS_1: 1})
    assert caught.value.code is ErrorCode.UNKNOWN_MEMBER_ID


def test_a_partition_that_is_not_there_is_named_and_the_others_are_committed(
    broker: FakeGroupBroker, admin: Admin
) -> None:
    with pytest.raises(BusError, match="of gone-0") as caught:
        admin.alter_group_offsets("billing", {ORDERS_0: 4, TopicPartition("gone", 0): 1})
    assert caught.value.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert broker.groups["billing"].offsets[ORDERS_0].offset == 4


def test_offsets_are_deleted_but_for_topics_that_are_subscribed(broker: FakeGroupBroker, admin: Admin) -> None:
    broker.join("billing", "m1", [ORDERS_0])
    broker.commit("billing", {ORDERS_0: 4, PAY_0: 1})
    with pytest.raises(BusError, match="of orders-0") as caught:
        admin.delete_group_offsets("billing", [ORDERS_0, PAY_0])
    assert caught.value.code is ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC
    assert list(broker.groups["billing"].offsets) == [ORDERS_0]
    with pytest.raises(BusError) as caught:
        admin.delete_group_offsets("nobody", [ORDERS_0])
    assert caught.value.code is ErrorCode.GROUP_ID_NOT_FOUND


def test_members_are_removed_by_id_by_instance_or_all(broker: FakeGroupBroker, admin: Admin) -> None:
    for number in range(4):
        broker.join("billing", f"m{number}", [ORDERS_0], f"i{number}" if number == 1 else None)
    admin.remove_members("billing", member_ids=["m0"], group_instance_ids=["i1"])
    assert [one.member_id for one in broker.groups["billing"].members] == ["m2", "m3"]
    with pytest.raises(BusError) as caught:
        admin.remove_members("billing", member_ids=["m0"])
    assert caught.value.code is ErrorCode.UNKNOWN_MEMBER_ID
    admin.remove_members("billing")
    assert broker.groups["billing"].members == []


@pytest.mark.parametrize(
    "code",
    [ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE],
)
def test_a_coordinator_that_is_not_ready_is_looked_for_and_asked_again(
    broker: FakeGroupBroker, admin: Admin, code: ErrorCode
) -> None:
    broker.commit("billing", {ORDERS_0: 1})
    broker.group_script.extend([code] * 2)
    admin.describe_groups(["billing"])
    assert broker.calls.count("FindCoordinator") == 3
    broker.group_script.append(code)
    admin.alter_group_offsets("billing", {ORDERS_0: 2})
    assert broker.groups["billing"].offsets[ORDERS_0].offset == 2
    broker.group_script.append(code)
    admin.list_groups()
    broker.group_script.append(code)
    admin.delete_groups(["billing"])
    assert broker.groups == {}


def test_only_the_groups_that_were_not_answered_are_asked_again(broker: FakeGroupBroker, admin: Admin) -> None:
    for group_id in ("a", "b"):
        broker.commit(group_id, {ORDERS_0: 1})
    broker.group_script.extend([ErrorCode.NONE, ErrorCode.NOT_COORDINATOR])
    admin.delete_groups(["a", "b"])
    assert broker.groups == {}


def test_a_coordinator_is_looked_for_once(broker: FakeGroupBroker, admin: Admin) -> None:
    broker.commit("billing", {ORDERS_0: 1})
    for _ in range(3):
        admin.describe_groups(["billing"])
        admin.list_group_offsets("billing")
    assert broker.calls.count("FindCoordinator") == 1


def test_waiting_for_a_coordinator_ends(broker: FakeGroupBroker) -> None:
    broker.group_script.extend([ErrorCode.COORDINATOR_LOAD_IN_PROGRESS] * 100)
    with Admin(broker.address, retry_backoff_ms=1, retries=3) as admin, pytest.raises(BusError) as caught:
        admin.describe_groups(["billing"])
    assert caught.value.code is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    assert broker.calls.count("DescribeGroups") == 4


def test_a_deletion_whose_answer_was_lost_is_not_sent_again(
    broker: FakeGroupBroker, admin: Admin, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker.commit("billing", {ORDERS_0: 1})
    calls: list[str] = []
    admin.describe_groups(["billing"])
    monkeypatch.setattr(admin._cluster, "call", _losing(admin._cluster.call, "DeleteGroups", calls))
    with pytest.raises(BusError, match="lost"):
        admin.delete_groups(["billing"])
    assert calls == ["DeleteGroups"]


def _losing(call: object, method: str, calls: list[str]) -> object:
    def losing(name: str, *arguments: object, **options: object) -> object:
        if name == method:
            calls.append(name)
            raise BusError(ErrorCode.NETWORK_EXCEPTION, "lost")
        return call(name, *arguments, **options)  # type: ignore[operator]

    return losing


# ------------------------------------------------------------------ create_group


@pytest.mark.parametrize(
    ("where", "offsets"),
    [
        ({"start": "earliest"}, {ORDERS_0: 0, ORDERS_1: 0}),
        ({"start": "latest"}, {ORDERS_0: 20, ORDERS_1: 5}),
        ({"timestamp_ms": COMMIT_MS + 3}, {ORDERS_0: 10, ORDERS_1: 5}),
        ({"at_version": {ORDERS_0: 1, ORDERS_1: 0}}, {ORDERS_0: 10, ORDERS_1: 0}),
        ({"at_version": {ORDERS_0: 1}}, {ORDERS_0: 10}),
        ({"offsets_of": "audit"}, {ORDERS_1: 2}),
    ],
)
def test_a_group_is_created_where_it_is_to_begin(
    broker: FakeGroupBroker, admin: Admin, where: dict[str, object], offsets: dict[TopicPartition, int]
) -> None:
    broker.versions = {(ORDERS_0, 1): 10, (ORDERS_1, 0): 0}
    broker.commit("audit", {ORDERS_1: 2, PAY_0: 0})
    assert admin.create_group("new", ["orders"], **where) == offsets  # type: ignore[arg-type]
    assert {one: found.offset for one, found in admin.list_group_offsets("new").items()} == offsets


def test_a_group_is_created_with_all_offsets_of_another(broker: FakeGroupBroker, admin: Admin) -> None:
    broker.commit("audit", {ORDERS_1: 2, PAY_0: 0})
    assert admin.create_group("new", offsets_of="audit") == {ORDERS_1: 2, PAY_0: 0}


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"topics": ["orders"]}, "found 0"),
        ({"topics": ["orders"], "start": "earliest", "timestamp_ms": 1}, "found 2"),
        ({"topics": ["orders"], "start": "soon"}, "found 'soon'"),
        ({"start": "earliest"}, "expected topics"),
        ({"offsets_of": "nobody"}, "expected at least one offset"),
    ],
)
def test_a_group_that_would_begin_nowhere_is_refused(admin: Admin, arguments: dict[str, object], said: str) -> None:
    with pytest.raises(BusError, match=said) as caught:
        admin.create_group("new", **arguments)  # type: ignore[arg-type]
    assert caught.value.code is ErrorCode.INVALID_REQUEST


def test_a_group_that_exists_is_not_created(broker: FakeGroupBroker, admin: Admin) -> None:
    broker.commit("billing", {ORDERS_0: 7})
    with pytest.raises(BusError, match="'billing' exists, its state is Empty"):
        admin.create_group("billing", ["orders"], "earliest")
    assert broker.groups["billing"].offsets[ORDERS_0].offset == 7


def test_a_version_that_is_not_there_creates_nothing(broker: FakeGroupBroker, admin: Admin) -> None:
    with pytest.raises(BusError, match=r"orders-0: expected a Delta version that is there, found 9") as caught:
        admin.create_group("new", ["orders"], at_version=9)
    assert caught.value.code is ErrorCode.OFFSET_OUT_OF_RANGE
    assert "new" not in broker.groups


def test_many_groups_are_asked_for_in_several_requests(broker: FakeGroupBroker, admin: Admin) -> None:
    names = [f"group-{number}" for number in range(1_100)]
    for name in names:
        broker.commit(name, {ORDERS_0: 3})
    assert list(admin.describe_groups(names)) == names
    assert broker.calls.count("DescribeGroups") == 3
    offsets = admin.list_group_offsets(names)
    assert {name: found[ORDERS_0].offset for name, found in offsets.items()} == dict.fromkeys(names, 3)
