"""One partition's table, open for its single writer.

Guards one promise: offsets are given once. `append` puts rows exactly behind the high watermark of the version before,
and the version's name can be created once; compaction replaces files, and neither gives nor moves an offset. A commit
costs the same whatever the table holds: nothing is listed, and nothing per file is done.
"""

from __future__ import annotations

import contextlib
import threading
import time
import uuid
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa

from bus.errors import ErrorCode, Refused, StorageFault, VersionReplaced
from bus.model import LogBatch, RecordBatch
from bus.ports import (
    OFFSET_MAX,
    CommitOutcome,
    Committed,
    Conflicted,
    Dropped,
    FenceLost,
    FoundOffset,
    LogFile,
    LogState,
    Pace,
    PreparedFiles,
    ProducerMatch,
    ProducerProgress,
    SwapKind,
    Unknown,
    no_pace,
)
from bus.records.log_schema import LOG_SCHEMA, log_schema
from bus.storage_delta.files.data_files import encode_data_file
from bus.storage_delta.files.live_file import LiveFile
from bus.storage_delta.files.producer_matching import later_progress
from bus.storage_delta.files.producer_spans import id_max_of
from bus.storage_delta.files.read_cache import ReadCache
from bus.storage_delta.log import checkpoints
from bus.storage_delta.log.actions import (
    Commit,
    MalformedCommit,
    Signature,
    decode_commit,
    encode_append,
    encode_fence,
    encode_removal,
    encode_swap,
)
from bus.storage_delta.log.commit import commit_version, is_rival
from bus.storage_delta.log.listing import LOG_FOLDER, list_data_files, version_name
from bus.storage_delta.log.reading import load_removed, load_txns
from bus.storage_delta.log.recovery import recover, remove_leftovers
from bus.storage_delta.log.replaced_versions import commit_again, report_replaced
from bus.storage_delta.log.snapshot import Snapshot
from bus.storage_delta.log.table_state import Removal
from bus.storage_delta.log.txns import decode_producers, forgotten_id_max_of
from bus.storage_delta.maintenance.key_compaction import KeyCompaction
from bus.storage_delta.maintenance.old_versions import Limits, OldVersions
from bus.storage_delta.maintenance.rolling import Rolling
from bus.storage_delta.maintenance.swap_checks import check_swap
from bus.storage_delta.maintenance.swaps import FilesUnderWay, PreparedSwap, discard, since_reload
from bus.storage_delta.partition_reader import PartitionReader
from bus.storage_delta.stores.store import KeyNotFound, KeyReplaced, ObjectStore, Written


def _unnamed_id_max(file: LiveFile) -> int:
    """The largest producer id of a file that another engine wrote, -1 of ours: its commit need not have had the `txn`
    of each producer, and one without is as good as forgotten."""
    return -1 if file.is_ours else id_max_of(file.producers)


@dataclass(frozen=True, slots=True)
class _Doubtful:
    """A version of ours whose fate is unknown. Its data files stay until some version has its number: until then it may
    still appear, for example when a network file system tries a lost call again."""

    version: int
    key: str
    data: bytes
    new_paths: Sequence[str]  # of its data files


