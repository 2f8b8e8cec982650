"""How a rebalance begins, who is waited for, and how a generation is made.

Guards the promise of generations: a generation has one set of members and one leader, all members of it have joined for
it (a static one excepted, while its session lasts), and the generation before it ends when it begins.
"""

from __future__ import annotations

from collections.abc import Mapping

from bus.consumer_groups.changes import (
    DelayRoundBegun,
    GenerationBegun,
    GroupStep,
    MemberSynced,
    RebalanceBegun,
    stored_group,
)
from bus.consumer_groups.group import Group, GroupState, InitialDelay, Member
from bus.consumer_groups.membership import check_generation, check_member, named, rebalancing, remove_members, replaced
from bus.consumer_groups.records import GroupStored
from bus.consumer_groups.requests import Assignment, Joined, JoinedMember, Synced, SyncGroup, TimerKind
from bus.errors import ErrorCode, Refused

_MAY_REBALANCE = (GroupState.EMPTY, GroupState.COMPLETING_REBALANCE, GroupState.STABLE)


def rebalance_or_complete(step: GroupStep, reason: str) -> None:
    """After a member came, changed or went."""
    if step.group.state in _MAY_REBALANCE:
        begin_rebalance(step, reason)
    else:
        complete_if_all_joined(step)


def begin_rebalance(step: GroupStep, reason: str) -> None:
    group, delay_ms = step.group, step.rules.initial_rebalance_delay_ms
    is_initial = group.state is GroupState.EMPTY
    delay = InitialDelay(max(group.rebalance_timeout_ms - delay_ms, 0)) if is_initial else None
    told = rebalancing(group, reason)
    for member in group.members.values():
        if member.awaiting_sync is not None:
            step.reply(member.awaiting_sync, told)
            step.set_session(member)
        elif member.awaiting_join is None:
            step.notify(member.member_id, told)
    step.cancel_timer(TimerKind.SYNC)
    step.record(RebalanceBegun(group.group_id, step.now_ms, delay))
    if is_initial:
        step.set_timer(TimerKind.REBALANCE, delay_ms)
    elif step.group.has_all_joined:
        complete_rebalance(step)
    else:
        step.set_timer(TimerKind.REBALANCE, step.group.rebalance_timeout_ms)


def complete_if_all_joined(step: GroupStep) -> None:
    """The first rebalance of an empty group is not cut short: others are expected."""
    group = step.group
    if group.state is GroupState.PREPARING_REBALANCE and group.initial_delay is None and group.has_all_joined:
        complete_rebalance(step)


def complete_when_all_joined(step: GroupStep) -> None:
    """Of a first rebalance as well, as in Kafka: the one that it waited for is not coming."""
    if step.group.state is GroupState.PREPARING_REBALANCE and step.group.has_all_joined:
        complete_rebalance(step)


def expire_rebalance(step: GroupStep) -> None:
    """The time is over for those who have not joined, or a round of the initial delay is."""
    delay = step.group.initial_delay
    if delay is None or not delay.has_new_member or not delay.remaining_ms:
        complete_rebalance(step)
        return
    round_ms = min(step.rules.initial_rebalance_delay_ms, delay.remaining_ms)
    step.record(DelayRoundBegun(step.group.group_id, InitialDelay(delay.remaining_ms - round_ms)))
    step.set_timer(TimerKind.REBALANCE, round_ms)


def complete_rebalance(step: GroupStep) -> None:
    """Who has not joined is out, but for static members: their sessions decide. If only such ones are left, wait on."""
    step.cancel_timer(TimerKind.REBALANCE)
    missing = [
        member.member_id
        for member in step.group.members.values()
        if member.awaiting_join is None and member.group_instance_id is None
    ]
    remove_members(step, dict.fromkeys(missing, "it did not join again in time"))
    group = step.group
    if not group.members:
        step.record(_without_members(group, at_ms=step.now_ms))
    elif not group.joining_count:
        step.set_timer(TimerKind.REBALANCE, group.rebalance_timeout_ms)
    else:
        _begin_generation(step)


