"""Putting right what a crash, or another program, left in a table, where that takes nothing away from the log.

Guards two promises. Nothing is removed here that an acknowledged record depends on: `bus.storage_delta.log.snapshot`
has decided what may go; a version that is set aside keeps its bytes under a name that readers ignore. Only the leader
of a table may call this, behind its fence: a follower, and a leader that was deposed, change nothing.

And what was acknowledged is not forgotten. Put-if-absent binds those who keep to it. Delta's log stores for local files
look whether a version is there and then rename over it, so an OPTIMIZE of Spark that commits in the same millisecond
takes an acknowledged version away. The bytes of such a version are kept beside the log, under a name that no reader of
Delta knows (`report_replaced`), and the next writer that opens the table commits them once more, behind what took their
place, under its own leader epoch (`commit_again`).
"""

from __future__ import annotations

import contextlib
import json
import logging
from collections.abc import Sequence

from bus.errors import StorageDamaged, StorageFault, VersionReplaced
from bus.ports import Committed
from bus.storage_delta.log.actions import Commit, MalformedCommit, Signature, add_sum, decode_commit, encode_line
from bus.storage_delta.log.checkpoint_files import encode_hint
from bus.storage_delta.log.commit import commit_version
from bus.storage_delta.log.listing import LAST_CHECKPOINT, LOG_FOLDER, replaced_name, version_name
from bus.storage_delta.log.snapshot import Snapshot
from bus.storage_delta.log.txns import LEADER_EPOCH_APP
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


def report_replaced(store: ObjectStore, log_folder: str, version: int, data: bytes, found: bytes) -> VersionReplaced:
    """Keep `data`, which was committed and acknowledged as `version`, and report the file that replaced it."""
    kept = f"{log_folder}/{replaced_name(version)}"
    try:
        store.put(kept, data)
        way_out = f"what it said is kept as {kept}; a restart of the broker commits it once more"
    except StorageFault as fault:
        way_out = f"what it said could not be kept ({fault}); `bus log repair` finds its data files"
    return VersionReplaced(
        f"{log_folder}/{version_name(version)}: expected the version that was committed and acknowledged, found "
        f"{_describe(version, found)}, which another program has put in its place; {way_out}. Stop the program that "
        f"writes to this table first"
    )


def _describe(version: int, data: bytes) -> str:
    try:
        commit = decode_commit(version, data)
    except MalformedCommit as malformed:
        return f"{len(data)} bytes that are no version ({malformed})"
    return f"{commit.operation} of {commit.engine_info}"


def commit_again(store: ObjectStore, folder: str, snapshot: Snapshot, name: str, signature: Signature) -> bool:
    """Commit the contents of the kept version `name` behind `snapshot`, unless the log has them. True if the log is to
    be read again. Raises `StorageDamaged` if they no longer fit there."""
    log_folder = f"{folder}/{LOG_FOLDER}"
    data = store.get(f"{log_folder}/{name}")
    commit = _decode(f"{log_folder}/{name}", data)
    is_needed = any(add.is_data_change for add in commit.adds) or any(gone.is_data_change for gone in commit.removes)
    is_there = {add.path for add in commit.adds} <= {file.path for file in snapshot.files}
    if (not is_there or not commit.adds) and _fits(store, folder, snapshot, commit):
        outcome = commit_version(
            store,
            log_folder,
            version=snapshot.version + 1,
            data=_sign_again(data, signature),
            txn_id=commit.txn_id or "",
            high_watermark=snapshot.high_watermark,
        )
        if not isinstance(outcome, Committed):
            raise StorageFault(f"{log_folder}/{name}: what it has kept could not be committed once more: {outcome}")
        _log.error("%s/%s: committed once more as version %d", log_folder, name, outcome.version)
        is_again = True
    elif is_there or not is_needed:
        is_again = False
    else:
        raise StorageDamaged(
            f"{log_folder}/{name}: expected to commit {commit.operation} once more behind version {snapshot.version}, "
            f"with records from offset {snapshot.high_watermark} on; see `bus log repair`"
        )
    with contextlib.suppress(StorageFault):
        store.delete(f"{log_folder}/{name}")
    return is_again


def _sign_again(data: bytes, signature: Signature) -> bytes:
    """The same actions by another leader: leader epochs never fall along versions."""
    actions = [json.loads(line) for line in data.decode().splitlines()]
    for action in actions:
        if (info := action.get("commitInfo")) is not None:
            info.pop("fileCrc32", None)
            info.update(leaderEpoch=signature.leader_epoch, incarnation=signature.incarnation)
        if action.get("txn", {}).get("appId") == LEADER_EPOCH_APP:
            action["txn"]["version"] = signature.leader_epoch
    return add_sum("".join(map(encode_line, actions)).encode())


def _decode(key: str, data: bytes) -> Commit:
    try:
        return decode_commit(0, data)
    except MalformedCommit as malformed:
        raise StorageDamaged(f"{key}: {malformed}") from None


def _fits(store: ObjectStore, folder: str, snapshot: Snapshot, commit: Commit) -> bool:
    """True if its files exist, the files that it removes are live, and its records begin where the log ends."""
    live = {file.path for file in snapshot.files}
    added = [add for add in commit.adds if add.is_data_change]
    sizes = store.sizes([f"{folder}/{add.path}" for add in commit.adds])
    return (
        all(remove.path in live for remove in commit.removes)
        and list(sizes) == [add.size_bytes for add in commit.adds]
        and all(add.live is not None and add.live.base_offset == snapshot.high_watermark for add in added)
    )
