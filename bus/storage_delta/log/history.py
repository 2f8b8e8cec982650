"""What each version of a partition did, read from the versions that are kept.

Guards two promises. What is said about a version is said by its own file; the sizes and levels of what it removed come
from the version or the checkpoint that added it, and are unknown where neither is kept. And a version that cannot be
read hides no other.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from urllib.parse import unquote

from bus.errors import StorageDamaged
from bus.model import TopicPartition
from bus.ports import AppliedTransaction, TransactionRows
from bus.records.json_text import parse_json
from bus.storage_delta.files.live_file import LiveFile
from bus.storage_delta.log.actions import REPAIR, Commit, MalformedCommit
from bus.storage_delta.log.checkpoint_files import MalformedCheckpoint, decode_checkpoint
from bus.storage_delta.log.listing import (
    LOG_FOLDER,
    LogListing,
    checkpoint_name,
    list_log,
    partition_folder,
    version_name,
)
from bus.storage_delta.log.reading import describe_by_statistics, find_commit, read_commit
from bus.storage_delta.log.table_state import adopt
from bus.storage_delta.log.txns import TRANSACTION_APPS, transaction_app, transaction_txns
from bus.storage_delta.stores.store import KeyNotFound, ObjectStore

# So many versions are read for the rows of one transaction. Who asks has lost an answer a moment ago.
_LOOKED_BACK_MAX = 1_000


@dataclass(frozen=True, slots=True)
class FilesSummary:
    """Data files that a version added, or those that it removed. Offsets and level: -1 if nothing is known of any."""

    file_count: int
    record_count: int | None  # None: some file is not told of by what is kept
    size_bytes: int | None
    base_offset: int
    last_offset: int
    level: int  # the highest


@dataclass(frozen=True, slots=True)
class VersionSummary:
    """What one version did. `error`: why its file, or what it says of its data files, cannot be read."""

    version: int
    timestamp_ms: int
    operation: str
    leader_epoch: int
    added: FilesSummary
    removed: FilesSummary
    error: str | None = None

    @property
    def is_maintenance(self) -> bool:
        """It took something away, or was to: rolling, compaction, retention, a repair, or what another engine did."""
        return self.removed.file_count > 0 or self.operation in ("DELETE", REPAIR)


NO_FILES = FilesSummary(0, 0, 0, -1, -1, -1)


def describe_versions(store: ObjectStore, partition: TopicPartition, *, count_max: int) -> list[VersionSummary]:
    """The newest versions whose files are there, oldest first, at most `count_max`. Raises `StorageDamaged` for one
    that cannot be read."""
    folder = partition_folder(partition)
    summaries = list(_summaries(store, folder, sorted(list_log(store, folder).versions)[-count_max:], {}))
    for summary in summaries:
        if summary.error is not None:
            raise StorageDamaged(f"{folder}/{LOG_FOLDER}/{version_name(summary.version)}: {summary.error}")
    return summaries


def read_history(store: ObjectStore, partition: TopicPartition) -> Iterator[VersionSummary]:
    """All versions that are kept, oldest first."""
    folder = partition_folder(partition)
    listing = list_log(store, folder)
    yield from _summaries(store, folder, list(listing.versions), _files_before(store, folder, listing))


def find_transaction(
    store: ObjectStore, folder: str, transaction: AppliedTransaction, *, last_version: int
) -> TransactionRows | None:
    """The version that has the proof of the transaction, and its first offset; None if that is too many versions back.
    The rows of transactions are a version by themselves, so those of a single one begin with its file; where several
    share a version, `base_offset` is -1. Raises `StorageDamaged`."""
    app_id = transaction_app(transaction.transactional_id)
    for version in range(last_version, max(-1, last_version - _LOOKED_BACK_MAX), -1):
        commit = find_commit(store, f"{folder}/{LOG_FOLDER}", version)
        if commit is None:
            return None  # dropped, as all before it
        proof = commit.txns.get(app_id)
        if proof is not None and proof.version <= transaction.applied_version:
            files = [add.live for add in commit.adds if add.live is not None]
            if proof.version != transaction.applied_version or len(files) != 1:
                return None
            is_shared = len(dict(transaction_txns(commit.txns))) > 1
            return TransactionRows(version, -1 if is_shared else files[0].base_offset)
    return None


def transactions_in(store: ObjectStore, folder: str, version: int) -> Sequence[AppliedTransaction]:
    """Those whose rows came with the version, as its `commitInfo` and its proofs name them. What is malformed there
    names nothing; a version whose file is gone has none."""
    try:
        first, *lines = store.get(f"{folder}/{LOG_FOLDER}/{version_name(version)}").splitlines()
    except (KeyNotFound, ValueError):
        return ()
    if b'"transactions":{' not in first:
        return ()
    try:
        named = parse_json(first.decode())["commitInfo"]["transactions"]
        actions = [parse_json(line.decode()) for line in lines if line.startswith(b'{"txn":')]
        txns = {action["txn"]["appId"]: int(action["txn"]["version"]) for action in actions}
        return [
            AppliedTransaction(unquote(app_id.removeprefix(TRANSACTION_APPS)), txns[app_id] // 2, int(who), int(epoch))
            for app_id, (who, epoch) in named.items()
            if app_id.startswith(TRANSACTION_APPS) and app_id in txns
        ]
    except (ValueError, LookupError, TypeError, AttributeError):
        return ()


def _files_before(store: ObjectStore, folder: str, listing: LogListing) -> dict[str, LiveFile]:
    """What was live at the oldest checkpoint that can be read: versions are dropped up to one."""
    for version in listing.checkpoints:
        try:
            data = store.get(f"{folder}/{LOG_FOLDER}/{checkpoint_name(version)}")
            adds = adopt(decode_checkpoint(version, data).adds, describe_by_statistics)
            return {add.path: add.live for add in adds if add.live is not None}
        except (MalformedCheckpoint, KeyNotFound):
            continue
    return {}


def _summaries(
    store: ObjectStore, folder: str, versions: Iterable[int], known: dict[str, LiveFile]
) -> Iterator[VersionSummary]:
    for version in versions:
        try:
            commit = read_commit(store, folder, version, describe_by_statistics)
        except KeyNotFound:
            continue  # a broker dropped it meanwhile
        except MalformedCommit as error:
            yield VersionSummary(version, -1, "unreadable", -1, NO_FILES, NO_FILES, str(error))
            continue
        yield _summarize(commit, known)


def _summarize(commit: Commit, known: dict[str, LiveFile]) -> VersionSummary:
    """Keeps `known`, the live files, in step."""
    removed = [known.pop(remove.path, None) for remove in commit.removes]
    faults = [f"{add.path}: {add.fault}" for add in commit.adds if add.fault]
    added = [] if faults else [add.live for add in commit.adds if add.live is not None]
    known.update((file.path, file) for file in added)
    return VersionSummary(
        version=commit.version,
        timestamp_ms=commit.committed_ms or -1,
        operation=commit.operation,
        leader_epoch=-1 if commit.leader_epoch is None else commit.leader_epoch,
        added=_summarize_files(added),
        removed=_summarize_files(removed),
        error=faults[0] if faults else None,
    )


def _summarize_files(files: Sequence[LiveFile | None]) -> FilesSummary:
    known = [file for file in files if file is not None]
    is_whole = len(known) == len(files)
    return FilesSummary(
        file_count=len(files),
        record_count=sum(file.record_count for file in known) if is_whole else None,
        size_bytes=sum(file.size_bytes for file in known) if is_whole else None,
        base_offset=min((file.base_offset for file in known), default=-1),
        last_offset=max((file.next_offset for file in known), default=0) - 1,
        level=max((file.level for file in known), default=-1),
    )
