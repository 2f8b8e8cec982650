"""Metadata that contradict themselves, made whole with the least loss.

Replays like `replay_cluster`, but a record that cannot be read or applied costs itself alone: what it says is
reconciled with what is known, where that can be done, and every such record is named with what became of it. What the
storage has (`FoundTopic`) decides where records cannot: whose tables lie under a topic's name, how many partitions they
are, which epochs and producer ids were used. Guards two promises, whatever is lost: no producer id and no epoch that
may have been used is given again, and no identity of a producer that is in doubt may write.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from bus.cluster_metadata.cluster_draft import EMPTY_CLUSTER, ClusterDraft, ClusterState
from bus.cluster_metadata.cluster_records import (
    BUS_VERSION,
    BrokerRegistered,
    BrokerStarted,
    ClusterRecord,
    FeatureLevel,
    LeaderChanged,
    LeaderEpochsRaised,
    LeadersChanged,
    PartitionsAdded,
    ProducerExpired,
    ProducerIdsAllocated,
    ProducerIdsRetired,
    ProducerNamed,
    SnapshotEnded,
    TopicCreated,
    TopicDeleted,
    decode_record,
    level_of,
)
from bus.cluster_metadata.configs import collision_key
from bus.cluster_metadata.producer_ids import NO_PRODUCER_EPOCH, PRODUCER_EPOCH_MAX, PRODUCER_ID_BLOCK_SIZE
from bus.errors import count_of

_UNKNOWN_HOST = "unknown"


@dataclass(frozen=True, slots=True)
class FoundTopic:
    """Tables that lie under a topic's name, as far as they are of one topic id."""

    topic_id: str
    record_counts: Mapping[int, int]  # by partition: its high watermark
    leader_epochs: Mapping[int, int]  # by partition: the last one that wrote, -1: none did


@dataclass(frozen=True, slots=True)
class FoundTable:
    """One table that lies under a topic's name, as its log says."""

    partition: int
    topic_id: str | None
    record_count: int
    leader_epoch: int
    producer_id_max: int  # of those that wrote, -1: none did


def find_topics(tables: Mapping[str, Iterable[FoundTable]]) -> tuple[Mapping[str, FoundTopic], int]:
    """By topic, and the largest producer id that wrote anywhere. Of several topic ids under one name, the one that has
    the most records, and of these the one with most tables."""
    found: dict[str, FoundTopic] = {}
    producer_id_max = -1
    for name, of_name in tables.items():
        by_id: dict[str, list[FoundTable]] = {}
        for table in of_name:
            producer_id_max = max(producer_id_max, table.producer_id_max)
            if table.topic_id is not None:
                by_id.setdefault(table.topic_id, []).append(table)
        if by_id:
            topic_id, mine = max(by_id.items(), key=lambda one: _size_of(one[1]))
            counts = {table.partition: table.record_count for table in mine}
            found[name] = FoundTopic(topic_id, counts, {table.partition: table.leader_epoch for table in mine})
    return found, producer_id_max


def _size_of(tables: Sequence[FoundTable]) -> tuple[int, int]:
    return sum(table.record_count for table in tables), len(tables)


@dataclass(frozen=True, slots=True)
class Contradiction:
    """`offset` is that of the record; -1: what is wrong is no record's. `remedy`: what becomes of it."""

    offset: int
    message: str
    remedy: str


@dataclass(frozen=True, slots=True)
class Mended:
    state: ClusterState
    contradictions: Sequence[Contradiction]  # empty: the log replays as it is


def mend_cluster(
    rows: Iterable[tuple[int, Mapping[str, Any]]],
    found: Mapping[str, FoundTopic] | None = None,
    *,
    producer_id_max: int = -1,
) -> Mended:
    """`rows` with their offsets. `found`: the tables by topic name; `producer_id_max`: the largest id that any has."""
    mending = _Mending(found or {})
    for offset, row in rows:
        mending.take(offset, row)
    return mending.finish(producer_id_max)


