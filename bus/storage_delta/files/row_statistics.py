"""Statistics of a data file for its entry in the log, gathered from its rows a part at a time.

Guards one promise: offsets, timestamps, counts and epochs are those of the rows that were added, and the spans of
producers leave none of them out. Rows whose offsets do not grow are refused: nothing is rewritten out of order. Memory
is bounded whatever the number of rows: of producers, only runs of sequences are kept. Does no I/O.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from bus.errors import StorageDamaged
from bus.storage_delta.files.data_files import encode_stats
from bus.storage_delta.files.live_file import LiveFile
from bus.storage_delta.files.producer_spans import NO_SPANS, PRODUCER_COLUMNS, ProducerStatistics, encode_runs

# This many runs of sequences are kept apart; beyond that, holes between the runs of one producer and epoch are ignored.
_RUNS_MAX = 1 << 16

COLUMNS = ("offset", "timestamp", *PRODUCER_COLUMNS, "leader_epoch")


class RowStatistics:
    """Rows come in offset order, with the columns `COLUMNS` at least."""

    def __init__(self, origin: str) -> None:
        """`origin` names the rows where they are found to be wrong."""
        self._origin = origin
        self._producers = _ProducerRuns()
        self._first_offset = self._last_offset = -1
        self._time_min_us = self._time_max_us = 0
        self._leader_epoch = -1
        self.row_count = 0

    @property
    def next_offset(self) -> int:
        """One past the last record so far."""
        return self._last_offset + 1

    def add(self, rows: pa.Table) -> None:
        """Raises `StorageDamaged` if the offsets do not grow. `rows` are not empty."""
        rows = rows.select(list(COLUMNS)).combine_chunks()
        offsets = _values(rows, "offset")
        if offsets[0] <= self._last_offset or np.any(offsets[1:] <= offsets[:-1]):
            before = np.append(self._last_offset, offsets[:-1])
            at = int(np.argmax(offsets <= before))
            raise StorageDamaged(f"{self._origin}: expected an offset above {before[at]} after it, found {offsets[at]}")
        micros = rows.column("timestamp").chunk(0).view(pa.int64()).to_numpy()
        time_min_us, time_max_us = int(micros.min()), int(micros.max())
        if not self.row_count:
            self._first_offset = int(offsets[0])
            self._time_min_us, self._time_max_us = time_min_us, time_max_us
        self._time_min_us = min(self._time_min_us, time_min_us)
        self._time_max_us = max(self._time_max_us, time_max_us)
        self._last_offset = int(offsets[-1])
        self._leader_epoch = max(self._leader_epoch, int(_values(rows, "leader_epoch").max()))
        self._producers.add(rows)
        self.row_count += rows.num_rows

    def describe(self, path: str, size_bytes: int, *, base_offset: int, next_offset: int) -> tuple[LiveFile, str]:
        """The entry of a file that has these rows and stands for these offsets, and its statistics as JSON."""
        assert self.row_count, f"{path} has no record"
        producers = self._producers.finish()
        file = LiveFile(
            path=path,
            size_bytes=size_bytes,
            base_offset=base_offset,
            next_offset=next_offset,
            record_count=self.row_count,
            timestamp_min_ms=self._time_min_us // 1000,
            timestamp_max_ms=self._time_max_us // 1000,
            leader_epoch=self._leader_epoch,
            producers=producers.spans,
        )
        stats = encode_stats(
            self.row_count,
            producers,
            offsets=(self._first_offset, self._last_offset),
            times_us=(self._time_min_us, self._time_max_us),
        )
        return file, stats


class _ProducerRuns:
    """Sequences of producers as runs: rows that follow each other, of one producer and epoch, one sequence after the
    other."""

    def __init__(self) -> None:
        self._null_count = 0
        self._runs: list[tuple[Any, ...]] = []
        self._run_count = 0

    def add(self, rows: pa.Table) -> None:
        columns = rows.select(list(PRODUCER_COLUMNS))
        if any(column.null_count for column in columns.columns):
            columns = columns.drop_null()
            self._null_count += rows.num_rows - columns.num_rows
        if not columns.num_rows:
            return
        ids, epochs, sequences = (columns.column(name).to_numpy() for name in PRODUCER_COLUMNS)
        is_first = np.ones(len(ids), bool)
        is_first[1:] = (np.diff(ids) != 0) | (np.diff(epochs) != 0) | (np.diff(sequences) != 1)
        begins = np.flatnonzero(is_first)
        ends = np.append(begins[1:], len(ids)) - 1
        runs = (ids[begins], epochs[begins].astype(np.int64), sequences[begins], sequences[ends])
        self._runs.append(runs)
        self._run_count += len(begins)
        if self._run_count > _RUNS_MAX:
            self._runs = [_close_holes(*self._joined())]
            self._run_count = len(self._runs[0][0])

    def finish(self) -> ProducerStatistics:
        if not self._runs:
            return ProducerStatistics(self._null_count, spans=NO_SPANS)
        ids, epochs, firsts, lasts = self._joined()
        return ProducerStatistics(
            null_count=self._null_count,
            producer_ids=(int(ids.min()), int(ids.max())),
            sequences=(int(firsts.min()), int(lasts.max())),
            spans=encode_runs(ids, epochs, firsts, lasts),
        )

    def _joined(self) -> list[Any]:
        return [np.concatenate(parts).astype(np.int64) for parts in zip(*self._runs, strict=True)]


def _close_holes(ids: Any, epochs: Any, firsts: Any, lasts: Any) -> tuple[Any, ...]:
    """One run for each producer and epoch, as wide as theirs together."""
    order = np.lexsort((epochs, ids))
    ids, epochs, firsts, lasts = (values[order] for values in (ids, epochs, firsts, lasts))
    begins = np.flatnonzero(np.append(True, (np.diff(ids) != 0) | (np.diff(epochs) != 0)))
    return ids[begins], epochs[begins], np.minimum.reduceat(firsts, begins), np.maximum.reduceat(lasts, begins)


def _values(rows: pa.Table, name: str) -> Any:
    return rows.column(name).chunk(0).to_numpy()
