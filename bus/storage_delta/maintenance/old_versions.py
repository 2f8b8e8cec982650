"""The versions of a table's past: what each one left, and when their files go.

Guards three promises. What is said about a version is said by its own file; one whose file was dropped is not there any
more. Nothing is dropped that the table needs: a checkpoint that was read and found whole just before, and to say what
the versions before it say, its own version and every version after it stay, so the last version can always be put
together. And every version that is kept can be
read: a data file goes only if the checkpoint at which the kept versions begin names it as removed already, and the
versions that had it are gone, durably, before it goes.
"""

from __future__ import annotations

import contextlib
import logging
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from bus.ports import Dropped
from bus.storage_delta.log import checkpoints
from bus.storage_delta.log.boundary import raise_boundary
from bus.storage_delta.log.checkpoint_files import MalformedCheckpoint, decode_checkpoint, read_hint
from bus.storage_delta.log.listing import LAST_CHECKPOINT, LOG_FOLDER, checkpoint_name, list_log, version_name
from bus.storage_delta.log.reading import find_commit, load_removed
from bus.storage_delta.stores.store import KeyNotFound, ObjectStore

_log = logging.getLogger(__name__)

# Readers that have begun with one of these may finish.
_NEWEST_CHECKPOINTS = 2
# From so many to twice as many stay, spread over the versions that are kept: these may begin at any of them.
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
    """Of one table. For one thread at a time, which may run beside commits and reads."""

    def __init__(self, store: ObjectStore, folder: str, *, topic_id: str) -> None:
        self._store = store
        self._folder = folder
        self._topic_id = topic_id
        self._log_folder = f"{folder}/{LOG_FOLDER}"
        # What the last pass left, so that most passes look at nothing.
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
        """Whether it says what the versions before it say. Where these cannot be put together without it, there is
        nothing to lose by it."""
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
        # What was put back since, and removed again, is in a version that is kept.
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
    """The largest that is not above; so what was once far enough apart stays so, or goes by halves."""
    return 1 << max(0, number.bit_length() - 1)
