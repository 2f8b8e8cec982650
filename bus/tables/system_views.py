"""System views: the groups, transactions, topics and logs of a root as tables, for `bus sql` and Spark.

Everything is read from the tables under the root, so a broker need not be up; the life of a log is read from its
versions, so a view tells as far back as `delta.log.retention.ms` and `delta.log.versions.max` keep them. Guards two
promises: both engines show the same names and the same columns, since they are made here once; and a table or a version
that cannot be read has a row that says so, and hides no other. The views of groups and transactions are in
coordinator_views.py, those of brokers, leaders, quotas and ACLs in cluster_views.py.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pyarrow as pa

from bus.errors import StorageFault
from bus.json_views.view import SYSTEM_VIEW_NAMES
from bus.model import AUDIT_TOPIC, INTERNAL_TOPIC_PREFIX, TopicPartition
from bus.records.log_schema import AUDIT_VALUE_TYPE, TIMESTAMP_TYPE
from bus.storage_delta.log.summary import FilesSummary, VersionSummary, read_history
from bus.tables import cluster_views, coordinator_views
from bus.tables.topics import TopicTables

VIEW_NAMES = SYSTEM_VIEW_NAMES
VIEW_SCHEMA = "bus"  # the schema of the views, so that topics may have the same names


def read_view(name: str, tables: TopicTables) -> pa.Table:
    """The view as of now. Raises `StorageFault` if the log of the groups, or of the transactions, cannot be read."""
    return _VIEWS[name](tables)


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


_COMMON = [
    ("topic", pa.string()),
    ("partition", pa.int32()),
    ("version", pa.int64()),
    ("time", TIMESTAMP_TYPE),
    ("operation", pa.string()),
    ("leader_epoch", pa.int32()),
]
VERSIONS = pa.schema(
    [
        *_COMMON,
        ("first_offset", pa.int64()),  # the first offset that the version added
        ("last_offset", pa.int64()),
        ("records", pa.int64()),
        ("bytes", pa.int64()),
        ("files_added", pa.int64()),
        ("files_removed", pa.int64()),
        ("error", pa.string()),  # why it cannot be read
    ]
)
LOG_MAINTENANCE = pa.schema(
    [
        *_COMMON,
        ("first_offset", pa.int64()),  # the first offset that the version removed
        ("last_offset", pa.int64()),
        ("files_before", pa.int64()),
        ("files_after", pa.int64()),
        ("records_before", pa.int64()),
        ("records_after", pa.int64()),
        ("bytes_before", pa.int64()),
        ("bytes_after", pa.int64()),
        ("level_before", pa.int32()),  # the highest
        ("level_after", pa.int32()),
    ]
)
_Row = dict[str, Any]


def versions(tables: TopicTables) -> pa.Table:
    return pa.Table.from_pylist(list(_rows(tables, _version_row)), VERSIONS)


def log_maintenance(tables: TopicTables) -> pa.Table:
    return pa.Table.from_pylist(list(_rows(tables, _maintenance_row)), LOG_MAINTENANCE)


def _rows(tables: TopicTables, row_of: Callable[[VersionSummary], _Row | None]) -> Iterator[_Row]:
    for topic in tables.topics():
        for partition in tables.partitions(topic):
            for summary in read_history(tables.store, partition):
                row = row_of(summary)
                if row is not None:
                    yield _common(partition, summary) | row


def _common(partition: TopicPartition, summary: VersionSummary) -> _Row:
    return {
        "topic": partition.topic,
        "partition": partition.partition,
        "version": summary.version,
        "time": summary.timestamp_ms * 1_000 if summary.timestamp_ms >= 0 else None,
        "operation": summary.operation,
        "leader_epoch": _known(summary.leader_epoch),
    }


def _version_row(summary: VersionSummary) -> _Row:
    return {
        **_offsets(summary.added),
        "records": summary.added.record_count,
        "bytes": summary.added.size_bytes,
        "files_added": summary.added.file_count,
        "files_removed": summary.removed.file_count,
        "error": summary.error,
    }


def _maintenance_row(summary: VersionSummary) -> _Row | None:
    before, after = summary.removed, summary.added
    if not summary.is_maintenance:
        return None
    return {
        **_offsets(before),
        "files_before": before.file_count,
        "files_after": after.file_count,
        "records_before": before.record_count,
        "records_after": after.record_count,
        "bytes_before": before.size_bytes,
        "bytes_after": after.size_bytes,
        "level_before": _known(before.level),
        "level_after": _known(after.level),
    }


def _offsets(files: FilesSummary) -> _Row:
    return {"first_offset": _known(files.base_offset), "last_offset": _known(files.last_offset)}


def _known(number: int) -> int | None:
    return number if number >= 0 else None


AUDIT = pa.schema([*AUDIT_VALUE_TYPE])


def audit(tables: TopicTables) -> pa.Table:
    """The rows of `__audit` in the order in which they were written: what callers did, or were kept from."""
    rows = coordinator_views.all_values(tables, AUDIT_TOPIC, AUDIT_VALUE_TYPE, ("offset",))
    return rows.sort_by("offset").select(AUDIT.names) if rows.num_columns else AUDIT.empty_table()


_VIEWS: Mapping[str, Callable[[TopicTables], pa.Table]] = {
    "groups": coordinator_views.groups,
    "group_members": coordinator_views.group_members,
    "group_offsets": coordinator_views.group_offsets,
    "lag": coordinator_views.lag,
    "topics": topics,
    "partitions": partitions,
    "versions": versions,
    "log_maintenance": log_maintenance,
    "brokers": cluster_views.brokers,
    "replicas": cluster_views.replicas,
    "elections": cluster_views.elections,
    "reassignments": cluster_views.reassignments,
    "transactions": coordinator_views.transactions,
    "transaction_history": coordinator_views.transaction_history,
    "quotas": cluster_views.quotas,
    "audit": audit,
    "acls": cluster_views.acls,
    "effective_acls": cluster_views.effective_acls,
}
assert tuple(_VIEWS) == VIEW_NAMES, "a view of a topic's values may not have the name of any of these"
