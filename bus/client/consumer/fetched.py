"""The content of a fetch, opened without a copy: Arrow columns for `poll_arrow`, records for `poll`.

Guards one promise: every row that comes out lies at or above the position that was asked for, and has every column of
the log. Columns that a batch left out are filled in here, and nowhere else in the SDK.
"""

from __future__ import annotations

from itertools import repeat
from typing import Any

import numpy as np
import pyarrow as pa

from bus.client.connection.fetch_requests import FetchedBatch
from bus.client.values import NO_HEADERS, ConsumerRecord, Headers
from bus.errors import BusError, ErrorCode
from bus.model import LogBatch, TimestampType, TopicPartition
from bus.records.arrow_batches import MalformedRecords, complete_columns, decode_arrow, dense_sequences
from bus.records.log_schema import LOG_SCHEMA

POLL_SCHEMA = pa.schema(
    [pa.field("topic", pa.string(), nullable=False), pa.field("partition", pa.int32(), nullable=False), *LOG_SCHEMA]
)
_TIMESTAMP_TYPES = tuple(TimestampType)


def open_batch(partition: TopicPartition, fetched: FetchedBatch, position: int) -> pa.RecordBatch:
    """The rows of `fetched` from `position` on. Raises `BusError` CORRUPT_MESSAGE, which names the offsets."""
    try:
        return _open(fetched, position)
    except Exception as error:  # outside data: any kind of damage
        raise BusError(
            ErrorCode.CORRUPT_MESSAGE,
            f"{partition} at offset {max(position, fetched.base_offset)}: expected a batch, up to offset "
            f"{fetched.next_offset - 1}, that can be read, found one that cannot: {error}; seek to "
            f"{fetched.next_offset} to go on behind it",
        ) from error


def _open(fetched: FetchedBatch, position: int) -> pa.RecordBatch:
    columns = decode_arrow(fetched.payload)
    if columns.num_rows != fetched.record_count:
        raise MalformedRecords(f"expected {fetched.record_count} rows, found {columns.num_rows}")
    if "offset" in columns.schema.names:
        _check_offsets(columns.column("offset"), fetched)
    columns = _with_producer(columns, fetched)
    names = columns.schema.names
    value_type = columns.schema.field("value").type if "value" in names else None
    batch = complete_columns(
        LogBatch(
            base_offset=fetched.base_offset,
            next_offset=fetched.next_offset,
            record_count=fetched.record_count,
            size_bytes=0,
            leader_epoch=fetched.leader_epoch,
            timestamp_type=TimestampType(fetched.timestamp_type),
            timestamp_ms=fetched.timestamp_ms,
            timestamp_max_ms=0,
            columns=columns,
        ),
        value_type=value_type,
    )
    if position <= fetched.base_offset:
        return batch
    return batch.slice(int(np.searchsorted(batch.column("offset").to_numpy(), position)))


def _check_offsets(offsets: pa.Array, fetched: FetchedBatch) -> None:
    """The position goes by them."""
    found = offsets.to_numpy(zero_copy_only=False)
    is_within = offsets.null_count == 0 and found[0] >= fetched.base_offset and found[-1] < fetched.next_offset
    if not is_within or not bool(np.all(found[1:] > found[:-1])):
        expected = f"offsets that grow from {fetched.base_offset} to below {fetched.next_offset}"
        raise MalformedRecords(f"expected {expected}, found {offsets[0]} to {offsets[-1]}, or nulls")


def _with_producer(columns: pa.RecordBatch, fetched: FetchedBatch) -> pa.RecordBatch:
    """Add the producer's fields of the envelope as columns: each is there only if the request named it."""
    count = fetched.record_count
    constants = (("producer_id", fetched.producer_id), ("producer_epoch", fetched.producer_epoch))
    for name, value in constants:
        if value is not None:
            columns = columns.append_column(name, pa.array(np.full(count, value, _dtype(name))))
    if fetched.base_sequence is not None:
        columns = columns.append_column("sequence", pa.array(dense_sequences(fetched.base_sequence, count)))
    return columns


def _dtype(name: str) -> Any:
    return LOG_SCHEMA.field(name).type.to_pandas_dtype()


def records_of(partition: TopicPartition, batch: pa.RecordBatch) -> list[ConsumerRecord]:
    """The rows of an opened batch as records."""
    count = batch.num_rows
    headers = batch.column("headers")
    rows = zip(
        repeat(partition.topic, count),
        repeat(partition.partition),
        batch.column("offset").to_numpy().tolist(),
        (batch.column("timestamp").view(pa.int64()).to_numpy() // 1000).tolist(),
        map(_TIMESTAMP_TYPES.__getitem__, batch.column("timestamp_type").to_numpy().tolist()),
        _python_values(batch.column("key")),
        _python_values(batch.column("value")),
        repeat(NO_HEADERS) if headers.null_count == count else map(headers_of, headers.to_pylist()),
        batch.column("leader_epoch").to_numpy().tolist(),
        strict=False,
    )
    # Equals ConsumerRecord(...), without a call of Python for each record.
    return list(map(tuple.__new__, repeat(ConsumerRecord), rows))


def _python_values(array: pa.Array) -> list[Any]:
    if array.null_count == len(array):
        return [None] * len(array)
    if pa.types.is_binary(array.type):
        values: list[Any] = array.to_numpy(zero_copy_only=False).tolist()
        return values
    return array.to_pylist()  # type: ignore[no-any-return]


def headers_of(entries: list[dict[str, Any]] | None) -> Headers:
    """Raises `TypeError` for a header that is null."""
    return [(entry["key"], entry["value"]) for entry in entries] if entries else NO_HEADERS


class PollTables:
    """Builds the tables of `poll_arrow`. The columns `topic` and `partition` are slices of one array for each
    partition, so that they cost nothing a poll."""

    def __init__(self) -> None:
        self._places: dict[TopicPartition, tuple[pa.Array, pa.Array]] = {}

    def table_of(self, runs: list[tuple[TopicPartition, pa.RecordBatch]]) -> pa.Table:
        """Chunks are the batches as they came, zero copy."""
        if not runs:
            return POLL_SCHEMA.empty_table()
        return pa.Table.from_batches([self._with_place(partition, batch) for partition, batch in runs])

    def _with_place(self, partition: TopicPartition, batch: pa.RecordBatch) -> pa.RecordBatch:
        topics, partitions = self._place(partition, batch.num_rows)
        value_type = batch.schema.field("value").type
        schema = POLL_SCHEMA
        if value_type != pa.binary():
            schema = schema.set(schema.get_field_index("value"), pa.field("value", value_type))
        return pa.RecordBatch.from_arrays([topics, partitions, *batch.columns], schema=schema)

    def _place(self, partition: TopicPartition, count: int) -> tuple[pa.Array, pa.Array]:
        place = self._places.get(partition)
        if place is None or len(place[0]) < count:
            size = max(count, 1_024)
            place = (
                pa.repeat(pa.scalar(partition.topic, pa.string()), size),
                pa.array(np.full(size, partition.partition, np.int32)),
            )
            self._places[partition] = place
        return place[0].slice(0, count), place[1].slice(0, count)
