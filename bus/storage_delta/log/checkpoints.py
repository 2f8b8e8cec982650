"""When a checkpoint is due, and having one written by `deltalake`.

Guards two promises: `_last_checkpoint` never names a checkpoint that is not whole, on the disk, and what the versions
add up to, its `txn` actions included; and a checkpoint names a removed data file for as long as that is there. Never
touches a version. The work is done by a fresh handle on a copy of the log's end, which costs less than keeping one in
step, outside the interpreter's lock.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import deltalake

from bus.errors import StorageFault, StorageFull, VersionReplaced, count_of
from bus.storage_delta.files.trials import TRIALS
from bus.storage_delta.log.actions import Commit, MalformedCommit, decode_commit
from bus.storage_delta.log.checkpoint_files import (
    CheckpointSummary,
    MalformedCheckpoint,
    encode_hint,
    summarize_checkpoint,
    thin_checkpoint,
)
from bus.storage_delta.log.listing import LAST_CHECKPOINT, LOG_FOLDER, checkpoint_name, version_name
from bus.storage_delta.log.txns import Txn, is_forgotten
from bus.storage_delta.stores.store import ObjectStore

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
    there is none. Producers that were idle since `idle_since_ms` are left out if the log says that such were forgotten.
    `check_commit` is called with each version since then, and may raise. Raises `StorageFault`; then the
    table is as before."""
    log_folder, name = f"{folder}/{LOG_FOLDER}", checkpoint_name(version)
    key = f"{log_folder}/{name}"
    try:
        tail = _read_tail(store, log_folder, base_version, version)
        txns = _txns_of(tail, check_commit)
        idle = [name for name, txn in txns.items() if txn.updated_ms < idle_since_ms and is_forgotten(name, txns)]
        data = thin_checkpoint(_encode_checkpoint(log_folder, tail, version), lambda: _list_names(store, folder), idle)
        for name in idle:
            del txns[name]
        store.put(key, data)
        if (found := store.get(key)) != data:
            raise MalformedCheckpoint(f"expected the {len(data)} bytes that were written, found {len(found)} others")
        summary = summarize_checkpoint(data)
        _check(summary, frozenset(paths), txns)
    except (MalformedCheckpoint, MalformedCommit, StorageFault) as error:
        if version != base_version:  # one that was put, and not found to be true, must not stay
            with contextlib.suppress(StorageFault):
                store.delete(key)
        if isinstance(error, VersionReplaced | StorageFull):
            raise
        raise StorageFault(f"{log_folder}: no checkpoint of version {version}: {error}") from None
    store.delete(f"{log_folder}/.{LAST_CHECKPOINT}.crc")
    store.put(
        f"{log_folder}/{LAST_CHECKPOINT}",
        encode_hint(version, action_count=summary.action_count, data=data),
    )


def is_true(store: ObjectStore, log_folder: str, version: int, *, base_version: int) -> bool:
    """Whether the checkpoint of `version` says what the versions up to it say, from the checkpoint of `base_version` on
    (-1: from the first one on). Raises `StorageFault` if one of them cannot be read."""
    try:
        tail = _read_tail(store, log_folder, base_version, version)
        found = summarize_checkpoint(store.get(f"{log_folder}/{checkpoint_name(version)}"))
        txns = {
            name: txn
            for name, txn in _txns_of(tail).items()
            if name in found.txns or not is_forgotten(name, found.txns)
        }
        _check(found, _paths_of(tail), txns)
    except (MalformedCheckpoint, MalformedCommit):
        return False
    return True


@dataclass(frozen=True, slots=True)
class _Tail:
    """Files of the log by their names: a checkpoint, if there is one, and the versions after it."""

    base: tuple[str, bytes] | None
    base_commit: tuple[str, bytes] | None  # the base's own version: a log that begins behind its checkpoint is no log
    commits: Sequence[tuple[int, bytes]]


def _read_tail(store: ObjectStore, log_folder: str, base_version: int, version: int) -> _Tail:
    def read(name: str) -> tuple[str, bytes]:
        return name, store.get(f"{log_folder}/{name}")

    has_base = base_version >= 0
    return _Tail(
        read(checkpoint_name(base_version)) if has_base else None,
        read(version_name(base_version)) if has_base else None,
        [(number, read(version_name(number))[1]) for number in range(base_version + 1, version + 1)],
    )


def _txns_of(tail: _Tail, check_commit: Callable[[Commit], None] = lambda commit: None) -> dict[str, Txn]:
    """What the `txn` actions add up to. Raises `MalformedCommit`, `MalformedCheckpoint`."""
    txns = {} if tail.base is None else dict(summarize_checkpoint(tail.base[1]).txns)
    for version, data in tail.commits:
        commit = decode_commit(version, data)
        check_commit(commit)
        txns.update(commit.txns)
    return txns


def _paths_of(tail: _Tail) -> frozenset[str]:
    """The live files, as `_txns_of`."""
    paths = set() if tail.base is None else set(summarize_checkpoint(tail.base[1]).paths)
    for version, data in tail.commits:
        commit = decode_commit(version, data)
        paths.difference_update(remove.path for remove in commit.removes)
        paths.update(add.path for add in commit.adds)
    return frozenset(paths)


def _list_names(store: ObjectStore, folder: str) -> set[str]:
    return {entry.name for entry in store.list(folder, with_sizes=False).files}


def _encode_checkpoint(log_folder: str, tail: _Tail, version: int) -> bytes:
    """What the library makes of a copy of the log's end: it would name a checkpoint before that is on the disk, and
    list however many versions are kept."""
    files = [
        *filter(None, (tail.base, tail.base_commit)),
        *((version_name(number), data) for number, data in tail.commits),
    ]
    try:
        with tempfile.TemporaryDirectory(prefix="bus-checkpoint-") as scratch:
            copy = Path(scratch) / LOG_FOLDER
            copy.mkdir()
            for name, data in files:
                (copy / name).write_bytes(data)
            deltalake.DeltaTable(scratch, version=version).create_checkpoint()
            data = (copy / checkpoint_name(version)).read_bytes()
            TRIALS.accept(data)
            return data
    except (deltalake.exceptions.DeltaError, OSError, ValueError) as error:
        raise StorageFault(str(error)) from error


def _check(found: CheckpointSummary, paths: frozenset[str], txns: Mapping[str, Txn]) -> None:
    """A checkpoint that does not say what the versions say must not stay. Raises `MalformedCheckpoint`."""
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
