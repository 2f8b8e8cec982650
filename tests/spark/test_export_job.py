"""A topic as files: what columns become, and each record once over several runs."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import date, datetime, timezone
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pytest
from chispa import assert_df_equality
from pyspark.sql import DataFrame, SparkSession

from bus import Producer
from bus.jobs.export import exported
from bus.spark.jobs import JobFailed
from tests.support.copied_records import Place, running_place
from tests.support.job_runs import run_job
from tests.support.spark_source import produce

ROWS_SCHEMA = (
    "key binary, value binary, topic string, partition int, offset bigint, timestamp timestamp, timestampType int, "
    "headers array<struct<key:string,value:binary>>"
)
WHEN = datetime(2026, 11, 21, 23, 30, tzinfo=timezone.utc)


def rows_of(spark: SparkSession, *values: bytes | None) -> DataFrame:
    rows = [(b"k", value, "t", 0, offset, WHEN, 0, [("h", b"1")]) for offset, value in enumerate(values)]
    return spark.createDataFrame(rows, ROWS_SCHEMA)


def test_bytes_stay_bytes(spark: SparkSession) -> None:
    found = exported(rows_of(spark, b"\xff", None), values="binary", schema=None, is_flat=False, by_date=False)
    expected = rows_of(spark, b"\xff", None).select(
        "topic", "partition", "offset", "timestamp", "key", "value", "headers"
    )
    assert_df_equality(found, expected, ignore_nullable=True)


@pytest.mark.parametrize(("values", "key", "value"), [("text", "k", "v"), ("base64", "aw==", "dg==")])
def test_bytes_become_texts_and_headers_one_column(spark: SparkSession, values: str, key: str, value: str) -> None:
    found = exported(rows_of(spark, b"v"), values=values, schema=None, is_flat=True, by_date=True)
    header = "1" if values == "text" else "MQ=="
    expected = spark.createDataFrame(
        [("t", 0, 0, WHEN, key, value, f'[{{"key":"h","value":"{header}"}}]', date(2026, 11, 21))],
        "topic string, partition int, offset bigint, timestamp timestamp, key string, value string, headers string, "
        "date date",
    )
    assert_df_equality(found, expected, ignore_nullable=True)


def test_json_becomes_a_struct_or_columns_of_its_own_and_null_where_it_is_none(spark: SparkSession) -> None:
    rows = rows_of(spark, b'{"id":7,"name":"a"}', b"no json", None)
    nested = exported(rows, values="json", schema="id bigint, name string", is_flat=False, by_date=False)
    assert [row.value and row.value.id for row in nested.collect()] == [7, None, None]
    flat = exported(rows, values="json", schema="id bigint, name string", is_flat=True, by_date=False)
    assert flat.columns == [*("topic", "partition", "offset", "timestamp", "key", "value_id", "value_name", "headers")]
    assert [(row.value_id, row.value_name) for row in flat.collect()] == [(7, "a"), (None, None), (None, None)]


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--format", "csv", "--values", "binary"], "expected text, base64 or json for csv, found binary"),
        (["--values", "json"], "expected --schema with --values json"),
        (["--schema", "id int"], "expected --schema with --values json"),
        (["--continuous", "--to-offset", "5"], "expected --continuous or an end, found both"),
        (["--from-offset", "1", "--from-time", "2026-01-01"], "expected --from-offset or --from-time, found both"),
    ],
)
def test_wrong_arguments_are_refused(arguments: list[str], told: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_job("export", "--to", "x", "--checkpoint", "c", "t", *arguments) == 2
    assert told in capsys.readouterr().err


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    with running_place(tmp_path_factory.mktemp("broker") / "root") as place:
        place.create({"orders": 2})
        for partition in range(2):
            produce(place.port, "orders", (b"%d" % n for n in range(20)), partition)
        yield place


def test_each_run_adds_what_has_come_since(spark: SparkSession, place: Place, tmp_path: Path) -> None:
    arguments = ["--bootstrap", place.address, "--to", str(tmp_path / "d"), "--checkpoint", str(tmp_path / "c")]
    arguments += ["--values", "text", "--from-offset", "5"]
    assert run_job("export", *arguments, "--to-offset", "1=8", "orders") == 0
    first = spark.read.format("delta").load(str(tmp_path / "d"))
    places = [(partition, offset) for partition, end in ((0, 20), (1, 8)) for offset in range(5, end)]
    assert sorted((row.partition, int(row.value)) for row in first.collect()) == places


def test_the_same_checkpoint_goes_on_from_the_storage_alone(spark: SparkSession, place: Place, tmp_path: Path) -> None:
    arguments = ["--root", str(place.root), "--to", str(tmp_path / "d"), "--checkpoint", str(tmp_path / "c")]
    arguments += ["--format", "csv", "orders"]
    assert run_job("export", *arguments) == 0
    produce(place.port, "orders", [b"20"], 1)
    assert run_job("export", *arguments) == 0
    found = spark.read.option("header", "true").csv(str(tmp_path / "d")).collect()
    expected = [(str(partition), str(n), str(n)) for partition, end in ((0, 20), (1, 21)) for n in range(end)]
    assert sorted((row.partition, row.offset, row.value) for row in found) == sorted(expected)


def test_numbers_of_json_are_exact_or_null_as_in_views(spark: SparkSession) -> None:
    values = [b'{"t":12345678901234567.890,"m":1.10}', b'{"t":"x","m":1.005}', b'{"t":"a","t":"b"}', b'{"m":1e400}']
    found = exported(
        rows_of(spark, *values), values="json", schema="t string, m decimal(10,2)", is_flat=False, by_date=False
    ).collect()
    assert [None if row.value is None else tuple(row.value) for row in found] == [
        ("12345678901234567.890", Decimal("1.10")),
        ("x", None),
        None,
        (None, None),
    ]


def test_a_schema_that_no_view_can_have_is_refused(spark: SparkSession) -> None:
    with pytest.raises(JobFailed, match=r"--schema: expected one of STRING, .*, found 'map'"):
        exported(rows_of(spark, b"{}"), values="json", schema="a map<string,int>", is_flat=False, by_date=False)


def test_times_have_their_microseconds_in_every_format(spark: SparkSession, place: Place, tmp_path: Path) -> None:
    place.create({"times": 1})
    time = datetime(2026, 11, 21, 12, 0, 0, 123_456, tzinfo=timezone.utc)
    with Producer(place.address) as producer:
        producer.send_batch(
            "times", pa.table({"value": [b"v"], "timestamp": pa.array([time], pa.timestamp("us", "UTC"))})
        )
    for form in ("csv", "json"):
        arguments = [
            "--root",
            str(place.root),
            "--to",
            str(tmp_path / form),
            "--checkpoint",
            str(tmp_path / f"c-{form}"),
        ]
        assert run_job("export", *arguments, "--format", form, "times") == 0
        (written,) = (tmp_path / form).glob(f"*.{form}")
        assert "12:00:00.123456" in written.read_text()


def test_format_that_cannot_hold_the_columns_and_a_missing_topic_are_told(
    spark: SparkSession, place: Place, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_job("export", "--root", str(place.root), "--to", "x", "--checkpoint", str(tmp_path / "c"), "nope") == 1
    assert "found 'nope'; topics there: orders" in capsys.readouterr().err
