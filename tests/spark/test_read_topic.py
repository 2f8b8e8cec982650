"""read_topic on tables that were written by hand, and the same questions to both engines."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from chispa import assert_df_equality
from pyspark.sql import SparkSession
from pyspark.sql import functions as sql

import bus.sql
from bus.errors import BusError, ErrorCode, RootNotUsable, StorageFault
from bus.model import TopicPartition
from bus.spark import read_topic
from tests.support.hand_written_root import HandWrittenRoot


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> HandWrittenRoot:
    root = HandWrittenRoot(tmp_path_factory.mktemp("bus") / "bus data = é [1]")
    root.create_topic("flights", partitions=3)
    carriers = ["UA", "AA", "DL", "B6"]
    for commit in range(4):
        for partition in range(2):
            root.append(
                "flights",
                partition,
                *(
                    (carrier.encode(), json.dumps({"carrier": carrier, "dep_delay": n * (commit - 1)}).encode())
                    for n, carrier in enumerate(carriers)
                ),
            )
    return root


def test_a_topic_is_one_frame_over_its_partitions(spark: SparkSession, root: HandWrittenRoot) -> None:
    frame = read_topic(spark, str(root.folder), "flights")
    found = frame.groupBy("topic", "partition").agg(
        sql.count("*").alias("records"), sql.min("offset").alias("first"), sql.max("offset").alias("last")
    )
    expected = spark.createDataFrame(
        [("flights", 0, 16, 0, 15), ("flights", 1, 16, 0, 15)],
        "topic string, partition int, records long, first long, last long",
    )
    assert_df_equality(found, expected, ignore_row_order=True, ignore_nullable=True)


def test_the_columns_are_topic_partition_and_the_log(spark: SparkSession, root: HandWrittenRoot) -> None:
    types = dict(read_topic(spark, str(root.folder), "flights").dtypes)
    assert list(types)[:5] == ["topic", "partition", "offset", "timestamp", "timestamp_type"]
    assert (types["key"], types["value"], types["timestamp"]) == ("binary", "binary", "timestamp")
    assert types["headers"] == "array<struct<key:string,value:binary>>"


def test_a_version_and_an_offset_are_points_in_time(spark: SparkSession, root: HandWrittenRoot) -> None:
    first = TopicPartition("flights", 0)
    folder = str(root.folder)
    assert read_topic(spark, folder, "flights", at_version=0).count() == 0
    assert read_topic(spark, folder, "flights", at_version={first: 1, "flights": 0}).count() == 4
    assert read_topic(spark, folder, "flights", at_offset={first: 3, "flights": 5}).count() == 8


def test_both_engines_give_the_same_answer(spark: SparkSession, root: HandWrittenRoot) -> None:
    read_topic(spark, str(root.folder), "flights").createOrReplaceTempView("flights")
    with_spark = spark.sql(
        "SELECT get_json_object(CAST(value AS STRING), '$.carrier') AS carrier, count(*) AS flights, "
        "avg(get_json_object(CAST(value AS STRING), '$.dep_delay')) AS delay FROM flights GROUP BY 1 ORDER BY 1"
    )
    with bus.sql.connect(str(root.folder)) as connection:
        embedded = connection.sql(
            "SELECT value->>'carrier' AS carrier, count(*) AS flights, avg((value->>'dep_delay')::DOUBLE) AS delay "
            "FROM flights GROUP BY 1 ORDER BY 1"
        )
        assert [tuple(row) for row in with_spark.collect()] == embedded.fetchall()


def test_what_was_deleted_inside_a_file_is_not_shown_by_either_engine(spark: SparkSession, tmp_path: Path) -> None:
    root = HandWrittenRoot(tmp_path / "root")
    root.create_topic("orders")
    root.append("orders", 0, (b"a", b"1"), (b"b", b"2"), (b"c", b"3"))
    root.delete_records("orders", 0, 2)
    rows = read_topic(spark, str(root.folder), "orders").select("offset", "key").collect()
    assert [tuple(row) for row in rows] == [(2, b"c")]
    with bus.sql.connect(str(root.folder)) as connection:
        assert connection.sql("SELECT offset, key_bytes FROM orders").fetchall() == [(2, b"c")]
    assert read_topic(spark, str(root.folder), "orders", at_version=1).count() == 3


def test_an_unknown_topic_lists_those_that_are_there(spark: SparkSession, root: HandWrittenRoot) -> None:
    with pytest.raises(BusError, match="found 'flight'; topics there: flights") as caught:
        read_topic(spark, str(root.folder), "flight")
    assert caught.value.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_a_path_that_is_no_root_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(RootNotUsable, match=r"expected a bus root.*found a folder without it"):
        read_topic(spark, str(tmp_path), "flights")


def test_a_version_that_is_not_there_names_those_that_are(spark: SparkSession, root: HandWrittenRoot) -> None:
    with pytest.raises(StorageFault, match=r"flights-0: .*0 to 4, found 99"):
        read_topic(spark, str(root.folder), "flights", at_version=99)
