"""A log whose values are structs: the bus's own records, read by SQL as columns.

Guards one promise: a row that does not fit the log's struct is refused before anything is written. Batches follow the
same commit path as every topic's. Knows no record types: a row is a dict.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa

from bus.model import LogBatch, TimestampType
from bus.ports import CommitOutcome, LogState
from bus.storage_delta.partition_reader import PartitionReader
from bus.storage_delta.table import DeltaPartitionTable

_REPLAY_BYTES = 4 << 20


class DeltaTypedLog:
    """Implements `bus.ports.TypedLog`."""

    def __init__(self, table: DeltaPartitionTable, value_type: pa.StructType) -> None:
        self._table = table
        self._value_type = value_type
        self._names = frozenset(field.name for field in value_type)

    @property
    def state(self) -> LogState:
        return self._table.state

    def replay(self) -> Iterator[dict[str, Any]]:
        return replay_values(self._table)

    def append(self, rows: Sequence[Mapping[str, Any]], *, leader_epoch: int, now_ms: int) -> CommitOutcome:
        """Raises `ValueError` for a row with a field that the struct has not, or a value of another type."""
        for row in rows:
            unknown = row.keys() - self._names
            if unknown:
                raise ValueError(f"expected fields among {', '.join(sorted(self._names))}, found {sorted(unknown)}")
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

    def reload(self) -> LogState:
        return self._table.reload()

    @property
    def is_checkpoint_due(self) -> bool:
        return self._table.is_checkpoint_due

    @property
    def table(self) -> DeltaPartitionTable:
        return self._table


def replay_values(log: DeltaPartitionTable | PartitionReader) -> Iterator[dict[str, Any]]:
    """Every value of a typed log, in offset order, up to the high watermark at the time of the call."""
    end_offset = log.state.high_watermark
    offset = log.state.log_start
    while offset < end_offset:
        for batch in log.read(offset, end_offset=end_offset, max_bytes=_REPLAY_BYTES):
            yield from batch.columns.column("value").to_pylist()
            offset = batch.next_offset
