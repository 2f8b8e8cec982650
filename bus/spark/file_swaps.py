"""Files that a job has written take the place of live ones: written by Spark, named, put into the table's folder,
handed to the leader.

Guards four promises. A file has the columns and types of the log, rows in offset order and row groups small enough that
a fetch decodes little more than it sends. It is whole and synced before anybody hears of it. Nothing is in the log that
the leader has not checked and committed itself. And a file goes again only if it is certain that no version will name
it: where that cannot be told (the answer was lost), the table is asked; what it does not name then stays for the leader
to find as an orphan. Spark names its files itself, so they are written into a staging folder within the table's own,
whose name every Delta reader passes over. Tasks run no Python.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import pyarrow.parquet as pq

from bus.client.admin.admin import Admin
from bus.cluster_metadata.configs import resolve_topic_config
from bus.errors import BusError, ErrorCode, count_of
from bus.model import TopicPartition
from bus.ports import SwapKind
from bus.records.log_schema import LOG_COLUMNS
from bus.settings.topic import TopicConfig
from bus.spark.jobs import JobFailed, tell
from bus.spark.log_files import load_files
from bus.storage_delta.files.data_files import ROW_GROUP_BYTES
from bus.storage_delta.files.live_file import LiveFile
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


def topic_config(tables: TopicTables, name: str) -> TopicConfig:
    topic = tables.cluster().topics.get(name)
    return resolve_topic_config(topic.configs if topic else {})


# After these it cannot be said from the answer alone whether the swap was committed.
_DOUBTFUL = frozenset(
    {
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.NETWORK_EXCEPTION,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.UNKNOWN_SERVER_ERROR,
    }
)


@dataclass(frozen=True, slots=True)
class FileSwap:
    """`written` take the place of `removes`, live files that follow each other; both in offset order. Rows below
    `log_start` are not in them: they were deleted."""

    partition: TopicPartition
    folder: str
    removes: Sequence[LiveFile]
    written: Sequence[WrittenFile]
    kind: SwapKind
    log_start: int = 0

    @property
    def base_offset(self) -> int:
        return max(self.removes[0].base_offset, self.log_start)


class Leader(Protocol):
    """The partitions' leader, and what the tables say."""

    def commit(self, partition: TopicPartition, removes: Sequence[str], adds: Sequence[str], kind: SwapKind) -> int:
        """The version that has the new files. Raises `BusError`."""
        ...

    def live_names(self, partition: TopicPartition) -> frozenset[str]:
        """The live files, as of now."""
        ...


class LeaderByAdmin:
    """Asks a broker for the swap and the tables for what came of it."""

    def __init__(self, admin: Admin, tables: TopicTables) -> None:
        self._admin = admin
        self._tables = tables

    def commit(self, partition: TopicPartition, removes: Sequence[str], adds: Sequence[str], kind: SwapKind) -> int:
        return self._admin.swap_files(partition.topic, partition.partition, removes, adds, kind.name.lower())

    def live_names(self, partition: TopicPartition) -> frozenset[str]:
        return frozenset(file.path for file in load_files(self._tables, partition).files)


def swap(change: FileSwap, leader: Leader) -> int | None:
    """The version that has the new files; None if the table has them, but the answer that names it was lost. Raises
    `JobFailed` if the swap was refused, and then nothing stays of it, or if it cannot be told."""
    adds = _place(change)
    removes = [file.path for file in change.removes]
    try:
        version = leader.commit(change.partition, removes, adds, change.kind)
    except BusError as error:
        if error.code not in _DOUBTFUL:
            _remove(change.folder, adds)
            raise JobFailed(f"{change.partition}: the swap was refused, nothing has changed: {error}") from error
        if not leader.live_names(change.partition).issuperset(adds):
            raise JobFailed(
                f"{change.partition}: {error}; the table does not have the new files so far: {', '.join(adds)}. If it "
                "does not take them up, the leader removes them as orphans"
            ) from error
        version = None
    _tell(change, version)
    return version


def _tell(change: FileSwap, version: int | None) -> None:
    before, after = change.removes, change.written
    where = f"version {version}" if version is not None else "the answer was lost, but the table has them"
    tell(
        f"{change.partition}: offsets {before[0].base_offset} to {before[-1].next_offset - 1}: "
        f"{count_of(len(before), 'file')} of "
        f"{sum(file.size_bytes for file in before)} bytes into {len(after)} of "
        f"{sum(file.size_bytes for file in after)} bytes ({where})"
    )


def check_record_count(change: FileSwap, expected: int) -> None:
    """Raises `JobFailed` unless Spark has written that many rows."""
    found = sum(file.record_count for file in change.written)
    if found != expected:
        offsets = f"offsets {change.removes[0].base_offset} to {change.removes[-1].next_offset - 1}"
        raise JobFailed(
            f"{change.partition}: expected {count_of(expected, 'record')} for {offsets}, found {found}: see bus "
            "log verify"
        )


def _place(change: FileSwap) -> list[str]:
    """Give the files their names: the first offset that each stands for, as the bus names its own. Synced."""
    names: list[str] = []
    base_offset = change.base_offset
    try:
        for file in change.written:
            name = f"{base_offset:020d}-{uuid.uuid4()}.parquet"
            os.chmod(file.path, 0o640)  # as the broker's own
            os.rename(file.path, f"{change.folder}/{name}")
            names.append(name)
            base_offset = file.last_offset + 1
        _sync_folder(change.folder)
    except OSError as error:
        _remove(change.folder, names)
        raise JobFailed(f"{change.partition}: a prepared file could not be put into its place: {error}") from error
    return names


def _remove(folder: str, names: Sequence[str]) -> None:
    for name in names:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(f"{folder}/{name}")


def _sync_folder(folder: str) -> None:
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
