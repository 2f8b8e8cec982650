"""Heartbeats, the frequent call, and what the silence of a member leads to.

Guards liveness: a member that gives no sign of life for its session timeout is out, unless the coordinator itself keeps
it waiting for an answer.
"""

from __future__ import annotations

from bus.consumer_groups.group import Group, GroupState
from bus.consumer_groups.membership import (
    check_generation,
    check_member,
    rebalancing,
    remove_member,
    remove_pending,
    unknown_member,
)
from bus.consumer_groups.rebalances import begin_rebalance, complete_rebalance
from bus.consumer_groups.request_bounds import check_request
from bus.consumer_groups.requests import Heartbeat, HeartbeatTaken
from bus.consumer_groups.step_draft import StepDraft
from bus.consumer_groups.steps import GroupAnswer
from bus.errors import ErrorCode, Refused

_TAKEN = HeartbeatTaken()


def check_heartbeat(group: Group | None, command: Heartbeat) -> HeartbeatTaken | Refused:
    """A few look-ups. The session of a member begins anew if the answer `is_sign_of_life`."""
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


def decide_heartbeat(draft: StepDraft, command: Heartbeat, *, request_id: int) -> None:
    answer = check_heartbeat(draft.group, command)
    if is_sign_of_life(answer):
        draft.set_session(draft.group.members[command.member_id])
    draft.reply(request_id, answer)


def expire_session(draft: StepDraft, member_id: str) -> None:
    """A new member's join may not wait for ever; every other member that waits for an answer is spared: its session
    begins anew with the answer."""
    member = draft.group.members.get(member_id)
    if member is None:
        return
    is_waiting = member.awaiting_join is not None or member.awaiting_sync is not None
    if is_waiting and not member.is_new:
        return
    remove_member(draft, member_id, f"no heartbeat for {member.session_timeout_ms} ms")
    if draft.group.state is GroupState.PREPARING_REBALANCE:
        complete_when_all_joined(draft)
    else:
        begin_rebalance(draft, f"member {member_id} is lost")


def expire_pending_member(draft: StepDraft, member_id: str) -> None:
    if member_id in draft.group.pending_members:
        remove_pending(draft, member_id)
        complete_when_all_joined(draft)


def complete_when_all_joined(draft: StepDraft) -> None:
    """Of a first rebalance as well, as in Kafka: whoever it waited for is not coming."""
    if draft.group.state is GroupState.PREPARING_REBALANCE and draft.group.has_all_joined:
        complete_rebalance(draft)
