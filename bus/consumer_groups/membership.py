"""Who is a member: the check that every call of a member passes, and how members go.

Guards two promises: a static member's older twin is told FENCED_INSTANCE_ID and nothing else, and no member leaves a
group while a request of it waits: the coordinator answers that request first.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from bus.consumer_groups.changes import GroupStep, MemberIdsForgotten, MembersRemoved
from bus.consumer_groups.group import Group, Member
from bus.consumer_groups.requests import NO_MEMBER_ID, JoinRefused, TimerKind
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


def remove_member(step: GroupStep, member_id: str, reason: str) -> None:
    remove_members(step, {member_id: reason})


def remove_members(step: GroupStep, reasons: Mapping[str, str]) -> None:
    """`reasons`, by member id, are what the members are told."""
    group = step.group
    for member_id, reason in reasons.items():
        refused = Refused(ErrorCode.UNKNOWN_MEMBER_ID, f"group {group.group_id}: member {member_id} is out: {reason}")
        if not answer_waiting(step, group.members[member_id], refused, NO_MEMBER_ID):
            step.notify(member_id, refused)
        step.cancel_timer(TimerKind.SESSION, member_id)
    if reasons:
        step.record(MembersRemoved(group.group_id, tuple(reasons)))


def remove_pending(step: GroupStep, member_ids: Collection[str]) -> None:
    for member_id in member_ids:
        step.cancel_timer(TimerKind.PENDING_MEMBER, member_id)
    if member_ids:
        step.record(MemberIdsForgotten(step.group.group_id, tuple(member_ids)))


def answer_waiting(step: GroupStep, member: Member, refused: Refused, joins_with: str) -> bool:
    """Refuse the join and the sync that wait for this member, which is about to go. False: none does."""
    if member.awaiting_join is not None:
        step.reply(member.awaiting_join, JoinRefused(refused, joins_with))
    if member.awaiting_sync is not None:
        step.reply(member.awaiting_sync, refused)
    return member.awaiting_join is not None or member.awaiting_sync is not None


def replaced(group: Group, member: Member) -> Refused:
    return rebalancing(group, f"member {member.member_id} has sent the same request again")
