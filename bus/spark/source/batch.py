"""A batch query over topics: planned once, on the driver, and read by tasks.

Guards two promises: the end of each partition is fixed when the query is planned, so all of its tasks, and those that
are run again, read the same records; and limits that are made of the query's filters never exclude a row that the
filters let pass. They may let others pass, since Spark applies the filters once more.
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSourceReader,
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    InputPartition,
    LessThan,
    LessThanOrEqual,
)

from bus.model import TopicPartition
from bus.platform.reentry import logger_of
from bus.ports import OFFSET_MAX
from bus.spark.source.access import Bounds, LogAccess
from bus.spark.source.boundaries import resolve, select
from bus.spark.source.inputs import BusInput, open_access, plan_input, read_input
from bus.spark.source.planning import OffsetRange, ranges_between
from bus.spark.source.positions import Edge
from bus.spark.source.rows import RowColumns
from bus.spark.source.source_options import OptionError, SourceOptions

_log = logger_of(__name__)

# Spark asks for filters in a worker of this name; a reader that offers to take them elsewhere is refused unless a
# setting of the session is on. Spark 4.2 keeps what they left for all uses of a frame, with other conditions too, so
# they are taken only where `bus.pushFilters` says that the frame is used once.
_PUSHDOWN_WORKER = "pyspark.sql.worker.data_source_pushdown_filters"


class BusBatchReader(DataSourceReader):
    def __init__(self, options: SourceOptions, columns: RowColumns, *, cores: int) -> None:
        self._options = options
        self._columns = columns
        self._cores = cores
        self._limits: RowLimits = NO_LIMITS

    def partitions(self) -> list[InputPartition]:
        access = open_access(self._options.location)
        try:
            return [*plan_input(self._ranges(access), access, self._options, self._options.sharing(self._cores))]
        finally:
            access.close()

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if isinstance(partition, BusInput):  # Spark makes an input of its own if there are none
            yield from read_input(partition, self._columns)

    def _ranges(self, access: LogAccess) -> list[OffsetRange]:
        options = self._options
        selection = select(options.subscription, access.topics())
        bounds = access.bounds(selection.partitions)
        begin = resolve(options.start, bounds, access, is_late_latest=options.is_late_start_latest)
        end = resolve(options.end, bounds, access, edge="ending")
        begin = _check_range(begin, end, bounds, options)
        ranges = ranges_between(begin, end)
        return self._limits.narrow(ranges, access) if self._limits is not NO_LIMITS else ranges


class PushingBatchReader(BusBatchReader):
    """The same where Spark asks for filters and may have them taken."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        """Ranges are narrowed by them; Spark applies all of them once more, since rows are what they are about."""
        self._limits = limits_of(filters)
        return filters


def batch_reader(options: SourceOptions, columns: RowColumns, *, cores: int) -> BusBatchReader:
    takes_filters = options.pushes_filters and _asks_for_filters()
    return (PushingBatchReader if takes_filters else BusBatchReader)(options, columns, cores=cores)


def _asks_for_filters() -> bool:
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    return _PUSHDOWN_WORKER in sys.modules or (spec is not None and spec.name == _PUSHDOWN_WORKER)


def _check_range(
    begin: Mapping[TopicPartition, int],
    end: Mapping[TopicPartition, int],
    bounds: Mapping[TopicPartition, Bounds],
    options: SourceOptions,
) -> dict[TopicPartition, int]:
    """Return the offset at which each partition begins. Raises `OptionError` for a range that is upside down or beyond
    the end, and for one that lost records, if that is to fail."""
    checked = dict(begin)
    for partition, found in bounds.items():
        if end[partition] > found.end or begin[partition] > found.end:
            raise OptionError(
                f"expected offsets of {partition} up to its end, {found.end}, found {begin[partition]} to "
                f"{end[partition]} (startingOffsets, endingOffsets)"
            )
        if begin[partition] > end[partition]:
            raise OptionError(
                f"expected the ending offset of {partition} at or after the starting one, {begin[partition]}, "
                f"found {end[partition]}"
            )
        if begin[partition] < found.begin:
            message = f"{partition}: expected records from offset {begin[partition]} on, they begin at {found.begin}"
            if options.fail_on_data_loss and options.start is not Edge.EARLIEST:
                raise OptionError(f"{message}; failOnDataLoss=false reads what is left")
            _log.warning("%s", message)
            checked[partition] = min(found.begin, end[partition])
    return checked


@dataclass(frozen=True, slots=True)
class RowLimits:
    """None: any."""

    topics: frozenset[str] | None = None
    partitions: frozenset[int] | None = None
    begin: int = 0
    end: int = OFFSET_MAX
    from_ms: int | None = None

    def narrow(self, ranges: Sequence[OffsetRange], access: LogAccess) -> list[OffsetRange]:
        """Return the parts of the ranges that the limits leave."""
        left = [
            replace(found, begin=max(found.begin, self.begin), end=min(found.end, self.end))
            for found in ranges
            if self._has(found.partition)
        ]
        left = [found for found in left if found.size > 0]
        if self.from_ms is None or not left:
            return left
        # Every record before the first one at or after the time is older, no matter what follows it.
        firsts = access.offsets_at_times({found.partition: self.from_ms for found in left})
        left = [replace(found, begin=max(found.begin, _or_end(firsts[found.partition], found))) for found in left]
        return [found for found in left if found.size > 0]

    def _has(self, partition: TopicPartition) -> bool:
        return (self.topics is None or partition.topic in self.topics) and (
            self.partitions is None or partition.partition in self.partitions
        )


NO_LIMITS = RowLimits()


def limits_of(filters: Iterable[Filter]) -> RowLimits:
    """Return the limits that all of the filters set together."""
    limits = NO_LIMITS
    for found in filters:
        limits = _limited(limits, found)
    return limits


def _limited(limits: RowLimits, found: Filter) -> RowLimits:
    match found:
        case EqualTo(("topic",), value) | EqualNullSafe(("topic",), value):
            return replace(limits, topics=_both(limits.topics, [value]))
        case In(("topic",), values):
            return replace(limits, topics=_both(limits.topics, values))
        case EqualTo(("partition",), value) | EqualNullSafe(("partition",), value):
            return replace(limits, partitions=_both(limits.partitions, [value]))
        case In(("partition",), values):
            return replace(limits, partitions=_both(limits.partitions, values))
        case EqualTo(("offset",), int(value)) | EqualNullSafe(("offset",), int(value)):
            return replace(limits, begin=max(limits.begin, value), end=min(limits.end, value + 1))
        case GreaterThan(("offset",), int(value)):
            return replace(limits, begin=max(limits.begin, value + 1))
        case GreaterThanOrEqual(("offset",), int(value)):
            return replace(limits, begin=max(limits.begin, value))
        case LessThan(("offset",), int(value)):
            return replace(limits, end=min(limits.end, value))
        case LessThanOrEqual(("offset",), int(value)):
            return replace(limits, end=min(limits.end, value + 1))
        case (
            GreaterThan(("timestamp",), datetime() as value)
            | GreaterThanOrEqual(("timestamp",), datetime() as value)
            | EqualTo(("timestamp",), datetime() as value)
        ):
            return replace(limits, from_ms=max(limits.from_ms or 0, _milliseconds(value)))
    return limits


def _both(first: frozenset[Any] | None, second: Collection[Any]) -> frozenset[Any]:
    return frozenset(second) if first is None else first & frozenset(second)


def _milliseconds(at: datetime) -> int:
    """Rounded down."""
    since = at.replace(tzinfo=at.tzinfo or timezone.utc) - datetime(1970, 1, 1, tzinfo=timezone.utc)
    return (since.days * 86_400 + since.seconds) * 1000 + since.microseconds // 1000


def _or_end(offset: int | None, found: OffsetRange) -> int:
    return found.end if offset is None else offset
