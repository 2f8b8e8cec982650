"""JoinGroup: who may come in, who comes back, and whether that begins a rebalance.

Guards two promises: a member id is given once and joins with it only whom it was given to (KIP-394), and an instance id
has one member at a time, the last one that came without a member id (KIP-345).
"""

from __future__ import annotations

from dataclasses import replace

from bus.consumer_groups.group import Group, GroupState, Member
from bus.consumer_groups.group_rules import GroupRules
from bus.consumer_groups.membership import (
    add_member,
    answer_waiting,
    check_member,
    check_protocols,
    fenced,
    joining_member,
    remove_member,
    remove_pending,
    unknown_member,
    update_member,
)
from bus.consumer_groups.rebalances import (
    begin_rebalance,
    complete_if_all_joined,
    joined,
    rebalance_or_complete,
    stored_group,
)
from bus.consumer_groups.requests import NO_MEMBER_ID, JoinGroup, JoinRefused
from bus.consumer_groups.step_draft import StepDraft
from bus.consumer_groups.steps import TimerKind
from bus.errors import ErrorCode, Refused


def decide_join(draft: StepDraft, command: JoinGroup, *, request_id: int, new_member_id: str) -> None:
    group = draft.group
    is_first = command.member_id == NO_MEMBER_ID
    if (refused := _check_session_timeout(command, draft.rules)) is not None:
        _refuse(draft, request_id, refused, command.member_id)
    elif group.is_nothing and not is_first:
        _refuse(draft, request_id, unknown_member(group.group_id, command.member_id), command.member_id)
    elif not _has_room(group, command.member_id, draft.rules):
        _refuse_for_size(draft, command, request_id)
    elif (refused := check_protocols(group, command)) is not None:
        _refuse(draft, request_id, refused, command.member_id)
    elif not is_first:
        _join_known(draft, command, request_id)
    elif command.group_instance_id is None:
        _give_member_id(draft, command, request_id, new_member_id)
    elif command.group_instance_id in group.instance_ids:
        _replace_static(draft, command, request_id, new_member_id)
    else:
        add_member(draft, command, new_member_id, request_id)
        rebalance_or_complete(draft, _because(new_member_id, "joins", command))


def _check_session_timeout(command: JoinGroup, rules: GroupRules) -> Refused | None:
    low, high = rules.min_session_timeout_ms, rules.max_session_timeout_ms
    if not low <= command.session_timeout_ms <= high:
        return Refused(
            ErrorCode.INVALID_SESSION_TIMEOUT,
            f"expected a session timeout from {low} to {high} ms, found {command.session_timeout_ms}",
        )
    return None


def _has_room(group: Group, member_id: str, rules: GroupRules) -> bool:
    """While members join again those who have done so count, so that the last ones of a group too large are out."""
    member = group.members.get(member_id)
    match group.state:
        case GroupState.PREPARING_REBALANCE:
            is_in = member is not None and member.awaiting_join is not None
            return is_in or group.joining_count < rules.max_size
        case GroupState.COMPLETING_REBALANCE | GroupState.STABLE:
            return member is not None or len(group.members) < rules.max_size
        case _:
            return True


def _refuse_for_size(draft: StepDraft, command: JoinGroup, request_id: int) -> None:
    max_size = draft.rules.max_size
    refused = Refused(
        ErrorCode.GROUP_MAX_SIZE_REACHED,
        f"group {command.group_id}: expected at most {max_size} members, found one more",
    )
    _refuse(draft, request_id, refused, NO_MEMBER_ID)
    if command.member_id in draft.group.pending_members:
        remove_pending(draft, command.member_id)
    elif command.member_id in draft.group.members:
        remove_member(draft, command.member_id, "the group is too large")
    complete_if_all_joined(draft)


