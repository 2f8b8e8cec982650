from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from bus.consumer_groups.decisions import decide
from bus.consumer_groups.group import GroupRules, GroupState
from bus.consumer_groups.loading import read_groups, resume_timers
from bus.consumer_groups.records import (
    GroupStored,
    GroupTombstone,
    LoggedRecord,
    OffsetCommitted,
    OffsetTombstone,
    StoredMember,
    TxnOffsetsPending,
    encode_record,
)
from bus.consumer_groups.requests import (
    Assignment,
    ExpireOffsets,
    GroupTimer,
    Heartbeat,
    HeartbeatTaken,
    OffsetToCommit,
    TimerKind,
    TransactionKey,
)
from bus.machine import SetTimer
from bus.model import TopicPartition
from bus.ports import KeyedRow
from tests.support.group_rules_bench import GROUP_ID, join, load_groups, stable_bench

ORDERS = TopicPartition("orders", 0)
COMMITTED = OffsetCommitted("other", ORDERS, "id", 5, -1, "", 99)
EMPTY = GroupStored("third", "consumer", None, 4, None, "Empty", 99, ())


def test_last_record_of_each_kind_counts() -> None:
    records: list[LoggedRecord] = [
        COMMITTED,
        EMPTY,
        replace(COMMITTED, offset=9),
        replace(EMPTY, generation=6),
        replace(COMMITTED, partition=TopicPartition("orders", 1)),
        OffsetTombstone("other", TopicPartition("orders", 1)),
        OffsetTombstone("fourth", ORDERS),
        GroupTombstone("fourth"),
    ]
    groups = load_groups(records)
    assert groups.keys() == {"other", "third"}
    assert groups["other"].offsets == {ORDERS: replace(COMMITTED, offset=9)}
    assert (groups["other"].state, groups["other"].protocol_type) == (GroupState.EMPTY, None)
    assert (groups["third"].generation, groups["third"].state_ms) == (6, 99)


def test_group_that_is_deleted_is_gone_and_one_after_it_begins_anew() -> None:
    records: list[LoggedRecord] = [replace(EMPTY, group_id="other"), COMMITTED, OffsetTombstone("other", ORDERS)]
    assert load_groups([*records, GroupTombstone("other")]) == {}
    anew = load_groups([*records, GroupTombstone("other"), COMMITTED])["other"]
    assert (anew.generation, anew.protocol_type) == (0, None)


def test_members_go_on_with_a_session_that_begins_anew() -> None:
    bench = stable_bench("desk")
    before = bench.group
    bench.crash()
    assert before is not None
    assert bench.group is not None
    assert bench.group.members == before.members
    assert (bench.group.leader_id, bench.group.instance_ids) == (before.leader_id, before.instance_ids)
    assert resume_timers(bench.group) == tuple(
        SetTimer(GroupTimer(TimerKind.SESSION, GROUP_ID, member_id), 10_000) for member_id in before.members
    )
    assert bench.answer(Heartbeat(GROUP_ID, 1, "m-1")) == HeartbeatTaken()


def test_rebalance_that_was_under_way_is_as_if_it_had_not_begun() -> None:
    bench = stable_bench()
    bench.ask(join("m-1"))
    bench.ask(join("m-3"))
    bench.crash()
    assert bench.group is not None
    assert (bench.group.state, bench.group.generation) == (GroupState.STABLE, 1)


MEMBER = StoredMember("m-1", None, "c", "/h", 10, 20, b"s", ("orders",), Assignment(b"a", (ORDERS,)))
STABLE = GroupStored("third", "consumer", "range", 4, "m-1", "Stable", 99, (MEMBER,))
NOW_MS = 10**12


def row_of(record: LoggedRecord, **changed: Any) -> KeyedRow:
    row = encode_record(record)
    return KeyedRow(row.key, {**(row.value or {}), **changed})


def member_row(**changed: Any) -> KeyedRow:
    row = encode_record(STABLE)
    assert row.value is not None
    return KeyedRow(row.key, {**row.value, "members": [{**row.value["members"][0], **changed}]})


INNOCENT = [encode_record(replace(COMMITTED, group_id="innocent")), encode_record(replace(EMPTY, group_id="idle"))]


def loaded_beside(*rows: KeyedRow) -> tuple[dict[str, Any], tuple[str, ...]]:
    loaded = read_groups([*INNOCENT[:1], *rows, *INNOCENT[1:]], now_ms=NOW_MS)
    groups = dict(loaded.states)
    assert groups.pop("innocent").offsets == {ORDERS: replace(COMMITTED, group_id="innocent")}
    assert groups.pop("idle").generation == 4
    return groups, loaded.faults


