"""What each partition of some topics holds: where its log begins and ends, records, times, files, and who lags behind.

    python -m bus.jobs.offset_report --root /srv/bus orders payments/3
    python -m bus.jobs.offset_report --root /srv/bus --timestamp 2026-11-21T09:00Z --csv orders
    python -m bus.jobs.offset_report --root /srv/bus --groups orders

Reads the tables with Spark and needs no broker. Writes nothing.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from functools import partial, reduce
from typing import TYPE_CHECKING

import bus.spark
from bus.model import TopicPartition
from bus.spark import jobs
from bus.spark.jobs import sql
from bus.spark.log_files import table_at
from bus.tables.point_in_time import bound_of, parse_bound
from bus.tables.system_views import read_view
from bus.tables.topics import TopicTables

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

LOG_SCHEMA = (
    "topic string, partition int, version long, log_start_offset long, log_end_offset long, files long, bytes long"
)
_PLACE = ["topic", "partition"]


def offset_report(records: DataFrame) -> DataFrame:
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
    """`offset_report` beside what the logs say, a row for each partition, also for one without records."""
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


def parse_arguments(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="offset_report",
        description="What each partition of some topics holds.",
        epilog="Exit code 1 for a topic, a version or a root that is not there.",
    )
    parser.add_argument("topics", nargs="+", metavar="TOPIC[/PARTITION]")
    jobs.add_root_argument(parser)
    moment = parser.add_mutually_exclusive_group()
    moment.add_argument(
        "--version",
        action="append",
        default=[],
        metavar="[TOPIC[:PARTITION]=]N",
        help="as of that Delta version, of every partition or of those named; may be given several times",
    )
    moment.add_argument(
        "--timestamp",
        type=jobs.timestamp_ms,
        metavar="TIME",
        help="as of the last version that was committed by then: ISO 8601, UTC unless it says otherwise",
    )
    moment.add_argument("--groups", action="store_true", help="the lag of consumer groups there, as of now")
    parser.add_argument("--csv", action="store_true", help="print CSV instead of a table")
    options = parser.parse_args(arguments)
    try:
        options.version = parse_bound(options.version)
    except ValueError as error:
        parser.error(f"argument --version: {error}")
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit code."""
    options = parse_arguments(arguments)
    return jobs.run_job("offset-report", partial(_report, options))


def _report(options: argparse.Namespace, spark: SparkSession) -> int:
    tables = TopicTables(options.root)
    versions: dict[TopicPartition, int | None] = {}
    for one in jobs.partitions_named(tables, options.topics):
        versions[one] = bound_of(options.version, one)
        if options.timestamp is not None:
            versions[one] = tables.version_at(one, options.timestamp)
    rows = log_rows(tables, versions)
    logs = spark.createDataFrame(rows, LOG_SCHEMA)
    if options.groups:
        lag = spark.createDataFrame(read_view("lag", tables))
        jobs.print_rows(lag_report(lag, logs), csv=options.csv)
        return jobs.EXIT_DONE
    # Spark counts the records of the very versions that the logs describe, also if the broker commits meanwhile.
    seen = {TopicPartition(topic, number): version for topic, number, version, *_ in rows}
    at_version: dict[str | TopicPartition, int] = dict(seen.items())
    records = [
        bus.spark.read_topic(spark, options.root, topic, at_version=at_version)
        .where(sql.col("partition").isin([one.partition for one in seen if one.topic == topic]))
        .select(*_PLACE, "offset", "timestamp")
        for topic in dict.fromkeys(one.topic for one in seen)
    ]
    visible = visible_records(reduce(lambda left, right: left.unionAll(right), records), logs)
    jobs.print_rows(partition_report(logs, offset_report(visible)), csv=options.csv)
    return jobs.EXIT_DONE


if __name__ == "__main__":
    sys.exit(main())