def _give_member_id(draft: StepDraft, command: JoinGroup, request_id: int, new_member_id: str) -> None:
    pending_max = draft.rules.pending_members_max
    if len(draft.group.pending_members) >= pending_max:
        message = f"group {command.group_id}: {pending_max} new members have their ids and have not joined; retry later"
        _refuse(draft, request_id, Refused(ErrorCode.COORDINATOR_NOT_AVAILABLE, message), NO_MEMBER_ID)
        return
    draft.group = replace(draft.group, pending_members=draft.group.pending_members | {new_member_id})
    draft.set_timer(TimerKind.PENDING_MEMBER, command.session_timeout_ms, new_member_id)
    refused = Refused(
        ErrorCode.MEMBER_ID_REQUIRED,
        f"group {command.group_id}: expected a member id, found none; join again with {new_member_id}",
    )
    _refuse(draft, request_id, refused, new_member_id)


def _join_known(draft: StepDraft, command: JoinGroup, request_id: int) -> None:
    group, member_id = draft.group, command.member_id
    if member_id in group.pending_members and command.group_instance_id is None:
        add_member(draft, command, member_id, request_id)
        rebalance_or_complete(draft, _because(member_id, "joins", command))
        return
    refused = check_member(group, member_id, command.group_instance_id)
    if refused is not None:
        _refuse(draft, request_id, refused, member_id)
        return
    member = group.members[member_id]
    if _knows_enough(group, member, command):
        draft.reply(request_id, joined(group, member_id))
        return
    update_member(draft, member, command, request_id)
    rebalance_or_complete(draft, _because(member_id, "joins again", command))


def _knows_enough(group: Group, member: Member, command: JoinGroup) -> bool:
    """Of a member that says nothing new: the generation there is will do. (It may have missed its answer.) But when the
    leader of a stable group joins, it wants another assignment."""
    if group.state is GroupState.PREPARING_REBALANCE or member.protocols != joining_member(command, "", 0).protocols:
        return False
    return group.state is GroupState.COMPLETING_REBALANCE or member.member_id != group.leader_id


def _replace_static(draft: StepDraft, command: JoinGroup, request_id: int, new_member_id: str) -> None:
    """A static member has restarted: it takes the place of its older twin, and the assignment with it."""
    assert command.group_instance_id is not None
    old = draft.group.members[draft.group.instance_ids[command.group_instance_id]]
    twin = fenced(draft.group, command.group_instance_id, old.member_id)
    if not answer_waiting(draft, old, twin, old.member_id):
        draft.notify(old.member_id, twin)
    draft.cancel_timer(TimerKind.SESSION, old.member_id)
    member = replace(
        joining_member(command, new_member_id, request_id), assignment=old.assignment, has_to_sync=old.has_to_sync
    )
    draft.group = draft.group.replace_static(old.member_id, member)
    draft.set_session(member)
    reason = _because(new_member_id, f"takes the place of {old.member_id}", command)
    match draft.group.state:
        case GroupState.STABLE if draft.group.selected_protocol() == draft.group.protocol:
            _go_on_with(draft, member, request_id)
        case GroupState.STABLE | GroupState.COMPLETING_REBALANCE:
            # Not stable yet: the leader may be about to assign partitions to the id that is no more.
            begin_rebalance(draft, reason)
        case _:
            complete_if_all_joined(draft)


def _go_on_with(draft: StepDraft, member: Member, request_id: int) -> None:
    """No rebalance. If the member leads it gets all members and what they have, to see what has changed, but does
    not assign (KIP-814)."""
    draft.group = draft.group.put_members([replace(member, awaiting_join=None)])
    draft.record(stored_group(draft.group))
    is_leader = draft.group.leader_id == member.member_id
    draft.reply(request_id, joined(draft.group, member.member_id, skip_assignment=is_leader))


def _refuse(draft: StepDraft, request_id: int, refused: Refused, member_id: str) -> None:
    draft.reply(request_id, JoinRefused(refused, member_id))


def _because(member_id: str, what: str, command: JoinGroup) -> str:
    return f"member {member_id} {what}" + (f" ({command.reason})" if command.reason else "")
