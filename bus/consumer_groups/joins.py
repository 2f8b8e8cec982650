"""JoinGroup: who may come in, who comes back, and whether that begins a rebalance.

Guards two promises: a member id is given once and joins with it only whom it was given to (KIP-394), and an instance id
has one member at a time, the last one that came without a member id (KIP-345).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from bus.consumer_groups.changes import (
    GroupRules,
    GroupStep,
    MemberIdGiven,
    MemberJoins,
    StaticMemberReplaced,
    stored_group,
)
from bus.consumer_groups.group import Group, GroupState, Member
from bus.consumer_groups.membership import (
    answer_waiting,
    check_member,
    fenced,
    remove_member,
    remove_pending,
    replaced,
    unknown_member,
)
from bus.consumer_groups.rebalances import begin_rebalance, complete_if_all_joined, joined, rebalance_or_complete
from bus.consumer_groups.requests import NO_MEMBER_ID, GroupProtocol, JoinGroup, JoinRefused, TimerKind
from bus.errors import ErrorCode, Refused


def decide_join(step: GroupStep, command: JoinGroup, *, request_id: int) -> None:
    group = step.group
    is_first = command.member_id == NO_MEMBER_ID
    if (refused := _check_session_timeout(command, step.rules)) is not None:
        _refuse(step, request_id, refused, command.member_id)
    elif group.is_nothing and not is_first:
        _refuse(step, request_id, unknown_member(group.group_id, command.member_id), command.member_id)
    elif not _has_room(group, command.member_id, step.rules):
        _refuse_for_size(step, command, request_id)
    elif (refused := _check_protocols(group, command)) is not None:
        _refuse(step, request_id, refused, command.member_id)
    elif not is_first:
        _join_known(step, command, request_id)
    elif command.group_instance_id is None:
        _give_member_id(step, command, request_id)
    elif command.group_instance_id in group.instance_ids:
        _replace_static(step, command, request_id)
    else:
        _add_member(step, command, command.new_member_id, request_id)
        rebalance_or_complete(step, _because(command.new_member_id, "joins", command))


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


def _refuse_for_size(step: GroupStep, command: JoinGroup, request_id: int) -> None:
    max_size = step.rules.max_size
    refused = Refused(
        ErrorCode.GROUP_MAX_SIZE_REACHED,
        f"group {command.group_id}: expected at most {max_size} members, found one more",
    )
    _refuse(step, request_id, refused, NO_MEMBER_ID)
    if command.member_id in step.group.pending_members:
        remove_pending(step, [command.member_id])
    elif command.member_id in step.group.members:
        remove_member(step, command.member_id, "the group is too large")
    complete_if_all_joined(step)


def _give_member_id(step: GroupStep, command: JoinGroup, request_id: int) -> None:
    new_member_id, pending_max = command.new_member_id, step.rules.pending_members_max
    if len(step.group.pending_members) >= pending_max:
        message = f"group {command.group_id}: {pending_max} new members have their ids and have not joined; retry later"
        _refuse(step, request_id, Refused(ErrorCode.COORDINATOR_NOT_AVAILABLE, message), NO_MEMBER_ID)
        return
    step.record(MemberIdGiven(command.group_id, new_member_id))
    step.set_timer(TimerKind.PENDING_MEMBER, command.session_timeout_ms, new_member_id)
    refused = Refused(
        ErrorCode.MEMBER_ID_REQUIRED,
        f"group {command.group_id}: expected a member id, found none; join again with {new_member_id}",
    )
    _refuse(step, request_id, refused, new_member_id)


def _join_known(step: GroupStep, command: JoinGroup, request_id: int) -> None:
    group, member_id = step.group, command.member_id
    if member_id in group.pending_members and command.group_instance_id is None:
        _add_member(step, command, member_id, request_id)
        rebalance_or_complete(step, _because(member_id, "joins", command))
        return
    refused = check_member(group, member_id, command.group_instance_id)
    if refused is not None:
        _refuse(step, request_id, refused, member_id)
        return
    member = group.members[member_id]
    if _knows_enough(group, member, command):
        step.reply(request_id, joined(group, member_id))
        return
    _update_member(step, member, command, request_id)
    rebalance_or_complete(step, _because(member_id, "joins again", command))


def _knows_enough(group: Group, member: Member, command: JoinGroup) -> bool:
    """Of a member that says nothing new: the generation there is will do. (It may have missed its answer.) But when the
    leader of a stable group joins, it wants another assignment."""
    if group.state is GroupState.PREPARING_REBALANCE or member.protocols != _joining_member(command, "", 0).protocols:
        return False
    return group.state is GroupState.COMPLETING_REBALANCE or member.member_id != group.leader_id


def _replace_static(step: GroupStep, command: JoinGroup, request_id: int) -> None:
    """A static member has restarted: it takes the place of its older twin, and the assignment with it."""
    assert command.group_instance_id is not None
    old = step.group.members[step.group.instance_ids[command.group_instance_id]]
    twin = fenced(step.group, command.group_instance_id, old.member_id)
    if not answer_waiting(step, old, twin, old.member_id):
        step.notify(old.member_id, twin)
    step.cancel_timer(TimerKind.SESSION, old.member_id)
    member = replace(
        _joining_member(command, command.new_member_id, request_id),
        assignment=old.assignment,
        has_to_sync=old.has_to_sync,
    )
    step.record(StaticMemberReplaced(command.group_id, old.member_id, member))
    step.set_session(member)
    reason = _because(member.member_id, f"takes the place of {old.member_id}", command)
    match step.group.state:
        case GroupState.STABLE if step.group.selected_protocol() == step.group.protocol:
            _go_on_with(step, member, request_id)
        case GroupState.STABLE | GroupState.COMPLETING_REBALANCE:
            # Not stable yet: the leader may be about to assign partitions to the id that is no more.
            begin_rebalance(step, reason)
        case _:
            complete_if_all_joined(step)


def _go_on_with(step: GroupStep, member: Member, request_id: int) -> None:
    """No rebalance. If the member leads it gets all members and what they have, to see what has changed, but does
    not assign (KIP-814)."""
    step.record(stored_group(step.group, GroupState.STABLE, at_ms=step.group.state_ms))
    is_leader = step.group.leader_id == member.member_id
    step.reply(request_id, joined(step.group, member.member_id, skip_assignment=is_leader))


def _refuse(step: GroupStep, request_id: int, refused: Refused, member_id: str) -> None:
    step.reply(request_id, JoinRefused(refused, member_id))


def _because(member_id: str, what: str, command: JoinGroup) -> str:
    return f"member {member_id} {what}" + (f" ({command.reason})" if command.reason else "")


def _add_member(step: GroupStep, command: JoinGroup, member_id: str, request_id: int) -> None:
    """A new member, whose join waits. It is not asked for heartbeats before it has its first answer."""
    member = replace(_joining_member(command, member_id, request_id), is_new=True)
    step.record(MemberJoins(step.group.group_id, command.protocol_type, member))
    step.cancel_timer(TimerKind.PENDING_MEMBER, member_id)
    step.set_timer(TimerKind.SESSION, step.rules.new_member_join_timeout_ms, member_id)


def _update_member(step: GroupStep, member: Member, command: JoinGroup, request_id: int) -> None:
    """A member joins again. If a join of it waits, that one was given up by the client. Its instance id stays, also if
    it does not say it."""
    if member.awaiting_join is not None:
        step.reply(member.awaiting_join, JoinRefused(replaced(step.group, member), member.member_id))
    joining = replace(
        _joining_member(command, member.member_id, request_id),
        group_instance_id=member.group_instance_id,
        assignment=member.assignment,
        is_new=member.is_new,
        awaiting_sync=member.awaiting_sync,
        has_to_sync=member.has_to_sync,
    )
    step.record(MemberJoins(step.group.group_id, command.protocol_type, joining))


def _joining_member(command: JoinGroup, member_id: str, request_id: int) -> Member:
    return Member(
        member_id,
        command.group_instance_id,
        command.client_id,
        command.client_host,
        command.session_timeout_ms,
        command.rebalance_timeout_ms if command.rebalance_timeout_ms > 0 else command.session_timeout_ms,
        _distinct(command.protocols),
        awaiting_join=request_id,
    )


def _distinct(protocols: Sequence[GroupProtocol]) -> tuple[GroupProtocol, ...]:
    """Each name once, where it came first."""
    first: dict[str, GroupProtocol] = {}
    for offer in protocols:
        first.setdefault(offer.name, offer)
    return tuple(first.values())


def _check_protocols(group: Group, command: JoinGroup) -> Refused | None:
    """A member needs a protocol, and one that all others support as well."""
    offered = ", ".join(offer.name for offer in command.protocols) or "none"
    if not command.protocol_type or not command.protocols:
        found = f"type {command.protocol_type or 'none'} and {offered}"
        return _inconsistent(group, f"expected a protocol type and a protocol, found {found}")
    if group.state is GroupState.EMPTY:
        return None
    if command.protocol_type != group.protocol_type:
        return _inconsistent(group, f"expected protocol type {group.protocol_type}, found {command.protocol_type}")
    if not group.has_common_protocol(command.protocols):
        common = ", ".join(name for name, count in group.supporters.items() if count == len(group.members)) or "any"
        return _inconsistent(group, f"expected a protocol that all members support ({common}), found {offered}")
    return None


def _inconsistent(group: Group, message: str) -> Refused:
    return Refused(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, f"group {group.group_id}: {message}")
