"""The inputs of Spark's tasks: planned on the driver, sent to them, read there from data files or from a broker.

Guards two promises. An input is all that a task needs; it opens what it reads by itself and leaves nothing open. And
every record of its ranges comes once, in offset order, and none is left out silently: a file that should have every
offset is counted; one that has vanished (its versions were dropped while the task waited) is looked up again at the
current version, by offsets, which never move. Workers are started for each query, so what only some of them need (a
broker's client, the tables of a root) is loaded by those.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.datasource import InputPartition

from bus.errors import BusError, ErrorCode, RootNotUsable, StorageDamaged, StorageFault, count_of
from bus.model import TopicPartition
from bus.platform.reentry import logger_of
from bus.records.log_schema import INTERNAL_VALUE_TYPES, log_schema
from bus.spark.source.access import FileRange, InputRange, LogAccess, ReadRules
from bus.spark.source.planning import OffsetRange, Sharing, pack
from bus.spark.source.rows import BATCH_ROWS_MAX, RowColumns
from bus.spark.source.source_options import Location, SourceOptions
from bus.spark.workers import settled_worker
from bus.storage_delta.files.proved_parquet import ProvedFile, decode_sums, open_proved
from bus.storage_delta.files.trials import TRIALS

if TYPE_CHECKING:
    from bus.client.admin.admin import Admin
    from bus.client.consumer.consumer import Consumer


def open_access(location: Location) -> LogAccess:
    """Raises `RootNotUsable`, or `BusError` if no broker answers."""
    if location.address is not None:
        from bus.spark.source.broker_access import BrokerAccess

        return BrokerAccess(location)
    from bus.spark.source.access import StorageAccess

    assert location.root is not None, "neither a broker nor a root"
    return StorageAccess(location.root)


class BusInput(InputPartition):
    """The ranges that one task reads."""

    def __init__(self, ranges: Sequence[InputRange], rules: ReadRules) -> None:
        super().__init__(None)
        self.ranges = tuple(ranges)
        self.rules = rules


def read_input(task: BusInput, columns: RowColumns) -> Iterator[pa.RecordBatch]:
    with settled_worker(keeps_memory=True):
        for wanted in task.ranges:
            for table in read_range(wanted, columns.log_columns, task.rules):
                yield from columns.batches(wanted.offsets.partition, table)


def plan_input(
    ranges: list[OffsetRange], access: LogAccess, options: SourceOptions, sharing: Sharing
) -> list[BusInput]:
    rules = ReadRules(access.location, options.fail_on_data_loss, options.patience_ms)
    return [BusInput(access.plan(taken), rules) for taken in pack(ranges, sharing)]


_log = logger_of(__name__)

# If versions are dropped faster than a task can open a file of the newest one, nothing is left to read.
_LOOKUPS_MAX = 5
# A task reads one partition and nothing else: large answers.
_FETCH_DEFAULTS = {"max_partition_fetch_bytes": 8 << 20}
_FETCH_SETTINGS = {"enable_auto_commit": False, "auto_offset_reset": "none"}
_POLL_MS = 500
_MAY_BE_GONE = (
    ErrorCode.OFFSET_OUT_OF_RANGE,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ErrorCode.UNKNOWN_TOPIC_ID,
)


class RecordsGone(StorageFault):
    """Records of the range are below the log start now."""


class TopicGone(RecordsGone):
    """The topic was deleted, or deleted and made again. What its files held cannot be told any more, and what its name
    holds now is another topic's."""


def read_range(wanted: InputRange, columns: Sequence[str], rules: ReadRules) -> Iterator[pa.Table]:
    """Tables with `columns`, of which `offset` is one. Raises `StorageFault`, `RecordsGone`, or `BusError`."""
    read = _fetch(wanted, columns, rules) if wanted.files is None else _read_files(wanted, columns, rules)
    yield from merge(_while_topic_is_there(read, rules))


def _while_topic_is_there(tables: Iterator[pa.Table], rules: ReadRules) -> Iterator[pa.Table]:
    try:
        yield from tables
    except TopicGone as gone:
        if rules.fails_on_loss:
            raise
        _log.warning("data lost: %s", gone)


