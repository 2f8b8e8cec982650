"""Reading a table's log: the newest checkpoint that is whole, then every version after it.

Guards one promise: no version is passed over, and none is made up. Judges nothing that a version did: that is in the
state that comes out (table_state.py). Only reads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from bus.errors import StorageDamaged
from bus.records.json_text import parse_json
from bus.storage_delta.log.actions import (
    LOG_FOLDER,
    Add,
    ChangedCommit,
    Commit,
    LiveFile,
    MalformedCommit,
    check_int64,
    checkpoint_name,
    decode_commit,
    version_name,
)
from bus.storage_delta.log.checkpoint_files import CheckpointContent, MalformedCheckpoint, decode_checkpoint
from bus.storage_delta.log.checkpoint_hint import Hint, load_proved, read_hint
from bus.storage_delta.log.listing import LogListing, list_log
from bus.storage_delta.log.table_state import TableState, adopt, apply, state_of_checkpoint
from bus.storage_delta.stores.store import KeyNotFound, ObjectStore

# What a data file of another engine holds; raises `StorageDamaged` if that is no part of a log.
Describe = Callable[[Add], LiveFile]


@dataclass(frozen=True, slots=True)
class LogReading:
    """What a log adds up to, and what it was read from."""

    state: TableState
    listing: LogListing  # from the checkpoint on that `hint` names, if that one is whole
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


def describe_by_statistics(add: Add) -> LiveFile:
    """What the log itself says of a file of another engine. Raises `StorageDamaged` if that is too little."""
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
    """Ends before a last one that cannot be read, which `torn` is told."""
    for version in versions:
        try:
            yield read_commit(store, folder, version, describe)
        except KeyNotFound:
            raise StorageDamaged(f"{folder}/{LOG_FOLDER}/{version_name(version)}: it was listed, but is gone") from None
        except MalformedCommit as malformed:
            if version != versions[-1] or isinstance(malformed, ChangedCommit):
                raise StorageDamaged(f"{folder}/{LOG_FOLDER}/{version_name(version)}: {malformed}") from None
            torn.append(str(malformed))
