"""How a query reaches the log: what it asks, with any kind of answerer.

The driver asks a `LogAccess`; what a task reads is an `InputRange`, a plain value that travels to it. Two ways lead to
the log: the storage alone (storage_access.py), which works with every broker down, and a broker (broker_access.py).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Protocol

from bus.model import TopicPartition
from bus.spark.source.options import Location
from bus.spark.source.planning import OffsetRange


@dataclass(frozen=True, slots=True)
class TopicFacts:
    topic_id: str
    partition_count: int
    is_internal: bool


@dataclass(frozen=True, slots=True)
class Bounds:
    """What can be read: offsets from `begin` up to, but without, `end`."""

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
    """What a task reads of one partition. `files`, in offset order, is where the records were when this was planned;
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
        """For tasks."""
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
        """What the group has committed for the topics of now; empty if there is no such group."""
        ...

    def plan(self, ranges: Collection[OffsetRange]) -> list[InputRange]:
        """Where the records of these ranges are, in the same order."""
        ...

    def tell_progress(self, group_id: str, offsets: Mapping[TopicPartition, int]) -> None:
        """Commits them for a group without members; silent where no broker can be told. Raises `BusError`."""
        ...

    def close(self) -> None: ...
