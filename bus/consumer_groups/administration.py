"""Describing and deleting groups; the end of a group."""

from __future__ import annotations

from bus.consumer_groups.group import Group, GroupState, Member
from bus.consumer_groups.membership import remove_pending
from bus.consumer_groups.offsets import remove_offsets
from bus.consumer_groups.pending_offsets import describe_pending
from bus.consumer_groups.records import GroupTombstone
from bus.consumer_groups.requests import DescribedGroup, DescribedMember, GroupDeleted, ListedGroup
from bus.consumer_groups.steps import GroupStep
from bus.errors import ErrorCode, Refused, count_of


def describe_group(group: Group) -> DescribedGroup:
    """Its protocol, and what the members said with it, only while it is stable."""
    protocol = group.protocol if group.state is GroupState.STABLE else None
    return DescribedGroup(
        group.group_id,
        group.state.value,
        group.protocol_type or "",
        protocol or "",
        group.generation,
        group.leader_id or "",
        [_described(member, protocol) for member in group.members.values()],
        describe_pending(group),
    )


def _described(member: Member, protocol: str | None) -> DescribedMember:
    return DescribedMember(
        member.member_id,
        member.group_instance_id,
        member.client_id,
        member.client_host,
        member.session_timeout_ms,
        member.rebalance_timeout_ms,
        b"" if protocol is None else member.metadata(protocol).metadata,
        member.assignment.data,
    )


def list_group(group: Group) -> ListedGroup:
    return ListedGroup(group.group_id, group.protocol_type or "", group.state.value)


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
    step.reply(request_id, GroupDeleted())


def end_group(step: GroupStep) -> None:
    """Of an empty group without offsets. Who was given a member id and comes with it now is told that it is unknown."""
    assert not step.group.offsets, f"group {step.group.group_id} has offsets"
    assert not step.group.pending_offsets, f"group {step.group.group_id} has pending offsets"
    remove_pending(step, step.group.pending_members)
    if step.group.protocol_type is not None:
        step.record(GroupTombstone(step.group.group_id))
