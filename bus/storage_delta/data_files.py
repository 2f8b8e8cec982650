"""Batches of the log as Parquet bytes with their Delta statistics.

Guards one promise: what the log's entry says about a file (size, offsets, timestamps, counts) is true of its bytes.
Rows lie in offset order, in row groups small enough that a fetch decodes little more than it sends. Does no I/O.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from bus.arrow_batches import complete_columns
from bus.log_schema import TIMESTAMP_TYPE
from bus.model import LogBatch
from bus.storage_delta.actions import LiveFile
from bus.storage_delta.producer_columns import (
    PRODUCER_COLUMNS,
    ProducerStatistics,
    merge_producer_column,
    producer_statistics,
)

_ROW_GROUP_BYTES = 4 << 20
# Of a row, in the columns that the broker adds.
_ADDED_ROW_BYTES = 24

# Statistics of key and value would cost time and space and prune nothing.
_STATISTICS = [
    "offset",
    "timestamp",
    "timestamp_type",
    "producer_id",
    "producer_epoch",
    "sequence",
    "leader_epoch",
]
# Nearly constant in a file: a dictionary makes them a few bytes. It is a waste of time for all others.
_DICTIONARIES = ["timestamp_type", "producer_id", "producer_epoch", "leader_epoch"]
_DICTIONARIES_AND_TIMESTAMP = [*_DICTIONARIES, "timestamp"]


@dataclass(frozen=True, slots=True)
class EncodedFile:
    data: pa.Buffer
    file: LiveFile
    stats: str  # JSON, as `add.stats` wants it


def encode_data_file(
    batches: Sequence[LogBatch], schema: pa.Schema, *, name_suffix: str, compression: str
) -> EncodedFile:
    """`batches` follow each other without a gap. The file is named by its first offset and `name_suffix`."""
    rows = merge_batches(batches, schema)
    has_one_timestamp = all(batch.timestamp_ms is not None for batch in batches)
    sink = pa.BufferOutputStream()
    with pq.ParquetWriter(
        sink,
        schema,
        store_schema=False,
        compression=compression,
        use_dictionary=_DICTIONARIES_AND_TIMESTAMP if has_one_timestamp else _DICTIONARIES,
        write_statistics=_STATISTICS,
        write_page_checksum=True,
    ) as writer:
        writer.write_batch(rows, row_group_size=max(1, _ROW_GROUP_BYTES * rows.num_rows // _size_bytes(batches)))
    data = sink.getvalue()

    time_min_us, time_max_us = _min_max_us(batches, rows)
    producers = producer_statistics(batches, rows)
    base_offset, next_offset = batches[0].base_offset, batches[-1].next_offset
    file = LiveFile(
        path=f"{base_offset:020d}-{name_suffix}.parquet",
        size_bytes=data.size,
        base_offset=base_offset,
        next_offset=next_offset,
        record_count=rows.num_rows,
        timestamp_min_ms=time_min_us // 1000,
        timestamp_max_ms=time_max_us // 1000,
        leader_epoch=max(batch.leader_epoch for batch in batches),
        producers=producers.spans,
    )
    return EncodedFile(data, file, _encode_stats(file, producers, time_min_us=time_min_us, time_max_us=time_max_us))


def merge_batches(batches: Sequence[LogBatch], schema: pa.Schema) -> pa.RecordBatch:
    """All columns of `schema`, the batches one after the other, column by column: group commits have many batches."""
    for previous, batch in pairwise(batches):
        assert batch.base_offset == previous.next_offset, f"{batch.base_offset} follows {previous.next_offset}"
    value_type = schema.field("value").type
    if len(batches) == 1:
        return complete_columns(batches[0], value_type=value_type)
    counts = np.array([batch.record_count for batch in batches])
    return pa.RecordBatch.from_arrays([_merge_column(batches, counts, field) for field in schema], schema=schema)


def _merge_column(batches: Sequence[LogBatch], counts: Any, field: pa.Field) -> pa.Array:
    name = field.name
    present = [_index_of(batch, name) for batch in batches]
    if any(index >= 0 for index in present):
        return pa.concat_arrays(
            [
                batch.columns.column(index)
                if index >= 0
                else complete_columns(batch, [name], field.type if name == "value" else None).column(0)
                for batch, index in zip(batches, present, strict=True)
            ]
        )
    match name:
        case "offset":
            return pa.array(np.arange(batches[0].base_offset, batches[-1].next_offset, dtype=np.int64))
        case "timestamp":
            micros = np.array([batch.timestamp_ms for batch in batches], np.int64) * 1000
            return pa.array(np.repeat(micros, counts)).view(TIMESTAMP_TYPE)
        case "timestamp_type" | "leader_epoch":
            values = np.array([int(getattr(batch, name)) for batch in batches], np.int32)
            return pa.array(np.repeat(values, counts))
        case _ if name in PRODUCER_COLUMNS:
            return merge_producer_column(batches, counts, field)
        case _:
            return pa.nulls(int(counts.sum()), field.type)


def _index_of(batch: LogBatch, name: str) -> int:
    """Where the column is, -1 if it says nothing: a batch's one timestamp beats a column of them (LogAppendTime)."""
    if name == "timestamp" and batch.timestamp_ms is not None:
        return -1
    return int(batch.columns.schema.get_field_index(name))


def _size_bytes(batches: Sequence[LogBatch]) -> int:
    return sum(batch.size_bytes + batch.record_count * _ADDED_ROW_BYTES for batch in batches)


def _min_max_us(batches: Sequence[LogBatch], rows: pa.RecordBatch) -> tuple[int, int]:
    constants = [batch.timestamp_ms for batch in batches if batch.timestamp_ms is not None]
    if len(constants) == len(batches):
        return min(constants) * 1000, max(constants) * 1000
    micros = rows.column("timestamp").view(pa.int64()).to_numpy()
    return int(micros.min()), int(micros.max())


def _encode_stats(file: LiveFile, producers: ProducerStatistics, *, time_min_us: int, time_max_us: int) -> str:
    """Statistics by the Delta protocol. Timestamps have milliseconds there, so the bounds are rounded outwards: not
    every reader allows for a maximum that was cut."""
    minima = {"offset": file.base_offset, "timestamp": format_timestamp(time_min_us // 1000)}
    maxima = {"offset": file.next_offset - 1, "timestamp": format_timestamp(-(-time_max_us // 1000))}
    nulls = {"offset": 0, "timestamp": 0, "producer_id": producers.null_count, "sequence": producers.null_count}
    for name, bounds in (("producer_id", producers.producer_ids), ("sequence", producers.sequences)):
        if bounds is not None:
            minima[name], maxima[name] = bounds
    stats = {"numRecords": file.record_count, "minValues": minima, "maxValues": maxima, "nullCount": nulls}
    return json.dumps(stats, separators=(",", ":"))


def format_timestamp(timestamp_ms: int) -> str:
    """ISO 8601 in UTC with milliseconds. Arithmetic by numpy: it knows all the years that a producer may send."""
    return f"{np.datetime64(timestamp_ms, 'ms')}Z"
