"""The topics of a root and its partitions as tables.

Guards one promise: a table that cannot be read says so, and hides no other.
"""

from __future__ import annotations

import json

import pyarrow as pa

from bus.errors import StorageFault
from bus.model import INTERNAL_TOPIC_PREFIX, TopicPartition
from bus.tables.topics import TopicTables

TOPICS = pa.schema(
    [
        ("topic", pa.string()),
        ("topic_id", pa.string()),
        ("is_internal", pa.bool_()),
        ("partitions", pa.int32()),
        ("configs", pa.string()),  # a JSON object of the overrides
    ]
)
PARTITIONS = pa.schema(
    [
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("leader_id", pa.int32()),
        ("leader_epoch", pa.int32()),
        ("version", pa.int64()),
        ("log_start_offset", pa.int64()),
        ("log_end_offset", pa.int64()),
        ("files", pa.int64()),
        ("bytes", pa.int64()),
        ("error", pa.string()),  # why the table cannot be read
    ]
)


def topics(tables: TopicTables) -> pa.Table:
    known = tables.cluster().topics
    rows = [
        {
            "topic": name,
            "topic_id": known[name].topic_id if name in known else None,
            "is_internal": name.startswith(INTERNAL_TOPIC_PREFIX),
            "partitions": count,
            "configs": json.dumps(dict(known[name].configs) if name in known else {}),
        }
        for name, count in tables.topics().items()
    ]
    return pa.Table.from_pylist(rows, TOPICS)


def partitions(tables: TopicTables) -> pa.Table:
    rows = [_partition_row(tables, partition) for topic in tables.topics() for partition in tables.partitions(topic)]
    return pa.Table.from_pylist(rows, PARTITIONS)


def _partition_row(tables: TopicTables, partition: TopicPartition) -> dict[str, object]:
    leadership = tables.cluster().leadership(partition)
    row: dict[str, object] = {"topic": partition.topic, "partition": partition.partition}
    if leadership is not None:
        row |= {"leader_id": leadership.leader_id, "leader_epoch": leadership.leader_epoch}
    try:
        state = tables.log_state(partition)
    except StorageFault as fault:
        return {**row, "error": str(fault)}
    return {
        **row,
        "version": state.version,
        "log_start_offset": state.log_start,
        "log_end_offset": state.high_watermark,
        "files": state.file_count,
        "bytes": state.size_bytes,
    }
