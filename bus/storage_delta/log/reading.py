"""Reading a table's log: the newest checkpoint that is whole, then every version after it, then what follows.

Guards one promise: no version is passed over, and none is made up. Judges nothing that a version did: that is in the
state that comes out (table_state.py). Only reads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from bus.errors import StorageDamaged, StorageFault
from bus.records.json_text import parse_json
from bus.storage_delta.files.live_file import LiveFile, check_int64
from bus.storage_delta.log.actions import Add, ChangedCommit, Commit, MalformedCommit, decode_commit
from bus.storage_delta.log.checkpoint_files import (
    CheckpointContent,
    Hint,
    MalformedCheckpoint,
    decode_checkpoint,
    decode_removed,
    decode_txns,
    load_proved,
    read_hint,
)
from bus.storage_delta.log.listing import LOG_FOLDER, LogListing, checkpoint_name, list_log, version_name
from bus.storage_delta.log.table_state import TableState, adopt, apply, state_of_checkpoint
from bus.storage_delta.log.txns import Txn
from bus.storage_delta.stores.store import KeyNotFound, ObjectStore, Stamp

# One after the other costs more than to read the log afresh from its last checkpoint.
_FOLLOWED_VERSIONS_MAX = 100

# Describes a data file of another engine; raises `StorageDamaged` if the file is not part of a log.
Describe = Callable[[Add], LiveFile]


@dataclass(frozen=True, slots=True)
class LogReading:
    """The state that a log adds up to, and the sources it was read from."""

    state: TableState
    listing: LogListing  # begins with the checkpoint that `hint` names, if that one is whole
    hint: Hint | None
    checkpoint: CheckpointContent | None
    truncated: Sequence[str]  # newer checkpoints that cannot be read
    torn: str | None = None  # why the last version cannot be read; it is not in `state`


def load_state(store: ObjectStore, folder: str, *, version: int | None = None) -> TableState:
    """See `read_whole_log`."""
    return read_whole_log(store, folder, version=version).state


def read_whole_log(
    store: ObjectStore, folder: str, *, version: int | None = None, describe: Describe | None = None
) -> LogReading:
    """The log up to `version`, or to its last one, for those who only look: no data file is opened, and what harms the
    log is left for them to see. Raises `StorageDamaged` if the log cannot be read up to there, or does not tell which
    offsets a file has."""
    reading = read_log(store, folder, describe or describe_by_statistics, version_max=version)
    if reading.torn is not None:
        name = f"{folder}/{LOG_FOLDER}/{version_name(reading.state.version + 1)}"
        raise StorageDamaged(f"{name}: {reading.torn}; see bus log verify")
    unknown = next((harm for harm in reading.state.harms.values() if harm.is_file_unknown), None)
    if unknown is not None:
        name = f"{folder}/{LOG_FOLDER}/{version_name(unknown.version)}"
        raise StorageDamaged(f"{name}: {unknown.author} {unknown.deed}; see bus log verify")
    return reading


def read_log(store: ObjectStore, folder: str, describe: Describe, *, version_max: int | None = None) -> LogReading:
    """The log in `folder` up to `version_max`, or to its end. Raises `StorageDamaged`."""
    hint = read_hint(store, f"{folder}/{LOG_FOLDER}")
    if version_max is not None and hint is not None and hint.version > version_max:
        hint = None
    listing = _up_to(list_log(store, folder, from_checkpoint=None if hint is None else hint.version), version_max)
    checkpoint, truncated = _newest_whole_checkpoint(store, folder, listing, hint)
    if checkpoint is None and hint is not None:
        listing = _up_to(list_log(store, folder), version_max)
        checkpoint, truncated = _newest_whole_checkpoint(store, folder, listing, hint)
    if not listing.versions and checkpoint is None and not truncated:
        raise StorageDamaged(f"{folder}/{LOG_FOLDER}: expected the table's log, found no version and no checkpoint")
    start = TableState()
    if checkpoint is not None:
        start = state_of_checkpoint(replace(checkpoint, adds=adopt(checkpoint.adds, describe)))
    tail, torn = _tail_after(store, folder, listing, start.version + 1, truncated), list[str]()
    state = apply(start, _read_versions(store, folder, tail, describe, torn))
    return LogReading(state, listing, hint, checkpoint, truncated, torn[0] if torn else None)


def read_commit(store: ObjectStore, folder: str, version: int, describe: Describe) -> Commit:
    """Raises `KeyNotFound`, `MalformedCommit`."""
    commit = decode_commit(version, store.get(f"{folder}/{LOG_FOLDER}/{version_name(version)}"))
    adds = adopt(commit.adds, describe)
    return commit if adds is commit.adds else replace(commit, adds=adds)


def find_commit(store: ObjectStore, log_folder: str, version: int) -> Commit | None:
    """None if its file is gone. Raises `StorageDamaged`."""
    key = f"{log_folder}/{version_name(version)}"
    try:
        return decode_commit(version, store.get(key))
    except KeyNotFound:
        return None
    except MalformedCommit as malformed:
        raise StorageDamaged(f"{key}: {malformed}") from None


def describe_by_statistics(add: Add) -> LiveFile:
    """Describe a file of another engine by what the log says of it. Raises `StorageDamaged` if that is too little."""
    try:
        stats = parse_json(add.stats or "")
        first, last = int(stats["minValues"]["offset"]), int(stats["maxValues"]["offset"])
        count = check_int64(int(stats["numRecords"]))
        return LiveFile(add.path, add.size_bytes, check_int64(first), check_int64(last + 1), count, 0, 0, 0)
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise StorageDamaged(
            f"expected statistics with numRecords and the offsets' minimum and maximum, found {type(error).__name__} "
            f"{error}"
        ) from None


def _up_to(listing: LogListing, version_max: int | None) -> LogListing:
    if version_max is None:
        return listing
    return replace(
        listing,
        versions={version: size for version, size in listing.versions.items() if version <= version_max},
        checkpoints={version: size for version, size in listing.checkpoints.items() if version <= version_max},
    )


def _newest_whole_checkpoint(
    store: ObjectStore, folder: str, listing: LogListing, hint: Hint | None
) -> tuple[CheckpointContent | None, list[str]]:
    """The newest one that can be read, and the names of the newer ones that cannot."""
    truncated: list[str] = []
    for version in sorted(listing.checkpoints, reverse=True):
        try:
            return decode_checkpoint(version, load_proved(store, f"{folder}/{LOG_FOLDER}", version, hint)), truncated
        except MalformedCheckpoint:
            truncated.append(checkpoint_name(version))
    return None, truncated


def _tail_after(
    store: ObjectStore, folder: str, listing: LogListing, start: int, truncated: Sequence[str]
) -> Sequence[int]:
    """The versions to be applied, checked to be without a gap."""
    log_folder = f"{folder}/{LOG_FOLDER}"
    tail = sorted(version for version in listing.versions if version >= start)
    end = tail[-1] + 1 if tail else start
    # A listing may miss a version that is committed while it is taken, and yet have the one after it.
    missing = next(
        (gap for gap in _gaps(tail, start) if store.sizes([f"{log_folder}/{version_name(gap)}"]) == [None]), None
    )
    if missing is None and (tail or start > 0):
        return range(start, end)
    missing = start if missing is None else missing
    found = f"found {version_name(end - 1)}" if tail else "found nothing after it"
    why = f" (and no valid checkpoint: {', '.join(truncated)} cannot be read)" if truncated else ""
    raise StorageDamaged(
        f"{log_folder}: expected versions without a gap from {start} on, {version_name(missing)} is missing, "
        f"{found}{why}"
    )


def _gaps(tail: Sequence[int], start: int) -> Iterator[int]:
    expected = start
    for version in tail:
        yield from range(expected, version)
        expected = version + 1


def _read_versions(
    store: ObjectStore, folder: str, versions: Sequence[int], describe: Describe, torn: list[str]
) -> Iterable[Commit]:
    """Read the versions. Ends before a last version that cannot be read; `torn` receives the reason."""
    for version in versions:
        try:
            yield read_commit(store, folder, version, describe)
        except KeyNotFound:
            raise StorageDamaged(f"{folder}/{LOG_FOLDER}/{version_name(version)}: it was listed, but is gone") from None
        except MalformedCommit as malformed:
            if version != versions[-1] or isinstance(malformed, ChangedCommit):
                raise StorageDamaged(f"{folder}/{LOG_FOLDER}/{version_name(version)}: {malformed}") from None
            torn.append(str(malformed))


def load_txns(store: ObjectStore, folder: str, checkpoint_version: int, version: int) -> dict[str, Txn]:
    """The `txn` actions as `version` left them, from the checkpoint (-1: there is none) and the versions after it.
    Raises `StorageFault`."""
    log_folder, txns = f"{folder}/{LOG_FOLDER}", dict[str, Txn]()
    try:
        if checkpoint_version >= 0:
            name = checkpoint_name(checkpoint_version)
            txns.update(decode_txns(store.get(f"{log_folder}/{name}")))
        for later in range(checkpoint_version + 1, version + 1):
            name = version_name(later)
            txns.update(decode_commit(later, store.get(f"{log_folder}/{name}")).txns)
    except (MalformedCheckpoint, MalformedCommit) as malformed:
        raise StorageDamaged(f"{log_folder}/{name}: {malformed}") from None
    return txns


def load_removed(store: ObjectStore, folder: str, checkpoint_version: int) -> dict[str, int]:
    """Data files that the checkpoint names as removed -> when; none if there is no checkpoint. Raises `StorageFault`,
    also if it was damaged since it was found whole."""
    if checkpoint_version < 0:
        return {}
    key = f"{folder}/{LOG_FOLDER}/{checkpoint_name(checkpoint_version)}"
    try:
        return decode_removed(store.get(key))
    except MalformedCheckpoint as malformed:
        raise StorageDamaged(f"{key}: {malformed}") from None


class LogFollower:
    """Reads every version committed in `folder` after a known one, in order, as long as the log is still the same one.
    For callers that look at a table again and again; one thread at a time."""

    def __init__(self, store: ObjectStore, folder: str, describe: Describe) -> None:
        self._store = store
        self._folder = folder
        self._describe = describe
        self._version = -1
        self._stamp: Stamp = None  # identifies that version's file; None if it does not exist

    def begin(self, version: int) -> None:
        """The log was read up to `version`."""
        self._version, self._stamp = version, self._stamp_of(version)

    def read_on(self) -> list[Commit] | None:
        """Return the commits since the last call; None if the log has to be read from its checkpoint again. Raises
        `StorageDamaged` for a version that cannot be read."""
        commits, version, stamp = list[Commit](), self._version, self._stamp
        try:
            while stamp is not None and len(commits) < _FOLLOWED_VERSIONS_MAX:
                following = self._stamp_of(version + 1)
                # After that look: versions are dropped oldest first, so if this one is there, so would be the next.
                if self._stamp_of(version) != stamp:
                    return None
                if following is None:
                    self._version, self._stamp = version, stamp
                    return commits
                commits.append(read_commit(self._store, self._folder, version + 1, self._describe))
                version, stamp = version + 1, following
        except MalformedCommit as malformed:
            name = f"{self._folder}/{LOG_FOLDER}/{version_name(version + 1)}"
            raise StorageDamaged(f"{name}: {malformed}") from None
        except StorageFault:
            pass
        return None

    def _stamp_of(self, version: int) -> Stamp:
        try:
            return self._store.stamp(f"{self._folder}/{LOG_FOLDER}/{version_name(version)}")
        except KeyNotFound:
            return None
