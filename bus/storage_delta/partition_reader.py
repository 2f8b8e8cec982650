"""A partition's table for those who read it: one immutable view a version, and what can be asked of it.

Guards one promise: a read sees the state of one version. It takes a view and finishes with it, whatever is committed,
compacted or removed meanwhile; files of a view that a read under way holds are named by `paths_in_use`.
"""

from __future__ import annotations

import contextlib
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, islice

import pyarrow as pa

from bus.errors import RecordsDamaged, StorageDamaged
from bus.model import LogBatch, RecordBatch
from bus.ports import FoundOffset, LogState, ProducerMatch, ProducerProgress
from bus.records.log_schema import LOG_SCHEMA, is_same_schema
from bus.storage_delta.files.data_files import count_within, position_of, slice_batch
from bus.storage_delta.files.data_reader import DataReader, ReadCache
from bus.storage_delta.files.live_file import LiveFile
from bus.storage_delta.files.producer_matching import find_first_offset, find_last_row, match_batch
from bus.storage_delta.files.producer_spans import ProducerSpans
from bus.storage_delta.log.actions import Add, Commit
from bus.storage_delta.log.listing import LOG_FOLDER
from bus.storage_delta.log.reading import LogFollower, load_state
from bus.storage_delta.log.snapshot import Snapshot, arrange_files, find_high_watermark, load_snapshot, take_stock
from bus.storage_delta.log.table_metadata import earlier_type
from bus.storage_delta.log.table_state import RunningState, TableState
from bus.storage_delta.log.txns import COMPACTED_APP, LEADER_EPOCH_APP, LOG_START_APP, Txn, is_lost_app
from bus.storage_delta.stores.local import LocalStore
from bus.storage_delta.stores.store import ObjectStore

# A read returns after this many files. They may hold one record each, and a megabyte of those would take seconds.
_FILES_PER_READ_MAX = 256
# <root>/topics/<topic>/<partition>
_FOLDERS_BELOW_ROOT = 3


@dataclass(frozen=True, slots=True)
class TableView:
    """One version. The lists only ever grow at their end, so the first `file_count` entries never change."""

    state: LogState
    files: list[LiveFile]  # in offset order
    timestamp_maxima_ms: list[int]  # the maximum of all files up to this one: never falls, so it can be searched
    producers: ProducerSpans  # spans of `files`
    compacted_to: int  # offsets below it may be missing: key compaction has seen them

    @property
    def live_files(self) -> Sequence[LiveFile]:
        return self.files[: self.state.file_count]

    def files_from(self, offset: int) -> Iterable[LiveFile]:
        first = bisect_right(self.files, offset, hi=self.state.file_count, key=lambda file: file.base_offset)
        return islice(self.files, max(0, first - 1), self.state.file_count)

    def appended(self, file: LiveFile, leader_epoch: int) -> TableView:
        """The view of the next version. This view still ends at its own count of files."""
        return self.extended((file,), version=self.state.version + 1, leader_epoch=leader_epoch)

    def extended(self, files: Sequence[LiveFile], *, version: int, leader_epoch: int) -> TableView:
        """The view of a later version, which has `files` behind the others."""
        maxima = self.timestamp_maxima_ms
        for file in files:
            maxima.append(max(file.timestamp_max_ms, maxima[-1]) if maxima else file.timestamp_max_ms)
            self.files.append(file)
        state = replace(
            self.state,
            version=version,
            high_watermark=files[-1].next_offset if files else self.state.high_watermark,
            leader_epoch=max(self.state.leader_epoch, leader_epoch),
            file_count=self.state.file_count + len(files),
            size_bytes=self.state.size_bytes + sum(file.size_bytes for file in files),
        )
        return replace(self, state=state)

    def find_run(self, paths: Sequence[str]) -> int | None:
        """Return the position of the first of `paths` among the live files; None unless `paths` follow each other
        there."""
        found = (index for index, file in enumerate(self.live_files) if paths and file.path == paths[0])
        first = next(found, None)
        if first is None or [file.path for file in self.live_files[first : first + len(paths)]] != list(paths):
            return None
        return first

    def swapped(
        self,
        adds: Sequence[LiveFile],
        *,
        first: int,
        removed_count: int,
        compacted_to: int | None,
        leader_epoch: int,
    ) -> TableView:
        """The next version's: `adds` in place of `removed_count` files from the one at `first` on."""
        live = self.live_files
        files = [*live[:first], *adds, *live[first + removed_count :]]
        return _view_of(files, self._next_state(leader_epoch), max(self.compacted_to, compacted_to or 0))

    def started_at(self, log_start: int, *, removed_count: int, leader_epoch: int) -> TableView:
        """The next version's: without the first `removed_count` files, and nothing below `log_start` is to be read."""
        state = replace(self._next_state(leader_epoch), log_start=log_start)
        return _view_of(list(self.live_files[removed_count:]), state, self.compacted_to)

    def fenced(self, leader_epoch: int) -> TableView:
        """The next version's, which changed nothing."""
        return replace(self, state=self._next_state(leader_epoch))

    def overtaken(self, is_overtaken: bool) -> TableView:
        """Return this view, marked if another leader has written its version, or one before it, since its reader led
        the table."""
        return replace(self, state=replace(self.state, is_overtaken=is_overtaken))

    def _next_state(self, leader_epoch: int) -> LogState:
        return replace(
            self.state,
            version=self.state.version + 1,
            leader_epoch=max(self.state.leader_epoch, leader_epoch),
        )