class _Mending:
    def __init__(self, found: Mapping[str, FoundTopic]) -> None:
        self._found = found
        self._draft = ClusterDraft(EMPTY_CLUSTER)
        self._gone_ids: set[str] = set()  # of topics that were deleted
        self._contradictions: list[Contradiction] = []
        self._unreadable_count = 0
        self._id_max = -1  # the largest producer id that is spoken of

    def take(self, offset: int, row: Mapping[str, Any]) -> None:
        for column, past in (("producer_id", 0), ("next_producer_id", 1)):
            if isinstance(number := row.get(column), int):
                self._id_max = max(self._id_max, number - past)
        try:
            record = decode_record(row)
        except ValueError as error:
            self._unreadable_count += 1
            self._note(offset, str(error), "given up")
            return
        if isinstance(record, TopicDeleted):
            self._gone_ids.add(record.topic_id)
        try:
            self._draft.apply(record)
        except AssertionError as error:
            self._note(offset, f"{record}: {error}", self._reconcile(record))

    def finish(self, producer_id_max: int) -> Mended:
        """What lies in the storage and is not in the records counts only if records are in doubt."""
        if self._draft.is_in_snapshot:
            self._draft.end_snapshot()
            self._note(-1, "expected the end of a snapshot, found the end of the log", "taken as it is")
        if self._contradictions:
            for name, topic in self._found.items():
                self._follow_tables(name, topic)
            self._raise_producer_ids(producer_id_max)
        return Mended(self._draft.finish(), self._contradictions)

    def _note(self, offset: int, message: str, remedy: str) -> None:
        self._contradictions.append(Contradiction(offset, message, remedy))

    def _try(self, *records: ClusterRecord) -> bool:
        """Whether all could be applied."""
        try:
            for record in records:
                self._draft.apply(record)
        except AssertionError:
            return False
        return True

    # ------------------------------------------------------------------ records that do not fit

    def _reconcile(self, record: ClusterRecord) -> str:
        level = level_of(record)
        if self._draft.level < level:
            self._draft.apply(FeatureLevel(BUS_VERSION, level))
            if self._try(record):
                return f"taken, and the level of {BUS_VERSION} is {level}"
        match record:
            case BrokerStarted():
                epoch = self._draft.broker_epoch_max + 1
                if self._try(replace(record, broker_epoch=epoch)):
                    return f"broker {record.broker_id} is registered, with broker epoch {epoch}"
                return "given up: what was known before stays"
            case TopicCreated():
                return self._reconcile_topic(record)
            case PartitionsAdded(leader_id=leader_id) | LeaderEpochsRaised(broker_id=leader_id):
                return self._with_leader(leader_id, record)
            case (
                LeaderChanged(topic, topic_id, partition, leader_id)
                | LeadersChanged(topic=topic, topic_id=topic_id, partition=partition, leader_id=leader_id)
            ):
                count = partition + (record.partitions if isinstance(record, LeadersChanged) else 1)
                found = self._found.get(topic)
                if found is not None and found.topic_id == topic_id and count <= len(found.record_counts):
                    self._register(leader_id)
                    if self._try(PartitionsAdded(topic, topic_id, count, leader_id), record):
                        return f"the topic has {count_of(count, 'partition')}, as its tables say"
                return self._with_leader(leader_id, record)
            case ProducerNamed():
                return self._reconcile_name(record)
            case ProducerExpired(_, producer_id):
                self._allocate_to(producer_id)
                self._try(ProducerIdsRetired(producer_id, producer_id + 1))
                return f"given up; id {producer_id} may not write any more"
            case SnapshotEnded():
                self._draft.end_snapshot()
                return "the snapshot is taken as it is"
            case _:
                return "given up: what was known before stays"

    def _with_leader(self, leader_id: int, record: ClusterRecord) -> str:
        if self._register(leader_id) and self._try(record):
            return f"broker {leader_id} is registered, at an unknown address"
        return "given up: what was known before stays"

    def _register(self, broker_id: int) -> bool:
        """The next start takes over what it leads. False: it is registered."""
        if broker_id in self._draft.brokers:
            return False
        self._draft.apply(BrokerRegistered(broker_id, _UNKNOWN_HOST, 0))
        return True

    # ------------------------------------------------------------------ topics

    def _reconcile_topic(self, record: TopicCreated) -> str:
        name, found = record.topic, self._found.get(record.topic)
        self._register(record.leader_id)
        if self._try(record):
            return f"broker {record.leader_id} is registered, at an unknown address"
        before = self._draft.topics.get(name)
        if before is not None and before.topic_id == record.topic_id:
            return "given up: it says the same again"
        owns_tables = found is not None and found.topic_id == record.topic_id
        holder = self._draft.topics.get(self._draft.collisions.get(collision_key(name), ""))
        if holder is not None:
            is_empty = not self._has_records(holder.name, holder.topic_id)
            if owns_tables and is_empty and self._try(TopicDeleted(holder.name, holder.topic_id), record):
                self._gone_ids.add(holder.topic_id)
                return f"the topic {holder.name} of id {holder.topic_id} is given up: it has no records"
            return f"given up: the topic {holder.name} of id {holder.topic_id} stays"
        return "given up"

    def _has_records(self, name: str, topic_id: str) -> bool:
        found = self._found.get(name)
        return found is not None and found.topic_id == topic_id and any(found.record_counts.values())

    def _follow_tables(self, name: str, found: FoundTopic) -> None:
        """A topic, its partitions and their epochs are at least what its tables have."""
        topic = self._draft.topics.get(name)
        if topic is None:
            if found.topic_id in self._gone_ids or not any(found.record_counts.values()):
                return
            if not self._draft.brokers:
                self._register(0)
            leader_id = next(iter(self._draft.brokers))
            count = max(found.record_counts) + 1
            is_back = self._try(TopicCreated(name, found.topic_id, count, leader_id))
            back = f"the topic is brought back with {count_of(count, 'partition')} and no configs of its own"
            self._note(
                -1,
                f"topics/{name} has tables with records of topic id {found.topic_id}, which no record names",
                back if is_back else "they stay in their folder",
            )
            if not is_back:
                return
        elif topic.topic_id != found.topic_id:
            return
        self._follow_partitions(name, found)

    def _follow_partitions(self, name: str, found: FoundTopic) -> None:
        leaders = self._draft.leaders(name)
        last = max((number for number, count in found.record_counts.items() if count), default=-1)
        if last >= len(leaders):
            added = PartitionsAdded(name, found.topic_id, last + 1, leaders[0].leader_id)
            if self._try(added):
                self._note(
                    -1,
                    f"topic {name} has {count_of(len(leaders), 'partition')}, its tables {last + 1}",
                    "they are added",
                )
                leaders = self._draft.leaders(name)
        for number, epoch in found.leader_epochs.items():
            if number < len(leaders) and epoch > leaders[number].leader_epoch:
                self._try(LeaderChanged(name, found.topic_id, number, leaders[number].leader_id, epoch))

    # ------------------------------------------------------------------ producers

    def _reconcile_name(self, record: ProducerNamed) -> str:
        name, producer_id, epoch = record.producer_name, record.producer_id, record.producer_epoch
        producers = self._draft.producers
        self._allocate_to(producer_id)
        if self._try(record):
            return "taken, with the ids up to it"
        holder = producers.find_id(producer_id)
        if holder is not None and holder.name != name:
            self._draft.apply(ProducerExpired(holder.name, producer_id))
            return f"the names {holder.name} and {name} get new ids, and id {producer_id} may not write any more"
        before = producers.find(name)
        if before is not None and before.producer_id != producer_id:
            self._draft.apply(ProducerExpired(name, before.producer_id))
            if self._try(ProducerNamed(name, producer_id, epoch, NO_PRODUCER_EPOCH)):
                return f"the name has id {producer_id}, and id {before.producer_id} may not write any more"
            return f"the name gets a new id, and {before.producer_id} and {producer_id} may not write any more"
        if before is None:
            return "given up: the id may not write any more"
        # Two instances may have been given one epoch: neither may go on with it.
        next_epoch = max(epoch, before.producer_epoch) + 1
        if next_epoch > PRODUCER_EPOCH_MAX:
            self._draft.apply(ProducerExpired(name, producer_id))
            return f"the name gets a new id, and id {producer_id} may not write any more"
        self._draft.apply(ProducerNamed(name, producer_id, next_epoch, NO_PRODUCER_EPOCH))
        return f"epochs of the name below {next_epoch} are fenced"

    def _allocate_to(self, producer_id: int) -> None:
        if producer_id >= self._draft.producers.next_producer_id:
            blocks = producer_id // PRODUCER_ID_BLOCK_SIZE + 1
            next_id = min(blocks * PRODUCER_ID_BLOCK_SIZE, 2**63 - 1)
            self._try(ProducerIdsAllocated(next(iter(self._draft.brokers), 0), next_id))

    def _raise_producer_ids(self, producer_id_max: int) -> None:
        """Above all that may have been given: what cannot be read may have given blocks."""
        known = max(producer_id_max, self._id_max, self._draft.producers.next_producer_id - 1)
        if known >= 0 or self._unreadable_count:
            self._allocate_to(known + self._unreadable_count * PRODUCER_ID_BLOCK_SIZE)
