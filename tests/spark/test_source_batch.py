"""Batch queries of `format("bus")`, by the storage alone and by a broker."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sql

from bus import Admin, NewTopic, Producer
from bus.broker import Broker
from bus.model import TopicPartition
from bus.settings.broker import BrokerConfig
from tests.support.broker_thread import running_broker
from tests.support.hand_written_root import FIRST_TIMESTAMP_MS, HandWrittenRoot
from tests.support.spark_source import produce, read_bus, values_of

KAFKA_SCHEMA = (
    "struct<key:binary,value:binary,topic:string,partition:int,offset:bigint,timestamp:timestamp,timestampType:int>"
)
ROWS = 40  # of each partition of orders


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """orders: two partitions, value n at offset n, a millisecond apart, ten to a file. headers: a record with some."""
    root = HandWrittenRoot(tmp_path_factory.mktemp("bus") / "bus data = é [1]")
    root.create_topic("orders", partitions=2)
    for first in range(0, ROWS, 10):
        for partition in range(2):
            root.append("orders", partition, *((b"k%d" % (n % 3), b"%d" % n) for n in range(first, first + 10)))
    root.create_topic("orders-eu")
    root.append("orders-eu", 0, (None, b"eu"))
    root.create_topic("headers")
    root.append("headers", 0, (b"k", None), headers=[[{"key": "h", "value": b"1"}, {"key": "h", "value": None}]])
    root.create_topic("empty")
    return root.folder


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    config = BrokerConfig(offsets_topic_num_partitions=1, group_initial_rebalance_delay_ms=0)
    with running_broker(tmp_path_factory.mktemp("broker") / "root", config=config) as broker:
        with Admin(f"127.0.0.1:{broker.port}") as admin:
            admin.create_topics([NewTopic("orders", 2), NewTopic("empty", 1), NewTopic("recreated", 1)])
        for partition in range(2):
            produce(broker.port, "orders", (b"%d" % n for n in range(ROWS)), partition)
        yield broker


def storage_of(broker: Broker) -> Path:
    with Admin(f"127.0.0.1:{broker.port}") as admin:
        return Path(admin.describe_cluster().root_url)


def offsets_of(frame: DataFrame) -> dict[int, list[int]]:
    """Offsets by partition, sorted."""
    rows = frame.groupBy("partition").agg(sql.sort_array(sql.collect_list("offset")).alias("offsets")).collect()
    return {row.partition: row.offsets for row in rows}


def spans_of(frame: DataFrame) -> dict[int, tuple[int, int]]:
    """First and last offset by partition, having checked that all between are there once."""
    offsets = offsets_of(frame)
    assert all(found == list(range(found[0], found[-1] + 1)) for found in offsets.values())
    return {partition: (found[0], found[-1]) for partition, found in offsets.items()}


# ---------------------------------------------------------------- rows


def test_rows_are_kafkas(spark: SparkSession, root: Path) -> None:
    frame = read_bus(spark, root, subscribe="orders")
    assert frame.schema.simpleString() == KAFKA_SCHEMA
    row = frame.where("partition = 1 AND offset = 12").first()
    assert row is not None
    assert (row.key, row.value, row.topic, row.partition, row.offset, row.timestampType) == (
        b"k0",
        b"12",
        "orders",
        1,
        12,
        0,
    )
    assert frame.where(f"unix_millis(timestamp) - offset = {FIRST_TIMESTAMP_MS}").count() == 2 * ROWS


def test_headers_come_if_they_are_asked_for(spark: SparkSession, root: Path) -> None:
    frame = read_bus(spark, root, subscribe="headers", includeHeaders="true")
    assert frame.schema["headers"].dataType.simpleString() == "array<struct<key:string,value:binary>>"
    row = frame.first()
    assert row is not None
    assert (row.key, row.value) == (b"k", None)
    assert [(header.key, header.value) for header in row.headers] == [("h", b"1"), ("h", None)]


def test_a_schema_of_some_columns_is_what_is_read(spark: SparkSession, root: Path) -> None:
    frame = read_bus(spark, root, "value binary, partition int", subscribe="orders")
    assert frame.columns == ["value", "partition"]
    assert values_of(frame.where("partition = 0")) == sorted(b"%d" % n for n in range(ROWS))


def test_an_empty_topic_has_no_rows(spark: SparkSession, root: Path, broker: Broker) -> None:
    assert read_bus(spark, root, subscribe="empty").collect() == []
    assert read_bus(spark, broker.port, subscribe="empty").collect() == []


def test_an_internal_topic_has_json_values(spark: SparkSession, broker: Broker) -> None:
    with Admin(f"127.0.0.1:{broker.port}") as admin:
        admin.alter_group_offsets("readers", {TopicPartition("orders", 0): 5})
    values = read_bus(spark, broker.port, "value binary", subscribe="__consumer_offsets").select(
        sql.get_json_object(sql.col("value").cast("string"), "$.group_id").alias("group_id"),
        sql.get_json_object(sql.col("value").cast("string"), "$.committed_offset").alias("committed_offset"),
    )
    assert values.where("group_id = 'readers'").collect() == [("readers", "5")]


# ---------------------------------------------------------------- subscriptions and positions


def test_topics_are_named_assigned_or_matched(spark: SparkSession, root: Path) -> None:
    assert spans_of(read_bus(spark, root, assign='{"orders":[1]}')) == {1: (0, ROWS - 1)}
    assert read_bus(spark, root, subscribe="orders, orders-eu").count() == 2 * ROWS + 1
    assert read_bus(spark, root, subscribePattern="orders-.*").count() == 1
    assert read_bus(spark, root, subscribePattern="nothing").count() == 0


@pytest.mark.parametrize(
    ("options", "spans"),
    [
        ({}, {0: (0, 39), 1: (0, 39)}),
        ({"startingOffsets": "earliest", "endingOffsets": "latest"}, {0: (0, 39), 1: (0, 39)}),
        ({"startingOffsets": '{"orders":{"0":5,"1":-2}}'}, {0: (5, 39), 1: (0, 39)}),
        ({"endingOffsets": '{"orders":{"0":15,"1":-1}}'}, {0: (0, 14), 1: (0, 39)}),
        ({"startingOffsets": '{"orders":{"0":15,"1":40}}', "endingOffsets": '{"orders":{"0":15,"1":40}}'}, {}),
        ({"startingTimestamp": FIRST_TIMESTAMP_MS + 13}, {0: (13, 39), 1: (13, 39)}),
        (
            {"startingOffsetsByTimestamp": json.dumps({"orders": {"0": FIRST_TIMESTAMP_MS + 13, "1": 0}})},
            {0: (13, 39), 1: (0, 39)},
        ),
        ({"endingTimestamp": FIRST_TIMESTAMP_MS + 13}, {0: (0, 12), 1: (0, 12)}),
        ({"endingTimestamp": FIRST_TIMESTAMP_MS + 10_000}, {0: (0, 39), 1: (0, 39)}),
        (
            {"startingTimestamp": FIRST_TIMESTAMP_MS + 10_000, "startingOffsetsByTimestampStrategy": "latest"},
            {},
        ),
        ({"bus_startingVersion": 1, "bus_endingVersion": 3}, {0: (10, 29), 1: (10, 29)}),
        ({"bus_endingVersion": '{"orders":{"0":1,"1":2}}'}, {0: (0, 9), 1: (0, 19)}),
        ({"minPartitions": 7}, {0: (0, 39), 1: (0, 39)}),
        ({"maxRecordsPerPartition": 9}, {0: (0, 39), 1: (0, 39)}),
    ],
)
def test_a_query_begins_and_ends_where_it_says(
    spark: SparkSession, root: Path, options: dict[str, str | int], spans: dict[int, tuple[int, int]]
) -> None:
    assert spans_of(read_bus(spark, root, "partition int, offset bigint", subscribe="orders", **options)) == spans


def test_a_batch_is_split_as_it_was_asked_for(spark: SparkSession, root: Path) -> None:
    assert read_bus(spark, root, subscribe="orders").rdd.getNumPartitions() == 1
    assert read_bus(spark, root, subscribe="orders", minPartitions=7).rdd.getNumPartitions() == 7
    frame = read_bus(spark, root, subscribe="orders", maxRecordsPerPartition=30)
    counts = [row["count"] for row in frame.groupBy(sql.spark_partition_id()).count().collect()]
    assert sum(counts) == 2 * ROWS
    assert max(counts) <= 30


# ---------------------------------------------------------------- filters


@pytest.mark.parametrize(
    ("condition", "expected", "read"),
    [
        ("offset >= 35", {0: (35, 39), 1: (35, 39)}, 10),
        ("offset = 7 AND partition = 1", {1: (7, 7)}, 1),
        (f"timestamp > timestamp_millis({FIRST_TIMESTAMP_MS + 37})", {0: (38, 39), 1: (38, 39)}, 6),
        ("partition IN (0) AND offset BETWEEN 3 AND 5", {0: (3, 5)}, 3),
        ("topic = 'other'", {}, 0),
        ("offset < 5 OR partition = 0", {0: (0, 39), 1: (0, 4)}, 80),
    ],
)
def test_filters_keep_their_rows_and_others_are_not_read(
    spark: SparkSession, root: Path, condition: str, expected: dict[int, tuple[int, int]], read: int
) -> None:
    with pushing(spark):
        frame = read_bus(spark, root, subscribe="orders", bus_pushFilters="true").where(condition)
        assert spans_of(frame) == expected
        assert rows_read(frame) == read


@contextmanager
def pushing(spark: SparkSession) -> Iterator[None]:
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    try:
        yield
    finally:
        spark.conf.unset("spark.sql.python.filterPushdown.enabled")


@pytest.mark.parametrize("is_pushing", [False, True])
def test_a_frame_is_used_twice_with_different_conditions(spark: SparkSession, root: Path, is_pushing: bool) -> None:
    with pushing(spark) if is_pushing else nullcontext():
        frame = read_bus(spark, root, subscribe="orders")
        assert frame.where("offset < 5").count() == 10
        assert frame.count() == 2 * ROWS
        assert frame.where("partition = 0").unionAll(frame.where("partition = 1")).count() == 2 * ROWS
        firsts = frame.where("partition = 0").alias("a").join(frame.where("partition = 1").alias("b"), "offset")
        assert firsts.count() == ROWS


def rows_read(frame: DataFrame) -> int:
    """The rows that came out of the scan, before Spark's own filter."""
    plan = frame._jdf.queryExecution().executedPlan()
    frame._jdf.queryExecution().toRdd().count()
    while plan.children().size():
        plan = plan.children().head()
    return int(plan.metrics().apply("numOutputRows").value())


