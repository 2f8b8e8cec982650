"""The commit path: one version file, created put-if-absent, and the three outcomes that this can have.

Guards one promise: `Committed` is said only of a version that is durable and ours. What is not known to be so is
`Unknown`; a version that is known to be somebody else's is `Conflicted`. Never overwrites a version.
"""

from __future__ import annotations

from bus.errors import StorageFault
from bus.ports import CommitOutcome, Committed, Conflicted, Unknown
from bus.storage_delta.actions import MalformedCommit, decode_commit, version_name
from bus.storage_delta.store import KeyExists, ObjectStore, OutcomeUnknown


def commit_version(
    store: ObjectStore, log_folder: str, *, version: int, data: bytes, txn_id: str, high_watermark: int
) -> CommitOutcome:
    """Raises `StorageFault` if nothing was committed and nobody else holds `version` either."""
    key = f"{log_folder}/{version_name(version)}"
    try:
        store.create(key, data)
    except KeyExists:
        return _judge_existing(store, key, version=version, data=data, txn_id=txn_id, high_watermark=high_watermark)
    except OutcomeUnknown as fault:
        return Unknown(version, str(fault))
    return Committed(version, high_watermark)


def _judge_existing(
    store: ObjectStore, key: str, *, version: int, data: bytes, txn_id: str, high_watermark: int
) -> CommitOutcome:
    """Whose version is it? Ours, if an earlier try went through and only its answer was lost."""
    try:
        found = decode_commit(version, store.get(key))
        if found.txn_id == txn_id:
            store.confirm(key, data)
            return Committed(version, high_watermark)
    except (StorageFault, MalformedCommit) as fault:
        return Unknown(version, f"{key} exists, but whose it is cannot be told: {fault}")
    return Conflicted(version, found.leader_epoch, found.operation)
