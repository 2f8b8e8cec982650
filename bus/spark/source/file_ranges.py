"""What a task does: the records of an `InputRange`, from data files or from a broker, as tables of the log's columns.

Guards one promise: every record of the range comes once, in offset order, and none is left out silently. A file that
should have every offset is counted; one that has vanished (its versions were dropped while the task waited) is looked
up again at the current version, by offsets, which never move.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from bus.client.consumer import Consumer
from bus.errors import BusError, ErrorCode, StorageDamaged, StorageFault
from bus.model import TopicPartition
from bus.spark.source.access import FileRange, InputRange
from bus.spark.source.options import Location
from bus.spark.source.planning import OffsetRange
from bus.spark.source.rows import BATCH_ROWS_MAX
from bus.spark.source.storage_access import StorageAccess

# Somebody who drops versions faster than a task can open a file of the newest one leaves nothing to read.
_LOOKUPS_MAX = 5
_FETCH_SETTINGS = {"fetch_max_wait_ms": 500, "enable_auto_commit": False, "auto_offset_reset": "none"}


class RecordsGone(StorageFault):
    """Records of the range are below the log start now."""


def read_range(wanted: InputRange, columns: Sequence[str], location: Location) -> Iterator[pa.Table]:
    """Tables with `columns`, of which `offset` is one. Raises `StorageFault`, `RecordsGone`, or `BusError`."""
    if wanted.files is None:
        tables = _fetch(wanted.offsets, columns, location)
    else:
        tables = _read_files(wanted.offsets, wanted.files, columns, location)
    yield from merge(tables)


def _read_files(
    wanted: OffsetRange, files: Sequence[FileRange], columns: Sequence[str], location: Location
) -> Iterator[pa.Table]:
    done = wanted.begin
    lookups = 0
    while True:
        try:
            for file in files:
                if file.begin > done:
                    raise StorageDamaged(f"{wanted.partition}: expected offset {done}, found {file.begin} next")
                yield from _read_file(file, columns)
                done = file.end
            break
        except FileNotFoundError as gone:
            lookups += 1
            if lookups > _LOOKUPS_MAX or location.root is None:
                raise StorageDamaged(f"{gone.filename or gone}: expected a live data file, found none") from gone
            files = _look_up(OffsetRange(wanted.partition, done, wanted.end), location.root)
    if done < wanted.end:
        raise StorageDamaged(f"{wanted.partition}: expected offsets to {wanted.end}, found {done}")


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


def _look_up(wanted: OffsetRange, root: str) -> tuple[FileRange, ...]:
    access = StorageAccess(root)
    begin = access.bounds([wanted.partition])[wanted.partition].begin
    if begin > wanted.begin:
        raise RecordsGone(f"{wanted.partition}: expected records from offset {wanted.begin} on, they begin at {begin}")
    (planned,) = access.plan([wanted])
    return planned.files or ()


def _read_file(file: FileRange, columns: Sequence[str]) -> Iterator[pa.Table]:
    """A row group at a time. All of them are read before the last one is given out if the file is not in order."""
    count = 0
    # Opened here: Arrow raises other errors for a file that is not there.
    with Path(file.path).open("rb") as opened:
        try:
            parquet = pq.ParquetFile(opened)
            for table in _groups(parquet, file, columns):
                within = _within(table, file)
                count += within.num_rows
                if within.num_rows:
                    yield within
        except (pa.ArrowException, OSError) as error:
            raise StorageDamaged(f"{file.path}: expected a readable data file: {error}") from error
    expected = file.end - file.begin
    if count != expected and (file.is_dense or count > expected):
        raise StorageDamaged(f"{file.path}: expected {expected} records from offset {file.begin} on, found {count}")


def _groups(parquet: pq.ParquetFile, file: FileRange, columns: Sequence[str]) -> Iterator[pa.Table]:
    if not file.is_ordered:
        yield parquet.read(columns=list(columns), use_threads=False).sort_by("offset")
        return
    offset_index = parquet.schema_arrow.names.index("offset")
    for index in range(parquet.metadata.num_row_groups):
        if _may_hold(parquet.metadata.row_group(index), offset_index, file):
            yield parquet.read_row_group(index, columns=list(columns), use_threads=False)


def _may_hold(group: Any, offset_index: int, file: FileRange) -> bool:
    """By the statistics of `offset`, the first columns of the log being no structs."""
    statistics = group.column(offset_index).statistics
    if statistics is None or not statistics.has_min_max:
        return True
    return bool(statistics.min < file.end and statistics.max >= file.begin)


def _within(table: pa.Table, file: FileRange) -> pa.Table:
    offsets = table.column("offset")
    if not table.num_rows or (offsets[0].as_py() >= file.begin and offsets[-1].as_py() < file.end):
        return table
    inside = pc.and_(pc.greater_equal(offsets, file.begin), pc.less(offsets, file.end))
    return table.filter(inside)


def _fetch(wanted: OffsetRange, columns: Sequence[str], location: Location) -> Iterator[pa.Table]:
    assert location.address is not None, f"nobody to fetch {wanted} from"
    with Consumer(location.address, **{**location.settings, **_FETCH_SETTINGS}) as consumer:
        consumer.assign([wanted.partition])
        consumer.seek(wanted.partition, wanted.begin)
        yield from _polled(consumer, wanted, columns)


def _polled(consumer: Consumer, wanted: OffsetRange, columns: Sequence[str]) -> Iterator[pa.Table]:
    while (position := consumer.position(wanted.partition)) < wanted.end:
        table = _or_gone(lambda: consumer.poll_arrow(500), wanted.partition, position)
        if table.num_rows:
            inside = pc.less(table.column("offset"), wanted.end)
            yield table.filter(inside).select(list(columns))


def _or_gone(poll: Callable[[], pa.Table], partition: TopicPartition, position: int) -> pa.Table:
    try:
        return poll()
    except BusError as error:
        if error.code is ErrorCode.OFFSET_OUT_OF_RANGE:
            raise RecordsGone(f"{partition}: expected records from offset {position} on: {error.message}") from error
        raise