def test_without_the_setting_nothing_is_pushed_and_all_is_well(spark: SparkSession, root: Path) -> None:
    frame = read_bus(spark, root, subscribe="orders", bus_pushFilters="true").where("offset >= 35")
    assert (spans_of(frame), rows_read(frame)) == ({0: (35, 39), 1: (35, 39)}, 80)


# ---------------------------------------------------------------- by a broker


def test_a_broker_and_its_storage_give_the_same_rows(spark: SparkSession, broker: Broker) -> None:
    by_broker = read_bus(spark, broker.port, subscribe="orders")
    by_storage = read_bus(spark, storage_of(broker), subscribe="orders")
    assert spans_of(by_broker) == {0: (0, 39), 1: (0, 39)}
    assert by_broker.exceptAll(by_storage).count() == by_storage.exceptAll(by_broker).count() == 0


def test_a_query_starts_where_a_group_has_committed(spark: SparkSession, broker: Broker) -> None:
    with Admin(f"127.0.0.1:{broker.port}") as admin:
        admin.alter_group_offsets("sales", {TopicPartition("orders", 0): 33})
    for where in (broker.port, storage_of(broker)):
        frame = read_bus(spark, where, subscribe="orders", bus_startingGroup="sales")
        assert spans_of(frame) == {0: (33, 39), 1: (0, 39)}


