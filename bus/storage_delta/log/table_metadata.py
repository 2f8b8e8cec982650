"""Columns and properties of a table: what a new one has, and how a typed log that an earlier bus made gets what is new.

Guards two promises: no field is ever removed, renamed or changed, only added behind the others; and the rows keep their
offsets and their values. A change is one version, created put-if-absent like every other: the new metadata, and the
rows in one file that has the new fields (`dataChange=false`). Delta fills in what a file lacks, but a reader of the
files themselves does not, so the files of a version always have the fields of its schema.
"""

from __future__ import annotations

import json
import logging
import time
import uuid
from typing import Any

import pyarrow as pa

from bus.errors import StorageFault
from bus.model import TopicPartition
from bus.ports import Committed, Conflicted
from bus.records.log_schema import STATS_COLUMNS, is_same_schema, log_schema, table_schema_string
from bus.storage_delta.files.data_files import EncodedFile, encode_data_file
from bus.storage_delta.files.data_reader import DataReader, ReadCache
from bus.storage_delta.log.actions import Signature, encode_add, encode_line, encode_remove, encode_version
from bus.storage_delta.log.commit import commit_version
from bus.storage_delta.log.listing import LOG_FOLDER
from bus.storage_delta.log.recovery import recover
from bus.storage_delta.log.snapshot import Snapshot, load_snapshot, table_exists
from bus.storage_delta.log.table_protocol import protocol_of
from bus.storage_delta.stores.store import ObjectStore

_log = logging.getLogger(__name__)

_FORMAT_VERSION = 1
# Delta accepts any positive integer here. Only the broker checkpoints: two writers of one checkpoint, or a Hadoop
# writer that leaves its own checksum files beside it, can make it unreadable for the others.
_CHECKPOINT_INTERVAL_NEVER = 2_000_000_000
# The broker knows when a removed data file may go, and no VACUUM does. Until then every checkpoint names it as removed:
# so this is longer than anybody keeps versions, and than a clock is wrong.
REMOVED_FILES_STAY = {"delta.deletedFileRetentionDuration": "interval 10000 days"}


def encode_create(
    partition: TopicPartition,
    *,
    topic_id: str,
    table_id: str,
    txn_id: str,
    schema: pa.Schema,
    now_ms: int,
    is_managed: bool,
) -> bytes:
    """Version 0: protocol and metadata of an empty table."""
    metadata = {
        "id": table_id,
        "format": {"provider": "parquet", "options": {}},
        "schemaString": table_schema_string(schema),
        "partitionColumns": [],
        "configuration": {
            "delta.dataSkippingStatsColumns": ",".join(STATS_COLUMNS),
            "delta.enableExpiredLogCleanup": "false",
            **REMOVED_FILES_STAY,
            "delta.checkpointInterval": str(_CHECKPOINT_INTERVAL_NEVER),
            "bus.topic": partition.topic,
            "bus.partition": str(partition.partition),
            "bus.topic_id": topic_id,
            "bus.format_version": str(_FORMAT_VERSION),
        },
        "createdTime": now_ms,
    }
    protocol = protocol_of(is_managed=is_managed)
    lines = [encode_line({"protocol": protocol}), encode_line({"metaData": metadata})]
    return encode_version("CREATE TABLE", lines, now_ms=now_ms, txn_id=txn_id, is_blind_append=True)


def find_value_type(store: ObjectStore, folder: str, newest: pa.StructType, cache: ReadCache) -> pa.StructType:
    """The fields of `newest` that the table's value has; `newest` itself if the table is no earlier form of it, which
    opening it will find out. Raises `StorageDamaged`."""
    return earlier_type(_load(store, folder, newest, cache).metadata.schema_string, newest) or newest


def add_new_fields(store: ObjectStore, folder: str, newest: pa.StructType, cache: ReadCache) -> None:
    """Give the table the fields of `newest` that its value lacks, and let its checkpoints name removed files for as
    long as these are there; nothing if it has all of that, or is not there.

    Only for the writer, before it opens the table. Safe to repeat, also after a crash in between. Raises
    `StorageFault`.
    """
    if not table_exists(store, folder):
        return
    snapshot = _load(store, folder, newest, cache)
    if _is_behind(snapshot, newest):
        recover(store, folder, snapshot)  # the next version's name may be that of a torn one
        bring_up_to_date(store, folder, snapshot, newest, cache)


