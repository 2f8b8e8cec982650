"""read_topic on tables that were written by hand, and the same questions to both engines."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from chispa import assert_df_equality
from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
from pyspark.sql import SparkSession
from pyspark.sql import functions as sql

import bus.sql
from bus import Admin, NewTopic, Producer
from bus.errors import BusError, ErrorCode, RootNotUsable, StorageFault
from bus.model import TopicPartition
from bus.settings.broker import BrokerConfig
from bus.spark import read_topic
from bus.tables.topics import TopicTables
from bus.tables.transaction_cuts import find_cut
from bus.transactions.state import ProducerIdentity
from tests.support.broker_thread import running_broker
from tests.support.hand_written_root import HandWrittenRoot
from tests.support.hand_written_transactions import HandWrittenTransactions

Conf = Callable[[str, str], None]


@pytest.fixture
def conf(spark: SparkSession) -> Iterator[Conf]:
    """Sets a setting of the session for a test."""
    before: dict[str, str | None] = {}

    def set_for_now(name: str, value: str) -> None:
        before.setdefault(name, spark.conf.get(name, None))
        spark.conf.set(name, value)

    yield set_for_now
    for name, value in before.items():
        if value is None:
            spark.conf.unset(name)
        else:
            spark.conf.set(name, value)


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


@pytest.fixture(scope="module")
def plain_root(root: HandWrittenRoot, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The same, where no character of the path has a meaning for Spark."""
    return shutil.copytree(root.folder, str(tmp_path_factory.mktemp("bus") / "bus=data é"))


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


def test_spark_and_delta_read_the_same_rows_and_columns(spark: SparkSession, plain_root: str, conf: Conf) -> None:
    by_delta = read_topic(spark, plain_root, "flights", live=True, ordered=True)
    for files_of_a_relation in ("1000", "3"):
        conf("spark.sql.sources.parallelPartitionDiscovery.threshold", files_of_a_relation)
        frame = read_topic(spark, plain_root, "flights", ordered=True)
        assert frame.dtypes == by_delta.dtypes
        assert frame.collect() == by_delta.collect()


def test_a_frame_stays_what_it_was_unless_it_is_live(spark: SparkSession, tmp_path: Path) -> None:
    root = HandWrittenRoot(tmp_path / "root")
    root.create_topic("orders", partitions=2)
    root.append("orders", 0, (b"a", b"1"))
    frames = [read_topic(spark, str(root.folder), "orders", live=live) for live in (False, True)]
    assert [frame.count() for frame in frames] == [1, 1]
    root.append("orders", 1, (b"b", b"2"))
    assert [frame.count() for frame in frames] == [1, 2]
    assert read_topic(spark, str(root.folder), "orders").count() == 2


def test_a_file_that_is_gone_fails_the_query_whatever_the_session_passes_over(
    spark: SparkSession, tmp_path: Path, conf: Conf
) -> None:
    root = HandWrittenRoot(tmp_path / "root")
    root.create_topic("orders")
    root.append("orders", 0, (b"a", b"1"))
    root.append("orders", 0, (b"b", b"2"))
    conf("spark.sql.files.ignoreMissingFiles", "true")
    frame = read_topic(spark, str(root.folder), "orders")
    next((root.folder / "topics/orders/0").glob("*1-*.parquet")).unlink()
    with pytest.raises(Py4JJavaError, match="FILE_NOT_EXIST"):
        frame.collect()


def test_a_condition_on_the_partition_leaves_other_files_alone(spark: SparkSession, tmp_path: Path) -> None:
    root = HandWrittenRoot(tmp_path / "root")
    root.create_topic("orders", partitions=2)
    root.append("orders", 0, (b"a", b"1"))
    root.append("orders", 1, (b"b", b"2"), (b"c", b"3"))
    frame = read_topic(spark, str(root.folder), "orders")
    next((root.folder / "topics/orders/1").glob("*.parquet")).unlink()
    assert frame.where("partition = 0").count() == 1
    with pytest.raises(Py4JJavaError, match="FILE_NOT_EXIST"):
        frame.where("partition = 1").collect()