def _without_members(group: Group, *, at_ms: int) -> GroupStored:
    assert group.state is GroupState.PREPARING_REBALANCE, f"group {group.group_id} is {group.state.value}"
    assert group.protocol_type is not None
    generation = group.generation + 1
    return GroupStored(group.group_id, group.protocol_type, None, generation, None, GroupState.EMPTY.value, at_ms, ())


def _begin_generation(step: GroupStep) -> None:
    group = step.group
    waiting = {m.member_id: m.awaiting_join for m in group.members.values() if m.awaiting_join is not None}
    leader_id = group.leader_id if group.leader_id in waiting else next(iter(waiting))
    step.record(GenerationBegun(group.group_id, step.now_ms, group.selected_protocol(), leader_id))
    for member_id, request_id in waiting.items():
        step.reply(request_id, joined(step.group, member_id))
    for member in step.group.members.values():
        step.set_session(member)
    step.set_timer(TimerKind.SYNC, group.rebalance_timeout_ms)


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


# SyncGroup: the leader brings the assignment, everyone takes its own.
#
# Guards the promise of ownership: an assignment is given only in the generation that it was made for, and only once it
# is in the log, so the next coordinator knows the same owners.


def decide_sync(step: GroupStep, command: SyncGroup, *, request_id: int) -> None:
    group = step.group
    refused = (
        check_member(group, command.member_id, command.group_instance_id)
        or check_generation(group, command.generation, command.member_id)
        or _check_protocol(group, command)
    )
    if refused is not None:
        step.reply(request_id, refused)
    elif group.state is GroupState.PREPARING_REBALANCE:
        step.reply(request_id, rebalancing(group, "join again"))
    elif group.state is GroupState.COMPLETING_REBALANCE:
        _await_assignment(step, command, request_id)
    else:
        member = group.members[command.member_id]
        if member.has_to_sync:
            _note_sync(step, member, awaiting_sync=None)
        step.reply(request_id, _synced(group, member))


def _check_protocol(group: Group, command: SyncGroup) -> Refused | None:
    for what, expected, found in (
        ("protocol type", group.protocol_type, command.protocol_type),
        ("protocol", group.protocol, command.protocol),
    ):
        if found is not None and expected is not None and found != expected:
            return Refused(
                ErrorCode.INCONSISTENT_GROUP_PROTOCOL,
                f"group {group.group_id}: expected {what} {expected}, found {found}",
            )
    return None


def _await_assignment(step: GroupStep, command: SyncGroup, request_id: int) -> None:
    member = step.group.members[command.member_id]
    if member.awaiting_sync is not None:
        step.reply(member.awaiting_sync, replaced(step.group, member))
    _note_sync(step, member, awaiting_sync=request_id)
    if command.member_id == step.group.leader_id:
        _assign(step, command.assignments)


def _note_sync(step: GroupStep, member: Member, *, awaiting_sync: int | None) -> None:
    step.record(MemberSynced(step.group.group_id, member.member_id, awaiting_sync))
    if not step.group.unsynced_count:
        step.cancel_timer(TimerKind.SYNC)


def _assign(step: GroupStep, assignments: Mapping[str, Assignment]) -> None:
    """Members that the leader left out get nothing."""
    waiting = [member for member in step.group.members.values() if member.awaiting_sync is not None]
    step.record(stored_group(step.group, GroupState.STABLE, at_ms=step.now_ms, assignments=assignments))
    for member in waiting:
        assert member.awaiting_sync is not None
        step.reply(member.awaiting_sync, _synced(step.group, step.group.members[member.member_id]))
        step.set_session(member)


def _synced(group: Group, member: Member) -> Synced:
    assert group.protocol_type is not None
    assert group.protocol is not None
    return Synced(group.protocol_type, group.protocol, member.assignment.data)


def expire_syncs(step: GroupStep) -> None:
    """Who has its answer to the join and has not synced by now is out."""
    late = [member.member_id for member in step.group.members.values() if member.has_to_sync]
    remove_members(step, dict.fromkeys(late, "it did not sync in time"))
    begin_rebalance(step, f"members {named(late)} did not sync in time")
