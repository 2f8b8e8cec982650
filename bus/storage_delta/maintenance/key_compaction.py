"""Key compaction: files that keep of every key its last record, written in place of those that have them all.

Guards two promises: a record goes only if a later one of its key is in the same files, if it is a tombstone that was
there long enough, or if it lies below the log start; and what stays keeps its offset, its order and all its columns.
The last record of all always stays, as the newest segment does in Kafka: so the files cover the offsets of those that
they replace, from the first to the last. Memory is bounded whatever the number of keys and rows: `find_last_of_keys`
says how for the keys, rewritten_file.py for the rows, and rows that are read for their keys are kept for the second
pass only up to a limit. Commits nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from bus.ports import Pace, SwapKind, no_pace
from bus.storage_delta.files.data_reader import DataReader
from bus.storage_delta.files.live_file import LiveFile, ages_of, end_of_old, thin
from bus.storage_delta.log.writer import FilesUnderWay
from bus.storage_delta.maintenance.rewritten_file import FileRewriter, PreparedSwap, Rewriting, is_from, prepared_swap
from bus.storage_delta.stores.store import ObjectStore

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
    """Find the rows that are the last of their key, and those without a key. `scan_keys` gives the keys of all
    `row_count` rows in their order, each time it is called.

    Guards one promise: of every key exactly the last row is found, by comparing the keys themselves. Keys are taken
    range by range: a pass over all keys holds the smallest of those that are not done, and gives up the upper half of
    its range whenever they outgrow `budget_bytes`; the next pass begins there. So a pass needs a few times the budget
    and what one row group brings, and there are about 4 * (bytes of the distinct keys) / `budget_bytes` passes. The
    answer is one bit a row. Does no I/O."""
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


FILE_BYTES_MAX = 128 << 20
# A log of small files costs the opening of each, not its bytes: rows of these are kept from one pass to the next.
_KEPT_BYTES_MAX = 32 << 20
_KEPT_FILE_BYTES_MAX = 1 << 20
# Written once, in the background, and read for long: what producers had no time for is worth it here.
_COMPRESSION = "zstd"


class KeyCompaction:
    """Key compaction of the table in `folder`; each call of `prepare` prepares one."""

    def __init__(
        self,
        store: ObjectStore,
        folder: str,
        reader: DataReader,
        schema: pa.Schema,
        under_way: FilesUnderWay,
        *,
        file_bytes_max: int = FILE_BYTES_MAX,
    ) -> None:
        self._rewriter = FileRewriter(store, folder, schema, under_way)
        self._reader = reader
        self._schema = schema
        self._file_bytes_max = file_bytes_max

    def prepare(
        self,
        files: Sequence[LiveFile],
        *,
        now_ms: int,
        tombstone_retention_ms: int,
        log_start: int = 0,
        pace: Pace = no_pace,
    ) -> PreparedSwap | None:
        """Write the files that are to replace `files`, the first live ones in offset order. None, and nothing stays
        written, if no record goes and the files would not become fewer. Raises `StorageFault`, likewise."""
        if not files:
            return None
        ages = ages_of(files)
        old_end = end_of_old(ages, until_ms=now_ms - tombstone_retention_ms)
        rewriting = Rewriting.of(
            files,
            log_start=log_start,
            ages=thin(ages, now_ms=now_ms, retention_ms=tombstone_retention_ms),
            compression=_COMPRESSION,
            file_bytes_max=self._file_bytes_max,
        )
        written = self._rewriter.write(self._kept_rows(files, old_end, rewriting.base_offset, pace), rewriting, pace)
        removed_count = sum(file.record_count for file in files) - sum(file.record_count for file, _ in written)
        if not removed_count and len(written) >= len(files):
            self._rewriter.discard(written)
            return None
        return prepared_swap(files, written, SwapKind.LAST_OF_KEYS, txn_id=rewriting.txn_id)

    def _kept_rows(self, files: Sequence[LiveFile], old_end: int, begin: int, pace: Pace) -> Iterator[pa.Table]:
        kept: dict[str, list[pa.Table]] = {}  # keyed by path
        is_last = find_last_of_keys(lambda: self._keys(files, kept, pace), sum(file.record_count for file in files))
        last_offset = files[-1].next_offset - 1
        first = 0
        for file in files:
            for rows in kept.pop(file.path, None) or self._reader.scan(file, self._schema.names):
                pace(rows.nbytes)
                is_kept = is_last.slice(first, rows.num_rows)
                first += rows.num_rows
                is_kept &= ~_is_expired(rows, old_end=old_end, last_offset=last_offset) & is_from(rows, begin)
                if is_kept.any():
                    yield rows.filter(pa.array(is_kept))

    def _keys(
        self, files: Sequence[LiveFile], kept: dict[str, list[pa.Table]], pace: Pace
    ) -> Iterator[pa.ChunkedArray]:
        """Yield the keys of all rows. `kept` receives all columns of the rows of small files, as long as there is
        room."""
        room_bytes = _KEPT_BYTES_MAX - sum(rows.nbytes for tables in kept.values() for rows in tables)
        for file in files:
            is_small = file.size_bytes <= min(_KEPT_FILE_BYTES_MAX, room_bytes)
            if is_small and file.path not in kept:
                kept[file.path] = list(self._reader.scan(file, self._schema.names))
                room_bytes -= sum(rows.nbytes for rows in kept[file.path])
            for rows in kept.get(file.path) or self._reader.scan(file, ["key"]):
                pace(rows.nbytes)
                yield rows.column("key")


def _is_expired(rows: pa.Table, *, old_end: int, last_offset: int) -> Any:
    """Tombstones below `old_end`; those without a key are records like any other."""
    offsets = rows.column("offset").to_numpy()
    is_tombstone = rows.column("value").is_null().to_numpy() & rows.column("key").is_valid().to_numpy()
    return is_tombstone & (offsets < old_end) & (offsets != last_offset)
