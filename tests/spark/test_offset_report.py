"""The report of offsets: what is counted, beside what the logs say, at which version, and who lags behind."""

from __future__ import annotations

import os
import subprocess
import sys
from datetime import datetime
from pathlib import Path

import pytest
from chispa import assert_df_equality
from pyspark.sql import SparkSession

from bus.jobs.offset_report import (
    LOG_SCHEMA,
    lag_report,
    partition_report,
    records_report,
    visible_records,
)
from bus.model import TopicPartition
from bus.tables.point_in_time import parse_bound
from tests.support.hand_written_groups import HandWrittenGroups
from tests.support.hand_written_root import HandWrittenRoot
from tests.support.job_root import NOW_MS, JobRoot
from tests.support.job_runs import run_job

CHECKOUT = Path(__file__).parents[2]
RECORDS = "topic string, partition int, offset long, timestamp timestamp"
REPORT = (
    "topic string, partition int, records long, first_offset long, last_offset long, missing long, "
    "first_timestamp timestamp, last_timestamp timestamp"
)


def at(second: int) -> datetime:
    return datetime(2026, 1, 1, 0, 0, second)


def test_report_counts_missing_offsets_and_spans_times(spark: SparkSession) -> None:
    records = spark.createDataFrame(
        [
            ("b", 1, 7, at(3)),
            ("b", 1, 5, at(9)),
            ("b", 0, 0, at(1)),
            ("a", 0, 3, at(2)),
            ("a", 0, 4, at(2)),
        ],
        RECORDS,
    )
    expected = spark.createDataFrame(
        [
            ("a", 0, 2, 3, 4, 0, at(2), at(2)),
            ("b", 0, 1, 0, 0, 0, at(1), at(1)),
            ("b", 1, 2, 5, 7, 1, at(3), at(9)),
        ],
        REPORT,
    )
    assert_df_equality(records_report(records), expected, ignore_nullable=True)


def test_empty_topics_have_no_rows(spark: SparkSession) -> None:
    assert records_report(spark.createDataFrame([], RECORDS)).count() == 0


def test_records_below_the_log_start_of_their_partition_are_not_seen(spark: SparkSession) -> None:
    records = spark.createDataFrame([("a", 0, n, at(n)) for n in range(3)] + [("a", 1, 0, at(0))], RECORDS)
    logs = spark.createDataFrame([("a", 0, 1, 2, 3, 1, 9), ("a", 1, 1, 0, 1, 1, 9)], LOG_SCHEMA)
    expected = spark.createDataFrame([("a", 0, 2, at(2)), ("a", 1, 0, at(0))], RECORDS)
    assert_df_equality(visible_records(records, logs), expected, ignore_row_order=True, ignore_nullable=True)


def test_a_partition_without_records_has_a_row_too(spark: SparkSession) -> None:
    logs = spark.createDataFrame([("b", 0, 4, 7, 7, 0, 0), ("a", 0, 2, 0, 3, 2, 900)], LOG_SCHEMA)
    report = spark.createDataFrame([("a", 0, 2, 0, 2, 1, at(1), at(2))], REPORT)
    expected = spark.createDataFrame(
        [
            ("a", 0, 2, 0, 3, 2, 0, 2, 1, at(1), at(2), 2, 900),
            ("b", 0, 4, 7, 7, 0, None, None, 0, None, None, 0, 0),
        ],
        "topic string, partition int, version long, log_start_offset long, log_end_offset long, records long, "
        "first_offset long, last_offset long, missing long, first_timestamp timestamp, last_timestamp timestamp, "
        "files long, bytes long",
    )
    assert_df_equality(partition_report(logs, report), expected, ignore_nullable=True)


def test_lag_is_that_of_the_partitions_asked_for_the_farthest_first(spark: SparkSession) -> None:
    columns = (
        "group_id string, topic string, partition int, committed_offset long, log_end_offset long, lag long, "
        "client_id string, host string"
    )
    rows = [("g", "a", 0, 1, 9, 8, "c", "h"), ("h", "a", 0, 0, 9, 9, None, None), ("g", "b", 0, 0, 1, 1, None, None)]
    logs = spark.createDataFrame([("a", 0, 1, 0, 9, 1, 9)], LOG_SCHEMA)
    expected = spark.createDataFrame(
        [("h", "a", 0, 0, 9, 9, None), ("g", "a", 0, 1, 9, 8, "c")], columns.removesuffix(", host string")
    )
    assert_df_equality(lag_report(spark.createDataFrame(rows, columns), logs), expected, ignore_nullable=True)


# ------------------------------------------------------------------ on a root


@pytest.fixture
def root(tmp_path: Path) -> JobRoot:
    """Six records in three commits, a second apart, of which two are deleted in a fourth; and an empty partition."""
    root = JobRoot(tmp_path / "root", partitions=2)
    for commit in range(3):
        root.append([(None, b"x"), (None, b"y")], now_ms=NOW_MS + 1000 * commit)
    root.table.cleanup.advance_log_start(3, leader_epoch=0, now_ms=NOW_MS + 3000)
    return root


