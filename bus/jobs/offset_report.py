"""A report of what each partition of some topics holds: where its log begins and ends, records, times, files, and who
lags behind.

Reads the tables with Spark and needs no broker. Writes nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import reduce
from typing import TYPE_CHECKING

import click

import bus.spark
from bus.cli.commands import BusCommand
from bus.cli.options import root_option
from bus.cli.partition_arguments import TimestampType
from bus.jobs.commands import EXIT_DONE, print_rows, run_job
from bus.jobs.options import csv_option, partitions_argument
from bus.model import TopicPartition
from bus.spark.jobs import partitions_named, sql
from bus.spark.log_files import table_at
from bus.tables.point_in_time import Bound, bound_of, parse_bound
from bus.tables.system_views import read_view
from bus.tables.topics import TopicTables

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

LOG_SCHEMA = (
    "topic string, partition int, version long, log_start_offset long, log_end_offset long, files long, bytes long"
)
_PLACE = ["topic", "partition"]


def records_report(records: DataFrame) -> DataFrame:
    """A row for each (topic, partition) that has a record, in their order.

    `records` has the columns topic, partition, offset, timestamp. The columns here: topic, partition, records,
    first_offset, last_offset, missing (offsets between those two without a record: 0 unless the topic is compacted),
    first_timestamp, last_timestamp.
    """
    span = sql.max("offset") - sql.min("offset") + 1
    return (
        records.groupBy(*_PLACE)
        .agg(
            sql.count("*").alias("records"),
            sql.min("offset").alias("first_offset"),
            sql.max("offset").alias("last_offset"),
            (span - sql.count("*")).alias("missing"),
            sql.min("timestamp").alias("first_timestamp"),
            sql.max("timestamp").alias("last_timestamp"),
        )
        .orderBy(*_PLACE)
    )


def visible_records(records: DataFrame, logs: DataFrame) -> DataFrame:
    """Those of `records` that are not below the log start of their partition: what DeleteRecords has let go stays in a
    file that has later records, too. `logs` has the columns of `LOG_SCHEMA`."""
    starts = logs.select(*_PLACE, "log_start_offset")
    return records.join(sql.broadcast(starts), _PLACE).where("offset >= log_start_offset").drop("log_start_offset")


def partition_report(logs: DataFrame, report: DataFrame) -> DataFrame:
    """`records_report` beside what the logs say, a row for each partition, also for one without records."""
    columns = [name for name in report.columns if name not in _PLACE]
    counts = [sql.coalesce(name, sql.lit(0)).alias(name) for name in ("records", "missing")]
    others = {column: sql.col(column) for column in columns}
    others.update({"records": counts[0], "missing": counts[1]})
    return (
        logs.join(report, _PLACE, "left")
        .select(*_PLACE, "version", "log_start_offset", "log_end_offset", *others.values(), "files", "bytes")
        .orderBy(*_PLACE)
    )


def lag_report(lag: DataFrame, logs: DataFrame) -> DataFrame:
    """How far groups are behind in the partitions of `logs`, the farthest first. `lag` is the view of that name."""
    columns = ("group_id", *_PLACE, "committed_offset", "log_end_offset", "lag", "client_id")
    return (
        lag.join(logs.select(*_PLACE), _PLACE, "left_semi")
        .select(*columns)
        .orderBy(sql.desc_nulls_last("lag"), "group_id", *_PLACE)
    )


def log_rows(
    tables: TopicTables, versions: Mapping[TopicPartition, int | None]
) -> list[tuple[str, int, int, int, int, int, int]]:
    """A row of `LOG_SCHEMA` for each partition at its version, None: the last one."""
    rows = []
    for partition, version in versions.items():
        table = table_at(tables, partition, version)
        size_bytes = sum(file.size_bytes for file in table.files.values())
        ends = (table.version, table.log_start, table.high_watermark)
        rows.append((partition.topic, partition.partition, *ends, len(table.files), size_bytes))
    return rows


@click.command(
    cls=BusCommand,
    examples="""
    bus jobs run offset_report orders payments/3
    bus jobs run offset_report --timestamp 2026-11-21T09:00Z --csv orders
    bus jobs run offset_report --groups orders
    """,
)
@partitions_argument()
@root_option()
@click.option(
    "--version",
    "versions",
    multiple=True,
    metavar="[TOPIC[:PARTITION]=]N",
    help="As of that Delta version, of every partition or of those named; repeatable.",
)
@click.option(
    "--timestamp", type=TimestampType(), metavar="TIME", help="As of the last version that was committed by then."
)
@click.option("--groups", is_flag=True, help="The lag of consumer groups there, as of now.")
@csv_option()
def offset_report(
    partitions: tuple[str, ...],
    root: str,
    versions: tuple[str, ...],
    timestamp: int | None,
    groups: bool,
    is_csv: bool,
) -> int:
    """Show what each partition of some topics holds: offsets, records, times, files; or who lags behind.

    Exit status 1 for a topic, a version or a root that is not there.
    """
    try:
        bound = parse_bound(versions)
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--version") from None
    if bool(versions) + (timestamp is not None) + groups > 1:
        raise click.UsageError("expected one of --version, --timestamp and --groups, found more")

    def report(spark: SparkSession) -> int:
        tables = TopicTables(root)
        rows = log_rows(tables, _versions(tables, partitions, bound, timestamp))
        logs = spark.createDataFrame(rows, LOG_SCHEMA)
        if groups:
            found = lag_report(spark.createDataFrame(read_view("lag", tables)), logs)
        else:
            seen = {TopicPartition(topic, number): version for topic, number, version, *_ in rows}
            found = partition_report(logs, records_report(visible_records(_records(spark, root, seen), logs)))
        print_rows(found, is_csv=is_csv)
        return EXIT_DONE

    return run_job("offset-report", report)


def _versions(
    tables: TopicTables, names: Sequence[str], bound: Bound | None, timestamp_ms: int | None
) -> dict[TopicPartition, int | None]:
    """The version of each named partition; None: the last one."""
    if timestamp_ms is not None:
        return {one: tables.version_at(one, timestamp_ms) for one in partitions_named(tables, names)}
    return {one: bound_of(bound, one) for one in partitions_named(tables, names)}


def _records(spark: SparkSession, root: str, seen: Mapping[TopicPartition, int]) -> DataFrame:
    """The records of the very versions that the logs describe, also if the broker commits meanwhile."""
    at_version: dict[str | TopicPartition, int] = dict(seen.items())
    records = [
        bus.spark.read_topic(spark, root, topic, at_version=at_version)
        .where(sql.col("partition").isin([one.partition for one in seen if one.topic == topic]))
        .select(*_PLACE, "offset", "timestamp")
        for topic in dict.fromkeys(one.topic for one in seen)
    ]
    return reduce(lambda left, right: left.unionAll(right), records)
