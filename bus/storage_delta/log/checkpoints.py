"""When a checkpoint is due, and writing one.

Guards two promises: `_last_checkpoint` never names a checkpoint that is not whole, on the disk, and what the versions
add up to, its `txn` actions included; and a checkpoint names a removed data file for as long as that is there. Never
touches a version. What a checkpoint says is read from the checkpoint before it and the versions since then, not from
memory, and compared with what memory says.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Container, Iterable, Mapping
from typing import Any

from bus.errors import StorageFault, StorageFull, VersionReplaced, count_of
from bus.storage_delta.log.actions import Commit, MalformedCommit, decode_commit
from bus.storage_delta.log.checkpoint_files import (
    CheckpointRows,
    CheckpointSummary,
    MalformedCheckpoint,
    encode_checkpoint,
    encode_hint,
    read_hint,
    summarize_checkpoint,
)
from bus.storage_delta.log.listing import LAST_CHECKPOINT, LOG_FOLDER, checkpoint_name, version_name
from bus.storage_delta.log.txns import Txn, is_forgotten, is_taken_back
from bus.storage_delta.stores.store import ObjectStore

_COMMITS_BETWEEN_MIN = 100
# Between two checkpoints a table that commits quickly may take this many commits, until the last checkpoint has paid
# for itself.
_COMMITS_IN_HASTE_MIN = 1000
_FILES_PER_COMMIT_IN_HASTE = 4
_COST_SHARE = 10


def is_due(*, commits: int, file_count: int, elapsed_ms: float, last_duration_ms: float) -> bool:
    """After `commits` since the last checkpoint, which took `last_duration_ms` and ended `elapsed_ms` ago.

    A checkpoint names every live file. So it has at most a tenth of the time, unless the tail that an opening replays
    would grow beyond a quarter of the files.
    """
    if commits < _COMMITS_BETWEEN_MIN:
        return False
    is_paid_for = elapsed_ms >= _COST_SHARE * last_duration_ms
    return is_paid_for or commits >= max(_COMMITS_IN_HASTE_MIN, file_count // _FILES_PER_COMMIT_IN_HASTE)


def write_checkpoint(
    store: ObjectStore,
    folder: str,
    *,
    version: int,
    base_version: int,
    paths: Iterable[str],
    idle_since_ms: int = 0,
    check_commit: Callable[[Commit], None] = lambda commit: None,
) -> None:
    """Checkpoint `version`, whose live files are `paths`; `base_version` is that of a whole checkpoint before it, -1 if
    there is none. Producers that were idle since `idle_since_ms` are left out if the log says that such were forgotten,
    and so are transactional ids that the log has taken back. `check_commit` is called with each version since then, and
    may raise. Raises `StorageFault`; then the table is as before."""
    log_folder = f"{folder}/{LOG_FOLDER}"
    key, is_begun = f"{log_folder}/{checkpoint_name(version)}", False
    try:
        replay = _Replay(store, log_folder, base_version, version, check_commit)
        txns = replay.txns
        for name, txn in list(txns.items()):
            is_idle = txn.updated_ms < idle_since_ms
            if is_taken_back(name, txn) or (is_idle and is_forgotten(name, txns)):
                del txns[name]
        data = replay.encode(lambda: {entry.name for entry in store.list(folder, with_sizes=False).files})
        summary = summarize_checkpoint(data)
        _check(summary, frozenset(paths), txns)
        is_begun = True
        store.put(key, data)
        if (found := store.get(key)) != data:
            raise MalformedCheckpoint(f"expected the {len(data)} bytes that were written, found {len(found)} others")
    except (MalformedCheckpoint, MalformedCommit, StorageFault) as error:
        # Another engine may have checkpointed `version`, and deleted all before it: only what was put here may go.
        if is_begun and version != base_version:
            _delete_checkpoint(store, log_folder, version)
        if isinstance(error, VersionReplaced | StorageFull):
            raise
        raise StorageFault(f"{log_folder}: no checkpoint of version {version}: {error}") from None
    store.delete(f"{log_folder}/.{LAST_CHECKPOINT}.crc")
    store.put(f"{log_folder}/{LAST_CHECKPOINT}", encode_hint(version, action_count=summary.action_count, data=data))


def _delete_checkpoint(store: ObjectStore, log_folder: str, version: int) -> None:
    """Delete a checkpoint and, first, the `_last_checkpoint` that names it: no reader opens a table whose
    `_last_checkpoint` names a missing checkpoint. Faults of the store are ignored."""
    with contextlib.suppress(StorageFault):
        hint = read_hint(store, log_folder)
        if hint is not None and hint.version == version:
            store.delete(f"{log_folder}/{LAST_CHECKPOINT}")
    with contextlib.suppress(StorageFault):
        store.delete(f"{log_folder}/{checkpoint_name(version)}")


def is_true(store: ObjectStore, log_folder: str, version: int, *, base_version: int) -> bool:
    """True if the checkpoint of `version` agrees with the versions up to it, replayed from the checkpoint of
    `base_version` on (-1: from version 0 on). Raises `StorageFault` if one of them cannot be read."""
    try:
        replay = _Replay(store, log_folder, base_version, version)
        found = summarize_checkpoint(store.get(f"{log_folder}/{checkpoint_name(version)}"))
        txns = {
            name: txn
            for name, txn in replay.txns.items()
            if name in found.txns or not (is_taken_back(name, txn) or is_forgotten(name, found.txns))
        }
        _check(found, replay.paths, txns)
    except (MalformedCheckpoint, MalformedCommit):
        return False
    return True


class _Replay:
    """The sum of a checkpoint, if there is one, and the versions after it (Delta protocol, "Action Reconciliation")."""

    def __init__(
        self,
        store: ObjectStore,
        log_folder: str,
        base_version: int,
        version: int,
        check_commit: Callable[[Commit], None] = lambda commit: None,
    ) -> None:
        """Raises `MalformedCommit`, `MalformedCheckpoint`, `StorageFault`, and what `check_commit` raises."""
        self._base: CheckpointRows | None = None
        self._added, self._removed = dict[str, Mapping[str, Any]](), dict[str, Mapping[str, Any]]()
        self.txns: dict[str, Txn] = {}
        metadata: Mapping[str, Any] | None = None
        protocol: Mapping[str, Any] | None = None
        if base_version >= 0:
            self._base = CheckpointRows(store.get(f"{log_folder}/{checkpoint_name(base_version)}"))
            self.txns, metadata, protocol = self._base.txns, self._base.metadata, self._base.protocol
        for number in range(base_version + 1, version + 1):
            commit = decode_commit(number, store.get(f"{log_folder}/{version_name(number)}"), with_bodies=True)
            check_commit(commit)
            for remove in commit.removes:
                self._added.pop(remove.path, None)
                self._removed[remove.path] = remove.body or {}
            for add in commit.adds:
                self._removed.pop(add.path, None)
                self._added[add.path] = add.body or {}
            self.txns.update(commit.txns)
            metadata = metadata if commit.metadata is None else commit.metadata.body
            protocol = protocol if commit.protocol is None else commit.protocol.body
        if metadata is None or protocol is None:
            raise MalformedCheckpoint("expected a protocol and a metaData action, found none")
        self._metadata, self._protocol = metadata, protocol

    @property
    def paths(self) -> frozenset[str]:
        """The paths of the live files."""
        base = () if self._base is None else self._base.add_paths
        return frozenset(path for path in base if path not in self._removed).union(self._added)

    def encode(self, find_present: Callable[[], Container[str]]) -> bytes:
        """Encode the checkpoint. `find_present`: lists the table's folder; called only if a removed file is to be
        named, because only existing ones are named."""
        is_any_removed = self._removed or (self._base is not None and self._base.remove_paths)
        present = find_present() if is_any_removed else ()
        return encode_checkpoint(
            adds=self._added.values(),
            removes=[body for path, body in self._removed.items() if path in present],
            txns=self.txns,
            metadata=self._metadata,
            protocol=self._protocol,
            kept=None if self._base is None else self._base.without({**self._added, **self._removed}, present),
        )


def _check(found: CheckpointSummary, paths: frozenset[str], txns: Mapping[str, Txn]) -> None:
    """Check that the checkpoint agrees with the versions: one that does not must not stay. Raises
    `MalformedCheckpoint`."""
    if found.paths != paths:
        raise MalformedCheckpoint(
            f"expected {count_of(len(paths), 'live file')}, found {len(found.paths)} or other ones"
        )
    if found.txns != txns:
        wrong = next(name for name in {**txns, **found.txns} if txns.get(name) != found.txns.get(name))
        raise MalformedCheckpoint(
            f"expected {count_of(len(txns), 'txn')}, {wrong} at {txns.get(wrong)}, found {len(found.txns)}, "
            f"{found.txns.get(wrong)}"
        )
