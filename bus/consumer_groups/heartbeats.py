"""Heartbeats, the frequent call; what the silence of a member leads to; and members that leave, by themselves or taken
out by an administrator by their instance ids.

Guards liveness: a member that gives no sign of life for its session timeout is out, unless the coordinator itself keeps
it waiting for an answer.
"""

from __future__ import annotations

from bus.consumer_groups.changes import GroupStep
from bus.consumer_groups.group import Group, GroupState
from bus.consumer_groups.membership import (
    check_generation,
    check_member,
    named,
    rebalancing,
    remove_member,
    remove_members,
    remove_pending,
    unknown_member,
)
from bus.consumer_groups.rebalances import (
    begin_rebalance,
    complete_if_all_joined,
    complete_when_all_joined,
    rebalance_or_complete,
)
from bus.consumer_groups.request_bounds import check_request
from bus.consumer_groups.requests import (
    NO_MEMBER_ID,
    GroupAnswer,
    Heartbeat,
    HeartbeatTaken,
    LeaveGroup,
    LeavingMember,
    Left,
)
from bus.errors import ErrorCode, Refused

_TAKEN = HeartbeatTaken()


def check_heartbeat(group: Group | None, command: Heartbeat) -> HeartbeatTaken | Refused:
    """A few look-ups. The session of a member starts again if the answer `is_sign_of_life`."""
    if group is None:
        return check_request(None, command) or unknown_member(command.group_id, command.member_id)
    if command.group_instance_id is not None or command.member_id not in group.members:
        refused = check_request(group, command) or check_member(group, command.member_id, command.group_instance_id)
        if refused is not None:
            return refused
    if command.generation != group.generation:
        refused = check_generation(group, command.generation, command.member_id)
        assert refused is not None
        return refused
    if group.state is GroupState.PREPARING_REBALANCE:
        return rebalancing(group, "join again")
    return _TAKEN


def is_sign_of_life(answer: GroupAnswer) -> bool:
    """Of a heartbeat: from a member of this generation, though it may have to join again."""
    return isinstance(answer, HeartbeatTaken) or (
        isinstance(answer, Refused) and answer.code is ErrorCode.REBALANCE_IN_PROGRESS
    )


def decide_heartbeat(step: GroupStep, command: Heartbeat, *, request_id: int) -> None:
    answer = check_heartbeat(step.group, command)
    if is_sign_of_life(answer):
        step.set_session(step.group.members[command.member_id])
    step.reply(request_id, answer)


def expire_session(step: GroupStep, member_id: str) -> None:
    """A new member's join may not wait for ever; every other member that waits for an answer is spared: its session
    starts again with the answer."""
    member = step.group.members.get(member_id)
    if member is None:
        return
    is_waiting = member.awaiting_join is not None or member.awaiting_sync is not None
    if is_waiting and not member.is_new:
        return
    remove_member(step, member_id, f"no heartbeat for {member.session_timeout_ms} ms")
    if step.group.state is GroupState.PREPARING_REBALANCE:
        complete_when_all_joined(step)
    else:
        begin_rebalance(step, f"member {member_id} is lost")


def expire_pending_member(step: GroupStep, member_id: str) -> None:
    if member_id in step.group.pending_members:
        remove_pending(step, [member_id])
        complete_when_all_joined(step)


def decide_leave(step: GroupStep, command: LeaveGroup, *, request_id: int) -> None:
    """All that can leave do, and one rebalance follows if one of them was a member."""
    reasons: dict[str, str] = {}  # of members that leave, by member id
    pending: dict[str, None] = {}
    members = tuple(_leave(step.group, leaving, reasons, pending) for leaving in command.members)
    remove_pending(step, pending)
    remove_members(step, reasons)
    step.reply(request_id, Left(members))
    if reasons:
        rebalance_or_complete(step, f"members {named(list(reasons))} leave")
    elif pending:
        complete_if_all_joined(step)


def _leave(group: Group, leaving: LeavingMember, reasons: dict[str, str], pending: dict[str, None]) -> Refused | None:
    """Why it cannot; None: it was added to `reasons`, or to `pending`."""
    member_id = leaving.member_id
    if member_id in group.pending_members and member_id not in pending:
        pending[member_id] = None
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