def _read_files(wanted: InputRange, columns: Sequence[str], rules: ReadRules) -> Iterator[pa.Table]:
    partition, done, end = wanted.offsets.partition, wanted.offsets.begin, wanted.offsets.end
    files = wanted.files or ()
    lookups = 0
    while True:
        try:
            for file in files:
                if file.begin > done:
                    raise StorageDamaged(f"{partition}: expected offset {done}, found {file.begin} next")
                yield from _read_file(file, columns, INTERNAL_VALUE_TYPES.get(partition.topic))
                done = file.end
            break
        except FileNotFoundError as gone:
            lookups += 1
            if lookups > _LOOKUPS_MAX or rules.location.root is None:
                raise StorageDamaged(f"{gone.filename or gone}: expected a live data file, found none") from gone
            left = _look_up(OffsetRange(partition, done, end), wanted.topic_id, rules)
            if left.files is None:
                yield from _fetch(left, columns, rules)
                return
            done, files = left.offsets.begin, left.files
    if done < end:
        raise StorageDamaged(f"{partition}: expected offsets to {end}, found {done}")


def merge(tables: Iterator[pa.Table], rows_max: int = BATCH_ROWS_MAX) -> Iterator[pa.Table]:
    """Small neighbours become one table of up to about `rows_max` rows, in one chunk."""
    waiting: list[pa.Table] = []
    row_count = 0
    for table in tables:
        waiting.append(table)
        row_count += table.num_rows
        if row_count >= rows_max:
            yield pa.concat_tables(waiting).combine_chunks() if len(waiting) > 1 else table
            waiting, row_count = [], 0
    if waiting:
        yield pa.concat_tables(waiting).combine_chunks()


def _look_up(wanted: OffsetRange, topic_id: str | None, rules: ReadRules) -> InputRange:
    """Find the files that have the rest of the range now; a task on a machine without the storage fetches it."""
    from bus.spark.source.access import StorageAccess

    assert rules.location.root is not None, "files are read where the storage is"
    try:
        access = StorageAccess(rules.location.root)
    except RootNotUsable:
        if rules.location.address is None:
            raise
        return InputRange(wanted, None, topic_id)
    topic = access.topics().get(wanted.partition.topic)
    _check_same_topic(wanted.partition, topic_id, None if topic is None else topic.topic_id)
    bounds = access.bounds([wanted.partition])[wanted.partition]
    begin = min(_begin_or_gone(wanted, wanted.begin, bounds.begin, rules), wanted.end)
    (planned,) = access.plan([OffsetRange(wanted.partition, begin, wanted.end)])
    return planned


def _check_same_topic(partition: TopicPartition, planned: str | None, found: str | None) -> None:
    if found is None or (planned is not None and found != planned):
        raise TopicGone(
            f"{partition}: expected topic id {planned}, found {found}; failOnDataLoss=false goes on without"
        )


def _begin_or_gone(wanted: OffsetRange, done: int, log_start: int, rules: ReadRules) -> int:
    """Return the offset to go on at after `done`, if the log begins at `log_start` now."""
    if log_start <= done:
        return done
    message = f"{wanted.partition}: expected records from offset {done} on, they begin at {log_start}"
    if rules.fails_on_loss:
        raise RecordsGone(f"{message}; failOnDataLoss=false goes on there")
    _log.warning("data lost: %s", message)
    return log_start


def _of_the_log(table: pa.Table, value_type: pa.DataType | None) -> pa.Table:
    """Cast the table to the types of the log, as all files of a range must have them to be joined: what OPTIMIZE or
    MERGE of another engine wrote has other ones (Spark's times say no time zone), and what an earlier bus wrote may
    lack fields."""
    wanted = log_schema(value_type)
    fields = [wanted.field(name) for name in table.column_names]
    # Names within a list count: tables that differ in them alone cannot be joined.
    if all(
        found.type.equals(field.type, check_metadata=True) for found, field in zip(table.schema, fields, strict=True)
    ):
        return table
    columns = [table.column(field.name).cast(field.type) for field in fields]
    return pa.table(columns, names=table.column_names)


def _read_file(file: FileRange, columns: Sequence[str], value_type: pa.DataType | None) -> Iterator[pa.Table]:
    """A row group at a time. All of them are read before the last one is given out if the file is not in order."""
    count = 0
    # Opened here: Arrow raises other errors for a file that is not there.
    with Path(file.path).open("rb") as opened:
        try:
            source = _OpenedFile(opened.fileno(), os.fstat(opened.fileno()).st_size)
            parquet = open_proved(source, decode_sums(file.sums) if file.sums else TRIALS.sums_of(source))
            for table in _groups(parquet, file, columns):
                within = _of_the_log(_within(table, file), value_type)
                count += within.num_rows
                if within.num_rows:
                    yield within
        except (pa.ArrowException, OSError, ValueError) as error:
            raise StorageDamaged(
                f"{file.path}: expected a readable data file with offsets {file.begin} to {file.end - 1}: {error}; "
                "`bus log verify` tells all that is damaged"
            ) from error
    expected = file.end - file.begin
    if count != expected and (file.is_dense or count > expected):
        raise StorageDamaged(
            f"{file.path}: expected {count_of(expected, 'record')} from offset {file.begin} on, found {count}"
        )


