"""A topic as a stream of Spark's own Delta source, kept alive through all that maintenance does to its tables.

Guards one promise: nothing that the bus does to a table stops the stream or shows it a record twice. Rolling and key
compaction commit without a change of data, which Delta passes over by itself; removals do change data, so they are
ignored. The other way is `format("bus")`, with offsets, limits by records, and a group's progress: docs/sql.md says
which one to take when.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from bus.spark.topics import union_all, with_place
from bus.tables.point_in_time import Bound, bound_of, check_bound
from bus.tables.topics import TopicTables

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from bus.model import TopicPartition


def read_stream_topic(
    spark: SparkSession,
    root: str,
    topic: str,
    *,
    starting_version: Bound | Literal["latest"] | None = None,
    max_files_per_trigger: int | None = None,
    max_bytes_per_trigger: str | None = None,
) -> DataFrame:
    """The records of a topic as a stream, with the columns of `read_topic`; one Delta stream a partition.

    It begins with all that is there; with `starting_version` with what that version and later ones added, a number for
    every partition or a mapping as in `read_topic`, where what is not named begins with all; "latest": with what comes.
    The limits are Delta's, for each partition. Within a batch rows are in no order, and old files may come in any: who
    needs it sorts by partition and offset. Partitions that come later are in the stream of the next call.

    Raises `BusError` UNKNOWN_TOPIC_OR_PARTITION, `RootNotUsable`, or `StorageFault` for a version that is not there.
    """
    if not isinstance(starting_version, str):
        check_bound(starting_version, "a version")
    elif starting_version != "latest":
        raise ValueError(f"expected a version or 'latest', found {starting_version!r}")
    limits = {"maxFilesPerTrigger": max_files_per_trigger, "maxBytesPerTrigger": max_bytes_per_trigger}
    options = {name: str(limit) for name, limit in limits.items() if limit is not None}
    tables = TopicTables(root)
    return union_all(
        _stream_partition(spark, tables, partition, _version(starting_version, partition), options)
        for partition in tables.partitions(topic)
    )


def _version(starting: Bound | str | None, partition: TopicPartition) -> str | None:
    if isinstance(starting, str):
        return starting
    version = bound_of(starting, partition)
    return None if version is None else str(version)


def _stream_partition(
    spark: SparkSession, tables: TopicTables, partition: TopicPartition, version: str | None, options: dict[str, str]
) -> DataFrame:
    snapshot = tables.snapshot(partition)
    reader = spark.readStream.format("delta").options(**options).option("ignoreDeletes", "true")
    if version is not None:
        if version.isdecimal() and int(version) <= snapshot.version:
            tables.snapshot(partition, int(version))  # one that is gone is refused here, in the bus's own words
        reader = reader.option("startingVersion", version)
    return with_place(reader.load(f"file:{tables.path(partition)}"), snapshot)
