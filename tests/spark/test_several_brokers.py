"""Streaming queries from topic to topic in a cluster of several brokers, while one after another dies or leaves, and
partitions move."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from click.testing import CliRunner
from deltalake import DeltaTable
from pyspark.sql import SparkSession
from pyspark.sql.streaming import StreamingQuery

from bus import Admin, NewTopic, TopicPartition
from bus.cli.main import cli
from bus.storage_delta.log.listing import partition_folder
from tests.support.chaos_programs import told_if_it_fails
from tests.support.chaotic_cluster import BROKERS, ChaoticCluster
from tests.support.steady_producer import SteadyProducer

PARTITIONS = 3
SETTLE_S = 100.0
TARGETS = {"stamped": "false", "transactional": "true"}  # by topic: bus.transactional


@contextmanager
def copying(spark: SparkSession, addresses: list[str], target: str, checkpoint: Path) -> Iterator[StreamingQuery]:
    """Each row says which record it is a copy of."""
    place = {"bus.bootstrap.servers": ",".join(addresses)}
    rows = spark.readStream.format("bus").options(**place, subscribe="in", startingOffsets="earliest").load()
    copies = rows.selectExpr("CAST(partition AS STRING) AS key", "concat(partition, '/', offset) AS value")
    query = (
        copies.writeStream.format("bus")
        .options(**place, topic=target, checkpointLocation=str(checkpoint))
        .option("bus.transactional", TARGETS[target])
        .trigger(processingTime="200 milliseconds")
        .start()
    )
    try:
        yield query
    finally:
        query.stop()


def copies_of(root: Path, target: str) -> list[list[str]]:
    """The values of each partition, by offset."""
    found = []
    for number in range(PARTITIONS):
        table = DeltaTable(str(root / partition_folder(TopicPartition(target, number))))
        rows = table.to_pyarrow_table(columns=["offset", "value"]).sort_by("offset").column("value").to_pylist()
        found.append([value.decode() for value in rows])
    return found


def wait_for_copies(root: Path, queries: list[StreamingQuery], more: int) -> None:
    """Wait until each query has written `more` further rows."""
    wanted = {target: sum(map(len, copies_of(root, target))) + more for target in TARGETS}
    deadline_s = time.monotonic() + SETTLE_S
    while any(sum(map(len, copies_of(root, target))) < count for target, count in wanted.items()):
        for query in queries:
            assert query.isActive, query.exception()
        assert time.monotonic() < deadline_s
        time.sleep(0.1)


def leaders_of(admin: Admin, topics: list[str]) -> list[int]:
    return [one.leader_id for found in admin.describe_topics(topics).values() for one in found.partitions]


def wait_until_leading(admin: Admin, topics: list[str], broker_id: int) -> None:
    """On a busy machine it may have been silent for a session, and be given its partitions back a while later."""
    deadline_s = time.monotonic() + SETTLE_S
    while broker_id not in leaders_of(admin, topics):
        assert time.monotonic() < deadline_s
        time.sleep(0.1)


def wait_until_moved(admin: Admin, topics: list[str], broker_id: int) -> None:
    deadline_s = time.monotonic() + SETTLE_S
    while broker_id in leaders_of(admin, topics):
        assert time.monotonic() < deadline_s
        time.sleep(0.1)


@pytest.mark.timeout(600)
def test_queries_copy_each_record_once_while_brokers_die_and_partitions_move(
    spark: SparkSession, tmp_path: Path
) -> None:
    topics = ["in", *TARGETS]
    with ChaoticCluster(tmp_path) as cluster, told_if_it_fails(cluster), Admin(cluster.addresses) as admin:
        admin.create_topics([NewTopic(topic, PARTITIONS) for topic in topics])
        with (
            SteadyProducer(",".join(cluster.addresses), "in", PARTITIONS, records=5) as load,
            copying(spark, cluster.addresses, "stamped", tmp_path / "stamped") as stamped,
            copying(spark, cluster.addresses, "transactional", tmp_path / "transactional") as transactional,
        ):
            queries = [stamped, transactional]
            wait_for_copies(cluster.root, queries, more=1)
            for broker in cluster.brokers:
                wait_until_leading(admin, topics, broker.broker_id)
                if broker.broker_id % 2 == 0:
                    broker.process.kill()
                else:
                    assert broker.process.terminate() == 0
                cluster.tell(f"broker {broker.broker_id} is gone")
                wait_for_copies(cluster.root, queries, more=200)
                wait_until_moved(admin, topics, broker.broker_id)
                broker.process.start()
                admin.elect_leaders()  # partitions move again, to a broker that is well
                cluster.tell(f"broker {broker.broker_id} is back")
                wait_for_copies(cluster.root, queries, more=200)
            count = load.finish()
            for query in queries:
                query.processAllAvailable()
                assert query.exception() is None
        for target in TARGETS:
            check_copies(copies_of(cluster.root, target), count)
        assert cluster.stop() == [0] * BROKERS
        verified = CliRunner().invoke(cli, ["log", "verify", "--all"], env={"BUS_ROOT": str(cluster.root)})
        assert verified.exit_code == 0, verified.output


def check_copies(copies: list[list[str]], count: int) -> None:
    """Check that each record is there once, and those of a key in order."""
    expected = [f"{number}/{offset}" for number in range(PARTITIONS) for offset in range(count)]
    found = [value for values in copies for value in values]
    by_key = [[value for value in found if value.startswith(f"{key}/")] for key in range(PARTITIONS)]
    assert [value for values in by_key for value in values] == expected
    assert len(found) == len(expected)
