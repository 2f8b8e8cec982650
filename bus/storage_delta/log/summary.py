"""What a partition's table is like at its last version, and what lies around it: for people who watch it.

Guards one promise: looking changes nothing. What is live, what is kept for older versions and what no version names are
told apart by the log alone, as the broker that cleans them does.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from bus.model import TopicPartition
from bus.records.json_text import parse_json
from bus.storage_delta.files.live_file import FILE_TAG, SUMS_TAG, LiveFile
from bus.storage_delta.log.actions import MalformedCommit, decode_commit
from bus.storage_delta.log.checkpoint_files import decode_checkpoint, read_hint
from bus.storage_delta.log.listing import (
    LOG_FOLDER,
    LogListing,
    checkpoint_name,
    list_table,
    partition_folder,
    version_name,
)
from bus.storage_delta.log.reading import load_removed, read_whole_log
from bus.storage_delta.log.table_state import TableState
from bus.storage_delta.log.txns import Txn, transaction_txns
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
    """What lies beside the table of a transaction that is open, or that was not cleaned up yet."""

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
    last_checkpoint: int | None  # as `_last_checkpoint` says
    read_checkpoint: int  # the newest that can be read; -1 if there is none
    checkpoint_ms: int | None  # when the version that it is of was committed
    log_file_count: int
    log_bytes: int
    kept_files: Mapping[str, int]  # removed data files that older versions have -> bytes
    orphans: Mapping[str, int]  # data files that no version names -> bytes
    transactions: Sequence[EndedTransaction]  # one of each id, the one that ended last at the end
    staged: Sequence[StagedTransaction]

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
        """What key compaction has not seen."""
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
    """As they stand there, where they are no JSON."""
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
