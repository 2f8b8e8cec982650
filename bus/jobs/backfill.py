"""History from files into a topic: Parquet, a Delta table at one version, or records exported from Kafka as JSON.

    python -m bus.jobs.backfill --name orders-2025 --source /data/orders --key order_id --timestamp placed_at orders
    python -m bus.jobs.backfill --name from-kafka --format kafka-json --source /data/dump orders

Each file is a producer with a name, and its rows have sequences in the order of the file: the log takes a row whose key
(producer, epoch, sequence) it does not have, and passes over one that it has. So the job may be killed and run again:
files that are in the log as a whole are not sent again, rows of the others that are there are not appended again, and
both are counted.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from bus.spark import jobs
from bus.spark.jobs import StorageLevel, sql
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
    """Which columns of the source are which of a record. None: the one of that name, if there is one."""

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
            raise jobs.JobFailed(f"{option}: expected one of the columns {', '.join(columns)}, found {name}")
    found: dict[str, Column] = {}
    if key := mapping.key or _there("key", columns):
        found["key"] = _text_or_bytes(rows, key)
    if value := mapping.value or _there("value", columns):
        found["value"] = _text_or_bytes(rows, value)
    else:
        found["value"] = sql.to_json(sql.struct(*columns), {"ignoreNullFields": "false", **jobs.WHOLE_TIMES})
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
        raise jobs.JobFailed(
            f"--timestamp: expected a column of timestamps, dates or texts, found {name} of type {kind}, which has no "
            "unit; make it a timestamp in the source, or load with --timestamps now"
        )
    return sql.col(name).cast("timestamp")


def _there(name: str, columns: Sequence[str]) -> str | None:
    return name if name in columns else None


def _named(name: str, columns: Sequence[str], option: str) -> Column:
    if name not in columns:
        raise jobs.JobFailed(f"{option}: expected a column {name}, found {', '.join(columns)}")
    return sql.col(name)


def _text_or_bytes(rows: DataFrame, name: str) -> Column:
    kind = rows.schema[name].dataType.typeName()
    if kind in ("binary", "string"):
        return sql.col(name)
    is_nested = kind in ("struct", "array", "map")
    return sql.to_json(name, jobs.WHOLE_TIMES) if is_nested else sql.col(name).cast("string")


def in_file_order(rows: DataFrame, tasks: int) -> DataFrame:
    """Rows of a file together, in its order, the files by their paths. `rows` has `__file` and `__position`."""
    return rows.repartition(tasks, _FILE).sortWithinPartitions(_FILE, _POSITION)


def plan_loads(files: DataFrame, taken: DataFrame) -> DataFrame:
    """What is to be done about each file. `files`: file, producer, records; `taken`, what the log has of each producer:
    producer, taken. Columns here: file, producer, records, taken, is_done, in the order of the files."""
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
class FileLoad:
    """A file of the source, and what the log has of it."""

    file: str  # as Spark names it
    producer: str
    records: int
    taken: int
    is_done: bool


def open_source(spark: SparkSession, options: argparse.Namespace) -> DataFrame:
    """The rows of all files, with `__file`, `__file_size` and `__position` in it. Raises `JobFailed`."""
    reader = spark.read
    if options.format == "kafka-json":
        lines = reader.schema(KAFKA_JSON_SCHEMA).option("mode", "FAILFAST").json(options.source)
        return _with_place(lines, kafka_json_rows, sql.struct("topic", "partition", "offset"))
    if options.format == "delta":
        if options.source_version is None:
            (newest,) = spark.sql(f"DESCRIBE HISTORY delta.`{options.source}` LIMIT 1").select("version").collect()
            raise jobs.JobFailed(
                f"--source-version: expected the version to load, so that a second run reads the same files; "
                f"the newest of {options.source} is {newest.version}"
            )
        reader = reader.option("versionAsOf", options.source_version)
    return _with_place(reader.format(options.format).load(options.source), None, sql.col("_metadata.row_index"))


def _with_place(rows: DataFrame, change: object, position: Column) -> DataFrame:
    placed = rows.select(
        "*",
        sql.col("_metadata.file_path").alias(_FILE),
        sql.col("_metadata.file_size").alias(_SIZE),
        position.alias(_POSITION),
    )
    return change(placed) if callable(change) else placed


def find_loads(spark: SparkSession, rows: DataFrame, options: argparse.Namespace) -> list[FileLoad]:
    from bus.spark.file_loads import producer_name, records_in_log

    counts = rows.groupBy(_FILE, _SIZE).count().collect()
    files = [
        (row[_FILE], producer_name(options.name, relative_path(row[_FILE], options.source), row[_SIZE]), row["count"])
        for row in counts
    ]
    taken = records_in_log(TopicTables(options.root), options.topic, [producer for _, producer, _ in files])
    plan = plan_loads(
        spark.createDataFrame(files, "file string, producer string, records long"),
        spark.createDataFrame(list(taken.items()), "producer string, taken long"),
    )
    return [FileLoad(**row.asDict()) for row in plan.collect()]


def send_files(spark: SparkSession, rows: DataFrame, loads: Sequence[FileLoad], options: argparse.Namespace) -> None:
    from bus.spark.file_loads import FILE_COLUMN, BusFileSink

    producers = spark.createDataFrame(
        [(load.file, load.producer) for load in loads], f"{_FILE} string, __producer string"
    )
    chosen = rows.where(sql.col(_FILE).isin([load.file for load in loads])).join(sql.broadcast(producers), _FILE)
    mapping = Mapping(
        options.key, options.value, options.timestamp, options.timestamps == "keep", options.keep_partitions
    )
    ordered = in_file_order(as_records(chosen, mapping), options.tasks)
    columns = [name for name in _RECORD_COLUMNS if name in ordered.columns]
    given = {**jobs.broker_options(options), "topic": options.topic, "bus.order": "rows"}
    if "timestamp" in columns:
        given["bus.timestamps"] = "keep"
    spark.dataSource.register(BusFileSink)
    records = ordered.select(sql.col("__producer").alias(FILE_COLUMN), *columns)
    if options.format == "delta":
        # Delta prepares no scan of a query that writes to a source like ours, and fails where rows are deleted.
        records.persist(StorageLevel.DISK_ONLY)
    try:
        records.write.format(BusFileSink.name()).options(**given).mode("append").save()
    finally:
        records.unpersist()


def parse_arguments(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="backfill",
        description="History from files into a topic, each row once, however often the job is run.",
        epilog="Exit code 1 if something was refused or could not be done; what was sent by then is not sent again.",
    )
    parser.add_argument("topic")
    parser.add_argument("--source", required=True, metavar="PATH", help="a file, a folder or a Delta table")
    parser.add_argument("--format", choices=FORMATS, default="parquet", help="(default: parquet)")
    parser.add_argument(
        "--name",
        required=True,
        type=load_name,
        help="name of this load: a second run with it passes over what is there",
    )
    parser.add_argument(
        "--source-version", type=jobs.whole_number, metavar="N", help="version of a Delta table (default: the newest)"
    )
    parser.add_argument(
        "--key", metavar="COLUMN", help="column of the source that is the record's key (default: key, if it is there)"
    )
    parser.add_argument(
        "--value", metavar="COLUMN", help="the record's value (default: value; without one all columns as JSON)"
    )
    parser.add_argument("--timestamp", metavar="COLUMN", help="the record's time (default: timestamp, if it is there)")
    parser.add_argument(
        "--timestamps",
        choices=("keep", "now"),
        default="keep",
        help="keep: as in the source, if it has some; now: those of the load (default: keep)",
    )
    parser.add_argument(
        "--keep-partitions", action="store_true", help="rows go where the source's column partition says, not by key"
    )
    jobs.add_root_argument(parser)
    jobs.add_bootstrap_argument(parser)
    parser.add_argument(
        "--tasks",
        type=jobs.positive_number,
        default=1,
        metavar="N",
        help="files that are sent at once; with 1, their rows stay in the order of the files (default: 1)",
    )
    parser.add_argument(
        "--batch-records",
        type=jobs.positive_number,
        default=5_000_000,
        metavar="N",
        help="records after which progress is shown; a file is never divided (default: 5000000)",
    )
    parser.add_argument("--dry-run", action="store_true", help="show the files and what the log has of them")
    parser.add_argument("--csv", action="store_true", help="with --dry-run: CSV instead of a table")
    return parser.parse_args(arguments)


def load_name(text: str) -> str:
    if re.fullmatch(r"[a-zA-Z0-9._-]{1,200}", text) is None:
        raise argparse.ArgumentTypeError(f"expected 1 to 200 of the characters a-z A-Z 0-9 . _ -, found {text!r}")
    return text


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit code."""
    options = parse_arguments(arguments)
    return jobs.run_job("backfill", partial(_backfill, options))


