"""Records out of Arrow rows, with the keys and values that a user's deserializers make of their bytes.

Guards one promise: a record that cannot be built costs itself alone. The records before it, and those of other
partitions, are given out; the error names it, and reading goes on behind it when the reader seeks there.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa

from bus.client.consumer.deserialization import Deserializers, RecordDeserializationError, take_good
from bus.client.consumer.fetched import headers_of, records_of
from bus.client.values import NO_HEADERS, ConsumerRecord
from bus.model import TimestampType, TopicPartition

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
        """As they are asked for. Raises `RecordDeserializationError` in the place of one that cannot be built."""
        readable, unreadable = _readable_records(partition, batch)
        records = self._deserializers.apply(readable) if self._deserializers else iter(readable)
        return records if unreadable is None else _ending_with(records, unreadable)


def _ending_with(records: Iterator[ConsumerRecord], error: RecordDeserializationError) -> Iterator[ConsumerRecord]:
    yield from records
    raise error


def _readable_records(
    partition: TopicPartition, batch: pa.RecordBatch
) -> tuple[list[ConsumerRecord], RecordDeserializationError | None]:
    try:
        return records_of(partition, batch), None
    except Exception:  # which of them it is, and what of it can be read, is found out row by row
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
    """With a record of what can be read."""
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
