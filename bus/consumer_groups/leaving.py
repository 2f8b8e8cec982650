"""LeaveGroup: members that go by themselves, and members that an administrator takes out by their instance ids."""

from __future__ import annotations

from bus.consumer_groups.group import GroupState
from bus.consumer_groups.membership import check_member, named, remove_members, remove_pending, unknown_member
from bus.consumer_groups.rebalances import rebalance_or_complete
from bus.consumer_groups.requests import NO_MEMBER_ID, LeaveGroup, LeavingMember, Left
from bus.consumer_groups.step_draft import StepDraft
from bus.errors import Refused


def decide_leave(draft: StepDraft, command: LeaveGroup, *, request_id: int) -> None:
    """All that can leave do, and one rebalance follows."""
    reasons: dict[str, str] = {}  # of members that leave, by member id
    members = tuple(_leave(draft, leaving, reasons) for leaving in command.members)
    remove_members(draft, reasons)
    draft.reply(request_id, Left(members))
    left = [leaving for leaving, refused in zip(command.members, members, strict=True) if refused is None]
    if left and draft.group.state is not GroupState.EMPTY:
        names = named([leaving.member_id or leaving.group_instance_id or "" for leaving in left])
        rebalance_or_complete(draft, f"members {names} leave")


def _leave(draft: StepDraft, leaving: LeavingMember, reasons: dict[str, str]) -> Refused | None:
    """Why it cannot; None: it was pending and is not any more, or it was added to `reasons`."""
    group, member_id = draft.group, leaving.member_id
    if member_id in group.pending_members:
        remove_pending(draft, member_id)
        return None
    if member_id == NO_MEMBER_ID and leaving.group_instance_id is not None:
        member_id = group.instance_ids.get(leaving.group_instance_id, NO_MEMBER_ID)
    refused = check_member(group, member_id, leaving.group_instance_id)
    if refused is not None:
        return refused
    if member_id in reasons:
        return unknown_member(group.group_id, member_id)
    reasons[member_id] = f"it left{f' ({leaving.reason})' if leaving.reason else ''}"
    return None