def _backfill(options: argparse.Namespace, spark: SparkSession) -> int:
    TopicTables(options.root).partitions(options.topic)  # one that is not there is refused first
    rows = open_source(spark, options)
    loads = find_loads(spark, rows, options)
    if options.dry_run:
        plan = [(load.file, load.records, load.taken, load.is_done) for load in loads]
        jobs.print_rows(
            spark.createDataFrame(plan, "file string, records long, in_log long, is_done boolean"), csv=options.csv
        )
        return jobs.EXIT_DONE
    with jobs.open_admin(options) as admin:
        admin.describe_topics([options.topic])
    wanted = [load for load in loads if not load.is_done]
    records = sum(load.records for load in loads)
    jobs.tell(f"{len(loads)} files, {records:,} records; {len(loads) - len(wanted)} files are in the log already")
    if wanted:
        _send(spark, rows, wanted, options)
    there = sum(load.taken for load in loads)
    jobs.print_result(f"appended {records - there:,} records, {there:,} of {records:,} were there already")
    return jobs.EXIT_DONE


def _send(spark: SparkSession, rows: DataFrame, wanted: Sequence[FileLoad], options: argparse.Namespace) -> None:
    from bus.spark.file_loads import records_in_log

    started_s, done = time.monotonic(), 0
    total = sum(load.records for load in wanted)
    for group in batches_of(wanted, options.batch_records):
        send_files(spark, rows, group, options)
        taken = records_in_log(TopicTables(options.root), options.topic, [load.producer for load in group])
        for load in group:
            if taken[load.producer] != load.records:
                raise jobs.JobFailed(
                    f"{load.file}: expected {load.records} records in the log, as were counted in the file, "
                    f"found {taken[load.producer]}"
                )
        done += sum(load.records for load in group)
        rate = done / max(time.monotonic() - started_s, 0.001)
        jobs.tell(f"{done:,} of {total:,} records, {rate:,.0f} a second; up to {group[-1].file}")


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


if __name__ == "__main__":
    sys.exit(main())
