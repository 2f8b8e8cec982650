"""A topic as a Spark DataFrame, straight from its tables: no broker, no connector, no limit of one task per partition.

Which partitions there are comes from the cluster's metadata log, and which files a version of a partition has from its
Delta log. Guards two promises: a frame is the records of one committed version of each partition; and nothing that the
bus does to a table stops a stream or shows it a record twice. The bus reads the logs itself, in milliseconds, and hands
the files to Spark's own Parquet reader. Delta would plan each partition again in every query, by jobs of its own:
tenths of a second each, and ten seconds for the first query of a session. It still reads what follows the log (`live`),
streams, and tables in which a feature of Delta decides which rows count.

A stream is that of Spark's own Delta source. Rolling and key compaction commit without a change of data, which Delta
passes over by itself; removals do change data, so they are ignored. The other way is `format("bus")`, with offsets,
limits by records, and a group's progress: docs/sql.md says which one to take when.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from bus.platform.reentry import Turn
from bus.records.epoch import epoch_ms
from bus.tables.point_in_time import Bound, bound_of, check_bound, check_one_moment
from bus.tables.snapshots import TableSnapshot
from bus.tables.topics import TopicTables, check_root
from bus.tables.transaction_cuts import TransactionCut, find_cut, is_not_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from bus.model import TopicPartition

# A session may be told to pass over files that are gone or damaged; a committed one that is not there is an error.
_EVERY_FILE = {"ignoreMissingFiles": "false", "ignoreCorruptFiles": "false"}
# In the path of a file Spark takes these for a pattern. Delta does not.
_PATTERN = re.compile(r"[][{}*?\\]")
_LISTING_THRESHOLD = "spark.sql.sources.parallelPartitionDiscovery.threshold"
# The folder of a table is named by the number of its partition. A condition on it leaves out files when Spark plans.
_PARTITION = "CAST(substring_index(substring_index(_metadata.file_path, '/', -2), '/', 1) AS INT)"
_KNOWN_MAX = 8
_known: dict[Path, TopicTables] = {}
_turn = Turn()
# Byte by byte, as the embedded engine writes them: what is printable and no quote or backslash as it is.
_ESCAPED = r"""array_join(transform(regexp_extract_all(hex(`{0}`), '(..)', 1), byte -> CASE
    WHEN byte BETWEEN '20' AND '7E' AND byte NOT IN ('22', '27', '5C') THEN char(conv(byte, 16, 10))
    ELSE concat('\\x', byte) END), '')"""


def read_topic(
    spark: SparkSession,
    root: str,
    topic: str,
    *,
    at_version: Bound | None = None,
    at_time: datetime | None = None,
    at_offset: Bound | None = None,
    at_transaction: str | TransactionCut | None = None,
    ordered: bool = False,
    live: bool = False,
) -> DataFrame:
    """The records of a topic: columns `topic`, `partition`, then those of the log; `key` and `value` are binary.

    All actions over the frame see the same: what was committed at this call or, with `at_version`, at that Delta
    version of the partitions, for as long as its files are kept (`delta.log.retention.ms`). `at_time` is the same by
    the clock, with the last version of each partition that was committed by then; without a zone it is UTC.
    `at_transaction`, a transactional id, is what the last transaction left that it has committed by now: in each
    partition that took part the version with its rows, in any other one about what was there at that time, and of each
    other transaction all or nothing. The cut that `bus.tables.transaction_cuts.find_cut` has found is taken as well, so
    that several topics are seen at the same one. `live`
    makes each action see what is committed at its time, as any Delta table does, and costs each query the planning of
    that; which partitions there are and where their logs start is then still that of this call. `at_offset` hides the
    records at and after that offset. Versions and offsets are a number for every partition, or a mapping from topic
    name or `TopicPartition` to a number. `ordered` sorts by partition and offset.

    Raises `BusError` UNKNOWN_TOPIC_OR_PARTITION, TRANSACTIONAL_ID_NOT_FOUND or INVALID_TXN_STATE (no committed
    transaction is known), `RootNotUsable`, or `StorageFault` for a version that is not there.
    """
    check_bound(at_version, "a version")
    check_bound(at_offset, "an offset")
    check_one_moment(at_version=at_version, at_time=at_time, at_transaction=at_transaction, live=live or None)
    snapshots = []
    with _known_tables(root) as tables:
        cut = find_cut(tables, at_transaction) if isinstance(at_transaction, str) else at_transaction
        for partition in tables.partitions(topic):
            version = bound_of(at_version, partition)
            if cut is not None:
                version = cut.version_of(tables, partition)
            if at_time is not None:
                version = tables.version_at(partition, epoch_ms(at_time))
            snapshots.append(tables.snapshot(partition, version))  # one that is gone is refused in the bus's own words
    frames = []
    together: dict[_Scan, list[TableSnapshot]] = {}
    for snapshot in snapshots:
        end_offset = bound_of(at_offset, snapshot.partition)
        hidden = () if cut is None else cut.hidden_rows(snapshot.partition)
        if not live and _is_readable(snapshot):
            scan = _Scan(snapshot.delta_schema, snapshot.begin_offset, end_offset, hidden)
            together.setdefault(scan, []).append(snapshot)
        else:
            reader = spark.read if live else spark.read.option("versionAsOf", snapshot.version)
            rows = _without(reader.format("delta").load(f"file:{snapshot.folder}"), hidden)
            frames.append(with_place(rows, snapshot, end_offset))
    frames += [_read_files(spark, topic, scan, snapshots) for scan, snapshots in together.items()]
    frame = union_all(frames)
    return frame.orderBy("partition", "offset") if ordered else frame


@contextmanager
def _known_tables(root: str) -> Iterator[TopicTables]:
    """Lend the tables of a root to one thread at a time. They are kept for the next frame, which need only look for
    what is new: milliseconds for each partition. Raises `RootNotUsable`."""
    folder = check_root(root)
    with _turn:
        if folder not in _known:
            if len(_known) >= _KNOWN_MAX:
                _known.clear()
            _known[folder] = TopicTables(str(folder))
        yield _known[folder]


@dataclass(frozen=True, slots=True)
class _Scan:
    """The properties that partitions have in common which are read together."""

    delta_schema: str
    begin_offset: int | None
    end_offset: int | None
    hidden: tuple[tuple[int, int], ...]  # producer id and epoch of transactions that do not count


def _is_readable(snapshot: TableSnapshot) -> bool:
    """True if the rows of the table are those of its files, and Spark can be told of them by their paths."""
    return snapshot.is_plain and snapshot.is_flat and _PATTERN.search(snapshot.folder) is None


def _read_files(spark: SparkSession, topic: str, scan: _Scan, snapshots: Sequence[TableSnapshot]) -> DataFrame:
    """One relation, however many partitions: to plan one for each takes a hundredth of a second each."""
    from pyspark.sql.types import StructType

    schema = StructType.fromJson(json.loads(scan.delta_schema))
    files = [
        f"file:{file}"
        for snapshot in snapshots
        for file, first in zip(snapshot.files, snapshot.first_offsets, strict=True)
        if scan.end_offset is None or first < scan.end_offset
    ]
    reader = spark.read.schema(schema).options(**_EVERY_FILE)
    # More files in one relation, and Spark starts a job of as many tasks to look at them.
    most = max(1, int(spark.conf.get(_LISTING_THRESHOLD) or 0))
    starts = range(0, len(files), most)
    frames = [_without(reader.parquet(*files[start : start + most]), scan.hidden) for start in starts]
    if not frames:
        return _place(spark.createDataFrame([], schema), topic, "0", scan.begin_offset, scan.end_offset)
    return union_all(_place(frame, topic, _PARTITION, scan.begin_offset, scan.end_offset) for frame in frames)


def _without(frame: DataFrame, hidden: Iterable[tuple[int, int]]) -> DataFrame:
    for producer_id, producer_epoch in hidden:
        frame = frame.where(is_not_of(producer_id, producer_epoch))
    return frame


def with_place(frame: DataFrame, snapshot: TableSnapshot, end_offset: int | None = None) -> DataFrame:
    """A partition's table as a part of its topic: without what is below its log start, or not below `end_offset`."""
    topic, number = snapshot.partition.topic, snapshot.partition.partition
    return _place(frame, topic, str(number), snapshot.begin_offset, end_offset)


