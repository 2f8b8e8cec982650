"""History from files: which columns become which, in which order, and each row once, whatever is run again."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from collections.abc import Mapping as AbstractMapping
from datetime import datetime, timezone
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from chispa import assert_df_equality
from pyspark.sql import SparkSession

from bus.jobs.backfill import (
    FileLoad,
    Mapping,
    as_records,
    batches_of,
    kafka_json_rows,
    plan_loads,
    relative_path,
)
from bus.spark.file_loads import FILE_COLUMN, producer_name, records_in_log, write_files
from bus.spark.jobs import JobFailed
from bus.tables.topics import TopicTables
from tests.support.copied_records import Place, running_place
from tests.support.job_runs import run_job

WHEN = datetime(2025, 3, 1, 12, tzinfo=timezone.utc)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    with running_place(tmp_path_factory.mktemp("broker") / "root") as place:
        place.create({"orders": 2, "dumped": 2, "from-delta": 1})
        yield place


# ------------------------------------------------------------ columns


def test_named_columns_become_key_value_and_time(spark: SparkSession) -> None:
    rows = spark.createDataFrame([(7, "v", WHEN, "f")], "id int, body string, placed timestamp, __file string")
    found = as_records(rows, Mapping(key="id", value="body", timestamp="placed"))
    expected = spark.createDataFrame(
        [("f", "7", "v", WHEN)], "__file string, key string, value string, timestamp timestamp"
    )
    assert_df_equality(found, expected)


def test_without_a_value_all_columns_are_json_and_nulls_stay(spark: SparkSession) -> None:
    rows = spark.createDataFrame([(7, None, "f")], "id int, name string, __file string")
    (found,) = as_records(rows, Mapping(key="id")).collect()
    assert (found.key, found.value) == ("7", '{"id":7,"name":null}')


def test_number_without_a_unit_is_no_time(spark: SparkSession) -> None:
    for kind in ("bigint", "int", "double", "decimal(20,0)"):
        rows = spark.createDataFrame([("v",)], "value string").selectExpr(
            "value", f"CAST(1700000000000 AS {kind}) AS ts"
        )
        with pytest.raises(JobFailed, match=r"--timestamp: expected a column of timestamps.*, found ts of type"):
            as_records(rows, Mapping(timestamp="ts"))
        assert as_records(rows, Mapping(timestamp="ts", keeps_timestamps=False)).columns == ["value"]


def test_numbers_and_times_in_json_keep_their_digits(spark: SparkSession) -> None:
    rows = spark.sql("SELECT timestamp'2020-01-01 00:00:00.123456' AS at, 0.10000000000000000001BD AS amount, 1L AS n")
    (found,) = as_records(rows, Mapping()).collect()
    assert found.value == '{"at":"2020-01-01T00:00:00.123456Z","amount":0.10000000000000000001,"n":1}'
    nested = rows.selectExpr("struct(*) AS value")
    assert as_records(nested, Mapping()).collect() == [found]


def test_kafkas_columns_are_taken_by_their_names(spark: SparkSession) -> None:
    rows = spark.createDataFrame(
        [(b"k", b"v", "t", 1, WHEN)], "key binary, value binary, topic string, partition int, timestamp timestamp"
    )
    assert as_records(rows, Mapping()).columns == ["key", "value", "timestamp"]
    kept = as_records(rows, Mapping(keeps_timestamps=False, keeps_partitions=True))
    assert kept.columns == ["key", "value", "partition"]


def test_column_that_is_not_there_is_named(spark: SparkSession) -> None:
    rows = spark.createDataFrame([(1,)], "id int")
    with pytest.raises(JobFailed, match="--key: expected one of the columns id, found no"):
        as_records(rows, Mapping(key="no"))
    with pytest.raises(JobFailed, match="--keep-partitions: expected a column partition, found id"):
        as_records(rows, Mapping(keeps_partitions=True))


def test_lines_of_kcat_become_kafkas_rows(spark: SparkSession) -> None:
    lines = spark.createDataFrame(
        [
            ("t", 0, 5, "create", 1_000, "k", "v", ["a", "1", "b", None]),
            ("t", 0, 6, "create", None, None, None, None),
            ("t", 0, 7, "create", 2_000, None, "w", []),
        ],
        "topic string, partition int, offset bigint, tstype string, ts bigint, key string, payload string, "
        "headers array<string>",
    )
    first, second, third = kafka_json_rows(lines).collect()
    assert [(header.key, header.value) for header in first.headers] == [("a", b"1"), ("b", None)]
    assert (first.key, first.value, first.timestamp.timestamp()) == ("k", "v", 1.0)
    assert (second.key, second.value, second.headers, second.timestamp) == (None, None, None, None)
    assert third.headers is None


# ------------------------------------------------------------ files


def test_file_that_the_log_has_as_a_whole_is_done(spark: SparkSession) -> None:
    files = spark.createDataFrame(
        [("c", "p3", 10), ("a", "p1", 10), ("b", "p2", 10)], "file string, producer string, records long"
    )
    taken = spark.createDataFrame([("p1", 10), ("p2", 9)], "producer string, taken long")
    assert_df_equality(
        plan_loads(files, taken),
        spark.createDataFrame(
            [("a", "p1", 10, 10, True), ("b", "p2", 10, 9, False), ("c", "p3", 10, 0, False)],
            "file string, producer string, records long, taken long, is_done boolean",
        ),
        ignore_nullable=True,
    )


def test_a_file_is_known_by_its_path_below_the_source() -> None:
    assert relative_path("file:///data/a%20b/x/1.parquet", "/data/a b/") == "x/1.parquet"
    assert relative_path("hdfs://n:1/data/1.parquet", "hdfs://n:1/data") == "1.parquet"
    assert relative_path("file:/data/1.parquet", "/data/1.parquet") == "1.parquet"
    assert relative_path("file:/data/1.parquet", "/data/*.parquet") == "/data/1.parquet"
    names = {
        producer_name("l", "a", 1),
        producer_name("l", "a", 2),
        producer_name("l", "b", 1),
        producer_name("m", "a", 1),
    }
    assert len(names) == 4


def test_rows_are_cut_where_another_file_begins() -> None:
    def batch(*files: str) -> pa.RecordBatch:
        return pa.RecordBatch.from_pydict({FILE_COLUMN: list(files), "value": [file.encode() for file in files]})

    seen: list[tuple[str, list[bytes]]] = []

    def write(producer: str, batches: Iterator[pa.RecordBatch]) -> int:
        seen.append((producer, [value for batch in batches for value in batch.column("value").to_pylist()]))
        return len(seen[-1][1])

    assert write_files([batch("a", "a"), batch("a", "b", "c"), batch(), batch("c")], write) == 6
    assert seen == [("a", [b"a"] * 3), ("b", [b"b"]), ("c", [b"c"] * 2)]


def test_files_are_grouped_up_to_the_records_asked_for() -> None:
    loads = [FileLoad(name, name, records, 0, False) for name, records in (("a", 5), ("b", 5), ("c", 1), ("d", 30))]
    assert ["".join(load.file for load in batch) for batch in batches_of(loads, 10)] == ["ab", "c", "d"]
    assert list(batches_of([], 10)) == []


# ------------------------------------------------------------ the job


def write_file(folder: Path, name: str, values: range) -> None:
    folder.mkdir(exist_ok=True)
    table = pa.table(
        {
            "id": [f"k{value % 3}" for value in values],
            "value": [str(value) for value in values],
            "at": pa.array([WHEN] * len(values), pa.timestamp("us", "UTC")),
        }
    )
    pq.write_table(table, folder / name, row_group_size=7)


def test_each_row_is_there_once_in_order_whatever_is_run_again(
    spark: SparkSession, place: Place, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = tmp_path / "history"
    write_file(source, "1.parquet", range(30))
    write_file(source, "2.parquet", range(30, 50))
    arguments = ["--name", "h", "--source", str(source), "--key", "id", "--timestamp", "at", "--root", str(place.root)]
    arguments += ["--bootstrap", place.address, "orders"]
    assert run_job("backfill", *arguments) == 0
    assert capsys.readouterr().out == "appended 50 records, 0 of 50 were there already\n"
    rows = place.rows(spark, "orders")
    assert sorted(int(row.value) for row in rows) == list(range(50))
    for key in (b"k0", b"k1", b"k2"):
        of_key = [int(row.value) for row in rows if row.key == key]
        assert of_key == sorted(of_key)
    assert {row.timestamp.timestamp() for row in rows} == {WHEN.timestamp()}

    write_file(source, "3.parquet", range(50, 60))
    assert run_job("backfill", "--dry-run", "--csv", *arguments) == 0
    told = capsys.readouterr().out.splitlines()
    assert [line.split("/")[-1] for line in told[1:]] == [
        "1.parquet,30,30,True",
        "2.parquet,20,20,True",
        "3.parquet,10,0,False",
    ]
    assert run_job("backfill", "--tasks", "2", *arguments) == 0
    captured = capsys.readouterr()
    assert captured.out == "appended 10 records, 50 of 60 were there already\n"
    assert "3 files, 60 records; 2 files are in the log already" in captured.err
    assert sorted(int(row.value) for row in place.rows(spark, "orders")) == list(range(60))


def test_rows_of_a_file_that_was_cut_off_are_not_appended_again(
    spark: SparkSession, place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The log does not take what it has, even if the job does not know it."""
    source = tmp_path / "dump.json"
    lines = [
        f'{{"topic":"t","partition":{n % 2},"offset":{n},"tstype":"create","ts":{n},"key":null,"payload":"{n}"}}'
        for n in reversed(range(20))
    ]
    source.write_text("\n".join(lines) + "\n")
    arguments = ["--name", "d", "--format", "kafka-json", "--source", str(source), "--keep-partitions"]
    arguments += ["--root", str(place.root), "--bootstrap", place.address, "dumped"]
    assert run_job("backfill", *arguments) == 0
    asked: list[Collection[str]] = []

    def forgetful(tables: TopicTables, topic: str, producers: Collection[str]) -> AbstractMapping[str, int]:
        asked.append(producers)
        return dict.fromkeys(producers, 4) if len(asked) == 1 else records_in_log(tables, topic, producers)

    monkeypatch.setattr("bus.spark.file_loads.records_in_log", forgetful)
    assert run_job("backfill", *arguments) == 0
    rows = place.rows(spark, "dumped")
    assert [(row.partition, int(row.value)) for row in rows] == [
        (n % 2, n) for n in [*range(0, 20, 2), *range(1, 20, 2)]
    ]