def _view_at(table: TableState, files: Sequence[LiveFile]) -> TableView:
    """`files`: the live ones, arranged."""
    first = files[0].base_offset if files else table.high_watermark
    state = LogState(
        version=table.version,
        log_start=max(first, table.done(LOG_START_APP, first)),
        high_watermark=table.high_watermark,
        leader_epoch=table.leader_epoch,
        file_count=0,
        size_bytes=0,
    )
    return _view_of(list(files), state, table.compacted_to)


def _view_of(files: list[LiveFile], state: LogState, compacted_to: int) -> TableView:
    maxima = list(accumulate((file.timestamp_max_ms for file in files), max))
    state = replace(state, file_count=len(files), size_bytes=sum(file.size_bytes for file in files))
    return TableView(state, files, maxima, ProducerSpans(files), compacted_to)


class PartitionReader:
    """The reading half. `view` is replaced as a whole, by the writer alone."""

    def __init__(
        self,
        store: ObjectStore,
        folder: str,
        schema: pa.Schema,
        cache: ReadCache,
        *,
        value_type: pa.StructType | None = None,
    ) -> None:
        """`value_type`: the table may have only the first fields of it; the others are read as null."""
        self._store = store
        self.folder = folder
        self._schema = schema
        self._value_type = value_type
        self.data = DataReader(store, folder, schema, cache)
        self.view: TableView
        self._in_use: dict[object, TableView] = {}  # one entry for each read under way

    @property
    def state(self) -> LogState:
        return self.view.state

    def load(self, *, topic_id: str | None) -> Snapshot:
        """Take the log as it is now; `topic_id` None takes any. Raises `StorageDamaged`."""
        snapshot = load_snapshot(self._store, self.folder, self.data)
        found = snapshot.metadata.topic_id
        if topic_id is not None and found != topic_id:
            raise StorageDamaged(f"{self.folder}: expected the table of topic id {topic_id}, found {found}")
        if not self._is_schema_known(snapshot.metadata.schema_string):
            raise StorageDamaged(
                f"{self.folder}: expected the columns of the log, found {snapshot.metadata.schema_string}"
            )
        self.view = _view_at(snapshot.state, snapshot.files)
        return snapshot

    def _is_schema_known(self, schema_string: str) -> bool:
        if is_same_schema(schema_string, self._schema):
            return True
        return self._value_type is not None and earlier_type(schema_string, self._value_type) is not None

    def describe(self, add: Add) -> LiveFile:
        """A file of another engine, by its rows. Raises `StorageDamaged`."""
        return self.data.check_foreign(add.path, add.size_bytes)

    def paths_in_use(self) -> set[str]:
        """Data files that reads under way may yet open."""
        return {file.path for view in list(self._in_use.values()) for file in view.live_files}

    @contextlib.contextmanager
    def reading(self) -> Iterator[TableView]:
        """The view of now, whose files stay until this is left."""
        token, view = object(), self.view
        self._in_use[token] = view
        while view is not self.view:  # it was replaced before anybody could see that it is in use
            view = self._in_use[token] = self.view
        try:
            yield view
        finally:
            del self._in_use[token]

    def read(self, offset: int, *, end_offset: int, max_bytes: int) -> list[LogBatch]:
        with self.reading() as view:
            return self._read(view, offset, end_offset, max_bytes)

    def _read(self, view: TableView, offset: int, end_offset: int, max_bytes: int) -> list[LogBatch]:
        offset, end_offset = max(offset, view.state.log_start), min(end_offset, view.state.high_watermark)
        batches: list[LogBatch] = []
        try:
            for batch in self._slices(view, offset, end_offset):
                taken = count_within(batch, max_bytes) or (0 if batches else 1)
                if taken:
                    batches.append(slice_batch(batch, start=0, stop=taken))
                    max_bytes -= batches[-1].size_bytes
                if taken < batch.record_count or max_bytes <= 0:
                    break
        except RecordsDamaged:
            # The records before the damaged ones are returned; the next read begins with the damaged ones and raises.
            if not batches:
                raise
        return batches

    def _slices(self, view: TableView, offset: int, end_offset: int) -> Iterator[LogBatch]:
        """Row groups from `offset` up to `end_offset`, those at the two ends cut to it."""
        has_any = False
        for opened, file in enumerate(view.files_from(offset)):
            if file.base_offset >= end_offset or (has_any and opened >= _FILES_PER_READ_MAX):
                return
            for batch in self.data.batches_from(file, offset):
                start, stop = position_of(batch, offset), position_of(batch, end_offset)
                if start < stop:
                    has_any = True
                    yield slice_batch(batch, start=start, stop=stop)

    def find_timestamp(self, timestamp_ms: int) -> FoundOffset | None:
        with self.reading() as view:
            return self._find_timestamp(view, timestamp_ms)

    def find_max_timestamp(self) -> FoundOffset | None:
        with self.reading() as view:
            files, log_start = view.live_files, view.state.log_start
            maxima = [file.timestamp_max_ms for file in files]
            if files and files[0].base_offset < log_start:  # its maximum may be that of a record that is gone
                visible_ms = self.data.timestamp_max_ms_from(files[0], log_start)
                maxima[:1] = [] if visible_ms is None else [visible_ms]
            return self._find_timestamp(view, max(maxima)) if maxima else None

    def _find_timestamp(self, view: TableView, timestamp_ms: int) -> FoundOffset | None:
        count = view.state.file_count
        for file in islice(view.files, bisect_left(view.timestamp_maxima_ms, timestamp_ms, hi=count), count):
            if file.timestamp_max_ms >= timestamp_ms:
                found = self.data.find_timestamp(file, timestamp_ms, offset=view.state.log_start)
                if found is not None:  # key compaction may have removed the record that gave the file its maximum
                    return found
        return None

    def match_producer(self, batch: RecordBatch) -> ProducerMatch:
        assert batch.producer is not None, f"{self.folder}: a batch of no producer has nothing to be matched by"
        with self.reading() as view:
            spans = view.producers.find_producer(batch.producer.producer_id, file_count=view.state.file_count)
            return match_batch(batch, spans, view.files, self.data, has_holes=view.compacted_to > 0)

    def find_last_sequence(self, producer_id: int) -> ProducerProgress | None:
        with self.reading() as view:
            spans = view.producers.find_producer(producer_id, file_count=view.state.file_count)
            return find_last_row(producer_id, spans, view.files, self.data)

    def find_first_offset(self, producer_id: int, epoch: int) -> int | None:
        with self.reading() as view:
            spans = view.producers.find_producer(producer_id, file_count=view.state.file_count)
            return find_first_offset(producer_id, epoch, spans, view.files, self.data)

    def high_watermark_at(self, version: int) -> int | None:
        if version > self.view.state.version:
            return None
        return find_high_watermark(self._store, f"{self.folder}/{LOG_FOLDER}", version, self.data)


