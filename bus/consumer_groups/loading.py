"""What a new coordinator knows: the groups, out of the records of its partition.

Guards two promises: it goes on where the one before was, all that was ever answered as done is there; and a record that
cannot be read costs itself, never the other groups of the partition. What was under way and in no record (a rebalance,
a first join) is begun again by the clients.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace

from bus.consumer_groups.changing_map import ChangingMap
from bus.consumer_groups.group import Group, GroupState, Member
from bus.consumer_groups.records import (
    GroupRecord,
    GroupStored,
    GroupTombstone,
    OffsetCommitted,
    OffsetTombstone,
    StoredMember,
    decode_record,
)
from bus.consumer_groups.requests import GroupProtocol
from bus.consumer_groups.salvage import salvage_group, salvage_record
from bus.consumer_groups.steps import GroupTimer, SetTimer, TimerKind
from bus.model import TopicPartition
from bus.ports import KeyedRow


@dataclass(slots=True)
class _Loading:
    group_id: str
    stored: GroupStored | None = None
    offsets: dict[TopicPartition, OffsetCommitted] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class LoadedGroups:
    """`faults` says of each record that could not be read what it was, what is lost, and what to do."""

    groups: dict[str, Group]
    faults: tuple[str, ...]


def read_groups(rows: Iterable[KeyedRow], *, now_ms: int) -> LoadedGroups:
    """The groups after all of `rows`, in the order of the log. What is certain of an unreadable row is kept."""
    faults: list[str] = []
    groups = {
        loading.group_id: _loaded_or_emptied(loading, faults, now_ms)
        for loading in _gather(_read(rows, faults, now_ms))
    }
    return LoadedGroups(groups, tuple(faults))


def _read(rows: Iterable[KeyedRow], faults: list[str], now_ms: int) -> Iterator[GroupRecord]:
    for row in rows:
        try:
            record: GroupRecord | None = decode_record(row)
        except ValueError as error:
            record, fault = salvage_record(row, str(error), now_ms=now_ms)
            faults.append(fault)
        if record is not None:
            yield record


def _loaded_or_emptied(loading: _Loading, faults: list[str], now_ms: int) -> Group:
    try:
        return _loaded(loading)
    except (ValueError, AssertionError) as error:
        assert loading.stored is not None
        empty, fault = salvage_group(loading.stored, str(error), now_ms=now_ms)
        faults.append(fault)
        return _loaded(replace(loading, stored=empty))


def load_groups(records: Iterable[GroupRecord]) -> dict[str, Group]:
    """The groups after all of `records`, in the order of the log. Takes one step a record."""
    return {loading.group_id: _loaded(loading) for loading in _gather(records)}


def _gather(records: Iterable[GroupRecord]) -> list[_Loading]:
    loading: dict[str, _Loading] = {}
    for record in records:
        group = loading.get(record.group_id)
        if group is None:
            group = loading[record.group_id] = _Loading(record.group_id)
        match record:
            case OffsetCommitted():
                group.offsets[record.partition] = record
            case OffsetTombstone():
                group.offsets.pop(record.partition, None)
            case GroupStored():
                group.stored = record
            case GroupTombstone():
                group.stored = None
    return [group for group in loading.values() if group.stored is not None or group.offsets]


def _loaded(loading: _Loading) -> Group:
    group_id, stored, offsets = loading.group_id, loading.stored, ChangingMap(loading.offsets)
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
