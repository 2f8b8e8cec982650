"""The content of a fetch, opened without a copy: Arrow columns for `poll_arrow`, and records for `poll`, with the keys
and values that a user's deserializers make of their bytes.

Guards three promises. Every row that comes out lies at or above the position that was asked for, and has every column
of the log; columns that a batch left out are filled in here, and nowhere else in the SDK. None, a record without a
value, is seen by no deserializer. And a record that cannot be built costs itself alone: the records before it, and
those of other partitions, are given out; the error names it by topic, partition and offset, with the raw record at
hand, and reading goes on behind it when the reader seeks there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
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


class RecordDeserializationError(BusError):
    """`record` is as it was read, with bytes; `field` is "key" or "value". The consumer's position is at this record:
    the next poll finds it again, unless `seek` goes past it.

    `is_raw`: no deserializer was asked, the log itself has something that is no record. Then `field` may be "headers"
    or another column, and `record` has what can be read.
    """

    def __init__(self, record: ConsumerRecord, field: str, cause: Exception, *, is_raw: bool = False) -> None:
        reader = "the consumer can read" if is_raw else f"{field}_deserializer accepts"
        noun = field if field.endswith("s") else f"a {field}"
        super().__init__(
            ErrorCode.INVALID_RECORD,
            f"{record.topic}-{record.partition} at offset {record.offset}: expected {noun} that {reader}, "
            f"found one that raised {type(cause).__name__}: {cause}; seek to {record.offset + 1} to go on behind it",
        )
        self.record = record
        self.field = field

    @property
    def partition(self) -> TopicPartition:
        return TopicPartition(self.record.topic, self.record.partition)

    @property
    def offset(self) -> int:
        return self.record.offset


class Deserializers:
    """False if there are none."""

    def __init__(self, key: Any, value: Any) -> None:
        self._key = _function_of(key)
        self._value = _function_of(value)

    def __bool__(self) -> bool:
        return self._key is not None or self._value is not None

    def apply(self, records: Sequence[ConsumerRecord]) -> Iterator[ConsumerRecord]:
        """One after another, as they are asked for. Raises `RecordDeserializationError`."""
        return map(self._apply, records)

    def _apply(self, record: ConsumerRecord) -> ConsumerRecord:
        field = "key"
        try:
            key, value = record.key, record.value
            if self._key is not None and key is not None:
                key = self._key(record.topic, record.headers, key)
            field = "value"
            if self._value is not None and value is not None:
                value = self._value(record.topic, record.headers, value)
        except Exception as error:
            raise RecordDeserializationError(record, field, error) from error
        return record._replace(key=key, value=value)


def take_good(records: Iterable[ConsumerRecord], taken: list[ConsumerRecord]) -> RecordDeserializationError | None:
    """Append `records` up to the first one that cannot be deserialized, and give its error."""
    try:
        for record in records:
            taken.append(record)
    except RecordDeserializationError as error:
        return error
    return None


def _function_of(deserializer: Any) -> Callable[[str, Headers, bytes], Any] | None:
    if deserializer is None:
        return None
    method = getattr(deserializer, "deserialize", None)
    if method is not None:
        return method  # type: ignore[no-any-return]

    def deserialize(topic: str, headers: Headers, data: bytes) -> Any:
        return deserializer(data)

    return deserialize


Runs = Sequence[tuple[TopicPartition, pa.RecordBatch]]


class RecordBuilder:
    def __init__(self, deserializers: Deserializers) -> None:
        self._deserializers = deserializers

    def build(self, runs: Runs) -> tuple[list[ConsumerRecord], list[RecordDeserializationError]]:
        """The records of all runs, of each partition up to the first one that cannot be built; and these."""
        records: list[ConsumerRecord] = []
        rejected: dict[TopicPartition, RecordDeserializationError] = {}
        for partition, batch in runs:
            if partition not in rejected:
                error = self._append(partition, batch, records)
                if error is not None:
                    rejected[partition] = error
        return records, list(rejected.values())

    def _append(
        self, partition: TopicPartition, batch: pa.RecordBatch, records: list[ConsumerRecord]
    ) -> RecordDeserializationError | None:
        readable, unreadable = _readable_records(partition, batch)
        if not self._deserializers:
            records += readable
            return unreadable
        return take_good(self._deserializers.apply(readable), records) or unreadable

    def one_by_one(self, partition: TopicPartition, batch: pa.RecordBatch) -> Iterator[ConsumerRecord]:
        """Yield the records as they are requested. Raises `RecordDeserializationError` in the place of one that cannot
        be built."""
        readable, unreadable = _readable_records(partition, batch)
        records = self._deserializers.apply(readable) if self._deserializers else iter(readable)
        return records if unreadable is None else _ending_with(records, unreadable)


def _ending_with(records: Iterator[ConsumerRecord], error: RecordDeserializationError) -> Iterator[ConsumerRecord]:
    yield from records
    raise error


def raw_records(partition: TopicPartition, batch: pa.RecordBatch) -> list[ConsumerRecord]:
    """All of them, with bytes; of one that is no record, what can be read of it."""
    readable, unreadable = _readable_records(partition, batch)
    records = list(readable)
    while unreadable is not None:
        records.append(unreadable.record)
        rest = batch.slice(len(records))
        readable, unreadable = _readable_records(partition, rest) if rest.num_rows else ([], None)
        records += readable
    return records


def _readable_records(
    partition: TopicPartition, batch: pa.RecordBatch
) -> tuple[list[ConsumerRecord], RecordDeserializationError | None]:
    try:
        return records_of(partition, batch), None
    except Exception:  # the rows are tried one by one, to find the unreadable one and its readable fields
        return _rows_up_to_unreadable(partition, batch)


def _rows_up_to_unreadable(
    partition: TopicPartition, batch: pa.RecordBatch
) -> tuple[list[ConsumerRecord], RecordDeserializationError | None]:
    records: list[ConsumerRecord] = []
    for row in range(batch.num_rows):
        try:
            records += records_of(partition, batch.slice(row, 1))
        except Exception as error:  # outside data: any kind of damage
            return records, _unreadable(partition, batch.slice(row, 1), error)
    return records, None


def _unreadable(partition: TopicPartition, row: pa.RecordBatch, cause: Exception) -> RecordDeserializationError:
    """Return the error, with a record of the readable fields."""
    read: dict[str, Any] = {"key": None, "value": None, "headers": NO_HEADERS, "timestamp": -1, "leader_epoch": -1}
    unreadable = [name for name in read if not _read_cell(row, name, read)]
    record = ConsumerRecord(
        topic=partition.topic,
        partition=partition.partition,
        offset=row.column("offset")[0].as_py(),
        timestamp_ms=read["timestamp"],
        timestamp_type=TimestampType.CREATE_TIME,
        key=read["key"],
        value=read["value"],
        headers=read["headers"],
        leader_epoch=read["leader_epoch"],
    )
    return RecordDeserializationError(record, unreadable[0] if unreadable else "timestamp_type", cause, is_raw=True)


def _read_cell(row: pa.RecordBatch, name: str, read: dict[str, Any]) -> bool:
    try:
        match name:
            case "headers":
                read[name] = headers_of(row.column(name)[0].as_py())
            case "timestamp":
                read[name] = int(row.column(name).view(pa.int64())[0].as_py()) // 1000
            case _:
                read[name] = row.column(name)[0].as_py()
    except Exception:  # outside data: any kind of damage
        return False
    return True
