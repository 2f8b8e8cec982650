"""A group as its coordinator knows it, what changes it, and a step while it is being decided.

A group is a value. `apply` is the only way it changes, live and while loading. Guards three promises: a state follows
only a state that `TRANSITIONS` names; what is counted or indexed here (who awaits a join, who has not synced, which
protocol all support, who has which instance id) agrees with the members; and a group after records of the log is the
same whether they were applied one by one as they were decided, all at once, or only the last of each key.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum

from bus.consumer_groups import records
from bus.consumer_groups import requests as rq
from bus.errors import Refused
from bus.machine import CancelTimer, Reply, SetTimer
from bus.model import CONSUMER_PROTOCOL_TYPE, TopicPartition
from bus.persistent_map import PersistentMap

MINUTE_MS = 60_000
NO_ASSIGNMENT = rq.Assignment()
_MEMBER_BYTES = 1_000  # without its metadata and its assignment
_ITEM_BYTES = 60  # the size of a topic or a partition


class GroupState(Enum):
    EMPTY = "Empty"  # no member; offsets may be there
    PREPARING_REBALANCE = "PreparingRebalance"  # the members are to join again; joins wait
    COMPLETING_REBALANCE = "CompletingRebalance"  # a new generation awaits the leader's assignment; syncs wait
    STABLE = "Stable"  # every member may have its assignment
    DEAD = "Dead"  # gone; there is nothing after it


# State -> the states it may follow, each with what brings it about.
TRANSITIONS: Mapping[GroupState, Mapping[GroupState, str]] = {
    GroupState.EMPTY: {
        GroupState.PREPARING_REBALANCE: "the rebalance ends and no member is left",
    },
    GroupState.PREPARING_REBALANCE: {
        GroupState.EMPTY: "a first member joins",
        GroupState.COMPLETING_REBALANCE: "a member joins, leaves, changes, is lost or does not sync in time",
        GroupState.STABLE: "the same, or the leader joins again",
    },
    GroupState.COMPLETING_REBALANCE: {
        GroupState.PREPARING_REBALANCE: "all have joined, or the time for it is over",
    },
    GroupState.STABLE: {
        GroupState.COMPLETING_REBALANCE: "the leader's assignment is there",
    },
    GroupState.DEAD: {
        GroupState.EMPTY: "deleted, or its last offset has expired",
    },
}


@dataclass(frozen=True, slots=True)
class Member:
    member_id: str
    group_instance_id: str | None
    client_id: str
    client_host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocols: tuple[rq.GroupProtocol, ...]  # ordered by preference; only one of them after loading
    assignment: rq.Assignment = NO_ASSIGNMENT
    is_new: bool = False  # has never been answered a join
    awaiting_join: int | None = None  # the request id; only while PreparingRebalance
    awaiting_sync: int | None = None  # the request id; only while CompletingRebalance
    has_to_sync: bool = False  # has not yet synced in this generation

    @property
    def data_bytes(self) -> int:
        """The approximate size in memory."""
        items = len(self.assignment.partitions) + sum(len(offer.topics) for offer in self.protocols)
        said = len(self.assignment.data) + sum(len(offer.metadata) for offer in self.protocols)
        return _MEMBER_BYTES + items * _ITEM_BYTES + said

    def metadata(self, protocol: str) -> rq.GroupProtocol:
        """Return the metadata that the member sent for that protocol, which it must support."""
        return next(offered for offered in self.protocols if offered.name == protocol)


@dataclass(frozen=True, slots=True)
class InitialDelay:
    """The wait of an empty group's first rebalance for more members: the present round, and the time remaining for
    others."""

    remaining_ms: int
    has_new_member: bool = False  # since this round began


@dataclass(frozen=True, slots=True)
class Group:
    group_id: str
    state: GroupState
    state_ms: int  # since when; 0 while it has never had a member
    generation: int = 0
    protocol_type: str | None = None  # None: never had a member (offsets only)
    protocol: str | None = None  # None: no generation with members was begun
    leader_id: str | None = None  # None exactly without members
    members: Mapping[str, Member] = field(default_factory=dict)
    instance_ids: Mapping[str, str] = field(default_factory=dict)  # instance id of a static member -> member id
    # Ids that were sent with MEMBER_ID_REQUIRED, each with True; there may be thousands, that come one by one.
    pending_members: PersistentMap[str, bool] = field(default_factory=PersistentMap)
    supporters: Mapping[str, int] = field(default_factory=dict)  # protocol -> the number of members that support it
    joining_count: int = 0  # members that await a join
    unsynced_count: int = 0  # members that have to sync
    data_bytes: int = 0  # the size of all members
    initial_delay: InitialDelay | None = None  # only while PreparingRebalance after Empty
    offsets: PersistentMap[TopicPartition, records.OffsetCommitted] = field(default_factory=PersistentMap)
    pending_offsets: PersistentMap[rq.TransactionKey, records.TxnOffsetsPending] = field(default_factory=PersistentMap)
    # The number of pending transactions that may still commit an offset of the partition.
    unstable: PersistentMap[TopicPartition, int] = field(default_factory=PersistentMap)
    pending_offset_count: int = 0  # offsets in all of `pending_offsets`

    @property
    def has_all_joined(self) -> bool:
        return self.joining_count == len(self.members) and not self.pending_members

    @property
    def rebalance_timeout_ms(self) -> int:
        """The largest of the members'."""
        return max((member.rebalance_timeout_ms for member in self.members.values()), default=0)

    @property
    def is_nothing(self) -> bool:
        """Neither the log nor any client knows of it."""
        return (
            self.state is GroupState.EMPTY
            and self.protocol_type is None
            and not self.offsets
            and not self.pending_offsets
            and not self.pending_members
        )

    def at_state(self, state: GroupState, *, now_ms: int) -> Group:
        assert self.state in TRANSITIONS[state], f"group {self.group_id}: {state.value} after {self.state.value}"
        return replace(self, state=state, state_ms=now_ms)

    def put_members(self, members: Iterable[Member]) -> Group:
        """This group with `members`, new ones or others in the place of those with their ids. The first leads."""
        changed = list(members)
        if not changed:
            return self
        joining, unsynced, data_bytes = self.joining_count, self.unsynced_count, self.data_bytes
        supporters, instance_ids = self.supporters, self.instance_ids
        for member in changed:
            before = self.members.get(member.member_id)
            joining += member.awaiting_join is not None
            unsynced += member.has_to_sync
            if before is not None:
                joining -= before.awaiting_join is not None
                unsynced -= before.has_to_sync
            if before is None or before.assignment is not member.assignment or before.protocols is not member.protocols:
                data_bytes += member.data_bytes - (0 if before is None else before.data_bytes)
            if before is None or before.protocols is not member.protocols:
                supporters = _count_protocols(supporters, () if before is None else (before,), (member,))
            if before is None and member.group_instance_id is not None:
                assert member.group_instance_id not in instance_ids, f"two members of {member.group_instance_id}"
                instance_ids = {**instance_ids, member.group_instance_id: member.member_id}
        return replace(
            self,
            members={**self.members, **{member.member_id: member for member in changed}},
            instance_ids=instance_ids,
            supporters=supporters,
            joining_count=joining,
            unsynced_count=unsynced,
            data_bytes=data_bytes,
            leader_id=self.leader_id if self.leader_id is not None else changed[0].member_id,
        )

    def remove_members(self, member_ids: Collection[str]) -> Group:
        """This group without members that it has. If one of them led, the one that came first leads."""
        gone = {member_id: self.members[member_id] for member_id in member_ids}
        members = {member_id: member for member_id, member in self.members.items() if member_id not in gone}
        return replace(
            self,
            members=members,
            instance_ids={name: id_ for name, id_ in self.instance_ids.items() if id_ not in gone},
            supporters=_count_protocols(self.supporters, gone.values(), ()),
            joining_count=self.joining_count - sum(member.awaiting_join is not None for member in gone.values()),
            unsynced_count=self.unsynced_count - sum(member.has_to_sync for member in gone.values()),
            data_bytes=self.data_bytes - sum(member.data_bytes for member in gone.values()),
            leader_id=next(iter(members), None) if self.leader_id in gone else self.leader_id,
        )

    def replace_static(self, member_id: str, by: Member) -> Group:
        """This group with another member of the same instance id; if the old one led, the new one leads."""
        changed = self.remove_members([member_id]).put_members([by])
        return replace(changed, leader_id=by.member_id) if self.leader_id == member_id else changed

    def change_pending_members(self, changes: Mapping[str, bool | None]) -> Group:
        """This group with member ids that were given (True), and without those that came back or expired (None)."""
        return replace(self, pending_members=self.pending_members.changed(changes))

    def put_pending_offsets(self, changes: Mapping[rq.TransactionKey, records.TxnOffsetsPending | None]) -> Group:
        """Return this group with the transactions' pending offsets changed; None: the transaction has none any
        longer."""
        counts: dict[TopicPartition, int] = {}
        for transaction, pending in changes.items():
            for one, sign in ((self.pending_offsets.get(transaction), -1), (pending, 1)):
                for offset in () if one is None else one.offsets:
                    counts[offset.partition] = counts.get(offset.partition, 0) + sign
        unstable = {of: self.unstable.get(of, 0) + count or None for of, count in counts.items() if count}
        return replace(
            self,
            pending_offsets=self.pending_offsets.changed(changes),
            unstable=self.unstable.changed(unstable),
            pending_offset_count=self.pending_offset_count + sum(counts.values()),
        )

    def has_common_protocol(self, protocols: Iterable[rq.GroupProtocol]) -> bool:
        return any(self.supporters.get(offered.name, 0) == len(self.members) for offered in protocols)

    def selected_protocol(self) -> str:
        """The one that all members support and most prefer. There is a member."""
        votes: dict[str, int] = {}
        for member in self.members.values():
            wanted = next(offer.name for offer in member.protocols if self.supporters[offer.name] == len(self.members))
            votes[wanted] = votes.get(wanted, 0) + 1
        return max(votes, key=votes.__getitem__)

    def subscribed_topics(self) -> frozenset[str]:
        """Those of the protocol in use; before there is one, of every protocol that a member offers."""
        is_chosen = self.state in (GroupState.COMPLETING_REBALANCE, GroupState.STABLE)
        return frozenset(
            topic
            for member in self.members.values()
            for offer in member.protocols
            if not is_chosen or offer.name == self.protocol
            for topic in offer.topics
        )

    @property
    def is_of_consumers(self) -> bool:
        return self.protocol_type == CONSUMER_PROTOCOL_TYPE

    def check(self) -> None:
        """Assert every invariant; walks over all members, so it is for tests."""
        members = self.members.values()
        assert self.joining_count == sum(member.awaiting_join is not None for member in members)
        assert self.unsynced_count == sum(member.has_to_sync for member in members)
        assert self.data_bytes == sum(member.data_bytes for member in members)
        names = [offer.name for member in members for offer in member.protocols]
        assert {name: count for name, count in self.supporters.items() if count} == {
            name: names.count(name) for name in names
        }
        static = {member.group_instance_id: member.member_id for member in members if member.group_instance_id}
        assert self.instance_ids == static
        assert all(member_id == member.member_id for member_id, member in self.members.items())
        assert not self.pending_members.keys() & self.members.keys()
        assert (self.leader_id is None) == (not self.members)
        assert self.leader_id is None or self.leader_id in self.members
        assert not self.members or self.has_common_protocol(next(iter(members)).protocols)
        assert self.initial_delay is None or self.state is GroupState.PREPARING_REBALANCE
        pending = [offset.partition for one in self.pending_offsets.values() for offset in one.offsets]
        assert self.pending_offset_count == len(pending)
        assert dict(self.unstable) == {partition: pending.count(partition) for partition in pending}
        assert all(transaction == one.transaction for transaction, one in self.pending_offsets.items())
        self._check_state()

    def _check_state(self) -> None:
        members = self.members.values()
        match self.state:
            case GroupState.EMPTY:
                assert not self.members
                assert self.protocol is None
            case GroupState.PREPARING_REBALANCE:
                assert all(not member.has_to_sync for member in members)
            case GroupState.COMPLETING_REBALANCE | GroupState.STABLE:
                assert self.members
                assert self.protocol is not None
                assert self.supporters[self.protocol] == len(self.members)
                assert all(not member.is_new for member in members)
            case GroupState.DEAD:
                raise AssertionError("a dead group is not kept")
        awaiting_join = any(member.awaiting_join is not None for member in members)
        awaiting_sync = any(member.awaiting_sync is not None for member in members)
        assert not awaiting_join or self.state is GroupState.PREPARING_REBALANCE
        assert not awaiting_sync or self.state is GroupState.COMPLETING_REBALANCE


