"""Tables that the commit path of the bus wrote, judged by Spark's own Delta: batch, skipping, history, stream."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sql

import bus.sql
from bus.cluster_metadata.cluster_records import BrokerRegistered, TopicCreated, encode_record
from bus.model import LogBatch, TimestampType, TopicPartition
from bus.ports import Committed
from bus.records.arrow_batches import check_records
from bus.spark import read_topic
from bus.storage_delta.root import open_storage
from bus.storage_delta.table import DeltaPartitionTable
from tests.support.stores import led

NOW_MS = 1_700_000_000_000
PARTITION = TopicPartition("orders", 0)


@pytest.fixture
def make_table(tmp_path: Path) -> Callable[[], DeltaPartitionTable]:
    """A root with the topic `orders` of one partition, as a broker leaves it."""

    def make() -> DeltaPartitionTable:
        storage = open_storage(str(tmp_path))
        metadata = led(storage.open_metadata())
        topic_id = str(uuid.uuid4())
        table = led(storage.create_partition(PARTITION, topic_id=topic_id))
        records = [BrokerRegistered(0, "127.0.0.1", 9094), TopicCreated("orders", topic_id, 1, leader_id=0)]
        rows = [encode_record(record) for record in records]
        assert isinstance(metadata.append(rows, leader_epoch=0, now_ms=NOW_MS), Committed)
        return table

    return make


def append(table: DeltaPartitionTable, count: int) -> Committed:
    base = table.state.high_watermark
    values = pa.array([f'{{"n": {n}}}'.encode() for n in range(base, base + count)], pa.binary())
    keys = pa.array([b"even" if n % 2 == 0 else b"odd" for n in range(base, base + count)], pa.binary())
    records = check_records(
        pa.RecordBatch.from_arrays([keys, values], names=["key", "value"]), default_timestamp_ms=NOW_MS + base
    )
    batch = LogBatch(
        base_offset=base,
        next_offset=base + count,
        record_count=count,
        size_bytes=records.size_bytes,
        leader_epoch=0,
        timestamp_type=TimestampType.CREATE_TIME,
        timestamp_ms=NOW_MS + base,
        timestamp_max_ms=NOW_MS + base,
        columns=records.columns,
    )
    outcome = table.append([batch], leader_epoch=0, now_ms=NOW_MS + base)
    assert isinstance(outcome, Committed)
    return outcome


def load(spark: SparkSession, tmp_path: Path) -> DataFrame:
    return spark.read.format("delta").load(str(tmp_path / "topics" / "orders" / "0"))


def test_the_count_at_every_version_is_the_high_watermark_of_that_version(
    spark: SparkSession, tmp_path: Path, make_table: Callable[[], DeltaPartitionTable]
) -> None:
    table = make_table()
    outcomes = [append(table, count) for count in (1, 7, 100)]
    table.cleanup.write_checkpoint()
    outcomes.append(append(table, 3))
    assert [outcome.version for outcome in outcomes] == [1, 2, 3, 4]
    with_spark = [
        read_topic(spark, str(tmp_path), "orders", at_version={PARTITION: outcome.version}).count()
        for outcome in outcomes
    ]
    assert with_spark == [outcome.high_watermark for outcome in outcomes]
    for outcome in outcomes:
        with bus.sql.connect(str(tmp_path), at_version={PARTITION: outcome.version}) as connection:
            assert connection.sql("SELECT count(*) FROM orders").fetchall() == [(outcome.high_watermark,)]


def test_a_batch_read_has_every_record_once_in_its_place(
    spark: SparkSession, tmp_path: Path, make_table: Callable[[], DeltaPartitionTable]
) -> None:
    table = make_table()
    for count in (1, 50, 9):
        append(table, count)
    found = load(spark, tmp_path).orderBy("offset").select("offset", "value", "key").collect()
    assert [row.offset for row in found] == list(range(60))
    assert [bytes(row.value) for row in found] == [f'{{"n": {n}}}'.encode() for n in range(60)]
    assert bytes(found[3].key) == b"odd"


def test_files_are_skipped_by_offset_and_by_timestamp(
    spark: SparkSession, tmp_path: Path, make_table: Callable[[], DeltaPartitionTable]
) -> None:
    table = make_table()
    for _ in range(5):
        append(table, 10)
    frame = load(spark, tmp_path)
    assert len(frame.inputFiles()) == 5
    for condition in ("offset BETWEEN 20 AND 25", "timestamp = timestamp_millis(1700000000020)"):
        part = frame.where(condition)
        assert part.select(sql.input_file_name()).distinct().count() == 1
        assert _files_read(part) == 1, condition


def _files_read(frame: DataFrame) -> int:
    """The number that the scan itself reports, after skipping."""
    frame.collect()
    plan = frame._jdf.queryExecution().executedPlan()
    metrics = plan.collectLeaves().head().metrics()
    return int(metrics.apply("numFiles").value())


def test_a_native_stream_sees_each_commit_once(
    spark: SparkSession, tmp_path: Path, make_table: Callable[[], DeltaPartitionTable]
) -> None:
    table = make_table()
    append(table, 10)
    stream = spark.readStream.format("delta").load(str(tmp_path / "topics" / "orders" / "0"))
    writer = (
        stream.writeStream.format("memory").queryName("seen").option("checkpointLocation", str(tmp_path / "stream"))
    )
    query = writer.start()
    try:
        for _ in range(3):
            append(table, 5)
            query.processAllAvailable()
        table.cleanup.write_checkpoint()
        append(table, 1)
        query.processAllAvailable()
    finally:
        query.stop()
    assert [row.offset for row in spark.table("seen").orderBy("offset").collect()] == list(range(26))


def test_both_engines_answer_the_same_question_alike(
    spark: SparkSession, tmp_path: Path, make_table: Callable[[], DeltaPartitionTable]
) -> None:
    table = make_table()
    append(table, 30)
    append(table, 31)
    read_topic(spark, str(tmp_path), "orders").createOrReplaceTempView("orders")
    with_spark = spark.sql(
        "SELECT CAST(key AS STRING), count(*), sum(CAST(get_json_object(CAST(value AS STRING), '$.n') AS BIGINT)), "
        "max(timestamp) FROM orders GROUP BY 1 ORDER BY 1"
    ).toArrow()
    with bus.sql.connect(str(tmp_path)) as connection:
        embedded = connection.sql(
            "SELECT key, count(*), sum((value->>'n')::BIGINT)::BIGINT, max(timestamp) FROM orders GROUP BY 1 ORDER BY 1"
        ).arrow()
    assert [list(row.values()) for row in with_spark.to_pylist()] == [
        list(row.values()) for row in embedded.to_pylist()
    ]