@dataclass(frozen=True, slots=True)
class _Last:
    """The last version that memory knows: ours, or the one that was read. The next one is committed behind it alone: a
    leader that was asleep would otherwise take a number that was used, and whose file was dropped since."""

    version: int
    data: bytes
    written: Written


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
        incarnation: str | None = None,
    ) -> None:
        """Opens the table; raises `StorageDamaged`. `incarnation` tells this life of the broker from all others."""
        self._store = store
        self._folder = folder
        self._log_folder = f"{folder}/{LOG_FOLDER}"
        self._topic_id = topic_id
        self._schema = LOG_SCHEMA if value_type is None else log_schema(value_type)
        self._reader = PartitionReader(store, folder, self._schema, cache)
        self._incarnation = incarnation or uuid.uuid4().hex
        self._leader_epoch = -1  # under which we have committed, or tried to
        self._doubtful: _Doubtful | None = None
        self._checked_version = -1
        self._last: _Last | None = None  # None: it is not known
        self._undecided: list[_Doubtful] = []  # not there when the log was read again, but not ruled out either
        self._must_reload = False
        self._reloads = 0
        self._commits_begun = 0
        self._last_committed = -1  # which of the commits begun was the last one that succeeded
        self._listed: dict[str, int] = {}  # possible orphans -> how many commits had begun when they were seen
        self._forgotten_id_max = self._told_forgotten_id_max = -1  # as memory knows it; as the log says
        self._idle_since_ms = 0  # producers that were idle since then are forgotten
        self._under_way = FilesUnderWay()
        self._compaction = KeyCompaction(store, folder, self._reader.data, self._schema, under_way=self._under_way)
        self._rolling = Rolling(store, folder, self._reader.data, self._schema, under_way=self._under_way)
        self._removed: dict[str, Removal] = {}  # data files that went in versions after the newest checkpoint
        self._old_versions = OldVersions(store, folder)
        self._cleaning = threading.Lock()  # checkpoints and deletions, one at a time
        self._nothing_to_gain_to = 0  # offsets below it were seen by a compaction that changed nothing
        self._checkpoint_tried_version = -1
        self._checkpoint_ended_s = self._checkpoint_duration_s = 0.0
        snapshot = self._reader.load(topic_id=topic_id)
        if leftovers := snapshot.findings.leftovers:
            # Not when the log is read again later: by then another leader may be writing here.
            remove_leftovers(store, folder, leftovers)
            snapshot = self._reader.load(topic_id=topic_id)
        for name in snapshot.findings.replaced:
            if commit_again(store, folder, snapshot, name):
                snapshot = self._reader.load(topic_id=topic_id)
        self._take(snapshot)

    @property
    def state(self) -> LogState:
        return self._reader.state

    @property
    def producer_progress(self) -> Mapping[int, ProducerProgress]:
        return dict(self._producers)

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
        signature = self._sign(leader_epoch, now_ms)
        # One id for both: it tells which file a version is about.
        encoded = encode_data_file(batches, self._schema, name_suffix=signature.txn_id, compression=compression)
        version = state.version + 1
        file = replace(encoded.file, committed_ms=now_ms)
        forgotten_id_max = self._forgotten_id_max
        data = encode_append(
            file,
            stats=encoded.stats,
            producers=producers,
            signature=signature,
            forgotten_id_max=forgotten_id_max if forgotten_id_max > self._told_forgotten_id_max else None,
        )
        self._under_way.add(file.path)
        try:
            self._store.write_unique(f"{self._folder}/{file.path}", encoded.data)
        except StorageFault:
            self._give_up([file.path])
            raise
        outcome = self._commit(version, data, signature, high_watermark=file.next_offset, new_paths=[file.path])
        if isinstance(outcome, Committed):
            self._reader.view = self._reader.view.appended(file, leader_epoch)
            self._under_way.settle([file.path])
            self._told_forgotten_id_max = max(self._told_forgotten_id_max, forgotten_id_max)
            for progress in producers:
                self._producers[progress.producer_id] = replace(progress, updated_ms=now_ms)
        return outcome

    def _sign(self, leader_epoch: int, now_ms: int, txn_id: str | None = None) -> Signature:
        self._leader_epoch = max(self._leader_epoch, leader_epoch)
        return Signature(leader_epoch, now_ms, txn_id or str(uuid.uuid4()), self._incarnation)

    def _commit(
        self, version: int, data: bytes, signature: Signature, *, high_watermark: int, new_paths: Sequence[str]
    ) -> CommitOutcome:
        """Commit `data`, which names the data files `new_paths`. They go only if it is known that the version is not
        there and never will be; otherwise the log has to be read again, and decides."""
        self._commits_begun += 1
        serial, doubtful = self._commits_begun, _Doubtful(version, self._version_key(version), data, new_paths)
        last, created = self._last, list[Written]()
        try:
            outcome = commit_version(
                self._store,
                self._log_folder,
                version=version,
                data=data,
                txn_id=signature.txn_id,
                incarnation=self._incarnation,
                high_watermark=high_watermark,
                after=None if last is None else last.written,
                note=created.append,
            )
        except KeyReplaced as replaced:
            self._give_up(new_paths)
            self._must_reload = True
            self._check_last()
            return Unknown(version, str(replaced))
        except StorageFault:
            self._give_up(new_paths)
            raise
        except BaseException:
            self._must_reload, self._doubtful = True, doubtful
            raise
        match outcome:
            case Committed():
                self._last = _Last(version, data, created[0]) if created and created[0].stamp is not None else None
                self._last_committed = serial
                self._discard_decided(version)
            case Conflicted():
                self._must_reload = True
                self._give_up(new_paths)
            case Unknown():
                self._must_reload, self._doubtful = True, doubtful
        return outcome

    def _check_last_once(self) -> None:
        """For a version that nothing follows for long. Beside commits: one that comes meanwhile checks it itself."""
        last = self._last
        if last is None or last.version == self._checked_version:
            return
        self._checked_version = last.version
        with contextlib.suppress(KeyNotFound):
            found = self._store.get(last.written.key)
            if found != last.data and last is self._last:
                raise report_replaced(self._store, self._log_folder, last.version, last.data, found)

    def _check_last(self) -> None:
        """Raises `VersionReplaced` if another program has put a version of its own in the place of our last one. Where
        ours is gone, reading the log again tells why."""
        last = self._last
        if last is None:
            return
        try:
            found = self._store.get(last.written.key)
            if found != last.data:
                raise report_replaced(self._store, self._log_folder, last.version, last.data, found)
            self._last = replace(last, written=Written(last.written.key, self._store.stamp(last.written.key)))
        except KeyNotFound:
            self._last = None

    def _find_last(self, version: int) -> _Last | None:
        key = self._version_key(version)
        try:
            return _Last(version, self._store.get(key), Written(key, self._store.stamp(key)))
        except KeyNotFound:
            return None

    def _version_key(self, version: int) -> str:
        return f"{self._log_folder}/{version_name(version)}"

    def _give_up(self, paths: Sequence[str]) -> None:
        discard(self._store, self._folder, paths)
        self._under_way.settle(paths)

    def reload(self) -> LogState:
        doubtful, known_version = self._doubtful, self.state.version
        if doubtful is not None:
            self._settle(doubtful)
        # From here on nothing that was prepared may be committed: a leader that came between may have listed its files
        # as orphans.
        self._must_reload = True
        self._reloads += 1
        self._check_last()
        self._last = None
        snapshot = self._reader.load(topic_id=self._topic_id)
        is_overtaken = self._find_rival(known_version, snapshot) is not None
        self._take(snapshot, is_overtaken=is_overtaken)
        self._doubtful = None
        self._must_reload = False
        if doubtful is not None:
            self._undecided.append(doubtful)
            self._under_way.settle(doubtful.new_paths)
        self._discard_decided(snapshot.version)
        return self.state

    def _find_rival(self, known_version: int, snapshot: Snapshot) -> int | None:
        """The epoch of another leader that may not be followed, if one has committed after `known_version`."""
        if self._leader_epoch < 0:
            return None
        if snapshot.leader_epoch > self._leader_epoch:
            return snapshot.leader_epoch
        for version in range(snapshot.version, known_version, -1):
            try:
                commit = decode_commit(version, self._store.get(self._version_key(version)))
            except (KeyNotFound, MalformedCommit):
                continue  # dropped, or set aside
            if is_rival(commit, self._incarnation) and (commit.leader_epoch or 0) >= self._leader_epoch:
                return commit.leader_epoch
        return None

    def _discard_decided(self, version: int) -> None:
        """The numbers up to `version` are taken. A doubtful version of ours that is not among them never will be."""
        for doubtful in [each for each in self._undecided if each.version <= version]:
            try:
                is_ours = self._store.get(doubtful.key) == doubtful.data
            except KeyNotFound:
                is_ours = True  # dropped since, be it ours or not: what it named is judged as any other file
            except StorageFault:
                continue
            self._undecided.remove(doubtful)
            if not is_ours:
                discard(self._store, self._folder, doubtful.new_paths)

    def _take(self, snapshot: Snapshot, *, is_overtaken: bool = False) -> None:
        if is_overtaken:  # what is left lying there is the other leader's to put right
            self._reader.view = self._reader.view.overtaken()
        else:
            recover(self._store, self._folder, snapshot)
        self._last = self._find_last(snapshot.version)
        self._loaded_version = snapshot.version
        self._checkpoint_version = snapshot.checkpoint_version
        self._producers = decode_producers(snapshot.txns)
        self._told_forgotten_id_max = forgotten_id_max_of(snapshot.txns)
        self._forgotten_id_max = max(
            [self._forgotten_id_max, self._told_forgotten_id_max, *map(_unnamed_id_max, snapshot.files)]
        )
        self._removed = dict(snapshot.removed)

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
        self._idle_since_ms = max(self._idle_since_ms, updated_before_ms)
        return self._forgotten_id_max

    def match_producer(self, batch: RecordBatch) -> ProducerMatch:
        return self._reader.match_producer(batch)

    def find_last_sequence(self, producer_id: int) -> ProducerProgress | None:
        rows = self._reader.find_last_sequence(producer_id)
        told = self._producers.get(producer_id)
        if told is None:  # forgotten by memory, not by the log
            with self._cleaning:
                txns = load_txns(self._store, self._folder, self._checkpoint_version, self.state.version)
            told = decode_producers(txns).get(producer_id)
        return later_progress(rows, told)

    def high_watermark_at(self, version: int) -> int | None:
        return self._reader.high_watermark_at(version)

    # ------------------------------------------------------------------ cleaning

    @property
    def key_compaction_backlog(self) -> int:
        return len(self._unseen_files())

    @property
    def key_compaction_backlog_bytes(self) -> int:
        return sum(file.size_bytes for file in self._unseen_files())

    def _unseen_files(self) -> Sequence[LiveFile]:
        view = self._reader.view
        seen_to = max(view.compacted_to, self._nothing_to_gain_to)
        count = view.state.file_count
        first = bisect_left(view.files, seen_to, hi=count, key=lambda file: file.base_offset)
        return view.files[first:count]

    @property
    def files(self) -> Sequence[LiveFile]:
        return self._reader.view.live_files

    @property
    def compacted_to(self) -> int:
        return self._reader.view.compacted_to

    def prepare_key_compaction(
        self, *, now_ms: int, tombstone_retention_ms: int, end_offset: int = OFFSET_MAX, pace: Pace = no_pace
    ) -> PreparedFiles | None:
        reloads = self._reloads
        with self._reader.reading() as view:
            files = [file for file in view.live_files if file.next_offset <= end_offset]
            prepared = self._compaction.prepare(
                files, now_ms=now_ms, tombstone_retention_ms=tombstone_retention_ms, pace=pace
            )
        if prepared is None and files:
            self._nothing_to_gain_to = files[-1].next_offset
        return None if prepared is None else since_reload(prepared, reloads)

    def prepare_roll(
        self,
        files: Sequence[LogFile],
        *,
        compression: str,
        now_ms: int,
        tombstone_retention_ms: int,
        pace: Pace = no_pace,
    ) -> PreparedFiles:
        reloads = self._reloads
        with self._reader.reading() as view:
            first = view.find_run([file.path for file in files])
            if first is None:
                raise StorageFault(f"{self._folder}: the files to be rolled have changed since they were chosen")
            prepared = self._rolling.prepare(
                view.live_files[first : first + len(files)],
                compression=compression,
                now_ms=now_ms,
                tombstone_retention_ms=tombstone_retention_ms,
                pace=pace,
            )
        return since_reload(prepared, reloads)

    def check_swap(self, removes: Sequence[str], adds: Sequence[str], kind: SwapKind) -> PreparedFiles | Refused:
        busy = next((name for name in adds if name in self._under_way), None)
        if busy is not None:
            return Refused(ErrorCode.INVALID_REQUEST, f"{busy}: expected a file of no other swap, found it in one")
        # From now until the swap they are no orphans, however long it takes to read them.
        for name in adds:
            self._under_way.add(name)
        checked: PreparedSwap | Refused | None = None
        reloads = self._reloads
        try:
            with self._reader.reading() as view:
                removed = {*load_removed(self._store, self._folder, self._checkpoint_version), *self._removed}
                checked = check_swap(
                    self._reader.data, self._schema, view, removed, removes=removes, adds=adds, kind=kind
                )
                if isinstance(checked, PreparedSwap):
                    # Their writer need not have synced them, nor their names.
                    self._store.sync(self._folder, adds)
                    checked = since_reload(checked, reloads, is_adopted=True)
        except BaseException:
            checked = None
            raise
        finally:
            if not isinstance(checked, PreparedSwap):
                self._under_way.settle(adds)
        return checked

    def swap_files(self, prepared: PreparedFiles, *, leader_epoch: int, now_ms: int) -> CommitOutcome:
        assert not self._must_reload, f"{self._folder}: swap after an outcome that asked for a reload"
        assert isinstance(prepared, PreparedSwap), f"expected what this table prepared, found {prepared}"
        view, removes = self._reader.view, prepared.removes
        first = view.find_run(removes)
        if first is None or prepared.reloads != self._reloads:
            paths = [file.path for file, _ in prepared.adds]
            if first is not None and prepared.is_adopted:  # still fit, so their author may ask once more
                self._under_way.settle(paths)
            else:
                self._give_up(paths)
            changed = "the files have" if first is None else "the log was read again and may have"
            return Conflicted(view.state.version, None, f"{changed} changed since others were prepared for them")
        signature = self._sign(leader_epoch, now_ms, prepared.txn_id)
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
        outcome = self._commit(
            view.state.version + 1,
            data,
            signature,
            high_watermark=view.state.high_watermark,
            new_paths=[file.path for file in new_files],
        )
        if isinstance(outcome, Committed):
            self._note_removed(removes, outcome.version, now_ms)
            self._reader.view = view.swapped(
                new_files,
                first=first,
                removed_count=len(removes),
                compacted_to=prepared.compacted_to,
                leader_epoch=leader_epoch,
            )
            self._under_way.settle(file.path for file in new_files)
        return outcome

    def advance_log_start(self, offset: int, *, leader_epoch: int, now_ms: int) -> CommitOutcome:
        assert not self._must_reload, f"{self._folder}: removal after an outcome that asked for a reload"
        view = self._reader.view
        assert view.state.log_start < offset <= view.state.high_watermark, (
            f"{self._folder}: expected a log start above {view.state.log_start} and up to "
            f"{view.state.high_watermark}, found {offset}"
        )
        signature = self._sign(leader_epoch, now_ms)
        removes = [file.path for file in view.live_files if file.next_offset <= offset]
        data = encode_removal(
            removes,
            high_watermark=view.state.high_watermark,
            log_start=offset,
            signature=signature,
        )
        outcome = self._commit(
            view.state.version + 1, data, signature, high_watermark=view.state.high_watermark, new_paths=()
        )
        if isinstance(outcome, Committed):
            self._note_removed(removes, outcome.version, now_ms)
            self._reader.view = view.started_at(offset, removed_count=len(removes), leader_epoch=leader_epoch)
        return outcome

    def _note_removed(self, paths: Sequence[str], version: int, now_ms: int) -> None:
        """Before the view loses them: a data file must not be in neither for a moment."""
        self._removed.update(dict.fromkeys(paths, Removal(version, now_ms)))

    def drop_old_versions(self, *, committed_before_ms: int, count_max: int, removed_before_ms: int) -> Dropped:
        with self._cleaning:
            if self._must_reload:
                return Dropped()
            self._check_last_once()
            return self._old_versions.drop(
                Limits(committed_before_ms, count_max, removed_before_ms),
                last_version=self.state.version,
                checkpoint_version=self._checkpoint_version,
                is_last=self._is_last,
                find_needed=lambda: {*self._removed, *self._reader.paths_in_use(), *self._live_paths()},
            )

    def is_checkpoint_needed_to_drop(self, *, committed_before_ms: int) -> bool:
        return any(removal.removed_ms < committed_before_ms for removal in list(self._removed.values()))

    def find_orphans(self) -> frozenset[str]:
        with self._cleaning:
            return self._find_orphans()

    def _find_orphans(self) -> frozenset[str]:
        if self._doubtful is not None or self._must_reload:
            return frozenset()  # it is not known which data files the last version has
        # In this order: what is committed or removed meanwhile is in the next one before it leaves the last.
        listed = list_data_files(self._store, self._folder)
        begun = self._commits_begun
        found = {name for name in listed if name not in self._under_way}
        found -= self._live_paths()
        found -= self._removed.keys()
        found -= load_removed(self._store, self._folder, self._checkpoint_version).keys()
        self._listed = {name: min(self._listed.get(name, begun), begun) for name in found}
        return frozenset(found)

    def delete_orphans(self, orphans: frozenset[str]) -> int:
        """No other leader can commit what is deleted here. A file that was there before a version of ours was begun is
        meant for that version's number or a lower one: so once ours is committed, the file is in the log, which memory
        then says, or it never will be. A swap is not committed after its leader has read the log again."""
        with self._cleaning:
            still = orphans & self._find_orphans() if orphans else orphans
            if not still:
                return 0
            if any(self._listed[name] >= self._last_committed for name in still):
                self._commit_fence()
            if not self._is_last():
                return 0
            for name in sorted(still):
                self._store.delete(f"{self._folder}/{name}")
            return len(still)

    def _commit_fence(self) -> None:
        """Raises `FenceLost`."""
        view = self._reader.view
        epoch, high_watermark = max(self._leader_epoch, view.state.leader_epoch), view.state.high_watermark
        signature = Signature(epoch, time.time_ns() // 1_000_000, str(uuid.uuid4()), self._incarnation)
        data = encode_fence(high_watermark=high_watermark, signature=signature)
        outcome = self._commit(view.state.version + 1, data, signature, high_watermark=high_watermark, new_paths=())
        if not isinstance(outcome, Committed):
            raise FenceLost(f"{self._folder}: no fence was committed, so no orphan was deleted: {outcome}", outcome)
        self._reader.view = view.fenced(epoch)

    def _is_last(self) -> bool:
        """Whether no other writer has come behind the version that memory knows: a leader that was overtaken deletes
        nothing. One of ours may be on its way into memory."""
        version = self.state.version + 1
        try:
            return decode_commit(version, self._store.get(self._version_key(version))).incarnation == self._incarnation
        except KeyNotFound:
            pass
        except MalformedCommit:
            return False
        # Versions are dropped from the oldest on: where the one that memory knows is there, the next was not dropped.
        try:
            self._store.size(self._version_key(version - 1))
        except KeyNotFound:
            return False
        return True

    def _live_paths(self) -> set[str]:
        return {file.path for file in self._reader.view.live_files}

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
        with self._cleaning:
            view = self._reader.view
            version = view.state.version
            # One that fails is tried again as many commits later: a full disk does not fail every commit a second time.
            self._checkpoint_tried_version = version
            started_s = time.monotonic()
            try:
                checkpoints.write_checkpoint(
                    self._store,
                    self._folder,
                    version=version,
                    base_version=self._checkpoint_version,
                    paths=[file.path for file in view.live_files],
                    idle_since_ms=self._idle_since_ms,
                    check_commit=self._check_commit,
                )
            finally:
                self._checkpoint_ended_s = time.monotonic()
                self._checkpoint_duration_s = self._checkpoint_ended_s - started_s
            self._checkpoint_version = version
            self._old_versions.note_true(version)
            for path, removal in list(self._removed.items()):
                if removal.version <= version:
                    del self._removed[path]

    def _check_commit(self, commit: Commit) -> None:
        """Since the log was read, all versions up to the one that memory knows are ours. Raises `VersionReplaced`."""
        if commit.version > self._loaded_version and commit.incarnation != self._incarnation:
            raise VersionReplaced(
                f"{self._version_key(commit.version)}: expected the version that was committed and acknowledged, found "
                f"{commit.operation} of {commit.engine_info}, which another program has put in its place. Stop the "
                f"program that writes to this table, then see `bus log repair`"
            )

    def _settle(self, doubtful: _Doubtful) -> None:
        """If our version is there, make it durable before anybody acts on it. Raises `StorageFault` if that fails."""
        with contextlib.suppress(KeyNotFound):
            if self._store.get(doubtful.key) == doubtful.data:
                self._store.confirm(doubtful.key, doubtful.data)