def new_group(group_id: str) -> Group:
    return Group(group_id, GroupState.EMPTY, 0)


def _count_protocols(
    supporters: Mapping[str, int], before: Iterable[Member], after: Iterable[Member]
) -> Mapping[str, int]:
    counted = {**supporters}
    for member in before:
        for offer in member.protocols:
            counted[offer.name] -= 1
    for member in after:
        for offer in member.protocols:
            counted[offer.name] = counted.get(offer.name, 0) + 1
    return {name: count for name, count in counted.items() if count}


# Changes that no log has (records.py has the others): member ids that were given, and the rebalance under way with its
# waiting calls. They are lost with the coordinator, and the clients begin again.


@dataclass(frozen=True, slots=True)
class MemberIdGiven:
    """A member id that was sent with MEMBER_ID_REQUIRED; a join with it is expected."""

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
    """A rebalance begins: no sync waits any longer, and an assignment that the generation did not get is void."""

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
GroupRecord = records.LoggedRecord | MemoryRecord


def apply(group: Group | None, changes: Iterable[GroupRecord]) -> Group | None:
    """Return the group after `changes`, in their order; None: neither the log nor a client knows of it. Costs what the
    changes cost, and a little for each call: many offsets are one change."""
    offsets: dict[TopicPartition, records.OffsetCommitted | None] = {}  # None: deleted
    pending: dict[rq.TransactionKey, records.TxnOffsetsPending | None] = {}  # None: ended
    for record in changes:
        if group is None:
            group = new_group(record.group_id)
        if isinstance(record, records.OffsetCommitted):
            offsets[record.partition] = record
        elif isinstance(record, records.OffsetTombstone):
            offsets[record.partition] = None
        elif isinstance(record, records.TxnOffsetsPending):
            pending[record.transaction] = record
        elif isinstance(record, records.TxnOffsetsEnded):
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


