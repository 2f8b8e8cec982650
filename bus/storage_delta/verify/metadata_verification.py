"""The cluster's metadata as the verifier reads them: their records, and what each topic's tables say about it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa

from bus.cluster_metadata.cluster import ClusterState, replay_cluster
from bus.cluster_metadata.cluster_mending import FoundTable, Mended, find_topics, mend_cluster
from bus.errors import StorageDamaged, first_line
from bus.model import CLUSTER_METADATA_TOPIC, TopicPartition
from bus.storage_delta.files.inspection import UnreadableFile, open_data_file
from bus.storage_delta.stores.store import KeyNotFound, ObjectStore
from bus.storage_delta.verify.replay import LOG_START_APP, PRODUCER_APPS, list_log, partition_folder, replay_table

_PARTITION_NAME = re.compile(r"0|[1-9][0-9]*")
_FOLDER = partition_folder(TopicPartition(CLUSTER_METADATA_TOPIC, 0))


def find_contradictions(store: ObjectStore) -> Mended | None:
    """None if the metadata replay as they are. Raises `StorageDamaged` if the table itself is not whole."""
    rows = list(_rows(store))
    if not mend_cluster(rows).contradictions:
        return None
    found, producer_id_max = find_topics(_find_tables(store))
    return mend_cluster(rows, found, producer_id_max=producer_id_max)


def load_cluster(store: ObjectStore) -> ClusterState:
    """Raises `StorageDamaged`."""
    rows = list(_rows(store))
    try:
        return replay_cluster((row for _, row in rows), first_offset=rows[0][0] if rows else 0)
    except ValueError as error:
        way_out = f"`bus log repair {CLUSTER_METADATA_TOPIC}` says what can be mended"
        raise StorageDamaged(f"{_FOLDER}: {error}; {way_out}") from None


def _rows(store: ObjectStore) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """From the log's start on, with their offsets."""
    listing = list_log(store, _FOLDER)
    if not listing.versions and not listing.checkpoints:
        return
    table = replay_table(store, _FOLDER, listing)
    log_start = table.txns.get(LOG_START_APP, 0)
    for file in table.files_by_offset:
        try:
            rows = open_data_file(store, _FOLDER, file.path).read(["offset", "value"])
        except (UnreadableFile, KeyNotFound, pa.ArrowException, OSError, ValueError) as error:
            raise StorageDamaged(f"{_FOLDER}/{file.path}: {first_line(error)}") from None
        for offset, value in zip(rows.column("offset").to_pylist(), rows.column("value").to_pylist(), strict=True):
            if offset >= log_start:
                yield offset, value


def _find_tables(store: ObjectStore) -> Mapping[str, Sequence[FoundTable]]:
    """By topic. Tables that cannot be read tell nothing."""
    names = store.list("topics", with_sizes=False).folders
    return {name: list(_tables_of(store, name)) for name in names if name != CLUSTER_METADATA_TOPIC}


def _tables_of(store: ObjectStore, name: str) -> Iterator[FoundTable]:
    for number in filter(_PARTITION_NAME.fullmatch, store.list(f"topics/{name}", with_sizes=False).folders):
        try:
            table = replay_table(store, partition_folder(TopicPartition(name, int(number))))
        except (StorageDamaged, KeyNotFound):
            continue
        ids = [app_id.removeprefix(PRODUCER_APPS) for app_id in table.txns if app_id.startswith(PRODUCER_APPS)]
        producer_id_max = max((int(named) for named in ids if named.isdecimal()), default=-1)
        topic_id = table.configuration.get("bus.topic_id")
        yield FoundTable(int(number), topic_id, table.high_watermark, table.leader_epoch, producer_id_max)
