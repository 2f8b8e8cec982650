"""The versions of a table's past: what each one left, and when their files go.

Guards two promises. What is said about a version is said by its own file; one whose file was dropped is not there any
more. And nothing is dropped that the table needs: a checkpoint that was read and found whole just before, its own
version and every version after it stay, so the last version can always be put together.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

from bus.errors import StorageDamaged
from bus.storage_delta.actions import (
    HIGH_WATERMARK_APP,
    Commit,
    MalformedCommit,
    checkpoint_name,
    decode_commit,
    parse_checkpoint_name,
    parse_version_name,
    version_name,
)
from bus.storage_delta.checkpoint_files import MalformedCheckpoint, decode_checkpoint
from bus.storage_delta.data_reader import DataReader
from bus.storage_delta.store import KeyNotFound, ObjectStore

# Readers that have begun with one of these may finish. Those between them and the oldest one only save time travel some
# replaying, and each names what was removed lately.
_NEWEST_CHECKPOINTS = 2


def find_high_watermark(store: ObjectStore, log_folder: str, version: int, reader: DataReader) -> int | None:
    """The high watermark that `version` left; None if its file is gone. A version of another engine, which says
    nothing of it, has moved it by the rows that it appended, or not at all. Raises `StorageDamaged`."""
    for earlier in range(version, -1, -1):
        commit = _read_version(store, log_folder, earlier)
        if commit is None:
            return None
        if (told := commit.txns.get(HIGH_WATERMARK_APP)) is not None:
            return told.version
        appended = [add for add in commit.adds if add.is_data_change]
        if appended:
            return max(reader.check_foreign(add.path, add.size_bytes).next_offset for add in appended)
    return 0 if version >= 0 else None


def _read_version(store: ObjectStore, log_folder: str, version: int) -> Commit | None:
    key = f"{log_folder}/{version_name(version)}"
    try:
        return decode_commit(version, store.get(key))
    except KeyNotFound:
        return None
    except MalformedCommit as malformed:
        raise StorageDamaged(f"{key}: {malformed}") from None


def drop_versions(
    store: ObjectStore,
    log_folder: str,
    *,
    last_version: int,
    checkpoint_version: int,
    committed_before_ms: int,
    count_max: int,
) -> int:
    """Delete versions that were committed before `committed_before_ms` or are beyond the newest `count_max`, up to the
    newest whole checkpoint that allows it, which is none newer than `checkpoint_version`; and the checkpoints that are
    needed no more. Returns how many versions went. The oldest go first, so that a crash leaves no gap. Raises
    `StorageFault`."""
    names = [entry.name for entry in store.list(log_folder, with_sizes=False).files]
    versions = sorted(version for name in names if (version := parse_version_name(name)) is not None)
    checkpoints = sorted(version for name in names if (version := parse_checkpoint_name(name)) is not None)
    if not versions:
        return 0
    beyond = last_version - count_max + 1
    old = bisect_left(
        versions, True, key=lambda version: not _is_before(store, log_folder, version, committed_before_ms)
    )
    end = max(beyond, versions[old - 1] + 1 if old else 0)
    kept_from = _newest_whole_checkpoint(store, log_folder, checkpoints, min(end, checkpoint_version))
    if kept_from is None:
        return 0
    gone = [version for version in versions if version < kept_from]
    for version in gone:
        store.delete(f"{log_folder}/{version_name(version)}")
    for version in checkpoints[:-_NEWEST_CHECKPOINTS]:
        if version != kept_from:
            store.delete(f"{log_folder}/{checkpoint_name(version)}")
    return len(gone)


def _is_before(store: ObjectStore, log_folder: str, version: int, time_ms: int) -> bool:
    commit = _read_version(store, log_folder, version)
    return commit is None or commit.committed_ms < time_ms


def _newest_whole_checkpoint(
    store: ObjectStore, log_folder: str, checkpoints: Sequence[int], version_max: int
) -> int | None:
    for version in reversed(checkpoints):
        if version <= version_max:
            try:
                return decode_checkpoint(version, store.get(f"{log_folder}/{checkpoint_name(version)}")).version
            except (MalformedCheckpoint, KeyNotFound):
                continue
    return None
