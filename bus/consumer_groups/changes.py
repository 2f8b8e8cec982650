"""What changes a group: records, and `apply`, which is the only way, live and while loading.

The records of the log (records.py) have the committed offsets, those that open transactions will commit, and the group
as it stands after a rebalance. Those
below are in no log: the ids that were given, and the rebalance that is under way with the calls that wait in it. A
coordinator that dies takes them along, and the clients begin again. Guards one promise: a group after records of the
log is the same whether they were applied one by one as they were decided, all at once, or only the last of each key.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from bus.consumer_groups.group import NO_ASSIGNMENT, TRANSITIONS, Group, GroupState, InitialDelay, Member, new_group
from bus.consumer_groups.records import (
    GroupStored,
    GroupTombstone,
    LoggedRecord,
    OffsetCommitted,
    OffsetTombstone,
    StoredMember,
    TxnOffsetsEnded,
    TxnOffsetsPending,
)
from bus.consumer_groups.requests import Assignment, GroupProtocol, TransactionKey
from bus.model import TopicPartition


@dataclass(frozen=True, slots=True)
class MemberIdGiven:
    """With MEMBER_ID_REQUIRED: a join with this id is expected."""

    group_id: str
    member_id: str


@dataclass(frozen=True, slots=True)
class MemberIdsForgotten:
    group_id: str
    member_ids: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class MemberJoins:
    """A new member, or one of that id that joins again. Its join waits."""

    group_id: str
    protocol_type: str
    member: Member


@dataclass(frozen=True, slots=True)
class StaticMemberReplaced:
    """`by` has the instance id of the member, and leads if that one led."""

    group_id: str
    member_id: str
    by: Member


@dataclass(frozen=True, slots=True)
class MembersRemoved:
    group_id: str
    member_ids: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class RebalanceBegun:
    """No sync waits any more. An assignment that the generation did not get is none."""

    group_id: str
    at_ms: int
    initial_delay: InitialDelay | None


@dataclass(frozen=True, slots=True)
class DelayRoundBegun:
    group_id: str
    delay: InitialDelay


@dataclass(frozen=True, slots=True)
class GenerationBegun:
    """All joins that wait are answered; every member has to sync."""

    group_id: str
    at_ms: int
    protocol: str
    leader_id: str


@dataclass(frozen=True, slots=True)
class MemberSynced:
    group_id: str
    member_id: str
    awaiting_sync: int | None  # the request id of a sync that waits


MemoryRecord = (
    MemberIdGiven
    | MemberIdsForgotten
    | MemberJoins
    | StaticMemberReplaced
    | MembersRemoved
    | RebalanceBegun
    | DelayRoundBegun
    | GenerationBegun
    | MemberSynced
)
GroupRecord = LoggedRecord | MemoryRecord


def apply(group: Group | None, records: Iterable[GroupRecord]) -> Group | None:
    """The group after `records` of one group, in their order; None: neither the log nor a client knows of it. Costs
    what the records cost, and a little for each call: many offsets are one change."""
    offsets: dict[TopicPartition, OffsetCommitted | None] = {}  # None: deleted
    pending: dict[TransactionKey, TxnOffsetsPending | None] = {}  # None: ended
    for record in records:
        if group is None:
            group = new_group(record.group_id)
        if isinstance(record, OffsetCommitted):
            offsets[record.partition] = record
        elif isinstance(record, OffsetTombstone):
            offsets[record.partition] = None
        elif isinstance(record, TxnOffsetsPending):
            pending[record.transaction] = record
        elif isinstance(record, TxnOffsetsEnded):
            pending[record.transaction] = None
        else:
            group = _apply_to_membership(group, record)
    if group is None:
        return None
    if offsets:
        group = replace(group, offsets=group.offsets.changed(offsets))
    if pending:
        group = group.put_pending_offsets(pending)
    return None if group.is_nothing else group


def _apply_to_membership(group: Group, record: GroupStored | GroupTombstone | MemoryRecord) -> Group:
    match record:
        case MemberJoins():
            return _with_joining(group, record)
        case MemberSynced(_, member_id, awaiting_sync):
            member = group.members[member_id]
            return group.put_members([replace(member, awaiting_sync=awaiting_sync, has_to_sync=False)])
        case RebalanceBegun():
            return _in_rebalance(group, record)
        case GenerationBegun():
            return _in_generation(group, record)
        case GroupStored():
            return _as_stored(group, record)
        case GroupTombstone():
            return _with_offsets_of(group, new_group(group.group_id))
        case MemberIdGiven(_, member_id):
            return replace(group, pending_members=group.pending_members.changed({member_id: True}))
        case MemberIdsForgotten(_, member_ids):
            return replace(group, pending_members=group.pending_members.changed(dict.fromkeys(member_ids)))
        case MembersRemoved(_, member_ids):
            return group.remove_members(member_ids)
        case StaticMemberReplaced(_, member_id, by):
            return group.replace_static(member_id, by)
        case DelayRoundBegun(_, delay):
            return replace(group, initial_delay=delay)


def _with_joining(group: Group, record: MemberJoins) -> Group:
    member = record.member
    if member.member_id in group.members:
        return group.put_members([member])
    delay = group.initial_delay
    return replace(
        group.put_members([member]),
        protocol_type=group.protocol_type if group.members else record.protocol_type,
        pending_members=group.pending_members.changed({member.member_id: None}),
        initial_delay=None if delay is None else replace(delay, has_new_member=True),
    )


def _in_rebalance(group: Group, record: RebalanceBegun) -> Group:
    is_unassigned = group.state is GroupState.COMPLETING_REBALANCE
    if is_unassigned or group.unsynced_count:
        group = group.put_members(
            replace(
                member,
                awaiting_sync=None,
                has_to_sync=False,
                assignment=NO_ASSIGNMENT if is_unassigned else member.assignment,
            )
            for member in group.members.values()
        )
    group = group.at_state(GroupState.PREPARING_REBALANCE, now_ms=record.at_ms)
    return replace(group, initial_delay=record.initial_delay)


def _in_generation(group: Group, record: GenerationBegun) -> Group:
    begun = replace(
        group.at_state(GroupState.COMPLETING_REBALANCE, now_ms=record.at_ms),
        generation=group.generation + 1,
        protocol=record.protocol,
        leader_id=record.leader_id,
        initial_delay=None,
    )
    return begun.put_members(
        replace(member, is_new=False, awaiting_join=None, has_to_sync=True) for member in group.members.values()
    )


def _as_stored(group: Group, record: GroupStored) -> Group:
    """Beside what the record says, memory keeps the ids that were given, what members offer besides the protocol in
    use, and who has yet to sync."""
    stored = Group(
        record.group_id,
        GroupState(record.state),
        record.state_ms,
        record.generation,
        record.protocol_type,
        record.protocol,
        record.leader_id,
        pending_members=group.pending_members,
    )
    protocol = record.protocol or ""
    return _with_offsets_of(group, stored).put_members(
        _member(one, protocol, group.members.get(one.member_id)) for one in record.members
    )


def _with_offsets_of(group: Group, other: Group) -> Group:
    return replace(
        other,
        offsets=group.offsets,
        pending_offsets=group.pending_offsets,
        unstable=group.unstable,
        pending_offset_count=group.pending_offset_count,
    )


def _member(stored: StoredMember, protocol: str, known: Member | None) -> Member:
    offer = GroupProtocol(protocol, stored.subscription, stored.topics)
    return Member(
        stored.member_id,
        stored.group_instance_id,
        stored.client_id,
        stored.client_host,
        stored.session_timeout_ms,
        stored.rebalance_timeout_ms,
        (offer,) if known is None or offer not in known.protocols else known.protocols,
        stored.assignment,
        has_to_sync=known is not None and known.has_to_sync,
    )


def stored_group(
    group: Group, state: GroupState, *, at_ms: int, assignments: Mapping[str, Assignment] | None = None
) -> GroupStored:
    """The record of the group as it gets `state`, Stable or Empty. `assignments`: new ones, of all members; one that is
    left out gets nothing."""
    assert group.state is state or group.state in TRANSITIONS[state], f"{group.group_id} is {group.state.value}"
    assert group.protocol_type is not None
    protocol = group.protocol
    return GroupStored(
        group.group_id,
        group.protocol_type,
        protocol,
        group.generation,
        group.leader_id,
        state.value,
        at_ms,
        tuple(
            _stored_member(
                member,
                protocol,
                member.assignment if assignments is None else assignments.get(member.member_id, NO_ASSIGNMENT),
            )
            for member in group.members.values()
            if protocol
        ),
    )


def _stored_member(member: Member, protocol: str, assignment: Assignment) -> StoredMember:
    said = member.metadata(protocol)
    return StoredMember(
        member.member_id,
        member.group_instance_id,
        member.client_id,
        member.client_host,
        member.session_timeout_ms,
        member.rebalance_timeout_ms,
        said.metadata,
        said.topics,
        assignment,
    )
