"""The cluster's metadata log of a root that need not be whole: its rows, and the topics that they tell of.

Guards one promise: looking changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from bus.cluster_metadata.cluster import ClusterState, replay_cluster
from bus.errors import StorageDamaged
from bus.model import CLUSTER_METADATA_TOPIC, TopicPartition
from bus.storage_delta.files.inspection import read_records
from bus.storage_delta.log.actions import LOG_START_APP
from bus.storage_delta.log.listing import list_log, partition_folder
from bus.storage_delta.log.reading import load_state
from bus.storage_delta.stores.store import ObjectStore


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
