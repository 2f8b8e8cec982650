"""What a group's coordinator does about a call, a timer, or the passing of time: the door to the rules of groups.

Guards the order of things: whatever a decision changes goes into a record or into the group of its step, never both
half; nothing here waits, and the same group, command and time give the same step.
"""

from __future__ import annotations

from bus.consumer_groups.administration import decide_delete_group, describe_group, end_group
from bus.consumer_groups.group import Group, GroupState, new_group
from bus.consumer_groups.group_rules import GroupRules
from bus.consumer_groups.heartbeats import (
    check_heartbeat,
    decide_heartbeat,
    expire_pending_member,
    expire_session,
    is_sign_of_life,
)
from bus.consumer_groups.joins import decide_join
from bus.consumer_groups.leaving import decide_leave
from bus.consumer_groups.loading import LoadedGroups, load_groups, read_groups, resume_timers
from bus.consumer_groups.membership import unknown_member
from bus.consumer_groups.offsets import (
    decide_commit,
    decide_delete_offsets,
    fetch_offsets,
    remove_expired_offsets,
    remove_offsets,
)
from bus.consumer_groups.rebalances import expire_rebalance
from bus.consumer_groups.request_bounds import check_request
from bus.consumer_groups.requests import (
    NO_MEMBER_ID,
    DeleteGroup,
    DescribeGroup,
    Heartbeat,
    JoinGroup,
    JoinRefused,
    LeaveGroup,
    OffsetCommit,
    OffsetDelete,
    OffsetFetch,
    SyncGroup,
)
from bus.consumer_groups.step_draft import StepDraft
from bus.consumer_groups.steps import GroupCommand, GroupStep, GroupTimer, TimerKind
from bus.consumer_groups.syncs import decide_sync, expire_syncs
from bus.errors import ErrorCode, Refused

__all__ = [
    "LoadedGroups",
    "check_heartbeat",
    "decide",
    "decide_offset_expiry",
    "decide_timeout",
    "decide_topic_deleted",
    "is_sign_of_life",
    "load_groups",
    "read_groups",
    "resume_timers",
]


def decide(
    group: Group | None,
    command: GroupCommand,
    *,
    request_id: int,
    new_member_id: str,
    rules: GroupRules,
    now_ms: int,
) -> GroupStep:
    """`group` None: there is none with the command's group id. `new_member_id` is unique, for a member that has no id
    yet. A join and a sync may be answered by a later step."""
    draft = _draft(group, command.group_id, rules, now_ms)
    refused = check_request(group, command) or _check_group(group, command)
    if refused is not None:
        draft.reply(request_id, JoinRefused(refused, command.member_id) if isinstance(command, JoinGroup) else refused)
        return draft.step()
    match command:
        case JoinGroup():
            decide_join(draft, command, request_id=request_id, new_member_id=new_member_id)
        case SyncGroup():
            decide_sync(draft, command, request_id=request_id)
        case Heartbeat():
            decide_heartbeat(draft, command, request_id=request_id)
        case LeaveGroup():
            decide_leave(draft, command, request_id=request_id)
        case OffsetCommit():
            decide_commit(draft, command, request_id=request_id)
        case OffsetFetch():
            draft.reply(request_id, fetch_offsets(group, command))
        case OffsetDelete():
            decide_delete_offsets(draft, command, request_id=request_id)
        case DescribeGroup():
            draft.reply(request_id, describe_group(draft.group))
        case DeleteGroup():
            decide_delete_group(draft, request_id=request_id)
    return draft.step()


def _check_group(group: Group | None, command: GroupCommand) -> Refused | None:
    """Most calls need a group; a join or a commit may be its beginning, and a fetch finds no offsets."""
    if group is not None:
        return None
    match command:
        case JoinGroup() | OffsetCommit() | OffsetFetch():
            return None
        case SyncGroup() | Heartbeat():
            return unknown_member(command.group_id, command.member_id)
        case LeaveGroup():
            return unknown_member(command.group_id, command.members[0].member_id if command.members else NO_MEMBER_ID)
        case OffsetDelete() | DescribeGroup() | DeleteGroup():
            return Refused(ErrorCode.GROUP_ID_NOT_FOUND, f"there is no group {command.group_id}")


def decide_timeout(group: Group, timer: GroupTimer, *, rules: GroupRules, now_ms: int) -> GroupStep:
    """The timer has run out. If what it was for is gone, nothing changes."""
    draft = _draft(group, timer.group_id, rules, now_ms)
    match timer.kind:
        case TimerKind.SESSION:
            expire_session(draft, timer.member_id)
        case TimerKind.PENDING_MEMBER:
            expire_pending_member(draft, timer.member_id)
        case TimerKind.REBALANCE:
            if group.state is GroupState.PREPARING_REBALANCE:
                expire_rebalance(draft)
        case TimerKind.SYNC:
            if group.unsynced_count:
                expire_syncs(draft)
    return draft.step()


def decide_offset_expiry(group: Group, *, rules: GroupRules, now_ms: int) -> GroupStep:
    """For the runtime to ask of every group from time to time. An empty group that has no offsets (any more) ends, but
    not while somebody who was given a member id may come back with it."""
    draft = _draft(group, group.group_id, rules, now_ms)
    remove_expired_offsets(draft)
    if draft.group.state is GroupState.EMPTY and not draft.group.offsets and not draft.group.pending_members:
        end_group(draft)
    return draft.step()


def decide_topic_deleted(group: Group, topic: str, topic_id: str, *, rules: GroupRules, now_ms: int) -> GroupStep:
    """The offsets of that topic go; those of a later topic of the same name stay."""
    draft = _draft(group, group.group_id, rules, now_ms)
    remove_offsets(
        draft,
        [
            partition
            for partition, stored in group.offsets.items()
            if partition.topic == topic and stored.topic_id == topic_id
        ],
    )
    return draft.step()


def _draft(group: Group | None, group_id: str, rules: GroupRules, now_ms: int) -> StepDraft:
    return StepDraft(new_group(group_id, now_ms=now_ms) if group is None else group, rules=rules, now_ms=now_ms)
