"""A topic as a Spark DataFrame, straight from its tables: no broker, no connector.

Spark reads the partitions as the Delta tables they are, with skipping by offset and timestamp, and with no limit of one
task per partition. Which partitions there are comes from the cluster's metadata log.
"""

from __future__ import annotations

from functools import reduce
from typing import TYPE_CHECKING

from bus.point_in_time import Bound, bound_of, check_bound
from bus.topic_tables import TopicTables

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from bus.model import TopicPartition


def read_topic(
    spark: SparkSession,
    root: str,
    topic: str,
    *,
    at_version: Bound | None = None,
    at_offset: Bound | None = None,
) -> DataFrame:
    """The records of a topic: columns `topic`, `partition`, then those of the log; `key` and `value` are binary.

    `at_version` is time travel: each action sees that Delta version of the partitions. Without it each action sees the
    last commit at its time, as with any Delta table; which partitions there are and where their logs start is that of
    this call. `at_offset` hides the records at and after that offset. Both are a number for every partition, or a
    mapping from topic name or `TopicPartition` to a number.

    Raises `BusError` UNKNOWN_TOPIC_OR_PARTITION, `RootNotUsable`, or `StorageFault` for a version that is not there.
    """
    check_bound(at_version, "a version")
    check_bound(at_offset, "an offset")
    tables = TopicTables(root)
    frames = [
        _read_partition(spark, tables, partition, bound_of(at_version, partition), bound_of(at_offset, partition))
        for partition in tables.partitions(topic)
    ]
    return reduce(lambda left, right: left.unionAll(right), frames)


def _read_partition(
    spark: SparkSession, tables: TopicTables, partition: TopicPartition, version: int | None, end_offset: int | None
) -> DataFrame:
    from pyspark.sql import functions as sql

    reader = spark.read.format("delta")
    snapshot = tables.snapshot(partition, version)  # a missing version is refused here, in the bus's own words
    if version is not None:
        reader = reader.option("versionAsOf", version)
    frame = reader.load(f"file:{tables.path(partition)}")
    if snapshot.has_deleted_rows:
        frame = frame.where(sql.col("offset") >= snapshot.log_start)
    if end_offset is not None:
        frame = frame.where(sql.col("offset") < end_offset)
    return frame.select(sql.lit(partition.topic).alias("topic"), sql.lit(partition.partition).alias("partition"), "*")
