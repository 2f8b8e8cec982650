"""Files that a leader prepares to take the place of live data files: files rolled into larger ones, files compacted by
key, and files that a job wrote.

Guards one promise: what is prepared is never taken for an orphan before it is swapped in or given up, and is told from
what was prepared before the log was read again. Prepares beside appends and reads; only `swap` commits.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import replace

import pyarrow as pa

from bus.errors import ErrorCode, Refused, StorageDamaged, StorageFault, count_of
from bus.ports import (
    OFFSET_MAX,
    CommitOutcome,
    Committed,
    Conflicted,
    LogFile,
    Pace,
    PreparedFiles,
    SwapKind,
    no_pace,
)
from bus.storage_delta.files.data_reader import DataReader
from bus.storage_delta.files.live_file import LiveFile, ages_of, thin
from bus.storage_delta.leadership import Leadership
from bus.storage_delta.log.actions import encode_swap
from bus.storage_delta.log.writer import FilesUnderWay, LogWriter
from bus.storage_delta.maintenance.cleanup import Cleanup
from bus.storage_delta.maintenance.key_compaction import KeyCompaction
from bus.storage_delta.maintenance.rewritten_file import (
    FileRewriter,
    PreparedSwap,
    Rewriting,
    is_from,
    prepared_swap,
)
from bus.storage_delta.maintenance.swap_checks import check_swap
from bus.storage_delta.partition_reader import PartitionReader
from bus.storage_delta.stores.store import ObjectStore

# A Delta reader takes larger files in pieces anyway, and an object store wants them in at most 10,000 parts.
FILE_BYTES_MAX = 16 << 30


class Rolling:
    """Rolling of the table in `folder`: rewrites many small data files as one large one. Each call of `prepare`
    prepares one.

    Guards one promise: only rows below the log start, which are deleted, disappear; all others keep their offset and
    content. A file out of offset order, which another engine may have left, is in order afterwards. Commits nothing."""

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
        read = _Counted(self._reader, pace)
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

    def __init__(self, reader: DataReader, pace: Pace) -> None:
        self._reader = reader
        self._pace = pace
        self.deleted_count = 0

    def rows(self, files: Sequence[LiveFile], *, begin: int) -> Iterator[pa.Table]:
        for size_bytes, rows in self._reader.scan_once(files):
            self._pace(size_bytes)
            kept = rows.filter(pa.array(is_from(rows, begin))) if files[0].base_offset < begin else rows
            self.deleted_count += rows.num_rows - kept.num_rows
            if kept.num_rows:
                yield kept


class Rewrites:
    """Implements `bus.ports.TableRewrites`."""

    def __init__(
        self,
        store: ObjectStore,
        folder: str,
        schema: pa.Schema,
        reader: PartitionReader,
        log: LogWriter,
        under_way: FilesUnderWay,
        leadership: Leadership,
        cleanup: Cleanup,
    ) -> None:
        self._store = store
        self._folder = folder
        self._schema = schema
        self._reader = reader
        self._log = log
        self._under_way = under_way
        self._leadership = leadership
        self._cleanup = cleanup
        self._compaction = KeyCompaction(store, folder, reader.data, schema, under_way)
        self._rolling = Rolling(store, folder, reader.data, schema, under_way)
        self._nothing_to_gain_to = 0  # offsets below it were seen by a compaction that changed nothing

    @property
    def files(self) -> Sequence[LiveFile]:
        return self._reader.view.live_files

    @property
    def compacted_to(self) -> int:
        return self._reader.view.compacted_to

    def find_backlog(self) -> Sequence[LiveFile]:
        view = self._reader.view
        seen_to = max(view.compacted_to, self._nothing_to_gain_to)
        count = view.state.file_count
        first = bisect_left(view.files, seen_to, hi=count, key=lambda file: file.base_offset)
        return view.files[first:count]

    def prepare_key_compaction(
        self, *, now_ms: int, tombstone_retention_ms: int, end_offset: int = OFFSET_MAX, pace: Pace = no_pace
    ) -> PreparedFiles | None:
        reloads = self._log.reloads
        with self._reader.reading() as view:
            files = [file for file in view.live_files if file.next_offset <= end_offset]
            prepared = self._compaction.prepare(
                files,
                log_start=view.state.log_start,
                now_ms=now_ms,
                tombstone_retention_ms=tombstone_retention_ms,
                pace=pace,
            )
        if prepared is None and files:
            self._nothing_to_gain_to = files[-1].next_offset
        return None if prepared is None else replace(prepared, reloads=reloads)

    def prepare_roll(
        self,
        files: Sequence[LogFile],
        *,
        compression: str,
        now_ms: int,
        tombstone_retention_ms: int,
        pace: Pace = no_pace,
    ) -> PreparedFiles:
        reloads = self._log.reloads
        with self._reader.reading() as view:
            first = view.find_run([file.path for file in files])
            if first is None:
                raise StorageFault(f"{self._folder}: the files to be rolled have changed since they were chosen")
            prepared = self._rolling.prepare(
                view.live_files[first : first + len(files)],
                log_start=view.state.log_start,
                compression=compression,
                now_ms=now_ms,
                tombstone_retention_ms=tombstone_retention_ms,
                pace=pace,
            )
        return replace(prepared, reloads=reloads)

    def check_swap(self, removes: Sequence[str], adds: Sequence[str], kind: SwapKind) -> PreparedFiles | Refused:
        busy = next((name for name in adds if name in self._under_way), None)
        if busy is not None:
            return Refused(ErrorCode.INVALID_REQUEST, f"{busy}: expected a file of no other swap, found it in one")
        # From now until the swap they are no orphans, however long it takes to read them.
        for name in adds:
            self._under_way.add(name)
        checked: PreparedSwap | Refused | None = None
        reloads = self._log.reloads
        try:
            with self._reader.reading() as view:
                removed = self._cleanup.find_removed()
                checked = check_swap(
                    self._reader.data, self._schema, view, removed, removes=removes, adds=adds, kind=kind
                )
                if isinstance(checked, PreparedSwap):
                    # Their writer need not have synced them, nor their names.
                    self._store.sync(self._folder, adds)
                    checked = replace(checked, reloads=reloads, is_adopted=True)
        except BaseException:
            checked = None
            raise
        finally:
            if not isinstance(checked, PreparedSwap):
                self._under_way.settle(adds)
        return checked

    def swap(self, prepared: PreparedFiles, *, leader_epoch: int, now_ms: int) -> CommitOutcome:
        self._leadership.check(leader_epoch)
        assert isinstance(prepared, PreparedSwap), f"expected what this table prepared, found {prepared}"
        view, removes = self._reader.view, prepared.removes
        first = view.find_run(removes)
        if first is None or prepared.reloads != self._log.reloads:
            paths = [file.path for file, _ in prepared.adds]
            if first is not None and prepared.is_adopted:  # still fit, so their author may ask once more
                self._under_way.settle(paths)
            else:
                self._under_way.discard(paths)
            changed = "the files have" if first is None else "the log was read again and may have"
            return Conflicted(view.state.version, None, f"{changed} changed since others were prepared for them")
        signature = self._log.sign(leader_epoch, now_ms, prepared.txn_id)
        adds = [(replace(file, committed_ms=now_ms), stats) for file, stats in prepared.adds]
        data = encode_swap(
            adds,
            removes,
            operation=prepared.operation,
            high_watermark=view.state.high_watermark,
            compacted_to=prepared.compacted_to,
            signature=signature,
        )
        new_files = [file for file, _ in adds]
        outcome = self._log.commit(
            view.state.version + 1,
            data,
            signature,
            high_watermark=view.state.high_watermark,
            new_paths=[file.path for file in new_files],
        )
        if isinstance(outcome, Committed):
            self._cleanup.note_removed(removes, outcome.version, now_ms)
            self._reader.view = view.swapped(
                new_files,
                first=first,
                removed_count=len(removes),
                compacted_to=prepared.compacted_to,
                leader_epoch=leader_epoch,
            )
            self._under_way.settle(file.path for file in new_files)
        return outcome
