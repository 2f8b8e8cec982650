"""What a new coordinator knows: the groups, out of the records of its partition.

Guards the promise that it goes on where the one before was: all that was ever answered as done is there. What was under
way and in no record (a rebalance, a first join) is begun anew by the clients.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from bus.consumer_groups.changing_map import ChangingMap
from bus.consumer_groups.group import Group, GroupState, Member
from bus.consumer_groups.records import (
    GroupRecord,
    GroupStored,
    GroupTombstone,
    OffsetCommitted,
    OffsetTombstone,
    StoredMember,
)
from bus.consumer_groups.requests import GroupProtocol
from bus.consumer_groups.steps import GroupTimer, SetTimer, TimerKind
from bus.model import TopicPartition


@dataclass(slots=True)
class _Loading:
    stored: GroupStored | None = None
    offsets: dict[TopicPartition, OffsetCommitted] = field(default_factory=dict)


def load_groups(records: Iterable[GroupRecord]) -> dict[str, Group]:
    """The groups after all of `records`, in the order of the log. Takes one step a record."""
    loading: dict[str, _Loading] = {}
    for record in records:
        group = loading.get(record.group_id)
        if group is None:
            group = loading[record.group_id] = _Loading()
        match record:
            case OffsetCommitted():
                group.offsets[record.partition] = record
            case OffsetTombstone():
                group.offsets.pop(record.partition, None)
            case GroupStored():
                group.stored = record
            case GroupTombstone():
                group.stored = None
    return {
        group_id: _loaded(group_id, group)
        for group_id, group in loading.items()
        if group.stored is not None or group.offsets
    }


def _loaded(group_id: str, loading: _Loading) -> Group:
    stored, offsets = loading.stored, ChangingMap(loading.offsets)
    if stored is None:
        since_ms = min(offset.commit_ms for offset in loading.offsets.values())
        return Group(group_id, GroupState.EMPTY, since_ms, offsets=offsets)
    group = Group(
        group_id,
        GroupState(stored.state),
        stored.state_ms,
        stored.generation,
        stored.protocol_type,
        stored.protocol,
        stored.leader_id,
        offsets=offsets,
    )
    return group.put_members(_member(member, stored.protocol or "") for member in stored.members)


def _member(stored: StoredMember, protocol: str) -> Member:
    return Member(
        stored.member_id,
        stored.group_instance_id,
        stored.client_id,
        stored.client_host,
        stored.session_timeout_ms,
        stored.rebalance_timeout_ms,
        (GroupProtocol(protocol, stored.subscription, stored.topics),),
        stored.assignment,
    )


def resume_timers(group: Group) -> tuple[SetTimer, ...]:
    """For a group that was just loaded: every session begins anew."""
    return tuple(
        SetTimer(GroupTimer(TimerKind.SESSION, group.group_id, member.member_id), member.session_timeout_ms)
        for member in group.members.values()
    )