@dataclass(frozen=True, slots=True)
class _OpenedFile:
    descriptor: int
    size_bytes: int

    def get(self, start: int, length: int) -> bytes:
        return os.pread(self.descriptor, length, start)


def _groups(parquet: ProvedFile, file: FileRange, columns: Sequence[str]) -> Iterator[pa.Table]:
    if not file.is_ordered:
        yield parquet.read(columns).sort_by("offset")
        return
    schema = parquet.metadata.schema
    offset_leaf = next(leaf for leaf in range(len(schema)) if schema.column(leaf).path == "offset")
    for index in range(parquet.metadata.num_row_groups):
        if _may_hold(parquet.metadata.row_group(index), offset_leaf, file):
            yield parquet.read_row_group(index, columns)


def _may_hold(group: Any, offset_leaf: int, file: FileRange) -> bool:
    statistics = group.column(offset_leaf).statistics
    if statistics is None or not statistics.has_min_max:
        return True
    return bool(statistics.min < file.end and statistics.max >= file.begin)


def _within(table: pa.Table, file: FileRange) -> pa.Table:
    offsets = table.column("offset")
    if not table.num_rows or (offsets[0].as_py() >= file.begin and offsets[-1].as_py() < file.end):
        return table
    inside = pc.and_(pc.greater_equal(offsets, file.begin), pc.less(offsets, file.end))
    return table.filter(inside)


def _fetch(wanted: InputRange, columns: Sequence[str], rules: ReadRules) -> Iterator[pa.Table]:
    from bus.client.config.sources import only_settings_of_connections
    from bus.client.consumer.consumer import Consumer
    from bus.spark.source.broker_access import open_admin

    address, partition = rules.location.address, wanted.offsets.partition
    assert address is not None, f"no broker to fetch {wanted} from"
    settings = {**_FETCH_DEFAULTS, **rules.location.settings, **_FETCH_SETTINGS}
    with only_settings_of_connections():
        consumer = Consumer(address, **settings)
    with consumer, open_admin(rules.location) as admin:
        consumer.assign([partition])
        consumer.seek(partition, wanted.offsets.begin)
        yield from _Fetched(consumer, admin, wanted, rules).tables(columns)


class _Fetched:
    """A consumer stays with the topic that it found first. So records are of the topic that was planned if that one is
    still there when the first of them have come: ids never come back."""

    def __init__(self, consumer: Consumer, admin: Admin, wanted: InputRange, rules: ReadRules) -> None:
        self._consumer = consumer
        self._admin = admin
        self._wanted = wanted.offsets
        self._topic_id = wanted.topic_id
        self._rules = rules

    def tables(self, columns: Sequence[str]) -> Iterator[pa.Table]:
        partition, end = self._wanted.partition, self._wanted.end
        done, since_s, is_checked = self._wanted.begin, time.monotonic(), False
        while done < end:
            table = self._poll(done)
            if not is_checked or not table.num_rows:
                self._check_topic()
                is_checked = True
            if table.num_rows:
                yield table.filter(pc.less(table.column("offset"), end)).select(list(columns))
            before, done = done, self._consumer.position(partition)
            if done > before:
                since_s = time.monotonic()
            elif time.monotonic() - since_s > self._rules.patience_ms / 1000:
                raise BusError(
                    ErrorCode.REQUEST_TIMED_OUT,
                    f"{partition}: expected records from offset {done} on within {self._rules.patience_ms} ms "
                    "(kafkaConsumer.pollTimeoutMs), found none",
                )

    def _poll(self, done: int) -> pa.Table:
        """An empty table if records were gone and the consumer has gone on behind them."""
        consumer, partition = self._consumer, self._wanted.partition
        try:
            return consumer.poll_arrow(_POLL_MS)
        except BusError as error:
            if error.code not in _MAY_BE_GONE:
                raise
            self._check_topic()
            if error.code is not ErrorCode.OFFSET_OUT_OF_RANGE:
                raise
        log_start = consumer.beginning_offsets([partition])[partition]
        if log_start <= done:
            raise RecordsGone(f"{partition}: expected records from offset {done} on, the log ends before it")
        begin = _begin_or_gone(self._wanted, done, log_start, self._rules)
        consumer.seek(partition, min(begin, self._wanted.end))
        return pa.table({})

    def _check_topic(self) -> None:
        partition = self._wanted.partition
        try:
            found: str | None = self._admin.describe_topics([partition.topic])[partition.topic].topic_id
        except BusError as error:
            if error.code is not ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                raise
            found = None
        _check_same_topic(partition, self._topic_id, found)
