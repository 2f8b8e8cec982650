"""Topics as streams of Spark's own Delta source, below all that maintenance does to their tables."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from bus.cluster_metadata.cluster_records import BrokerRegistered, TopicCreated, encode_record
from bus.errors import StorageFault
from bus.model import TopicPartition
from bus.spark import read_stream_topic
from bus.storage_delta.root import open_storage
from bus.storage_delta.table import DeltaPartitionTable
from tests.support.stores import NOW_MS, led, log_batch

TOPIC_ID = "7c9e6679-7425-40de-944b-e07fc1f90ae7"


class Log:
    """Two partitions of a topic, written through the storage as a broker does."""

    def __init__(self, folder: Path) -> None:
        self.folder = str(folder)
        storage = open_storage(self.folder)
        records = [BrokerRegistered(0, "127.0.0.1", 9094), TopicCreated("orders", TOPIC_ID, 2, 0)]
        led(storage.open_metadata()).append(
            [encode_record(record) for record in records], leader_epoch=0, now_ms=NOW_MS
        )
        self.tables: list[DeltaPartitionTable] = [
            led(storage.create_partition(TopicPartition("orders", number), topic_id=TOPIC_ID)) for number in range(2)
        ]

    def append(self, partition: int, count: int) -> None:
        table = self.tables[partition]
        batch = log_batch(table.state.high_watermark, [b"v"] * count)
        table.append([batch], leader_epoch=0, now_ms=NOW_MS)

    def clean(self, partition: int) -> None:
        self.tables[partition].cleanup.write_checkpoint()
        self.tables[partition].cleanup.drop_old_versions(committed_before_ms=0, count_max=1, removed_before_ms=2**62)

    def delete_records(self, partition: int, offset: int) -> None:
        self.tables[partition].cleanup.advance_log_start(offset, leader_epoch=0, now_ms=NOW_MS)


@pytest.fixture
def log(tmp_path: Path) -> Log:
    return Log(tmp_path / "root")


def offsets_of(stream: DataFrame, name: str, checkpoint: Path) -> list[tuple[int, int]]:
    """The offsets that a query adds which ends when it has all."""
    spark = stream.sparkSession
    query = (
        stream.select("partition", "offset")
        .writeStream.format("delta")
        .option("checkpointLocation", str(checkpoint / "checkpoint"))
        .trigger(availableNow=True)
        .start(str(checkpoint / name))
    )
    query.awaitTermination()
    rows: list[Any] = spark.read.format("delta").load(str(checkpoint / name)).orderBy("partition", "offset").collect()
    return [(row.partition, row.offset) for row in rows]


def test_a_stream_sees_each_record_once_while_records_are_deleted(
    spark: SparkSession, tmp_path: Path, log: Log
) -> None:
    log.append(0, 3)
    log.append(0, 2)
    log.append(1, 2)
    log.delete_records(1, 1)
    stream = read_stream_topic(spark, log.folder, "orders")
    first = [*((0, n) for n in range(5)), (1, 1)]
    assert offsets_of(stream, "found", tmp_path) == first
    log.delete_records(0, 4)
    log.append(0, 1)
    log.append(1, 1)
    assert offsets_of(stream, "found", tmp_path) == [*first[:5], (0, 5), (1, 1), (1, 2)]


def test_a_starting_version_is_where_the_stream_begins(spark: SparkSession, tmp_path: Path, log: Log) -> None:
    log.append(0, 3)
    log.append(0, 2)
    log.append(1, 2)
    starting = {TopicPartition("orders", 0): 2}
    stream = read_stream_topic(spark, log.folder, "orders", starting_version=starting, max_files_per_trigger=1)
    assert offsets_of(stream, "found", tmp_path) == [(0, 3), (0, 4), (1, 0), (1, 1)]


def test_a_starting_version_that_is_gone_or_no_version_is_refused(spark: SparkSession, log: Log) -> None:
    log.append(0, 3)
    log.clean(0)
    with pytest.raises(StorageFault, match=r"orders-0: .*that are there, 1 to 1, found 0"):
        read_stream_topic(spark, log.folder, "orders", starting_version=0)
    with pytest.raises(ValueError, match="expected a version or 'latest', found 'earliest'"):
        read_stream_topic(spark, log.folder, "orders", starting_version="earliest")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="expected a version to be 0 or more, found -1"):
        read_stream_topic(spark, log.folder, "orders", starting_version=-1)
