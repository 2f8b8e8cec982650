"""What a partition's table is like at its last version, and what lies around it: for people who watch it.

Guards one promise: looking changes nothing. What is live, what is kept for older versions and what nobody names are
told apart by the log alone, as the broker that cleans them does.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bus.model import TopicPartition
from bus.storage_delta.stores.store import KeyNotFound, ObjectStore
from bus.storage_delta.verify.replay import (
    AddedFile,
    LogListing,
    ReplayedTable,
    Unreadable,
    list_log,
    load_last_checkpoint,
    load_version,
    partition_folder,
    replay_table,
)


@dataclass(frozen=True, slots=True)
class LevelSummary:
    """The live files whose rows were rewritten `level` times."""

    level: int
    file_count: int
    size_bytes: int


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
    files: Sequence[AddedFile]  # live, in offset order
    compacted_to: int
    lost_ranges: Sequence[tuple[int, int]]  # (first, one past the last)
    checkpoints: Sequence[int]
    last_checkpoint: int | None
    checkpoint_ms: int | None  # when the version that it is of was committed
    log_file_count: int
    log_bytes: int
    kept_files: Mapping[str, int]  # removed data files that older versions have -> bytes
    orphans: Mapping[str, int]  # data files that no version names -> bytes

    @property
    def record_count(self) -> int:
        return sum(file.record_count for file in self.files)

    @property
    def size_bytes(self) -> int:
        return sum(file.size_bytes for file in self.files)

    @property
    def levels(self) -> list[LevelSummary]:
        found: dict[int, list[AddedFile]] = {}
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
        return self.version - (-1 if self.last_checkpoint is None else self.last_checkpoint)


def describe_partition(store: ObjectStore, partition: TopicPartition) -> PartitionSummary:
    """Raises `StorageDamaged` if there is no table that can be replayed."""
    folder = partition_folder(partition)
    listing = list_log(store, folder)
    table = replay_table(store, folder, listing)
    last_checkpoint = _last_checkpoint(store, folder)
    return PartitionSummary(
        partition=partition,
        topic_id=table.configuration.get("bus.topic_id", ""),
        path=store.table_url(folder) or f"{store.url}/{folder}",
        version=table.version,
        first_version=min([*listing.versions, table.version]),
        log_start=table.log_start,
        high_watermark=table.high_watermark,
        leader_epoch=table.leader_epoch,
        files=table.files_by_offset,
        compacted_to=table.compacted_to,
        lost_ranges=table.lost_ranges,
        checkpoints=list(listing.checkpoints),
        last_checkpoint=last_checkpoint,
        checkpoint_ms=None if last_checkpoint is None else _commit_time(store, folder, last_checkpoint),
        log_file_count=len(listing.versions) + len(listing.checkpoints),
        log_bytes=sum(listing.versions.values()) + sum(listing.checkpoints.values()),
        kept_files={path: size for path, size in listing.data_files.items() if path in table.removed},
        orphans=_orphans(listing, table),
    )


def _orphans(listing: LogListing, table: ReplayedTable) -> dict[str, int]:
    return {
        path: size
        for path, size in listing.data_files.items()
        if path.endswith(".parquet") and path not in table.files and path not in table.removed
    }


def _last_checkpoint(store: ObjectStore, folder: str) -> int | None:
    try:
        return load_last_checkpoint(store, folder)
    except Unreadable:
        return None


def _commit_time(store: ObjectStore, folder: str, version: int) -> int | None:
    """None if its file is gone, or whoever wrote it did not say."""
    try:
        actions = load_version(store, folder, version)
    except (Unreadable, KeyNotFound):
        return None
    info: Mapping[str, Any] = next((action["commitInfo"] for action in actions if "commitInfo" in action), {})
    return int(info["timestamp"]) if "timestamp" in info else None
