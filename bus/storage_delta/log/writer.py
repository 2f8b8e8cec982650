"""The end of a table's log, for the table's single writer.

Guards two promises. A version is committed only behind the one that memory knows, and what another program puts in the
place of an acknowledged version is found. And the data files of a version are deleted only once it is known that the
version is not in the log and never will be: of one whose outcome is unknown they stay until its number is taken.
"""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from bus.errors import StorageFault, VersionReplaced
from bus.ports import Clock, CommitOutcome, Committed, Conflicted, Unknown
from bus.storage_delta.log.actions import Commit, MalformedCommit, Signature, decode_commit
from bus.storage_delta.log.commit import commit_version, is_rival
from bus.storage_delta.log.listing import BOUNDARY, LOG_FOLDER, read_boundary, version_name
from bus.storage_delta.log.recovery import report_replaced
from bus.storage_delta.log.snapshot import Snapshot
from bus.storage_delta.stores.store import KeyNotFound, KeyReplaced, ObjectStore, Written

# After this time the end of the log must be checked again before a commit. Cleanup deletes a version only when it is at
# least one minute old, so within this time no version after a known one can have been written and deleted.
_END_KNOWN_MS = 10_000


class FilesUnderWay:
    """Data files of the table in `folder` that are written, or about to be, and that no version names yet: so they are
    no orphans."""

    def __init__(self, store: ObjectStore, folder: str) -> None:
        self._store = store
        self._folder = folder
        self._names: set[str] = set()

    def add(self, name: str) -> None:
        """To be called before the file is there."""
        self._names.add(name)

    def settle(self, names: Iterable[str]) -> None:
        """They are committed, and memory says so; or they are given up."""
        self._names.difference_update(names)

    def discard(self, names: Sequence[str]) -> None:
        """Delete those that no version will name. What cannot be deleted now is found as an orphan."""
        for name in names:
            with contextlib.suppress(StorageFault):
                self._store.delete(f"{self._folder}/{name}")
        self.settle(names)

    def __contains__(self, name: str) -> bool:
        return name in self._names


@dataclass(frozen=True, slots=True)
class _Doubtful:
    """A version of ours whose fate is unknown. Its data files stay until some version has its number: until then it may
    still appear, for example when a network file system tries a lost call again."""

    version: int
    key: str
    data: bytes
    new_paths: Sequence[str]  # its data files


@dataclass(frozen=True, slots=True)
class _Last:
    """The last version in memory, ours or one that was read. The next version is committed only if this one still
    exists: a leader that slept would otherwise reuse the number of a version whose file was deleted meanwhile."""

    version: int
    data: bytes
    written: Written