def test_partitions_that_begin_and_end_elsewhere_are_read_as_far_as_they_go(
    spark: SparkSession, tmp_path: Path
) -> None:
    root = HandWrittenRoot(tmp_path / "root")
    root.create_topic("orders", partitions=3)
    for partition in range(3):
        root.append("orders", partition, (b"a", b"1"), (b"b", b"2"), (b"c", b"3"))
    root.delete_records("orders", 1, 2)
    last = TopicPartition("orders", 2)
    frame = read_topic(spark, str(root.folder), "orders", at_offset={last: 1}, ordered=True)
    found = [(row.partition, row.offset) for row in frame.collect()]
    assert found == [(0, 0), (0, 1), (0, 2), (1, 2), (2, 0)]


def test_rows_that_a_deletion_vector_took_are_not_shown(spark: SparkSession, tmp_path: Path, conf: Conf) -> None:
    # Without it Delta lets nobody alter a table whose headers have a key each.
    conf("spark.databricks.delta.constraints.allowUnenforcedNotNull.enabled", "true")
    root = HandWrittenRoot(tmp_path / "root")
    root.create_topic("orders")
    root.append("orders", 0, (b"a", b"1"), (b"b", b"2"), (b"c", b"3"))
    table = f"delta.`{root.folder}/topics/orders/0`"
    spark.sql(f"ALTER TABLE {table} SET TBLPROPERTIES ('delta.enableDeletionVectors' = 'true')")
    spark.sql(f"DELETE FROM {table} WHERE offset = 1")
    assert [row.offset for row in read_topic(spark, str(root.folder), "orders").collect()] == [0, 2]
    assert read_topic(spark, str(root.folder), "orders", at_version=1).count() == 3


@pytest.mark.parametrize("path", ["root", "plain_root"])
def test_a_version_and_an_offset_are_points_in_time(
    spark: SparkSession, path: str, request: pytest.FixtureRequest
) -> None:
    first = TopicPartition("flights", 0)
    found = request.getfixturevalue(path)
    folder = found if isinstance(found, str) else str(found.folder)
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


def test_a_topic_at_a_transaction_is_what_it_left(spark: SparkSession, tmp_path: Path) -> None:
    root = HandWrittenRoot(tmp_path / "bus")
    root.create_topic("orders", partitions=2)
    for value in (b"first", b"second", b"third"):
        for partition in (0, 1):
            root.append("orders", partition, (b"k", value))
    log = HandWrittenTransactions(root)
    log.store("payments", "CompleteCommit", 1, {("orders", 0): (1, 0), ("orders", 1): (2, 1)})
    frame = read_topic(spark, str(root.folder), "orders", at_transaction="payments", ordered=True)
    rows = [(row.partition, bytes(row.value)) for row in frame.select("partition", "value").collect()]
    assert rows == [(0, b"first"), (1, b"first"), (1, b"second")]
    with pytest.raises(BusError, match="TRANSACTIONAL_ID_NOT_FOUND"):
        read_topic(spark, str(root.folder), "orders", at_transaction="nobody")


def test_rows_of_a_transaction_that_a_cut_hides_are_not_seen(spark: SparkSession, tmp_path: Path) -> None:
    root, topic = str(tmp_path / "root"), TopicPartition("orders", 0)
    with running_broker(root, config=BrokerConfig(transaction_state_log_num_partitions=1)) as broker:
        address = f"127.0.0.1:{broker.port}"
        with Admin(address) as admin:
            admin.create_topics([NewTopic("orders", 1)])
        with Producer(address) as plain:
            plain.send("orders", b"plain", partition=0)
        for name in ("a", "b"):
            with Producer(address, transactional_id=name) as producer:
                producer.init_transactions()
                with producer.transaction():
                    producer.send("orders", name.encode(), partition=0)
    cut = find_cut(TopicTables(root), "b")
    rows = read_topic(spark, root, "orders", at_transaction=cut, ordered=True).collect()
    assert [bytes(row.value) for row in rows] == [b"plain", b"a", b"b"]
    who = ProducerIdentity(rows[1].producer_id, rows[1].producer_epoch)
    hidden = replace(cut, hidden={topic: frozenset({who})})
    frame = read_topic(spark, root, "orders", at_transaction=hidden, ordered=True)
    assert [bytes(row.value) for row in frame.collect()] == [b"plain", b"b"]
