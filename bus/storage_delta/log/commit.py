"""The commit path: one version file, created put-if-absent, and the three outcomes that this can have.

Guards one promise: `Committed` is said only of a version that is durable and ours. What is not known to be so is
`Unknown`; a version that is known to be another writer's is `Conflicted`. Never overwrites a version.
"""

from __future__ import annotations

from collections.abc import Callable

from bus.errors import StorageFault
from bus.ports import CommitOutcome, Committed, Conflicted, Unknown
from bus.storage_delta.log.actions import Commit, MalformedCommit, decode_commit
from bus.storage_delta.log.listing import version_name
from bus.storage_delta.stores.store import KeyExists, KeyNotFound, KeyReplaced, ObjectStore, OutcomeUnknown, Written


def commit_version(
    store: ObjectStore,
    log_folder: str,
    *,
    version: int,
    data: bytes,
    txn_id: str,
    high_watermark: int,
    incarnation: str = "",
    after: Written | None = None,
    note: Callable[[Written], None] | None = None,
) -> CommitOutcome:
    """Raises `StorageFault` if nothing was committed and no other writer holds `version` either; `KeyReplaced` if that
    is so because `after`, the version before, is not as it was written. `note` is told what was created."""
    key = f"{log_folder}/{version_name(version)}"
    try:
        stamp = store.create(key, data) if after is None else store.create(key, data, after=after)
        if note is not None:
            note(Written(key, stamp))
    except KeyReplaced:
        raise
    except KeyExists:
        return _judge_existing(store, key, Committed(version, high_watermark), data, txn_id, incarnation)
    except OutcomeUnknown as fault:
        return Unknown(version, str(fault))
    except StorageFault as fault:
        if _may_be_there(store, key):
            return Unknown(version, str(fault))
        raise
    return Committed(version, high_watermark)


def _may_be_there(store: ObjectStore, key: str) -> bool:
    """A fault that comes after the effect must not pass for one that had none: the data files would be deleted."""
    try:
        store.size(key)
    except KeyNotFound:
        return False
    except StorageFault:
        return True
    return True


def _judge_existing(
    store: ObjectStore, key: str, committed: Committed, data: bytes, txn_id: str, incarnation: str
) -> CommitOutcome:
    """Tell whose version exists. It is ours if an earlier try went through and only its answer was lost."""
    version = committed.version
    try:
        found = decode_commit(version, store.get(key))
        if found.txn_id == txn_id:
            store.confirm(key, data)
            return committed
    except (StorageFault, MalformedCommit) as fault:
        return Unknown(version, f"{key} exists, but whose it is cannot be told: {fault}")
    return Conflicted(version, found.leader_epoch, found.operation, is_rival=is_rival(found, incarnation))


def is_rival(commit: Commit, incarnation: str) -> bool:
    """True if a leader other than `incarnation` wrote the commit."""
    return commit.leader_epoch is not None and commit.incarnation not in (None, incarnation)