class LogWriter:
    """Commits to the log in `folder`. Commits do not overlap with one another, nor with reading the log again."""

    def __init__(
        self,
        store: ObjectStore,
        folder: str,
        under_way: FilesUnderWay,
        *,
        clock: Clock,
        topic_id: str,
        incarnation: str | None,
    ) -> None:
        """`incarnation` tells this life of the broker from all others."""
        self._store = store
        self._folder = folder
        self._log_folder = f"{folder}/{LOG_FOLDER}"
        self._under_way = under_way
        self._clock = clock
        self._topic_id = topic_id
        self.incarnation = incarnation or uuid.uuid4().hex
        self._doubtful: _Doubtful | None = None
        self._undecided: list[_Doubtful] = []  # not there when the log was read again, but not ruled out either
        self._last: _Last | None = None  # None: it is not known
        self._end_known_ms = 0.0  # then `_last` was there, and what came behind it was not dropped
        self._checked_version = -1
        self._read_version = -1  # up to which the log was read, and not committed
        self._known_version: int | None = None  # before the log began to be read again; None: it is not being read
        self.leader_epoch = -1  # under which we lead, or have tried to commit
        self.must_reload = False  # memory may not be what the log says
        self.reloads = 0
        self.commits_begun = 0
        self.last_committed = -1  # the number of the last begun commit that succeeded

    def sign(self, leader_epoch: int, now_ms: int, txn_id: str | None = None) -> Signature:
        self.leader_epoch = max(self.leader_epoch, leader_epoch)
        return Signature(leader_epoch, now_ms, txn_id or str(uuid.uuid4()), self.incarnation)

    def commit(
        self, version: int, data: bytes, signature: Signature, *, high_watermark: int, new_paths: Sequence[str] = ()
    ) -> CommitOutcome:
        """Commit `data`, which names the data files `new_paths`. They go only if it is known that the version is not
        there and never will be; otherwise the log has to be read again, and decides."""
        self.commits_begun += 1
        serial, doubtful = self.commits_begun, _Doubtful(version, self._key(version), data, new_paths)
        last, created = self._last, list[Written]()
        begun_ms = self._clock.monotonic_ms()
        if last is None or self._is_long_ago(self._end_known_ms, begun_ms):
            try:
                reason = self._find_dropped(version)
            except StorageFault:
                self._under_way.discard(new_paths)
                raise
            if reason is not None:
                self._under_way.discard(new_paths)
                self.must_reload = True
                return Unknown(version, reason)
            self._end_known_ms = begun_ms
        try:
            outcome = commit_version(
                self._store,
                self._log_folder,
                version=version,
                data=data,
                txn_id=signature.txn_id,
                incarnation=self.incarnation,
                high_watermark=high_watermark,
                after=None if last is None else last.written,
                note=created.append,
            )
        except KeyReplaced as replaced:
            self._under_way.discard(new_paths)
            self.must_reload = True
            try:
                self._check_last()
            except VersionReplaced:
                raise
            except StorageFault:
                pass  # reading the log again looks once more
            return Unknown(version, str(replaced))
        except StorageFault:
            self._under_way.discard(new_paths)
            raise
        except BaseException:
            self.must_reload, self._doubtful = True, doubtful
            raise
        if isinstance(outcome, Committed) and self._is_long_ago(self._end_known_ms, self._clock.monotonic_ms()):
            outcome = self._judge_late(outcome)
        match outcome:
            case Committed():
                self._end_known_ms = begun_ms
                self._last = _Last(version, data, created[0]) if created and created[0].stamp is not None else None
                self.last_committed = serial
                self._discard_decided(version)
            case Conflicted():
                self.must_reload = True
                self._under_way.discard(new_paths)
            case Unknown():
                self.must_reload, self._doubtful = True, doubtful
        return outcome

    @staticmethod
    def _is_long_ago(known_ms: float, now_ms: float) -> bool:
        return now_ms - known_ms > _END_KNOWN_MS

    def _find_dropped(self, version: int) -> str | None:
        """Why `version` may be the number of one that was dropped. Raises `StorageFault`."""
        kept_from = read_boundary(self._store, self._folder, topic_id=self._topic_id)
        if version > kept_from:
            return None
        return (
            f"{self._folder}/{BOUNDARY}: expected a boundary below version {version}, which is next for this leader, "
            f"found {kept_from}: other leaders have come as far. If no version is there that is newer, then the table "
            f"was set back, and `bus log repair` lets it go on"
        )

    def _judge_late(self, committed: Committed) -> Committed | Unknown:
        """One that took long: whoever stood still between the look and the commit may have taken a dropped number."""
        try:
            reason = self._find_dropped(committed.version)
        except StorageFault as fault:
            reason = str(fault)
        return committed if reason is None else Unknown(committed.version, reason)

    @property
    def is_in_doubt(self) -> bool:
        """It is not known which data files the last version has."""
        return self._doubtful is not None or self.must_reload

    # ------------------------------------------------------------------ reading the log

    def begin_to_lead(self, leader_epoch: int, version: int) -> None:
        """Commit behind `version`, the last one that was read, and step down for a leader of that epoch or above."""
        self.leader_epoch = leader_epoch
        self.start_behind(version)

    def find_last_leader(self, version: int) -> tuple[int, str | None] | None:
        """Leader epoch and incarnation in the last commit of a leader up to `version`; None if its file is gone."""
        for earlier in range(version, -1, -1):
            try:
                commit = decode_commit(earlier, self._store.get(self._key(earlier)))
            except (KeyNotFound, MalformedCommit):
                return None
            if commit.leader_epoch is not None:
                return commit.leader_epoch, commit.incarnation
        return None

    def begin_reload(self, known_version: int) -> None:
        """From here on nothing that was prepared may be committed: a leader that came between may have listed its files
        as orphans. `known_version` is that of memory: where a reading failed half-way, that before the first try
        counts. Raises `StorageFault`, `VersionReplaced`."""
        doubtful = self._doubtful
        if doubtful is not None and self._is_ours_to_keep(doubtful.version):
            self._confirm(doubtful)
        self.must_reload = True
        self.reloads += 1
        self._check_last()
        self._last = None
        if self._known_version is None:
            self._known_version = known_version

    def end_reload(self, version: int) -> None:
        """The log was read up to `version`, and what a crash left was put right."""
        doubtful, self._doubtful = self._doubtful, None
        self.must_reload, self._known_version = False, None
        if doubtful is not None:
            self._undecided.append(doubtful)
            self._under_way.settle(doubtful.new_paths)
        self._discard_decided(version)

    def start_behind(self, version: int) -> None:
        """The next version follows `version`, the last one that was read."""
        self._read_version = version
        self._end_known_ms = self._clock.monotonic_ms()
        try:
            key = self._key(version)
            self._last = _Last(version, self._store.get(key), Written(key, self._store.stamp(key)))
        except KeyNotFound:
            self._last = None

    def is_overtaken(self, snapshot: Snapshot) -> bool:
        """True if another leader, which this one must not follow, has committed since this leader last read the log."""
        known_version = snapshot.version if self._known_version is None else self._known_version
        if self.leader_epoch < 0:
            return False
        if snapshot.leader_epoch > self.leader_epoch:
            return True
        for version in range(snapshot.version, known_version, -1):
            try:
                commit = decode_commit(version, self._store.get(self._key(version)))
            except (KeyNotFound, MalformedCommit):
                continue  # dropped, or set aside
            if is_rival(commit, self.incarnation) and (commit.leader_epoch or 0) >= self.leader_epoch:
                return True
        return False

    def _is_ours_to_keep(self, version: int) -> bool:
        """Not if a successor has built on it, and not up to the boundary: it is in a checkpoint, or counts for nothing.
        Raises `StorageFault`."""
        return not self._is_followed_by_rival(version) and self._find_dropped(version) is None

    def _is_followed_by_rival(self, version: int) -> bool:
        """True if a rival leader has committed behind `version`. It has read `version` and builds on it, so the version
        is that leader's to keep."""
        with contextlib.suppress(KeyNotFound, MalformedCommit):
            while True:
                version += 1
                commit = decode_commit(version, self._store.get(self._key(version)))
                if is_rival(commit, self.incarnation) and (commit.leader_epoch or 0) >= self.leader_epoch:
                    return True
        return False

    def _confirm(self, doubtful: _Doubtful) -> None:
        """If our version is there, make it durable before anything acts on it. Raises `StorageFault` if that fails."""
        with contextlib.suppress(KeyNotFound):
            if self._store.get(doubtful.key) == doubtful.data:
                self._store.confirm(doubtful.key, doubtful.data)

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
                self._under_way.discard(doubtful.new_paths)

    # ------------------------------------------------------------------ what other programs do

    def is_last(self, version: int) -> bool:
        """True if no other writer has committed behind `version`, the last one in memory. A leader that was overtaken
        deletes nothing."""
        # Versions are dropped from the oldest on: where the one that memory knows is there, the next was not dropped.
        return not self.is_followed(version) and self._is_there(version)

    def is_at_end(self, version: int) -> bool:
        """True if no version at all, not even our own, follows `version`, the last one in memory."""
        return not self._is_there(version + 1) and self._is_there(version)

    def _is_there(self, version: int) -> bool:
        try:
            self._store.size(self._key(version))
        except KeyNotFound:
            return False
        return True

    def is_followed(self, version: int) -> bool:
        """True if another writer's version follows `version`, the last one in memory. Our own versions that memory does
        not have yet, or whose outcome is unknown, are skipped; versions of others may follow them. Deleted versions are
        not seen."""
        try:
            while decode_commit(version + 1, self._store.get(self._key(version + 1))).incarnation == self.incarnation:
                version += 1
        except KeyNotFound:
            return False
        except MalformedCommit:
            pass
        return True

    def check_commit(self, commit: Commit) -> None:
        """Since the log was read, all versions up to the one that memory knows are ours. Raises `VersionReplaced`."""
        if commit.version > self._read_version and commit.incarnation != self.incarnation:
            raise VersionReplaced(
                f"{self._key(commit.version)}: expected the version that was committed and acknowledged, found "
                f"{commit.operation} of {commit.engine_info}, which another program has put in its place. Stop the "
                f"program that writes to this table, then see `bus log repair`"
            )

    def check_last_once(self) -> None:
        """Check that nobody replaced the last version, once for each version. Needed for a version that stays the last
        for long; a commit that runs at the same time checks its own predecessor."""
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

    def _key(self, version: int) -> str:
        return f"{self._log_folder}/{version_name(version)}"
