"""Between Kafka and the bus. Another bus stands in for Kafka: its source and sink take the connector's options."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path

import pytest
from chispa import assert_df_equality
from pyspark.sql import DataFrame, SparkSession

from bus import Producer
from bus.jobs import mirror_kafka
from bus.jobs.mirror_kafka import Mirror, last_mirrored, mirrored, starting_offsets
from bus.jobs.options import Brokers
from bus.jobs.queries import Pace
from bus.jobs.ranges import with_origin
from bus.spark.jobs import JobFailed
from tests.support.copied_records import Place, running_place
from tests.support.job_runs import run_job
from tests.support.spark_source import produce

ROWS_SCHEMA = (
    "key binary, value binary, topic string, partition int, offset bigint, timestamp timestamp, "
    "headers array<struct<key:string,value:binary>>"
)
WHEN = datetime(2026, 11, 21, tzinfo=timezone.utc)


def rows_of(spark: SparkSession, *places: tuple[str, int, int]) -> DataFrame:
    return spark.createDataFrame([(b"k", b"v", *place, WHEN, None) for place in places], ROWS_SCHEMA)


def test_a_record_that_came_from_the_target_is_not_sent_back(spark: SparkSession) -> None:
    own, foreign = rows_of(spark, ("t", 0, 1)), with_origin(rows_of(spark, ("t", 0, 2), ("t", 0, 3)), "bus")
    third = with_origin(rows_of(spark, ("t", 0, 4)), "elsewhere")
    found = mirrored(own.union(foreign).union(third), cluster="kafka", prefix="k.", target_cluster="bus")
    assert [(row.topic, row.offset) for row in found.orderBy("offset").collect()] == [("k.t", 1), ("k.t", 4)]
    headers = found.orderBy("offset").select("headers").collect()
    assert [dict(row.headers)["origin.cluster"] for row in headers] == [b"kafka"] * 2
    assert [dict(row.headers)["origin.topic"] for row in headers] == [b"t"] * 2


def test_the_last_offset_of_each_partition_is_found_in_the_headers(spark: SparkSession) -> None:
    rows = with_origin(rows_of(spark, ("t", 0, 9), ("t", 0, 10), ("t", 1, 2), ("u", 0, 0)), "kafka")
    others = rows_of(spark, ("t", 0, 99)).union(with_origin(rows_of(spark, ("t", 0, 98)), "elsewhere"))
    assert_df_equality(
        last_mirrored(rows.union(others), "kafka"),
        spark.createDataFrame([("t", 0, 10), ("t", 1, 2), ("u", 0, 0)], "topic string, partition int, offset bigint"),
        ignore_row_order=True,
        ignore_nullable=True,
    )


def test_a_new_checkpoint_begins_behind_what_is_there() -> None:
    offsets = json.loads(starting_offsets({("t", 1): 41, ("gone", 0): 7}, {"t": 2, "u": 1}))
    assert offsets == {"t": {"0": -2, "1": 42}, "u": {"0": -2}}


def test_without_the_connector_the_job_says_how_to_get_it(
    spark: SparkSession, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_job("mirror_kafka", "to-bus", "--kafka", "k:1", "--topics", "t", "--checkpoint", "c") == 1
    told = capsys.readouterr().err
    assert "expected Spark's Kafka connector, found no format 'kafka': give --packages org.apache.spark:" in told


@pytest.mark.parametrize("wrong", [["--topics", " , "], ["--topics", "t", "--kafka-option", "novalue"]])
def test_wrong_arguments_are_refused(wrong: list[str]) -> None:
    assert run_job("mirror_kafka", "to-bus", "--kafka", "k:1", "--checkpoint", "c", *wrong) == 2


@pytest.fixture(scope="module")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    """t: two partitions of five records."""
    with running_place(tmp_path_factory.mktemp("kafka") / "root") as place:
        place.create({"t": 2})
        for partition in range(2):
            produce(place.port, "t", (b"%d" % n for n in range(5)), partition)
        yield place


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    with running_place(tmp_path_factory.mktemp("bus") / "root") as place:
        place.create({"narrow-t": 1})
        yield place


def mirror(kafka: Place, place: Place, checkpoint: Path, prefix: str = "") -> Mirror:
    return Mirror(
        kafka=kafka.address,
        topics=("t",),
        brokers=Brokers(place.address),
        checkpoint=str(checkpoint),
        prefix=prefix,
        kafka_name="kafka",
        bus_name="bus",
        kafka_options={},
        create=False,
        keeps_timestamps=True,
        tasks=2,
        batch_records=1_000_000,
        pace=Pace(continuous=False, interval="1 second"),
    )


def test_records_come_once_with_their_places_even_if_the_checkpoint_is_lost(
    spark: SparkSession, kafka: Place, place: Place, tmp_path: Path
) -> None:
    asked = replace(mirror(kafka, place, tmp_path / "c1"), create=True)
    assert mirror_kafka.to_bus(spark, asked, {"t": 2}, source="bus") == 0
    produce(kafka.port, "t", [b"5"], 0)
    anew = mirror(kafka, place, tmp_path / "c2")  # the checkpoint is lost
    assert mirror_kafka.to_bus(spark, anew, {"t": 2}, source="bus") == 0
    rows = place.rows(spark, "t")
    assert [(row.partition, int(row.value)) for row in rows] == [
        *((0, n) for n in range(6)),
        *((1, n) for n in range(5)),
    ]
    assert [int(dict(row.headers)["origin.offset"]) for row in rows] == [*range(6), *range(5)]
    assert [row.timestamp for row in rows] == [row.timestamp for row in kafka.rows(spark, "t")]


def test_records_of_the_bus_go_to_kafka_and_those_of_kafka_not_again(
    spark: SparkSession, kafka: Place, place: Place, tmp_path: Path
) -> None:
    for one in (kafka, place):
        one.create({"u": 2})
    produce(place.port, "u", [b"from the bus"], 1)
    with Producer(place.address) as producer:
        producer.send("u", b"from kafka", partition=0, headers=[("origin.cluster", b"kafka")])
    asked = replace(mirror(kafka, place, tmp_path / "c"), topics=("u",))
    assert mirror_kafka.to_kafka(spark, asked, target="bus") == 0
    (added,) = kafka.rows(spark, "u")
    assert (added.partition, added.value, dict(added.headers)["origin.cluster"]) == (1, b"from the bus", b"bus")


def test_target_that_cannot_take_the_records_is_told(
    spark: SparkSession, kafka: Place, place: Place, tmp_path: Path
) -> None:
    missing = mirror(kafka, place, tmp_path / "c", "no-")
    with pytest.raises(JobFailed, match="expected a topic no-t, found none; --create makes it"):
        mirror_kafka.to_bus(spark, missing, {"t": 2}, source="bus")
    narrow = mirror(kafka, place, tmp_path / "c", "narrow-")
    with pytest.raises(JobFailed, match="narrow-t: expected 2 partitions or more, as in Kafka, found 1"):
        mirror_kafka.to_bus(spark, narrow, {"t": 2}, source="bus")
