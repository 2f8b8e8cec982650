"""One partition's table, open for its single writer, and the same table for those who only read.

Guards one promise: offsets are given once. `append` puts rows exactly behind the high watermark of the version before,
and the version's name can be created once. Readers take one immutable view and finish with it, whatever is committed
meanwhile. A commit costs the same whatever the table holds: nothing is listed, and nothing per file is done.
"""

from __future__ import annotations

import contextlib
import time
import uuid
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice

import pyarrow as pa

from bus.errors import StorageDamaged, StorageFault
from bus.log_schema import LOG_SCHEMA, log_schema
from bus.model import LogBatch, RecordBatch
from bus.ports import (
    CommitOutcome,
    Committed,
    Conflicted,
    FoundOffset,
    LogState,
    ProducerMatch,
    ProducerProgress,
    Unknown,
)
from bus.storage_delta import checkpoints
from bus.storage_delta.actions import (
    LOG_FOLDER,
    LiveFile,
    decode_producers,
    encode_append,
    is_same_schema,
    version_name,
)
from bus.storage_delta.batch_slices import count_within, position_of, slice_batch
from bus.storage_delta.commit import commit_version
from bus.storage_delta.data_files import encode_data_file
from bus.storage_delta.data_reader import DataReader
from bus.storage_delta.old_versions import find_high_watermark
from bus.storage_delta.producer_matching import find_last_row, match_batch
from bus.storage_delta.producer_spans import ProducerIndex, id_max_of
from bus.storage_delta.read_cache import ReadCache
from bus.storage_delta.recovery import recover, remove_leftovers
from bus.storage_delta.snapshot import Snapshot, load_snapshot
from bus.storage_delta.store import KeyNotFound, ObjectStore

# A read gives what it has after so many files. They may hold a record each, and a megabyte of those would take seconds.
_FILES_PER_READ_MAX = 256


@dataclass(frozen=True, slots=True)
class TableView:
    """One version. The lists only ever grow at their end, so the first `file_count` entries never change."""

    state: LogState
    files: list[LiveFile]  # in offset order
    timestamp_maxima_ms: list[int]  # of all files up to this one: never falls, so it can be searched
    producers: ProducerIndex  # of `files`

    def files_from(self, offset: int) -> Iterable[LiveFile]:
        first = bisect_right(self.files, offset, hi=self.state.file_count, key=lambda file: file.base_offset)
        return islice(self.files, max(0, first - 1), self.state.file_count)


class PartitionReader:
    """The reading half. `view` is replaced as a whole, by the writer alone."""

    def __init__(self, store: ObjectStore, folder: str, schema: pa.Schema, cache: ReadCache) -> None:
        self._store = store
        self.folder = folder
        self._schema = schema
        self.data = DataReader(store, folder, schema, cache)
        self.view: TableView

    @property
    def state(self) -> LogState:
        return self.view.state

    def load(self, *, topic_id: str | None) -> Snapshot:
        """Take the log as it is now; `topic_id` None takes any. Raises `StorageDamaged`."""
        snapshot = load_snapshot(self._store, self.folder, self.data)
        found = snapshot.metadata.topic_id
        if topic_id is not None and found != topic_id:
            raise StorageDamaged(f"{self.folder}: expected the table of topic id {topic_id}, found {found}")
        if not is_same_schema(snapshot.metadata.schema_string, self._schema):
            raise StorageDamaged(
                f"{self.folder}: expected the columns of the log, found {snapshot.metadata.schema_string}"
            )
        self.view = _view_of(snapshot)
        return snapshot

    def read(self, offset: int, *, end_offset: int, max_bytes: int) -> list[LogBatch]:
        view = self.view
        end_offset = min(end_offset, view.state.high_watermark)
        batches: list[LogBatch] = []
        for opened, file in enumerate(view.files_from(offset)):
            if file.base_offset >= end_offset or (batches and opened >= _FILES_PER_READ_MAX):
                break
            for batch in self.data.batches_from(file, offset):
                start, stop = position_of(batch, offset), position_of(batch, end_offset)
                if start >= stop:
                    continue
                wanted = slice_batch(batch, start=start, stop=stop)
                taken = count_within(wanted, max_bytes) or (0 if batches else 1)
                if taken:
                    batches.append(slice_batch(wanted, start=0, stop=taken))
                    max_bytes -= batches[-1].size_bytes
                if taken < wanted.record_count or max_bytes <= 0:
                    return batches
        return batches

    def find_timestamp(self, timestamp_ms: int) -> FoundOffset | None:
        view = self.view
        index = bisect_left(view.timestamp_maxima_ms, timestamp_ms, hi=view.state.file_count)
        if index == view.state.file_count:
            return None
        return self.data.find_timestamp(view.files[index], timestamp_ms)

    def find_max_timestamp(self) -> FoundOffset | None:
        view = self.view
        return (
            self.find_timestamp(view.timestamp_maxima_ms[view.state.file_count - 1]) if view.state.file_count else None
        )

    def match_producer(self, batch: RecordBatch) -> ProducerMatch:
        assert batch.producer is not None, f"{self.folder}: a batch of no producer has nothing to be matched by"
        view = self.view
        spans = view.producers.find_producer(batch.producer.producer_id, file_count=view.state.file_count)
        return match_batch(batch, spans, view.files, self.data)

    def find_last_sequence(self, producer_id: int) -> ProducerProgress | None:
        view = self.view
        spans = view.producers.find_producer(producer_id, file_count=view.state.file_count)
        return find_last_row(producer_id, spans, view.files, self.data)

    def high_watermark_at(self, version: int) -> int | None:
        if version > self.view.state.version:
            return None
        return find_high_watermark(self._store, f"{self.folder}/{LOG_FOLDER}", version, self.data)


