"""A topic as a Spark DataFrame, straight from its tables: no broker, no connector, no limit of one task per partition.

Which partitions there are comes from the cluster's metadata log, and which files a version of a partition has from its
Delta log. Guards one promise: a frame is the records of one committed version of each partition. The bus reads the logs
itself, in milliseconds, and hands the files to Spark's own Parquet reader. Delta would plan each partition anew in
every query, by jobs of its own: tenths of a second each, and ten seconds for the first query of a session. It still
reads what follows the log (`live`), and tables in which a feature of Delta decides which rows count.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from datetime import datetime, timezone
from functools import reduce
from typing import TYPE_CHECKING, Any

from bus.point_in_time import Bound, bound_of, check_bound
from bus.spark.log_files import version_at
from bus.table_snapshots import TableSnapshot
from bus.topic_tables import TopicTables

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, DataFrameReader, SparkSession

    from bus.model import TopicPartition

# A session may be told to pass over files that are gone or damaged; a committed one that is not there is an error.
_EVERY_FILE = {"ignoreMissingFiles": "false", "ignoreCorruptFiles": "false"}
# In the path of a file Spark takes these for a pattern. Delta does not.
_PATTERN = re.compile(r"[][{}*?\\]")
_LISTING_THRESHOLD = "spark.sql.sources.parallelPartitionDiscovery.threshold"
# Byte by byte, as the embedded engine writes them: what is printable and no quote or backslash as it is.
_ESCAPED = r"""array_join(transform(regexp_extract_all(hex(`{0}`), '(..)', 1), byte -> CASE
    WHEN byte BETWEEN '20' AND '7E' AND byte NOT IN ('22', '27', '5C') THEN char(conv(byte, 16, 10))
    ELSE concat('\\x', byte) END), '')"""


def read_topic(
    spark: SparkSession,
    root: str,
    topic: str,
    *,
    at_version: Bound | None = None,
    at_time: datetime | None = None,
    at_offset: Bound | None = None,
    ordered: bool = False,
    live: bool = False,
) -> DataFrame:
    """The records of a topic: columns `topic`, `partition`, then those of the log; `key` and `value` are binary.

    All actions over the frame see the same: what was committed at this call or, with `at_version`, at that Delta
    version of the partitions, for as long as its files are kept (`delta.log.retention.ms`). `at_time` is the same by
    the clock, with the last version of each partition that was committed by then; without a zone it is UTC. `live`
    makes each action see what is committed at its time, as any Delta table does, and costs each query the planning of
    that; which partitions there are and where their logs start is then still that of this call. `at_offset` hides the
    records at and after that offset. Versions and offsets are a number for every partition, or a mapping from topic
    name or `TopicPartition` to a number. `ordered` sorts by partition and offset.

    Raises `BusError` UNKNOWN_TOPIC_OR_PARTITION, `RootNotUsable`, or `StorageFault` for a version that is not there.
    """
    check_bound(at_version, "a version")
    check_bound(at_offset, "an offset")
    given = {"at_version": at_version, "at_time": at_time, "live": live or None}
    found = [name for name, value in given.items() if value is not None]
    if len(found) > 1:
        raise ValueError(f"expected at_version, at_time or live, found {' and '.join(found)}")
    tables = TopicTables(root)
    frames = []
    for partition in tables.partitions(topic):
        end_offset = bound_of(at_offset, partition)
        version = bound_of(at_version, partition)
        if at_time is not None:
            version = version_at(tables, partition, to_ms(at_time))
        snapshot = tables.snapshot(partition, version)  # a missing version is refused here, in the bus's own words
        if live:
            frame = _open_delta(spark.read, tables, partition)
        elif not snapshot.is_plain or _PATTERN.search(root):
            frame = _open_delta(spark.read.option("versionAsOf", snapshot.version), tables, partition)
        else:
            frame = _read_files(spark, snapshot, end_offset)
        frames.append(with_place(frame, snapshot, end_offset))
    frame = union_all(frames)
    return frame.orderBy("partition", "offset") if ordered else frame


def _open_delta(reader: DataFrameReader, tables: TopicTables, partition: TopicPartition) -> DataFrame:
    return reader.format("delta").load(f"file:{tables.path(partition)}")


def _read_files(spark: SparkSession, snapshot: TableSnapshot, end_offset: int | None) -> DataFrame:
    from pyspark.sql.types import StructType

    schema = StructType.fromJson(json.loads(snapshot.delta_schema))
    first_offsets = zip(snapshot.files, snapshot.first_offsets, strict=True)
    files = [f"file:{file}" for file, first in first_offsets if end_offset is None or first < end_offset]
    if not files:
        return spark.createDataFrame([], schema)
    reader = spark.read.schema(schema).options(**_EVERY_FILE)
    # More files in one relation, and Spark starts a job of as many tasks to look at them.
    together = max(1, int(spark.conf.get(_LISTING_THRESHOLD) or 0))
    return union_all(reader.parquet(*files[start : start + together]) for start in range(0, len(files), together))


def with_place(frame: DataFrame, snapshot: TableSnapshot, end_offset: int | None = None) -> DataFrame:
    """A partition's table as a part of its topic: without what is below its log start, or not below `end_offset`."""
    from pyspark.sql import functions as sql

    if snapshot.has_deleted_rows:
        frame = frame.where(sql.col("offset") >= snapshot.log_start)
    if end_offset is not None:
        frame = frame.where(sql.col("offset") < end_offset)
    partition = snapshot.partition
    return frame.select(sql.lit(partition.topic).alias("topic"), sql.lit(partition.partition).alias("partition"), "*")


def union_all(frames: Iterable[DataFrame]) -> DataFrame:
    """Of at least one."""
    return reduce(lambda left, right: left.unionAll(right), frames)


def with_text(frame: DataFrame) -> DataFrame:
    """`key` and `value` as text, as the embedded engine shows them: UTF-8 as it is and other bytes escaped as \\xNN;
    `key_bytes` and `value_bytes` are the bytes themselves."""
    from pyspark.sql import functions as sql
    from pyspark.sql.types import BinaryType

    binary = [name for name in ("key", "value") if isinstance(frame.schema[name].dataType, BinaryType)]
    columns: list[Any] = []
    for name in frame.columns:
        if name in binary:
            escaped = sql.expr(_ESCAPED.format(name))
            text = sql.try_validate_utf8(sql.col(name).cast("string"))
            columns.append(sql.coalesce(text, escaped).alias(name))
        else:
            columns.append(sql.col(name))
    return frame.select(*columns, *(sql.col(name).alias(f"{name}_bytes") for name in binary))


def to_ms(time: datetime) -> int:
    aware = time if time.tzinfo is not None else time.replace(tzinfo=timezone.utc)
    return int(aware.timestamp() * 1_000)
