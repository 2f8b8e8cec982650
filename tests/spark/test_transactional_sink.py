"""A batch with bus.transactional is one transaction: all its rows can be read, or none, however often it runs."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import bus.sql
from bus import Admin, NewTopic
from tests.support.broker_process import BrokerProcess

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import StreamingQuery

_names = itertools.count()


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("transactional") / "root") as broker:
        yield broker


@pytest.fixture
def topics(broker: BrokerProcess) -> tuple[str, str]:
    names = tuple(f"t{next(_names)}" for _ in range(2))
    with Admin(broker.address) as admin:
        admin.create_topics([NewTopic(name, partitions=3) for name in names])
    return names[0], names[1]


def options_for(broker: BrokerProcess) -> dict[str, str]:
    return {"bus.bootstrap.servers": broker.address, "bus.transactional": "true"}


def query(broker: BrokerProcess, sql: str) -> list[tuple[Any, ...]]:
    with bus.sql.connect(str(broker.root)) as connection:
        return connection.sql(sql).fetchall()


def counts(broker: BrokerProcess, topics: tuple[str, str]) -> list[tuple[Any, ...]]:
    return [query(broker, f'SELECT count(*), count(DISTINCT key) FROM "{topic}"')[0] for topic in topics]


def rows_for(spark: SparkSession, topics: tuple[str, str], first: int, count: int) -> DataFrame:
    """To both topics by turns, from four tasks; their values are others each time."""
    return spark.range(first, first + count, 1, 4).selectExpr(
        "cast(id AS string) AS key",
        "cast(rand() AS string) AS value",
        f"if(id % 2 = 0, '{topics[0]}', '{topics[1]}') AS topic",
    )


def save(frame: DataFrame, broker: BrokerProcess, version: int) -> None:
    once = {"bus.txnAppId": "nightly", "bus.txnVersion": str(version)}
    frame.write.format("bus").options(**options_for(broker), **once).mode("append").save()


def test_batch_write_is_one_version_in_each_partition_and_is_written_once(
    spark: SparkSession, broker: BrokerProcess, topics: tuple[str, str]
) -> None:
    for version in (3, 3, 4):
        save(rows_for(spark, topics, 1_000 * version, 1_000), broker, version)
    assert counts(broker, topics) == [(1_000, 1_000)] * 2
    epochs = f'SELECT partition, count(DISTINCT producer_epoch) FROM "{topics[0]}" GROUP BY 1 ORDER BY 1'
    assert query(broker, epochs) == [(0, 2), (1, 2), (2, 2)], "each write has one producer epoch: it is one transaction"
    with pytest.raises(Exception, match="expected a batch above 4, the last one that is written, found 2"):
        save(rows_for(spark, topics, 0, 10), broker, 2)
    by_key = f"""SELECT bool_and(number > before) FROM (SELECT key::INT AS number,
        lag(key::INT) OVER (PARTITION BY partition ORDER BY offset) AS before FROM "{topics[0]}")
        WHERE before IS NOT NULL"""
    assert query(broker, by_key) == [(True,)], "the rows of a partition come in the order of tasks"


def test_task_that_fails_leaves_nothing_of_the_others(
    spark: SparkSession, broker: BrokerProcess, topics: tuple[str, str]
) -> None:
    good = rows_for(spark, topics, 0, 1_000)
    bad = good.selectExpr("key", "value", "if(key = '999', 'nowhere', topic) AS topic")
    with pytest.raises(Exception, match="expected an existing topic, found 'nowhere'"):
        save(bad, broker, 100)
    assert counts(broker, topics) == [(0, 0)] * 2
    save(good, broker, 100)
    assert counts(broker, topics) == [(500, 500)] * 2


def start(rows: DataFrame, broker: BrokerProcess, checkpoint: Path) -> StreamingQuery:
    stream = rows.writeStream.format("bus").options(**options_for(broker))
    return stream.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start()


def test_batch_of_a_stream_that_runs_again_is_written_once(
    spark: SparkSession, broker: BrokerProcess, topics: tuple[str, str], tmp_path: Path
) -> None:
    for number in range(3):
        rows_for(spark, topics, 100 * number, 100).write.mode("append").parquet(str(tmp_path / "rows"))
    read = spark.readStream.schema("key string, value string, topic string").option("maxFilesPerTrigger", "4")
    rows = read.parquet(str(tmp_path / "rows")).selectExpr("key", "cast(rand() AS string) AS value", "topic")
    assert start(rows, broker, tmp_path / "checkpoint").awaitTermination(250)
    assert counts(broker, topics) == [(150, 150)] * 2
    done = sorted((tmp_path / "checkpoint" / "commits").glob("[0-9]*"), key=lambda path: int(path.name))
    assert len(done) == 3
    # As if the driver had died between the transaction and the batch's mark; the values are others now.
    done[-1].unlink()
    done[-1].with_name(f".{done[-1].name}.crc").unlink(missing_ok=True)
    assert start(rows, broker, tmp_path / "checkpoint").awaitTermination(250)
    assert counts(broker, topics) == [(150, 150)] * 2


def test_batch_of_a_stream_that_fails_is_not_there_until_it_succeeds(
    spark: SparkSession, broker: BrokerProcess, topics: tuple[str, str], tmp_path: Path
) -> None:
    late = f"{topics[0]}late"
    rows_for(spark, (topics[0], late), 0, 200).repartition(4).write.parquet(str(tmp_path / "rows"))
    rows = spark.readStream.schema("key string, value string, topic string").parquet(str(tmp_path / "rows"))
    with pytest.raises(Exception, match="expected an existing topic"):
        start(rows, broker, tmp_path / "checkpoint").awaitTermination(250)
    assert query(broker, f'SELECT count(*) FROM "{topics[0]}"') == [(0,)]
    with Admin(broker.address) as admin:
        admin.create_topics([NewTopic(late)])
    assert start(rows, broker, tmp_path / "checkpoint").awaitTermination(250)
    assert counts(broker, (topics[0], late)) == [(100, 100)] * 2
