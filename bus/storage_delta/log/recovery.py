"""Putting right what a crash left in a table, where that takes nothing away from the log.

Guards one promise: nothing is removed here that an acknowledged record depends on. `bus.storage_delta.log.snapshot` has
decided what may go; a version that is set aside keeps its bytes under a name that readers ignore. Only the leader
of a table may call this, behind its fence: a follower, and a leader that was deposed, change nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from bus.storage_delta.log.actions import MalformedCommit, decode_commit
from bus.storage_delta.log.checkpoint_files import encode_hint
from bus.storage_delta.log.listing import LAST_CHECKPOINT, LOG_FOLDER, version_name
from bus.storage_delta.log.snapshot import Snapshot
from bus.storage_delta.stores.store import Entry, KeyNotFound, ObjectStore

_log = logging.getLogger(__name__)


# A write to the log takes seconds. A writer that is asleep for longer loses its file, and has an unknown outcome.
LEFTOVER_AGE_MIN_MS = 3_600_000


def remove_leftovers(store: ObjectStore, folder: str) -> None:
    """Remove temporary files of the folder itself, where no other process can be writing one. Data files are written
    under their own names: those of interrupted writes are orphans."""
    _remove(store, folder, store.list(folder, with_sizes=False).leftovers)


def remove_old_leftovers(store: ObjectStore, folder: str, last_version: int) -> bool:
    """Remove temporary files of the log that are too old to have a living writer, where other processes may be writing:
    a fence does not stop another candidate for the lead, nor another writer of the log of users. Younger files do no
    harm: each writer has its own, and a version is put if absent. Age is measured by the store's clock alone, since
    clocks of machines differ: a file is old if another one was written here `LEFTOVER_AGE_MIN_MS` after it. Returns
    whether any was removed; then the log is to be read again, since a writer that late may have finished just
    before."""
    found = store.list(f"{folder}/{LOG_FOLDER}", start_at=version_name(last_version))
    now_ms = max((entry.modified_ms for entry in found.files), default=0)  # at the earliest
    old = [entry for entry in found.leftovers if entry.modified_ms <= now_ms - LEFTOVER_AGE_MIN_MS]
    _remove(store, f"{folder}/{LOG_FOLDER}", old)
    return bool(old)


def _remove(store: ObjectStore, folder: str, leftovers: Sequence[Entry]) -> None:
    for entry in leftovers:
        key = f"{folder}/{entry.name}"
        store.delete(key)
        _log.info("%s: removed, an interrupted write left it", key)


def recover(store: ObjectStore, folder: str, snapshot: Snapshot) -> None:
    """Safe to repeat. Raises `StorageFault` if the store does not let it."""
    log_folder = f"{folder}/{LOG_FOLDER}"
    findings = snapshot.findings
    for name in findings.truncated_checkpoints:
        # Other readers find it by listing and fail on it, although the versions still have everything that it said.
        _log.warning("%s/%s: removed a checkpoint that cannot be read", log_folder, name)
        store.delete(f"{log_folder}/{name}")
    if findings.is_hint_wrong or findings.is_hint_bare:
        write_hint(store, log_folder, snapshot)
    make_writable(store, folder, snapshot)


def make_writable(store: ObjectStore, folder: str, snapshot: Snapshot) -> None:
    """Prepare the table for the next version: free its name, and sync everything that it builds on."""
    log_folder = f"{folder}/{LOG_FOLDER}"
    if snapshot.findings.torn_version is not None:
        set_torn_aside(store, log_folder, snapshot.findings.torn_version)
    if snapshot.foreign_paths:
        store.sync(folder, snapshot.foreign_paths)
    store.sync(log_folder, snapshot.foreign_versions)


def write_hint(store: ObjectStore, log_folder: str, snapshot: Snapshot) -> None:
    """Make `_last_checkpoint` name the newest valid checkpoint, or remove it if there is none."""
    hint_key = f"{log_folder}/{LAST_CHECKPOINT}"
    # A Hadoop writer leaves a checksum beside the file; with other content under it, Hadoop readers fail.
    store.delete(f"{log_folder}/.{LAST_CHECKPOINT}.crc")
    if snapshot.checkpoint is None:
        store.delete(hint_key)
        return
    checkpoint = snapshot.checkpoint
    store.put(
        hint_key,
        encode_hint(checkpoint.version, action_count=checkpoint.action_count, data=checkpoint.data),
    )


def set_torn_aside(store: ObjectStore, log_folder: str, name: str) -> None:
    """Free the name of a torn version: a fence cannot be created while it is there. No leader writes one."""
    key, aside = f"{log_folder}/{name}", f"{log_folder}/.damaged-{name}"
    try:
        data = store.get(key)
        decode_commit(-1, data)
    except MalformedCommit:
        store.put(aside, data)
    except KeyNotFound:
        return
    else:  # another leader was faster, and this is its version
        return
    store.delete(key)
    _log.warning("%s: torn, and no record was in it; kept as %s", key, aside)
