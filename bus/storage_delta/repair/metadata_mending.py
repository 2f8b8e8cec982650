"""Mending cluster metadata that contradict themselves: the table is whole, its records are not.

What is to count is the rules' to say (cluster_metadata/cluster_mending.py); here the tables of the root are looked at
for what records cannot tell, and the outcome is written as a snapshot, with which the log begins from then on. Guards
two promises: nothing is written unless a record does not fit, and what is replaced is copied to the quarantine first.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from bus.cluster_metadata.cluster_mending import Contradiction, FoundTable, Mended, find_topics, mend_cluster
from bus.cluster_metadata.cluster_records import encode_record, replay_cluster, snapshot_of
from bus.cluster_metadata.cluster_state import ClusterState
from bus.errors import StorageDamaged, count_of
from bus.model import CLUSTER_METADATA_TOPIC, TopicPartition
from bus.ports import Committed
from bus.records.log_schema import CLUSTER_METADATA_VALUE_TYPE
from bus.storage_delta.files.data_reader import ReadCache
from bus.storage_delta.files.trials import read_records
from bus.storage_delta.log.listing import TOPICS_FOLDER, list_log, list_partitions, partition_folder
from bus.storage_delta.log.reading import load_state
from bus.storage_delta.log.table_metadata import add_new_fields
from bus.storage_delta.log.txns import LOG_START_APP, decode_producers
from bus.storage_delta.repair.plan import Quarantine, Steps
from bus.storage_delta.stores.store import KeyNotFound, ObjectStore
from bus.storage_delta.table import DeltaPartitionTable
from bus.storage_delta.typed_log import DeltaTypedLog

METADATA = TopicPartition(CLUSTER_METADATA_TOPIC, 0)


def load_cluster(store: ObjectStore) -> ClusterState:
    """The cluster's metadata log replayed: which topics there are. Raises `StorageDamaged`."""
    rows = list(read_cluster_rows(store))
    try:
        return replay_cluster((row for _, row in rows), first_offset=rows[0][0] if rows else 0)
    except ValueError as error:
        folder = partition_folder(METADATA)
        raise StorageDamaged(
            f"{folder}: {error}; `bus log repair {CLUSTER_METADATA_TOPIC}` says what can be mended"
        ) from None


def read_cluster_rows(store: ObjectStore) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """The rows of the metadata log from its start on, with their offsets. Raises `StorageDamaged`."""
    folder = partition_folder(METADATA)
    listing = list_log(store, folder)
    if not listing.versions and not listing.checkpoints:
        return
    state = load_state(store, folder)
    log_start = state.done(LOG_START_APP, 0)
    for file in state.files_by_offset:
        for batch in read_records(store, folder, file.path, from_offset=log_start):
            offsets = batch.column(batch.schema.get_field_index("offset")).to_pylist()
            yield from zip(offsets, batch.column(batch.schema.get_field_index("value")).to_pylist(), strict=True)


def find_contradictions(store: ObjectStore) -> Mended | None:
    """None if the metadata replay as they are. Writes nothing. Raises `StorageDamaged` if the table itself is not
    whole."""
    rows = list(read_cluster_rows(store))
    if not mend_cluster(rows).contradictions:
        return None
    found, producer_id_max = find_topics(_find_tables(store))
    return mend_cluster(rows, found, producer_id_max=producer_id_max)


def mend_metadata(store: ObjectStore, steps: Steps, *, cluster_id: str, now_ms: int) -> None:
    """Nothing, if no record contradicts another. Raises `StorageDamaged` if the cluster would not start afterwards."""
    mended = find_contradictions(store)
    if mended is None:
        return
    for contradiction in mended.contradictions:
        _tell(contradiction, steps)
    folder, cache = partition_folder(METADATA), ReadCache()
    add_new_fields(store, folder, CLUSTER_METADATA_VALUE_TYPE, cache)
    table = DeltaPartitionTable(store, folder, topic_id=cluster_id, cache=cache, value_type=CLUSTER_METADATA_VALUE_TYPE)
    quarantine = Quarantine(store, METADATA)
    for file in table.rewrites.files:
        kept = quarantine.keep(file.path)
        steps.add("quarantine", file.path, f"a snapshot takes its place; copied to {kept}")
    _write_snapshot(table, mended.state, steps, now_ms)
    if load_cluster(store) != mended.state:
        raise StorageDamaged(f"{folder}: expected the snapshot to replay to what was mended, found another state")


def _tell(contradiction: Contradiction, steps: Steps) -> None:
    offset = contradiction.offset
    is_lost = contradiction.remedy.startswith("given up")
    steps.add(
        "give up" if is_lost else "mend",
        f"record at offset {offset}" if offset >= 0 else "the records together",
        f"{contradiction.message}: {contradiction.remedy}",
        (offset, offset + 1) if offset >= 0 else None,
    )


def _write_snapshot(table: DeltaPartitionTable, state: ClusterState, steps: Steps, now_ms: int) -> None:
    rows = [encode_record(record) for record in snapshot_of(state)]
    leader_epoch, base_offset = max(0, table.state.leader_epoch), table.state.high_watermark
    log = DeltaTypedLog(table, CLUSTER_METADATA_VALUE_TYPE)
    log.lead(leader_epoch, now_ms, fence=False)  # a repair holds the root's lock: no broker leads
    outcome = log.append(rows, leader_epoch=leader_epoch, now_ms=now_ms)
    if isinstance(outcome, Committed) and base_offset > table.state.log_start:
        outcome = table.cleanup.advance_log_start(base_offset, leader_epoch=leader_epoch, now_ms=now_ms)
    if not isinstance(outcome, Committed):
        raise StorageDamaged(f"{partition_folder(METADATA)}: the snapshot could not be committed: {outcome}")
    topics = len(state.topics)
    detail = (
        f"a snapshot of {count_of(topics, 'topic')}, "
        f"{count_of(len(state.producers.by_name), 'producer name')}, {count_of(len(state.views), 'view')}"
    )
    steps.add("commit", f"version {outcome.version}", detail, (base_offset, base_offset + len(rows)))


# ------------------------------------------------------------------ what the tables say


def _find_tables(store: ObjectStore) -> Mapping[str, Sequence[FoundTable]]:
    """Return the tables by topic. Tables that cannot be read are left out."""
    names = store.list(TOPICS_FOLDER, with_sizes=False).folders
    return {name: list(_tables_of(store, name)) for name in names if name != CLUSTER_METADATA_TOPIC}


def _tables_of(store: ObjectStore, name: str) -> Iterator[FoundTable]:
    for partition in list_partitions(store, name):
        try:
            state = load_state(store, partition_folder(partition))
        except (StorageDamaged, KeyNotFound):
            continue
        topic_id = None if state.metadata is None else state.metadata.topic_id
        producer_id_max = max(decode_producers(state.txns), default=-1)
        yield FoundTable(partition.partition, topic_id, state.high_watermark, state.leader_epoch, producer_id_max)
