"""The cleanup of a table by its leader: checkpoints, old versions, and files that no version needs any more.

Guards one promise: a data file that the log names, that a reader is reading, or that a commit under way will name is
never deleted. So every data file is live or removed at every moment: what a version removes is noted here before the
view of the table loses it, and goes from here only into a checkpoint. Checkpoints and deletions run one at a time.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping

from bus.errors import StorageFault
from bus.ports import Clock, CommitOutcome, Committed, Dropped, FenceLost
from bus.storage_delta.log import checkpoints
from bus.storage_delta.log.listing import list_data_files
from bus.storage_delta.log.reading import load_removed, load_txns
from bus.storage_delta.log.snapshot import Snapshot
from bus.storage_delta.log.table_state import Removal
from bus.storage_delta.log.txns import Txn
from bus.storage_delta.log.writer import FilesUnderWay, LogWriter
from bus.storage_delta.maintenance.old_versions import Limits, OldVersions
from bus.storage_delta.partition_reader import PartitionReader
from bus.storage_delta.stores.store import ObjectStore


class Cleanup:
    """Of one table. `is_led`: whether this process leads it; nothing is cleaned of one that is followed.
    `commit_fence`, with leader epoch and time, commits a version that changes nothing."""

    def __init__(
        self,
        store: ObjectStore,
        folder: str,
        reader: PartitionReader,
        log: LogWriter,
        under_way: FilesUnderWay,
        *,
        topic_id: str,
        clock: Clock,
        is_led: Callable[[], bool],
        commit_fence: Callable[[int, int], CommitOutcome],
    ) -> None:
        self._store = store
        self._folder = folder
        self._reader = reader
        self._log = log
        self._under_way = under_way
        self._clock = clock
        self._is_led = is_led
        self._commit_fence = commit_fence
        self._old_versions = OldVersions(store, folder, topic_id=topic_id)
        self._running = threading.Lock()
        self._removed: dict[str, Removal] = {}  # data files that went in versions after the newest checkpoint
        self._listed: dict[str, int] = {}  # possible orphans -> how many commits had begun when they were seen
        self._checkpoint_version = -1
        self._checkpoint_tried_version = -1
        self._checkpoint_ended_ms = self._checkpoint_duration_ms = 0.0

    def take(self, snapshot: Snapshot) -> None:
        """What the log says, as the table's leader has just read it."""
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

    # ------------------------------------------------------------------ old versions

    def drop_old_versions(self, *, committed_before_ms: int, count_max: int, removed_before_ms: int) -> Dropped:
        """See `TableMaintenance.drop_old_versions`."""
        with self._running:
            if not self._is_led() or self._log.must_reload:
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
        """See `TableMaintenance.is_checkpoint_needed_to_drop`."""
        return any(removal.removed_ms < committed_before_ms for removal in list(self._removed.values()))

    def _is_last(self) -> bool:
        return self._log.is_last(self._reader.state.version)

    # ------------------------------------------------------------------ orphans

    def find_orphans(self) -> frozenset[str]:
        """See `TableMaintenance.find_orphans`."""
        with self._running:
            return self._find_orphans()

    def _find_orphans(self) -> frozenset[str]:
        if not self._is_led() or self._log.is_in_doubt:
            return frozenset()
        # In this order: what is committed or removed meanwhile is in the next one before it leaves the last.
        listed = list_data_files(self._store, self._folder)
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
            return len(still)

    def _commit_orphans_fence(self) -> None:
        """Raises `FenceLost`."""
        epoch = max(self._log.leader_epoch, self._reader.state.leader_epoch)
        outcome = self._commit_fence(epoch, self._clock.now_ms())
        if not isinstance(outcome, Committed):
            raise FenceLost(f"{self._folder}: no fence was committed, so no orphan was deleted: {outcome}", outcome)

    def _live_paths(self) -> set[str]:
        return {file.path for file in self._reader.view.live_files}

    # ------------------------------------------------------------------ checkpoints

    @property
    def is_checkpoint_due(self) -> bool:
        """See `TableMaintenance.is_checkpoint_due`."""
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

    def write_checkpoint(self, *, idle_since_ms: int) -> None:
        """See `TableMaintenance.write_checkpoint`. Producers that were idle since `idle_since_ms` are left out."""
        with self._running:
            if not self._is_led():
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
                    idle_since_ms=idle_since_ms,
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