def _place(frame: DataFrame, topic: str, partition: str, begin_offset: int | None, end_offset: int | None) -> DataFrame:
    """`partition`: an expression."""
    frame = frame.selectExpr(f"'{topic}' AS topic", f"{partition} AS partition", "*")
    if begin_offset is not None:
        frame = frame.where(f"offset >= {begin_offset}")
    if end_offset is not None:
        frame = frame.where(f"offset < {end_offset}")
    return frame


def union_all(frames: Iterable[DataFrame]) -> DataFrame:
    """Return the union of at least one frame. They are joined two by two, since Spark looks through all of a frame each
    time that it grows."""
    level = list(frames)
    while len(level) > 1:
        pairs = zip(level[::2], level[1::2], strict=False)
        level = [left.unionAll(right) for left, right in pairs] + level[len(level) & ~1 :]
    return level[0]


def with_text(frame: DataFrame) -> DataFrame:
    """`key` and `value` as text, as the embedded engine shows them: UTF-8 as it is and other bytes escaped as \\xNN;
    `key_bytes` and `value_bytes` are the bytes themselves."""
    from pyspark.sql import functions as sql
    from pyspark.sql.types import BinaryType

    binary = [name for name in ("key", "value") if isinstance(frame.schema[name].dataType, BinaryType)]
    columns: list[Any] = []
    for name in frame.columns:
        if name in binary:
            escaped = sql.expr(_ESCAPED.format(name))
            text = sql.try_validate_utf8(sql.col(name).cast("string"))
            columns.append(sql.coalesce(text, escaped).alias(name))
        else:
            columns.append(sql.col(name))
    return frame.select(*columns, *(sql.col(name).alias(f"{name}_bytes") for name in binary))


