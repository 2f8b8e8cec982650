"""A broker with topics for jobs that carry records, and a topic's records as Spark's reader returns them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from pyspark.sql import Row, SparkSession

from bus import Admin, NewTopic
from bus.settings.broker import BrokerConfig
from tests.support.broker_thread import running_broker
from tests.support.spark_source import read_bus


@dataclass(frozen=True)
class Place:
    """A broker and its root."""

    port: int
    root: Path

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def create(self, topics: Mapping[str, int]) -> None:
        with Admin(self.address) as admin:
            # Their records are of the past: no retention by time may take them away.
            configs = {"retention.ms": -1}
            admin.create_topics([NewTopic(name, partitions, configs) for name, partitions in topics.items()])

    def rows(self, spark: SparkSession, topic: str) -> list[Row]:
        """Return the rows in the order of partitions and offsets."""
        found = read_bus(spark, self.root, subscribe=topic, includeHeaders="true")
        return found.orderBy("partition", "offset").collect()


@contextmanager
def running_place(root: Path) -> Iterator[Place]:
    config = BrokerConfig(offsets_topic_num_partitions=1, group_initial_rebalance_delay_ms=0)
    with running_broker(root, config=config) as broker:
        assert broker.port is not None
        yield Place(broker.port, root)
