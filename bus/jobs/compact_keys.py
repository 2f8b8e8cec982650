"""Key compaction, by which the last record of every key stays, for tables too big for the broker's machine.

Spark finds the last record of each key in all files below `--to-offset` and writes what stays into new files in the
table's folder; the partition's leader checks them and commits the swap. Offsets and order stay as they are; a record
without a key stays; a tombstone goes when it was in the log for `delete.retention.ms`; the last record stays always.
Records below the log start were deleted, and go.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import click

from bus.cli.commands import BusCommand
from bus.cli.failures import EXIT_FAILURE
from bus.cli.options import gathered, root_option
from bus.jobs.commands import EXIT_DONE, run_job
from bus.jobs.options import (
    NOT_NEGATIVE,
    Brokers,
    brokers_options,
    compression_option,
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
from bus.spark.jobs import JobFailed, StorageLevel, Window, partitions_named, sql, tell
from bus.spark.log_files import PartitionFiles, load_files, read_rows
from bus.storage_delta.files.live_file import LiveFile, ages_of, end_of_old
from bus.tables.topics import TopicTables

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession


def last_of_keys(rows: DataFrame, *, tombstones_below: int, last_offset: int) -> DataFrame:
    """The rows that stay: their `offset`, `file` and `bytes`.

    `rows` have the columns offset, key, value and file. Of each key it is the one with the largest offset, unless that
    is a tombstone (no value) below `tombstones_below`, and each row without a key; the row at `last_offset`, the
    largest of all, stays in any case. Rows of one key are reduced where they are read before any of them travels, so a
    key that half of the rows have is no burden.
    """
    row = sql.struct("offset", "file", _size(rows).alias("bytes"), sql.col("value").isNull().alias("is_tombstone"))
    found = rows.select("key", row.alias("row"))
    last = found.where("key IS NOT NULL").groupBy("key").agg(sql.max("row").alias("row")).select("row.*")
    is_expired = sql.col("is_tombstone") & (sql.col("offset") < tombstones_below) & (sql.col("offset") != last_offset)
    keyless = found.where("key IS NULL").select("row.*")
    return last.where(~is_expired).unionAll(keyless).drop("is_tombstone")


def _size(rows: DataFrame) -> Column:
    """About the bytes of key and value; a value that is a struct counts as JSON."""
    from pyspark.sql.types import BinaryType

    is_binary = isinstance(rows.schema["value"].dataType, BinaryType)
    value = sql.octet_length("value" if is_binary else sql.to_json("value"))
    sizes = [sql.coalesce(size, sql.lit(0)) for size in (sql.octet_length("key"), value)]
    return (sizes[0] + sizes[1]).cast("long")


def assign_files(kept: DataFrame, *, target_bytes: int) -> DataFrame:
    """Assign the rows of each old file to a new one: columns file and run. Files are in the order of their rows, and a
    new one begins where the one before it has `target_bytes`. `kept` have the columns offset, file and bytes."""
    files = kept.groupBy("file").agg(sql.sum("bytes").alias("bytes"), sql.min("offset").alias("first"))
    before = Window.orderBy("first").rowsBetween(Window.unboundedPreceding, -1)
    step = sql.floor(sql.coalesce(sql.sum("bytes").over(before), sql.lit(0)) / target_bytes)
    steps = files.select("file", step.alias("step"))
    return steps.select("file", (sql.dense_rank().over(Window.orderBy("step")) - 1).alias("run"))


def rows_to_write(rows: DataFrame, kept: DataFrame, runs: DataFrame) -> DataFrame:
    """Those of `rows` whose offset is among `kept`, each with the `run` of its file."""
    return rows.join(kept.select("offset"), "offset", "left_semi").join(sql.broadcast(runs), "file").drop("file")


@dataclass(frozen=True, slots=True)
class Settings:
    to_offset: int | None  # None: all but the newest file, and what is younger than min.compaction.lag.ms
    delete_retention_ms: int | None  # None: the topic's
    target_bytes: int | None  # None: the topic's segment.bytes
    compression: str


@dataclass(frozen=True, slots=True)
class Plan:
    """`files` are the first live ones."""

    files: Sequence[LiveFile]
    tombstones_below: int
    target_bytes: int


def plan(found: PartitionFiles, settings: Settings, config: TopicConfig, *, now_ms: int) -> Plan:
    """Choose the files, but for what is younger than `min.compaction.lag.ms`, which is left alone in any case."""
    files = list(found.files[:-1])
    if settings.to_offset is not None:
        files = [file for file in found.files if file.next_offset <= settings.to_offset]
    while files and files[-1].appended_ms > now_ms - config.min_compaction_lag_ms:
        files.pop()
    retention_ms = config.delete_retention_ms if settings.delete_retention_ms is None else settings.delete_retention_ms
    return Plan(
        files=files,
        tombstones_below=end_of_old(ages_of(files), until_ms=now_ms - retention_ms),
        target_bytes=settings.target_bytes or config.segment_bytes,
    )


def compact_partition(
    spark: SparkSession, found: PartitionFiles, planned: Plan, *, compression: str, leader: Leader | None
) -> None:
    """Compact the files of one partition; without a leader only tell how many records would stay. Raises `JobFailed`
    if the swap is refused."""
    files = planned.files
    if not files:
        tell(f"{found.partition}: nothing to do, no file of {len(found.files)} is old enough")
        return
    rows = read_rows(spark, found, [file.path for file in files])
    last_offset = files[-1].next_offset - 1
    kept = last_of_keys(rows, tombstones_below=planned.tombstones_below, last_offset=last_offset)
    kept = kept.persist(StorageLevel.DISK_ONLY)
    try:
        before, after = sum(file.record_count for file in files), kept.count()
        tell(f"{found.partition}: {after} of {before} records up to offset {last_offset} stay")
        if after < before and leader is not None:
            runs = assign_files(kept, target_bytes=planned.target_bytes)
            _swap(found, planned, rows_to_write(rows, kept, runs), runs, after, compression, leader)
    finally:
        kept.unpersist()


def _swap(
    found: PartitionFiles,
    planned: Plan,
    rows: DataFrame,
    runs: DataFrame,
    record_count: int,
    compression: str,
    leader: Leader,
) -> None:
    mean_row_bytes = row_bytes([f"{found.folder}/{file.path}" for file in planned.files])
    with staging(found.folder) as place:
        written = write_runs(
            rows,
            f"{place}/files",
            run_count=runs.select("run").distinct().count(),
            mean_row_bytes=mean_row_bytes,
            compression=compression,
        )
        change = FileSwap(found.partition, found.folder, planned.files, written, SwapKind.LAST_OF_KEYS, found.log_start)
        check_record_count(change, record_count)
        swap(change, leader)


@click.command(
    cls=BusCommand,
    examples="""
    bus jobs run compact_keys --dry-run profiles/0
    bus jobs run compact_keys --to-offset 5000000 profiles/0
    """,
)
@partitions_argument()
@root_option()
@brokers_options
@gathered(
    "settings",
    Settings,
    click.option(
        "--to-offset",
        type=NOT_NEGATIVE,
        metavar="N",
        help="Only files that end below it.  [default: all but the newest file and those younger than "
        "min.compaction.lag.ms]",
    ),
    click.option(
        "--delete-retention-ms",
        type=NOT_NEGATIVE,
        metavar="N",
        help="How long tombstones stay.  [default: the topic's]",
    ),
    target_bytes_option,
    compression_option,
)
@click.option("--dry-run", is_flag=True, help="Only tell how many records would stay.")
def compact_keys(partitions: tuple[str, ...], root: str, brokers: Brokers, settings: Settings, dry_run: bool) -> int:
    """Keep the last record of every key of a compacted topic, at its own offset.

    Exit status 1 if something was refused or could not be done.
    """

    def compact(spark: SparkSession) -> int:
        tables = TopicTables(root)
        chosen = partitions_named(tables, partitions)
        configs = {name: _compacted_config(tables, name) for name in sorted({one.topic for one in chosen})}
        failed = 0
        with brokers.open_admin() as admin:
            if not dry_run:
                admin.describe_topics(configs)
            for partition in chosen:
                found = load_files(tables, partition)
                planned = plan(found, settings, configs[partition.topic], now_ms=time.time_ns() // 1_000_000)
                leader = None if dry_run else LeaderByAdmin(admin, tables)
                try:
                    compact_partition(spark, found, planned, compression=settings.compression, leader=leader)
                except JobFailed as error:
                    tell(f"error: {error}")
                    failed += 1
        return EXIT_FAILURE if failed else EXIT_DONE

    return run_job("compact-keys", compact)


def _compacted_config(tables: TopicTables, name: str) -> TopicConfig:
    """Raises `JobFailed` if records of the topic may not go because later ones have their key."""
    config = topic_config(tables, name)
    if "compact" not in config.cleanup_policy:
        found = ",".join(config.cleanup_policy) or "none"
        raise JobFailed(f"{name}: expected a cleanup.policy with compact, found {found}")
    return config