def _apply_to_membership(group: Group, record: records.GroupStored | records.GroupTombstone | MemoryRecord) -> Group:
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
        case records.GroupStored():
            return _as_stored(group, record)
        case records.GroupTombstone():
            return _with_offsets_of(group, new_group(group.group_id))
        case MemberIdGiven(_, member_id):
            return group.change_pending_members({member_id: True})
        case MemberIdsForgotten(_, member_ids):
            return group.change_pending_members(dict.fromkeys(member_ids))
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
        group.put_members([member]).change_pending_members({member.member_id: None}),
        protocol_type=group.protocol_type if group.members else record.protocol_type,
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


def _as_stored(group: Group, record: records.GroupStored) -> Group:
    """Return the group as stored. Beside the record's fields, memory keeps the member ids given, the members' protocols
    other than the one in use, and which members have yet to sync."""
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


def _member(stored: records.StoredMember, protocol: str, known: Member | None) -> Member:
    offer = rq.GroupProtocol(protocol, stored.subscription, stored.topics)
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
    group: Group, state: GroupState, *, at_ms: int, assignments: Mapping[str, rq.Assignment] | None = None
) -> records.GroupStored:
    """The record of the group as it gets `state`, Stable or Empty. `assignments`: new ones, of all members; one that is
    left out gets nothing."""
    assert group.state is state or group.state in TRANSITIONS[state], f"{group.group_id} is {group.state.value}"
    assert group.protocol_type is not None
    protocol = group.protocol
    return records.GroupStored(
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


def _stored_member(member: Member, protocol: str, assignment: rq.Assignment) -> records.StoredMember:
    said = member.metadata(protocol)
    return records.StoredMember(
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


@dataclass(frozen=True, slots=True)
class GroupRules:
    """The configs of the broker that the rules use. Each field is named after its key."""

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
    # A new member cannot send heartbeats before its first join is answered; its join may wait this long (a constant of
    # Kafka's).
    new_member_join_timeout_ms: int = 5 * MINUTE_MS


@dataclass(frozen=True, slots=True)
class Notice:
    """A message to a member ahead of its next heartbeat: REBALANCE_IN_PROGRESS, UNKNOWN_MEMBER_ID or
    FENCED_INSTANCE_ID."""

    group_id: str
    member_id: str
    refused: Refused


class GroupStep:
    """A decision so far. `group` is what `apply` makes of the changes so far, and cannot be set.

    Guards two promises: a request is answered at most once, and for each timer and each member only the last
    instruction counts. A member that is answered in a step gets no notice with the same content: it would act on it
    twice.
    """

    def __init__(self, group: Group | None, group_id: str, *, rules: GroupRules, now_ms: int) -> None:
        self._group = group or new_group(group_id)
        self.rules = rules
        self.now_ms = now_ms
        self.changes: list[GroupRecord] = []
        self.records: list[records.LoggedRecord] = []  # the part of `changes` that goes into the log
        self._replies: dict[int, Reply[rq.GroupAnswer]] = {}
        self._timers: dict[rq.GroupTimer, SetTimer[rq.GroupCommand] | CancelTimer[rq.GroupCommand]] = {}
        self._notices: dict[str, Notice] = {}

    @property
    def group(self) -> Group:
        """The group; a new one if it does not exist."""
        return self._group

    @property
    def state(self) -> Group | None:
        return None if self._group.is_nothing else self._group

    @property
    def may_log_later(self) -> bool:
        """Always False: only the log knows what a group was answered."""
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

    def record(self, *changes: GroupRecord) -> None:
        self.changes += changes
        self.records += [change for change in changes if isinstance(change, records.LOGGED)]
        self._group = apply(self._group, changes) or new_group(self._group.group_id)

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
