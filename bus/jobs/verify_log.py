"""Does the log keep its promises? `bus log verify`, spread over the executors of Spark.

    python -m bus.jobs.verify_log --root /srv/bus orders payments/3
    python -m bus.jobs.verify_log --root /srv/bus --all --csv > breaches.csv

Every partition's Delta log is replayed and judged, every live data file decoded once, and then the rows are judged by
the columns that carry the log's promises: offsets, timestamps, leader epochs, producers, and the statistics that
readers prune by. Prints a table of breaches and mends nothing; may run beside a broker.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial, reduce
from typing import TYPE_CHECKING

from bus.model import TopicPartition
from bus.spark import jobs
from bus.spark import log_promises as promises
from bus.spark.jobs import sql
from bus.spark.log_rows import (
    BREACH_SCHEMA,
    NOT_READ,
    live_files,
    load_logs,
    log_findings,
    read_log_rows,
    unreadable_files,
)
from bus.tables.topics import TopicTables

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row, SparkSession

_PLACE = ["topic", "partition"]


def judge_rows(logs: DataFrame, files: DataFrame, summaries: DataFrame, producers: DataFrame) -> DataFrame:
    """Every breach that rows tell of. `files` are those that were read, `summaries` and `producers` what
    `summarize_files` and `summarize_producers` say of their rows."""
    live = logs.select(*_PLACE, sql.size("files").alias("live"))
    read = files.groupBy(*_PLACE).agg(sql.count("*").alias("read"))
    is_all_read = live.join(read, _PLACE, "left").where(sql.col("live") == sql.coalesce("read", sql.lit(0)))
    return reduce(
        lambda left, right: left.unionAll(right),
        [
            promises.row_breaches(summaries),
            promises.statistics_breaches(files, summaries),
            promises.epoch_breaches(summaries),
            promises.producer_breaches(producers),
            # A file that could not be read may have held what a `txn` tells of.
            promises.progress_breaches(logs.join(is_all_read, _PLACE, "left_semi"), producers, files),
        ],
    )


def verify_topic(
    spark: SparkSession, root: str, partitions: Sequence[tuple[TopicPartition, str | None]], *, has_rows: bool = True
) -> list[Row]:
    """The breaches of some partitions, each named with its topic id, in the form of `BREACH_SCHEMA` and in order."""
    with ExitStack() as stack:

        def keep(frame: DataFrame) -> DataFrame:
            stack.callback(frame.persist().unpersist)
            return frame

        logs = keep(load_logs(spark, root, partitions))
        found = log_findings(logs)
        if has_rows:
            files = keep(live_files(logs))
            unreadable = keep(unreadable_files(spark, root, files))
            lost = unreadable.where(sql.col("promise").isin(*NOT_READ))
            readable = keep(files.join(lost, [*_PLACE, "file"], "left_anti"))
            rows = read_log_rows(spark, root, readable)
            summaries, producers = (
                keep(summarize(rows, readable))
                for summarize in (promises.summarize_files, promises.summarize_producers)
            )
            found = found.unionAll(unreadable).unionAll(judge_rows(logs, readable, summaries, producers))
        return found.distinct().orderBy(*_PLACE, "file", "promise", "expected").collect()


def parse_arguments(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="verify_log",
        description="Judge the log of topics by their tables, and show every promise that is not kept.",
        epilog="Exit code 1 if there is a breach.",
    )
    parser.add_argument("partitions", nargs="*", metavar="TOPIC[/PARTITION]")
    jobs.add_root_argument(parser)
    parser.add_argument("--all", action="store_true", help="all topics of the root, the bus's own included")
    parser.add_argument("--no-rows", action="store_true", help="only the Delta logs and the sizes of the files")
    parser.add_argument("--csv", action="store_true", help="print CSV instead of a table")
    options = parser.parse_args(arguments)
    if bool(options.partitions) == options.all:
        parser.error("expected topics or --all, found " + ("both" if options.all else "neither"))
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit code."""
    options = parse_arguments(arguments)
    return jobs.run_job("verify-log", partial(_verify, options))


def _verify(options: argparse.Namespace, spark: SparkSession) -> int:
    tables = TopicTables(options.root)
    chosen = jobs.partitions_named(tables, tables.topics() if options.all else options.partitions)
    topics: dict[str, list[TopicPartition]] = {}
    for one in chosen:
        topics.setdefault(one.topic, []).append(one)
    found: list[Row] = []
    for number, (topic, partitions) in enumerate(topics.items(), start=1):
        known = tables.cluster().topics.get(topic)
        named = [(one, known.topic_id if known else None) for one in partitions]
        breaches = verify_topic(spark, str(tables.root), named, has_rows=not options.no_rows)
        jobs.tell(f"{topic} ({number} of {len(topics)}): {_plural(len(breaches), 'breach', 'breaches')}")
        found += breaches
    if found:
        jobs.print_rows(spark.createDataFrame(found, BREACH_SCHEMA), csv=options.csv)
    return jobs.EXIT_FAILURE if found else jobs.EXIT_DONE


def _plural(count: int, one: str, many: str) -> str:
    return f"{count or 'no'} {one if count == 1 else many}"


if __name__ == "__main__":
    sys.exit(main())
