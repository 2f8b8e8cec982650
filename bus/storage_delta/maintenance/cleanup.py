"""The cleanup of a table by its leader: checkpoints, old versions, and files that no version needs any more.

Guards one promise: a data file that the log names, that a reader is reading, or that a commit under way will name is
never deleted. So every data file is live or removed at every moment: what a version removes is noted here before the
view of the table loses it, and goes from here only into a checkpoint. Checkpoints and deletions run one at a time.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from bus.errors import StorageFault
from bus.ports import Clock, CommitOutcome, Committed, Dropped, FenceLost
from bus.storage_delta.files.live_file import is_data_file
from bus.storage_delta.leadership import Leadership
from bus.storage_delta.log import checkpoints
from bus.storage_delta.log.actions import encode_removal
from bus.storage_delta.log.checkpoint_files import MalformedCheckpoint, decode_checkpoint, read_hint
from bus.storage_delta.log.listing import (
    LAST_CHECKPOINT,
    LOG_FOLDER,
    checkpoint_name,
    list_data_files,
    list_log,
    raise_boundary,
    version_name,
)
from bus.storage_delta.log.reading import find_commit, load_removed, load_txns
from bus.storage_delta.log.snapshot import Snapshot
from bus.storage_delta.log.table_protocol import is_managed
from bus.storage_delta.log.table_state import Removal
from bus.storage_delta.log.txns import Txn
from bus.storage_delta.log.writer import FilesUnderWay, LogWriter
from bus.storage_delta.partition_reader import PartitionReader
from bus.storage_delta.stores.store import KeyNotFound, ObjectStore

_log = logging.getLogger(__name__)


# Readers that have begun with one of these may finish.
_NEWEST_CHECKPOINTS = 2
# Between this number and twice as many checkpoints stay, spread over the kept versions, which may begin at any of them.
_CHECKPOINTS_SPREAD = 16


@dataclass(frozen=True, slots=True)
class Limits:
    """Versions before `committed_before_ms`, and those beyond the newest `count_max`, may go, but nothing that was
    committed or removed from `removed_before_ms` on."""

    committed_before_ms: int
    count_max: int
    removed_before_ms: int


@dataclass(frozen=True, slots=True)
class _Log:
    """The names in a log's folder."""

    versions: Sequence[int]
    checkpoints: Sequence[int]


