"""Runs of rows written by Spark as data files for a table of the log, and the arguments of the jobs that write them.

Guards two promises: a file has the columns and types of the log, rows in offset order and row groups small enough that
a fetch decodes little more than it sends; and it is whole and synced before anybody hears of it. Spark names its files
itself, so they are written into a staging folder within the table's own, whose name every Delta reader passes over.
Tasks run no Python.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import os
import shutil
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow.parquet as pq

from bus.cluster_metadata.configs import resolve_topic_config
from bus.records.log_schema import LOG_COLUMNS
from bus.settings.topic import TopicConfig
from bus.spark import jobs
from bus.spark.jobs import JobFailed
from bus.storage_delta.files.data_files import ROW_GROUP_BYTES
from bus.tables.topics import TopicTables

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


_STAGING_PREFIX = "_job-"
_OWNER = "owner"  # locked while the job lives
_TIMESTAMP_TYPE = "spark.sql.parquet.outputTimestampType"

CODECS = {"none": "uncompressed", "gzip": "gzip", "snappy": "snappy", "lz4": "lz4_raw", "zstd": "zstd"}


@dataclass(frozen=True, slots=True)
class WrittenFile:
    """All rows of one run, in a staging folder."""

    run: int
    path: str
    size_bytes: int
    record_count: int
    first_offset: int
    last_offset: int


@contextlib.contextmanager
def staging(folder: str) -> Iterator[str]:
    """A folder in the table's `folder` for the files of one job; it goes with all that is still in it. Those of jobs
    that were killed go first."""
    _remove_abandoned(folder)
    place = f"{folder}/{_STAGING_PREFIX}{uuid.uuid4()}"
    os.mkdir(place)
    try:
        with open(f"{place}/{_OWNER}", "wb") as owner:
            fcntl.flock(owner, fcntl.LOCK_EX)
            yield place
    finally:
        shutil.rmtree(place, ignore_errors=True)


def _remove_abandoned(folder: str) -> None:
    for owner in Path(folder).glob(f"{_STAGING_PREFIX}*/{_OWNER}"):
        with contextlib.suppress(FileNotFoundError), owner.open("rb") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                continue
            shutil.rmtree(owner.parent, ignore_errors=True)


def row_bytes(paths: Sequence[str]) -> int:
    """The mean size of a row in data files, as it is decoded. Reads their footers."""
    footers = [pq.read_metadata(path) for path in paths]
    size_bytes: int = sum(footer.row_group(group).total_byte_size for footer in footers for group in _groups(footer))
    row_count: int = sum(footer.num_rows for footer in footers)
    return max(1, size_bytes // max(1, row_count))


def _groups(footer: pq.FileMetaData) -> range:
    return range(footer.num_row_groups)


def write_runs(
    rows: DataFrame, place: str, *, run_count: int, mean_row_bytes: int, compression: str
) -> list[WrittenFile]:
    """Write each run as one file into `place`, a new folder of a staging folder, in the order of the runs.

    `rows` have the columns of the log and `run`, a number below `run_count`; a run without a row has no file. `place`
    is reachable under this path by every executor.
    """
    from pyspark.sql import functions as sql

    with _timestamps_of_the_log(rows.sparkSession):
        (
            rows.select(*LOG_COLUMNS, sql.col("run").cast("int").alias("run"))
            .repartitionById(run_count, sql.col("run").cast("int"))
            .sortWithinPartitions("run", "offset")
            .write.partitionBy("run")
            .option("compression", CODECS[compression])
            .option("maxRecordsPerFile", 0)
            .option("parquet.block.size", ROW_GROUP_BYTES)
            # Spark looks at the size of compressed pages; who reads a group has to decode it.
            .option("parquet.block.row.count.limit", max(1, ROW_GROUP_BYTES // mean_row_bytes))
            # Nearly constant columns are a few bytes by it; for all others it is a waste of time.
            .option("parquet.enable.dictionary", "false")
            .option("parquet.enable.dictionary#timestamp_type", "true")
            .option("parquet.enable.dictionary#leader_epoch", "true")
            # A group of large records would outgrow its bytes before they are looked at for the first time.
            .option("parquet.page.size.row.check.min", 1)
            .parquet(f"file:{place}")
        )
    return [_describe(run, place) for run in range(run_count) if os.path.isdir(f"{place}/run={run}")]


@contextlib.contextmanager
def _timestamps_of_the_log(spark: SparkSession) -> Iterator[None]:
    """Not INT96, Spark's default: that says no time zone."""
    before = spark.conf.get(_TIMESTAMP_TYPE)
    spark.conf.set(_TIMESTAMP_TYPE, "TIMESTAMP_MICROS")
    try:
        yield
    finally:
        spark.conf.set(_TIMESTAMP_TYPE, str(before))


def _describe(run: int, place: str) -> WrittenFile:
    paths = list(Path(f"{place}/run={run}").glob("*.parquet"))
    if len(paths) != 1:
        raise JobFailed(f"expected Spark to write run {run} as one file, found {len(paths)} in {place}")
    with paths[0].open("rb") as file:
        os.fsync(file.fileno())
        footer = pq.ParquetFile(file).metadata
    offsets = [footer.row_group(group).column(0).statistics for group in _groups(footer)]
    return WrittenFile(
        run=run,
        path=str(paths[0]),
        size_bytes=paths[0].stat().st_size,
        record_count=footer.num_rows,
        first_offset=min(found.min for found in offsets),
        last_offset=max(found.max for found in offsets),
    )


def add_file_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--target-bytes",
        type=jobs.positive_number,
        metavar="N",
        help="size of the new files (default: segment.bytes of the topic)",
    )
    parser.add_argument(
        "--compression", default="zstd", choices=sorted(CODECS), help="codec of the new files (default: zstd)"
    )


def topic_config(tables: TopicTables, name: str) -> TopicConfig:
    topic = tables.cluster().topics.get(name)
    return resolve_topic_config(topic.configs if topic else {})