class FollowingReader:
    """The reading half of a table that another process writes, or may write; one thread at a time. `reader` has its
    view."""

    def __init__(
        self,
        store: ObjectStore,
        folder: str,
        schema: pa.Schema,
        cache: ReadCache,
        *,
        topic_id: str | None,
        value_type: pa.StructType | None = None,
    ) -> None:
        """Raises `StorageDamaged`, also if the table is another topic's."""
        self._store = store
        self._folder = folder
        self._topic_id = topic_id
        self.reader = PartitionReader(store, folder, schema, cache, value_type=value_type)
        self._follower = LogFollower(store, folder, self.reader.describe)
        self._running: RunningState | None = None  # None: it has to be read afresh
        self.loaded: Snapshot | None = None  # when the log was read afresh, and nothing has followed since
        self.load()

    @property
    def txns(self) -> Mapping[str, Txn]:
        assert self._running is not None, f"{self._folder}: expected a table that is followed"
        return self._running.txns

    def load(self) -> Snapshot:
        """Read the log afresh. Raises `StorageDamaged`."""
        self._running = self.loaded = None
        snapshot = self.reader.load(topic_id=self._topic_id)
        self._follower.begin(snapshot.version)
        self._running, self.loaded = RunningState(snapshot.state), snapshot
        return snapshot

    def refresh(self) -> TableView:
        """Return the last committed version. The cost is that of the commits since the last call, plus that of listing
        all live files if one was removed; the log is read from its checkpoint again only if a version is gone, or if
        one changes the table's nature. Raises `StorageDamaged`."""
        running, commits = self._running, None if self._running is None else self._follower.read_on()
        if running is None or commits is None:
            self.load()
        elif commits:
            self._running = self.loaded = None  # not valid again until all commits are applied
            if self._apply(running, commits):
                self._running = running
            else:
                self.load()
        return self.reader.view

    def take_stock(self) -> Snapshot:
        """The table as it is followed, with what lies in its folder now. Raises `StorageDamaged`."""
        state = None if self._running is None else self._running.state
        found = None if state is None else take_stock(self._store, self._folder, state, self.reader.view.live_files)
        return self.load() if found is None else found

    def forget(self) -> None:
        """The next call reads the log afresh: until then the table is led, and its view is its leader's."""
        self._running = self.loaded = None

    def _apply(self, running: RunningState, commits: Sequence[Commit]) -> bool:
        """False if the log has to be judged as a whole."""
        if any(commit.metadata is not None or commit.protocol is not None for commit in commits):
            return False
        version = running.version
        for commit in commits:
            running.apply(commit)
        if any(harm.version > version for harm in running.harms.values()):
            return False
        view = self.reader.view
        if all(map(_is_append, commits)):
            adds = [add.live for commit in commits for add in commit.adds if add.live is not None]
            epochs = [running.txns[LEADER_EPOCH_APP].version] if LEADER_EPOCH_APP in running.txns else []
            epochs += [file.leader_epoch for file in adds]
            self.reader.view = view.extended(adds, version=running.version, leader_epoch=max(epochs, default=-1))
        else:
            self.reader.view = _view_at(running.state, arrange_files(self._folder, running.state))
        return True