def bring_up_to_date(
    store: ObjectStore,
    folder: str,
    snapshot: Snapshot,
    newest: pa.StructType,
    cache: ReadCache,
    signature: Signature | None = None,
) -> bool:
    """See `add_new_fields`, for a table that was read and recovered; `signature` is its leader's. False if there was
    nothing to do."""
    if not _is_behind(snapshot, newest):
        return False
    earlier = earlier_type(snapshot.metadata.schema_string, newest)
    added = [] if earlier is None else [field.name for field in list(newest)[len(earlier) :]]
    txn_id, now_ms = str(uuid.uuid4()), time.time_ns() // 1_000_000
    changes = [encode_line({"metaData": _changed_metadata(snapshot, newest)})]
    rewritten = None
    if added:
        changes += [encode_remove(file.path, now_ms, is_data_change=False) for file in snapshot.files]
        rewritten = _rewrite(store, folder, snapshot, newest, cache, txn_id)
    if rewritten is not None:
        changes.append(encode_add(rewritten.file, rewritten.stats, now_ms, is_data_change=False))
        store.write_unique(f"{folder}/{rewritten.file.path}", rewritten.data)
    outcome = commit_version(
        store,
        f"{folder}/{LOG_FOLDER}",
        version=snapshot.version + 1,
        data=encode_version(
            "ADD COLUMNS" if added else "SET TBLPROPERTIES",
            changes,
            now_ms=now_ms,
            txn_id=txn_id,
            parameters=json.dumps({"columns": json.dumps([f"value.{name}" for name in added])}),
            author="" if signature is None else signature.author,
        ),
        txn_id=txn_id,
        high_watermark=snapshot.high_watermark,
    )
    if isinstance(outcome, Conflicted) and rewritten is not None:
        store.delete(f"{folder}/{rewritten.file.path}")  # an unknown outcome must keep it
    if not isinstance(outcome, Committed):
        raise StorageFault(f"{folder}: the table could not be brought up to date: {outcome}")
    _log.info("%s: brought up to date, new fields: %s, at version %d", folder, ", ".join(added), outcome.version)
    return True


def _is_behind(snapshot: Snapshot, newest: pa.StructType) -> bool:
    """True if fields are missing, or if the table's checkpoints drop removed files."""
    schema_string, configuration = snapshot.metadata.schema_string, snapshot.metadata.configuration
    if is_same_schema(schema_string, log_schema(newest)):
        return not configuration.items() >= REMOVED_FILES_STAY.items()
    return earlier_type(schema_string, newest) is not None


def _load(store: ObjectStore, folder: str, newest: pa.StructType, cache: ReadCache) -> Snapshot:
    return load_snapshot(store, folder, DataReader(store, folder, log_schema(newest), cache))


def earlier_type(schema_string: str, newest: pa.StructType) -> pa.StructType | None:
    """The first fields of `newest`, if the table has these and no others."""
    fields = list(newest)
    for count in range(len(fields) - 1, 0, -1):
        earlier = pa.struct(fields[:count])
        if is_same_schema(schema_string, log_schema(earlier)):
            return earlier
    return None


def _rewrite(
    store: ObjectStore, folder: str, snapshot: Snapshot, newest: pa.StructType, cache: ReadCache, txn_id: str
) -> EncodedFile | None:
    """All rows as they are, with the new fields null. None if there are no rows."""
    reader = DataReader(store, folder, log_schema(newest), cache)  # casts the rows to the newest schema
    batches = [batch for file in snapshot.files for batch in reader.batches_from(file, file.base_offset)]
    return encode_data_file(batches, log_schema(newest), name_suffix=txn_id, compression="none") if batches else None


def _changed_metadata(snapshot: Snapshot, newest: pa.StructType) -> dict[str, Any]:
    """Return the metadata with the new schema, and keep every field that the bus does not know."""
    return {
        **snapshot.metadata.body,
        "schemaString": table_schema_string(log_schema(newest)),
        "configuration": {**snapshot.metadata.configuration, **REMOVED_FILES_STAY},
    }
