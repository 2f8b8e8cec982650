"""When a checkpoint is due, and having one written by `deltalake`.

Guards two promises: `_last_checkpoint` never names a checkpoint that is not whole and on the disk; and a checkpoint
names a removed data file for as long as that is there. Never touches a version. The work is done by a fresh handle on a
copy of the log's end, which costs less than keeping one in step, outside the interpreter's lock.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable
from pathlib import Path

import deltalake

from bus.errors import StorageFault
from bus.storage_delta.actions import LAST_CHECKPOINT, LOG_FOLDER, checkpoint_name, version_name
from bus.storage_delta.checkpoint_files import (
    CheckpointSummary,
    MalformedCheckpoint,
    summarize_checkpoint,
    without_removed,
)
from bus.storage_delta.checkpoint_hint import encode_hint
from bus.storage_delta.store import ObjectStore
from bus.storage_delta.trials import TRIALS

_COMMITS_BETWEEN_MIN = 100
# A table that commits quickly may take so many more before the last checkpoint has paid for itself.
_COMMITS_IN_HASTE_MIN = 1000
_FILES_PER_COMMIT_IN_HASTE = 4
_COST_SHARE = 10


def is_due(*, commits: int, file_count: int, elapsed_s: float, last_duration_s: float) -> bool:
    """After `commits` since the last checkpoint, which took `last_duration_s` and ended `elapsed_s` ago.

    A checkpoint names every live file, and even a small one costs as much processor time as a hundred small commits.
    So it has at most a tenth of the time, unless the tail that an opening replays would grow beyond a quarter of the
    files.
    """
    if commits < _COMMITS_BETWEEN_MIN:
        return False
    is_paid_for = elapsed_s >= _COST_SHARE * last_duration_s
    return is_paid_for or commits >= max(_COMMITS_IN_HASTE_MIN, file_count // _FILES_PER_COMMIT_IN_HASTE)


def write_checkpoint(store: ObjectStore, folder: str, *, version: int, base_version: int, paths: Iterable[str]) -> None:
    """Checkpoint `version`, whose live files are `paths`; `base_version` is that of a whole checkpoint before it, -1 if
    there is none. Raises `StorageFault`; then the table is as before."""
    log_folder, name = f"{folder}/{LOG_FOLDER}", checkpoint_name(version)
    data = _encode_checkpoint(store, log_folder, version, base_version)
    key = f"{log_folder}/{name}"
    try:
        data = without_removed(data, lambda: _list_names(store, folder))
        store.put(key, data)
        summary = _check(data, store.get(key), frozenset(paths))
    except MalformedCheckpoint as malformed:
        store.delete(key)
        raise StorageFault(f"{key}: {malformed}") from None
    store.delete(f"{log_folder}/.{LAST_CHECKPOINT}.crc")
    store.put(
        f"{log_folder}/{LAST_CHECKPOINT}",
        encode_hint(version, action_count=summary.action_count, data=data),
    )


def _list_names(store: ObjectStore, folder: str) -> set[str]:
    return {entry.name for entry in store.list(folder, with_sizes=False).files}


def _encode_checkpoint(store: ObjectStore, log_folder: str, version: int, base_version: int) -> bytes:
    """What the library makes of a copy of the log's end: it would name a checkpoint before that is on the disk, and
    list however many versions are kept."""
    try:
        with tempfile.TemporaryDirectory(prefix="bus-checkpoint-") as scratch:
            copy = Path(scratch) / LOG_FOLDER
            copy.mkdir()
            names = [checkpoint_name(base_version)] if base_version >= 0 else []
            # The base's own version too: a log that begins behind its checkpoint is no log to some.
            names += [version_name(number) for number in range(max(0, base_version), version + 1)]
            for name in names:
                (copy / name).write_bytes(store.get(f"{log_folder}/{name}"))
            deltalake.DeltaTable(scratch, version=version).create_checkpoint()
            data = (copy / checkpoint_name(version)).read_bytes()
            TRIALS.accept(data)
            return data
    except (deltalake.exceptions.DeltaError, StorageFault, OSError, ValueError) as error:
        raise StorageFault(f"{log_folder}: no checkpoint of version {version}: {error}") from error


def _check(data: bytes, found: bytes, paths: frozenset[str]) -> CheckpointSummary:
    """A checkpoint that does not say what the versions say, or was not stored as it is, must not stay."""
    if found != data:
        raise MalformedCheckpoint(f"expected the {len(data)} bytes that were written, found {len(found)} other ones")
    summary = summarize_checkpoint(data)
    if summary.paths != paths:
        raise MalformedCheckpoint(f"expected {len(paths)} live files, found {len(summary.paths)} or other ones")
    return summary
