"""The places where the offsets of a group are to be set, before any is: the targets of `bus groups reset-offsets` and
`Admin.create_group`.

Guards one promise: a planned offset is one that its partition has, or its end; what lies outside is brought to the
nearer end and said. Asks through `OffsetSource`, changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol

from bus.client.arguments import INT_64_MAX, check_integer
from bus.client.connection.leader_calls import AtVersion, OffsetQuestion
from bus.descriptions import CommittedOffset, ListedOffset, TopicDescription
from bus.errors import BusError, ErrorCode, show_range
from bus.model import EARLIEST_TIMESTAMP, LATEST_TIMESTAMP, TopicPartition
from bus.tables.point_in_time import Bound, bound_of


@dataclass(frozen=True, slots=True)
class ToEarliest:
    pass


@dataclass(frozen=True, slots=True)
class ToLatest:
    pass


@dataclass(frozen=True, slots=True)
class ToCurrent:
    """The committed offset; the end where there is none."""


@dataclass(frozen=True, slots=True)
class ToOffset:
    offset: int


@dataclass(frozen=True, slots=True)
class ShiftBy:
    """From what is committed; negative: back."""

    count: int


@dataclass(frozen=True, slots=True)
class ToTimestamp:
    """The first record at or after it; the end if there is none."""

    timestamp_ms: int


@dataclass(frozen=True, slots=True)
class ToVersion:
    """The high watermark that a Delta version left; partitions for which no version is given are left out."""

    version: Bound


@dataclass(frozen=True, slots=True)
class ToGroup:
    """The offsets that another group has committed; partitions that it has no offset of are left out."""

    group_id: str


@dataclass(frozen=True, slots=True)
class ToGiven:
    offsets: Mapping[TopicPartition, int]


OffsetTarget = ToEarliest | ToLatest | ToCurrent | ToOffset | ShiftBy | ToTimestamp | ToVersion | ToGroup | ToGiven


class OffsetSource(Protocol):
    """The answers that a plan needs; `Admin` gives them."""

    def list_offsets(self, wanted: Mapping[TopicPartition, OffsetQuestion]) -> dict[TopicPartition, ListedOffset]: ...

    def list_group_offsets(
        self, group_id: str, partitions: Collection[TopicPartition] | None = None
    ) -> dict[TopicPartition, CommittedOffset]: ...


@dataclass(frozen=True, slots=True)
class PlannedOffset:
    offset: int
    warning: str | None = None  # why it is not what was asked for


def plan_offsets(
    source: OffsetSource, group_id: str, partitions: Collection[TopicPartition], target: OffsetTarget
) -> dict[TopicPartition, PlannedOffset]:
    """The offset of each of `partitions`, in their order, as far as the target tells one.

    Raises `BusError`: INVALID_REQUEST if there is nothing committed to shift, OFFSET_OUT_OF_RANGE if a version is not
    there.
    """
    begins = _offsets(source.list_offsets(dict.fromkeys(partitions, EARLIEST_TIMESTAMP)))
    ends = _offsets(source.list_offsets(dict.fromkeys(partitions, LATEST_TIMESTAMP)))
    wanted = _wanted(source, group_id, partitions, target, begins, ends)
    return {
        partition: _within(partition, wanted[partition], begins[partition], ends[partition])
        for partition in partitions
        if partition in wanted
    }


def _within(partition: TopicPartition, wanted: PlannedOffset, begin: int, end: int) -> PlannedOffset:
    taken = min(max(wanted.offset, begin), end)
    if taken == wanted.offset:
        return wanted
    return PlannedOffset(taken, f"{partition}: expected an offset {show_range(begin, end)}, found {wanted.offset}")


def _wanted(
    source: OffsetSource,
    group_id: str,
    partitions: Collection[TopicPartition],
    target: OffsetTarget,
    begins: Mapping[TopicPartition, int],
    ends: Mapping[TopicPartition, int],
) -> dict[TopicPartition, PlannedOffset]:
    match target:
        case ToEarliest():
            return _planned(begins)
        case ToLatest():
            return _planned(ends)
        case ToOffset(offset):
            return _planned(dict.fromkeys(partitions, offset))
        case ToGiven(offsets):
            return _planned(offsets)
        case ToCurrent():
            committed = _committed(source, group_id, partitions)
            return {p: _planned_or_end(p, committed.get(p), ends[p], "nothing is committed") for p in partitions}
        case ShiftBy(count):
            return _shifted(_committed(source, group_id, partitions), partitions, count)
        case ToGroup(other):
            return _planned(_committed(source, other, partitions))
        case ToTimestamp(timestamp_ms):
            found = _offsets(source.list_offsets(dict.fromkeys(partitions, timestamp_ms)))
            at = {p: None if offset < 0 else offset for p, offset in found.items()}
            return {p: _planned_or_end(p, at[p], ends[p], "no record is as late as that") for p in partitions}
        case ToVersion(bound):
            return _planned(_at_versions(source, partitions, bound))


def _shifted(
    committed: Mapping[TopicPartition, int], partitions: Collection[TopicPartition], count: int
) -> dict[TopicPartition, PlannedOffset]:
    missing = [str(partition) for partition in partitions if partition not in committed]
    if missing:
        raise BusError(
            ErrorCode.INVALID_REQUEST, f"expected a committed offset to shift, found none of {', '.join(missing)}"
        )
    return _planned({partition: committed[partition] + count for partition in partitions})


def _at_versions(
    source: OffsetSource, partitions: Collection[TopicPartition], bound: Bound
) -> dict[TopicPartition, int]:
    questions = {p: AtVersion(version) for p in partitions if (version := bound_of(bound, p)) is not None}
    found = _offsets(source.list_offsets(questions))
    for partition, offset in found.items():
        if offset < 0:
            raise BusError(
                ErrorCode.OFFSET_OUT_OF_RANGE,
                f"{partition}: expected a Delta version that is there, found {questions[partition].version}",
            )
    return found


def _planned_or_end(partition: TopicPartition, offset: int | None, end: int, why: str) -> PlannedOffset:
    return PlannedOffset(end, f"{partition}: {why}") if offset is None else PlannedOffset(offset)


def _planned(offsets: Mapping[TopicPartition, int]) -> dict[TopicPartition, PlannedOffset]:
    return {partition: PlannedOffset(offset) for partition, offset in offsets.items()}


def _offsets(listed: Mapping[TopicPartition, ListedOffset]) -> dict[TopicPartition, int]:
    return {partition: found.offset for partition, found in listed.items()}


def _committed(
    source: OffsetSource, group_id: str, partitions: Collection[TopicPartition]
) -> dict[TopicPartition, int]:
    found = source.list_group_offsets(group_id, partitions)
    return {partition: committed.offset for partition, committed in found.items()}


# The offsets that a group is given before its first member starts: where, and of which partitions.


def starting_point(
    start: str | None, offsets_of: str | None, timestamp_ms: int | None, at_version: Bound | None
) -> OffsetTarget:
    """The one that is given. Raises `BusError` INVALID_REQUEST for none, and for several."""
    places: dict[str, OffsetTarget] = {"earliest": ToEarliest(), "latest": ToLatest()}
    if start is not None and (not isinstance(start, str) or start not in places):
        raise BusError(ErrorCode.INVALID_REQUEST, f"expected a start of earliest or latest, found {start!r}")
    if timestamp_ms is not None:
        check_integer("timestamp_ms", timestamp_ms, -INT_64_MAX, INT_64_MAX)
    given = [
        target
        for target in (
            None if start is None else places[start],
            None if offsets_of is None else ToGroup(offsets_of),
            None if timestamp_ms is None else ToTimestamp(timestamp_ms),
            None if at_version is None else ToVersion(at_version),
        )
        if target is not None
    ]
    if len(given) != 1:
        raise BusError(
            ErrorCode.INVALID_REQUEST,
            f"expected one of start, offsets_of, timestamp_ms and at_version, found {len(given)}",
        )
    return given[0]


def partitions_to_start(
    topics: Iterable[str | TopicPartition] | None,
    offsets_of: str | None,
    *,
    list_group_offsets: Callable[[str], Collection[TopicPartition]],
    describe_topics: Callable[[Collection[str]], Mapping[str, TopicDescription]],
) -> list[TopicPartition]:
    """Those of `topics`, sorted; without them, those of the other group. Raises `BusError`."""
    if topics is None and offsets_of is None:
        raise BusError(ErrorCode.INVALID_REQUEST, "expected topics, found none")
    if topics is None:
        return sorted(list_group_offsets(offsets_of or ""))
    named = list(topics)
    described = describe_topics([one for one in named if isinstance(one, str)])
    found = {TopicPartition(name, one.partition) for name in described for one in described[name].partitions}
    return sorted(found | {one for one in named if isinstance(one, TopicPartition)})
