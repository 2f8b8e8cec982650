"""What the tests of Spark's own Kafka source go through, as far as it has a meaning here and no neighbour does it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from bus import Admin, NewTopic
from bus.broker import Broker
from bus.config import BrokerConfig
from bus.model import TopicPartition
from tests.support.broker_thread import running_broker
from tests.support.spark_source import Stream, produce

OFFSETS = "partition int, offset bigint"
CONFIG = BrokerConfig(offsets_topic_num_partitions=1, group_initial_rebalance_delay_ms=0)


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    with running_broker(tmp_path_factory.mktemp("broker") / "root", config=CONFIG) as broker:
        yield broker


@pytest.fixture(scope="module")
def admin(broker: Broker) -> Iterator[Admin]:
    with Admin(f"127.0.0.1:{broker.port}") as admin:
        yield admin


def create(admin: Admin, topic: str, *counts: int, **configs: str) -> None:
    """A topic whose partitions have that many records; record n is n."""
    admin.create_topics([NewTopic(topic, len(counts), configs=configs)])
    for partition, count in enumerate(counts):
        append(admin, topic, partition, 0, count)


def append(admin: Admin, topic: str, partition: int, begin: int, end: int) -> None:
    produce(admin.describe_cluster().brokers[0].port, topic, (b"%d" % n for n in range(begin, end)), partition)


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
