"""A partition's table at its last version and the files around it, summarized for operators.

Guards one promise: looking changes nothing. What is live, what is kept for older versions and what no version names are
told apart by the log alone, as the broker that cleans them does.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any
from urllib.parse import unquote

from bus.errors import StorageDamaged
from bus.model import TopicPartition
from bus.ports import AppliedTransaction, TransactionRows
from bus.records.json_text import parse_json
from bus.storage_delta.files.live_file import FILE_TAG, SUMS_TAG, LiveFile
from bus.storage_delta.log.actions import REPAIR, Commit, MalformedCommit, decode_commit
from bus.storage_delta.log.checkpoint_files import MalformedCheckpoint, decode_checkpoint, read_hint
from bus.storage_delta.log.listing import (
    LOG_FOLDER,
    LogListing,
    checkpoint_name,
    list_log,
    list_table,
    partition_folder,
    version_name,
)
from bus.storage_delta.log.reading import describe_by_statistics, find_commit, load_removed, read_commit, read_whole_log
from bus.storage_delta.log.table_protocol import is_managed
from bus.storage_delta.log.table_state import TableState, adopt
from bus.storage_delta.log.txns import TRANSACTION_APPS, Txn, transaction_app, transaction_txns
from bus.storage_delta.staging import DeltaStagedTransactions
from bus.storage_delta.stores.store import KeyNotFound, ObjectStore


@dataclass(frozen=True, slots=True)
class LevelSummary:
    """The live files whose rows were rewritten `level` times."""

    level: int
    file_count: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class EndedTransaction:
    """The last transaction of an id that ended in the table, by its `txn`."""

    transactional_id: str
    number: int
    is_applied: bool  # the table has its rows
    ended_ms: int  # 0 if the log does not say


@dataclass(frozen=True, slots=True)
class StagedTransaction:
    """The staged rows of a transaction that is open, or that is not cleaned up yet."""

    coordinator_partition: int
    producer_id: int
    producer_epoch: int
    last_sequence: int
    size_bytes: int
    newest_ms: int


@dataclass(frozen=True, slots=True)
class PartitionSummary:
    """A partition's table at one version, and what lies around it."""

    partition: TopicPartition
    topic_id: str
    path: str
    version: int
    first_version: int  # the oldest whose file is still there
    log_start: int
    high_watermark: int
    leader_epoch: int
    files: Sequence[LiveFile]  # live, in offset order
    compacted_to: int
    lost_ranges: Sequence[tuple[int, int]]  # (first, one past the last)
    checkpoints: Sequence[int]
    last_checkpoint: int | None  # the version that `_last_checkpoint` names
    read_checkpoint: int  # the newest that can be read; -1 if there is none
    checkpoint_ms: int | None  # when the version of the checkpoint was committed
    log_file_count: int
    log_bytes: int
    kept_files: Mapping[str, int]  # removed data files that older versions have -> bytes
    orphans: Mapping[str, int]  # data files that no version names -> bytes
    transactions: Sequence[EndedTransaction]  # one of each id, the one that ended last at the end
    staged: Sequence[StagedTransaction]
    is_managed: bool  # no other Delta engine may write to the table

    @property
    def record_count(self) -> int:
        return sum(file.record_count for file in self.files)

    @property
    def size_bytes(self) -> int:
        return sum(file.size_bytes for file in self.files)

    @property
    def levels(self) -> list[LevelSummary]:
        found: dict[int, list[LiveFile]] = {}
        for file in self.files:
            found.setdefault(file.level, []).append(file)
        return [
            LevelSummary(level, len(files), sum(file.size_bytes for file in files))
            for level, files in sorted(found.items())
        ]

    @property
    def dirty_bytes(self) -> int:
        """Size of the data files that key compaction has not processed yet."""
        return sum(file.size_bytes for file in self.files if file.base_offset >= self.compacted_to)

    @property
    def dirty_file_count(self) -> int:
        return sum(file.base_offset >= self.compacted_to for file in self.files)

    @property
    def dirty_ratio(self) -> float:
        return self.dirty_bytes / self.size_bytes if self.files else 0.0

    @property
    def reclaimable_bytes(self) -> int:
        return sum(self.kept_files.values())

    @property
    def checkpoint_lag(self) -> int:
        """Versions that an opening replays."""
        return self.version - self.read_checkpoint


