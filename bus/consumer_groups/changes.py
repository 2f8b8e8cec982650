"""What changes a group: records, and `apply`, which is the only way, live and while loading.

The records of the log (records.py) have the committed offsets, those that open transactions will commit, and the group
as it stands after a rebalance. Those
below are in no log: the ids that were given, and the rebalance that is under way with the calls that wait in it. A
coordinator that dies takes them along, and the clients begin again. Guards one promise: a group after records of the
log is the same whether they were applied one by one as they were decided, all at once, or only the last of each key.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace

from bus.consumer_groups import requests as rq
from bus.consumer_groups.group import NO_ASSIGNMENT, TRANSITIONS, Group, GroupState, InitialDelay, Member, new_group
from bus.consumer_groups.records import (
    LOGGED,
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
from bus.errors import Refused
from bus.machine import CancelTimer, Reply, SetTimer
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


# What a decision about a group is made of: the configuration that it goes by, what it may be asked, and a step while
# it is being decided.
#
# Guards two promises: a request is answered once at most, and of each timer and each member only the last word counts.
# A member that is answered in a step is not told the same by a notice: it would act on it twice.

MINUTE_MS = 60_000


@dataclass(frozen=True, slots=True)
class GroupRules:
    """What the broker's configuration says to the rules. Each field is named after its key."""

    min_session_timeout_ms: int = 6_000
    max_session_timeout_ms: int = 30 * MINUTE_MS
    initial_rebalance_delay_ms: int = 3_000
    max_size: int = 2**31 - 1
    # Ids that were given and have not come back; a large group that begins has one for each of its members.
    pending_members_max: int = 10_000
    # Transactions of a group that have offsets pending; one producer for each member has one open.
    pending_transactions_max: int = 10_000
    offset_metadata_max_bytes: int = 4_096
    offsets_retention_ms: int = 7 * 24 * 60 * MINUTE_MS
    # Who joins for the first time cannot send heartbeats; this long may its join wait (a constant of Kafka's).
    new_member_join_timeout_ms: int = 5 * MINUTE_MS


@dataclass(frozen=True, slots=True)
class Notice:
    """What the next heartbeat of the member would be told, told now: REBALANCE_IN_PROGRESS, UNKNOWN_MEMBER_ID or
    FENCED_INSTANCE_ID."""

    group_id: str
    member_id: str
    refused: Refused


class GroupStep:
    """`group` is what `apply` makes of the changes so far, and cannot be set."""

    def __init__(self, group: Group | None, group_id: str, *, rules: GroupRules, now_ms: int) -> None:
        self._group = group or new_group(group_id)
        self.rules = rules
        self.now_ms = now_ms
        self.changes: list[GroupRecord] = []
        self.records: list[LoggedRecord] = []  # of `changes`, those for the log
        self._replies: dict[int, Reply[rq.GroupAnswer]] = {}
        self._timers: dict[rq.GroupTimer, SetTimer[rq.GroupCommand] | CancelTimer[rq.GroupCommand]] = {}
        self._notices: dict[str, Notice] = {}

    @property
    def group(self) -> Group:
        """A new one if there is none."""
        return self._group

    @property
    def state(self) -> Group | None:
        return None if self._group.is_nothing else self._group

    @property
    def may_log_later(self) -> bool:
        """Nothing but the log knows what a group was told."""
        return False

    @property
    def replies(self) -> Collection[Reply[rq.GroupAnswer]]:
        return self._replies.values()

    @property
    def timers(self) -> Collection[SetTimer[rq.GroupCommand] | CancelTimer[rq.GroupCommand]]:
        return self._timers.values()

    @property
    def notices(self) -> Collection[Notice]:
        return self._notices.values()

    def record(self, *records: GroupRecord) -> None:
        self.changes += records
        self.records += [record for record in records if isinstance(record, LOGGED)]
        self._group = apply(self._group, records) or new_group(self._group.group_id)

    def reply(self, request_id: int, answer: rq.GroupAnswer) -> None:
        assert request_id not in self._replies, f"request {request_id} is answered twice"
        self._replies[request_id] = Reply(request_id, answer)

    def notify(self, member_id: str, refused: Refused) -> None:
        self._notices[member_id] = Notice(self._group.group_id, member_id, refused)

    def set_timer(self, kind: rq.TimerKind, after_ms: int, member_id: str = "") -> None:
        timer = rq.GroupTimer(kind, self._group.group_id, member_id)
        self._timers[timer] = SetTimer(timer, after_ms)

    def cancel_timer(self, kind: rq.TimerKind, member_id: str = "") -> None:
        timer = rq.GroupTimer(kind, self._group.group_id, member_id)
        self._timers[timer] = CancelTimer(timer)

    def set_session(self, member: Member) -> None:
        self.set_timer(rq.TimerKind.SESSION, member.session_timeout_ms, member.member_id)
