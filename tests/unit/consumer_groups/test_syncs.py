from __future__ import annotations

from dataclasses import replace

import pytest

from bus.consumer_groups.group import GroupState
from bus.consumer_groups.records import GroupStored
from bus.consumer_groups.requests import Assignment, GroupTimer, Joined, Synced, SyncGroup, TimerKind
from bus.errors import ErrorCode, Refused
from bus.model import TopicPartition
from tests.support.group_rules_bench import GROUP_ID, PROTOCOLS, GroupBench, join, stable_bench

SYNC = GroupTimer(TimerKind.SYNC, GROUP_ID)
LEADERS = SyncGroup(GROUP_ID, 2, "m-1", None, "consumer", "range", {"m-3": Assignment(b"x")})
FOLLOWERS = SyncGroup(GROUP_ID, 2, "m-3", None, None, None)


def completing_bench(*instance_ids: str) -> GroupBench:
    """Generation 2 awaits its assignment; of generation 1 each member had one."""
    bench = stable_bench(*instance_ids)
    assert bench.group is not None
    for member in list(bench.group.members.values()):
        bench.ask(join(member.member_id, group_instance_id=member.group_instance_id))
    assert bench.group.state is GroupState.COMPLETING_REBALANCE
    bench.notices.clear()
    return bench