def describe_partition(store: ObjectStore, partition: TopicPartition) -> PartitionSummary:
    """Raises `StorageDamaged` if there is no table that can be replayed."""
    folder = partition_folder(partition)
    listing = list_table(store, folder)
    reading = read_whole_log(store, folder)
    state, hint = reading.state, read_hint(store, f"{folder}/{LOG_FOLDER}")
    base = -1 if reading.checkpoint is None else reading.checkpoint.version
    removed = {*load_removed(store, folder, base), *state.removed} - state.files.keys()
    return PartitionSummary(
        partition=partition,
        topic_id=(state.metadata.topic_id if state.metadata is not None else None) or "",
        path=store.table_url(folder) or f"{store.url}/{folder}",
        version=state.version,
        first_version=min([*listing.versions, state.version]),
        log_start=state.log_start,
        high_watermark=state.high_watermark,
        leader_epoch=state.leader_epoch,
        files=state.files_by_offset,
        compacted_to=state.compacted_to,
        lost_ranges=state.lost_ranges,
        checkpoints=list(listing.checkpoints),
        last_checkpoint=None if hint is None else hint.version,
        read_checkpoint=base,
        checkpoint_ms=None if hint is None else _commit_time(store, folder, hint.version),
        log_file_count=len(listing.versions) + len(listing.checkpoints),
        log_bytes=sum(listing.versions.values()) + sum(listing.checkpoints.values()),
        kept_files={path: size for path, size in listing.data_files.items() if path in removed},
        orphans=_orphans(listing, state, removed),
        transactions=_ended_transactions(state.txns),
        staged=[
            StagedTransaction(**asdict(key), **asdict(staged))
            for key, staged in DeltaStagedTransactions(store, folder).list()
        ],
        is_managed=is_managed(state.protocol),
    )


def _ended_transactions(txns: Mapping[str, Txn]) -> list[EndedTransaction]:
    ended = [
        EndedTransaction(transactional_id, txn.version // 2, txn.version % 2 == 1, txn.updated_ms)
        for transactional_id, txn in transaction_txns(txns)
    ]
    return sorted(ended, key=lambda one: (one.ended_ms, one.transactional_id))


def load_entries(store: ObjectStore, summary: PartitionSummary, files: Sequence[LiveFile]) -> list[dict[str, Any]]:
    """`files` of the table with their statistics and tags, as the log has them."""
    log_folder = f"{partition_folder(summary.partition)}/{LOG_FOLDER}"
    bodies: dict[str, Mapping[str, Any]] = {}
    for version in sorted({file.version for file in files if file.version >= 0}):
        commit = decode_commit(version, store.get(f"{log_folder}/{version_name(version)}"), with_bodies=True)
        bodies.update((add.path, add.body or {}) for add in commit.adds)
    if any(file.version < 0 for file in files):
        data = store.get(f"{log_folder}/{checkpoint_name(summary.read_checkpoint)}")
        content = decode_checkpoint(summary.read_checkpoint, data, with_bodies=True)
        bodies = {**{add.path: add.body or {} for add in content.adds}, **bodies}
    return [_entry(file, bodies.get(file.path, {})) for file in files]


def _entry(file: LiveFile, body: Mapping[str, Any]) -> dict[str, Any]:
    tags = body.get("tags") or {}
    return {
        "path": file.path,
        "size_bytes": file.size_bytes,
        "version": None if file.version < 0 else file.version,
        "stats": _stats_of(body.get("stats")),
        "tag": tags.get(FILE_TAG),
        "level": file.level,
        "sums": tags.get(SUMS_TAG),
    }


def _stats_of(text: Any) -> Any:
    """Parse the statistics; text that is no JSON is returned unchanged."""
    try:
        return parse_json(text or "{}")
    except (ValueError, TypeError):
        return text


def _orphans(listing: LogListing, state: TableState, removed: Collection[str]) -> dict[str, int]:
    return {
        path: size
        for path, size in listing.data_files.items()
        if path.endswith(".parquet") and path not in state.files and path not in removed
    }


def _commit_time(store: ObjectStore, folder: str, version: int) -> int | None:
    """None if its file is gone, or its writer did not say."""
    try:
        data = store.get(f"{folder}/{LOG_FOLDER}/{version_name(version)}")
        return decode_commit(version, data).committed_ms or None
    except (MalformedCommit, KeyNotFound):
        return None


# The rows of a transaction are looked for in this many of the newest versions: a caller asks right after it lost an
# answer.
_LOOKED_BACK_MAX = 1_000


@dataclass(frozen=True, slots=True)
class FilesSummary:
    """Data files that a version added, or those that it removed. Offsets and level: -1 if nothing is known of any."""

    file_count: int
    record_count: int | None  # None: the kept versions do not describe one of the files
    size_bytes: int | None
    base_offset: int
    last_offset: int
    level: int  # the highest


@dataclass(frozen=True, slots=True)
class VersionSummary:
    """The changes of one version, taken from its own file. Sizes and levels of the files that it removed come from the
    version or checkpoint that added them, and are unknown if neither is kept. `error` says why the version's file, or
    its entry of a data file, cannot be read; other versions are not affected."""

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
    """Return the transactions whose rows came with the version, as its `commitInfo` and its proofs name them. Malformed
    entries are ignored; a version whose file was deleted has none."""
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
    """Return the live files of the oldest checkpoint that can be read: the versions before a checkpoint are deleted."""
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
