"""The life of the log as tables: what each version that is kept did, and what maintenance did among them.

Read from the versions themselves, so a view tells as far back as `delta.log.retention.ms` and `delta.log.versions.max`
keep them. Guards one promise: a version that cannot be read has a row that says so, and hides no other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa

from bus.model import TopicPartition
from bus.storage_delta.log.history import FilesSummary, VersionSummary, read_history
from bus.tables.topics import TopicTables
from bus.tables.views import TIME_TYPE

_COMMON = [
    ("topic", pa.string()),
    ("partition", pa.int32()),
    ("version", pa.int64()),
    ("time", TIME_TYPE),
    ("operation", pa.string()),
    ("leader_epoch", pa.int32()),
]
VERSIONS = pa.schema(
    [
        *_COMMON,
        ("first_offset", pa.int64()),  # of what it added
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
        ("first_offset", pa.int64()),  # of what it removed
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
