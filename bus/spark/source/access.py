"""How a query reaches the log: what it asks, with any kind of answerer.

The driver asks a `LogAccess`; what a task reads is an `InputRange`, a plain value that travels to it. Two ways lead to
the log: the storage alone (`StorageAccess`), which works with every broker down, and a broker (broker_access.py).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import pyarrow.compute as pc

from bus.cluster_metadata.cluster_state import Topic
from bus.errors import BusError, ErrorCode
from bus.model import TopicPartition
from bus.records.log_schema import INTERNAL_VALUE_TYPES
from bus.spark.source.planning import OffsetRange
from bus.spark.source.source_options import Location
from bus.storage_delta.files.data_reader import ReadCache
from bus.storage_delta.partition_reader import FollowingReader, TableView
from bus.storage_delta.root import open_reader
from bus.tables.topics import TopicTables


@dataclass(frozen=True, slots=True)
class TopicFacts:
    topic_id: str
    partition_count: int
    is_internal: bool


@dataclass(frozen=True, slots=True)
class Bounds:
    """The offsets that can be read: from `begin` up to, but without, `end`."""

    begin: int
    end: int


@dataclass(frozen=True, slots=True)
class FileRange:
    """The records of a data file with offsets from `begin` up to `end`."""

    path: str  # absolute
    begin: int
    end: int
    is_ordered: bool
    is_dense: bool  # every offset of the range is there; else compaction may have taken some
    sums: str = ""  # the checksums of its entry, if it has any


@dataclass(frozen=True, slots=True)
class InputRange:
    """The offsets of one partition that a task reads. `files`, in offset order, had the records when this was planned;
    None: they are fetched from a broker."""

    offsets: OffsetRange
    files: tuple[FileRange, ...] | None
    topic_id: str | None  # of the topic whose records they are; None: of whichever has that name


@dataclass(frozen=True, slots=True)
class ReadRules:
    """How a task reads."""

    location: Location
    fails_on_loss: bool  # else it goes on without the records that are gone
    patience_ms: int  # how long nothing may come from a broker


class LogAccess(Protocol):
    """One thread at a time. Raises `BusError`, `StorageFault` or `RootNotUsable`."""

    @property
    def location(self) -> Location:
        """The place that tasks read from."""
        ...

    def topics(self) -> Mapping[str, TopicFacts]:
        """All topics, as of now."""
        ...

    def bounds(self, partitions: Collection[TopicPartition]) -> Mapping[TopicPartition, Bounds]:
        """Log start and high watermark, as of now. Raises UNKNOWN_TOPIC_OR_PARTITION."""
        ...

    def offsets_at_times(self, times_ms: Mapping[TopicPartition, int]) -> Mapping[TopicPartition, int | None]:
        """The first offset at or after that time; None if there is no such record."""
        ...

    def offsets_at_versions(self, versions: Mapping[TopicPartition, int]) -> Mapping[TopicPartition, int | None]:
        """The high watermark that the version left; None if it is not there, or not there any more."""
        ...

    def committed(self, group_id: str) -> Mapping[TopicPartition, int]:
        """The offsets that the group has committed for the topics of now; empty if there is no such group."""
        ...

    def plan(self, ranges: Collection[OffsetRange]) -> list[InputRange]:
        """Find the files with the records of these ranges, in the same order."""
        ...

    def tell_progress(self, group_id: str, offsets: Mapping[TopicPartition, int]) -> None:
        """Commits them for a group without members; silent where no broker can be told. Raises `BusError`."""
        ...

    def close(self) -> None: ...


class StorageAccess:
    """Reads the log by its storage alone: no broker is asked, and none has to be there. Implements `LogAccess`.

    Guards one promise: what is planned is there. Offsets come from committed versions, and a data file stays as long as
    a version that has it is kept; if it is gone all the same when a task opens it, inputs.py looks the offsets up
    again.
    """

    def __init__(self, root: str) -> None:
        """Raises `RootNotUsable`."""
        self._tables = TopicTables(root)
        self._root = open_reader(str(self._tables.root))
        self._cache = ReadCache()
        self._readers: dict[TopicPartition, tuple[str, FollowingReader]] = {}  # and the topic id they were opened with

    @property
    def location(self) -> Location:
        return Location(root=str(self._tables.root))

    @property
    def cluster_id(self) -> str:
        return self._root.cluster_id

    def topics(self) -> Mapping[str, TopicFacts]:
        topics = self._tables.cluster().topics
        return {
            name: TopicFacts(topic.topic_id, len(topic.partitions), name in INTERNAL_VALUE_TYPES)
            for name, topic in topics.items()
        }

    def bounds(self, partitions: Collection[TopicPartition]) -> Mapping[TopicPartition, Bounds]:
        states = {partition: found.reader.state for partition, found in self._current(partitions).items()}
        return {partition: Bounds(state.log_start, state.high_watermark) for partition, state in states.items()}

    def offsets_at_times(self, times_ms: Mapping[TopicPartition, int]) -> Mapping[TopicPartition, int | None]:
        readers = self._current(times_ms)
        found = {partition: readers[partition].reader.find_timestamp(at) for partition, at in times_ms.items()}
        return {partition: None if offset is None else offset.offset for partition, offset in found.items()}

    def offsets_at_versions(self, versions: Mapping[TopicPartition, int]) -> Mapping[TopicPartition, int | None]:
        readers = self._current(versions)
        return {
            partition: readers[partition].reader.high_watermark_at(version) for partition, version in versions.items()
        }

    def committed(self, group_id: str) -> Mapping[TopicPartition, int]:
        from bus.tables.coordinator_views import group_offsets

        table = group_offsets(self._tables)
        table = table.filter(pc.and_not(pc.equal(table.column("group_id"), group_id), table.column("is_stale")))
        columns = (table.column(name).to_pylist() for name in ("topic", "partition", "committed_offset"))
        return {TopicPartition(topic, number): offset for topic, number, offset in zip(*columns, strict=True)}

    def plan(self, ranges: Collection[OffsetRange]) -> list[InputRange]:
        readers = self._current([wanted.partition for wanted in ranges])
        return [self._planned(wanted, readers[wanted.partition]) for wanted in ranges]

    def tell_progress(self, group_id: str, offsets: Mapping[TopicPartition, int]) -> None:
        """Only a broker writes."""

    def close(self) -> None:
        self._readers.clear()

    def _planned(self, wanted: OffsetRange, reader: FollowingReader) -> InputRange:
        files = files_of(reader.reader.view, self._tables.path(wanted.partition), wanted)
        topic_id, _ = self._readers[wanted.partition]
        return InputRange(wanted, files, topic_id)

    def _current(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, FollowingReader]:
        """Readers of the topics of now, at their last version."""
        topics = self._tables.cluster().topics
        readers = {partition: self._reader(partition, topics.get(partition.topic)) for partition in partitions}
        for reader in readers.values():
            reader.refresh()
        return readers

    def _reader(self, partition: TopicPartition, topic: Topic | None) -> FollowingReader:
        if topic is None or partition.partition >= len(topic.partitions):
            self._tables.partitions(partition.topic)  # says which topics there are, if it is none of them
            raise BusError(
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                f"expected a partition of {partition.topic} below {len(topic.partitions) if topic else 0}, "
                f"found {partition.partition}",
            )
        known = self._readers.get(partition)
        if known is None or known[0] != topic.topic_id:
            known = topic.topic_id, self._open(partition, topic.topic_id)
            self._readers[partition] = known
        return known[1]

    def _open(self, partition: TopicPartition, topic_id: str) -> FollowingReader:
        return self._root.follow_partition(partition, topic_id=topic_id)


def files_of(view: TableView, folder: Path, wanted: OffsetRange) -> tuple[FileRange, ...]:
    """The live files that have offsets of the range, in offset order."""
    ranges = []
    for file in view.files_from(wanted.begin):
        if file.base_offset >= wanted.end:
            break
        ranges.append(
            FileRange(
                path=str(folder / file.path),
                begin=max(file.base_offset, wanted.begin),
                end=min(file.next_offset, wanted.end),
                is_ordered=file.is_ordered,
                is_dense=file.is_dense,
                sums=file.sums,
            )
        )
    return tuple(ranges)
