"""When a checkpoint is due, and having one written by `deltalake`.

Guards one promise: `_last_checkpoint` never names a checkpoint that is not whole and on the disk. Never touches a
version. The work is done by a fresh handle, which costs less than keeping one in step, outside the interpreter's lock.
"""

from __future__ import annotations

from collections.abc import Iterable

import deltalake

from bus.errors import StorageFault
from bus.storage_delta.actions import LAST_CHECKPOINT, LOG_FOLDER, checkpoint_name
from bus.storage_delta.checkpoint_files import CheckpointSummary, MalformedCheckpoint, summarize_checkpoint
from bus.storage_delta.recovery import encode_hint
from bus.storage_delta.store import ObjectStore

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


def write_checkpoint(store: ObjectStore, folder: str, *, version: int, paths: Iterable[str]) -> None:
    """Checkpoint `version`, whose live files are `paths`. Raises `StorageFault`; then the table is as before."""
    url = store.table_url(folder)
    assert url is not None, f"{store.url} has no tables that another library reaches"
    log_folder, name = f"{folder}/{LOG_FOLDER}", checkpoint_name(version)
    try:
        deltalake.DeltaTable(url, version=version).create_checkpoint()
    except (deltalake.exceptions.DeltaError, OSError, ValueError) as error:
        raise StorageFault(f"{log_folder}: no checkpoint of version {version}: {error}") from error
    # The library names it in the hint before it is on the disk. A crash until then leaves a hint that the next opening
    # puts right; nothing of ours relies on it.
    store.sync(log_folder, [name])
    summary = _check(store, log_folder, name, frozenset(paths))
    store.delete(f"{log_folder}/.{LAST_CHECKPOINT}.crc")
    store.put(
        f"{log_folder}/{LAST_CHECKPOINT}",
        encode_hint(version, action_count=summary.action_count, size_bytes=summary.size_bytes),
    )


def _check(store: ObjectStore, log_folder: str, name: str, paths: frozenset[str]) -> CheckpointSummary:
    """Read back: a checkpoint that does not say what the versions say must not stay."""
    try:
        summary = summarize_checkpoint(store.get(f"{log_folder}/{name}"))
        if summary.paths != paths:
            raise MalformedCheckpoint(f"expected {len(paths)} live files, found {len(summary.paths)} or other ones")
    except MalformedCheckpoint as malformed:
        store.delete(f"{log_folder}/{LAST_CHECKPOINT}")
        store.delete(f"{log_folder}/{name}")
        raise StorageFault(f"{log_folder}/{name}: {malformed}") from None
    return summary
