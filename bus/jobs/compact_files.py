"""Many small data files become few large ones: rolling, for tables too big for the broker's machine.

    python -m bus.jobs.compact_files --root /srv/bus orders payments/3
    python -m bus.jobs.compact_files --root /srv/bus --dry-run orders

Spark reads runs of small files that follow each other and writes each run as one file into the table's folder; the
partition's leader checks it and commits the swap. No record goes but those below the log start, which were deleted,
none moves, and no reader notices. A run that has changed meanwhile is refused and told; the others go on.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from bus.ports import SwapKind
from bus.settings.topic import TopicConfig
from bus.spark import jobs
from bus.spark.file_swaps import (
    FileSwap,
    Leader,
    LeaderByAdmin,
    add_file_arguments,
    check_record_count,
    row_bytes,
    staging,
    swap,
    topic_config,
    write_runs,
)
from bus.spark.jobs import Window, sql
from bus.spark.log_files import PartitionFiles, count_deleted, files_frame, load_files, read_rows
from bus.storage_delta.files.live_file import LiveFile
from bus.tables.topics import TopicTables

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def choose_runs(files: DataFrame, *, target_bytes: int, small_bytes: int, files_min: int, span_ms: int) -> DataFrame:
    """The files to be rewritten, with the column `run`: the base offset of the run that they are in.

    `files` have the columns topic, partition, base_offset, next_offset, size_bytes, appended_ms, is_compacted, and
    others that are kept. A run is at least `files_min` files below `small_bytes` that follow each other without a hole,
    all of them seen by key compaction or none; it ends with the file that brings it to `target_bytes`, and spans less
    than `span_ms`, so that retention can let go of it in time.
    """
    place = ["topic", "partition"]
    log = Window.partitionBy(*place).orderBy("base_offset")
    is_small = sql.col("size_bytes") < small_bytes
    is_next = (
        sql.lag("next_offset").over(log).eqNullSafe(sql.col("base_offset"))
        & sql.lag(is_small).over(log).eqNullSafe(is_small)
        & sql.lag("is_compacted").over(log).eqNullSafe(sql.col("is_compacted"))
    )
    stretches = files.withColumn("is_next", is_next).withColumn(
        "stretch", sql.sum((~sql.col("is_next")).cast("int")).over(log)
    )
    before = Window.partitionBy(*place, "stretch").orderBy("base_offset").rowsBetween(Window.unboundedPreceding, -1)
    so_far = Window.partitionBy(*place, "stretch").orderBy("base_offset")
    bytes_before = sql.coalesce(sql.sum("size_bytes").over(before), sql.lit(0))
    # A clock that went back makes no file older than the one before it.
    age_ms = sql.max("appended_ms").over(so_far) - sql.first("appended_ms").over(so_far)
    step = sql.struct(sql.floor(bytes_before / target_bytes), sql.floor(age_ms / span_ms))
    steps = stretches.where(is_small).withColumn("step", step)
    run = Window.partitionBy(*place, "stretch", "step")
    return (
        steps.withColumn("run", sql.min("base_offset").over(run))
        .withColumn("files_in_run", sql.count("*").over(run))
        .where(sql.col("files_in_run") >= files_min)
        .select(*files.columns, "run")
    )


def number_runs(rows: DataFrame, chosen: DataFrame) -> DataFrame:
    """Each row of the log with the number of the run that its `file` is in, counted from 0 in offset order. `chosen`
    is what `choose_runs` gave for one partition; rows of other files are left out."""
    numbers = chosen.select("file", (sql.dense_rank().over(Window.orderBy("run")) - 1).alias("run"))
    return rows.join(sql.broadcast(numbers), "file").drop("file")


@dataclass(frozen=True, slots=True)
class Settings:
    target_bytes: int | None  # None: the topic's segment.bytes
    small_bytes: int | None  # None: half of target_bytes
    files_min: int
    compression: str


def plan_runs(
    spark: SparkSession, found: PartitionFiles, settings: Settings, config: TopicConfig
) -> tuple[DataFrame, list[list[LiveFile]]]:
    """What `choose_runs` says of the partition, and the runs in offset order."""
    target_bytes = settings.target_bytes or config.segment_bytes
    chosen = choose_runs(
        files_frame(spark, [found]),
        target_bytes=target_bytes,
        small_bytes=settings.small_bytes or max(1, target_bytes // 2),
        files_min=settings.files_min,
        span_ms=config.segment_ms,
    )
    runs: dict[int, list[LiveFile]] = {}
    by_path = {file.path: file for file in found.files}
    for row in chosen.orderBy("base_offset").select("run", "file").collect():
        runs.setdefault(row.run, []).append(by_path[row.file])
    return chosen, [runs[base_offset] for base_offset in sorted(runs)]


def compact_partition(
    spark: SparkSession, found: PartitionFiles, settings: Settings, config: TopicConfig, leader: Leader
) -> int:
    """Rewrite the runs of one partition; how many were refused."""
    chosen, runs = plan_runs(spark, found, settings, config)
    if not runs:
        jobs.tell(f"{found.partition}: nothing to do in {len(found.files)} files")
        return 0
    names = [file.path for run in runs for file in run]
    jobs.tell(f"{found.partition}: {len(names)} of {len(found.files)} files into {len(runs)}")
    rows = number_runs(read_rows(spark, found, names), chosen)
    refused = 0
    mean_row_bytes = row_bytes([f"{found.folder}/{name}" for name in names])
    with staging(found.folder) as place:
        for file in write_runs(
            rows,
            f"{place}/files",
            run_count=len(runs),
            mean_row_bytes=mean_row_bytes,
            compression=settings.compression,
        ):
            run = runs[file.run]
            change = FileSwap(found.partition, found.folder, run, [file], SwapKind.SAME_ROWS, found.log_start)
            deleted_count = count_deleted(found, [removed.path for removed in run])
            check_record_count(change, sum(removed.record_count for removed in run) - deleted_count)
            try:
                swap(change, leader)
            except jobs.JobFailed as error:
                jobs.tell(f"error: {error}")
                refused += 1
    return refused


def parse_arguments(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="compact_files",
        description="Many small data files of a log become few large ones; no record goes, none moves.",
        epilog="Exit code 1 if something was refused or could not be done.",
    )
    parser.add_argument("partitions", nargs="+", metavar="TOPIC[/PARTITION]")
    jobs.add_root_argument(parser)
    jobs.add_bootstrap_argument(parser)
    add_file_arguments(parser)
    parser.add_argument(
        "--small-bytes",
        type=jobs.positive_number,
        metavar="N",
        help="only files below it (default: half of the target)",
    )
    parser.add_argument(
        "--files-min",
        type=jobs.positive_number,
        default=2,
        metavar="N",
        help="files that are joined, at least (default: 2)",
    )
    parser.add_argument("--dry-run", action="store_true", help="show the runs; write nothing, ask no broker")
    parser.add_argument("--csv", action="store_true", help="with --dry-run: CSV instead of a table")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit code."""
    options = parse_arguments(arguments)
    return jobs.run_job("compact-files", partial(_compact, options))