def _is_append(commit: Commit) -> bool:
    """It adds files of ours behind the others, or none at all, and moves no other bound."""
    return (
        commit.is_ours
        and not commit.removes
        and all(add.live is not None and add.live.is_ours and add.is_data_change for add in commit.adds)
        and not any(app in (LOG_START_APP, COMPACTED_APP) or is_lost_app(app) for app in commit.txns)
    )


class TableFiles:
    """The data files of the table in `folder`, an absolute path below a root, for those who read them by themselves.
    What is read was proved first, as the broker does: a file that the log does not name at its last version is tried in
    another process."""

    def __init__(self, folder: str) -> None:
        root, *names = folder.rsplit("/", _FOLDERS_BELOW_ROOT)
        store, self._folder = LocalStore(root), folder
        self._reader = DataReader(store, "/".join(names), LOG_SCHEMA, ReadCache())
        try:
            self._entries: Mapping[str, LiveFile] = load_state(store, "/".join(names)).files
        except StorageDamaged:
            self._entries = {}

    def read(self, paths: Iterable[str], columns: Sequence[str]) -> Iterator[pa.Table]:
        """These columns of each file, as they are in it. Raises `StorageDamaged`."""
        for path in paths:
            name = path.removeprefix(f"{self._folder}/")
            entry = self._entries.get(name)
            yield self._reader.read_unnamed(name, columns) if entry is None else self._reader.read_file(entry, columns)

    def find_damage(self, paths: Iterable[str]) -> str | None:
        """Describe the first of the files that cannot be read: its name, its offsets, and the fault."""
        for path in paths:
            try:
                for _ in self.read([path], []):
                    pass
            except RecordsDamaged as damage:
                return str(damage)
        return None
