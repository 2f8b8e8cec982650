"""Decisions of a group's coordinator about calls, timers and the passing of time: the entry to the rules of groups.

Guards one promise: the same group, command and time give the same step. Nothing here waits.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

from bus.consumer_groups import requests as rq
from bus.consumer_groups.bounds import check_request
from bus.consumer_groups.group import Group, GroupRules, GroupState, GroupStep, Member
from bus.consumer_groups.loading import resume_timers
from bus.consumer_groups.membership import (
    decide_heartbeat,
    decide_join,
    decide_leave,
    decide_sync,
    expire_pending_member,
    expire_rebalance,
    expire_session,
    expire_syncs,
    remove_pending,
    unknown_member,
)
from bus.consumer_groups.offsets import (
    decide_commit,
    decide_delete_offsets,
    decide_end,
    decide_txn_commit,
    describe_pending,
    fetch_offsets,
    overtake,
    remove_expired_offsets,
    remove_offsets,
    vote,
)
from bus.consumer_groups.records import GroupTombstone, LoggedRecord
from bus.descriptions import GroupListing, MemberDescription
from bus.errors import ErrorCode, Refused, count_of
from bus.machine import SetTimer


def describe_group(group: Group) -> rq.DescribedGroup:
    """Describe the group. Its protocol, and the members' metadata for it, only while it is stable."""
    protocol = group.protocol if group.state is GroupState.STABLE else None
    return rq.DescribedGroup(
        group.group_id,
        group.state.value,
        group.protocol_type or "",
        protocol or "",
        group.generation,
        group.leader_id or "",
        (_described(member, protocol) for member in group.members.values()),
        describe_pending(group),
    )


def _described(member: Member, protocol: str | None) -> MemberDescription:
    offered = None if protocol is None else member.metadata(protocol)
    return MemberDescription(
        member.member_id,
        member.group_instance_id,
        member.client_id,
        member.client_host,
        member.session_timeout_ms,
        member.rebalance_timeout_ms,
        () if offered is None else offered.topics,
        member.assignment.partitions,
        b"" if offered is None else offered.metadata,
        member.assignment.data,
    )


def list_group(group: Group) -> GroupListing:
    return GroupListing(group.group_id, group.protocol_type or "", group.state.value)


def decide_delete_group(step: GroupStep, *, request_id: int) -> None:
    group = step.group
    if group.state is not GroupState.EMPTY:
        message = (
            f"group {group.group_id}: expected no members, found {len(group.members)} in state {group.state.value}"
        )
        step.reply(request_id, Refused(ErrorCode.NON_EMPTY_GROUP, message))
        return
    if group.pending_offsets:
        message = (
            f"group {group.group_id}: expected no offsets of transactions that have not ended, found those of "
            f"{count_of(len(group.pending_offsets), 'transaction')}; retry once they have, or abort them"
        )
        step.reply(request_id, Refused(ErrorCode.NON_EMPTY_GROUP, message))
        return
    remove_offsets(step, group.offsets)
    end_group(step)
    step.reply(request_id, rq.GroupDeleted())


def end_group(step: GroupStep) -> None:
    """End an empty group without offsets. A client that joins later with a member id that it was given gets
    UNKNOWN_MEMBER_ID."""
    assert not step.group.offsets, f"group {step.group.group_id} has offsets"
    assert not step.group.pending_offsets, f"group {step.group.group_id} has pending offsets"
    remove_pending(step, step.group.pending_members)
    if step.group.protocol_type is not None:
        step.record(GroupTombstone(step.group.group_id))


class GroupMachine:
    """The rules of groups as the runtime asks for them (`bus.machine.Machine`). `rules` may be replaced between two
    decisions."""

    def __init__(self, rules: GroupRules) -> None:
        self.rules = rules

    def entity_id(self, command: rq.GroupCommand) -> str:
        return command.group_id

    def decide(self, group: Group | None, command: rq.GroupCommand, *, request_id: int, now_ms: int) -> GroupStep:
        return decide(group, command, request_id=request_id, rules=self.rules, now_ms=now_ms)

    def resume(self, group: Group) -> Sequence[SetTimer[rq.GroupCommand]]:
        return resume_timers(group)

    def keep_back(
        self,
        later: Sequence[LoggedRecord],
        decided: Sequence[LoggedRecord],
        state_of: Callable[[str], Group | None],
        *,
        now_ms: int,
        may_wait: bool,
    ) -> Collection[int]:
        return ()

    def logged(self, states: Mapping[str, Group], records: Sequence[LoggedRecord]) -> Mapping[str, Group]:
        return {}

    def refuse(self, command: rq.GroupCommand, refused: Refused) -> rq.GroupAnswer:
        return rq.JoinRefused(refused, command.member_id) if isinstance(command, rq.JoinGroup) else refused


