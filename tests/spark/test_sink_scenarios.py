"""The scenarios of the tests of Spark's own Kafka sink, as far as it has a meaning here and no neighbour does it."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import StreamingQuery

from bus import Admin, NewTopic
from bus.broker import Broker
from tests.support.murmur2 import partition_of_key
from tests.support.spark_source import read_bus

_names = itertools.count()


@pytest.fixture
def topic(broker: Broker) -> str:
    name = f"t{next(_names)}"
    with Admin(f"127.0.0.1:{broker.port}") as admin:
        admin.create_topics([NewTopic(name, partitions=4)])
    return name


def address(broker: Broker) -> dict[str, str]:
    return {"kafka.bootstrap.servers": f"127.0.0.1:{broker.port}"}


def write(frame: DataFrame, broker: Broker, **options: str) -> None:
    frame.write.format("bus").options(**address(broker), **options).mode("append").save()


def texts_of(spark: SparkSession, broker: Broker, topic: str) -> list[str]:
    rows = read_bus(spark, broker.port, "value binary", subscribe=topic).selectExpr("CAST(value AS STRING) AS text")
    return sorted(row.text for row in rows.collect())


class Numbers:
    """A stream of files of numbers, as texts."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self._spark = spark
        self._folder = folder
        folder.mkdir()

    def add(self, *numbers: int) -> None:
        name = f"{len(list(self._folder.iterdir()))}.txt"
        (self._folder / name).write_text("".join(f"{number}\n" for number in numbers), encoding="utf-8")

    @property
    def rows(self) -> DataFrame:
        return self._spark.readStream.schema("value string").text(str(self._folder))


def start(rows: DataFrame, broker: Broker, checkpoint: Path, **options: str) -> StreamingQuery:
    writer = rows.writeStream.format("bus").queryName("numbers of the day").outputMode("append")
    writer = writer.options(**address(broker), checkpointLocation=str(checkpoint), **options)
    return writer.trigger(availableNow=True).start()


# ---------------------------------------------------------------- streams


def test_a_named_stream_writes_to_the_topic_of_each_row_and_says_how_many(
    spark: SparkSession, broker: Broker, topic: str, tmp_path: Path
) -> None:
    numbers = Numbers(spark, tmp_path / "numbers")
    rows = numbers.rows.selectExpr(f"'{topic}' AS topic", "value")
    for batch in ((1, 2, 3, 4, 5), (6, 7, 8)):
        numbers.add(*batch)
        query = start(rows, broker, tmp_path / "checkpoint")
        assert query.awaitTermination(250)
        assert query.name == "numbers of the day"
        assert [found["sink"]["numOutputRows"] for found in query.recentProgress] == [len(batch)]
    assert texts_of(spark, broker, topic) == [str(number) for number in range(1, 9)]


def test_the_option_beats_the_column_of_a_stream(
    spark: SparkSession, broker: Broker, topic: str, tmp_path: Path
) -> None:
    numbers = Numbers(spark, tmp_path / "numbers")
    numbers.add(1, 2)
    rows = numbers.rows.selectExpr("'nowhere' AS topic", "value", "value AS key")
    assert start(rows, broker, tmp_path / "checkpoint", topic=topic).awaitTermination(250)
    assert texts_of(spark, broker, topic) == ["1", "2"]


@pytest.mark.parametrize(
    ("columns", "options", "message"),
    [
        ("value AS key, value", {}, "expected the option topic or the column topic, found neither"),
        ("value, value AS partition", {"topic": "t"}, "schema: expected column partition to be int, found string"),
        ("value", {"topic": "nowhere"}, "topic: expected an existing topic, found 'nowhere'"),
    ],
)
def test_a_stream_that_cannot_be_written_writes_nothing_and_says_why(
    spark: SparkSession, broker: Broker, tmp_path: Path, columns: str, options: dict[str, str], message: str
) -> None:
    numbers = Numbers(spark, tmp_path / "numbers")
    numbers.add(1)
    with pytest.raises(PySparkException) as refused:
        start(
            numbers.rows.selectExpr(*columns.split(", ")), broker, tmp_path / "checkpoint", **options
        ).awaitTermination(250)
    assert message in str(refused.value)


# ---------------------------------------------------------------- batches


def test_headers_and_nulls_come_back_as_they_were_written(spark: SparkSession, broker: Broker, topic: str) -> None:
    headers: list[list[tuple[str, bytes | None]] | None] = [
        [("a", b"b")],
        [("c", b"d"), ("e", None)],
        [("g", b"h"), ("g", b"i")],
        None,
        [],
    ]
    data: list[tuple[Any, ...]] = [(f"{n}", f"{n}", found) for n, found in enumerate(headers)]
    data.append((None, None, None))
    schema = "key string, value string, headers array<struct<key:string,value:binary>>"
    write(spark.createDataFrame(data, schema), broker, topic=topic)
    found = read_bus(spark, broker.port, subscribe=topic, includeHeaders="true").collect()
    came = {
        row.key: (row.value, None if row.headers is None else [(header.key, header.value) for header in row.headers])
        for row in found
    }
    assert came == {
        **{b"%d" % n: (b"%d" % n, wrote or None) for n, wrote in enumerate(headers)},
        None: (None, None),
    }


def test_a_null_partition_is_none_and_a_row_may_be_one_expression(
    spark: SparkSession, broker: Broker, topic: str
) -> None:
    frame = spark.range(20).selectExpr("CAST(id AS STRING) AS key", "to_json(struct(*)) AS value")
    write(frame, broker, topic=topic)
    write(frame.selectExpr("*", "CAST(NULL AS INT) AS partition"), broker, topic=topic)
    write(frame.selectExpr("*", "2 AS partition"), broker, topic=topic)
    rows = read_bus(spark, broker.port, "key binary, value binary, partition int, offset bigint", subscribe=topic)
    by_key: dict[bytes, list[int]] = {}
    for row in rows.collect():
        assert row.value == b'{"id":%s}' % row.key
        by_key.setdefault(row.key, []).append(row.partition)
    by_default = {key: partition_of_key(key, 4) for key in (b"%d" % n for n in range(20))}
    assert set(by_default.values()) == {0, 1, 2, 3}
    assert {key: sorted(found) for key, found in by_key.items()} == {
        key: sorted([partition, partition, 2]) for key, partition in by_default.items()
    }


def test_rows_larger_than_the_memory_of_the_producer_are_all_written(
    spark: SparkSession, broker: Broker, topic: str
) -> None:
    frame = spark.range(0, 300, 1, 1).selectExpr("repeat(CAST(id % 10 AS STRING), 15000) AS value")
    write(frame, broker, topic=topic, **{"kafka.buffer.memory": "16384"})
    assert [text[0] for text in texts_of(spark, broker, topic)] == [str(n) for n in range(10) for _ in range(30)]


@pytest.mark.parametrize("mode", ["ignore", "errorifexists"])
def test_a_topic_is_appended_to_or_not_written(spark: SparkSession, broker: Broker, topic: str, mode: str) -> None:
    writer = spark.range(1).selectExpr("CAST(id AS STRING) AS value").write.format("bus")
    with pytest.raises(AnalysisException, match="cannot be written in the"):
        writer.options(**address(broker), topic=topic).mode(mode).save()
