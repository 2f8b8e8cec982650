"""What Spark's tasks read: planned on the driver, sent to them, turned into rows there.

Guards one promise: an input is all that a task needs; it opens what it reads by itself and leaves nothing open. Workers
are started for each query, so what only some of them need (a broker's client, the tables of a root) is loaded by those.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from bus.spark.source.access import InputRange, LogAccess, ReadRules
from bus.spark.source.file_ranges import read_range
from bus.spark.source.options import Location, SourceOptions
from bus.spark.source.planning import OffsetRange, Sharing, pack
from bus.spark.source.rows import RowColumns
from bus.spark.workers import settled_worker


def open_access(location: Location) -> LogAccess:
    """Raises `RootNotUsable`, or `BusError` if no broker answers."""
    if location.address is not None:
        from bus.spark.source.broker_access import BrokerAccess

        return BrokerAccess(location)
    from bus.spark.source.storage_access import StorageAccess

    assert location.root is not None, "neither a broker nor a root"
    return StorageAccess(location.root)


class BusInput(InputPartition):
    """What one task reads."""

    def __init__(self, ranges: Sequence[InputRange], rules: ReadRules) -> None:
        super().__init__(None)
        self.ranges = tuple(ranges)
        self.rules = rules


def read_input(task: BusInput, columns: RowColumns) -> Iterator[pa.RecordBatch]:
    with settled_worker(keeps_memory=True):
        for wanted in task.ranges:
            for table in read_range(wanted, columns.log_columns, task.rules):
                yield from columns.batches(wanted.offsets.partition, table)


def plan_input(
    ranges: list[OffsetRange], access: LogAccess, options: SourceOptions, sharing: Sharing
) -> list[BusInput]:
    rules = ReadRules(access.location, options.fail_on_data_loss, options.patience_ms)
    return [BusInput(access.plan(taken), rules) for taken in pack(ranges, sharing)]
