"""Spark writes to topics, in batch, as a stream and from foreachBatch: each row is there once, whatever runs again."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import bus.sql
from bus import Admin, NewTopic, Producer
from tests.support.broker_process import BrokerProcess, free_port
from tests.support.murmur2 import partition_of_key

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import StreamingQuery


_names = itertools.count()


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("sink") / "root") as broker:
        yield broker


@pytest.fixture
def topic(broker: BrokerProcess) -> str:
    name = f"t{next(_names)}"
    with Admin(broker.address) as admin:
        admin.create_topics([NewTopic(name, partitions=3)])
    return name


def query(broker: BrokerProcess, sql: str) -> list[tuple[Any, ...]]:
    with bus.sql.connect(str(broker.root)) as connection:
        return connection.sql(sql).fetchall()


def write(frame: DataFrame, broker: BrokerProcess, **options: str) -> None:
    frame.write.format("bus").option("bus.bootstrap.servers", broker.address).options(**options).mode("append").save()


def numbers(spark: SparkSession, count: int) -> DataFrame:
    return spark.range(count).selectExpr("cast(id % 50 as string) as key", "cast(id as string) as value")


# ---------------------------------------------------------------- batch


def test_batch_write_takes_kafkas_columns(spark: SparkSession, broker: BrokerProcess, topic: str) -> None:
    frame = spark.sql(f"""
        SELECT '{topic}' AS topic, * FROM VALUES
            ('a', binary('1'), null, array(struct('h' AS key, binary('x') AS value))),
            ('b', binary('2'), 2, array()),
            (null, null, 1, null) AS rows (key, value, partition, headers)""")
    write(frame.withColumn("other", frame.key), broker)
    found = query(broker, f'SELECT partition, key, value, headers FROM "{topic}" ORDER BY value NULLS LAST')
    assert [row[:3] for row in found] == [(partition_of_key(b"a", 3), "a", "1"), (2, "b", "2"), (1, None, None)]
    assert "x" in str(found[0][3])
    assert not found[1][3]


def test_batch_write_with_a_version_runs_twice_and_appends_once(
    spark: SparkSession, broker: BrokerProcess, topic: str
) -> None:
    frame = numbers(spark, 3_000)
    for version in ("7", "7", "8"):
        write(frame, broker, topic=topic, **{"bus.txnAppId": "nightly", "bus.txnVersion": version})
    counted = f'SELECT count(*), count(DISTINCT value), count(DISTINCT producer_epoch) FROM "{topic}"'
    assert query(broker, counted) == [(6_000, 3_000, 2)]


def test_batch_writes_without_one_are_each_their_own(spark: SparkSession, broker: BrokerProcess, topic: str) -> None:
    for _ in range(2):
        write(numbers(spark, 100), broker, topic=topic)
    assert query(broker, f'SELECT count(*), count(DISTINCT value) FROM "{topic}"') == [(200, 100)]


# ---------------------------------------------------------------- refused when it starts


@pytest.mark.parametrize(
    ("columns", "options", "message"),
    [
        ("key", {}, "schema: expected the column value, found key"),
        ("value", {"topci": "x"}, "topci: expected an option of the bus sink"),
        ("value", {"topic": "nowhere"}, "expected an existing topic, found 'nowhere'; make it with"),
        ("value", {"bus.bootstrap.servers": f"127.0.0.1:{free_port()}"}, "no broker listens at 127.0.0.1"),
    ],
)
def test_what_cannot_be_written_is_refused_before_any_task(
    spark: SparkSession, broker: BrokerProcess, topic: str, columns: str, options: dict[str, str], message: str
) -> None:
    from pyspark.errors import AnalysisException

    given = {"bus.bootstrap.servers": broker.address, "topic": topic, **options}
    frame = numbers(spark, 1).selectExpr(*columns.split(", "))
    with pytest.raises(AnalysisException) as refused:
        frame.write.format("bus").options(**given).mode("append").save()
    assert message in str(refused.value)


def test_topic_is_never_overwritten(spark: SparkSession, broker: BrokerProcess, topic: str) -> None:
    from pyspark.errors import AnalysisException

    writer = numbers(spark, 1).write.format("bus").option("bus.bootstrap.servers", broker.address)
    with pytest.raises(AnalysisException, match="mode: expected append, found overwrite"):
        writer.option("topic", topic).mode("overwrite").save()


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("null AS topic, '1' AS value", "expected a topic in every row, found null"),
        ("'{topic}' AS topic, '1' AS value, 3 AS partition", "expected a partition of '{topic}' from 0 to 2, found 3"),
        ("'nowhere' AS topic, '1' AS value", "expected an existing topic, found 'nowhere'"),
    ],
)
def test_row_that_no_topic_can_take_fails_the_write_and_says_why(
    spark: SparkSession, broker: BrokerProcess, topic: str, row: str, message: str
) -> None:
    from pyspark.errors import PySparkException

    frame = spark.sql(f"SELECT {row}".format(topic=topic).replace("null AS", "cast(null AS string) AS"))
    with pytest.raises(PySparkException) as refused:
        write(frame, broker)
    assert message.format(topic=topic) in str(refused.value)


# ---------------------------------------------------------------- streams


def start_copy(spark: SparkSession, broker: BrokerProcess, source: str, target: str, folder: Path) -> StreamingQuery:
    rows = (
        spark.readStream.format("bus")
        .options(**{"bus.bootstrap.servers": broker.address, "subscribe": source, "startingOffsets": "earliest"})
        .option("maxOffsetsPerTrigger", "700")
        .load()
    )
    return (
        rows.select("key", "value")
        .writeStream.format("bus")
        .options(**{"bus.bootstrap.servers": broker.address, "topic": target})
        .option("checkpointLocation", str(folder))
        .trigger(availableNow=True)
        .start()
    )


def test_batch_of_a_stream_that_runs_again_appends_nothing_twice(
    spark: SparkSession, broker: BrokerProcess, topic: str, tmp_path: Path
) -> None:
    with Admin(broker.address) as admin:
        admin.create_topics([NewTopic("copied", partitions=2)])
    with Producer(broker.address) as producer:
        for number in range(2_000):
            producer.send("copied", b"%d" % number, key=b"%d" % (number % 50))
    assert start_copy(spark, broker, "copied", topic, tmp_path / "checkpoint").awaitTermination(250)
    done = sorted((tmp_path / "checkpoint" / "commits").glob("[0-9]*"), key=lambda path: int(path.name))
    assert len(done) == 3
    # As if the driver had died between the last batch and its mark.
    done[-1].unlink()
    done[-1].with_name(f".{done[-1].name}.crc").unlink(missing_ok=True)
    assert start_copy(spark, broker, "copied", topic, tmp_path / "checkpoint").awaitTermination(250)
    assert query(broker, f'SELECT count(*), count(DISTINCT value) FROM "{topic}"') == [(2_000, 2_000)]
    in_order = f"""
        SELECT bool_and(number > before) FROM (
            SELECT value::INT AS number, lag(value::INT) OVER (PARTITION BY key ORDER BY offset) AS before
            FROM "{topic}") WHERE before IS NOT NULL"""
    assert query(broker, in_order) == [(True,)]


def test_foreach_batch_writes_once_under_its_name_and_number(
    spark: SparkSession, broker: BrokerProcess, topic: str, tmp_path: Path
) -> None:
    runs = 0

    def twice(frame: DataFrame, batch_id: int) -> None:
        nonlocal runs
        for _ in range(2):
            write(frame, broker, topic=topic, **{"bus.txnAppId": "twice", "bus.txnVersion": str(batch_id)})
            runs += 1

    numbers(spark, 200).write.parquet(str(tmp_path / "rows"))
    rows = spark.readStream.schema("key string, value string").parquet(str(tmp_path / "rows"))
    stream = rows.writeStream.foreachBatch(twice).option("checkpointLocation", str(tmp_path / "checkpoint"))
    assert stream.trigger(availableNow=True).start().awaitTermination(250)
    assert runs == 2
    assert query(broker, f'SELECT count(*), count(DISTINCT value) FROM "{topic}"') == [(200, 200)]


def test_complete_mode_appends_every_result(
    spark: SparkSession, broker: BrokerProcess, topic: str, tmp_path: Path
) -> None:
    numbers(spark, 200).write.parquet(str(tmp_path / "rows"))
    rows = spark.readStream.schema("key string, value string").parquet(str(tmp_path / "rows"))
    counts = rows.groupBy("key").count().selectExpr("key", "cast(count AS string) AS value")
    stream = counts.writeStream.format("bus").outputMode("complete").trigger(availableNow=True)
    options = {"bus.bootstrap.servers": broker.address, "topic": topic, "checkpointLocation": str(tmp_path / "point")}
    assert stream.options(**options).start().awaitTermination(250)
    assert query(broker, f'SELECT count(*), min(value), max(value) FROM "{topic}"') == [(50, "4", "4")]
