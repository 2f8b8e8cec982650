"""Records out of Arrow rows, with the keys and values that a user's deserializers make of their bytes.

Guards two promises. None, a record without a value, is seen by no deserializer. And a record that cannot be built costs
itself alone: the records before it, and those of other partitions, are given out; the error names it by topic,
partition and offset, with the raw record at hand, and reading goes on behind it when the reader seeks there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import pyarrow as pa

from bus.client.consumer.fetched import headers_of, records_of
from bus.client.values import NO_HEADERS, ConsumerRecord, Headers
from bus.errors import BusError, ErrorCode
from bus.model import TimestampType, TopicPartition


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
