"""SyncGroup: the leader brings the assignment, everyone takes its own.

Guards the promise of ownership: an assignment is given only in the generation that it was made for, and only once it is
in the log, so the next coordinator knows the same owners.
"""

from __future__ import annotations

from collections.abc import Mapping

from bus.consumer_groups.changes import MemberSynced, stored_group
from bus.consumer_groups.group import Group, GroupState, Member
from bus.consumer_groups.membership import check_generation, check_member, named, rebalancing, remove_members, replaced
from bus.consumer_groups.rebalances import begin_rebalance
from bus.consumer_groups.requests import Assignment, Synced, SyncGroup, TimerKind
from bus.consumer_groups.steps import GroupStep
from bus.errors import ErrorCode, Refused


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