def test_good_rows_have_no_fault() -> None:
    rows = [encode_record(record) for record in (COMMITTED, STABLE)]
    groups, faults = loaded_beside(*rows)
    assert groups == load_groups([COMMITTED, STABLE])
    assert faults == ()


@pytest.mark.parametrize("change", [{"leader_epoch": -5}, {"metadata": None}, {"expire_ms": -1}, {"commit_ms": -1}])
def test_offset_stays_without_what_cannot_be_read_of_it(change: dict[str, Any]) -> None:
    groups, (fault,) = loaded_beside(row_of(COMMITTED, **change))
    (kept,) = groups["other"].offsets.values()
    assert (kept.offset, kept.topic_id, kept.leader_epoch, kept.expire_ms) == (5, "id", -1, None)
    assert "'other'" in fault
    assert "orders-0" in fault
    assert "commit it again" in fault


@pytest.mark.parametrize("change", [{"committed_offset": -1}, {"topic_id": None}, {"type": "OffsetPromised"}])
def test_offset_that_is_not_certain_counts_as_not_committed(change: dict[str, Any]) -> None:
    second = replace(COMMITTED, partition=TopicPartition("orders", 1))
    groups, (fault,) = loaded_beside(row_of(COMMITTED, **change), encode_record(second))
    assert groups["other"].offsets == {second.partition: second}
    assert "counts as not committed" in fault


@pytest.mark.parametrize(
    "row",
    [
        row_of(STABLE, protocol=""),
        row_of(STABLE, protocol="", members=[]),
        row_of(STABLE, leader_id="gone"),
        row_of(STABLE, state="Dead"),
        row_of(STABLE, state_ms=-1),
        member_row(partitions=[{"topic": "orders", "partition": -1}]),
        member_row(session_timeout_ms=-1),
        member_row(topics=None),
    ],
)
def test_group_that_cannot_be_read_keeps_generation_and_offsets_and_its_members_join_again(row: KeyedRow) -> None:
    offset = replace(COMMITTED, group_id="third")
    groups, (fault,) = loaded_beside(encode_record(offset), row)
    group = groups["third"]
    group.check()
    assert (group.state, group.generation, group.protocol_type) == (GroupState.EMPTY, 4, "consumer")
    assert group.offsets == {ORDERS: offset}
    assert "join again" in fault
    step = decide(group, ExpireOffsets("third", NOW_MS + 1), request_id=1, rules=GroupRules(), now_ms=NOW_MS + 1)
    assert step.records == [], "its offsets are not idle since long ago"


@pytest.mark.parametrize("change", [{"generation": -1}, {"generation": None}, {"type": "GroupPromised"}])
def test_group_without_certain_generation_is_gone_and_its_offsets_stay(change: dict[str, Any]) -> None:
    offset = replace(COMMITTED, group_id="third")
    groups, (fault,) = loaded_beside(encode_record(offset), row_of(STABLE, **{"protocol_type": None, **change}))
    assert groups["third"].offsets == {ORDERS: offset}
    assert groups["third"].generation == 0
    assert "its committed offsets stay" in fault


@pytest.mark.parametrize("change", [{"sequence": None}, {"pending_offsets": [{"topic": "orders"}]}])
def test_transaction_whose_offsets_cannot_be_read_has_none_so_that_it_is_voted_against(change: dict[str, Any]) -> None:
    transaction = TransactionKey(7, 3)
    pending = TxnOffsetsPending("third", transaction, 0, 9, (OffsetToCommit(ORDERS, "id", 5),))
    offset = replace(COMMITTED, group_id="third")
    groups, (fault,) = loaded_beside(encode_record(offset), row_of(pending, **change))
    assert groups["third"].offsets == {ORDERS: offset}
    assert not groups["third"].pending_offsets
    assert "producer 7, epoch 3" in fault
    assert "cannot be committed" in fault


@pytest.mark.parametrize("key", [b"", b"\xff", b"[" * 99_999, b'["offset","g","t",-1]', b'["share","g"]'])
def test_record_of_an_unknown_key_is_passed_over(key: bytes) -> None:
    groups, (fault,) = loaded_beside(KeyedRow(key, {"type": "OffsetCommitted"}))
    assert groups == {}
    assert "passed over" in fault
    assert len(fault) < 1_000
