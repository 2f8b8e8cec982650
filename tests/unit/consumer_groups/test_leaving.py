from __future__ import annotations

import pytest

from bus.consumer_groups.group import GroupState
from bus.consumer_groups.requests import (
    GroupTimer,
    JoinRefused,
    LeaveGroup,
    LeavingMember,
    MembersRemoved,
    SyncGroup,
    TimerKind,
)
from bus.errors import ErrorCode, Refused
from tests.support.group_rules_bench import GROUP_ID, GroupBench, join, stable_bench


def leave(bench: GroupBench, *members: LeavingMember) -> list[ErrorCode | None]:
    answer = bench.answer(LeaveGroup(GROUP_ID, members))
    assert isinstance(answer, MembersRemoved)
    return [None if refused is None else refused.code for refused in answer.members]


@pytest.mark.parametrize(
    ("group_id", "code"), [("", ErrorCode.INVALID_GROUP_ID), (GROUP_ID, ErrorCode.UNKNOWN_MEMBER_ID)]
)
def test_leaving_no_group_is_refused(group_id: str, code: ErrorCode) -> None:
    answer = GroupBench().answer(LeaveGroup(group_id, (LeavingMember("m-1"),)))
    assert isinstance(answer, Refused)
    assert answer.code is code


def test_each_of_several_is_told_for_itself_and_one_rebalance_follows() -> None:
    bench = stable_bench("desk", "till")
    assert leave(
        bench,
        LeavingMember("m-3"),
        LeavingMember("m-3"),
        LeavingMember("", "desk"),
        LeavingMember("", "desk"),
        LeavingMember("m-1", "till"),
        LeavingMember("", None),
        LeavingMember("m-9"),
    ) == [
        None,
        ErrorCode.UNKNOWN_MEMBER_ID,
        None,
        ErrorCode.UNKNOWN_MEMBER_ID,
        ErrorCode.FENCED_INSTANCE_ID,
        ErrorCode.UNKNOWN_MEMBER_ID,
        ErrorCode.UNKNOWN_MEMBER_ID,
    ]
    assert bench.group is not None
    assert len(bench.group.members) == 2
    assert (bench.group.state, bench.group.generation) == (GroupState.PREPARING_REBALANCE, 1)
    told = [notice.refused.code for notice in bench.notices]
    assert told == [ErrorCode.UNKNOWN_MEMBER_ID] * 2 + [ErrorCode.REBALANCE_IN_PROGRESS] * 2


def test_who_could_not_leave_brings_about_nothing() -> None:
    bench = stable_bench()
    before = bench.group
    leave(bench, LeavingMember("m-9"))
    assert bench.group is before


def test_pending_member_leaves_without_a_rebalance() -> None:
    bench = stable_bench()
    bench.answer(join())
    pending = f"m-{bench.last_request_id}"
    assert leave(bench, LeavingMember(pending)) == [None]
    assert bench.group is not None
    assert not bench.group.pending_members
    assert GroupTimer(TimerKind.PENDING_MEMBER, GROUP_ID, pending) not in bench.deadlines
    assert bench.group.state is GroupState.STABLE
    assert not bench.notices


def test_rebalance_that_waited_for_a_pending_member_alone_ends_when_that_one_leaves() -> None:
    bench = stable_bench()
    bench.answer(join())
    pending = f"m-{bench.last_request_id}"
    joins = [bench.ask(join(member_id)) for member_id in ("m-1", "m-3")]
    assert not set(joins) & bench.answers.keys()
    assert leave(bench, LeavingMember(pending), LeavingMember(pending)) == [None, ErrorCode.UNKNOWN_MEMBER_ID]
    assert set(joins) <= bench.answers.keys()


def test_only_pending_member_leaves_and_there_is_no_group() -> None:
    bench = GroupBench()
    bench.answer(join())
    assert leave(bench, LeavingMember("m-1")) == [None]
    assert bench.group is None


def test_member_that_is_taken_out_while_it_joins_is_answered_that_it_is_unknown() -> None:
    bench = stable_bench("desk")
    assert bench.group is not None
    waiting = bench.ask(join("m-1"))
    leave(bench, LeavingMember("m-1"))
    assert isinstance(answer := bench.answers[waiting], JoinRefused)
    assert (answer.refused.code, answer.member_id) == (ErrorCode.UNKNOWN_MEMBER_ID, "")


def test_member_that_is_taken_out_while_it_syncs_is_answered_that_it_is_unknown() -> None:
    bench = stable_bench()
    bench.ask(join("m-1"))
    bench.ask(join("m-3"))
    waiting = bench.ask(SyncGroup(GROUP_ID, 2, "m-3", None, None, None))
    leave(bench, LeavingMember("m-3"))
    assert isinstance(answer := bench.answers[waiting], Refused)
    assert answer.code is ErrorCode.UNKNOWN_MEMBER_ID


def test_last_one_that_was_waited_for_leaving_the_rebalance_goes_on() -> None:
    bench = stable_bench()
    bench.ask(join("m-1"))
    leave(bench, LeavingMember("m-3"))
    assert bench.group is not None
    assert (bench.group.state, bench.group.generation) == (GroupState.COMPLETING_REBALANCE, 2)


def test_first_rebalance_goes_on_to_wait_for_others_when_a_member_leaves() -> None:
    bench = GroupBench()
    for _ in range(2):
        bench.answer(join())
        bench.ask(join(f"m-{bench.last_request_id}"))
    leave(bench, LeavingMember("m-3"))
    assert bench.group is not None
    assert bench.group.state is GroupState.PREPARING_REBALANCE


def test_group_whose_members_have_all_left_is_empty_in_the_next_generation() -> None:
    bench = stable_bench()
    leave(bench, LeavingMember("m-1"), LeavingMember("m-3"))
    assert bench.group is not None
    assert (bench.group.state, bench.group.generation) == (GroupState.EMPTY, 2)
    assert (bench.group.protocol_type, bench.group.protocol, bench.group.leader_id) == ("consumer", None, None)
    assert bench.deadlines == {}
