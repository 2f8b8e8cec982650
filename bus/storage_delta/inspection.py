"""What lies in the storage of a bus root, opened for looking: records of data files, topics of the cluster.

Guards one promise: looking changes nothing (see log_replay.py, which reads the log).
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from bus.errors import StorageDamaged
from bus.model import CLUSTER_METADATA_TOPIC, TopicPartition
from bus.storage_delta.log_replay import Unreadable, first_line, list_log, partition_folder, replay_table
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
