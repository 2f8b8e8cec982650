"""The columns of batches as runs: what the broker adds to records stays the same or goes up by one.

Guards one promise: the columns have the rows that `complete_columns` of these batches has, in the same order. Builds no
array, so a commit of a few records costs none. Does no I/O.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby, pairwise

import pyarrow as pa

from bus.model import SEQUENCE_MODULUS, LogBatch
from bus.records.arrow_batches import complete_columns
from bus.storage_delta.files.producer_spans import PRODUCER_COLUMNS
from bus.storage_delta.files.small_parquet import Column, Run

# None of the batches brings one of these.
RUN_COLUMNS = frozenset(("offset", "timestamp_type", *PRODUCER_COLUMNS, "leader_epoch"))


def columns_of(batches: Sequence[LogBatch], schema: pa.Schema) -> Sequence[Column]:
    """Return the columns of `schema`, which is the log's: those of `RUN_COLUMNS` as runs."""
    for previous, batch in pairwise(batches):
        assert batch.base_offset == previous.next_offset, f"{batch.base_offset} follows {previous.next_offset}"
    row_count = batches[-1].next_offset - batches[0].base_offset
    return [
        [Run(row_count, batches[0].base_offset, 1)],
        _timestamps(batches, schema.field("timestamp")),
        _merged([Run(batch.record_count, int(batch.timestamp_type)) for batch in batches]),
        *(_arrays(batches, schema.field(name)) for name in ("key", "value", "headers")),
        *_producer_runs(batches),
        _merged([Run(batch.record_count, batch.leader_epoch) for batch in batches]),
    ]


def _merged(runs: Sequence[Run]) -> Sequence[Run]:
    """Rows of one value each, with neighbours of the same value in one run."""
    if len(runs) == 1:
        return runs
    return [Run(sum(run.length for run in same), value) for value, same in groupby(runs, lambda run: run.first)]


def _timestamps(batches: Sequence[LogBatch], field: pa.Field) -> Column:
    """The timestamps: runs count microseconds."""
    if all(batch.timestamp_ms is not None for batch in batches):
        return _merged([Run(batch.record_count, (batch.timestamp_ms or 0) * 1000) for batch in batches])
    return [complete_columns(batch, [field.name]).column(0) for batch in batches]


def _arrays(batches: Iterable[LogBatch], field: pa.Field) -> Column:
    """A column that batches may bring, one array for each batch."""
    indices = [(batch, batch.columns.schema.get_field_index(field.name)) for batch in batches]
    if all(index < 0 for _, index in indices):
        return None
    return [
        batch.columns.column(index) if index >= 0 else pa.nulls(batch.record_count, field.type)
        for batch, index in indices
    ]


def _producer_runs(batches: Sequence[LogBatch]) -> Sequence[Column]:
    """The ids, the epochs and the sequences, which begin anew at 0 behind the last one."""
    if all(batch.producer is None for batch in batches):
        return [None] * len(PRODUCER_COLUMNS)
    ids: list[Run] = []
    epochs: list[Run] = []
    sequences: list[Run] = []
    for batch in batches:
        count, stamp = batch.record_count, batch.producer
        if stamp is None:
            for runs in (ids, epochs, sequences):
                runs.append(Run(count, None))
            continue
        ids.append(Run(count, stamp.producer_id))
        epochs.append(Run(count, stamp.producer_epoch))
        before = min(count, SEQUENCE_MODULUS - stamp.base_sequence)
        sequences.append(Run(before, stamp.base_sequence, 1))
        if before < count:
            sequences.append(Run(count - before, 0, 1))
    return ids, epochs, sequences
