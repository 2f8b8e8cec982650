"""A batch query over topics: planned once, on the driver, and read by tasks.

Guards one promise: the end of each partition is fixed when the query is planned, so all of its tasks, and those that
are run again, read the same records.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterable, Iterator, Mapping

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition

from bus.model import TopicPartition
from bus.spark.source.access import Bounds, LogAccess
from bus.spark.source.filters import NO_LIMITS, RowLimits, limits_of
from bus.spark.source.inputs import BusInput, open_access, plan_input, read_input
from bus.spark.source.options import OptionError, SourceOptions
from bus.spark.source.planning import OffsetRange, ranges_between
from bus.spark.source.positions import Edge
from bus.spark.source.rows import RowColumns
from bus.spark.source.starting import resolve, select

_log = logging.getLogger(__name__)

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
    """Where each partition begins. Raises `OptionError` for a range that is upside down or beyond the end, and for one
    that lost records, if that is to fail."""
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
