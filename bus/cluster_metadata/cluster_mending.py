"""Metadata that contradict themselves, made whole with the least loss.

Replays like `replay_cluster`, but a record that cannot be read or applied costs itself alone: what it says is
reconciled with what is known, where that can be done, and every such record is named with what became of it. What the
storage has (`FoundTopic`) decides where records cannot: whose tables lie under a topic's name, how many partitions they
are, which epochs and producer ids were used. Guards two promises, whatever is lost: no producer id and no epoch that
may have been used is given again, and no identity of a producer that is in doubt may write.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bus.cluster_metadata.cluster_draft import ClusterDraft, ClusterRecord
from bus.cluster_metadata.cluster_records import (
    BrokerRegistered,
    FeatureLevel,
    LeaderChanged,
    PartitionsAdded,
    ProducerIdsAllocated,
    TopicCreated,
    TopicDeleted,
    decode_record,
)
from bus.cluster_metadata.cluster_state import BUS_VERSION, EMPTY_CLUSTER, ClusterState
from bus.cluster_metadata.producer_ids import PRODUCER_ID_BLOCK_SIZE
from bus.errors import count_of

_UNKNOWN_HOST = "unknown"


@dataclass(frozen=True, slots=True)
class FoundTopic:
    """Tables that lie under a topic's name, as far as they are of one topic id."""

    topic_id: str
    record_counts: Mapping[int, int]  # partition -> its high watermark
    leader_epochs: Mapping[int, int]  # partition -> the last epoch that wrote, -1: none did


@dataclass(frozen=True, slots=True)
class FoundTable:
    """One table that lies under a topic's name, as its log says."""

    partition: int
    topic_id: str | None
    record_count: int
    leader_epoch: int
    producer_id_max: int  # the largest id that wrote, -1: none did


def find_topics(tables: Mapping[str, Iterable[FoundTable]]) -> tuple[Mapping[str, FoundTopic], int]:
    """Return the topics by name, and the largest producer id that wrote anywhere. If several topic ids are found under
    one name, the one with the most records counts, and among equals the one with the most tables."""
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
    """A record that contradicts the state. `offset` is the record's; -1: the fault belongs to no record. `remedy`: the
    treatment of the record."""

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
        mending.read(offset, row)
    return mending.finish(producer_id_max)


class _Mending:
    def __init__(self, found: Mapping[str, FoundTopic]) -> None:
        self._found = found
        self.draft = ClusterDraft(EMPTY_CLUSTER)
        self.gone_ids: set[str] = set()  # ids of deleted topics
        self._contradictions: list[Contradiction] = []
        self._unreadable_count = 0
        self._id_max = -1  # the largest producer id that is spoken of

    def read(self, offset: int, row: Mapping[str, Any]) -> None:
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
            self.gone_ids.add(record.topic_id)
        try:
            self.draft.apply(record)
        except AssertionError as error:
            self._note(offset, f"{record}: {error}", self._reconcile(record))

    def finish(self, producer_id_max: int) -> Mended:
        """Return the mended state. Tables that exist in the storage and not in the records count only if the records
        are in doubt."""
        if self.draft.accept_snapshot():
            self._note(-1, "expected the end of a snapshot, found the end of the log", "taken as it is")
        if self._contradictions:
            for name, topic in self._found.items():
                self._follow_tables(name, topic)
            self._raise_producer_ids(producer_id_max)
        return Mended(self.draft.finish(), self._contradictions)

    def _note(self, offset: int, message: str, remedy: str) -> None:
        self._contradictions.append(Contradiction(offset, message, remedy))

    def _reconcile(self, record: ClusterRecord) -> str:
        level = record.since_level
        if self.draft.level < level:
            self.draft.apply(FeatureLevel(BUS_VERSION, level))
            if self.take(record):
                return f"taken, and the level of {BUS_VERSION} is {level}"
        return record.mend(self)

    # ------------------------------------------------------------------ what records use to be reconciled

    def take(self, *records: ClusterRecord) -> bool:
        try:
            for record in records:
                self.draft.apply(record)
        except AssertionError:
            return False
        return True

    def take_with_leader(self, leader_id: int, record: ClusterRecord) -> str:
        if self.register(leader_id) and self.take(record):
            return f"broker {leader_id} is registered, at an unknown address"
        return "given up: what was known before stays"

    def register(self, broker_id: int) -> bool:
        if broker_id in self.draft.brokers.now:
            return False
        self.draft.apply(BrokerRegistered(broker_id, _UNKNOWN_HOST, 0))
        return True

    def allocate_to(self, producer_id: int) -> None:
        if producer_id >= self.draft.producers.next_producer_id:
            blocks = producer_id // PRODUCER_ID_BLOCK_SIZE + 1
            next_id = min(blocks * PRODUCER_ID_BLOCK_SIZE, 2**63 - 1)
            self.take(ProducerIdsAllocated(next(iter(self.draft.brokers.now), 0), next_id))

    def record_counts(self, topic: str, topic_id: str) -> Mapping[int, int] | None:
        found = self._found.get(topic)
        return found.record_counts if found is not None and found.topic_id == topic_id else None

    # ------------------------------------------------------------------ what the tables say

    def _follow_tables(self, name: str, found: FoundTopic) -> None:
        """A topic, its partitions and their epochs are at least what its tables have."""
        topic = self.draft.topics.now.get(name)
        if topic is None:
            if found.topic_id in self.gone_ids or not any(found.record_counts.values()):
                return
            if not self.draft.brokers.now:
                self.register(0)
            leader_id = next(iter(self.draft.brokers.now))
            count = max(found.record_counts) + 1
            is_back = self.take(TopicCreated(name, found.topic_id, count, leader_id))
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
        leaders = list(self.draft.leaders(name))
        last = max((number for number, count in found.record_counts.items() if count), default=-1)
        if last >= len(leaders):
            added = PartitionsAdded(name, found.topic_id, last + 1, leaders[0].leader_id)
            if self.take(added):
                self._note(
                    -1,
                    f"topic {name} has {count_of(len(leaders), 'partition')}, its tables {last + 1}",
                    "they are added",
                )
                leaders = list(self.draft.leaders(name))
        for number, epoch in found.leader_epochs.items():
            if number < len(leaders) and epoch > leaders[number].leader_epoch:
                self.take(LeaderChanged(name, found.topic_id, number, leaders[number].leader_id, epoch))

    def _raise_producer_ids(self, producer_id_max: int) -> None:
        """Raise the next producer id above all that may have been given: records that cannot be read may have allocated
        blocks."""
        known = max(producer_id_max, self._id_max, self.draft.producers.next_producer_id - 1)
        if known >= 0 or self._unreadable_count:
            self.allocate_to(known + self._unreadable_count * PRODUCER_ID_BLOCK_SIZE)
