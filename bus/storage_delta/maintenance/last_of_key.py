"""A search for the last row of each key, with bounded memory however many keys there are.

Guards one promise: of every key exactly the last row is found, by comparing the keys themselves. Keys are taken range
by range: a pass over all keys holds the smallest of those that are not done, and gives up the upper half of its range
whenever they outgrow `budget_bytes`; the next pass begins there. So a pass needs a few times the budget and what one
row group brings, and there are about 4 * (bytes of the distinct keys) / `budget_bytes` passes. The answer is one bit a
row. Does no I/O.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

_KEY_BYTES_MAX = 32 << 20
_ROWS_AT_ONCE = 1 << 16
_SAMPLE_MAX = 4096


class RowBits:
    """One bit a row."""

    def __init__(self, row_count: int) -> None:
        self._bits = np.zeros(-(-row_count // 8), np.uint8)

    def set(self, rows: Any) -> None:
        for _, part in _slices(rows):
            np.bitwise_or.at(self._bits, part >> 3, np.left_shift(1, part & 7).astype(np.uint8))

    def slice(self, first: int, count: int) -> Any:
        """The bits of `count` rows as an array of bool."""
        bits = np.unpackbits(self._bits[first >> 3 : (first + count + 7) >> 3], bitorder="little")
        return bits[first & 7 :][:count].astype(bool)


def find_last_of_keys(
    scan_keys: Callable[[], Iterable[pa.ChunkedArray]], row_count: int, *, budget_bytes: int = _KEY_BYTES_MAX
) -> RowBits:
    """The rows that are the last of their key, and those without a key. `scan_keys` gives the keys of all `row_count`
    rows in their order, each time it is called."""
    found = RowBits(row_count)
    begin: pa.Scalar | None = None
    is_first = True
    while is_first or begin is not None:
        table, end = _last_in_range(_chunks(scan_keys, found if is_first else None), begin, budget_bytes)
        found.set(table.column("row").to_numpy())
        begin, is_first = end, False
    return found


def _chunks(scan_keys: Callable[[], Iterable[pa.ChunkedArray]], keyless: RowBits | None) -> Iterator[pa.Table]:
    """Yield the rows that have a key; the others are noted in `keyless`."""
    first = 0
    for keys in scan_keys():
        rows = np.arange(first, first + len(keys))
        first += len(keys)
        if keys.null_count and keyless is not None:
            keyless.set(rows[keys.is_null().to_numpy()])
        yield pa.table({"key": keys, "row": rows}).filter(keys.is_valid())


def _last_in_range(
    chunks: Iterable[pa.Table], begin: pa.Scalar | None, budget_bytes: int
) -> tuple[pa.Table, pa.Scalar | None]:
    """Keys above `begin`, as many as fit, and the last of them; None if those were all."""
    end: pa.Scalar | None = None
    held: list[pa.Table] = []
    held_bytes = 0
    for chunk in chunks:
        wanted = _within(chunk, begin, end)
        held.append(wanted)
        held_bytes += wanted.nbytes
        if held_bytes > budget_bytes:
            last = _last_of_each(held)
            if last.nbytes > budget_bytes // 2 and last.num_rows > 1:
                end = _middle(last.column("key"))
                last = _within(last, None, end)
            held, held_bytes = [last], last.nbytes
    return _last_of_each(held), end


def _within(chunk: pa.Table, begin: pa.Scalar | None, end: pa.Scalar | None) -> pa.Table:
    if begin is not None:
        chunk = chunk.filter(pc.greater(chunk.column("key"), begin))
    return chunk if end is None else chunk.filter(pc.less_equal(chunk.column("key"), end))


def _middle(keys: pa.ChunkedArray) -> pa.Scalar:
    """A key with about as many below it as above; at least one is above. `keys` differ, and are two or more."""
    sample = keys.take(pa.array(np.arange(0, len(keys), max(1, len(keys) // _SAMPLE_MAX))))
    ordered = sample.take(pc.sort_indices(sample))
    return ordered[(len(ordered) - 1) // 2]


def _last_of_each(tables: list[pa.Table]) -> pa.Table:
    """Rows of a later table are later ones. Each key once, in no order."""
    if not tables:
        return pa.table({"key": pa.array([], pa.binary()), "row": pa.array([], pa.int64())})
    joined = pa.concat_tables(tables)
    numbered = joined.column("key").dictionary_encode().chunks
    if not numbered:
        return joined
    rows = joined.column("row").to_numpy()
    last = np.empty(len(numbered[-1].dictionary), np.int64)
    for part, numbers in _slices(np.concatenate([chunk.indices.to_numpy() for chunk in numbered])):
        last[numbers] = rows[part]  # a later row overwrites an earlier one with the same number
    return pa.table({"key": numbered[-1].dictionary, "row": last})


def _slices(values: Any) -> Iterator[tuple[slice, Any]]:
    """A part at a time: what numpy does with each keeps the interpreter for itself."""
    for first in range(0, len(values), _ROWS_AT_ONCE):
        part = slice(first, first + _ROWS_AT_ONCE)
        yield part, values[part]
