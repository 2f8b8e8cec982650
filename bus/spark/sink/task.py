"""A task of Spark's writes its rows: each goes to its partition, in an order that the task can repeat, numbered.

Guards one promise: when it returns, every row of the task is in the log once, committed, whatever was sent by an
earlier run of it; when it raises, running it again appends what is missing and nothing else.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from bus.client.producer.partitioning import split_by_partition
from bus.errors import BusError, ErrorCode
from bus.model import TopicPartition
from bus.spark.sink.columns import Codes, Numbers, Placed, Placement, Rows, RowSorter, SinkColumns, hashes_of
from bus.spark.sink.sink_options import RowOrder, SinkOptions
from bus.spark.sink.stamped_writer import PartBuffer, TaskIdentity, forget_producer, open_writer
from bus.spark.workers import settled_worker

_SORT_MEMORY_BYTES = 64 * 1024 * 1024
_DECIDING_COLUMNS = {
    RowOrder.KEY: ("key",),
    RowOrder.CONTENT: ("key", "value", "headers", "timestamp"),
    RowOrder.ROWS: (),
}


def write_rows(
    batches: Iterator[pa.RecordBatch], columns: SinkColumns, options: SinkOptions, identity: TaskIdentity
) -> int:
    """Write the rows, and return how many. Raises `RowRefused`, or the `BusError` that no repetition helped against."""
    first = next((batch for batch in batches if batch.num_rows), None)
    if first is None:
        return 0
    try:
        with settled_worker(keeps_memory=False):
            return _write(_chain(first, batches), columns, options, identity)
    except BusError as error:
        # A name that expired has another id when it comes again, and the one that it had is fenced.
        if error.code in (ErrorCode.INVALID_PRODUCER_ID_MAPPING, ErrorCode.PRODUCER_FENCED):
            forget_producer(options, identity.producer_name)
        raise _explain(error, identity) from None


def _chain(first: pa.RecordBatch, others: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield first
    yield from others


def _write(
    batches: Iterator[pa.RecordBatch], columns: SinkColumns, options: SinkOptions, identity: TaskIdentity
) -> int:
    writer = open_writer(options, identity.producer_name, identity.producer_epoch)
    try:
        return number_rows(batches, columns, options, identity, writer)
    finally:
        writer.close()


class RowsWriter(Protocol):
    def partition_count(self, topic: str) -> int: ...

    def send(self, partition: TopicPartition, records: pa.RecordBatch) -> None: ...

    def flush(self) -> None: ...


def number_rows(
    batches: Iterator[pa.RecordBatch],
    columns: SinkColumns,
    options: SinkOptions,
    identity: TaskIdentity,
    writer: RowsWriter,
) -> int:
    """Hand all rows to `writer`, those of a partition in their order; how many."""
    placement = Placement(
        columns.topic,
        writer.partition_count,
        first_turn=identity.first_turn,
        by_value=options.order is RowOrder.CONTENT,
    )
    parts = PartBuffer(writer.send, part_bytes=options.part_bytes, buffered_bytes_max=options.config.buffer_memory)
    with RowSorter(_DECIDING_COLUMNS[options.order], memory_bytes=_SORT_MEMORY_BYTES) as sorter:
        for batch in batches:
            rows = columns.rows_of(batch)
            placed = placement.place(rows)
            targets, records = _set_aside(rows, placed, options.order, sorter)
            for target, part in split_by_partition(records, targets, len(placement.partitions)):
                parts.add(placement.partitions[target], part)
        for target, records in sorter.drain():
            parts.add(placement.partitions[target], records)
    parts.flush()
    writer.flush()
    return parts.record_count


def _set_aside(rows: Rows, placed: Placed, order: RowOrder, sorter: RowSorter) -> tuple[Numbers, pa.RecordBatch]:
    """Give `sorter` the rows that are to be sorted, and return the others, which are numbered as they come: targets and
    records."""
    if order is RowOrder.ROWS or (order is RowOrder.KEY and rows.keys is None):
        return placed.targets, rows.records
    if order is RowOrder.CONTENT:
        sorter.add(placed.targets, _content_hashes(rows, placed), rows.records)
        return placed.targets[:0], rows.records.slice(0, 0)
    assert rows.keys is not None
    assert placed.key_hashes is not None
    codes: Codes = placed.key_hashes.astype(np.uint64)
    if not rows.keys.null_count:
        sorter.add(placed.targets, codes, rows.records)
        return placed.targets[:0], rows.records.slice(0, 0)
    has_key = pc.is_valid(rows.keys)
    mask = has_key.to_numpy(zero_copy_only=False)
    sorter.add(placed.targets[mask], codes[mask], rows.records.filter(has_key))
    return placed.targets[~mask], rows.records.filter(pc.invert(has_key))


def _content_hashes(rows: Rows, placed: Placed) -> Codes:
    """Hash key and value. Headers decide only where these are equal."""
    values: Codes = hashes_of(rows.records.column("value")).astype(np.uint64)
    if rows.keys is None or placed.key_hashes is None:
        return values
    keys = placed.key_hashes.astype(np.uint64)
    keys[pc.is_null(rows.keys).to_numpy(zero_copy_only=False)] = 0
    both: Codes = (keys << np.uint64(32)) | values
    return both


def _explain(error: BusError, identity: TaskIdentity) -> BusError:
    if error.code not in (ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.PRODUCER_FENCED):
        return error
    return BusError(
        error.code,
        f"{error.message}; this is batch {identity.batch} of {identity.producer_name}, and a later one is in the log: "
        f"another run of it writes too, or its checkpoint went back. Rows of earlier batches are in the log already; "
        f"to write them again a query needs a new checkpoint, and a batch write a higher bus.txnVersion",
    )