def test_records_that_are_gone_fail_the_query_unless_it_goes_on_without_them(
    spark: SparkSession, broker: Broker
) -> None:
    with Admin(f"127.0.0.1:{broker.port}") as admin:
        admin.create_topics([NewTopic("cut", 1)])
        produce(broker.port, "cut", (b"%d" % n for n in range(20)), 0)
        admin.delete_records({TopicPartition("cut", 0): 7})
    options = {"subscribe": "cut", "startingOffsets": '{"cut":{"0":5}}'}
    with pytest.raises(PySparkException, match=r"cut-0: expected records from offset 5 on, they begin at 7"):
        read_bus(spark, broker.port, **options).count()
    assert spans_of(read_bus(spark, broker.port, failOnDataLoss="false", **options)) == {0: (7, 19)}
    assert spans_of(read_bus(spark, broker.port, subscribe="cut")) == {0: (7, 19)}


def test_a_topic_that_was_made_again_is_read_as_it_is_now(spark: SparkSession, broker: Broker) -> None:
    produce(broker.port, "recreated", [b"old"] * 5)
    root = storage_of(broker)
    assert read_bus(spark, root, subscribe="recreated").count() == 5
    with Admin(f"127.0.0.1:{broker.port}") as admin:
        admin.delete_topics(["recreated"])
        admin.create_topics([NewTopic("recreated", 1)])
    produce(broker.port, "recreated", [b"new"])
    assert values_of(read_bus(spark, root, subscribe="recreated")) == [b"new"]
    assert values_of(read_bus(spark, broker.port, subscribe="recreated")) == [b"new"]


