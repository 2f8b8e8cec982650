"""Acknowledged versions in whose place another program has put one of its own.

Put-if-absent binds those who keep to it. Delta's log stores for local files look whether a version is there and then
rename over it, so an OPTIMIZE of Spark that commits in the same millisecond takes an acknowledged version away. Guards
one promise: what was acknowledged is not forgotten. The bytes of such a version are kept beside the log, under a name
that no reader of Delta knows, and the next writer that opens the table commits them once more, behind what took their
place, under its own leader epoch. Never removes a version.
"""

from __future__ import annotations

import contextlib
import json
import logging

from bus.errors import StorageDamaged, StorageFault, VersionReplaced
from bus.ports import Committed
from bus.storage_delta.log.actions import Commit, MalformedCommit, Signature, add_sum, decode_commit, encode_line
from bus.storage_delta.log.commit import commit_version
from bus.storage_delta.log.listing import LOG_FOLDER, replaced_name, version_name
from bus.storage_delta.log.snapshot import Snapshot
from bus.storage_delta.log.txns import LEADER_EPOCH_APP
from bus.storage_delta.stores.store import ObjectStore

_log = logging.getLogger(__name__)


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