def _view_of(snapshot: Snapshot) -> TableView:
    maxima: list[int] = []
    for file in snapshot.files:
        maxima.append(max(file.timestamp_max_ms, maxima[-1]) if maxima else file.timestamp_max_ms)
    state = LogState(
        version=snapshot.version,
        log_start=snapshot.log_start,
        high_watermark=snapshot.high_watermark,
        leader_epoch=snapshot.leader_epoch,
        file_count=len(snapshot.files),
        size_bytes=sum(file.size_bytes for file in snapshot.files),
    )
    files = list(snapshot.files)
    return TableView(state, files, maxima, ProducerIndex(files))


def _unnamed_id_max(file: LiveFile) -> int:
    """The largest producer id of a file that another engine wrote, -1 of ours: its commit need not have had the `txn`
    of each producer, and one without is as good as forgotten."""
    return -1 if file.is_ours else id_max_of(file.producers)


@dataclass(frozen=True, slots=True)
class _Doubtful:
    """A version of ours whose fate is unknown."""

    key: str
    data: bytes


class DeltaPartitionTable:
    """Implements `bus.ports.PartitionTable`."""

    def __init__(
        self,
        store: ObjectStore,
        folder: str,
        *,
        topic_id: str,
        cache: ReadCache,
        value_type: pa.DataType | None = None,
    ) -> None:
        """Opens the table; raises `StorageDamaged`."""
        self._store = store
        self._folder = folder
        self._log_folder = f"{folder}/{LOG_FOLDER}"
        self._topic_id = topic_id
        self._schema = LOG_SCHEMA if value_type is None else log_schema(value_type)
        self._reader = PartitionReader(store, folder, self._schema, cache)
        self._doubtful: _Doubtful | None = None
        self._must_reload = False
        self._forgotten_id_max = -1
        self._checkpoint_tried_version = -1
        self._checkpoint_ended_s = self._checkpoint_duration_s = 0.0
        # Not when the log is read again: by then another leader may be writing here.
        remove_leftovers(store, folder)
        self.reload()

    @property
    def state(self) -> LogState:
        return self._reader.state

    @property
    def producer_progress(self) -> Mapping[int, ProducerProgress]:
        return dict(self._producers)

    @property
    def unreferenced_files(self) -> Sequence[str]:
        """Data files that no version named when the log was last read: what interrupted commits left."""
        return self._unreferenced_files

    def append(
        self,
        batches: Sequence[LogBatch],
        *,
        leader_epoch: int,
        now_ms: int,
        compression: str = "none",
        producers: Sequence[ProducerProgress] = (),
    ) -> CommitOutcome:
        state = self.state
        assert not self._must_reload, f"{self._folder}: append after an outcome that asked for a reload"
        assert batches[0].base_offset == state.high_watermark, (
            f"{self._folder}: expected offset {state.high_watermark}, found {batches[0].base_offset}"
        )
        txn_id = str(uuid.uuid4())  # one for both: it tells which file a version is about
        encoded = encode_data_file(batches, self._schema, name_suffix=txn_id, compression=compression)
        version = state.version + 1
        data = encode_append(
            encoded.file,
            stats=encoded.stats,
            producers=producers,
            leader_epoch=leader_epoch,
            now_ms=now_ms,
            txn_id=txn_id,
        )
        data_key = f"{self._folder}/{encoded.file.path}"
        self._store.write_unique(data_key, encoded.data)
        try:
            outcome = commit_version(
                self._store,
                self._log_folder,
                version=version,
                data=data,
                txn_id=txn_id,
                high_watermark=encoded.file.next_offset,
            )
        except StorageFault:
            self._delete_unreferenced(data_key)
            raise
        match outcome:
            case Committed():
                self._advance(encoded.file, leader_epoch, producers, now_ms)
            case Conflicted():
                self._must_reload = True
                self._delete_unreferenced(data_key)
            case Unknown():
                self._must_reload = True
                self._doubtful = _Doubtful(f"{self._log_folder}/{version_name(version)}", data)
        return outcome

    def reload(self) -> LogState:
        if self._doubtful is not None:
            self._settle(self._doubtful)
            self._doubtful = None
        snapshot = self._reader.load(topic_id=self._topic_id)
        recover(self._store, self._folder, snapshot)
        self._checkpoint_version = snapshot.checkpoint_version
        self._producers = decode_producers(snapshot.txns)
        self._forgotten_id_max = max([self._forgotten_id_max, *map(_unnamed_id_max, snapshot.files)])
        self._unreferenced_files = snapshot.findings.unreferenced_files
        self._must_reload = False
        return self.state

    def read(self, offset: int, *, end_offset: int, max_bytes: int) -> list[LogBatch]:
        return self._reader.read(offset, end_offset=end_offset, max_bytes=max_bytes)

    def find_timestamp(self, timestamp_ms: int) -> FoundOffset | None:
        return self._reader.find_timestamp(timestamp_ms)

    def find_max_timestamp(self) -> FoundOffset | None:
        return self._reader.find_max_timestamp()

    def forget_producers(self, *, updated_before_ms: int) -> int:
        idle = [key for key, progress in self._producers.items() if progress.updated_ms < updated_before_ms]
        for producer_id in idle:
            del self._producers[producer_id]
        self._forgotten_id_max = max([self._forgotten_id_max, *idle])
        return self._forgotten_id_max

    def match_producer(self, batch: RecordBatch) -> ProducerMatch:
        return self._reader.match_producer(batch)

    def find_last_sequence(self, producer_id: int) -> ProducerProgress | None:
        return self._reader.find_last_sequence(producer_id)

    def high_watermark_at(self, version: int) -> int | None:
        return self._reader.high_watermark_at(version)

    @property
    def is_checkpoint_due(self) -> bool:
        state = self.state
        if self._store.table_url(self._folder) is None:
            return False
        commits = state.version - max(0, self._checkpoint_version, self._checkpoint_tried_version)
        return checkpoints.is_due(
            commits=commits,
            file_count=state.file_count,
            elapsed_s=time.monotonic() - self._checkpoint_ended_s,
            last_duration_s=self._checkpoint_duration_s,
        )

    def write_checkpoint(self) -> None:
        view = self._reader.view
        # One that fails is tried again as many commits later: a full disk does not fail every commit a second time.
        self._checkpoint_tried_version = view.state.version
        started_s = time.monotonic()
        try:
            checkpoints.write_checkpoint(
                self._store,
                self._folder,
                version=view.state.version,
                paths=[file.path for file in islice(view.files, view.state.file_count)],
            )
        finally:
            self._checkpoint_ended_s = time.monotonic()
            self._checkpoint_duration_s = self._checkpoint_ended_s - started_s
        self._checkpoint_version = view.state.version

    def _advance(self, file: LiveFile, leader_epoch: int, producers: Sequence[ProducerProgress], now_ms: int) -> None:
        """The view of the next version. Readers that hold the old one do not see the entries behind its count."""
        view = self._reader.view
        maxima = view.timestamp_maxima_ms
        maxima.append(max(file.timestamp_max_ms, maxima[-1]) if maxima else file.timestamp_max_ms)
        view.files.append(file)
        state = view.state
        self._reader.view = TableView(
            LogState(
                version=state.version + 1,
                log_start=state.log_start,
                high_watermark=file.next_offset,
                leader_epoch=max(state.leader_epoch, leader_epoch),
                file_count=state.file_count + 1,
                size_bytes=state.size_bytes + file.size_bytes,
            ),
            view.files,
            maxima,
            view.producers,
        )
        for progress in producers:
            self._producers[progress.producer_id] = replace(progress, updated_ms=now_ms)

    def _settle(self, doubtful: _Doubtful) -> None:
        """If our version is there, make it durable before anybody acts on it. Raises `StorageFault` if that fails."""
        with contextlib.suppress(KeyNotFound):
            if self._store.get(doubtful.key) == doubtful.data:
                self._store.confirm(doubtful.key, doubtful.data)

    def _delete_unreferenced(self, key: str) -> None:
        # The next opening reports what stays.
        with contextlib.suppress(StorageFault):
            self._store.delete(key)
