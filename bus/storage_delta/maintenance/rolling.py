"""Rolling: many small data files rewritten as one large one, every row as it was.

Guards one promise: no row goes but those below the log start, which were deleted; none changes, none moves; a file that
reads out of order, as another engine may have left it, is in offset order afterwards. Commits nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa

from bus.errors import StorageDamaged, count_of
from bus.ports import Pace, SwapKind
from bus.storage_delta.files.data_reader import DataReader
from bus.storage_delta.files.live_file import LiveFile
from bus.storage_delta.files.tombstone_ages import ages_of, thin
from bus.storage_delta.log.writer import FilesUnderWay
from bus.storage_delta.maintenance.rewritten_file import FileRewriter, Rewriting, is_from
from bus.storage_delta.maintenance.swaps import PreparedSwap, prepared_swap
from bus.storage_delta.stores.store import ObjectStore

# A Delta reader takes larger files in pieces anyway, and an object store wants them in at most 10,000 parts.
FILE_BYTES_MAX = 16 << 30


class Rolling:
    """Of the table in `folder`; each call of `prepare` is one."""

    def __init__(
        self,
        store: ObjectStore,
        folder: str,
        reader: DataReader,
        schema: pa.Schema,
        under_way: FilesUnderWay,
    ) -> None:
        self._folder = folder
        self._rewriter = FileRewriter(store, folder, schema, under_way)
        self._reader = reader
        self._schema = schema

    def prepare(
        self,
        files: Sequence[LiveFile],
        *,
        log_start: int,
        compression: str,
        now_ms: int,
        tombstone_retention_ms: int,
        pace: Pace,
        file_bytes_max: int = FILE_BYTES_MAX,
    ) -> PreparedSwap:
        """Write the file that is to replace `files`, live ones that follow each other, without what lies below
        `log_start`. Raises `StorageFault`; then nothing stays written."""
        assert files, f"{self._folder}: nothing to roll"
        rewriting = Rewriting.of(
            files,
            log_start=log_start,
            ages=thin(ages_of(files), now_ms=now_ms, retention_ms=tombstone_retention_ms),
            compression=compression,
            file_bytes_max=file_bytes_max,
        )
        read = _Counted(self._reader, self._schema, pace)
        written = self._rewriter.write(read.rows(files, begin=rewriting.base_offset), rewriting, pace)
        expected = sum(file.record_count for file in files)
        found = sum(file.record_count for file, _ in written) + read.deleted_count
        if found != expected:
            self._rewriter.discard(written)
            raise StorageDamaged(
                f"{self._folder}: expected {count_of(expected, 'row')} in {count_of(len(files), 'file')} from "
                f"{files[0].path} on, found {found}"
            )
        return prepared_swap(files, written, SwapKind.SAME_ROWS, txn_id=rewriting.txn_id)


class _Counted:
    """The rows of files, and how many of them were deleted and are left out."""

    def __init__(self, reader: DataReader, schema: pa.Schema, pace: Pace) -> None:
        self._reader = reader
        self._names = schema.names
        self._pace = pace
        self.deleted_count = 0

    def rows(self, files: Sequence[LiveFile], *, begin: int) -> Iterator[pa.Table]:
        for file in files:
            for rows in self._reader.scan(file, self._names):
                self._pace(file.size_bytes * rows.num_rows // file.record_count)
                kept = rows.filter(pa.array(is_from(rows, begin))) if file.base_offset < begin else rows
                self.deleted_count += rows.num_rows - kept.num_rows
                if kept.num_rows:
                    yield kept
