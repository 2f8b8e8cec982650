"""Parts of a batch of the log, by offset, by bytes and by time. Copies no record.

Guards one promise: a part says of itself what is true of it: its offsets, also where some are missing, its bytes, its
largest timestamp, its first sequence.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa

from bus.model import LogBatch, sequence_after
from bus.ports import FoundOffset


def slice_batch(batch: LogBatch, *, start: int, stop: int) -> LogBatch:
    """The records at positions `start` up to, but not including, `stop`: at least one. Copies nothing."""
    assert 0 <= start < stop <= batch.record_count, f"{start} to {stop} of {batch.record_count}"
    if start == 0 and stop == batch.record_count:
        return batch
    columns = batch.columns.slice(start, stop - start)
    base_offset, next_offset = batch.base_offset + start, batch.base_offset + stop
    if "offset" in columns.schema.names:
        # A hole belongs to the part behind it, so that parts which follow each other leave none between them.
        offsets = batch.columns.column("offset")
        base_offset = offsets[start - 1].as_py() + 1 if start else batch.base_offset
        next_offset = offsets[stop - 1].as_py() + 1 if stop < batch.record_count else batch.next_offset
    producer = batch.producer
    if producer is not None and start:
        producer = replace(producer, base_sequence=sequence_after(producer.base_sequence, start))
    sliced = replace(
        batch,
        base_offset=base_offset,
        next_offset=next_offset,
        record_count=stop - start,
        size_bytes=columns.nbytes,
        columns=columns,
        producer=producer,
    )
    if batch.timestamp_ms is not None:
        return sliced
    micros = columns.column("timestamp").view(pa.int64()).to_numpy()
    return replace(sliced, timestamp_max_ms=int(micros.max()) // 1000)


def position_of(batch: LogBatch, offset: int) -> int:
    """How many records of `batch` lie before `offset`."""
    index = batch.columns.schema.get_field_index("offset")
    if index < 0:
        return min(max(offset - batch.base_offset, 0), batch.record_count)
    return int(np.searchsorted(batch.columns.column(index).to_numpy(), offset))


def count_within(batch: LogBatch, max_bytes: int) -> int:
    """How many records from the first on take at most `max_bytes`: none, if the first one is larger."""
    if batch.size_bytes <= max_bytes:
        return batch.record_count
    sized = [column for column in batch.columns.columns if column.type == pa.binary()]
    ends = [
        np.frombuffer(column.buffers()[1], np.int32)[column.offset : column.offset + len(column) + 1]
        for column in sized
    ]
    variable: Any = sum(((end[1:] - end[0]).astype(np.int64) for end in ends), np.zeros(batch.record_count, np.int64))
    fixed = max(0, batch.size_bytes - int(variable[-1])) / batch.record_count
    totals = variable + fixed * np.arange(1, batch.record_count + 1)
    return int(np.searchsorted(totals, max_bytes, side="right"))


def find_in_batch(batch: LogBatch, timestamp_ms: int) -> FoundOffset:
    position = 0
    found_ms = batch.timestamp_ms
    if found_ms is None:
        micros = batch.columns.column("timestamp").view(pa.int64()).to_numpy()
        position = int(np.argmax(micros >= timestamp_ms * 1000))
        found_ms = int(micros[position]) // 1000
    names = batch.columns.schema.names
    offset, epoch = batch.base_offset + position, batch.leader_epoch
    if "offset" in names:
        offset = batch.columns.column("offset")[position].as_py()
    if "leader_epoch" in names:
        epoch = batch.columns.column("leader_epoch")[position].as_py()
    return FoundOffset(offset=offset, timestamp_ms=found_ms, leader_epoch=epoch)
