"""History from files into a topic: Parquet, a Delta table at one version, or records exported from Kafka as JSON.

Each file is a producer with a name, and its rows have sequences in the order of the file: the log takes a row whose key
(producer, epoch, sequence) it does not have, and passes over one that it has. So the job may be killed and run again:
files that are in the log as a whole are not sent again, rows of the others that are there are not appended again, and
both are counted.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

import click

from bus.cli.commands import BusCommand
from bus.cli.options import gathered, root_option
from bus.cli.output import echo
from bus.jobs.commands import EXIT_DONE, print_rows, run_job
from bus.jobs.options import (
    NOT_NEGATIVE,
    Brokers,
    batch_records_option,
    brokers_options,
    csv_option,
    tasks_option,
    timestamps_option,
    topic_argument,
)
from bus.spark.jobs import WHOLE_TIMES, JobFailed, StorageLevel, sql, tell
from bus.tables.topics import TopicTables

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

FORMATS = ("parquet", "delta", "kafka-json")
# As kcat -J writes them, a line each.
KAFKA_JSON_SCHEMA = (
    "topic string, partition int, offset bigint, tstype string, ts bigint, key string, payload string, "
    "headers array<string>"
)
_FILE, _SIZE, _POSITION = "__file", "__file_size", "__position"
_RECORD_COLUMNS = ("key", "value", "headers", "partition", "timestamp")


@dataclass(frozen=True, slots=True)
class Mapping:
    """The columns of the source by their part in a record. None: the one of that name, if there is one."""

    key: str | None = None
    value: str | None = None  # None, and no column of that name: all columns as JSON
    timestamp: str | None = None
    keeps_timestamps: bool = True
    keeps_partitions: bool = False


def kafka_json_rows(lines: DataFrame) -> DataFrame:
    """Kafka's columns, of those of `KAFKA_JSON_SCHEMA`; others stay. Its headers are names and values by turns."""
    pairs = sql.transform(
        sql.sequence(sql.lit(0), sql.floor(sql.size("headers") / 2).cast("int") - 1),
        lambda at: sql.struct(
            sql.get("headers", at * 2).alias("key"), sql.get("headers", at * 2 + 1).cast("binary").alias("value")
        ),
    )
    has_headers = sql.coalesce(sql.size("headers"), sql.lit(0)) > 1
    return (
        lines.withColumn("headers", sql.when(has_headers, pairs))
        .withColumn("value", sql.col("payload"))
        .withColumn("timestamp", sql.timestamp_millis("ts"))
        .drop("payload", "ts", "tstype")
    )


def as_records(rows: DataFrame, mapping: Mapping) -> DataFrame:
    """The columns of a record, as far as the source has them, and those that begin with `__`. Raises `JobFailed` for a
    column that is named and not there."""
    own = [name for name in rows.columns if name.startswith("__")]
    columns = [name for name in rows.columns if name not in own]
    for option, name in (("--key", mapping.key), ("--value", mapping.value), ("--timestamp", mapping.timestamp)):
        if name is not None and name not in columns:
            raise JobFailed(f"{option}: expected one of the columns {', '.join(columns)}, found {name}")
    found: dict[str, Column] = {}
    if key := mapping.key or _there("key", columns):
        found["key"] = _text_or_bytes(rows, key)
    if value := mapping.value or _there("value", columns):
        found["value"] = _text_or_bytes(rows, value)
    else:
        found["value"] = sql.to_json(sql.struct(*columns), {"ignoreNullFields": "false", **WHOLE_TIMES})
    if "headers" in columns:
        found["headers"] = sql.col("headers").cast("array<struct<key:string,value:binary>>")
    if mapping.keeps_partitions:
        found["partition"] = _named("partition", columns, "--keep-partitions").cast("int")
    if mapping.keeps_timestamps and (timestamp := mapping.timestamp or _there("timestamp", columns)):
        found["timestamp"] = _time(rows, timestamp)
    return rows.select(*own, *(column.alias(name) for name, column in found.items()))


def _time(rows: DataFrame, name: str) -> Column:
    """Raises `JobFailed` for numbers, which Spark would take for seconds."""
    kind = rows.schema[name].dataType.typeName()
    if kind not in ("timestamp", "timestamp_ntz", "date", "string"):
        raise JobFailed(
            f"--timestamp: expected a column of timestamps, dates or texts, found {name} of type {kind}, which has no "
            "unit; make it a timestamp in the source, or load with --timestamps now"
        )
    return sql.col(name).cast("timestamp")


def _there(name: str, columns: Sequence[str]) -> str | None:
    return name if name in columns else None


def _named(name: str, columns: Sequence[str], option: str) -> Column:
    if name not in columns:
        raise JobFailed(f"{option}: expected a column {name}, found {', '.join(columns)}")
    return sql.col(name)


def _text_or_bytes(rows: DataFrame, name: str) -> Column:
    kind = rows.schema[name].dataType.typeName()
    if kind in ("binary", "string"):
        return sql.col(name)
    is_nested = kind in ("struct", "array", "map")
    return sql.to_json(name, WHOLE_TIMES) if is_nested else sql.col(name).cast("string")


