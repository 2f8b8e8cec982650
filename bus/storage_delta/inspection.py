"""What lies in the storage of a partition, for people: its versions, its data files, its records.

Guards one promise: looking changes nothing (see log_replay.py, which reads the log).
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from bus.errors import StorageDamaged
from bus.model import CLUSTER_METADATA_TOPIC, TopicPartition
from bus.storage_delta.log_replay import (
    Action,
    AddedFile,
    Unreadable,
    decode_add,
    first_line,
    list_log,
    load_last_checkpoint,
    load_version,
    partition_folder,
    replay_table,
    version_file,
)
from bus.storage_delta.store import KeyNotFound, ObjectStore
from bus.topics.cluster import EMPTY_CLUSTER, ClusterState, replay_cluster

_READ_AHEAD_BYTES = 1 << 20


# ------------------------------------------------------------------ data files


class StoreFile(io.RawIOBase):
    """A file of a store for readers that want a Python file. Reads ahead, since Parquet asks for small pieces."""

    def __init__(self, store: ObjectStore, key: str) -> None:
        self._store = store
        self._key = key
        self._size = store.size(key)
        self._position = 0
        self._start, self._ahead = 0, b""

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        origin = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._size}[whence]
        self._position = origin + offset
        return self._position

    def tell(self) -> int:
        return self._position

    def size(self) -> int:
        return self._size

    def read(self, size: int | None = -1) -> bytes:
        length = self._size - self._position if size is None or size < 0 else min(size, self._size - self._position)
        if length <= 0:
            return b""
        begin = self._position - self._start
        if not (begin >= 0 and begin + length <= len(self._ahead)):
            wanted = max(length, _READ_AHEAD_BYTES)
            self._start, begin = self._position, 0
            self._ahead = bytes(self._store.get_range(self._key, self._position, wanted))
        self._position += length
        return self._ahead[begin : begin + length]


def open_data_file(store: ObjectStore, folder: str, path: str) -> pq.ParquetFile:
    """Raises `Unreadable` if it is no Parquet file, `KeyNotFound`."""
    try:
        return pq.ParquetFile(
            pa.PythonFile(StoreFile(store, f"{folder}/{path}"), mode="r"),
            coerce_int96_timestamp_unit="us",  # Delta allows for it, and Spark writes it
            page_checksum_verification=True,
        )
    except (pa.ArrowException, OSError, ValueError) as error:
        raise Unreadable(f"expected a Parquet file, found: {first_line(error)}") from None


def read_records(
    store: ObjectStore, folder: str, path: str, *, from_offset: int = 0, to_offset: int | None = None
) -> Iterator[pa.RecordBatch]:
    """The records of a data file with offsets from `from_offset` up to, but not including, `to_offset`; all columns.

    Raises `StorageDamaged` for a file that cannot be read.
    """
    try:
        with open_data_file(store, folder, path) as file:
            for group in range(file.num_row_groups):
                for batch in file.read_row_group(group).to_batches():
                    offsets = batch.column(batch.schema.get_field_index("offset")).to_numpy()
                    wanted = offsets >= from_offset
                    if to_offset is not None:
                        wanted &= offsets < to_offset
                    if np.any(wanted):
                        yield batch.filter(pa.array(wanted))
    except (Unreadable, KeyNotFound, pa.ArrowException, OSError) as error:
        raise StorageDamaged(f"{folder}/{path}: {first_line(error)}") from None


# ------------------------------------------------------------------ the cluster


def load_cluster(store: ObjectStore) -> ClusterState:
    """The cluster's metadata log replayed: which topics there are. Raises `StorageDamaged`."""
    folder = partition_folder(TopicPartition(CLUSTER_METADATA_TOPIC, 0))
    listing = list_log(store, folder)
    if not listing.versions and not listing.checkpoints:
        return EMPTY_CLUSTER
    table = replay_table(store, folder, listing)
    rows: list[Mapping[str, Any]] = []
    for file in table.files_by_offset:
        for batch in read_records(store, folder, file.path):
            rows += batch.column(batch.schema.get_field_index("value")).to_pylist()
    try:
        return replay_cluster(rows)
    except ValueError as error:
        raise StorageDamaged(f"{folder}: {error}") from None


# ------------------------------------------------------------------ for people


@dataclass(frozen=True, slots=True)
class VersionSummary:
    """What one version did. Offsets are -1 if it added no records."""

    version: int
    timestamp_ms: int
    operation: str
    leader_epoch: int
    files_added: int
    files_removed: int
    record_count: int
    base_offset: int
    last_offset: int
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
    checkpoints: Sequence[int]
    last_checkpoint: int | None
    log_file_count: int
    log_bytes: int
    unnamed_files: Sequence[str]  # data files that the current version does not name

    @property
    def record_count(self) -> int:
        return sum(file.record_count for file in self.files)

    @property
    def size_bytes(self) -> int:
        return sum(file.size_bytes for file in self.files)


def describe_partition(store: ObjectStore, partition: TopicPartition) -> PartitionSummary:
    """Raises `StorageDamaged` if there is no table that can be replayed."""
    folder = partition_folder(partition)
    listing = list_log(store, folder)
    table = replay_table(store, folder, listing)
    try:
        last_checkpoint = load_last_checkpoint(store, folder)
    except Unreadable:
        last_checkpoint = None
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
        checkpoints=list(listing.checkpoints),
        last_checkpoint=last_checkpoint,
        log_file_count=len(listing.versions) + len(listing.checkpoints),
        log_bytes=sum(listing.versions.values()) + sum(listing.checkpoints.values()),
        unnamed_files=[path for path in listing.data_files if path not in table.files],
    )


def describe_versions(store: ObjectStore, partition: TopicPartition, *, count_max: int) -> list[VersionSummary]:
    """The newest versions whose files are there, oldest first, at most `count_max`."""
    folder = partition_folder(partition)
    newest = sorted(list_log(store, folder).versions)[-count_max:]
    summaries = []
    for version in newest:
        try:
            summaries.append(_summary(version, load_version(store, folder, version)))
        except Unreadable as error:
            raise StorageDamaged(f"{folder}/{version_file(version)}: {error}") from None
    return summaries


def _summary(version: int, actions: Sequence[Action]) -> VersionSummary:
    info: Mapping[str, Any] = next((action["commitInfo"] for action in actions if "commitInfo" in action), {})
    added = [decode_add(action["add"], version) for action in actions if "add" in action]
    return VersionSummary(
        version=version,
        timestamp_ms=int(info.get("timestamp", -1)),
        operation=str(info.get("operation", "unknown")),
        leader_epoch=int(info.get("leaderEpoch", -1)),
        files_added=len(added),
        files_removed=sum("remove" in action for action in actions),
        record_count=sum(file.record_count for file in added),
        base_offset=min((file.base_offset for file in added), default=-1),
        last_offset=max((file.last_offset for file in added), default=-1),
        size_bytes=sum(file.size_bytes for file in added),
    )
