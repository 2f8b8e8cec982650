from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING

import pytest
from chispa import assert_df_equality

from jobs.offset_report import offset_report, parse_arguments

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

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
    assert_df_equality(offset_report(records), expected, ignore_nullable=True)


def test_empty_topics_have_no_rows(spark: SparkSession) -> None:
    assert offset_report(spark.createDataFrame([], RECORDS)).count() == 0


def test_at_least_one_topic_is_expected(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse_arguments(["--root", "somewhere"])
    assert "TOPIC" in capsys.readouterr().err