def in_file_order(rows: DataFrame, tasks: int) -> DataFrame:
    """Rows of a file together, in its order, the files by their paths. `rows` has `__file` and `__position`."""
    return rows.repartition(tasks, _FILE).sortWithinPartitions(_FILE, _POSITION)


def plan_loads(files: DataFrame, taken: DataFrame) -> DataFrame:
    """Say what is to be done about each file. `files`: file, producer, records; `taken`, what the log has of each
    producer: producer, taken. Columns here: file, producer, records, taken, is_done, in the order of the files."""
    return (
        files.join(taken, "producer", "left")
        .withColumn("taken", sql.coalesce("taken", sql.lit(0)))
        .withColumn("is_done", sql.col("taken") >= sql.col("records"))
        .select("file", "producer", "records", "taken", "is_done")
        .orderBy("file")
    )


def relative_path(file: str, source: str) -> str:
    """`file` as Spark names it, below `source`, so that a copy of the source elsewhere has the same names; a file
    outside of it keeps its whole path."""
    path = unquote(urlsplit(file).path)
    base = unquote(urlsplit(source).path) if "://" in source or source.startswith("file:") else os.path.abspath(source)
    base = base.rstrip("/")
    if path == base:
        return path.rsplit("/", 1)[-1]
    return path.removeprefix(base + "/")


# ------------------------------------------------------------ the job


@dataclass(frozen=True, slots=True)
class Load:
    """Files, the topic that they go into, and how they go there."""

    topic: str
    source: str
    format: str
    name: str
    source_version: int | None
    mapping: Mapping
    root: str
    brokers: Brokers
    tasks: int
    batch_records: int


@dataclass(frozen=True, slots=True)
class FileLoad:
    """A file of the source, and what the log has of it."""

    file: str  # as Spark names it
    producer: str
    records: int
    taken: int
    is_done: bool


def open_source(spark: SparkSession, load: Load) -> DataFrame:
    """The rows of all files, with `__file`, `__file_size` and `__position` in it. Raises `JobFailed`."""
    reader = spark.read
    if load.format == "kafka-json":
        lines = reader.schema(KAFKA_JSON_SCHEMA).option("mode", "FAILFAST").json(load.source)
        return _with_place(lines, kafka_json_rows, sql.struct("topic", "partition", "offset"))
    if load.format == "delta":
        if load.source_version is None:
            (newest,) = spark.sql(f"DESCRIBE HISTORY delta.`{load.source}` LIMIT 1").select("version").collect()
            raise JobFailed(
                f"--source-version: expected the version to load, so that a second run reads the same files; "
                f"the newest of {load.source} is {newest.version}"
            )
        reader = reader.option("versionAsOf", load.source_version)
    return _with_place(reader.format(load.format).load(load.source), None, sql.col("_metadata.row_index"))


def _with_place(rows: DataFrame, change: object, position: Column) -> DataFrame:
    placed = rows.select(
        "*",
        sql.col("_metadata.file_path").alias(_FILE),
        sql.col("_metadata.file_size").alias(_SIZE),
        position.alias(_POSITION),
    )
    return change(placed) if callable(change) else placed


def find_loads(spark: SparkSession, rows: DataFrame, load: Load) -> list[FileLoad]:
    from bus.spark.file_loads import producer_name, records_in_log

    counts = rows.groupBy(_FILE, _SIZE).count().collect()
    files = [
        (row[_FILE], producer_name(load.name, relative_path(row[_FILE], load.source), row[_SIZE]), row["count"])
        for row in counts
    ]
    taken = records_in_log(TopicTables(load.root), load.topic, [producer for _, producer, _ in files])
    plan = plan_loads(
        spark.createDataFrame(files, "file string, producer string, records long"),
        spark.createDataFrame(list(taken.items()), "producer string, taken long"),
    )
    return [FileLoad(**row.asDict()) for row in plan.collect()]


def send_files(spark: SparkSession, rows: DataFrame, files: Sequence[FileLoad], load: Load) -> None:
    from bus.spark.file_loads import FILE_COLUMN, BusFileSink

    producers = spark.createDataFrame(
        [(file.file, file.producer) for file in files], f"{_FILE} string, __producer string"
    )
    chosen = rows.where(sql.col(_FILE).isin([file.file for file in files])).join(sql.broadcast(producers), _FILE)
    ordered = in_file_order(as_records(chosen, load.mapping), load.tasks)
    columns = [name for name in _RECORD_COLUMNS if name in ordered.columns]
    given = {**load.brokers.options(), "topic": load.topic, "bus.order": "rows"}
    if "timestamp" in columns:
        given["bus.timestamps"] = "keep"
    spark.dataSource.register(BusFileSink)
    records = ordered.select(sql.col("__producer").alias(FILE_COLUMN), *columns)
    if load.format == "delta":
        # Delta prepares no scan of a query that writes to a source like ours, and fails where rows are deleted.
        records.persist(StorageLevel.DISK_ONLY)
    try:
        records.write.format(BusFileSink.name()).options(**given).mode("append").save()
    finally:
        records.unpersist()