def test_a_delta_table_is_loaded_at_one_version_without_its_deleted_rows(
    spark: SparkSession, place: Place, tmp_path: Path
) -> None:
    table = str(tmp_path / "table")
    rows = spark.range(10).selectExpr("cast(id as string) value", "1 half").coalesce(1).write.format("delta")
    rows.partitionBy("half").option("delta.enableDeletionVectors", "true").save(table)
    spark.sql(f"DELETE FROM delta.`{table}` WHERE value = '4'")
    spark.sql(f"INSERT INTO delta.`{table}` VALUES ('later', 1)")
    arguments = ["--name", "t", "--format", "delta", "--source", table, "--source-version", "1"]
    arguments += ["--root", str(place.root), "--bootstrap", place.address, "from-delta"]
    assert run_job("backfill", *arguments) == 0
    assert [row.value for row in place.rows(spark, "from-delta")] == [b"%d" % n for n in range(10) if n != 4]


def test_a_delta_table_without_a_version_is_refused_with_its_newest(
    spark: SparkSession, place: Place, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    spark.range(1).write.format("delta").save(str(tmp_path / "table"))
    arguments = ["--name", "t", "--format", "delta", "--source", str(tmp_path / "table"), "--root", str(place.root)]
    assert run_job("backfill", *arguments, "from-delta") == 1
    assert "--source-version: expected the version to load" in capsys.readouterr().err


def test_topic_and_columns_that_are_not_there_are_told(
    spark: SparkSession, place: Place, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_file(tmp_path / "s", "1.parquet", range(3))
    common = ["--name", "x", "--source", str(tmp_path / "s"), "--root", str(place.root), "--bootstrap", place.address]
    assert run_job("backfill", *common, "nope") == 1
    assert run_job("backfill", *common, "--key", "nope", "orders") == 1
    told = capsys.readouterr().err
    assert "found 'nope'; topics there: dumped, from-delta, orders" in told
    assert "error: --key: expected one of the columns id, value, at, found nope" in told
    assert run_job("backfill", "--name", "a/b", "--source", "s", "t") == 2
    assert "expected 1 to 200 of the characters a-z A-Z 0-9 . _ -, found 'a/b'" in capsys.readouterr().err
