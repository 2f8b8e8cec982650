from __future__ import annotations

from dataclasses import replace

import pytest

from bus.consumer_groups.group import GroupRules, GroupState
from bus.consumer_groups.records import GroupStored
from bus.consumer_groups.requests import (
    Assignment,
    GroupProtocol,
    GroupTimer,
    Joined,
    JoinGroup,
    JoinRefused,
    LeaveGroup,
    LeavingMember,
    Synced,
    SyncGroup,
    TimerKind,
)
from bus.errors import ErrorCode
from bus.machine import CancelTimer, SetTimer
from tests.support.group_rules_bench import GROUP_ID, PROTOCOLS, GroupBench, join, stable_bench

SESSION_M1 = GroupTimer(TimerKind.SESSION, GROUP_ID, "m-1")
PENDING_M1 = GroupTimer(TimerKind.PENDING_MEMBER, GROUP_ID, "m-1")
STICKY = (GroupProtocol("sticky", b""),)


def refusal(bench: GroupBench, command: JoinGroup) -> tuple[ErrorCode, str]:
    answer = bench.answer(command)
    assert isinstance(answer, JoinRefused)
    return answer.refused.code, answer.member_id


@pytest.mark.parametrize(
    ("command", "code"),
    [
        (join(group_id=""), ErrorCode.INVALID_GROUP_ID),
        (join(session_timeout_ms=5_999), ErrorCode.INVALID_SESSION_TIMEOUT),
        (join(session_timeout_ms=1_800_001), ErrorCode.INVALID_SESSION_TIMEOUT),
        (join("m-9"), ErrorCode.UNKNOWN_MEMBER_ID),
        (join("m-9", group_instance_id="desk"), ErrorCode.UNKNOWN_MEMBER_ID),
        (join(protocols=()), ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
        (join(protocol_type=""), ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
    ],
)
def test_bad_first_join_is_refused_and_leaves_nothing(command: JoinGroup, code: ErrorCode) -> None:
    bench = GroupBench()
    assert refusal(bench, command) == (code, command.member_id)
    assert bench.group is None
    assert bench.deadlines == {}


@pytest.mark.parametrize("session_timeout_ms", [6_000, 1_800_000])
def test_bounds_of_the_session_timeout_are_within(session_timeout_ms: int) -> None:
    answer = refusal(GroupBench(), join(session_timeout_ms=session_timeout_ms))
    assert answer == (ErrorCode.MEMBER_ID_REQUIRED, "m-1")


@pytest.mark.parametrize(
    ("command", "code"),
    [
        (join(protocol_type="connect"), ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
        (join(protocols=STICKY), ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
        (join("m-1", protocols=STICKY), ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
        (join("m-9"), ErrorCode.UNKNOWN_MEMBER_ID),
        (join("m-1", group_instance_id="till"), ErrorCode.UNKNOWN_MEMBER_ID),
        (join("m-1", group_instance_id="desk"), ErrorCode.FENCED_INSTANCE_ID),
    ],
)
def test_bad_join_of_a_stable_group_is_refused_and_changes_nothing(command: JoinGroup, code: ErrorCode) -> None:
    bench = stable_bench("desk")
    before = bench.group
    assert refusal(bench, command)[0] is code
    assert bench.group is before


def test_pending_member_has_its_session_timeout_to_come_back() -> None:
    bench = GroupBench()
    bench.answer(join())
    assert tuple(bench.steps[-1].timers) == (SetTimer(PENDING_M1, 10_000),)
    bench.wait(10_000)
    assert bench.group is None
    assert refusal(bench, join("m-1")) == (ErrorCode.UNKNOWN_MEMBER_ID, "m-1")


def test_member_id_of_somebody_pending_is_of_no_use_with_an_instance_id() -> None:
    bench = GroupBench()
    bench.answer(join())
    assert refusal(bench, join("m-1", group_instance_id="desk"))[0] is ErrorCode.UNKNOWN_MEMBER_ID


def test_new_member_may_wait_for_its_first_answer_five_minutes() -> None:
    bench = GroupBench()
    bench.answer(join())
    waiting = bench.ask(join("m-1", rebalance_timeout_ms=900_000))
    assert CancelTimer(PENDING_M1) in bench.steps[-1].timers
    assert bench.deadlines[SESSION_M1] == bench.now_ms + 300_000
    bench.wait(3_000)
    assert isinstance(bench.answers[waiting], Joined)
    assert bench.deadlines[SESSION_M1] == bench.now_ms + 10_000


def test_new_member_that_waits_too_long_is_answered_that_it_is_unknown() -> None:
    bench = GroupBench(GroupRules(initial_rebalance_delay_ms=400_000))
    bench.answer(join())
    waiting = bench.ask(join("m-1", rebalance_timeout_ms=900_000))
    bench.wait(300_000)
    assert isinstance(answer := bench.answers[waiting], JoinRefused)
    assert (answer.refused.code, answer.member_id) == (ErrorCode.UNKNOWN_MEMBER_ID, "")
    assert bench.group is not None
    assert bench.group.state is GroupState.EMPTY


def test_first_member_of_all_waits_for_the_initial_delay_only() -> None:
    bench = GroupBench()
    bench.answer(join())
    bench.ask(join("m-1"))
    bench.wait(2_999)
    assert bench.group is not None
    assert bench.group.state is GroupState.PREPARING_REBALANCE
    bench.wait(1)
    assert bench.group.state is GroupState.COMPLETING_REBALANCE


def test_initial_delay_is_not_longer_than_the_rebalance_timeout() -> None:
    bench = GroupBench()
    for _ in range(4):  # one every 2 s
        bench.answer(join())
        bench.ask(join(f"m-{bench.last_request_id}", rebalance_timeout_ms=7_000))
        bench.wait(1_999)
        assert bench.group is not None
        bench.wait(1 if bench.now_ms < 1_006_999 else 0)
    assert bench.group is not None
    assert bench.group.state is GroupState.COMPLETING_REBALANCE
    assert len(bench.group.members) == 4


def test_rebalance_timeout_of_zero_is_the_session_timeout() -> None:
    bench = GroupBench()
    bench.answer(join())
    bench.ask(join("m-1", rebalance_timeout_ms=0))
    assert bench.group is not None
    assert bench.group.rebalance_timeout_ms == 10_000


def test_protocol_that_is_named_twice_counts_once() -> None:
    bench = GroupBench()
    bench.answer(join())
    bench.ask(join("m-1", protocols=(*PROTOCOLS, GroupProtocol("range", b"other"))))
    assert bench.group is not None
    assert bench.group.members["m-1"].protocols == PROTOCOLS


def test_follower_that_says_nothing_new_is_answered_with_the_current_generation() -> None:
    bench = stable_bench()
    before = bench.group
    assert bench.answer(join("m-3")) == Joined(1, "consumer", "range", "m-1", "m-3")
    assert bench.group is before


def test_leader_that_joins_again_begins_a_rebalance_and_others_are_told() -> None:
    bench = stable_bench()
    bench.ask(join("m-1"))
    assert bench.group is not None
    assert bench.group.state is GroupState.PREPARING_REBALANCE
    assert [(n.member_id, n.refused.code) for n in bench.notices] == [("m-3", ErrorCode.REBALANCE_IN_PROGRESS)]


@pytest.mark.parametrize("protocols", [(GroupProtocol("range", b"of audit", ("audit",)),), (*PROTOCOLS, *STICKY)])
def test_follower_that_says_something_new_begins_a_rebalance(protocols: tuple[GroupProtocol, ...]) -> None:
    bench = stable_bench()
    waiting = bench.ask(join("m-3", protocols=protocols))
    bench.ask(join("m-1"))
    assert bench.answers[waiting] == Joined(2, "consumer", "range", "m-1", "m-3")


def test_join_that_is_sent_again_takes_the_place_of_the_first() -> None:
    bench = stable_bench()
    first = bench.ask(join("m-1"))
    second = bench.ask(join("m-1"))
    assert isinstance(answer := bench.answers[first], JoinRefused)
    assert (answer.refused.code, answer.member_id) == (ErrorCode.REBALANCE_IN_PROGRESS, "m-1")
    bench.ask(join("m-3"))
    assert isinstance(bench.answers[second], Joined)


def test_leader_that_does_not_join_again_is_followed_by_one_that_did() -> None:
    bench = stable_bench()
    waiting = bench.ask(join("m-3", protocols=(*PROTOCOLS, *STICKY)))
    bench.wait(60_000)
    assert isinstance(answer := bench.answers[waiting], Joined)
    assert (answer.leader_id, [m.member_id for m in answer.members]) == ("m-3", ["m-3"])


def test_static_member_that_does_not_join_again_stays_while_its_session_lasts() -> None:
    bench = stable_bench("desk")
    leader = bench.ask(join("m-1", session_timeout_ms=1_800_000))
    assert bench.group is not None
    static = bench.group.instance_ids["desk"]
    bench.deadlines[GroupTimer(TimerKind.SESSION, GROUP_ID, static)] += 600_000
    bench.wait(60_000)
    assert isinstance(answer := bench.answers[leader], Joined)
    assert [m.member_id for m in answer.members] == ["m-1", static]
    assert [m.group_instance_id for m in answer.members] == [None, "desk"]


def test_static_leader_that_does_not_join_again_stays_a_member_and_leads_no_more() -> None:
    bench = GroupBench()
    for name in ("desk", "till"):
        bench.ask(join(group_instance_id=name, session_timeout_ms=1_800_000))
    bench.wait(6_000)
    for name, member_id in (("desk", "m-1"), ("till", "m-2")):
        bench.ask(SyncGroup(GROUP_ID, 1, member_id, name, None, None))
    changed = (GroupProtocol("range", b"of audit", ("audit",)),)
    waiting = bench.ask(join("m-2", group_instance_id="till", session_timeout_ms=1_800_000, protocols=changed))
    bench.wait(60_000)
    assert isinstance(answer := bench.answers[waiting], Joined)
    assert (answer.leader_id, [m.member_id for m in answer.members]) == ("m-2", ["m-1", "m-2"])


def test_static_members_alone_that_do_not_join_again_are_waited_for() -> None:
    bench = GroupBench()
    for name in ("desk", "till"):
        bench.ask(join(group_instance_id=name, session_timeout_ms=1_800_000))
    bench.wait(6_000)
    for name, member_id in (("desk", "m-1"), ("till", "m-2")):
        bench.ask(SyncGroup(GROUP_ID, 1, member_id, name, None, None))
    bench.ask(join())
    bench.ask(LeaveGroup(GROUP_ID, (LeavingMember("m-5"),)))
    bench.ask(join("m-1", group_instance_id="desk"))
    bench.ask(LeaveGroup(GROUP_ID, (LeavingMember("m-1", "desk"),)))
    assert bench.group is not None
    assert bench.group.state is GroupState.PREPARING_REBALANCE
    bench.wait(200_000)
    assert bench.group.state is GroupState.PREPARING_REBALANCE
    assert list(bench.group.members) == ["m-2"]
    assert bench.group.generation == 1


def test_static_member_takes_the_place_of_its_twin_without_a_rebalance() -> None:
    bench = stable_bench("desk")
    assert bench.group is not None
    old = bench.group.instance_ids["desk"]
    answer = bench.answer(join(group_instance_id="desk", client_id="new", session_timeout_ms=20_000))
    assert isinstance(answer, Joined)
    new = answer.member_id
    assert answer == Joined(1, "consumer", "range", "m-1", new)
    assert bench.group.state is GroupState.STABLE
    (record,) = bench.steps[-1].records
    assert isinstance(record, GroupStored)
    assert {m.member_id: m.assignment.data for m in record.members} == {"m-1": b"m-1", "m-3": b"m-3", new: old.encode()}
    assert [(n.member_id, n.refused.code) for n in bench.notices] == [(old, ErrorCode.FENCED_INSTANCE_ID)]
    assert bench.deadlines[GroupTimer(TimerKind.SESSION, GROUP_ID, new)] == bench.now_ms + 20_000
    assert bench.answer(SyncGroup(GROUP_ID, 1, new, "desk", None, None)) == Synced("consumer", "range", old.encode())


def test_static_leader_that_restarts_gets_all_members_with_what_they_have_and_need_not_assign() -> None:
    bench = GroupBench()
    bench.ask(join(group_instance_id="desk"))
    bench.wait(3_000)
    bench.ask(SyncGroup(GROUP_ID, 1, "m-1", "desk", None, None, {"m-1": Assignment(b"all")}))
    answer = bench.answer(join(group_instance_id="desk"))
    assert isinstance(answer, Joined)
    assert answer.skip_assignment
    assert answer.leader_id == answer.member_id
    assert [(m.member_id, m.assignment) for m in answer.members] == [(answer.member_id, b"all")]


def test_static_member_that_restarts_before_it_has_synced_still_has_to() -> None:
    bench = stable_bench("desk")
    bench.ask(join("m-1"))
    bench.ask(join("m-3"))
    old = bench.group and bench.group.instance_ids["desk"]
    assert old
    bench.ask(join(old, group_instance_id="desk"))
    bench.ask(SyncGroup(GROUP_ID, 2, "m-1", None, None, None))
    bench.ask(SyncGroup(GROUP_ID, 2, "m-3", None, None, None))
    answer = bench.answer(join(group_instance_id="desk"))
    assert isinstance(answer, Joined)
    assert bench.group is not None
    assert bench.group.unsynced_count == 1
    bench.ask(SyncGroup(GROUP_ID, 2, answer.member_id, "desk", None, None))
    assert GroupTimer(TimerKind.SYNC, GROUP_ID) not in bench.deadlines


def test_twin_that_waits_is_answered_that_it_is_fenced() -> None:
    bench = stable_bench("desk")
    assert bench.group is not None
    old = bench.group.instance_ids["desk"]
    bench.ask(join("m-1"))
    waiting = bench.ask(join(old, group_instance_id="desk"))
    bench.notices.clear()
    bench.ask(join(group_instance_id="desk"))
    assert isinstance(answer := bench.answers[waiting], JoinRefused)
    assert (answer.refused.code, answer.member_id) == (ErrorCode.FENCED_INSTANCE_ID, old)
    assert bench.notices == []


@pytest.mark.parametrize("code", [ErrorCode.GROUP_MAX_SIZE_REACHED])
def test_full_group_takes_no_new_member(code: ErrorCode) -> None:
    bench = stable_bench(rules=GroupRules(max_size=2))
    assert refusal(bench, join()) == (code, "")
    assert refusal(bench, join(group_instance_id="desk")) == (code, "")
    assert isinstance(bench.answer(join("m-3")), Joined)


def test_last_members_to_join_again_are_out_if_the_group_has_become_too_large() -> None:
    bench = stable_bench()
    bench.rules = replace(bench.rules, max_size=1)
    waiting = bench.ask(join("m-3", protocols=(*PROTOCOLS, *STICKY)))
    assert refusal(bench, join("m-1")) == (ErrorCode.GROUP_MAX_SIZE_REACHED, "")
    assert isinstance(answer := bench.answers[waiting], Joined)
    assert [m.member_id for m in answer.members] == ["m-3"]


def test_two_pending_members_and_one_place() -> None:
    bench = GroupBench(GroupRules(max_size=1))
    bench.answer(join())
    bench.answer(join())
    waiting = bench.ask(join("m-1"))
    assert refusal(bench, join("m-2")) == (ErrorCode.GROUP_MAX_SIZE_REACHED, "")
    assert GroupTimer(TimerKind.PENDING_MEMBER, GROUP_ID, "m-2") not in bench.deadlines
    bench.wait(3_000)
    assert isinstance(bench.answers[waiting], Joined)


def test_static_member_that_joins_again_without_its_instance_id_keeps_it() -> None:
    bench = stable_bench("desk")
    assert bench.group is not None
    member_id = bench.group.instance_ids["desk"]
    bench.ask(join(member_id, protocols=(GroupProtocol("range", b"other"),)))
    assert bench.group.instance_ids == {"desk": member_id}
    assert bench.group.members[member_id].group_instance_id == "desk"
