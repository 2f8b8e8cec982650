"""Records again into another topic: which of them, in which order, and each once, whatever is run again."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import datetime, timezone
from pathlib import Path

import click
import pytest
from chispa import assert_df_equality
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sql

from bus.jobs import replay
from bus.jobs.queries import reaches
from bus.jobs.ranges import (
    before_ends,
    change_named,
    header_text,
    in_offset_order,
    partition_offset,
    topic_columns,
    with_origin,
)
from bus.model import TopicPartition
from bus.spark.jobs import JobFailed
from tests.support.copied_records import Place, running_place
from tests.support.job_runs import run_job
from tests.support.spark_source import produce

ROWS_SCHEMA = (
    "key binary, value binary, topic string, partition int, offset bigint, timestamp timestamp, timestampType int, "
    "headers array<struct<key:string,value:binary>>"
)
WHEN = datetime(2026, 11, 21, tzinfo=timezone.utc)
COUNT = 40


def rows_of(spark: SparkSession, *places: tuple[int, int], headers: object = None) -> DataFrame:
    rows = [(b"k", b"%d" % offset, "t", partition, offset, WHEN, 0, headers) for partition, offset in places]
    return spark.createDataFrame(rows, ROWS_SCHEMA)


# ------------------------------------------------------------ rows


def test_rows_below_the_end_of_their_partition_are_taken_and_none_of_others(spark: SparkSession) -> None:
    rows = rows_of(spark, (0, 4), (0, 5), (1, 5), (2, 0))
    assert_df_equality(before_ends(rows, {0: 5, 1: 6}), rows_of(spark, (0, 4), (1, 5)))
    assert before_ends(rows, {}).count() == 0


def test_a_task_has_whole_partitions_in_the_order_of_offsets(spark: SparkSession) -> None:
    places = [(partition, offset) for offset in (5, 3, 9, 1) for partition in range(6)]
    rows = in_offset_order(rows_of(spark, *places).repartition(3), 4)
    found = rows.select(sql.spark_partition_id().alias("task"), "partition", "offset").collect()
    assert len({row.task for row in found}) > 1
    for task in {row.task for row in found}:
        of_task = [(row.partition, row.offset) for row in found if row.task == task]
        assert of_task == sorted(of_task)
        assert len(of_task) % 4 == 0


def test_origin_replaces_an_earlier_one_and_leaves_other_headers(spark: SparkSession) -> None:
    (first,) = with_origin(rows_of(spark, (1, 7)), "west").select("headers").collect()
    assert [(header.key, bytes(header.value)) for header in first.headers] == [
        ("origin.cluster", b"west"),
        ("origin.topic", b"t"),
        ("origin.partition", b"1"),
        ("origin.offset", b"7"),
        ("origin.timestamp", b"%d" % (WHEN.timestamp() * 1000)),
    ]
    again = with_origin(rows_of(spark, (2, 8), headers=[("a", b"1"), ("origin.offset", b"7")]), "east")
    (row,) = again.select("headers", header_text("origin.offset").alias("at"), header_text("b").alias("none")).collect()
    assert [header.key for header in row.headers].count("origin.offset") == 1
    assert (row.headers[0].key, row.at, row.none) == ("a", "8", None)


def test_a_topic_is_given_its_columns_alone(spark: SparkSession) -> None:
    rows = rows_of(spark, (0, 1)).withColumn("more", sql.lit(1))
    assert topic_columns(rows, keep_partitions=False, keep_timestamps=False).columns == ["key", "value", "headers"]
    kept = topic_columns(rows, keep_partitions=True, keep_timestamps=True)
    assert kept.columns == ["key", "value", "headers", "partition", "timestamp"]
    with pytest.raises(JobFailed, match="expected rows with the column value, found key"):
        topic_columns(rows.select("key"), keep_partitions=False, keep_timestamps=False)


# ------------------------------------------------------------ arguments


@pytest.mark.parametrize(("text", "expected"), [("7", (None, 7)), ("2=7", (2, 7)), ("0=0", (0, 0))])
def test_offset_of_a_partition_or_of_all(text: str, expected: tuple[int | None, int]) -> None:
    assert partition_offset(text) == expected


@pytest.mark.parametrize("text", ["", "a", "1=", "=1", "-1", "1=a", "t/0=1"])
def test_offset_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(click.BadParameter, match=re.escape(f"expected [PARTITION=]OFFSET, found {text!r}")):
        partition_offset(text)


@pytest.mark.parametrize("text", ["json", "nowhere:f", "json:nope", "json:__name__"])
def test_change_that_is_no_function_is_refused(text: str) -> None:
    with pytest.raises(click.BadParameter, match="expected"):
        change_named(text)


def test_change_that_returns_something_else_fails(spark: SparkSession) -> None:
    with pytest.raises(JobFailed, match="expected builtins:repr to return a DataFrame, found str"):
        change_named("builtins:repr")(rows_of(spark, (0, 1)))


def test_a_source_has_reached_its_ends_when_all_partitions_have() -> None:
    ends = {TopicPartition("t", 0): 5, TopicPartition("t", 1): 0}
    assert reaches('{"t":{"0":5},"":{}}', ends)
    assert not reaches('{"t":{"0":4,"1":9}}', ends)
    assert not reaches(None, ends)


# ------------------------------------------------------------ the job


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    with running_place(tmp_path_factory.mktemp("broker") / "root") as place:
        place.create({"orders": 2, "again": 2, "repaired": 1, "part": 1})
        for partition in range(2):
            produce(place.port, "orders", (b"%d" % n for n in range(COUNT)), partition)
        yield place


def test_range_is_appended_once_in_order_and_the_job_may_be_run_again(
    spark: SparkSession, place: Place, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["--bootstrap", place.address, "--checkpoint", str(tmp_path / "c"), "--from-offset", "0=10"]
    arguments += ["--to-offset", "30", "--keep-partitions", "--timestamps", "keep", "--origin", "here"]
    arguments += ["--tasks", "2", "--batch-records", "40", "orders", "again"]
    assert run_job("replay", "--dry-run", "--csv", *arguments) == 0
    assert capsys.readouterr().out == "partition,from_offset,to_offset,offsets\n0,10,30,20\n1,0,30,30\n"
    for _ in range(2):
        assert run_job("replay", *arguments) == 0
    again = place.rows(spark, "again")
    assert [(row.partition, int(row.value)) for row in again] == [(0, n) for n in range(10, 30)] + [
        (1, n) for n in range(30)
    ]
    before = {(row.partition, row.value): row.timestamp for row in place.rows(spark, "orders")}
    assert all(row.timestamp == before[row.partition, row.value] for row in again)
    assert dict(again[0].headers)["origin.offset"] == b"10"


def test_batch_that_is_written_again_is_there_once(
    spark: SparkSession, place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The job dies when a batch is in the log and the checkpoint does not know it yet."""
    arguments = ["--bootstrap", place.address, "--checkpoint", str(tmp_path / "c"), "--tasks", "2", "orders", "part"]
    whole = replay.batch_to_topic

    def dying(change: object, target: object) -> object:
        write = whole(change, target)  # type: ignore[arg-type]

        def write_and_die(batch: DataFrame, batch_id: int) -> None:
            write(batch, batch_id)
            raise RuntimeError("killed")

        return write_and_die

    with monkeypatch.context() as patched:
        patched.setattr(replay, "batch_to_topic", dying)
        assert run_job("replay", *arguments) == 1
    assert len(place.rows(spark, "part")) == 2 * COUNT
    assert run_job("replay", *arguments) == 0
    assert len(place.rows(spark, "part")) == 2 * COUNT


