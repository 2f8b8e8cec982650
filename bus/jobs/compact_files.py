"""Many small data files become few large ones: rolling, for tables too big for the broker's machine.

Spark reads runs of small files that follow each other and writes each run as one file into the table's folder; the
partition's leader checks it and commits the swap. No record goes but those below the log start, which were deleted,
none moves, and no reader notices. A run that has changed meanwhile is refused and told; the others go on.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import click

from bus.cli.commands import BusCommand
from bus.cli.failures import EXIT_FAILURE
from bus.cli.options import gathered, root_option
from bus.jobs.commands import EXIT_DONE, print_rows, run_job
from bus.jobs.options import (
    POSITIVE,
    Brokers,
    brokers_options,
    compression_option,
    csv_option,
    partitions_argument,
    target_bytes_option,
)
from bus.ports import SwapKind
from bus.settings.topic import TopicConfig
from bus.spark.file_swaps import (
    FileSwap,
    Leader,
    LeaderByAdmin,
    check_record_count,
    row_bytes,
    staging,
    swap,
    topic_config,
    write_runs,
)
from bus.spark.jobs import JobFailed, Window, partitions_named, sql, tell
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
    """Return what `choose_runs` says of the partition, and the runs in offset order."""
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
        tell(f"{found.partition}: nothing to do in {len(found.files)} files")
        return 0
    names = [file.path for run in runs for file in run]
    tell(f"{found.partition}: {len(names)} of {len(found.files)} files into {len(runs)}")
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
            except JobFailed as error:
                tell(f"error: {error}")
                refused += 1
    return refused


@click.command(
    cls=BusCommand,
    examples="""
    bus jobs run compact_files --dry-run orders
    bus jobs run compact_files orders payments/3
    """,
)
@partitions_argument()
@root_option()
@brokers_options
@gathered(
    "settings",
    Settings,
    target_bytes_option,
    click.option(
        "--small-bytes", type=POSITIVE, metavar="N", help="Only files below it.  [default: half of the target]"
    ),
    click.option("--files-min", type=POSITIVE, default=2, metavar="N", help="Files that are joined, at least."),
    compression_option,
)
@click.option("--dry-run", is_flag=True, help="Show the runs; write nothing, ask no broker.")
@csv_option("With --dry-run: CSV instead of a table.")
def compact_files(
    partitions: tuple[str, ...], root: str, brokers: Brokers, settings: Settings, dry_run: bool, is_csv: bool
) -> int:
    """Rewrite many small data files of a log as few large ones; no record goes, none moves.

    Exit status 1 if something was refused or could not be done.
    """

    def compact(spark: SparkSession) -> int:
        tables = TopicTables(root)
        chosen = partitions_named(tables, partitions)
        if dry_run:
            return _show(spark, tables, [load_files(tables, one) for one in chosen], settings, is_csv=is_csv)
        refused = 0
        with brokers.open_admin() as admin:
            admin.describe_topics(sorted({partition.topic for partition in chosen}))
            for partition in chosen:
                found, config = load_files(tables, partition), topic_config(tables, partition.topic)
                refused += compact_partition(spark, found, settings, config, LeaderByAdmin(admin, tables))
        return EXIT_FAILURE if refused else EXIT_DONE

    return run_job("compact-files", compact)


def _show(
    spark: SparkSession, tables: TopicTables, found: Sequence[PartitionFiles], settings: Settings, *, is_csv: bool
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
    print_rows(spark.createDataFrame(rows, schema), is_csv=is_csv)
    return EXIT_DONE
