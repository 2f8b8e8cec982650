"""Key compaction: files that keep of every key its last record, written in place of those that have them all.

Guards two promises: a record goes only if a later one of its key is in the same files, if it is a tombstone that was
there long enough, or if it lies below the log start; and what stays keeps its offset, its order and all its columns.
The last record of all always stays, as the newest segment does in Kafka: so the files cover the offsets of those that
they replace, from the first to the last. Memory is bounded whatever the number of keys and rows: last_of_key.py says
how for the keys, rewritten_file.py for the rows, and rows that are read for their keys are kept for the second pass
only up to a limit. Commits nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa

from bus.ports import Pace, SwapKind, no_pace
from bus.storage_delta.files.data_reader import DataReader
from bus.storage_delta.files.live_file import LiveFile
from bus.storage_delta.files.tombstone_ages import ages_of, end_of_old, thin
from bus.storage_delta.log.writer import FilesUnderWay
from bus.storage_delta.maintenance.last_of_key import find_last_of_keys
from bus.storage_delta.maintenance.rewritten_file import FileRewriter, Rewriting, is_from
from bus.storage_delta.maintenance.swaps import PreparedSwap, prepared_swap
from bus.storage_delta.stores.store import ObjectStore

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
