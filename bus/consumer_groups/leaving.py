"""LeaveGroup: members that go by themselves, and members that an administrator takes out by their instance ids."""

from __future__ import annotations

from bus.consumer_groups.group import GroupState
from bus.consumer_groups.membership import check_member, remove_member, remove_pending
from bus.consumer_groups.rebalances import rebalance_or_complete
from bus.consumer_groups.requests import NO_MEMBER_ID, LeaveGroup, LeavingMember, Left
from bus.consumer_groups.step_draft import StepDraft
from bus.errors import Refused


def decide_leave(draft: StepDraft, command: LeaveGroup, *, request_id: int) -> None:
    """All that can leave do, and one rebalance follows."""
    members = tuple(_leave(draft, leaving) for leaving in command.members)
    draft.reply(request_id, Left(members))
    left = [leaving for leaving, refused in zip(command.members, members, strict=True) if refused is None]
    if left and draft.group.state is not GroupState.EMPTY:
        names = ", ".join(leaving.member_id or leaving.group_instance_id or "" for leaving in left)
        rebalance_or_complete(draft, f"members {names} leave")


def _leave(draft: StepDraft, leaving: LeavingMember) -> Refused | None:
    group, member_id = draft.group, leaving.member_id
    if member_id in group.pending_members:
        remove_pending(draft, member_id)
        return None
    if member_id == NO_MEMBER_ID and leaving.group_instance_id is not None:
        member_id = group.instance_ids.get(leaving.group_instance_id, NO_MEMBER_ID)
    refused = check_member(group, member_id, leaving.group_instance_id)
    if refused is not None:
        return refused
    remove_member(draft, member_id, f"it left{f' ({leaving.reason})' if leaving.reason else ''}")
    return None