def test_a_join_of_a_topic_with_itself_reads_both(spark: SparkSession, root: Path) -> None:
    frame = read_bus(spark, root, subscribe="orders").where("partition = 0").select("offset", "key")
    assert frame.join(frame.withColumnRenamed("key", "other"), "offset").count() == ROWS


# ---------------------------------------------------------------- refusals


def test_a_wrong_option_is_refused_by_load(spark: SparkSession, root: Path) -> None:
    options = {"bus.root": str(root), "subscribe": "orders", "startingOffset": "earliest"}
    for reader in (spark.read, spark.readStream):
        with pytest.raises(PySparkException, match="did you mean startingOffsets"):
            reader.format("bus").options(**options).load()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"subscribe": "order"}, "expected a topic.* found 'order'"),
        ({"assign": '{"orders":[2]}'}, "expected a partition of orders from 0 to 1, found 2"),
        ({"assign": '{"orders":[0]}', "startingOffsets": '{"orders":{"0":41}}'}, "up to its end, 40, found 41 to 40"),
        ({"assign": '{"orders":[0]}', "endingOffsets": '{"orders":{"0":41}}'}, "up to its end, 40, found 0 to 41"),
        (
            {
                "assign": '{"orders":[0]}',
                "startingOffsets": '{"orders":{"0":9}}',
                "endingOffsets": '{"orders":{"0":8}}',
            },
            "the ending offset of orders-0 at or after the starting one, 9, found 8",
        ),
        (
            {"subscribe": "orders", "startingTimestamp": str(FIRST_TIMESTAMP_MS + 99)},
            "startingTimestamp: expected a record",
        ),
        ({"subscribe": "orders", "bus.endingVersion": "99"}, "bus.endingVersion: expected a version .* found 99"),
    ],
)
def test_what_is_not_there_is_refused_when_the_query_is_planned(
    spark: SparkSession, root: Path, options: dict[str, str], message: str
) -> None:
    with pytest.raises(PySparkException, match=message):
        spark.read.format("bus").options(**{"bus.root": str(root), **options}).load().count()


def test_a_place_that_is_no_log_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(PySparkException, match=r"expected a bus root, .*found a folder without it"):
        read_bus(spark, tmp_path, subscribe="orders").count()


def test_a_schema_of_other_columns_is_refused(spark: SparkSession, root: Path) -> None:
    with pytest.raises(PySparkException, match="expected column value to be binary, found string"):
        read_bus(spark, root, "value string", subscribe="orders").count()


# ---------------------------------------------------------------- fetched


def test_where_the_storage_is_out_of_reach_records_are_fetched(spark: SparkSession, tmp_path: Path) -> None:
    with running_broker(tmp_path / "root") as broker:
        with Producer(f"127.0.0.1:{broker.port}") as producer:
            with Admin(f"127.0.0.1:{broker.port}") as admin:
                admin.create_topics([NewTopic("orders", 2)])
            for n in range(5_000):
                producer.send("orders", b"%d" % n, key=b"k", headers=[("h", b"1")], partition=n % 2)
            producer.flush()
        stored = read_bus(spark, broker.port, subscribe="orders", includeHeaders="true").collect()
        marker = tmp_path / "root" / "bus-root.json"
        marker.rename(marker.with_suffix(".away"))  # the broker has it open, nobody else finds it
        try:
            frame = read_bus(spark, broker.port, subscribe="orders", includeHeaders="true", minPartitions=3)
            fetched = frame.collect()
            some = read_bus(spark, broker.port, "partition int, offset bigint", subscribe="orders")
            assert spans_of(some.where("offset BETWEEN 100 AND 110")) == {0: (100, 110), 1: (100, 110)}
        finally:
            marker.with_suffix(".away").rename(marker)
    assert len(fetched) == 5_000
    assert sorted(fetched, key=lambda row: (row.partition, row.offset)) == sorted(
        stored, key=lambda row: (row.partition, row.offset)
    )


def test_a_table_of_the_catalog_is_refused_and_a_view_reads_the_topic(spark: SparkSession, root: Path) -> None:
    options = f"OPTIONS ('bus.root' = '{root}', subscribe = 'orders-eu')"
    with pytest.raises(PySparkException, match="CREATE TEMPORARY VIEW name USING bus"):
        spark.sql(f"CREATE TABLE eu USING bus {options}")
    spark.sql(f"CREATE TEMPORARY VIEW eu USING bus {options}")
    try:
        assert [bytes(row.value) for row in spark.sql("SELECT value FROM eu").collect()] == [b"eu"]
    finally:
        spark.catalog.dropTempView("eu")
