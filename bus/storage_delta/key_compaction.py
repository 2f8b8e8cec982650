"""Key compaction: files that keep of every key its last record, written in place of those that have them all.

Guards two promises: a record goes only if a later one of its key is in the same files, or if it is a tombstone that was
there long enough; and what stays keeps its offset, its order and all its columns. The last record of all always stays,
as the newest segment does in Kafka: so the files cover the offsets of those that they replace, from the first to the
last. Memory is bounded whatever the number of keys and rows: last_of_key.py says how for the keys; then one row group
and one encoded file. Commits nothing.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa

from bus.ports import Pace, PreparedFiles, no_pace
from bus.storage_delta.actions import LiveFile
from bus.storage_delta.compacted_file import CompactedFile
from bus.storage_delta.data_reader import DataReader
from bus.storage_delta.last_of_key import find_last_of_keys
from bus.storage_delta.store import ObjectStore
from bus.storage_delta.swaps import SwapPlan, discard
from bus.storage_delta.tombstone_ages import ages_of, encode_ages, end_of_old, thin

FILE_BYTES_MAX = 128 << 20
# A file's statistics need the producers of all its rows.
_FILE_ROWS_MAX = 4_000_000


class KeyCompaction:
    """Of the table in `folder`; each call of `prepare` is one."""

    def __init__(
        self,
        store: ObjectStore,
        folder: str,
        reader: DataReader,
        schema: pa.Schema,
        *,
        file_bytes_max: int = FILE_BYTES_MAX,
    ) -> None:
        self._store = store
        self._folder = folder
        self._reader = reader
        self._schema = schema
        self._file_bytes_max = file_bytes_max

    def prepare(
        self, files: Sequence[LiveFile], *, now_ms: int, tombstone_retention_ms: int, pace: Pace = no_pace
    ) -> PreparedFiles | None:
        """Write the files that are to replace `files`, the first live ones in offset order. None, and nothing stays
        written, if no record goes and the files would not become fewer. Raises `StorageFault`, likewise."""
        if not files:
            return None
        ages = ages_of(files)
        old_end = end_of_old(ages, until_ms=now_ms - tombstone_retention_ms)
        txn_id = str(uuid.uuid4())
        written: list[tuple[LiveFile, str]] = []
        try:
            for file_and_stats in self._write(files, self._kept_rows(files, old_end, pace), txn_id):
                written.append(file_and_stats)  # what is written must be known if the next one fails
            removed_count = sum(file.record_count for file in files) - sum(file.record_count for file, _ in written)
            if not removed_count and len(written) >= len(files):
                self._discard(written)
                return None
        except BaseException:
            self._discard(written)
            raise
        ages = thin(ages, now_ms=now_ms, retention_ms=tombstone_retention_ms)
        level = 1 + max(file.level for file in files)
        adds = [(_with_ages(file, ages, level, now_ms), stats) for file, stats in written]
        return PreparedFiles(
            removes=[file.path for file in files],
            added_count=len(adds),
            rewritten_bytes=sum(file.size_bytes for file, _ in adds),
            plan=SwapPlan(adds, "COMPACT", files[-1].next_offset, txn_id),
        )

    def _discard(self, written: Iterable[tuple[LiveFile, str]]) -> None:
        discard(self._store, self._folder, (file.path for file, _ in written))

    def _kept_rows(self, files: Sequence[LiveFile], old_end: int, pace: Pace) -> Iterator[pa.Table]:
        is_last = find_last_of_keys(lambda: self._keys(files, pace), sum(file.record_count for file in files))
        last_offset = files[-1].next_offset - 1
        first = 0
        for file in files:
            for rows in self._reader.scan(file, self._schema.names):
                pace(rows.nbytes)
                is_kept = is_last.slice(first, rows.num_rows)
                first += rows.num_rows
                is_kept &= ~_is_expired(rows, old_end=old_end, last_offset=last_offset)
                if is_kept.any():
                    yield rows.filter(pa.array(is_kept))

    def _keys(self, files: Sequence[LiveFile], pace: Pace) -> Iterator[pa.ChunkedArray]:
        for file in files:
            for rows in self._reader.scan(file, ["key"]):
                pace(rows.nbytes)
                yield rows.column("key")

    def _write(
        self, files: Sequence[LiveFile], kept: Iterable[pa.Table], txn_id: str
    ) -> Iterator[tuple[LiveFile, str]]:
        """Each file once it is in the store."""
        writing = CompactedFile(self._schema, files[0].base_offset)
        for rows in kept:
            if writing.row_count and (
                writing.size_bytes + rows.nbytes > self._file_bytes_max
                or writing.row_count + rows.num_rows > _FILE_ROWS_MAX
            ):
                yield self._finish(writing, None, txn_id)
                writing = CompactedFile(self._schema, writing.next_offset)
            writing.add(rows)
        yield self._finish(writing, files[-1].next_offset, txn_id)

    def _finish(self, writing: CompactedFile, next_offset: int | None, txn_id: str) -> tuple[LiveFile, str]:
        encoded = writing.finish(next_offset=next_offset, name_suffix=txn_id)
        self._store.write_unique(f"{self._folder}/{encoded.file.path}", encoded.data)
        return encoded.file, encoded.stats


def _is_expired(rows: pa.Table, *, old_end: int, last_offset: int) -> Any:
    """Tombstones below `old_end`; those without a key are records like any other."""
    offsets = rows.column("offset").to_numpy()
    is_tombstone = rows.column("value").is_null().to_numpy() & rows.column("key").is_valid().to_numpy()
    return is_tombstone & (offsets < old_end) & (offsets != last_offset)


def _with_ages(file: LiveFile, ages: Sequence[tuple[int, int]], level: int, now_ms: int) -> LiveFile:
    return replace(
        file,
        committed_ms=now_ms,
        level=level,
        ages=encode_ages(ages, base_offset=file.base_offset, next_offset=file.next_offset),
    )
