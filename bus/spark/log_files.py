"""The live data files of partitions, and the rows in them, as DataFrames: what jobs that rewrite or report a log read.

Guards one promise: what is read is what one version of each table names, file by file. Reads nothing through the
broker and changes nothing.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow.parquet as pq

from bus.model import TopicPartition
from bus.storage_delta.files.live_file import LiveFile
from bus.storage_delta.log.listing import partition_folder
from bus.storage_delta.log.reading import load_state
from bus.storage_delta.log.table_state import TableState
from bus.storage_delta.root import open_reader
from bus.storage_delta.stores.local import LocalStore
from bus.tables.topics import TopicTables

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

FILES_SCHEMA = (
    "topic string, partition int, file string, base_offset long, next_offset long, records long, size_bytes long, "
    "appended_ms long, is_compacted boolean"
)


@dataclass(frozen=True, slots=True)
class PartitionFiles:
    """One version of a partition. `files` are in offset order."""

    partition: TopicPartition
    folder: str
    version: int
    log_start: int  # rows below it were deleted, and may be in the first file still
    high_watermark: int
    compacted_to: int  # offsets below it may be missing
    files: Sequence[LiveFile]
    schema_string: str  # of the table, JSON


def load_files(tables: TopicTables, partition: TopicPartition) -> PartitionFiles:
    """The partition at its last version. Raises `StorageDamaged`."""
    topic = tables.cluster().topics.get(partition.topic)
    opened = open_reader(str(tables.root)).open_partition(partition)
    snapshot = opened.load(topic_id=topic.topic_id if topic else None)
    return PartitionFiles(
        partition=partition,
        folder=str(tables.path(partition)),
        version=snapshot.version,
        log_start=snapshot.log_start,
        high_watermark=snapshot.high_watermark,
        compacted_to=snapshot.compacted_to,
        files=list(snapshot.files),
        schema_string=snapshot.metadata.schema_string,
    )


def table_at(tables: TopicTables, partition: TopicPartition, version: int | None) -> TableState:
    """The partition's table as that version left it, or the last one. Raises `StorageFault` if it is not there any
    more."""
    if version is not None:
        tables.snapshot(partition, version)  # a missing version is refused here, in the bus's own words
    return load_state(LocalStore(str(tables.root)), partition_folder(partition), version=version)


def files_frame(spark: SparkSession, partitions: Iterable[PartitionFiles]) -> DataFrame:
    """A row for each live file, with the columns of `FILES_SCHEMA`; `is_compacted`: key compaction has seen it."""
    rows = [
        (
            found.partition.topic,
            found.partition.partition,
            file.path,
            file.base_offset,
            file.next_offset,
            file.record_count,
            file.size_bytes,
            file.appended_ms,
            file.base_offset < found.compacted_to,
        )
        for found in partitions
        for file in found.files
    ]
    return spark.createDataFrame(rows, FILES_SCHEMA)


def read_rows(spark: SparkSession, found: PartitionFiles, names: Sequence[str]) -> DataFrame:
    """The rows of the live files `names` from the log start on: the columns of the log, and `file`. A page whose
    checksum is wrong fails the query: what rewrites a file must not carry its damage on."""
    from pyspark.sql import functions as sql
    from pyspark.sql.types import StructType

    schema = StructType.fromJson(json.loads(found.schema_string))
    frame = (
        spark.read.schema(schema)
        .option("parquet.page.verify-checksum.enabled", "true")
        .parquet(*(f"file:{found.folder}/{name}" for name in names))
    )
    rows = frame.select("*", sql.col("_metadata.file_name").alias("file"))
    return rows.where(sql.col("offset") >= found.log_start) if _has_deleted(found, names) else rows


def count_deleted(found: PartitionFiles, names: Sequence[str]) -> int:
    """The rows of the live files `names` that `read_rows` leaves out."""
    if not _has_deleted(found, names):
        return 0
    offsets = pq.read_table(f"{found.folder}/{found.files[0].path}", columns=["offset"]).column("offset")
    return int(np.count_nonzero(offsets.to_numpy() < found.log_start))


def _has_deleted(found: PartitionFiles, names: Sequence[str]) -> bool:
    first = found.files[0]
    return first.base_offset < found.log_start and first.path in names