def read_stream_topic(
    spark: SparkSession,
    root: str,
    topic: str,
    *,
    starting_version: Bound | Literal["latest"] | None = None,
    max_files_per_trigger: int | None = None,
    max_bytes_per_trigger: str | None = None,
) -> DataFrame:
    """The records of a topic as a stream, with the columns of `read_topic`; one Delta stream a partition.

    It begins with all that is there; with `starting_version` with what that version and later ones added, a number for
    every partition or a mapping as in `read_topic`, where what is not named begins with all; "latest": with what comes.
    The limits are Delta's, for each partition. Within a batch rows are in no order, and old files may come in any: who
    needs it sorts by partition and offset. Partitions that come later are in the stream of the next call.

    Raises `BusError` UNKNOWN_TOPIC_OR_PARTITION, `RootNotUsable`, or `StorageFault` for a version that is not there.
    """
    if not isinstance(starting_version, str):
        check_bound(starting_version, "a version")
    elif starting_version != "latest":
        raise ValueError(f"expected a version or 'latest', found {starting_version!r}")
    limits = {"maxFilesPerTrigger": max_files_per_trigger, "maxBytesPerTrigger": max_bytes_per_trigger}
    options = {name: str(limit) for name, limit in limits.items() if limit is not None}
    tables = TopicTables(root)
    return union_all(
        _stream_partition(spark, tables, partition, _version(starting_version, partition), options)
        for partition in tables.partitions(topic)
    )


def _version(starting: Bound | str | None, partition: TopicPartition) -> str | None:
    if isinstance(starting, str):
        return starting
    version = bound_of(starting, partition)
    return None if version is None else str(version)


def _stream_partition(
    spark: SparkSession, tables: TopicTables, partition: TopicPartition, version: str | None, options: dict[str, str]
) -> DataFrame:
    snapshot = tables.snapshot(partition)
    reader = spark.readStream.format("delta").options(**options).option("ignoreDeletes", "true")
    if version is not None:
        if version.isdecimal() and int(version) <= snapshot.version:
            tables.snapshot(partition, int(version))  # one that is gone is refused here, in the bus's own words
        reader = reader.option("startingVersion", version)
    return with_place(reader.load(f"file:{tables.path(partition)}"), snapshot)
