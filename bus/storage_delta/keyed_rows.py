"""The bus's own records, a key and a struct's fields each, as batches of a typed topic's partition and back.

Guards one promise: a row that does not fit the topic's struct is refused before anything is written, and what was
written comes back equal. A record without a key, which only another writer can have left, names nothing and is passed
over, so that it costs no other. Works column by column, since a new coordinator replays its whole partition. Knows no
record types: a value is a mapping.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa

from bus.model import LogBatch, RecordBatch
from bus.ports import KeyedRow

_log = logging.getLogger(__name__)


class DeltaKeyedRows:
    """Implements `bus.ports.KeyedRows`."""

    def __init__(self, topic: str, value_type: pa.StructType) -> None:
        self._topic = topic
        self._value_type = value_type
        self._names = frozenset(field.name for field in value_type)

    def encode(self, rows: Sequence[KeyedRow], *, now_ms: int) -> RecordBatch:
        for row in rows:
            unknown = (row.value or {}).keys() - self._names
            if unknown:
                raise ValueError(f"expected fields among {', '.join(sorted(self._names))}, found {sorted(unknown)}")
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
            record_bytes_max=columns.nbytes,  # of all rows: an upper bound, for which no row is looked at
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


def _rows_of(keys: list[bytes], values: pa.StructArray) -> Iterator[KeyedRow]:
    fields = [_to_python(values.field(position)) for position in range(values.type.num_fields)]
    is_there = values.is_valid().to_pylist()
    field_names = [field.name for field in values.type]
    for key, has_value, row in zip(keys, is_there, zip(*fields, strict=True), strict=True):
        yield KeyedRow(key, dict(zip(field_names, row, strict=True)) if has_value else None)


def _to_python(array: pa.Array) -> list[Any]:
    """Most fields are null in all records of a batch; then no value need be looked at."""
    return [None] * len(array) if array.null_count == len(array) else array.to_pylist()
