"""The bus's own records in tables whose values are structs, read by SQL as columns.

Guards one promise: a row that does not fit the struct is refused before anything is written, and what was written comes
back equal. Batches follow the same commit path as every topic's. Knows no record types: a row is a mapping.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa

from bus.model import LogBatch, RecordBatch, TimestampType
from bus.ports import CommitOutcome, KeyedRow, LogState
from bus.storage_delta.partition_reader import PartitionReader
from bus.storage_delta.table import DeltaPartitionTable

_REPLAY_BYTES = 4 << 20
_log = logging.getLogger(__name__)


class DeltaTypedLog:
    """Implements `bus.ports.TypedLog`."""

    def __init__(self, table: DeltaPartitionTable, value_type: pa.StructType) -> None:
        self._table = table
        self._value_type = value_type
        self._names = frozenset(field.name for field in value_type)

    @property
    def state(self) -> LogState:
        return self._table.state

    def replay(self, offset: int = 0) -> Iterator[dict[str, Any]]:
        return replay_values(self._table.log, offset)

    def is_last(self) -> bool:
        return self._table.is_last()

    def is_at_end(self) -> bool:
        return self._table.is_at_end()

    def append(self, rows: Sequence[Mapping[str, Any]], *, leader_epoch: int, now_ms: int) -> CommitOutcome:
        """Raises `ValueError` for a row with a field that the struct has not, or a value of another type."""
        _check_fields(rows, self._names)
        columns = pa.RecordBatch.from_arrays([pa.array(rows, self._value_type)], names=["value"])
        base_offset = self.state.high_watermark
        batch = LogBatch(
            base_offset=base_offset,
            next_offset=base_offset + len(rows),
            record_count=len(rows),
            size_bytes=columns.nbytes,
            leader_epoch=leader_epoch,
            timestamp_type=TimestampType.LOG_APPEND_TIME,
            timestamp_ms=now_ms,
            timestamp_max_ms=now_ms,
            columns=columns,
        )
        return self._table.append([batch], leader_epoch=leader_epoch, now_ms=now_ms)

    def follow(self) -> LogState:
        return self._table.follow()

    def lead(self, leader_epoch: int, now_ms: int, *, fence: bool) -> CommitOutcome:
        return self._table.lead(leader_epoch, now_ms, fence=fence)

    def reload(self) -> LogState:
        return self._table.reload()

    @property
    def table(self) -> DeltaPartitionTable:
        return self._table


def replay_values(log: PartitionReader, offset: int = 0) -> Iterator[dict[str, Any]]:
    """Every value of a typed log from `offset` on, in offset order, up to the high watermark at the time of the
    call."""
    end_offset = log.state.high_watermark
    offset = max(offset, log.state.log_start)
    while offset < end_offset:
        for batch in log.read(offset, end_offset=end_offset, max_bytes=_REPLAY_BYTES):
            yield from batch.columns.column("value").to_pylist()[max(0, offset - batch.base_offset) :]
            offset = batch.next_offset


class DeltaKeyedRows:
    """Implements `bus.ports.KeyedRows`. A record without a key, which only another writer can have left, names nothing
    and is passed over, so that it costs no other. Works column by column, since a new coordinator replays its whole
    partition."""

    def __init__(self, topic: str, value_type: pa.StructType) -> None:
        self._topic = topic
        self._value_type = value_type
        self._names = frozenset(field.name for field in value_type)

    def encode(self, rows: Sequence[KeyedRow], *, now_ms: int) -> RecordBatch:
        _check_fields((row.value or {} for row in rows), self._names)
        try:
            arrays = [
                pa.array([row.key for row in rows], pa.binary()),
                pa.array([row.value for row in rows], self._value_type),
            ]
        except (pa.ArrowException, TypeError, OverflowError) as error:
            raise ValueError(f"expected rows of {self._topic}, found another type: {error}") from None
        columns = pa.RecordBatch.from_arrays(arrays, names=["key", "value"])
        return RecordBatch(
            record_count=len(rows),
            size_bytes=columns.nbytes,
            record_bytes_max=columns.nbytes,  # the sum of all rows: an upper bound that needs no look at a row
            timestamp_min_ms=now_ms,
            timestamp_max_ms=now_ms,
            has_timestamps=False,
            columns=columns,
        )

    def decode_again(self, batch: RecordBatch) -> Iterator[KeyedRow]:
        return _rows_of(batch.columns.column("key").to_pylist(), batch.columns.column("value"))

    def decode(self, batch: LogBatch) -> Iterator[KeyedRow]:
        names = batch.columns.schema.names
        keys = batch.columns.column("key") if "key" in names else pa.nulls(batch.record_count, pa.binary())
        values = batch.columns.column("value")
        if keys.null_count:
            _log.error(
                "%s, offsets %d to %d: expected a key in every record, found %d without; they are passed over",
                self._topic,
                batch.base_offset,
                batch.next_offset - 1,
                keys.null_count,
            )
            keys, values = keys.drop_null(), values.filter(keys.is_valid())
        return _rows_of(keys.to_pylist(), values)


def _check_fields(rows: Iterable[Mapping[str, Any]], names: frozenset[str]) -> None:
    for row in rows:
        if unknown := row.keys() - names:
            raise ValueError(f"expected fields among {', '.join(sorted(names))}, found {sorted(unknown)}")


def _rows_of(keys: list[bytes], values: pa.StructArray) -> Iterator[KeyedRow]:
    fields = [_to_python(values.field(position)) for position in range(values.type.num_fields)]
    is_there = values.is_valid().to_pylist()
    field_names = [field.name for field in values.type]
    for key, has_value, row in zip(keys, is_there, zip(*fields, strict=True), strict=True):
        yield KeyedRow(key, dict(zip(field_names, row, strict=True)) if has_value else None)


def _to_python(array: pa.Array) -> list[Any]:
    """Most fields are null in all records of a batch; then no value need be looked at."""
    return [None] * len(array) if array.null_count == len(array) else array.to_pylist()
