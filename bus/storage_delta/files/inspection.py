"""What lies in the storage of a bus root, opened for looking: records of data files, topics of the cluster.

Guards one promise: looking changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from bus.cluster_metadata.cluster import ClusterState, replay_cluster
from bus.errors import StorageDamaged, first_line
from bus.model import CLUSTER_METADATA_TOPIC, TopicPartition
from bus.storage_delta.files.proved_parquet import ProvedFile, open_proved
from bus.storage_delta.files.trials import TRIALS
from bus.storage_delta.log.actions import LOG_START_APP
from bus.storage_delta.log.listing import list_log, partition_folder
from bus.storage_delta.log.reading import load_state
from bus.storage_delta.stores.store import Data, KeyNotFound, ObjectStore

# ------------------------------------------------------------------ data files


@dataclass(frozen=True, slots=True)
class StoreFile:
    """A file of a store as a source of bytes."""

    store: ObjectStore
    key: str
    size_bytes: int

    def get(self, start: int, length: int) -> Data:
        return self.store.get_range(self.key, start, length)


class UnreadableFile(ValueError):
    """No Parquet file that can be decoded."""


def open_data_file(store: ObjectStore, folder: str, path: str) -> ProvedFile:
    """Every page of it was decoded once, where a crash costs nothing. Raises `UnreadableFile`, `StorageFault`."""
    key = f"{folder}/{path}"
    try:
        source = StoreFile(store, key, store.size(key))
        return open_proved(source, TRIALS.sums_of(source))
    except (pa.ArrowException, OSError, ValueError) as error:
        raise UnreadableFile(f"expected a Parquet file, found: {first_line(error)}") from None


def read_records(
    store: ObjectStore, folder: str, path: str, *, from_offset: int = 0, to_offset: int | None = None
) -> Iterator[pa.RecordBatch]:
    """The records of a data file with offsets from `from_offset` up to, but not including, `to_offset`; all columns.

    Raises `StorageDamaged` for a file that cannot be read.
    """
    try:
        file = open_data_file(store, folder, path)
        for group in range(file.num_row_groups):
            for batch in file.read_row_group(group).to_batches():
                offsets = batch.column(batch.schema.get_field_index("offset")).to_numpy()
                wanted = offsets >= from_offset
                if to_offset is not None:
                    wanted &= offsets < to_offset
                if np.any(wanted):
                    yield batch.filter(pa.array(wanted))
    except (UnreadableFile, KeyNotFound, pa.ArrowException, OSError, ValueError) as error:
        raise StorageDamaged(f"{folder}/{path}: {first_line(error)}") from None


# ------------------------------------------------------------------ the cluster


def load_cluster(store: ObjectStore) -> ClusterState:
    """The cluster's metadata log replayed: which topics there are. Raises `StorageDamaged`."""
    rows = list(read_cluster_rows(store))
    try:
        return replay_cluster((row for _, row in rows), first_offset=rows[0][0] if rows else 0)
    except ValueError as error:
        folder = partition_folder(TopicPartition(CLUSTER_METADATA_TOPIC, 0))
        raise StorageDamaged(
            f"{folder}: {error}; `bus log repair {CLUSTER_METADATA_TOPIC}` says what can be mended"
        ) from None


def read_cluster_rows(store: ObjectStore) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """The rows of the metadata log from its start on, with their offsets. Raises `StorageDamaged`."""
    folder = partition_folder(TopicPartition(CLUSTER_METADATA_TOPIC, 0))
    listing = list_log(store, folder)
    if not listing.versions and not listing.checkpoints:
        return
    state = load_state(store, folder)
    log_start = state.done(LOG_START_APP, 0)
    for file in state.files_by_offset:
        for batch in read_records(store, folder, file.path, from_offset=log_start):
            offsets = batch.column(batch.schema.get_field_index("offset")).to_pylist()
            yield from zip(offsets, batch.column(batch.schema.get_field_index("value")).to_pylist(), strict=True)
