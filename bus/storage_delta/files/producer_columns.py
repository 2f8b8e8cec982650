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
from bus.storage_delta.files.producer_spans import NO_SPANS, encode_run, encode_runs

PRODUCER_COLUMNS = ("producer_id", "producer_epoch", "sequence")
_LAST_SEQUENCE = SEQUENCE_MODULUS - 1
_NO_STAMP = ProducerStamp(0, 0, 0)


@dataclass(frozen=True, slots=True)
class Stamps:
    """The stamps of batches, one entry a batch; zeros for a batch without one."""

    counts: Any  # of records
    is_stamped: Any
    producer_ids: Any
    producer_epochs: Any
    base_sequences: Any


def stamps_of(batches: Sequence[LogBatch]) -> Stamps | None:
    """None if no batch has one."""
    if all(batch.producer is None for batch in batches):
        return None
    count = len(batches)
    stamps = [batch.producer or _NO_STAMP for batch in batches]
    return Stamps(
        counts=np.fromiter((batch.record_count for batch in batches), np.int64, count),
        is_stamped=np.fromiter((batch.producer is not None for batch in batches), bool, count),
        producer_ids=np.fromiter((stamp.producer_id for stamp in stamps), np.int64, count),
        producer_epochs=np.fromiter((stamp.producer_epoch for stamp in stamps), np.int64, count),
        base_sequences=np.fromiter((stamp.base_sequence for stamp in stamps), np.int64, count),
    )


def merge_producer_column(stamps: Stamps, field: pa.Field) -> pa.Array:
    """One of the three columns of batches that bring none of them."""
    counts = stamps.counts
    nulls = None if stamps.is_stamped.all() else np.repeat(~stamps.is_stamped, counts)
    dtype = field.type.to_pandas_dtype()
    match field.name:
        case "producer_id":
            values = np.repeat(stamps.producer_ids, counts)
        case "producer_epoch":
            values = np.repeat(stamps.producer_epochs.astype(dtype), counts)
        case _:
            ends = np.cumsum(counts)
            values = np.repeat(stamps.base_sequences - (ends - counts), counts)
            values += np.arange(ends[-1])
            values = (values & _LAST_SEQUENCE).astype(dtype)
    return pa.array(values, mask=nulls)


@dataclass(frozen=True, slots=True)
class ProducerStatistics:
    """The bounds (minimum, maximum) are those of the rows that have a producer; None if there is none."""

    null_count: int
    producer_ids: tuple[int, int] | None = None
    sequences: tuple[int, int] | None = None
    spans: str = NO_SPANS


def statistics_of_stamps(stamps: Stamps) -> ProducerStatistics:
    """Of batches that bring no column of the three."""
    is_stamped = stamps.is_stamped
    ids, epochs, firsts = (
        values[is_stamped] for values in (stamps.producer_ids, stamps.producer_epochs, stamps.base_sequences)
    )
    lasts = firsts + stamps.counts[is_stamped] - 1
    is_wrapped = lasts > _LAST_SEQUENCE
    if is_wrapped.any():  # one that begins before the last sequence and ends behind it is two runs
        ids, epochs = (np.concatenate([values, values[is_wrapped]]) for values in (ids, epochs))
        firsts = np.concatenate([firsts, np.zeros(int(is_wrapped.sum()), np.int64)])
        lasts = np.concatenate([np.minimum(lasts, _LAST_SEQUENCE), lasts[is_wrapped] - SEQUENCE_MODULUS])
    return _statistics_of_runs(ids, epochs, firsts, lasts, null_count=int(stamps.counts[~is_stamped].sum()))


def statistics_of_one(stamp: ProducerStamp, count: int) -> ProducerStatistics:
    """Of a single batch, as most commits of an idle partition are: without an array."""
    first, last = stamp.base_sequence, stamp.base_sequence + count - 1
    producer_ids = (stamp.producer_id, stamp.producer_id)
    key = {"producer_id": stamp.producer_id, "producer_epoch": stamp.producer_epoch}
    if last <= _LAST_SEQUENCE:
        return ProducerStatistics(0, producer_ids, (first, last), encode_run(**key, first=first, last=last))
    begin = encode_run(**key, first=first, last=_LAST_SEQUENCE)
    end = encode_run(**key, first=0, last=last - SEQUENCE_MODULUS)
    return ProducerStatistics(0, producer_ids, (0, _LAST_SEQUENCE), f"{begin} {end}")


def statistics_of_rows(rows: pa.RecordBatch) -> ProducerStatistics:
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
