"""A producer's records beside those of the table: which of them are there, and where they end.

Guards the promise that a record of an idempotent producer is in the table once, however late it is sent again: what is
called missing is in no live file. Looks into the files that the spans do not exclude, the newest first, and there into
the row groups that their statistics do not exclude. Appends nothing: that is what the caller does with `missing`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from bus.model import SEQUENCE_MODULUS, RecordBatch
from bus.ports import ProducerMatch, ProducerProgress
from bus.records.arrow_batches import select_records, sequences_of
from bus.storage_delta.files.data_reader import DataReader, Statistics
from bus.storage_delta.files.live_file import LiveFile

_COLUMNS = ("offset", "producer_id", "producer_epoch", "sequence")
_Range = tuple[int, int]  # the first and the last


@dataclass(frozen=True, slots=True)
class _Rows:
    """Rows of one producer, in the order of the file."""

    offsets: Any
    epochs: Any
    sequences: Any


def match_batch(
    batch: RecordBatch, spans: Any, files: Sequence[LiveFile], reader: DataReader, *, has_holes: bool = False
) -> ProducerMatch:
    """`spans`: those of the producer in `files`, in the order of the files."""
    assert batch.producer is not None, "only batches of idempotent producers can be matched"
    producer_id, epoch = batch.producer.producer_id, batch.producer.producer_epoch
    sequences = sequences_of(batch)
    ranges = _ranges_of(sequences)
    order = np.argsort(sequences)
    ordered = sequences[order]
    offsets = np.full(len(sequences), -1, np.int64)
    for number in _newest_first(spans[_fits(spans, epoch, ranges)]):
        for rows in _rows_of(reader, files[number], producer_id, epoch, ranges):
            matching = rows.epochs == epoch
            found, at = rows.sequences[matching], rows.offsets[matching]
            places = np.minimum(np.searchsorted(ordered, found), len(ordered) - 1)
            is_wanted = ordered[places] == found
            offsets[order[places[is_wanted]]] = at[is_wanted]
        if np.all(offsets >= 0):
            break
    return ProducerMatch(offsets.tolist(), _missing(batch, offsets < 0), has_holes)


def _missing(batch: RecordBatch, is_missing: Any) -> RecordBatch | None:
    if np.all(is_missing):
        return batch
    return select_records(batch, is_missing) if np.any(is_missing) else None


def find_last_row(
    producer_id: int, spans: Any, files: Sequence[LiveFile], reader: DataReader
) -> ProducerProgress | None:
    """The last row, in offset order, of the producer's highest epoch. `spans` as above."""
    last: tuple[int, int, int] | None = None  # epoch, offset, sequence
    # The highest epochs first, and of these the newest files: the first row found is nearly always the last one.
    for at in np.lexsort((spans["file"], spans["epoch_max"]))[::-1].tolist():
        span = spans[at]
        file = files[int(span["file"])]
        if last is not None and (int(span["epoch_max"]), file.next_offset) <= last[:2]:
            break
        for rows in _rows_of(reader, file, producer_id, None, ()):
            row = np.lexsort((rows.offsets, rows.epochs))[-1]
            found = int(rows.epochs[row]), int(rows.offsets[row]), int(rows.sequences[row])
            last = found if last is None else max(last, found)
    return None if last is None else ProducerProgress(producer_id, last[0], last[2])


def find_first_offset(
    producer_id: int, epoch: int, spans: Any, files: Sequence[LiveFile], reader: DataReader
) -> int | None:
    """Return the offset of sequence 0 of a transaction: the producer's rows of that epoch have offsets as dense as
    their sequences, so the last of these rows that still exists determines it. `spans` as above."""
    everything = [(0, SEQUENCE_MODULUS - 1)]
    for number in _newest_first(spans[_fits(spans, epoch, everything)]):
        for rows in _rows_of(reader, files[number], producer_id, epoch, everything):
            is_it = rows.epochs == epoch
            if np.any(is_it):
                return int(rows.offsets[is_it][-1] - rows.sequences[is_it][-1])
    return None


def later_progress(by_rows: ProducerProgress | None, by_txn: ProducerProgress | None) -> ProducerProgress | None:
    """Return the later of a producer's two positions. Its last rows may have been deleted by retention or compaction,
    and rows that another engine appended need not have come with a `txn`."""
    if by_rows is None or by_txn is None:
        return by_rows or by_txn
    if by_rows.producer_epoch != by_txn.producer_epoch:
        return max(by_rows, by_txn, key=lambda progress: progress.producer_epoch)
    ahead = (by_txn.last_sequence - by_rows.last_sequence) % SEQUENCE_MODULUS
    return by_txn if 0 < ahead < SEQUENCE_MODULUS // 2 else by_rows


def _ranges_of(sequences: Any) -> list[_Range]:
    """Return the ranges that hold all `sequences`: one in each half of the sequence space, so that sequences that
    wrapped to 0 do not widen the range."""
    middle = SEQUENCE_MODULUS // 2
    halves = (sequences[sequences < middle], sequences[sequences >= middle])
    return [(int(half.min()), int(half.max())) for half in halves if len(half)]


def _fits(spans: Any, epoch: int, ranges: Sequence[_Range]) -> Any:
    is_near = np.zeros(len(spans), bool)
    for first, last in ranges:
        is_near |= (spans["sequence_min"] <= last) & (first <= spans["sequence_max"])
    return is_near & (spans["epoch_min"] <= epoch) & (epoch <= spans["epoch_max"])


def _newest_first(spans: Any) -> Iterator[int]:
    yield from np.unique(spans["file"])[::-1].tolist()


def _rows_of(
    reader: DataReader, file: LiveFile, producer_id: int, epoch: int | None, ranges: Sequence[_Range]
) -> Iterator[_Rows]:
    """The producer's rows in the row groups that may hold them, the last group first; an epoch of None, and no
    ranges, exclude nothing."""

    def may_hold(statistics: Statistics) -> bool:
        return (
            _may_hold(statistics, "producer_id", (producer_id, producer_id))
            and (epoch is None or _may_hold(statistics, "producer_epoch", (epoch, epoch)))
            and (not ranges or any(_may_hold(statistics, "sequence", wanted) for wanted in ranges))
        )

    for table in reader.read_columns(file, _COLUMNS, may_hold):
        rows = table.filter(pc.equal(table.column("producer_id"), pa.scalar(producer_id, pa.int64())))
        rows = rows.filter(pc.and_(rows.column("producer_epoch").is_valid(), rows.column("sequence").is_valid()))
        if rows.num_rows:
            yield _Rows(*(rows.column(name).to_numpy() for name in ("offset", "producer_epoch", "sequence")))


def _may_hold(statistics: Statistics, name: str, wanted: _Range) -> bool:
    """False only where a row group's statistics say that no value of the column lies in the range."""
    found = statistics.get(name)
    if found is None:
        return True
    if not found.has_min_max:
        return not (found.has_null_count and found.null_count == found.num_values + found.null_count)
    return bool(found.min_raw <= wanted[1] and wanted[0] <= found.max_raw)
