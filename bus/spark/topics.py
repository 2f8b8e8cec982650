"""A topic as a Spark DataFrame, straight from its tables: no broker, no connector.

Spark reads the partitions as the Delta tables they are, with skipping by offset and timestamp, and with no limit of one
task per partition. Which partitions there are comes from the cluster's metadata log.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timezone
from functools import reduce
from typing import TYPE_CHECKING, Any

from bus.point_in_time import Bound, bound_of, check_bound
from bus.spark.log_files import version_at
from bus.topic_tables import TableSnapshot, TopicTables

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from bus.model import TopicPartition

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
) -> DataFrame:
    """The records of a topic: columns `topic`, `partition`, then those of the log; `key` and `value` are binary.

    `at_version` is time travel: each action sees that Delta version of the partitions. `at_time` is the same by the
    clock, with the last version of each partition that was committed by then; without a zone it is UTC. Without either,
    each action sees the last commit at its time, as with any Delta table; which partitions there are and where their
    logs start is that of this call. `at_offset` hides the records at and after that offset. Versions and offsets are
    a number for every partition, or a mapping from topic name or `TopicPartition` to a number. `ordered` sorts by
    partition and offset.

    Raises `BusError` UNKNOWN_TOPIC_OR_PARTITION, `RootNotUsable`, or `StorageFault` for a version that is not there.
    """
    check_bound(at_version, "a version")
    check_bound(at_offset, "an offset")
    if at_version is not None and at_time is not None:
        raise ValueError("expected at_version or at_time, found both")
    tables = TopicTables(root)
    partitions = tables.partitions(topic)
    versions = {
        partition: bound_of(at_version, partition) if at_time is None else version_at(tables, partition, to_ms(at_time))
        for partition in partitions
    }
    frame = union_all(
        _read_partition(spark, tables, partition, versions[partition], bound_of(at_offset, partition))
        for partition in partitions
    )
    return frame.orderBy("partition", "offset") if ordered else frame


def _read_partition(
    spark: SparkSession, tables: TopicTables, partition: TopicPartition, version: int | None, end_offset: int | None
) -> DataFrame:
    from pyspark.sql import functions as sql

    reader = spark.read.format("delta")
    snapshot = tables.snapshot(partition, version)  # a missing version is refused here, in the bus's own words
    if version is not None:
        reader = reader.option("versionAsOf", version)
    frame = reader.load(f"file:{tables.path(partition)}")
    if end_offset is not None:
        frame = frame.where(sql.col("offset") < end_offset)
    return with_place(frame, snapshot)


def with_place(frame: DataFrame, snapshot: TableSnapshot) -> DataFrame:
    """A partition's table as a part of its topic: without what is below its log start."""
    from pyspark.sql import functions as sql

    if snapshot.has_deleted_rows:
        frame = frame.where(sql.col("offset") >= snapshot.log_start)
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