def test_records_are_changed_on_the_way_by_a_function_of_the_user(
    spark: SparkSession, place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    change = """def repair(rows):
    return rows.where("offset % 2 = 0").selectExpr("key", "concat('r', value) AS value")
"""
    (tmp_path / "fixes.py").write_text(change)
    monkeypatch.syspath_prepend(str(tmp_path))
    arguments = ["--bootstrap", place.address, "--root", str(place.root), "--checkpoint", str(tmp_path / "c")]
    arguments += ["--tasks", "2", "--change", "fixes:repair", "--to-offset", "6", "orders", "repaired"]
    assert run_job("replay", *arguments) == 0
    assert sorted(row.value for row in place.rows(spark, "repaired")) == [b"r0", b"r0", b"r2", b"r2", b"r4", b"r4"]


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["nope", "again"], "found 'nope'; topics there:"),
        (["orders", "nope"], "found 'nope'"),
        (["--from-offset", "7=1", "orders", "again"], "expected a partition from 0 to 1, found 7"),
        (["--to-offset", "41", "orders", "again"], "expected an end up to that of the log, 40, found 41"),
        (
            ["--from-offset", "9", "--to-offset", "1=8", "orders", "again"],
            "expected an end at or after the start, 9, found 8",
        ),
    ],
)
def test_what_cannot_be_replayed_is_told(
    spark: SparkSession,
    place: Place,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    told: str,
) -> None:
    assert run_job("replay", "--bootstrap", place.address, "--checkpoint", str(tmp_path / "c"), *arguments) == 1
    assert told in capsys.readouterr().err


def test_topic_is_not_replayed_into_itself(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replay, "run_job", lambda *_: 7)
    assert run_job("replay", "--checkpoint", "c", "orders", "orders") == 2
    assert "expected another topic than orders as the target" in capsys.readouterr().err
    assert run_job("replay", "--checkpoint", "c", "--target-bootstrap", "b:1", "orders", "orders") == 7
