"""Streaming queries of `format("bus")`: what Spark's own tests of its Kafka source ask for, and maintenance below."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql import functions as sql

from bus import Admin, NewTopic, Producer
from bus.broker import Broker
from bus.model import TopicPartition
from bus.settings.broker import BrokerConfig
from tests.support.broker_process import BrokerProcess
from tests.support.broker_thread import running_broker
from tests.support.guides import programs_of
from tests.support.spark_source import Stream, append, create, produce

OFFSETS = "partition int, offset bigint"
CONFIG = BrokerConfig(offsets_topic_num_partitions=1, group_initial_rebalance_delay_ms=0)


def last_offsets(checkpoint: Path) -> dict[str, dict[str, int]]:
    """The offsets of the last batch in the checkpoint."""
    files = [file for file in (checkpoint / "offsets").iterdir() if file.name.isdecimal()]
    last = max(files, key=lambda file: int(file.name))
    found: dict[str, dict[str, int]] = json.loads(last.read_text(encoding="utf-8").splitlines()[-1])
    return found


# ---------------------------------------------------------------- triggers and limits


def test_available_now_reads_in_batches_and_goes_on_where_it_ended(
    spark: SparkSession, broker: Broker, admin: Admin, tmp_path: Path
) -> None:
    create(admin, "limited", 15, 5)
    options = {"subscribe": "limited", "startingOffsets": "earliest", "maxOffsetsPerTrigger": 10}
    stream = Stream(spark, broker.port, tmp_path, OFFSETS, **options)
    assert [len(batch) for batch in stream.run()] == [9, 9, 2]
    assert stream.run() == []
    append(admin, "limited", 1, 5, 7)
    admin.create_partitions({"limited": 3})
    append(admin, "limited", 2, 0, 3)
    assert sum(len(batch) for batch in stream.run()) == 5
    assert stream.offsets == {0: list(range(15)), 1: list(range(7)), 2: list(range(3))}
    assert last_offsets(tmp_path)["limited"] == {"0": 15, "1": 7, "2": 3}


def test_once_reads_all_whatever_the_limit(spark: SparkSession, broker: Broker, admin: Admin, tmp_path: Path) -> None:
    create(admin, "at-once", 15)
    options = {"subscribe": "at-once", "startingOffsets": "earliest", "maxOffsetsPerTrigger": 2}
    assert [len(batch) for batch in Stream(spark, broker.port, tmp_path, **options).run(once=True)] == [15]


@pytest.mark.parametrize(
    ("trigger", "reason"),
    [({"continuous": "1 second"}, "does not support continuous processing"), ({"realTime": "5 minutes"}, "REAL_TIME")],
)
def test_spark_refuses_the_triggers_that_the_guide_calls_unsupported(
    spark: SparkSession, broker: Broker, admin: Admin, tmp_path: Path, trigger: dict[str, str], reason: str
) -> None:
    create(admin, f"trigger-{next(iter(trigger))}", 1)
    options = {"kafka.bootstrap.servers": f"127.0.0.1:{broker.port}", "subscribePattern": "trigger-.*"}
    frame = spark.readStream.format("bus").options(**options).load()
    writer = frame.writeStream.format("console").outputMode("update").option("checkpointLocation", str(tmp_path))
    with pytest.raises(PySparkException, match=reason):
        writer.trigger(**trigger).start().awaitTermination(250)


def test_a_running_query_sees_what_comes_and_new_partitions_and_topics(
    spark: SparkSession, broker: Broker, admin: Admin, tmp_path: Path
) -> None:
    create(admin, "live-1", 5)
    stream = Stream(spark, broker.port, tmp_path, subscribePattern="live-.*")
    with stream.running() as query:
        query.processAllAvailable()
        assert stream.rows == []  # a stream begins at the end
        append(admin, "live-1", 0, 5, 8)
        query.processAllAvailable()
        assert [row.value for row in stream.rows] == [b"5", b"6", b"7"]
        admin.create_partitions({"live-1": 2})
        append(admin, "live-1", 1, 0, 2)
        create(admin, "live-2", 4)
        query.processAllAvailable()
    assert sorted((row.topic, row.partition, row.offset) for row in stream.rows[3:]) == [
        *(("live-1", 1, offset) for offset in range(2)),
        *(("live-2", 0, offset) for offset in range(4)),
    ]
    progress = [found for found in query.recentProgress if found["numInputRows"]]
    assert sum(found["numInputRows"] for found in progress) == 9


def test_by_storage_alone_a_query_runs_with_every_broker_down(spark: SparkSession, tmp_path: Path) -> None:
    root = tmp_path / "root"
    with running_broker(root, config=CONFIG) as broker, Admin(f"127.0.0.1:{broker.port}") as admin:
        create(admin, "orders", 3, 4)
    stream = Stream(spark, root, tmp_path / "checkpoint", OFFSETS, subscribe="orders", startingOffsets="earliest")
    stream.run()
    with running_broker(root, config=CONFIG) as broker, Admin(f"127.0.0.1:{broker.port}") as admin:
        append(admin, "orders", 1, 4, 6)
    stream.run()
    assert stream.offsets == {0: [0, 1, 2], 1: [0, 1, 2, 3, 4, 5]}


def test_an_aggregate_with_a_watermark_closes_its_windows(
    spark: SparkSession, broker: Broker, admin: Admin, tmp_path: Path
) -> None:
    create(admin, "windows", 20)
    frame = (
        spark.readStream.format("bus")
        .options(**{"kafka.bootstrap.servers": f"127.0.0.1:{broker.port}", "subscribe": "windows"})
        .option("startingOffsets", "earliest")
        .load()
        .withWatermark("timestamp", "10 seconds")
        .groupBy(sql.window("timestamp", "1 hour"))
        .count()
    )
    query = (
        frame.writeStream.format("memory")
        .queryName("windows_of_topic")
        .outputMode("complete")
        .option("checkpointLocation", str(tmp_path))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(250)
    counted = spark.table("windows_of_topic").agg(sql.sum("count")).first()
    assert counted is not None
    assert counted[0] == 20


def test_the_first_query_of_the_guide_runs(spark: SparkSession, broker: Broker, admin: Admin, tmp_path: Path) -> None:
    create(admin, "orders", 7)
    program = programs_of("spark.md")[0]
    for there, here in {"localhost:9094": f"127.0.0.1:{broker.port}", '"/data/': f'"{tmp_path}/'}.items():
        assert there in program
        program = program.replace(there, here)
    exec(program, {})
    assert [row.value for row in spark.read.parquet(str(tmp_path / "orders")).sort("value").collect()] == [
        str(n) for n in range(7)
    ]


# ---------------------------------------------------------------- changes below a query


def test_a_topic_that_is_made_again_stops_a_running_query(
    spark: SparkSession, broker: Broker, admin: Admin, tmp_path: Path
) -> None:
    create(admin, "again", 5)
    options = {"subscribe": "again", "startingOffsets": "earliest"}
    stream = Stream(spark, broker.port, tmp_path, **options)
    with stream.running() as query:
        query.processAllAvailable()
        admin.delete_topics(["again"])
        create(admin, "again", 3)
        with pytest.raises(PySparkException, match="topic again was deleted"):
            query.awaitTermination(250)
    assert len(stream.rows) == 5
    anyway = Stream(spark, broker.port, tmp_path, failOnDataLoss="false", **options)
    anyway.run()
    assert [row.offset for row in anyway.rows] == [0, 1, 2]


def test_records_that_retention_took_stop_the_query_or_are_counted(
    spark: SparkSession, broker: Broker, admin: Admin, tmp_path: Path
) -> None:
    create(admin, "cut", 10)
    options = {"subscribe": "cut", "startingOffsets": "earliest", "maxOffsetsPerTrigger": 2}
    stream = Stream(spark, broker.port, tmp_path, OFFSETS, **options)
    stream.after_batch = lambda: admin.delete_records({TopicPartition("cut", 0): 5})
    with pytest.raises(PySparkException, match="cut-0: records 2 to 4 were not read and are gone"):
        stream.run()
    assert stream.offsets == {0: [0, 1]}
    anyway = Stream(spark, broker.port, tmp_path, OFFSETS, failOnDataLoss="false", **options)
    anyway.run()
    assert anyway.offsets == {0: [5, 6, 7, 8, 9]}
    assert last_offsets(tmp_path)[""]["lost_offsets"] == 3


def test_maintenance_below_a_query_changes_nothing_that_it_reads(
    spark: SparkSession, broker: Broker, admin: Admin, tmp_path: Path
) -> None:
    create(admin, "kept", 30, **{"delta.log.versions.max": "2", "file.delete.delay.ms": "0"})
    for n in range(30, 60):
        append(admin, "kept", 0, n, n + 1)

    options = {"subscribe": "kept", "startingOffsets": "earliest", "maxOffsetsPerTrigger": 20}
    stream = Stream(spark, broker.port, tmp_path, OFFSETS, **options)
    stream.before_batch = lambda: [list(admin.maintain_log("kept", action)) for action in ("roll", "clean")]
    stream.run()
    assert stream.offsets == {0: list(range(60))}


def test_a_query_over_a_compacted_topic_ends_with_the_last_value_of_every_key(
    spark: SparkSession, broker: Broker, admin: Admin, tmp_path: Path
) -> None:
    configs = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.0"}
    admin.create_topics([NewTopic("latest", 1, configs=configs)])

    def put(begin: int, end: int) -> None:
        with Producer(f"127.0.0.1:{broker.port}") as producer:
            for n in range(begin, end):
                producer.send("latest", b"%d" % n, key=b"k%d" % (n % 4))
                if n % 5 == 4:
                    producer.flush()

    put(0, 40)
    stream = Stream(
        spark, broker.port, tmp_path, subscribe="latest", startingOffsets="earliest", maxOffsetsPerTrigger=15
    )
    with stream.running() as query:
        query.processAllAvailable()
        list(admin.maintain_log("latest", "compact"))
        put(40, 60)
        list(admin.maintain_log("latest", "compact"))
        query.processAllAvailable()
    offsets = [row.offset for row in stream.rows]
    assert offsets == sorted(set(offsets))
    assert {row.key: row.value for row in stream.rows} == {b"k%d" % (n % 4): b"%d" % n for n in range(56, 60)}


def test_a_query_waits_for_a_broker_that_is_gone_and_goes_on(spark: SparkSession, tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "root") as broker:
        with Admin(broker.address) as admin:
            create(admin, "orders", 5)
        options = {"subscribe": "orders", "startingOffsets": "earliest", "fetchOffset.retryIntervalMs": "200"}
        stream = Stream(spark, broker.port, tmp_path / "checkpoint", OFFSETS, **options)
        with stream.running() as query:
            query.processAllAvailable()
            broker.kill()
            query.awaitTermination(3)
            assert query.isActive
            broker.start()
            produce(broker.port, "orders", [b"x"] * 3, 0)
            deadline = time.monotonic() + 250
            while len(stream.rows) < 8 and time.monotonic() < deadline:
                query.awaitTermination(0.2)
    assert stream.offsets == {0: list(range(8))}


# ---------------------------------------------------------------- checkpoints of others


def test_a_checkpoint_of_sparks_kafka_source_is_taken_over_on_request(
    spark: SparkSession, broker: Broker, admin: Admin, tmp_path: Path
) -> None:
    create(admin, "moved", 10, 10)
    options = {"subscribe": "moved", "startingOffsets": "earliest"}
    Stream(spark, broker.port, tmp_path, OFFSETS, **options).run()
    of_kafka = '{"moved":{"1":4,"0":7}}'  # as that source writes it, in the same files
    for file in (tmp_path / "offsets").iterdir():
        if file.name.isdecimal():
            lines = file.read_text(encoding="utf-8").splitlines()
            file.write_text("\n".join([*lines[:-1], of_kafka]), encoding="utf-8")
        else:
            file.unlink()  # a checksum
    for written in [*tmp_path.rglob("*.crc")]:
        written.unlink()
    with pytest.raises(PySparkException, match=r"one of Spark's Kafka source; .*bus.adoptKafkaOffsets=true"):
        Stream(spark, broker.port, tmp_path, OFFSETS, **options).run()
    stream = Stream(spark, broker.port, tmp_path, OFFSETS, bus_adoptKafkaOffsets="true", **options)
    stream.run()
    assert stream.offsets == {0: [7, 8, 9], 1: [4, 5, 6, 7, 8, 9]}
    append(admin, "moved", 0, 10, 11)
    after = Stream(spark, broker.port, tmp_path, OFFSETS, **options)
    after.run()
    assert after.offsets == {0: [10]}


def test_a_checkpoint_of_another_topic_is_refused(
    spark: SparkSession, broker: Broker, admin: Admin, tmp_path: Path
) -> None:
    create(admin, "first", 3)
    create(admin, "second", 3)
    Stream(spark, broker.port, tmp_path, subscribe="first", startingOffsets="earliest").run()
    with pytest.raises(PySparkException, match="topic first was deleted, or is not subscribed to any more"):
        Stream(spark, broker.port, tmp_path, subscribe="second", startingOffsets="earliest").run()


# ---------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"subscribe": "unknown"}, "expected a topic, found 'unknown'"),
        ({"startingOffsets": '{"refused":{"0":9}}'}, "refused-0: expected a starting offset from 0 to 3, found 9"),
    ],
)
def test_what_a_stream_cannot_do_is_refused_at_its_start(
    spark: SparkSession, broker: Broker, admin: Admin, tmp_path: Path, options: dict[str, str], message: str
) -> None:
    if "refused" not in admin.list_topics():
        create(admin, "refused", 3)
    with pytest.raises(PySparkException, match=message):
        Stream(spark, broker.port, tmp_path, **{"subscribe": "refused", **options}).run()
