"""Windows over a topic into another: what a window holds, when it is written, and that it is written once."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from decimal import Decimal
from pathlib import Path

import pytest
from chispa import assert_df_equality
from pyspark.sql import DataFrame, SparkSession

from bus.jobs.streaming_aggregate import as_topic_rows, parsed_records, windowed
from bus.records.json_text import parse_strict
from bus.spark.jobs import JobFailed
from tests.support.copied_records import Place, running_place
from tests.support.job_runs import run_job
from tests.support.spark_source import produce

NOON = datetime(2026, 11, 21, 12, tzinfo=timezone.utc)
SCHEMA = "shop string, total double, at timestamp"


def at(seconds: int) -> datetime:
    return NOON + timedelta(seconds=seconds)


def rows_of(spark: SparkSession, *rows: tuple[bytes | None, str, int]) -> DataFrame:
    """Key, value, seconds after noon."""
    found = [(key, value.encode(), at(seconds)) for key, value, seconds in rows]
    return spark.createDataFrame(found, "key binary, value binary, timestamp timestamp")


def order(shop: str, total: float, seconds: int) -> str:
    return json.dumps({"shop": shop, "total": total, "at": at(seconds).isoformat()})


def test_time_and_group_are_columns_of_the_value(spark: SparkSession) -> None:
    rows = rows_of(spark, (b"k", order("a", 1.5, 3), 100), (None, "no json", 200))
    assert_df_equality(
        parsed_records(rows, SCHEMA, key="shop", time="at"),
        spark.createDataFrame(
            [(at(3), "a", "a", 1.5, at(3)), (at(200), None, None, None, None)],
            f"event_time timestamp, group_key string, {SCHEMA}",
        ),
        ignore_nullable=True,
    )


def test_without_a_schema_they_are_the_records_own(spark: SparkSession) -> None:
    found = parsed_records(rows_of(spark, (b"k", "x", 5)), None, key=None, time=None)
    assert_df_equality(
        found, spark.createDataFrame([(at(5), "k")], "event_time timestamp, group_key string"), ignore_nullable=True
    )


def test_columns_that_the_schema_has_not_are_named(spark: SparkSession) -> None:
    rows = rows_of(spark, (b"k", "x", 5))
    with pytest.raises(JobFailed, match="--key: expected a column of --schema, shop, total, at, found nope"):
        parsed_records(rows, SCHEMA, key="nope", time=None)
    with pytest.raises(JobFailed, match="--time: expected a column of --schema, none, found at"):
        parsed_records(rows, None, key=None, time="at")
    records = parsed_records(rows, SCHEMA, key=None, time=None)
    with pytest.raises(JobFailed, match="--measure: expected a column of --schema, found nope"):
        windowed(records, window="1 minute", slide=None, late="1 second", measure="nope")


def test_a_window_has_the_figures_of_each_group(spark: SparkSession) -> None:
    values = [("a", 1.0, 0), ("a", 3.0, 59), ("b", 5.0, 10), ("a", 7.0, 60)]
    rows = rows_of(spark, *((b"k", order(*value), 0) for value in values))
    records = parsed_records(rows, SCHEMA, key="shop", time="at")
    assert_df_equality(
        windowed(records, window="1 minute", slide=None, late="1 second", measure="total"),
        spark.createDataFrame(
            [
                (at(0), at(60), "a", 2, 4.0, 1.0, 3.0, 2.0),
                (at(0), at(60), "b", 1, 5.0, 5.0, 5.0, 5.0),
                (at(60), at(120), "a", 1, 7.0, 7.0, 7.0, 7.0),
            ],
            "window_start timestamp, window_end timestamp, key string, records long, sum double, min double, "
            "max double, mean double",
        ),
        ignore_nullable=True,
        ignore_row_order=True,
    )


def test_results_are_json_under_the_key_of_their_group(spark: SparkSession) -> None:
    begin = NOON + timedelta(microseconds=123_456)
    results = spark.createDataFrame([(begin, None, 2)], "window_start timestamp, key string, records long")
    (row,) = as_topic_rows(results).collect()
    assert row.key is None
    assert json.loads(row.value) == {"window_start": "2026-11-21T12:00:00.123456Z", "key": None, "records": 2}


@pytest.mark.parametrize(
    ("kind", "numbers", "figures"),
    [
        (
            "decimal(20,2)",
            ["12345678901234567.89", "0.02"],
            {
                "sum": "12345678901234567.91",
                "min": "0.02",
                "max": "12345678901234567.89",
                "mean": "6172839450617283.955",
            },
        ),
        (
            "bigint",
            ["9007199254740993", "9223372036854775807"],
            {"sum": "9232379236109516800", "max": "9223372036854775807"},
        ),
        ("decimal(38,0)", ["9" * 38, "1"], {"sum": None, "max": "9" * 38}),
    ],
)
def test_figures_of_whole_numbers_and_decimals_have_all_digits_or_are_null(
    spark: SparkSession, kind: str, numbers: list[str], figures: dict[str, str | None]
) -> None:
    rows = rows_of(spark, *((b"k", f'{{"total":{number}}}', 0) for number in numbers))
    records = parsed_records(rows, f"total {kind}", key=None, time=None)
    results = windowed(records, window="1 minute", slide=None, late="1 second", measure="total")
    (row,) = as_topic_rows(results).collect()
    found = parse_strict(row.value, parse_float=Decimal, parse_int=Decimal)
    expected = {name: None if figure is None else Decimal(figure) for name, figure in figures.items()}
    assert {name: found[name] for name in figures} == expected


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    with running_place(tmp_path_factory.mktemp("broker") / "root") as place:
        place.create({"orders": 1, "per-minute": 2})
        yield place


def test_a_window_is_written_once_when_the_watermark_has_passed_it(
    spark: SparkSession, place: Place, tmp_path: Path
) -> None:
    arguments = ["--bootstrap", place.address, "--checkpoint", str(tmp_path / "c"), "--schema", SCHEMA]
    arguments += ["--key", "shop", "--time", "at", "--measure", "total", "--late", "10 seconds"]
    arguments += ["orders", "per-minute"]

    def run(*orders: tuple[str, float, int]) -> list[tuple[bytes, int, float]]:
        produce(place.port, "orders", [order(*one).encode() for one in orders])
        assert run_job("streaming_aggregate", *arguments) == 0
        found = [(row.key, json.loads(row.value)) for row in place.rows(spark, "per-minute")]
        return sorted((key, value["records"], value["sum"]) for key, value in found)

    assert run(("a", 1.0, 0), ("b", 2.0, 30), ("a", 4.0, 69)) == []  # the watermark is at 59 s
    assert run(("a", 8.0, 59), ("a", 16.0, 70)) == [(b"a", 2, 9.0), (b"b", 1, 2.0)]  # at 60 s


def test_each_change_of_a_window_is_written_at_once_if_asked_for(
    spark: SparkSession, place: Place, tmp_path: Path
) -> None:
    place.create({"sales": 1, "so-far": 1})
    arguments = ["--bootstrap", place.address, "--checkpoint", str(tmp_path / "c"), "--schema", SCHEMA]
    arguments += ["--key", "shop", "--time", "at", "--measure", "total", "--output-mode", "update", "sales", "so-far"]

    def run(*orders: tuple[str, float, int]) -> list[tuple[bytes, float]]:
        """All that was written so far, in order."""
        produce(place.port, "sales", [order(*one).encode() for one in orders])
        assert run_job("streaming_aggregate", *arguments) == 0
        rows = sorted(place.rows(spark, "so-far"), key=lambda row: row.offset)
        return [(row.key, json.loads(row.value)["sum"]) for row in rows]

    assert sorted(run(("a", 1.0, 0), ("b", 2.0, 30))) == [(b"a", 1.0), (b"b", 2.0)]
    assert run(("a", 4.0, 31))[2:] == [(b"a", 5.0)]


def test_sums_do_not_depend_on_the_order_of_records(spark: SparkSession) -> None:
    numbers = [0.1, 0.2, 0.3, 1e15, -1e15]

    def sum_of(numbers: list[float]) -> float:
        rows = rows_of(spark, *((b"k", order("a", number, 0), 0) for number in numbers)).coalesce(1)
        records = parsed_records(rows, SCHEMA, key="shop", time="at")
        (found,) = windowed(records, window="1 minute", slide=None, late="1 second", measure="total").collect()
        return float(found["sum"])

    assert sum_of(numbers) == sum_of(numbers[::-1]) == 0.6


def test_wrong_arguments_and_topics_are_told(
    spark: SparkSession, place: Place, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for wrong in (["orders", "orders"], ["--to-offset", "5", "orders", "per-minute"]):
        assert run_job("streaming_aggregate", "--checkpoint", "c", *wrong) == 2
    common = ["--bootstrap", place.address, "--checkpoint", str(tmp_path / "c")]
    assert run_job("streaming_aggregate", *common, "orders", "nope") == 1
    assert run_job("streaming_aggregate", *common, "--window", "soon", "orders", "per-minute") == 1
    told = capsys.readouterr().err
    assert "expected another topic than orders" in told
    assert "expected no end" in told
    assert "found 'nope'" in told
    assert "soon" in told
