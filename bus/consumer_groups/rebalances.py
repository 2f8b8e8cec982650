"""How a rebalance begins, who is waited for, and how a generation is made.

Guards the promise of generations: a generation has one set of members and one leader, all members of it have joined for
it (a static one excepted, while its session lasts), and the generation before it ends when it begins.
"""

from __future__ import annotations

from dataclasses import replace

from bus.consumer_groups.group import NO_ASSIGNMENT, Group, GroupState, InitialDelay, Member
from bus.consumer_groups.membership import rebalancing, remove_members
from bus.consumer_groups.records import GroupStored, StoredMember
from bus.consumer_groups.requests import Joined, JoinedMember
from bus.consumer_groups.step_draft import StepDraft
from bus.consumer_groups.steps import TimerKind

_MAY_REBALANCE = (GroupState.EMPTY, GroupState.COMPLETING_REBALANCE, GroupState.STABLE)


def rebalance_or_complete(draft: StepDraft, reason: str) -> None:
    """After a member came, changed or went."""
    if draft.group.state in _MAY_REBALANCE:
        begin_rebalance(draft, reason)
    else:
        complete_if_all_joined(draft)


def begin_rebalance(draft: StepDraft, reason: str) -> None:
    is_initial = draft.group.state is GroupState.EMPTY
    told = _refuse_syncs(draft, reason)
    draft.cancel_timer(TimerKind.SYNC)
    draft.change_state(GroupState.PREPARING_REBALANCE)
    for member in draft.group.members.values():
        if member.awaiting_join is None and member.member_id not in told:
            draft.notify(member.member_id, rebalancing(draft.group, reason))
    if is_initial:
        delay_ms = draft.rules.initial_rebalance_delay_ms
        remaining_ms = max(draft.group.rebalance_timeout_ms - delay_ms, 0)
        draft.group = replace(draft.group, initial_delay=InitialDelay(remaining_ms))
        draft.set_timer(TimerKind.REBALANCE, delay_ms)
    elif draft.group.has_all_joined:
        complete_rebalance(draft)
    else:
        draft.set_timer(TimerKind.REBALANCE, draft.group.rebalance_timeout_ms)


def _refuse_syncs(draft: StepDraft, reason: str) -> frozenset[str]:
    """End what a generation waits for. The ids of the members that were answered."""
    group = draft.group
    waiting = {m.member_id: m.awaiting_sync for m in group.members.values() if m.awaiting_sync is not None}
    for member_id, request_id in waiting.items():
        draft.reply(request_id, rebalancing(group, reason))
        draft.set_session(group.members[member_id])
    is_unassigned = group.state is GroupState.COMPLETING_REBALANCE
    if is_unassigned or group.unsynced_count:
        draft.group = group.put_members(
            replace(
                member,
                awaiting_sync=None,
                has_to_sync=False,
                assignment=NO_ASSIGNMENT if is_unassigned else member.assignment,
            )
            for member in group.members.values()
        )
    return frozenset(waiting)


def complete_if_all_joined(draft: StepDraft) -> None:
    """The first rebalance of an empty group is not cut short: others are expected."""
    group = draft.group
    if group.state is GroupState.PREPARING_REBALANCE and group.initial_delay is None and group.has_all_joined:
        complete_rebalance(draft)


def expire_rebalance(draft: StepDraft) -> None:
    """The time is over for those who have not joined, or a round of the initial delay is."""
    delay = draft.group.initial_delay
    if delay is None or not delay.has_new_member or not delay.remaining_ms:
        complete_rebalance(draft)
        return
    round_ms = min(draft.rules.initial_rebalance_delay_ms, delay.remaining_ms)
    draft.group = replace(draft.group, initial_delay=InitialDelay(delay.remaining_ms - round_ms))
    draft.set_timer(TimerKind.REBALANCE, round_ms)


def complete_rebalance(draft: StepDraft) -> None:
    """Who has not joined is out, but for static members: their sessions decide. If only such ones are left, wait on."""
    draft.cancel_timer(TimerKind.REBALANCE)
    missing = [
        member.member_id
        for member in draft.group.members.values()
        if member.awaiting_join is None and member.group_instance_id is None
    ]
    remove_members(draft, dict.fromkeys(missing, "it did not join again in time"))
    draft.group = replace(draft.group, initial_delay=None)
    group = draft.group
    if not group.members:
        _begin_empty_generation(draft)
    elif not group.joining_count:
        draft.set_timer(TimerKind.REBALANCE, group.rebalance_timeout_ms)
    else:
        draft.group = _with_joined_leader(group)
        _begin_generation(draft)


def _with_joined_leader(group: Group) -> Group:
    assert group.leader_id is not None
    if group.members[group.leader_id].awaiting_join is not None:
        return group
    leader = next(member for member in group.members.values() if member.awaiting_join is not None)
    return replace(group, leader_id=leader.member_id)


def _begin_empty_generation(draft: StepDraft) -> None:
    draft.change_state(GroupState.EMPTY)
    draft.group = replace(draft.group, generation=draft.group.generation + 1, protocol=None)
    draft.record(stored_group(draft.group))


def _begin_generation(draft: StepDraft) -> None:
    protocol = draft.group.selected_protocol()
    draft.change_state(GroupState.COMPLETING_REBALANCE)
    group = replace(draft.group, generation=draft.group.generation + 1, protocol=protocol)
    for member in group.members.values():
        if member.awaiting_join is not None:
            draft.reply(member.awaiting_join, joined(group, member.member_id))
        draft.set_session(member)
    draft.group = group.put_members(
        replace(member, is_new=False, awaiting_join=None, has_to_sync=True) for member in group.members.values()
    )
    draft.set_timer(TimerKind.SYNC, group.rebalance_timeout_ms)


def joined(group: Group, member_id: str, *, skip_assignment: bool = False) -> Joined:
    """What a member of the current generation is told; the leader gets all members."""
    assert group.protocol_type is not None
    assert group.protocol is not None
    assert group.leader_id is not None
    return Joined(
        group.generation,
        group.protocol_type,
        group.protocol,
        group.leader_id,
        member_id,
        _joined_members(group, group.protocol, is_kept=skip_assignment) if member_id == group.leader_id else (),
        skip_assignment,
    )


def _joined_members(group: Group, protocol: str, *, is_kept: bool) -> tuple[JoinedMember, ...]:
    return tuple(
        JoinedMember(
            member.member_id,
            member.group_instance_id,
            member.metadata(protocol).metadata,
            member.assignment.data if is_kept else b"",
        )
        for member in group.members.values()
    )


def stored_group(group: Group) -> GroupStored:
    """The record of a group that is stable or empty."""
    assert group.state in (GroupState.STABLE, GroupState.EMPTY), f"group {group.group_id} is {group.state.value}"
    assert group.protocol_type is not None
    return GroupStored(
        group.group_id,
        group.protocol_type,
        group.protocol,
        group.generation,
        group.leader_id,
        group.state.value,
        group.state_ms,
        tuple(_stored_member(member, group.protocol) for member in group.members.values() if group.protocol),
    )


def _stored_member(member: Member, protocol: str) -> StoredMember:
    said = member.metadata(protocol)
    return StoredMember(
        member.member_id,
        member.group_instance_id,
        member.client_id,
        member.client_host,
        member.session_timeout_ms,
        member.rebalance_timeout_ms,
        said.metadata,
        said.topics,
        member.assignment,
    )
