"""What a judge of whole topics looks at, as DataFrames: what each partition's log says, and the rows behind it.

A partition's log is replayed and judged by one task, a data file decoded by one; the columns that carry the log's
promises are read by Spark itself. Guards one promise: a file that cannot be read is a finding, never the end of the
job. Tasks need this package, and the root under the same path as the driver. Changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from bus.errors import StorageFault, first_line
from bus.model import TopicPartition
from bus.records.log_schema import LOG_SCHEMA, STATS_COLUMNS, nullable_type
from bus.storage_delta.files.inspection import UnreadableFile, open_data_file
from bus.storage_delta.files.producer_spans import decode_spans
from bus.storage_delta.stores.local import LocalStore
from bus.storage_delta.stores.store import KeyNotFound
from bus.storage_delta.verify.replay import (
    FORGOTTEN_APP,
    PRODUCER_APPS,
    AddedFile,
    ReplayedTable,
    partition_folder,
    replay_table,
)
from bus.storage_delta.verify.verification import verify_partition

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

BREACH_SCHEMA = "topic string, partition int, promise string, file string, expected string, found string"
_FINDINGS = "array<struct<promise: string, file: string, expected: string, found: string>>"
_STATISTICS = ", ".join(f"{name}_{bound}: bigint" for name in STATS_COLUMNS for bound in ("min", "max", "nulls"))
_FILE = (
    "file: string, is_ours: boolean, base_offset: bigint, last_offset: bigint, may_have_holes: boolean, losses: int, "
    f"records: bigint, {_STATISTICS}, tag: array<bigint>, spans: array<array<bigint>>"
)
_PROGRESS = "producer_id: bigint, epoch: int, sequence: bigint"
LOGS_SCHEMA = (
    "topic string, partition int, version bigint, high_watermark bigint, losses int, "
    f"files array<struct<{_FILE}>>, txns array<struct<{_PROGRESS}>>, findings {_FINDINGS}"
)
ROW_COLUMNS = (
    "offset bigint, timestamp timestamp, timestamp_type int, producer_id bigint, producer_epoch smallint, "
    "sequence int, leader_epoch int"
)
# What `unreadable_files` says of a file none of whose rows can be judged.
NOT_READ = ("live files are there", "live files are readable")
_TAG_NUMBERS = 6


def load_logs(spark: SparkSession, root: str, partitions: Iterable[tuple[TopicPartition, str | None]]) -> DataFrame:
    """A row for each partition, named with its topic id: what its log says of its live files and producers, and what is
    wrong with the log itself, with the sizes of the files, and with what the files have to say together."""
    named = [(partition.topic, partition.partition, topic_id) for partition, topic_id in partitions]
    tasks = spark.sparkContext.parallelize(named, max(1, len(named)))
    return spark.createDataFrame(tasks.map(lambda one: _load_log(root, *one)), LOGS_SCHEMA)


def live_files(logs: DataFrame) -> DataFrame:
    """A row for each live file: topic, partition and what the log says of it."""
    return logs.selectExpr("topic", "partition", "inline(files)")


def log_findings(logs: DataFrame) -> DataFrame:
    """The breaches of `load_logs`, with the columns of `BREACH_SCHEMA`."""
    return logs.selectExpr("topic", "partition", "inline(findings)")


def unreadable_files(spark: SparkSession, root: str, files: DataFrame) -> DataFrame:
    """Decode every page of each file once. The breaches: files that cannot be decoded, columns that are not the log's,
    statistics within a file that are not true."""
    named = files.select("topic", "partition", "file").rdd.map(tuple)
    spread = named.repartition(max(1, min(files.count(), 8 * spark.sparkContext.defaultParallelism)))
    return spark.createDataFrame(spread.flatMap(lambda one: list(_decode_file(root, *one))), BREACH_SCHEMA)


def read_log_rows(spark: SparkSession, root: str, files: DataFrame) -> DataFrame:
    """The rows of `files`, named by topic, partition and file: these three, `position` in the file, and
    `ROW_COLUMNS`."""
    from pyspark.sql import functions as sql

    named = files.select("topic", "partition", "file").collect()
    paths = [f"file:{root}/topics/{row.topic}/{row.partition}/{row.file}" for row in named]
    if not paths:
        columns = f"topic string, partition int, file string, position bigint, {ROW_COLUMNS}"
        return spark.createDataFrame([], columns)
    frame = spark.read.schema(ROW_COLUMNS).parquet(*paths)
    place = sql.col("_metadata.file_path")
    return frame.select(
        sql.regexp_extract(place, r"/topics/([^/]+)/\d+/[^/]+$", 1).alias("topic"),
        sql.regexp_extract(place, r"/topics/[^/]+/(\d+)/[^/]+$", 1).cast("int").alias("partition"),
        sql.col("_metadata.file_name").alias("file"),
        sql.col("_metadata.row_index").alias("position"),
        *frame.columns,
    )


# ------------------------------------------------------------------ in a task


def _load_log(root: str, topic: str, number: int, topic_id: str | None) -> tuple[Any, ...]:
    store, partition = LocalStore(root), TopicPartition(topic, number)
    report = verify_partition(store, partition, topic_id=topic_id, has_data_files=False)
    findings = [(breach.promise, breach.file, breach.expected, breach.found) for breach in report.breaches]
    try:
        table = replay_table(store, partition_folder(partition))
    except StorageFault as fault:
        if not findings:
            findings.append(("versions are whole", "_delta_log", "a log that can be replayed", str(fault)))
        return (topic, number, -1, 0, 0, [], [], findings)
    lost = [first for first, _ in table.lost_ranges]
    files = [_describe(table, file, lost) for file in table.files_by_offset]
    return (topic, number, table.version, table.high_watermark, len(lost), files, _progress(table), findings)


def _describe(table: ReplayedTable, file: AddedFile, lost: Sequence[int]) -> tuple[Any, ...]:
    tag = None if file.tag is None else [int(number) for number in file.tag.split()]
    return (
        file.path,
        tag is not None,
        file.base_offset,
        file.last_offset,
        table.may_have_holes(file),
        sum(first <= file.last_offset for first in lost),
        file.record_count,
        *(_statistic(file, name, kind) for name in STATS_COLUMNS for kind in ("minValues", "maxValues", "nullCount")),
        None if tag is None else tag[:_TAG_NUMBERS],
        None if tag is None or len(tag) <= _TAG_NUMBERS else _spans(tag[_TAG_NUMBERS + 1 :]),
    )


def _statistic(file: AddedFile, name: str, kind: str) -> int | None:
    """As an integer, milliseconds for timestamps."""
    found = (file.stats.get(kind) or {}).get(name)
    if found is None or name != "timestamp" or kind == "nullCount":
        return found if isinstance(found, int) else None
    try:
        return int(np.datetime64(str(found).removesuffix("Z").removesuffix("+00:00"), "ms").astype(np.int64))
    except ValueError:
        return None


def _spans(numbers: Sequence[int]) -> list[list[int]]:
    """Six numbers each: the first and the last producer id, epoch and sequence."""
    spans = decode_spans([" ".join(map(str, numbers))] if numbers else [])
    return [[int(number) for number in span.tolist()[1:]] for span in spans]


def _progress(table: ReplayedTable) -> list[tuple[int, int, int]]:
    """Producer, epoch and last sequence of each. What was forgotten is told of producer -1, halved in the same way."""
    producers = ((app_id.removeprefix(PRODUCER_APPS), done) for app_id, done in table.txns.items())
    ends = [(int(named), done >> 32, done & 0xFFFFFFFF) for named, done in producers if named.isdigit()]
    forgotten = table.txns.get(FORGOTTEN_APP)
    return ends if forgotten is None else [*ends, (-1, forgotten >> 32, forgotten & 0xFFFFFFFF)]


def _decode_file(root: str, topic: str, number: int, name: str) -> Iterator[tuple[Any, ...]]:
    folder = partition_folder(TopicPartition(topic, number))
    try:
        parquet = open_data_file(LocalStore(root), folder, name)
        for expected, found in _column_differences(parquet.schema_arrow):
            yield topic, number, "files have the table's columns", name, expected, found
        for group in range(parquet.num_row_groups):
            rows = parquet.read_row_group(group)
            for expected, found in _group_differences(parquet.metadata.row_group(group), group, rows):
                yield topic, number, "statistics are true", name, expected, found
    except KeyNotFound:
        yield topic, number, "live files are there", name, "a file", "none"
    except (UnreadableFile, pa.ArrowException, OSError, ValueError) as error:
        yield topic, number, "live files are readable", name, "a Parquet file that can be decoded", first_line(error)


def _column_differences(found: pa.Schema) -> Iterator[tuple[str, str]]:
    """A typed topic's value may be any struct, and Spark's timestamps say no time zone: they mean UTC."""
    if found.names != LOG_SCHEMA.names:
        yield ", ".join(LOG_SCHEMA.names), ", ".join(found.names)
        return
    for column in LOG_SCHEMA:
        actual = nullable_type(found.field(column.name).type)
        is_free = column.name == "value" and pa.types.is_struct(actual)
        is_time = column.name == "timestamp" and actual == pa.timestamp("us")
        if actual != nullable_type(column.type) and not is_free and not is_time:
            yield f"{column.name} of type {column.type}", str(actual)


def _group_differences(told: Any, group: int, rows: pa.Table) -> Iterator[tuple[str, str]]:
    """What a reader that skips row groups by their statistics would miss."""
    for index in range(told.num_columns):
        column = told.column(index)
        name, statistics = column.path_in_schema, column.statistics
        if name not in (*STATS_COLUMNS, "leader_epoch") or statistics is None or not statistics.has_min_max:
            continue
        bounds = pc.min_max(rows.column(name))
        low, high = bounds["min"].as_py(), bounds["max"].as_py()
        if (low, high) != (statistics.min, statistics.max):
            expected = f"row group {group} with {name} from {low} to {high}"
            yield expected, f"{statistics.min} to {statistics.max}"
