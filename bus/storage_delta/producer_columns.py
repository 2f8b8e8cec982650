"""What the stamps of a group's batches become in a data file: three columns, their statistics, and the file's spans.

Guards one promise: rows, statistics and spans say the same of each record. A commit group may have thousands of small
batches, so all of it is done with arrays of one entry a batch; rows are looked at only where a batch brings columns of
its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from bus.model import SEQUENCE_MODULUS, LogBatch, ProducerStamp
from bus.storage_delta.producer_spans import NO_SPANS, encode_run, encode_runs

PRODUCER_COLUMNS = ("producer_id", "producer_epoch", "sequence")
_LAST_SEQUENCE = SEQUENCE_MODULUS - 1


@dataclass(frozen=True, slots=True)
class ProducerStatistics:
    """The bounds (minimum, maximum) are those of the rows that have a producer; None if there is none."""

    null_count: int
    producer_ids: tuple[int, int] | None = None
    sequences: tuple[int, int] | None = None
    spans: str = NO_SPANS


def merge_producer_column(batches: Sequence[LogBatch], counts: Any, field: pa.Field) -> pa.Array:
    """One of the three columns for batches that have none of them, `counts` records each."""
    is_stamped = np.array([batch.producer is not None for batch in batches])
    if not is_stamped.any():
        return pa.nulls(int(counts.sum()), field.type)
    nulls = None if is_stamped.all() else np.repeat(~is_stamped, counts)
    dtype = field.type.to_pandas_dtype()
    if field.name == "sequence":
        bases = np.array([0 if batch.producer is None else batch.producer.base_sequence for batch in batches])
        ends = np.cumsum(counts)
        sequences = np.repeat(bases - (ends - counts), counts) + np.arange(ends[-1])
        return pa.array((sequences & _LAST_SEQUENCE).astype(dtype), mask=nulls)
    values = np.array(
        [0 if batch.producer is None else getattr(batch.producer, field.name) for batch in batches], dtype
    )
    return pa.array(np.repeat(values, counts), mask=nulls)


def producer_statistics(batches: Sequence[LogBatch], rows: pa.RecordBatch) -> ProducerStatistics:
    """Of `batches`, whose rows with all columns are `rows`."""
    if any(_has_columns(batch) for batch in batches):
        return _statistics_of_rows(rows)
    stamped = [(batch.producer, batch.record_count) for batch in batches if batch.producer is not None]
    if not stamped:
        return ProducerStatistics(rows.num_rows)
    if len(batches) == 1:
        return _statistics_of_one(*stamped[0])
    return _statistics_of_stamps(stamped, rows.num_rows)


def _has_columns(batch: LogBatch) -> bool:
    schema = batch.columns.schema
    return any(schema.get_field_index(name) >= 0 for name in PRODUCER_COLUMNS)


def _statistics_of_one(stamp: ProducerStamp, count: int) -> ProducerStatistics:
    first, last = stamp.base_sequence, stamp.base_sequence + count - 1
    if last > _LAST_SEQUENCE:
        return _statistics_of_stamps([(stamp, count)], count)
    spans = encode_run(producer_id=stamp.producer_id, producer_epoch=stamp.producer_epoch, first=first, last=last)
    return ProducerStatistics(0, (stamp.producer_id,) * 2, (first, last), spans)


def _statistics_of_stamps(stamped: Sequence[tuple[ProducerStamp, int]], row_count: int) -> ProducerStatistics:
    """Batches that begin before the last sequence and end behind it are two runs."""
    numbers = np.array(
        [(stamp.producer_id, stamp.producer_epoch, stamp.base_sequence, count) for stamp, count in stamped], np.int64
    )
    ids, epochs, firsts, counts = numbers.T
    lasts = firsts + counts - 1
    is_wrapped = lasts > _LAST_SEQUENCE
    if is_wrapped.any():
        ids, epochs = (np.concatenate([values, values[is_wrapped]]) for values in (ids, epochs))
        firsts = np.concatenate([firsts, np.zeros(int(is_wrapped.sum()), np.int64)])
        lasts = np.concatenate([np.minimum(lasts, _LAST_SEQUENCE), lasts[is_wrapped] - SEQUENCE_MODULUS])
    return _statistics_of_runs(ids, epochs, firsts, lasts, null_count=row_count - int(counts.sum()))


def _statistics_of_rows(rows: pa.RecordBatch) -> ProducerStatistics:
    """By the columns, null in the rows of no producer."""
    stamped = rows.select(list(PRODUCER_COLUMNS)).drop_null()
    if not stamped.num_rows:
        return ProducerStatistics(rows.num_rows)
    ids, epochs, sequences = (column.to_numpy().astype(np.int64) for column in stamped.columns)
    return _statistics_of_runs(ids, epochs, sequences, sequences, null_count=rows.num_rows - stamped.num_rows)


def _statistics_of_runs(ids: Any, epochs: Any, firsts: Any, lasts: Any, *, null_count: int) -> ProducerStatistics:
    return ProducerStatistics(
        null_count=null_count,
        producer_ids=(int(ids.min()), int(ids.max())),
        sequences=(int(firsts.min()), int(lasts.max())),
        spans=encode_runs(ids, epochs, firsts, lasts),
    )
