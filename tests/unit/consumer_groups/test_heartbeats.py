from __future__ import annotations

from dataclasses import replace

import pytest

from bus.consumer_groups.decisions import decide
from bus.consumer_groups.group import GroupState
from bus.consumer_groups.membership import check_heartbeat, is_sign_of_life
from bus.consumer_groups.requests import GroupTimer, Heartbeat, HeartbeatTaken, OffsetCommit, SyncGroup, TimerKind
from bus.errors import ErrorCode, Refused
from tests.support.group_rules_bench import GROUP_ID, PROTOCOLS, GroupBench, join, stable_bench

BEAT = Heartbeat(GROUP_ID, 1, "m-3")
SESSION_M3 = GroupTimer(TimerKind.SESSION, GROUP_ID, "m-3")


@pytest.mark.parametrize(
    ("command", "code"),
    [
        (replace(BEAT, member_id=""), ErrorCode.UNKNOWN_MEMBER_ID),
        (replace(BEAT, member_id="m-9"), ErrorCode.UNKNOWN_MEMBER_ID),
        (replace(BEAT, group_instance_id="till"), ErrorCode.UNKNOWN_MEMBER_ID),
        (replace(BEAT, group_instance_id="desk"), ErrorCode.FENCED_INSTANCE_ID),
        (replace(BEAT, generation=0), ErrorCode.ILLEGAL_GENERATION),
        (replace(BEAT, generation=2), ErrorCode.ILLEGAL_GENERATION),
    ],
)
def test_bad_heartbeat_is_refused_and_no_sign_of_life(command: Heartbeat, code: ErrorCode) -> None:
    bench = stable_bench("desk")
    deadlines = dict(bench.deadlines)
    assert isinstance(answer := bench.answer(command), Refused)
    assert answer.code is code
    assert check_heartbeat(bench.group, command) == answer
    assert not is_sign_of_life(answer)
    assert bench.deadlines == deadlines


@pytest.mark.parametrize(
    ("group_id", "code"), [("", ErrorCode.INVALID_GROUP_ID), (GROUP_ID, ErrorCode.UNKNOWN_MEMBER_ID)]
)
def test_heartbeat_to_no_group_is_refused(group_id: str, code: ErrorCode) -> None:
    command = replace(BEAT, group_id=group_id)
    assert isinstance(answer := check_heartbeat(None, command), Refused)
    assert answer.code is code
    assert GroupBench().answer(command) == answer


def test_session_begins_anew_with_a_heartbeat() -> None:
    bench = stable_bench()
    bench.wait(5_000)
    assert bench.answer(BEAT) == check_heartbeat(bench.group, BEAT) == HeartbeatTaken()
    assert is_sign_of_life(HeartbeatTaken())
    assert bench.deadlines[SESSION_M3] == bench.now_ms + 10_000


def test_session_begins_anew_with_a_heartbeat_that_is_told_of_a_rebalance() -> None:
    bench = stable_bench()
    bench.ask(join("m-1"))
    bench.wait(5_000)
    assert isinstance(answer := bench.answer(BEAT), Refused)
    assert answer.code is ErrorCode.REBALANCE_IN_PROGRESS
    assert is_sign_of_life(answer)
    assert bench.deadlines[SESSION_M3] == bench.now_ms + 10_000


def test_heartbeat_before_the_assignment_is_there_is_taken() -> None:
    bench = stable_bench()
    bench.ask(join("m-1"))
    bench.ask(join("m-3"))
    assert bench.answer(replace(BEAT, generation=2)) == HeartbeatTaken()


def test_commit_is_a_sign_of_life() -> None:
    bench = stable_bench()
    bench.wait(5_000)
    bench.ask(OffsetCommit(GROUP_ID, 1, "m-3", None, ()))
    assert bench.deadlines[SESSION_M3] == bench.now_ms + 10_000


def test_member_whose_session_is_over_is_out_and_told_so() -> None:
    bench = stable_bench()
    bench.run_out(SESSION_M3)
    assert bench.group is not None
    assert list(bench.group.members) == ["m-1"]
    assert [(n.member_id, n.refused.code) for n in bench.notices] == [
        ("m-3", ErrorCode.UNKNOWN_MEMBER_ID),
        ("m-1", ErrorCode.REBALANCE_IN_PROGRESS),
    ]


def test_member_that_waits_for_its_answer_to_a_join_is_spared() -> None:
    bench = stable_bench()
    waiting = bench.ask(join("m-3", protocols=(replace(PROTOCOLS[0], metadata=b"new"),)))
    bench.ask(Heartbeat(GROUP_ID, 1, "m-1"))
    bench.run_out(SESSION_M3)
    assert waiting in bench.open
    bench.ask(join("m-1"))
    assert bench.deadlines[SESSION_M3] == bench.now_ms + 10_000


def test_last_one_that_was_waited_for_being_lost_the_rebalance_goes_on() -> None:
    bench = stable_bench()
    bench.ask(join("m-1"))
    bench.run_out(SESSION_M3)
    assert bench.group is not None
    assert (bench.group.state, bench.group.generation) == (GroupState.COMPLETING_REBALANCE, 2)


def test_pending_member_that_does_not_come_is_not_waited_for_any_more() -> None:
    bench = stable_bench()
    bench.answer(join())
    pending = f"m-{bench.last_request_id}"
    bench.ask(join("m-1"))
    bench.ask(join("m-3"))
    assert bench.group is not None
    assert bench.group.state is GroupState.PREPARING_REBALANCE
    bench.run_out(GroupTimer(TimerKind.PENDING_MEMBER, GROUP_ID, pending))
    assert bench.group.state is GroupState.COMPLETING_REBALANCE


@pytest.mark.parametrize("kind", TimerKind)
@pytest.mark.parametrize("member_id", ["", "m-9", "m-3"])
def test_timer_of_what_is_gone_changes_nothing(kind: TimerKind, member_id: str) -> None:
    bench = stable_bench()
    bench.run_out(SESSION_M3)
    bench.ask(join("m-1"))
    bench.ask(SyncGroup(GROUP_ID, 2, "m-1", None, None, None))
    assert bench.group is not None
    timer = GroupTimer(kind, GROUP_ID, member_id)
    step = decide(bench.group, timer, request_id=0, rules=bench.rules, now_ms=bench.now_ms)
    assert step.state is bench.group
    assert not any((step.changes, step.replies, step.timers, step.notices))