class OldVersions:
    """The versions of one table that are kept for readers of its past, and their deletion. One thread at a time uses
    it, which may run beside commits and reads.

    Guards two promises. Nothing that the table needs is deleted: one checkpoint that was just read, is whole and agrees
    with the versions before it stays, together with its version and every later version, so the last version can always
    be rebuilt. And every version that is kept can be read: a data file is deleted only if the checkpoint at which the
    kept versions begin names it as removed, and after the versions that had it are durably deleted."""

    def __init__(self, store: ObjectStore, folder: str, *, topic_id: str) -> None:
        self._store = store
        self._folder = folder
        self._topic_id = topic_id
        self._log_folder = f"{folder}/{LOG_FOLDER}"
        # Results of the last pass, so that most passes need not look at any file.
        self._seen_checkpoint = -2
        self._true_checkpoints: set[int] = set()  # those that were compared with the versions before them
        self._are_names_synced = False  # no version that was deleted can come back after a power failure
        self._has_sync_failed = False
        self._kept_from = -1  # the kept versions begin with this checkpoint, which was whole; -1: none was found yet
        self._is_swept = False  # no data file that only older versions had is left
        self._following: int | None = None  # the next checkpoint that may take its place
        self._following_ms = 0  # when the last version before that was committed

    def note_true(self, checkpoint_version: int) -> None:
        """It was written by this process, and compared."""
        self._true_checkpoints.add(checkpoint_version)

    def drop(
        self,
        limits: Limits,
        *,
        last_version: int,
        checkpoint_version: int,
        is_last: Callable[[], bool],
        find_needed: Callable[[], set[str]],
    ) -> Dropped:
        """Delete what may go up to the newest whole checkpoint that allows it, none newer than `checkpoint_version`.

        First the boundary is raised, by which a leader that was asleep knows that a number was used. Then checkpoints
        go that are not needed any more, then versions, the oldest first: so a crash leaves no checkpoint with a gap
        behind it, and no gap between versions. Then data files that were removed before the kept versions begin, but
        for those that `find_needed` names. Deletes nothing if `last_version` is not the last one in the log: then
        another leader looks after it. Raises `StorageFault`."""
        beyond = last_version - limits.count_max + 1
        if not self._is_anything_due(limits, beyond, checkpoint_version) or not is_last():
            return Dropped()
        hint = read_hint(self._store, self._log_folder)
        if hint is not None and hint.version < checkpoint_version:
            return Dropped()  # a former leader has set it back to one that would go; the next checkpoint puts it right
        listing = list_log(self._store, self._folder)
        log = _Log(list(listing.versions), list(listing.checkpoints))
        if not log.versions:
            return Dropped()
        kept_from = self._newest_whole(log, min(self._end(log.versions, limits, beyond), checkpoint_version))
        gone = [] if kept_from is None else [version for version in log.versions if version < kept_from]
        self._are_names_synced = self._are_names_synced and not gone
        if kept_from is not None and gone:
            raise_boundary(self._store, self._folder, kept_from, topic_id=self._topic_id)
        left = self._thin_checkpoints(log, kept_from, last_version=last_version, in_use=checkpoint_version)
        for version in gone:
            self._store.delete(f"{self._log_folder}/{version_name(version)}")
        if kept_from is not None and not self._are_names_synced:
            self._sync_names()
        self._true_checkpoints.intersection_update(left)
        if kept_from is not None and kept_from != self._kept_from:
            self._kept_from, self._is_swept = kept_from, False
        dropped = Dropped(versions=len(gone))
        if kept_from is not None and not self._is_swept:
            dropped = self._sweep(dropped, kept_from, checkpoint_version, limits, find_needed())
        self._note_following(left, checkpoint_version)
        return dropped

    def _sync_names(self) -> None:
        """A version must not come back without its data files. Raises `StorageFault`; until it succeeds no data file
        goes."""
        if self._has_sync_failed:
            # A kernel reports a failed write-back once and then forgets it: sync again what is written again.
            with contextlib.suppress(KeyNotFound):
                hint = f"{self._log_folder}/{LAST_CHECKPOINT}"
                self._store.put(hint, self._store.get(hint))
        self._has_sync_failed = True
        self._store.sync(self._log_folder)
        self._has_sync_failed, self._are_names_synced = False, True

    def _is_anything_due(self, limits: Limits, beyond: int, checkpoint_version: int) -> bool:
        if checkpoint_version != self._seen_checkpoint or (self._kept_from >= 0 and not self._is_swept):
            return True
        return self._following is not None and (
            self._following <= beyond or self._following_ms < limits.committed_before_ms
        )

    def _note_following(self, kept: Sequence[int], checkpoint_version: int) -> None:
        self._seen_checkpoint = checkpoint_version
        self._following = next((version for version in kept if version > self._kept_from), None)
        if self._following is not None:
            commit = find_commit(self._store, self._log_folder, self._following - 1)
            self._following_ms = 0 if commit is None else commit.committed_ms

    def _end(self, versions: Sequence[int], limits: Limits, beyond: int) -> int:
        """The first version that has to stay."""

        def first_since(time_ms: int) -> int:
            at = bisect_left(versions, True, key=lambda version: not self._is_before(version, time_ms))
            return versions[at] if at < len(versions) else versions[-1] + 1

        return min(max(beyond, first_since(limits.committed_before_ms)), first_since(limits.removed_before_ms))

    def _is_before(self, version: int, time_ms: int) -> bool:
        commit = find_commit(self._store, self._log_folder, version)
        return commit is None or commit.committed_ms < time_ms

    def _newest_whole(self, log: _Log, version_max: int) -> int | None:
        for version in reversed(log.checkpoints):
            if version == self._kept_from and version <= version_max:
                return version
            if version <= version_max:
                try:
                    data = self._store.get(f"{self._log_folder}/{checkpoint_name(version)}")
                    found = decode_checkpoint(version, data).version
                    if self._is_true(log, found):
                        return found
                    name = f"{self._log_folder}/{checkpoint_name(version)}"
                    _log.error("%s: expected what the versions up to it say, so those before it stay", name)
                except (MalformedCheckpoint, KeyNotFound):
                    continue
        return None

    def _is_true(self, log: _Log, version: int) -> bool:
        """True if the checkpoint agrees with the versions before it. It also counts as true if those versions cannot be
        rebuilt without it, because then nothing can be lost by trusting it."""
        bases = [checkpoint for checkpoint in log.checkpoints if checkpoint < version]
        is_needed_alone = not bases and log.versions[0] > 0
        if version in self._true_checkpoints or log.versions[0] >= version or is_needed_alone:
            return True
        base = bases[-1] if bases else -1
        if not checkpoints.is_true(self._store, self._log_folder, version, base_version=base):
            return False
        self._true_checkpoints.add(version)
        return True

    def _thin_checkpoints(self, log: _Log, kept_from: int | None, *, last_version: int, in_use: int) -> list[int]:
        """Delete those before `kept_from` and most of those after it. Returns what is left."""
        first = log.versions[0] if kept_from is None else kept_from
        distance = _power_of_two((last_version - first) // _CHECKPOINTS_SPREAD)
        needed = {*log.checkpoints[-_NEWEST_CHECKPOINTS:], in_use}
        left: list[int] = []
        for version in log.checkpoints:
            has_another = bool(left) and version // distance == left[-1] // distance
            is_dropped = kept_from is not None and version < kept_from
            if is_dropped or (has_another and version not in needed):
                self._store.delete(f"{self._log_folder}/{checkpoint_name(version)}")
            else:
                left.append(version)
        return left

    def _sweep(self, dropped: Dropped, kept_from: int, newest: int, limits: Limits, needed: set[str]) -> Dropped:
        """Delete the data files that were removed up to version `kept_from`."""
        removed = load_removed(self._store, self._folder, kept_from)
        # A file that was added again and then removed again belongs to a version that is kept.
        lately = removed if newest == kept_from else load_removed(self._store, self._folder, newest)
        count, byte_count, is_swept = 0, 0, True
        for path, removed_ms in removed.items():
            is_back = path in needed or lately.get(path, removed_ms) != removed_ms
            if is_back or removed_ms >= limits.removed_before_ms:
                is_swept = False
                continue
            key = f"{self._folder}/{path}"
            try:
                byte_count += self._store.size(key)
            except KeyNotFound:
                continue
            self._store.delete(key)
            count += 1
        self._is_swept = is_swept
        return Dropped(dropped.versions, count, byte_count)


def _power_of_two(number: int) -> int:
    """Return the largest power of two up to `number`. Checkpoints that were once far enough apart stay so, or every
    other one goes."""
    return 1 << max(0, number.bit_length() - 1)


class Cleanup:
    """Implements `bus.ports.TableCleanup`. Nothing is cleaned of a table that is followed."""

    def __init__(
        self,
        store: ObjectStore,
        folder: str,
        reader: PartitionReader,
        log: LogWriter,
        under_way: FilesUnderWay,
        leadership: Leadership,
        *,
        topic_id: str,
        clock: Clock,
    ) -> None:
        self._store = store
        self._folder = folder
        self._reader = reader
        self._log = log
        self._under_way = under_way
        self._clock = clock
        self._leadership = leadership
        self._old_versions = OldVersions(store, folder, topic_id=topic_id)
        self._running = threading.Lock()
        self.is_managed = False  # no other engine may write, according to the log that the table's leader has read
        self._removed: dict[str, Removal] = {}  # data files that went in versions after the newest checkpoint
        self._listed: dict[str, int] = {}  # possible orphans -> how many commits had begun when they were seen
        self._idle_since_ms = 0  # checkpoints leave out the producers that were idle since then
        self._checkpoint_version = -1
        self._checkpoint_tried_version = -1
        self._checkpoint_ended_ms = self._checkpoint_duration_ms = 0.0

    def take(self, snapshot: Snapshot) -> None:
        """Take over what the log says, which the table's leader has just read."""
        self.is_managed = is_managed(snapshot.state.protocol)
        self._checkpoint_version = snapshot.checkpoint_version
        self._removed = dict(snapshot.removed)

    def note_removed(self, paths: Iterable[str], version: int, now_ms: int) -> None:
        """Before the view loses them."""
        self._removed.update(dict.fromkeys(paths, Removal(version, now_ms)))

    def find_removed(self) -> set[str]:
        """The data files that some version removed and that are not deleted yet."""
        removed = set(self._removed)  # first: a checkpoint that is written meanwhile names what memory then forgets
        removed.update(load_removed(self._store, self._folder, self._checkpoint_version))
        return removed

    def load_txns(self) -> Mapping[str, Txn]:
        """All `txn` actions that the log has, also those that memory has forgotten."""
        with self._running:
            return load_txns(self._store, self._folder, self._checkpoint_version, self._reader.state.version)

    # ------------------------------------------------------------------ old records and versions

    def advance_log_start(self, offset: int, *, leader_epoch: int, now_ms: int) -> CommitOutcome:
        self._leadership.check(leader_epoch)
        view = self._reader.view
        assert view.state.log_start < offset <= view.state.high_watermark, (
            f"{self._folder}: expected a log start above {view.state.log_start} and up to "
            f"{view.state.high_watermark}, found {offset}"
        )
        signature = self._log.sign(leader_epoch, now_ms)
        high_watermark = view.state.high_watermark
        removes = [file.path for file in view.live_files if file.next_offset <= offset]
        data = encode_removal(removes, high_watermark=high_watermark, log_start=offset, signature=signature)
        outcome = self._log.commit(view.state.version + 1, data, signature, high_watermark=high_watermark)
        if isinstance(outcome, Committed):
            self.note_removed(removes, outcome.version, now_ms)
            self._reader.view = view.started_at(offset, removed_count=len(removes), leader_epoch=leader_epoch)
        return outcome

    def drop_old_versions(self, *, committed_before_ms: int, count_max: int, removed_before_ms: int) -> Dropped:
        with self._running:
            if not self._leadership.is_led or self._log.must_reload:
                return Dropped()
            self._log.check_last_once()
            return self._old_versions.drop(
                Limits(committed_before_ms, count_max, removed_before_ms),
                last_version=self._reader.state.version,
                checkpoint_version=self._checkpoint_version,
                is_last=self._is_last,
                find_needed=lambda: {*self._removed, *self._reader.paths_in_use(), *self._live_paths()},
            )

    def is_checkpoint_needed_to_drop(self, *, committed_before_ms: int) -> bool:
        return any(removal.removed_ms < committed_before_ms for removal in list(self._removed.values()))

    def _is_last(self) -> bool:
        return self._log.is_last(self._reader.state.version)

    # ------------------------------------------------------------------ orphans

    def find_orphans(self) -> frozenset[str]:
        with self._running:
            return self._find_orphans()

    def _find_orphans(self) -> frozenset[str]:
        if not self._leadership.is_led or self._log.is_in_doubt:
            return frozenset()
        # In this order: what is committed or removed meanwhile is in the next one before it leaves the last.
        listed = list_data_files(self._store, self._folder, of_engines=self.is_managed)
        begun = self._log.commits_begun
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
        with self._running:
            still = orphans & self._find_orphans() if orphans else orphans
            if not still:
                return 0
            if any(self._listed[name] >= self._log.last_committed for name in still):
                self._commit_orphans_fence()
            if not self._is_last():
                return 0
            for name in sorted(still):
                self._store.delete(f"{self._folder}/{name}")
                if not is_data_file(name):
                    self._store.delete(f"{self._folder}/.{name}.crc")  # Hadoop's checksum of it
            return len(still)

    def _commit_orphans_fence(self) -> None:
        """Raises `FenceLost`."""
        epoch = max(self._log.leader_epoch, self._reader.state.leader_epoch)
        outcome = self._leadership.commit_fence(epoch, self._clock.now_ms())
        if not isinstance(outcome, Committed):
            raise FenceLost(f"{self._folder}: no fence was committed, so no orphan was deleted: {outcome}", outcome)

    def _live_paths(self) -> set[str]:
        return {file.path for file in self._reader.view.live_files}

    # ------------------------------------------------------------------ checkpoints

    @property
    def is_checkpoint_due(self) -> bool:
        state = self._reader.state
        if self._store.table_url(self._folder) is None:
            return False
        commits = state.version - max(0, self._checkpoint_version, self._checkpoint_tried_version)
        return checkpoints.is_due(
            commits=commits,
            file_count=state.file_count,
            elapsed_ms=self._clock.monotonic_ms() - self._checkpoint_ended_ms,
            last_duration_ms=self._checkpoint_duration_ms,
        )

    def leave_out_idle(self, since_ms: int) -> None:
        """Leave producers that were idle since then out of the next checkpoints."""
        self._idle_since_ms = max(self._idle_since_ms, since_ms)

    def write_checkpoint(self) -> None:
        with self._running:
            if not self._leadership.is_led:
                raise StorageFault(f"{self._folder}: expected to lead the log that is checkpointed, found it followed")
            view = self._reader.view
            version = view.state.version
            # One that fails is tried again as many commits later: a full disk does not fail every commit a second time.
            self._checkpoint_tried_version = version
            if self._log.is_followed(version):
                return  # another leader writes them now; where `version` is gone, writing says so
            started_ms = self._clock.monotonic_ms()
            try:
                checkpoints.write_checkpoint(
                    self._store,
                    self._folder,
                    version=version,
                    base_version=self._checkpoint_version,
                    paths=[file.path for file in view.live_files],
                    idle_since_ms=self._idle_since_ms,
                    check_commit=self._log.check_commit,
                )
            finally:
                self._checkpoint_ended_ms = self._clock.monotonic_ms()
                self._checkpoint_duration_ms = self._checkpoint_ended_ms - started_ms
            self._checkpoint_version = version
            self._old_versions.note_true(version)
            for path, removal in list(self._removed.items()):
                if removal.version <= version:
                    del self._removed[path]
