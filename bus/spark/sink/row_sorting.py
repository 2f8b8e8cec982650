"""An order of a task's rows that does not depend on the order in which they came.

Behind a shuffle a task that runs again may see its rows in another order. Guards one promise: the same rows are given
out in the same order within each partition. It is the order of a hash, which is fast; rows whose hashes are equal by
chance are ordered by what was hashed. Rows that are equal in that keep the order in which they came.

Up to `memory_bytes` are sorted in memory. Beyond it rows go to files by ranges of the hash, which are sorted one after
another: the order is the same, and memory is bounded by the largest range (rows of one key stay together).
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from bus.client.producer.partitioning import split_by_partition
from bus.spark.sink.placement import Numbers

Codes = npt.NDArray[np.uint64]
_RANGES_BITS = 6
_RANGES = 1 << _RANGES_BITS
_TARGET, _CODE = "__target", "__code"
# Odd, so that no two codes become one, and the ranges are as good as random (Knuth's multiplicative hashing).
_MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)


class RowSorter:
    """`names`: the columns that decide, those that were hashed. Use as a context: files end with it."""

    def __init__(self, names: Sequence[str], *, memory_bytes: int) -> None:
        self._names = tuple(names)
        self._memory_bytes = memory_bytes
        self._held: list[pa.RecordBatch] = []
        self._held_bytes = 0
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._files: dict[int, Any] = {}

    def add(self, targets: Numbers, hashes: Codes, records: pa.RecordBatch) -> None:
        """`hashes`: equal for rows that are equal in `names`."""
        if not records.num_rows:
            return  # of a batch whose rows have no key
        codes = hashes * _MULTIPLIER
        batch = records.append_column(_TARGET, pa.array(targets)).append_column(_CODE, pa.array(codes))
        self._held.append(batch)
        self._held_bytes += batch.nbytes
        if self._held_bytes > self._memory_bytes:
            self._spill()

    def drain(self) -> Iterator[tuple[int, pa.RecordBatch]]:
        """Targets and rows. A target may come several times."""
        if not self._files:
            held, self._held, self._held_bytes = self._held, [], 0
            yield from self._sorted(held)
            return
        self._spill()
        for number in sorted(self._files):
            self._files[number].close()
            with pa.memory_map(str(self._path(number))) as file, pa.ipc.open_stream(file) as reader:
                yield from self._sorted(list(reader))

    def _sorted(self, batches: Sequence[pa.RecordBatch]) -> Iterator[tuple[int, pa.RecordBatch]]:
        if not batches:
            return
        together = pa.concat_batches(batches)
        targets, codes = together.column(_TARGET).to_numpy(), together.column(_CODE).to_numpy()
        order = np.lexsort((codes, targets))
        targets, codes = targets[order], codes[order]
        rows = together.drop_columns([_TARGET, _CODE]).take(pa.array(order))
        rows = _order_ties(rows, self._names, (targets[1:] == targets[:-1]) & (codes[1:] == codes[:-1]))
        starts = np.flatnonzero(np.diff(targets, prepend=-1))
        for start, stop in zip(starts, [*starts[1:], len(targets)], strict=True):
            yield int(targets[start]), rows.slice(int(start), int(stop - start))

    def _spill(self) -> None:
        if not self._held:
            return
        together = pa.concat_batches(self._held)
        self._held, self._held_bytes = [], 0
        ranges = (together.column(_CODE).to_numpy() >> np.uint64(64 - _RANGES_BITS)).astype(np.int64)
        for number, rows in split_by_partition(together, ranges, _RANGES):
            if number not in self._files:
                self._files[number] = pa.ipc.new_stream(str(self._path(number)), together.schema)
            self._files[number].write_batch(rows)

    def _path(self, number: int) -> Path:
        if self._folder is None:
            self._folder = tempfile.TemporaryDirectory(prefix="bus-sink-")
        return Path(self._folder.name) / f"{number}.arrow"

    def __enter__(self) -> RowSorter:
        return self

    def __exit__(self, *_: object) -> None:
        for file in self._files.values():
            file.close()
        if self._folder is not None:
            self._folder.cleanup()


def _order_ties(rows: pa.RecordBatch, names: Sequence[str], is_tied: Any) -> pa.RecordBatch:
    """`is_tied[i]`: rows i and i + 1 have one target and one hash. Where they are not equal, the columns decide."""
    present = [name for name in names if name in rows.schema.names]
    differs = is_tied & np.logical_or.reduce([_differ(rows.column(name)) for name in present])
    if not differs.any():
        return rows
    order = np.arange(rows.num_rows)
    # A run of ties begins after each pair that is not tied.
    run_of_row = np.concatenate([[0], np.cumsum(~is_tied)])
    for run in np.unique(run_of_row[:-1][differs]):
        where = np.arange(*np.searchsorted(run_of_row, [run, run + 1]))
        columns = [rows.column(name).take(pa.array(where)).to_pylist() for name in present]
        values = [tuple(map(_comparable, row)) for row in zip(*columns, strict=True)]
        order[where] = where[sorted(range(len(where)), key=values.__getitem__)]
    return rows.take(pa.array(order))


def _differ(column: pa.Array) -> Any:
    """Whether each is another than the one before it. What Arrow cannot compare counts as different."""
    if not pa.types.is_binary(column.type):
        return pc.or_(pc.is_valid(column[1:]), pc.is_valid(column[:-1])).to_numpy(zero_copy_only=False)
    is_other = pc.fill_null(pc.not_equal(column[1:], column[:-1]), False)
    return pc.or_(is_other, pc.xor(pc.is_null(column[1:]), pc.is_null(column[:-1]))).to_numpy(zero_copy_only=False)


def _comparable(value: Any) -> tuple[bool, Any]:
    if isinstance(value, list):
        return True, [(entry["key"], _comparable(entry["value"])) for entry in value]
    return value is not None, b"" if value is None else value