def decide(
    group: Group | None, command: rq.GroupCommand, *, request_id: int, rules: GroupRules, now_ms: int
) -> GroupStep:
    """`group` None: there is none with the command's group id. A join and a sync may be answered by a later step."""
    step = GroupStep(group, command.group_id, rules=rules, now_ms=now_ms)
    if isinstance(command, (rq.GroupTimer, rq.ExpireOffsets, rq.ForgetTopic)):
        if group is not None:
            _decide_upkeep(step, command)
        if not isinstance(command, rq.GroupTimer):
            step.reply(request_id, rq.Swept())
        return step
    refused = check_request(group, command) or _check_group(group, command)
    if refused is not None:
        step.reply(
            request_id, rq.JoinRefused(refused, command.member_id) if isinstance(command, rq.JoinGroup) else refused
        )
        return step
    match command:
        case rq.JoinGroup():
            decide_join(step, command, request_id=request_id)
        case rq.SyncGroup():
            decide_sync(step, command, request_id=request_id)
        case rq.Heartbeat():
            decide_heartbeat(step, command, request_id=request_id)
        case rq.LeaveGroup():
            decide_leave(step, command, request_id=request_id)
        case rq.OffsetCommit():
            decide_commit(step, command, request_id=request_id)
        case rq.TxnOffsetCommit():
            decide_txn_commit(step, command, request_id=request_id)
        case rq.VoteOffsets():
            step.reply(request_id, vote(group, command))
        case rq.ApplyOffsets() | rq.DropOffsets():
            decide_end(step, command, request_id=request_id)
        case rq.OffsetFetch():
            step.reply(request_id, fetch_offsets(group, command))
        case rq.OffsetDelete():
            decide_delete_offsets(step, command, request_id=request_id)
        case rq.DescribeGroup():
            step.reply(request_id, describe_group(step.group))
        case rq.DeleteGroup():
            decide_delete_group(step, request_id=request_id)
    return step


def _check_group(group: Group | None, command: rq.GroupCommand) -> Refused | None:
    """Most calls need a group; a join or a commit may be its beginning, and a fetch finds no offsets."""
    if group is not None:
        return None
    match command:
        case rq.SyncGroup() | rq.Heartbeat():
            return unknown_member(command.group_id, command.member_id)
        case rq.LeaveGroup():
            return unknown_member(
                command.group_id, command.members[0].member_id if command.members else rq.NO_MEMBER_ID
            )
        case rq.OffsetDelete() | rq.DescribeGroup() | rq.DeleteGroup():
            return Refused(ErrorCode.GROUP_ID_NOT_FOUND, f"there is no group {command.group_id}")
        case _:
            return None


def _decide_upkeep(step: GroupStep, command: rq.GroupTimer | rq.ExpireOffsets | rq.ForgetTopic) -> None:
    match command:
        case rq.GroupTimer(rq.TimerKind.SESSION, _, member_id):
            expire_session(step, member_id)
        case rq.GroupTimer(rq.TimerKind.PENDING_MEMBER, _, member_id):
            expire_pending_member(step, member_id)
        case rq.GroupTimer(rq.TimerKind.REBALANCE):
            if step.group.state is GroupState.PREPARING_REBALANCE:
                expire_rebalance(step)
        case rq.GroupTimer(rq.TimerKind.SYNC):
            if step.group.unsynced_count:
                expire_syncs(step)
        case rq.ExpireOffsets(_, now_ms):
            remove_expired_offsets(step, now_ms)
            if step.group.state is GroupState.EMPTY and not _is_in_use(step.group):
                end_group(step)
        case rq.ForgetTopic(_, topic, topic_id):
            offsets = step.group.offsets.items()
            remove_offsets(step, [of for of, last in offsets if of.topic == topic and last.topic_id == topic_id])
            overtake(step, lambda offset: offset.partition.topic == topic and offset.topic_id == topic_id)


def _is_in_use(group: Group) -> bool:
    return bool(group.offsets or group.pending_offsets or group.pending_members)
