"""Who is a member: the check that every call of a member passes, and how members come, change and go.

Guards two promises: a static member's older twin is told FENCED_INSTANCE_ID and nothing else, and nobody leaves a group
while a request of his waits: it is answered first.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from bus.consumer_groups.group import Group, GroupState, Member
from bus.consumer_groups.requests import NO_MEMBER_ID, GroupProtocol, JoinGroup, JoinRefused
from bus.consumer_groups.step_draft import StepDraft
from bus.consumer_groups.steps import TimerKind
from bus.errors import ErrorCode, Refused

_NAMED_MAX = 5


def check_member(group: Group, member_id: str, group_instance_id: str | None) -> Refused | None:
    if group_instance_id is not None:
        known = group.instance_ids.get(group_instance_id)
        if known is not None and known != member_id:
            return fenced(group, group_instance_id, member_id)
        if known is None:
            return Refused(
                ErrorCode.UNKNOWN_MEMBER_ID,
                f"group {group.group_id}: expected the instance id of a member, found {group_instance_id}",
            )
    return None if member_id in group.members else unknown_member(group.group_id, member_id)


def check_generation(group: Group, generation: int, member_id: str) -> Refused | None:
    if generation == group.generation:
        return None
    return Refused(
        ErrorCode.ILLEGAL_GENERATION,
        f"group {group.group_id}, member {member_id}: expected generation {group.generation}, found {generation}",
    )


def unknown_member(group_id: str, member_id: str) -> Refused:
    return Refused(
        ErrorCode.UNKNOWN_MEMBER_ID,
        f"group {group_id}: expected the id of a member, found {member_id or 'an empty one'}",
    )


def fenced(group: Group, group_instance_id: str, member_id: str) -> Refused:
    return Refused(
        ErrorCode.FENCED_INSTANCE_ID,
        f"group {group.group_id}: instance id {group_instance_id} has a newer member than {member_id}",
    )


def named(member_ids: Sequence[str]) -> str:
    """For a message that every member gets: a few of them."""
    others = len(member_ids) - _NAMED_MAX
    return ", ".join(member_ids[:_NAMED_MAX]) + (f" and {others} more" if others > 0 else "")


def rebalancing(group: Group, reason: str) -> Refused:
    return Refused(ErrorCode.REBALANCE_IN_PROGRESS, f"group {group.group_id} rebalances: {reason}")


def add_member(draft: StepDraft, command: JoinGroup, member_id: str, request_id: int) -> None:
    """A new member, whose join waits. It is not asked for heartbeats before it has its first answer."""
    group = draft.group
    if group.initial_delay is not None:
        group = replace(group, initial_delay=replace(group.initial_delay, has_new_member=True))
    if not group.members:
        group = replace(group, protocol_type=command.protocol_type)
    group = replace(group, pending_members=group.pending_members - {member_id})
    member = joining_member(command, member_id, request_id)
    draft.group = group.put_members([replace(member, is_new=True)])
    draft.cancel_timer(TimerKind.PENDING_MEMBER, member_id)
    draft.set_timer(TimerKind.SESSION, draft.rules.new_member_join_timeout_ms, member_id)


def update_member(draft: StepDraft, member: Member, command: JoinGroup, request_id: int) -> None:
    """A member joins again. If a join of it waits, that one was given up by the client. Its instance id stays, also if
    it does not say it."""
    if member.awaiting_join is not None:
        draft.reply(member.awaiting_join, JoinRefused(replaced(draft.group, member), member.member_id))
    joining = joining_member(command, member.member_id, request_id)
    draft.group = draft.group.put_members(
        [
            replace(
                joining,
                group_instance_id=member.group_instance_id,
                assignment=member.assignment,
                is_new=member.is_new,
                awaiting_sync=member.awaiting_sync,
                has_to_sync=member.has_to_sync,
            )
        ]
    )


def remove_member(draft: StepDraft, member_id: str, reason: str) -> None:
    remove_members(draft, {member_id: reason})


def remove_members(draft: StepDraft, reasons: Mapping[str, str]) -> None:
    """`reasons`, by member id, are what the members are told."""
    group = draft.group
    for member_id, reason in reasons.items():
        refused = Refused(ErrorCode.UNKNOWN_MEMBER_ID, f"group {group.group_id}: member {member_id} is out: {reason}")
        if not answer_waiting(draft, group.members[member_id], refused, NO_MEMBER_ID):
            draft.notify(member_id, refused)
        draft.cancel_timer(TimerKind.SESSION, member_id)
    if reasons:
        draft.group = group.remove_members(reasons.keys())


def remove_pending(draft: StepDraft, member_id: str) -> None:
    draft.cancel_timer(TimerKind.PENDING_MEMBER, member_id)
    draft.group = replace(draft.group, pending_members=draft.group.pending_members - {member_id})


def answer_waiting(draft: StepDraft, member: Member, refused: Refused, joins_with: str) -> bool:
    """Refuse the join and the sync that wait for this member, which is about to go. False: none does."""
    if member.awaiting_join is not None:
        draft.reply(member.awaiting_join, JoinRefused(refused, joins_with))
    if member.awaiting_sync is not None:
        draft.reply(member.awaiting_sync, refused)
    return member.awaiting_join is not None or member.awaiting_sync is not None


def replaced(group: Group, member: Member) -> Refused:
    return rebalancing(group, f"member {member.member_id} has sent the same request again")


def joining_member(command: JoinGroup, member_id: str, request_id: int) -> Member:
    return Member(
        member_id,
        command.group_instance_id,
        command.client_id,
        command.client_host,
        command.session_timeout_ms,
        command.rebalance_timeout_ms if command.rebalance_timeout_ms > 0 else command.session_timeout_ms,
        distinct(command.protocols),
        awaiting_join=request_id,
    )


def distinct(protocols: Sequence[GroupProtocol]) -> tuple[GroupProtocol, ...]:
    """Each name once, where it came first."""
    first: dict[str, GroupProtocol] = {}
    for offer in protocols:
        first.setdefault(offer.name, offer)
    return tuple(first.values())


def check_protocols(group: Group, command: JoinGroup) -> Refused | None:
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
