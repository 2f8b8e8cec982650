"""SyncGroup: the leader brings the assignment, everyone takes its own.

Guards the promise of ownership: an assignment is given only in the generation that it was made for, and only once it is
in the log, so the next coordinator knows the same owners.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from bus.consumer_groups.group import NO_ASSIGNMENT, Group, GroupState, Member
from bus.consumer_groups.membership import check_generation, check_member, named, rebalancing, remove_members, replaced
from bus.consumer_groups.rebalances import begin_rebalance, stored_group
from bus.consumer_groups.requests import Assignment, Synced, SyncGroup
from bus.consumer_groups.step_draft import StepDraft
from bus.consumer_groups.steps import TimerKind
from bus.errors import ErrorCode, Refused


def decide_sync(draft: StepDraft, command: SyncGroup, *, request_id: int) -> None:
    group = draft.group
    refused = (
        check_member(group, command.member_id, command.group_instance_id)
        or check_generation(group, command.generation, command.member_id)
        or _check_protocol(group, command)
    )
    if refused is not None:
        draft.reply(request_id, refused)
    elif group.state is GroupState.PREPARING_REBALANCE:
        draft.reply(request_id, rebalancing(group, "join again"))
    elif group.state is GroupState.COMPLETING_REBALANCE:
        _await_assignment(draft, command, request_id)
    else:
        member = _note_sync(draft, group.members[command.member_id])
        draft.reply(request_id, _synced(group, member))


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


def _await_assignment(draft: StepDraft, command: SyncGroup, request_id: int) -> None:
    member = draft.group.members[command.member_id]
    if member.awaiting_sync is not None:
        draft.reply(member.awaiting_sync, replaced(draft.group, member))
    _note_sync(draft, replace(member, awaiting_sync=request_id))
    if command.member_id == draft.group.leader_id:
        _assign(draft, command.assignments)


def _note_sync(draft: StepDraft, member: Member) -> Member:
    synced = replace(member, has_to_sync=False)
    if synced != draft.group.members[member.member_id]:
        draft.group = draft.group.put_members([synced])
    if not draft.group.unsynced_count:
        draft.cancel_timer(TimerKind.SYNC)
    return synced


def _assign(draft: StepDraft, assignments: Mapping[str, Assignment]) -> None:
    """Members that the leader left out get nothing."""
    waiting = [member for member in draft.group.members.values() if member.awaiting_sync is not None]
    draft.group = draft.group.put_members(
        replace(member, awaiting_sync=None, assignment=assignments.get(member.member_id, NO_ASSIGNMENT))
        for member in draft.group.members.values()
    )
    draft.change_state(GroupState.STABLE)
    draft.record(stored_group(draft.group))
    for member in waiting:
        assert member.awaiting_sync is not None
        draft.reply(member.awaiting_sync, _synced(draft.group, draft.group.members[member.member_id]))
        draft.set_session(member)


def _synced(group: Group, member: Member) -> Synced:
    assert group.protocol_type is not None
    assert group.protocol is not None
    return Synced(group.protocol_type, group.protocol, member.assignment.data)


def expire_syncs(draft: StepDraft) -> None:
    """Who has its answer to the join and has not synced by now is out."""
    late = [member.member_id for member in draft.group.members.values() if member.has_to_sync]
    remove_members(draft, dict.fromkeys(late, "it did not sync in time"))
    begin_rebalance(draft, f"members {named(late)} did not sync in time")
