from __future__ import annotations

from dataclasses import replace

from bus.consumer_groups.decisions import load_groups, resume_timers
from bus.consumer_groups.group import GroupState
from bus.consumer_groups.records import GroupRecord, GroupStored, GroupTombstone, OffsetCommitted, OffsetTombstone
from bus.consumer_groups.requests import Heartbeat, HeartbeatTaken
from bus.consumer_groups.steps import GroupTimer, SetTimer, TimerKind
from bus.model import TopicPartition
from tests.support.group_rules_bench import GROUP_ID, join, stable_bench

ORDERS = TopicPartition("orders", 0)
COMMITTED = OffsetCommitted("other", ORDERS, "id", 5, -1, "", 99)
EMPTY = GroupStored("third", "consumer", None, 4, None, "Empty", 99, ())


def test_last_record_of_each_kind_counts() -> None:
    records: list[GroupRecord] = [
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
    records: list[GroupRecord] = [replace(EMPTY, group_id="other"), COMMITTED, OffsetTombstone("other", ORDERS)]
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
