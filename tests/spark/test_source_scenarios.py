"""The scenarios of the tests of Spark's own Kafka source, as far as it has a meaning here and no neighbour does it."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sql

from bus import Admin, Producer
from bus.broker import Broker
from bus.model import TopicPartition
from bus.settings.broker import BrokerConfig
from tests.support.broker_thread import running_broker
from tests.support.spark_source import Stream, append, create, place, read_bus

OFFSETS = "partition int, offset bigint"
CONFIG = BrokerConfig(offsets_topic_num_partitions=1, group_initial_rebalance_delay_ms=0)


# ---------------------------------------------------------------- a query begins


def test_a_first_batch_that_runs_again_begins_where_it_began_whatever_its_group_has_done_since(
    spark: SparkSession, broker: Broker, admin: Admin, tmp_path: Path
) -> None:
    create(admin, "first-batch", 6)
    partition = TopicPartition("first-batch", 0)
    admin.alter_group_offsets("elsewhere", {partition: 2})
    stream = Stream(spark, broker.port, tmp_path, OFFSETS, subscribe="first-batch", bus_startingGroup="elsewhere")

    def fail() -> None:
        raise RuntimeError("the first batch is not done")

    stream.before_batch = fail
    with pytest.raises(PySparkException, match="the first batch is not done"):
        stream.run()
    admin.alter_group_offsets("elsewhere", {partition: 5})
    stream.before_batch = lambda: None
    stream.run()
    assert stream.offsets == {0: [2, 3, 4, 5]}


def test_a_query_that_begins_at_the_end_has_what_came_while_it_was_down_before_its_first_record(
    spark: SparkSession, broker: Broker, admin: Admin, tmp_path: Path
) -> None:
    create(admin, "quiet", 5)
    stream = Stream(spark, broker.port, tmp_path, OFFSETS, subscribe="quiet", maxOffsetsPerTrigger=2**63 - 1)
    stream.run()
    append(admin, "quiet", 0, 5, 8)
    stream.run()
    assert stream.offsets == {0: [5, 6, 7]}


def test_available_now_runs_an_unfinished_batch_again_although_partitions_were_added(
    spark: SparkSession, broker: Broker, admin: Admin, tmp_path: Path
) -> None:
    create(admin, "retried", 7)
    stream = Stream(spark, broker.port, tmp_path, OFFSETS, subscribe="retried", startingOffsets="earliest")
    stream.after_batch = fail_at_a_record
    with pytest.raises(PySparkException, match="record 6 is not to be had"):
        stream.run()
    unfinished = stream.batches.pop()
    admin.create_partitions({"retried": 2})
    append(admin, "retried", 1, 0, 3)
    stream.after_batch = lambda: None
    assert stream.run()[0] == unfinished
    assert stream.offsets == {0: list(range(7)), 1: [0, 1, 2]}


def fail_at_a_record() -> None:
    raise ValueError("record 6 is not to be had")


# ---------------------------------------------------------------- rows


def test_a_frame_looks_once_and_the_next_one_sees_what_has_come(
    spark: SparkSession, broker: Broker, admin: Admin
) -> None:
    create(admin, "looked-at", 4)
    frame = read_bus(spark, broker.port, OFFSETS, subscribe="looked-at")
    assert frame.union(frame).count() == 8
    append(admin, "looked-at", 0, 4, 6)
    assert frame.count() == 4
    assert read_bus(spark, broker.port, OFFSETS, subscribe="looked-at").count() == 6


def test_rows_of_a_stream_have_nulls_headers_and_times_as_they_were_sent(
    spark: SparkSession, broker: Broker, admin: Admin, tmp_path: Path
) -> None:
    create(admin, "typed", 0)
    before_s = time.time()
    with Producer(f"127.0.0.1:{broker.port}") as producer:
        for key, value in ((None, None), (b"k", None), (None, b"v")):
            producer.send("typed", value, key=key)
        producer.send("typed", b"h", headers=[("a", b"b"), ("a", None)])
    stream = Stream(spark, broker.port, tmp_path, subscribe="typed", startingOffsets="earliest", includeHeaders="true")
    stream.run()
    assert [(row.key, row.value) for row in stream.rows] == [(None, None), (b"k", None), (None, b"v"), (None, b"h")]
    assert [row.headers for row in stream.rows[:3]] == [None, None, None]
    assert [tuple(header) for header in stream.rows[3].headers] == [("a", b"b"), ("a", None)]
    assert {(row.topic, row.partition, row.timestampType) for row in stream.rows} == {("typed", 0, 0)}
    assert all(before_s - 1 <= row.timestamp.timestamp() <= time.time() for row in stream.rows)


# ---------------------------------------------------------------- batches


def test_a_batch_is_what_was_planned_in_as_many_tasks_as_asked_for_though_more_has_come(
    spark: SparkSession, broker: Broker, admin: Admin, tmp_path: Path
) -> None:
    create(admin, "growing", 10, 10, 1)
    task_counts = []
    batches: list[int] = []

    def keep(frame: DataFrame, _batch: int) -> None:
        if not batches:
            append(admin, "growing", 0, 10, 15)
        task_counts.append(frame.rdd.getNumPartitions())
        batches.append(frame.count())

    rows = spark.readStream.format("bus").options(**place(broker.port), subscribe="growing", minPartitions="6")
    writer = rows.option("startingOffsets", "earliest").load().writeStream.foreachBatch(keep)
    query = writer.option("checkpointLocation", str(tmp_path)).trigger(processingTime="50 milliseconds").start()
    try:
        query.processAllAvailable()
    finally:
        query.stop()
    assert batches == [21, 5]
    assert task_counts == [6, 5]


def test_two_topics_in_one_query_have_limits_of_their_own_and_one_may_be_quiet(
    spark: SparkSession, broker: Broker, admin: Admin, tmp_path: Path
) -> None:
    create(admin, "short", 10)
    create(admin, "long", 30)
    batches: list[dict[str, int]] = []

    def keep(frame: DataFrame, _batch: int) -> None:
        batches.append({row.topic: row["count"] for row in frame.groupBy("topic").count().collect()})

    def rows(topic: str) -> DataFrame:
        options = {"subscribe": topic, "startingOffsets": "earliest", "maxOffsetsPerTrigger": "10"}
        return spark.readStream.format("bus").options(**place(broker.port), **options).load()

    def run() -> list[dict[str, Any]]:
        writer = rows("short").union(rows("long")).writeStream.foreachBatch(keep)
        query = writer.option("checkpointLocation", str(tmp_path)).trigger(availableNow=True).start()
        assert query.awaitTermination(250)
        return [source for found in query.recentProgress for source in found["sources"]]

    sources = [source for source in run() if "long" in json.loads(source["endOffset"])]
    assert batches == [{"short": 10, "long": 10}, {"long": 10}, {"long": 10}]
    seen = [[json.loads(source[name])["long"]["0"] for name in ("endOffset", "latestOffset")] for source in sources]
    assert seen[:3] == [[10, 30], [20, 30], [30, 30]]
    append(admin, "short", 0, 10, 12)
    run()
    assert batches[3:] == [{"short": 2}]


def test_a_stream_joined_with_itself_has_one_offset_and_all_pairs(
    spark: SparkSession, broker: Broker, admin: Admin, tmp_path: Path
) -> None:
    create(admin, "paired", 0, 0)
    options = {"subscribe": "paired", "startingOffsets": "earliest"}
    numbers = spark.readStream.format("bus").options(**place(broker.port), **options).load()
    numbers = numbers.select(sql.col("value").cast("string").cast("int").alias("n")).withColumn(
        "key", sql.expr("n % 5")
    )
    pairs: list[tuple[int, int]] = []

    def keep(frame: DataFrame, _batch: int) -> None:
        pairs.extend((row["a"], row["b"]) for row in frame.collect())

    for partition, begin in ((0, 1), (1, 2), (0, 6)):
        append(admin, "paired", partition, begin, begin + 1)
    joined = numbers.withColumnRenamed("n", "a").join(numbers.withColumnRenamed("n", "b"), "key")
    writer = joined.writeStream.foreachBatch(keep).option("checkpointLocation", str(tmp_path))
    query = writer.trigger(availableNow=True).start()
    assert query.awaitTermination(250)
    assert sorted(pairs) == [(1, 1), (1, 6), (2, 2), (6, 1), (6, 6)]
    assert [len(found["sources"]) for found in query.recentProgress if found["numInputRows"]] == [1]


# ---------------------------------------------------------------- changes below a query


def test_a_topic_that_goes_under_a_running_task_stops_no_query_that_may_lose_it(
    spark: SparkSession, broker: Broker, admin: Admin, tmp_path: Path
) -> None:
    create(admin, "fleeting-1", 10)
    options = {"subscribePattern": "fleeting-.*", "startingOffsets": "earliest", "failOnDataLoss": "false"}
    stream = Stream(spark, broker.port, tmp_path, **options)

    def replace_topic() -> None:
        stream.before_batch = lambda: None
        admin.delete_topics(["fleeting-1"])
        create(admin, "fleeting-1", 2)
        create(admin, "fleeting-2", 4)

    stream.before_batch = replace_topic
    with stream.running() as query:
        query.processAllAvailable()
        assert query.exception() is None
    found = [(row.topic, row.offset) for batch in stream.batches[1:] for row in batch]
    assert sorted(found) == [*(("fleeting-1", n) for n in range(2)), *(("fleeting-2", n) for n in range(4))]


@pytest.mark.parametrize("is_fetched", [False, True], ids=["from files", "fetched"])
def test_batches_that_compaction_has_emptied_are_passed_and_what_is_left_is_read_once(
    spark: SparkSession, tmp_path: Path, is_fetched: bool
) -> None:
    root = tmp_path / "root"
    with running_broker(root, config=CONFIG) as broker, Admin(f"127.0.0.1:{broker.port}") as admin:
        create(admin, "emptied", 0, **{"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.0"})
        for key, count in ((b"a", 1), (b"b", 8), (b"c", 2), (b"b", 3)):
            with Producer(f"127.0.0.1:{broker.port}") as producer:
                for _ in range(count):
                    producer.send("emptied", b"v", key=key)
        list(admin.maintain_log("emptied", "compact"))
    with running_broker(root, config=CONFIG) as broker:  # which remembers nothing of what it compacted
        marker = root / "bus-root.json"
        if is_fetched:
            marker.rename(marker.with_suffix(".away"))
        options = {"subscribe": "emptied", "startingOffsets": "earliest", "maxOffsetsPerTrigger": 3}
        stream = Stream(spark, broker.port, tmp_path / "checkpoint", OFFSETS, **options)
        try:
            stream.run()
        finally:
            if is_fetched:
                marker.with_suffix(".away").rename(marker)
    offsets = [[row.offset for row in batch] for batch in stream.batches]
    assert offsets == [[0], [], [8], [10, 11], [12, 13]]  # all of the newest file stays