def _compact(options: argparse.Namespace, spark: SparkSession) -> int:
    tables = TopicTables(options.root)
    partitions = jobs.partitions_named(tables, options.partitions)
    settings = Settings(options.target_bytes, options.small_bytes, options.files_min, options.compression)
    if options.dry_run:
        return _show(spark, tables, [load_files(tables, one) for one in partitions], settings, csv=options.csv)
    refused = 0
    with jobs.open_admin(options) as admin:
        admin.describe_topics(sorted({partition.topic for partition in partitions}))
        for partition in partitions:
            found, config = load_files(tables, partition), topic_config(tables, partition.topic)
            refused += compact_partition(spark, found, settings, config, LeaderByAdmin(admin, tables))
    return jobs.EXIT_FAILURE if refused else jobs.EXIT_DONE


def _show(
    spark: SparkSession, tables: TopicTables, found: Sequence[PartitionFiles], settings: Settings, *, csv: bool
) -> int:
    rows = [
        (
            one.partition.topic,
            one.partition.partition,
            run[0].base_offset,
            run[-1].next_offset - 1,
            len(run),
            sum(file.size_bytes for file in run),
        )
        for one in found
        for run in plan_runs(spark, one, settings, topic_config(tables, one.partition.topic))[1]
    ]
    schema = "topic string, partition int, first_offset long, last_offset long, files int, bytes long"
    jobs.print_rows(spark.createDataFrame(rows, schema), csv=csv)
    return jobs.EXIT_DONE


if __name__ == "__main__":
    sys.exit(main())
