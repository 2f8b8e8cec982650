"""A group as its coordinator knows it: a value, replaced with every change.

Guards the shape: a state follows only a state that `TRANSITIONS` names, and what is counted or indexed here (who awaits
a join, who has not synced, which protocol all support, who has which instance id) agrees with the members. What
changes a group is in changes.py.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum

from bus.consumer_groups.records import OffsetCommitted, TxnOffsetsPending
from bus.consumer_groups.requests import CONSUMER_PROTOCOL_TYPE, Assignment, GroupProtocol, TransactionKey
from bus.model import TopicPartition
from bus.persistent_map import PersistentMap

NO_ASSIGNMENT = Assignment()
_MEMBER_BYTES = 1_000  # without what it said, and what it is given
_ITEM_BYTES = 60  # of a topic or a partition


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
    protocols: tuple[GroupProtocol, ...]  # in the order of preference; one of them after loading
    assignment: Assignment = NO_ASSIGNMENT
    is_new: bool = False  # has never been answered a join
    awaiting_join: int | None = None  # the request id; only while PreparingRebalance
    awaiting_sync: int | None = None  # the request id; only while CompletingRebalance
    has_to_sync: bool = False  # has not yet synced in this generation

    @property
    def data_bytes(self) -> int:
        """About what it takes in memory."""
        items = len(self.assignment.partitions) + sum(len(offer.topics) for offer in self.protocols)
        said = len(self.assignment.data) + sum(len(offer.metadata) for offer in self.protocols)
        return _MEMBER_BYTES + items * _ITEM_BYTES + said

    def metadata(self, protocol: str) -> GroupProtocol:
        """What the member said with that protocol, which it must support."""
        return next(offered for offered in self.protocols if offered.name == protocol)


@dataclass(frozen=True, slots=True)
class InitialDelay:
    """The first rebalance of an empty group waits for more members: a round now, and what is left for others."""

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
    instance_ids: Mapping[str, str] = field(default_factory=dict)  # of static members -> member id
    # Ids that were told with MEMBER_ID_REQUIRED, each with True; there may be thousands, that come one by one.
    pending_members: PersistentMap[str, bool] = field(default_factory=PersistentMap)
    supporters: Mapping[str, int] = field(default_factory=dict)  # of a protocol: how many members
    joining_count: int = 0  # members that await a join
    unsynced_count: int = 0  # members that have to sync
    data_bytes: int = 0  # of all members
    initial_delay: InitialDelay | None = None  # only while PreparingRebalance after Empty
    offsets: PersistentMap[TopicPartition, OffsetCommitted] = field(default_factory=PersistentMap)
    pending_offsets: PersistentMap[TransactionKey, TxnOffsetsPending] = field(default_factory=PersistentMap)
    # Of `pending_offsets`: how many transactions may yet commit an offset of the partition.
    unstable: PersistentMap[TopicPartition, int] = field(default_factory=PersistentMap)
    pending_offset_count: int = 0  # of all `pending_offsets`

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

    def put_pending_offsets(self, changes: Mapping[TransactionKey, TxnOffsetsPending | None]) -> Group:
        """This group with what transactions have pending now; None: nothing any more."""
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

    def has_common_protocol(self, protocols: Iterable[GroupProtocol]) -> bool:
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
