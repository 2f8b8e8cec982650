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
import hashlib
import itertools
import os
import shutil
import uuid
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql.datasource import DataSource, DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from bus.cluster_metadata.configs import resolve_topic_config
from bus.config.topic import TopicConfig
from bus.model import TopicPartition
from bus.records.log_schema import LOG_COLUMNS
from bus.spark import jobs
from bus.spark.jobs import JobFailed
from bus.spark.log_files import table_at
from bus.spark.sink.columns import SinkColumns, sink_columns
from bus.spark.sink.options import SinkOptions, parse_sink_options
from bus.spark.sink.stamped_writer import TaskIdentity
from bus.spark.sink.task import write_rows
from bus.storage_delta.files.data_files import ROW_GROUP_BYTES
from bus.storage_delta.log.txns import decode_producers
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


# Files of records into a topic, each row once, however often it is tried: what runs in tasks, and what the log has.
#
# Every file is a producer of its own, named after the load, the file's path and its size, and its rows have sequences
# in the order of the file. So (producer, epoch, sequence) is the key on which the log takes or passes over a row, as an
# insert-only MERGE on these columns would. Guards one promise: no state but the log's decides what is there already, so
# a load may be killed, run twice, or run again from elsewhere.

FILE_COLUMN = "file_producer"

Write = Callable[[str, Iterator[pa.RecordBatch]], int]  # a file's producer and rows -> how many


def producer_name(load: str, path: str, size_bytes: int) -> str:
    """The same for the same file of the same load, for ever."""
    digest = hashlib.sha256(f"{path}\0{size_bytes}".encode()).hexdigest()[:32]
    return f"backfill.{load}.{digest}"


class BusFileSink(DataSource):
    """A sink for batch writes, with the options and columns of `format("bus")` and the column `FILE_COLUMN`, the
    producer of each row. Rows of a file follow one another, in its order, in one task."""

    @classmethod
    def name(cls) -> str:
        return "bus_files"

    def writer(self, schema: StructType, overwrite: bool) -> BusFileWriter:
        options = parse_sink_options(self.options, is_stream=False)
        return BusFileWriter(options, sink_columns(schema, options))


class BusFileWriter(DataSourceArrowWriter):
    def __init__(self, options: SinkOptions, columns: SinkColumns) -> None:
        self._options = options
        self._columns = columns

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        write_files(iterator, self._write_file)
        return WriterCommitMessage()

    def _write_file(self, producer: str, batches: Iterator[pa.RecordBatch]) -> int:
        # Rows without a key begin at another partition for each file, and at the same one for the same file.
        first_turn = int(producer[-4:], 16)
        return write_rows(batches, self._columns, self._options, TaskIdentity(producer, 0, 0, first_turn))


def write_files(batches: Iterable[pa.RecordBatch], write: Write) -> int:
    """How many rows, all in all."""
    files = itertools.groupby(_pieces(batches), key=lambda piece: piece[0])
    return sum(write(producer, (rows for _, rows in found)) for producer, found in files)


def _pieces(batches: Iterable[pa.RecordBatch]) -> Iterator[tuple[str, pa.RecordBatch]]:
    """Each batch cut where another file begins."""
    for batch in batches:
        encoded = pc.run_end_encode(batch.column(FILE_COLUMN))
        begin = 0
        for producer, end in zip(encoded.values.to_pylist(), encoded.run_ends.to_pylist(), strict=True):
            yield producer, batch.slice(begin, end - begin)
            begin = end


def records_in_log(tables: TopicTables, topic: str, producers: Collection[str]) -> Mapping[str, int]:
    """How many rows of each of these producers the log of `topic` has taken, as of now, by their last sequences in each
    partition: those that retention or compaction let go count too. 0 for one that the cluster does not know."""
    known = tables.cluster().producers.by_name
    ids = {found.producer_id: name for name in producers if (found := known.get(name)) is not None}
    taken = dict.fromkeys(producers, 0)
    for partition in tables.partitions(topic):
        for producer_id, last_sequence in _last_sequences(tables, partition).items():
            if producer_id in ids:
                taken[ids[producer_id]] += last_sequence + 1
    return taken


def _last_sequences(tables: TopicTables, partition: TopicPartition) -> Mapping[int, int]:
    producers = decode_producers(table_at(tables, partition, None).txns)
    return {producer_id: found.last_sequence for producer_id, found in producers.items()}