def report(root: JobRoot, capsys: pytest.CaptureFixture[str], *arguments: str) -> list[dict[str, str]]:
    assert run_job("offset_report", "--root", str(root.folder), "--csv", *arguments) == 0
    header, *lines = capsys.readouterr().out.splitlines()
    return [dict(zip(header.split(","), line.split(","), strict=True)) for line in lines]


def numbers(row: dict[str, str]) -> tuple[int, ...]:
    names = ("version", "log_start_offset", "log_end_offset", "records", "missing", "files")
    return tuple(int(row[name]) for name in names)


def test_a_report_is_of_now_unless_a_version_or_a_time_is_named(
    spark: SparkSession, root: JobRoot, capsys: pytest.CaptureFixture[str]
) -> None:
    now = report(root, capsys, "orders")
    assert [numbers(row) for row in now] == [(4, 3, 6, 3, 0, 2), (0, 0, 0, 0, 0, 0)]
    assert int(now[0]["bytes"]) == sum(file.size_bytes for file in root.table.rewrites.files)
    (then,) = report(root, capsys, "--version", "orders:0=2", "orders/0")
    assert numbers(then) == (2, 0, 4, 4, 0, 2)
    (then,) = report(root, capsys, "--timestamp", "2023-11-14T22:13:21.5Z", "orders/0")
    assert numbers(then) == (2, 0, 4, 4, 0, 2)
    assert then["last_timestamp"] == "2023-11-14 22:13:21"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--version", "9", "orders/0"], "orders-0: expected one of the versions that are there, 0 to 4, found 9"),
        (
            ["--timestamp", "1970-01-02", "orders/0"],
            "orders-0: expected a version that was committed by 1970-01-02T00:00:00.000Z, found the oldest, 0, of ",
        ),
        (["nowhere"], "expected a topic of"),
    ],
)
def test_what_is_not_there_is_told_in_a_line(
    spark: SparkSession, root: JobRoot, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    assert run_job("offset_report", "--root", str(root.folder), *arguments) == 1
    assert message in capsys.readouterr().err


def test_groups_lag_in_the_topics_asked_for(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    hand_written = HandWrittenRoot(tmp_path / "root")
    hand_written.create_topic("orders", partitions=2)
    hand_written.append("orders", 0, (b"k", b"v"), (b"k", b"v"))
    groups = HandWrittenGroups(hand_written)
    groups.commit("billing", "orders", 0, 1)
    groups.commit("billing", "orders", 1, 0)
    assert run_job("offset_report", "--root", str(tmp_path / "root"), "--groups", "orders/0") == 0
    header, line = capsys.readouterr().out.splitlines()
    assert header.split() == [
        "group_id", "topic", "partition", "committed_offset", "log_end_offset", "lag", "client_id"
    ]  # fmt: skip
    assert line.split() == ["billing", "orders", "0", "1", "2", "1", "-"]


def path_of(part: str) -> str:
    command = [sys.executable, "-m", "bus", "jobs", "path", part]
    return subprocess.run(command, capture_output=True, text=True, timeout=100, check=True).stdout.strip()


def test_spark_submit_runs_a_job_with_its_own_master_and_settings(root: JobRoot) -> None:
    command = [
        str(Path(sys.executable).parent / "spark-submit"),
        *("--master", "local[1]"),
        *("--properties-file", path_of("conf")),
        *("--jars", path_of("jars")),
        *("--conf", "spark.driver.bindAddress=127.0.0.1", "--conf", "spark.driver.host=127.0.0.1"),
        *("--driver-java-options", "-XX:TieredStopAtLevel=1"),
        *(path_of("program"), "offset_report", "--root", str(root.folder), "--csv", "orders/0"),
    ]
    environment = {**os.environ, "PYSPARK_PYTHON": sys.executable, "PYTHONPATH": str(CHECKOUT)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    header, line = done.stdout.splitlines()
    assert numbers(dict(zip(header.split(","), line.split(","), strict=True))) == (4, 3, 6, 3, 0, 2)


# ------------------------------------------------------------------ arguments


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--root", "somewhere"], "TOPIC"),
        (
            ["--timestamp", "noon", "orders"],
            "expected a time like 2013-01-31T12:00, @-1h or @MILLISECONDS, found 'noon'",
        ),
        (["--version", "x", "orders"], "--version: expected N, TOPIC=N or TOPIC/PARTITION=N, found 'x'"),
        (["--version", "1", "--groups", "orders"], "expected one of --version, --timestamp and --groups"),
    ],
)
def test_arguments_are_checked(capsys: pytest.CaptureFixture[str], arguments: list[str], message: str) -> None:
    assert run_job("offset_report", *arguments) == 2
    assert message in capsys.readouterr().err


def test_a_version_may_be_named_for_single_partitions() -> None:
    assert parse_bound(["orders=3", "orders:1=2"]) == {"orders": 3, TopicPartition("orders", 1): 2}
