"""Compacted tables, judged by Spark's own Delta: the last value of each key, streams that notice nothing, OPTIMIZE."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession

from bus.model import CONSUMER_OFFSETS_TOPIC, LogBatch, TimestampType, TopicPartition
from bus.ports import Committed, KeyedRow
from bus.storage_delta.root import open_storage
from bus.storage_delta.table import DeltaPartitionTable
from bus.storage_delta.verify.verification import verify_partition
from tests.support.stores import led

NAME = TopicPartition(CONSUMER_OFFSETS_TOPIC, 0)
KEYS = 4


class Writer:
    """A partition of committed offsets, and what the last one of each key is."""

    def __init__(self, root: Path) -> None:
        self.storage = open_storage(str(root))
        self.table: DeltaPartitionTable = led(self.storage.create_partition(NAME, topic_id="id"))
        self.folder = str(root / "topics" / NAME.topic / "0")
        self.last: dict[str, int | None] = {}

    def append(self, count: int) -> None:
        base = self.table.state.high_watermark
        rows = []
        for offset in range(base, base + count):
            key = f"k{offset % KEYS}"
            self.last[key] = None if offset % 7 == 6 else offset * 10
            value = self.last[key]
            rows.append(KeyedRow(key.encode(), None if value is None else {"committed_offset": value, "group_id": "g"}))
        now_ms = time.time_ns() // 1_000_000
        encoded = self.storage.keyed_rows(NAME.topic).encode(rows, now_ms=now_ms)
        batch = LogBatch(
            base_offset=base,
            next_offset=base + count,
            record_count=count,
            size_bytes=encoded.size_bytes,
            leader_epoch=0,
            timestamp_type=TimestampType.CREATE_TIME,
            timestamp_ms=now_ms,
            timestamp_max_ms=now_ms,
            columns=encoded.columns,
        )
        assert isinstance(self.table.append([batch], leader_epoch=0, now_ms=now_ms), Committed)

    def compact(self) -> None:
        now_ms = time.time_ns() // 1_000_000
        prepared = self.table.rewrites.prepare_key_compaction(now_ms=now_ms, tombstone_retention_ms=86_400_000)
        assert prepared is not None
        assert isinstance(self.table.rewrites.swap(prepared, leader_epoch=0, now_ms=now_ms), Committed)

    def clean(self) -> None:
        self.table.cleanup.write_checkpoint()
        self.table.cleanup.drop_old_versions(committed_before_ms=0, count_max=1, removed_before_ms=2**62)

    def reopen(self) -> None:
        self.table = led(self.storage.open_partition(NAME, topic_id="id"))

    def breaches(self) -> list[str]:
        return [str(breach) for breach in verify_partition(self.storage._store, NAME, topic_id="id").breaches]


@pytest.fixture
def make_writer(tmp_path: Path) -> Callable[[], Writer]:
    return lambda: Writer(tmp_path)


def last_values(frame: DataFrame) -> dict[str, int | None]:
    rows = frame.orderBy("offset").selectExpr("CAST(key AS STRING) AS key", "value.committed_offset AS value").collect()
    return {row.key: row.value for row in rows}


def test_spark_finds_the_last_value_of_each_key_before_and_after_the_old_files_are_gone(
    spark: SparkSession, make_writer: Callable[[], Writer]
) -> None:
    writer = make_writer()
    for count in (5, 9, 3):
        writer.append(count)
    whole = writer.table.state.version
    writer.compact()
    writer.append(2)
    frame = spark.read.format("delta").load(writer.folder)
    assert frame.count() == KEYS + 2
    assert last_values(frame) == writer.last
    at_version = spark.read.format("delta").option("versionAsOf", whole).load(writer.folder)
    assert [row.offset for row in at_version.orderBy("offset").collect()] == list(range(17))
    assert last_values(frame.where("offset >= 13")) == writer.last
    writer.clean()
    assert last_values(spark.read.format("delta").load(writer.folder)) == writer.last
    assert writer.breaches() == []


def test_a_native_stream_sees_each_record_once_while_the_table_is_compacted_and_cleaned(
    spark: SparkSession, tmp_path: Path, make_writer: Callable[[], Writer]
) -> None:
    writer = make_writer()
    writer.append(10)
    stream = spark.readStream.format("delta").load(writer.folder).select("offset")
    query = (
        stream.writeStream.format("memory")
        .queryName("compacted")
        .option("checkpointLocation", str(tmp_path / "stream"))
        .start()
    )
    try:
        for _ in range(2):
            query.processAllAvailable()
            writer.append(5)
            query.processAllAvailable()
            writer.compact()
            query.processAllAvailable()
            writer.append(3)
        query.processAllAvailable()
        writer.clean()
        writer.append(4)
        query.processAllAvailable()
    finally:
        query.stop()
    assert sorted(row.offset for row in spark.table("compacted").collect()) == list(range(30))


def test_what_optimize_makes_of_a_compacted_table_is_adopted_with_its_holes(
    spark: SparkSession, make_writer: Callable[[], Writer]
) -> None:
    writer = make_writer()
    writer.append(9)
    writer.append(9)
    writer.compact()
    writer.append(3)
    spark.sql(f"OPTIMIZE delta.`{writer.folder}`")
    writer.reopen()
    state = writer.table.state
    assert (state.high_watermark, state.file_count) == (21, 1)
    assert last_values(spark.read.format("delta").load(writer.folder)) == writer.last
    assert writer.breaches() == []
    writer.append(9)
    writer.compact()
    writer.reopen()
    assert last_values(spark.read.format("delta").load(writer.folder)) == writer.last
    assert writer.breaches() == []