@pytest.mark.parametrize(
    ("command", "code"),
    [
        (replace(FOLLOWERS, group_id=""), ErrorCode.INVALID_GROUP_ID),
        (replace(FOLLOWERS, member_id="m-9"), ErrorCode.UNKNOWN_MEMBER_ID),
        (replace(FOLLOWERS, group_instance_id="till"), ErrorCode.UNKNOWN_MEMBER_ID),
        (replace(FOLLOWERS, group_instance_id="desk"), ErrorCode.FENCED_INSTANCE_ID),
        (replace(FOLLOWERS, generation=1), ErrorCode.ILLEGAL_GENERATION),
        (replace(FOLLOWERS, generation=3), ErrorCode.ILLEGAL_GENERATION),
        (replace(FOLLOWERS, protocol_type="connect"), ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
        (replace(FOLLOWERS, protocol="sticky"), ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
    ],
)
def test_bad_sync_is_refused(command: SyncGroup, code: ErrorCode) -> None:
    bench = completing_bench("desk")
    before = bench.group
    assert isinstance(answer := bench.answer(command), Refused)
    assert answer.code is code
    assert bench.group is before


def test_sync_with_a_group_that_is_not_there_is_of_an_unknown_member() -> None:
    assert isinstance(answer := GroupBench().answer(FOLLOWERS), Refused)
    assert answer.code is ErrorCode.UNKNOWN_MEMBER_ID


def test_sync_while_members_join_again_is_told_to_join() -> None:
    bench = stable_bench()
    bench.ask(join("m-1"))
    assert isinstance(answer := bench.answer(replace(FOLLOWERS, generation=1)), Refused)
    assert answer.code is ErrorCode.REBALANCE_IN_PROGRESS


def test_followers_wait_for_the_leader_and_all_are_answered_with_the_record() -> None:
    bench = completing_bench()
    waiting = bench.ask(FOLLOWERS)
    assert waiting in bench.open
    assert bench.answer(LEADERS) == Synced("consumer", "range", b"")
    assert bench.answers[waiting] == Synced("consumer", "range", b"x")
    (record,) = bench.steps[-1].records
    assert isinstance(record, GroupStored)
    assert (record.state, record.generation, record.leader_id) == ("Stable", 2, "m-1")
    assert [(m.member_id, m.assignment.data) for m in record.members] == [("m-1", b""), ("m-3", b"x")]
    assert {(m.subscription, m.topics) for m in record.members} == {(b"of orders", ("orders",))}


def test_partitions_of_an_assignment_are_stored_beside_its_bytes() -> None:
    bench = completing_bench()
    given = Assignment(b"x", (TopicPartition("orders", 4),))
    bench.ask(replace(LEADERS, assignments={"m-3": given, "m-9": given}))
    assert bench.group is not None
    assert bench.group.members["m-3"].assignment == given


def test_assignment_of_a_follower_counts_for_nothing() -> None:
    bench = completing_bench()
    waiting = bench.ask(replace(FOLLOWERS, assignments=LEADERS.assignments))
    assert waiting in bench.open


def test_session_begins_anew_with_the_answer_to_the_sync() -> None:
    bench = completing_bench()
    bench.ask(FOLLOWERS)
    bench.wait(9_000)
    bench.ask(LEADERS)
    assert bench.deadlines[GroupTimer(TimerKind.SESSION, GROUP_ID, "m-3")] == bench.now_ms + 10_000


def test_session_begins_anew_when_a_sync_is_refused_for_a_rebalance() -> None:
    bench = completing_bench()
    waiting = bench.ask(FOLLOWERS)
    bench.wait(9_000)
    bench.ask(join("m-1", protocols=(replace(PROTOCOLS[0], metadata=b"new"),)))
    assert isinstance(answer := bench.answers[waiting], Refused)
    assert answer.code is ErrorCode.REBALANCE_IN_PROGRESS
    assert bench.deadlines[GroupTimer(TimerKind.SESSION, GROUP_ID, "m-3")] == bench.now_ms + 10_000
    assert bench.notices == []  # the answer says it


def test_member_that_has_not_synced_yet_is_told_of_the_rebalance() -> None:
    bench = completing_bench()
    bench.ask(join("m-1", protocols=(replace(PROTOCOLS[0], metadata=b"new"),)))
    assert [notice.member_id for notice in bench.notices] == ["m-3"]


def test_assignment_of_the_generation_before_is_not_that_of_the_next() -> None:
    bench = completing_bench()
    bench.ask(join("m-1", protocols=(replace(PROTOCOLS[0], metadata=b"new"),)))
    assert bench.group is not None
    assert {m.assignment.data for m in bench.group.members.values()} == {b""}


def test_assignment_stays_while_members_of_a_stable_group_join_again() -> None:
    bench = stable_bench()
    bench.ask(join("m-1"))
    assert bench.group is not None
    assert [m.assignment.data for m in bench.group.members.values()] == [b"m-1", b"m-3"]


def test_sync_in_a_stable_group_is_answered_at_once() -> None:
    bench = completing_bench()
    bench.ask(LEADERS)
    assert SYNC in bench.deadlines
    assert bench.answer(FOLLOWERS) == Synced("consumer", "range", b"x")
    assert SYNC not in bench.deadlines
    assert bench.answer(FOLLOWERS) == Synced("consumer", "range", b"x")


def test_sync_that_is_sent_again_takes_the_place_of_the_first() -> None:
    bench = completing_bench()
    first, second = bench.ask(FOLLOWERS), bench.ask(FOLLOWERS)
    assert isinstance(answer := bench.answers[first], Refused)
    assert answer.code is ErrorCode.REBALANCE_IN_PROGRESS
    bench.ask(LEADERS)
    assert bench.answers[second] == Synced("consumer", "range", b"x")


def test_leader_that_missed_its_answer_joins_again_in_the_same_generation() -> None:
    bench = completing_bench()
    before = bench.group
    assert isinstance(answer := bench.answer(join("m-1")), Joined)
    assert (answer.generation, len(answer.members)) == (2, 2)
    assert bench.group is before


def test_who_does_not_sync_within_the_rebalance_timeout_is_out() -> None:
    bench = completing_bench()
    waiting = bench.ask(LEADERS)
    assert isinstance(bench.answers[waiting], Synced)
    bench.run_out(SYNC)
    assert [(n.member_id, n.refused.code) for n in bench.notices] == [
        ("m-3", ErrorCode.UNKNOWN_MEMBER_ID),
        ("m-1", ErrorCode.REBALANCE_IN_PROGRESS),
    ]
    assert bench.group is not None
    assert list(bench.group.members) == ["m-1"]


def test_group_of_which_nobody_syncs_becomes_empty() -> None:
    bench = completing_bench()
    bench.run_out(SYNC)
    assert bench.group is not None
    assert (bench.group.state, bench.group.generation) == (GroupState.EMPTY, 3)
