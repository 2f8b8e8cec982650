"""Which records of a refused batch are at fault, so that a producer can fail these alone and send the others again.

The rules refuse a batch as a whole: they see its largest record, its span of timestamps and how many keys are missing.
Here, and only after a refusal, the records are looked at, by whole columns.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from bus.errors import ErrorCode, Refused
from bus.model import TIMESTAMP_MS_MAX, RecordBatch, TimestampType
from bus.partition_log.appends import AppendRules

# A batch may hold millions of records; who sends the others again is told about the next ones.
FAULTS_MAX = 1_000
# Refusals that are about some of the records of a batch.
BLAMES_RECORDS = frozenset({ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.INVALID_TIMESTAMP, ErrorCode.INVALID_RECORD})


@dataclass(frozen=True, slots=True)
class RecordFault:
    """`index`: of the record in its batch."""

    index: int
    message: str


def find_faults(
    batch: RecordBatch, refusal: Refused, rules: AppendRules, *, received_ms: int, answered_ms: int
) -> list[RecordFault]:
    """In the order of the batch, at most `FAULTS_MAX`. None if the batch is refused for another reason, or if no record
    of it would be taken: then the refusal says it all. It was refused at some time from `received_ms` to `answered_ms`;
    no record that was at fault then is left out.
    """
    if refusal.code not in BLAMES_RECORDS:
        return []
    sizes = record_sizes(batch.columns)
    is_too_large = sizes > rules.record_bytes_max
    earliest_ms = max(0, answered_ms - rules.timestamp_before_max_ms)
    latest_ms = min(received_ms + rules.timestamp_after_max_ms, TIMESTAMP_MS_MAX)
    if rules.timestamp_type is TimestampType.LOG_APPEND_TIME:
        is_mistimed = np.zeros(batch.record_count, bool)
    else:
        times = _timestamps_ms(batch)
        is_mistimed = (times < earliest_ms) | (times > latest_ms)
    is_keyless = _has_no_key(batch) if rules.is_key_required else np.zeros(batch.record_count, bool)
    indices = np.flatnonzero(is_too_large | is_mistimed | is_keyless)
    if len(indices) == batch.record_count:
        return []

    def say(index: int) -> Iterator[str]:
        if is_too_large[index]:
            yield f"expected at most {rules.record_bytes_max} bytes (max.message.bytes), found {sizes[index]}"
        if is_mistimed[index]:
            yield f"expected a timestamp from {earliest_ms} to {latest_ms} ms, found {times[index]}"
        if is_keyless[index]:
            yield "expected a key (cleanup.policy has compact), found none"

    return [RecordFault(index, "; ".join(say(index))) for index in indices[:FAULTS_MAX].tolist()]


def record_sizes(columns: pa.RecordBatch) -> Any:
    """Key + value + headers of each record, in bytes."""
    sizes = np.zeros(columns.num_rows, np.int64)
    for name in ("key", "value"):
        if name in columns.schema.names:
            sizes += _lengths(columns.column(name))
    if "headers" in columns.schema.names:
        headers = columns.column("headers")
        entries = headers.flatten()
        ends = np.cumsum(np.concatenate([[0], _lengths(entries.field("key")) + _lengths(entries.field("value"))]))
        counts = np.concatenate([[0], pc.fill_null(pc.list_value_length(headers), 0).to_numpy(zero_copy_only=False)])
        sizes += np.diff(ends[np.cumsum(counts)])
    return sizes


def _lengths(array: pa.Array) -> Any:
    """Bytes of each value; 0 where it is null."""
    return pc.fill_null(pc.binary_length(array), 0).to_numpy(zero_copy_only=False).astype(np.int64)


def _has_no_key(batch: RecordBatch) -> Any:
    if "key" not in batch.columns.schema.names:
        return np.ones(batch.record_count, bool)
    return batch.columns.column("key").is_null().to_numpy(zero_copy_only=False)


def _timestamps_ms(batch: RecordBatch) -> Any:
    if not batch.has_timestamps:
        return np.full(batch.record_count, batch.timestamp_min_ms, np.int64)
    return batch.columns.column("timestamp").view(pa.int64()).to_numpy() // 1000