def load_name(text: str) -> str:
    """Check the value of an option. Raises `click.BadParameter`."""
    if re.fullmatch(r"[a-zA-Z0-9._-]{1,200}", text) is None:
        raise click.BadParameter(f"expected 1 to 200 of the characters a-z A-Z 0-9 . _ -, found {text!r}")
    return text


@click.command(
    cls=BusCommand,
    examples="""
    bus jobs run backfill --name orders-2025 --source /data/orders --dry-run orders
    bus jobs run backfill --name orders-2025 --source /data/orders --key order_id orders
    bus jobs run backfill --name from-kafka --format kafka-json --source /data/dump orders
    """,
)
@brokers_options
@gathered(
    "mapping",
    Mapping,
    click.option(
        "--key",
        metavar="COLUMN",
        help="Column of the source that is the record's key.  [default: key, if it is there]",
    ),
    click.option(
        "--value", metavar="COLUMN", help="The record's value.  [default: value; without one all columns as JSON]"
    ),
    click.option("--timestamp", metavar="COLUMN", help="The record's time.  [default: timestamp, if it is there]"),
    timestamps_option("keep", "keep: as in the source, if it has some; now: those of the load."),
    click.option(
        "--keep-partitions",
        "keeps_partitions",
        is_flag=True,
        help="Rows go where the source's column partition says, not by key.",
    ),
)
@gathered(
    "load",
    Load,
    topic_argument("topic"),
    click.option("--source", required=True, metavar="PATH", help="A file, a folder or a Delta table."),
    click.option("--format", type=click.Choice(FORMATS), default="parquet", help="What the files are."),
    click.option(
        "--name",
        required=True,
        type=load_name,
        metavar="NAME",
        help="Name of this load: a second run with it passes over what is there.",
    ),
    click.option("--source-version", type=NOT_NEGATIVE, metavar="N", help="Version of a Delta table."),
    root_option(),
    tasks_option(1, "Files that are sent at once; with 1, their rows stay in the order of the files."),
    batch_records_option(5_000_000, "Records after which progress is shown; a file is never divided."),
)
@click.option("--dry-run", is_flag=True, help="Show the files and what the log has of them.")
@csv_option("With --dry-run: CSV instead of a table.")
def backfill(load: Load, dry_run: bool, is_csv: bool) -> int:
    """Load history from files into a topic, each row once, however often the job is run.

    Exit status 1 if something was refused or could not be done; what was sent by then is not sent again.
    """

    def work(spark: SparkSession) -> int:
        TopicTables(load.root).partitions(load.topic)  # one that is not there is refused first
        rows = open_source(spark, load)
        files = find_loads(spark, rows, load)
        if dry_run:
            plan = [(file.file, file.records, file.taken, file.is_done) for file in files]
            schema = "file string, records long, in_log long, is_done boolean"
            print_rows(spark.createDataFrame(plan, schema), is_csv=is_csv)
        else:
            _append(spark, rows, files, load)
        return EXIT_DONE

    return run_job("backfill", work)


def _append(spark: SparkSession, rows: DataFrame, files: Sequence[FileLoad], load: Load) -> None:
    with load.brokers.open_admin() as admin:
        admin.describe_topics([load.topic])
    wanted = [file for file in files if not file.is_done]
    records = sum(file.records for file in files)
    tell(f"{len(files)} files, {records:,} records; {len(files) - len(wanted)} files are in the log already")
    if wanted:
        _send(spark, rows, wanted, load)
    there = sum(file.taken for file in files)
    echo(f"appended {records - there:,} records, {there:,} of {records:,} were there already")


def _send(spark: SparkSession, rows: DataFrame, wanted: Sequence[FileLoad], load: Load) -> None:
    from bus.spark.file_loads import records_in_log

    started_s, done = time.monotonic(), 0
    total = sum(file.records for file in wanted)
    for group in batches_of(wanted, load.batch_records):
        send_files(spark, rows, group, load)
        taken = records_in_log(TopicTables(load.root), load.topic, [file.producer for file in group])
        for file in group:
            if taken[file.producer] != file.records:
                raise JobFailed(
                    f"{file.file}: expected {file.records} records in the log, as were counted in the file, "
                    f"found {taken[file.producer]}"
                )
        done += sum(file.records for file in group)
        rate = done / max(time.monotonic() - started_s, 0.001)
        tell(f"{done:,} of {total:,} records, {rate:,.0f} a second; up to {group[-1].file}")


def batches_of(loads: Sequence[FileLoad], records_max: int) -> Iterator[list[FileLoad]]:
    """Neighbours, as many as have `records_max` records together; one at least."""
    batch: list[FileLoad] = []
    for load in loads:
        if batch and sum(one.records for one in batch) + load.records > records_max:
            yield batch
            batch = []
        batch.append(load)
    if batch:
        yield batch
