"""Are files that another program wrote fit to take the place of live ones? Judged by all of their rows.

Guards two promises: a swap neither loses nor moves nor invents an offset, but for those that key compaction may drop
and those below the log start, which were deleted; and what is swapped in can be decoded, every page of it. What the log
will say of the files is gathered here, and never taken from their writer. A row group is in memory at a time. Changes
neither the table nor the files.
"""

from __future__ import annotations

import contextlib
import re
import uuid
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa

from bus.errors import ErrorCode, Refused, StorageDamaged, count_of
from bus.ports import SwapKind
from bus.records.log_schema import nullable_type
from bus.storage_delta.files.data_reader import DataReader
from bus.storage_delta.files.live_file import LiveFile, ages_of, thin_by_ratio
from bus.storage_delta.files.proved_parquet import ProvedFile, encode_sums
from bus.storage_delta.files.row_statistics import COLUMNS as STATISTICS_COLUMNS
from bus.storage_delta.files.row_statistics import RowStatistics
from bus.storage_delta.maintenance.rewritten_file import PreparedSwap, level_above, prepared_swap, with_history
from bus.storage_delta.partition_reader import TableView
from bus.storage_delta.stores.store import KeyNotFound

# A name that the Delta log holds without escapes. Its number is checked once the rows are known.
_FILE_NAME = re.compile(r"\d{20}-[A-Za-z0-9._-]{1,200}\.parquet")
_NEVER_NULL = ("offset", "timestamp", "timestamp_type", "leader_epoch")
# A reader decodes a row group as a whole, however little of it is wanted. One of a few large records cannot be smaller.
_ROW_GROUP_BYTES_MAX = 64 << 20
_ROWS_OF_A_LARGE_GROUP = 128


class _Unfit(Exception):
    """The files are not fit for the swap; the message says what was expected and what was found."""


def check_swap(
    reader: DataReader,
    schema: pa.Schema,
    view: TableView,
    removed: Collection[str],
    *,
    removes: Sequence[str],
    adds: Sequence[str],
    kind: SwapKind,
) -> PreparedSwap | Refused:
    """Check a swap as `TableRewrites.check_swap` says; `removed` are data files that older versions name. Raises
    `StorageFault` where the store, or the files to be replaced, fail.
    """
    try:
        files = _find_removes(view, removes, kind)
        _check_names(adds, {*removed, *(file.path for file in view.live_files)})
        described = _check_files(reader, schema, files, adds, kind, log_start=view.state.log_start)
    except _Unfit as unfit:
        return Refused(ErrorCode.INVALID_REQUEST, str(unfit))
    ages = thin_by_ratio(ages_of(files))
    level = level_above(files)
    written = [(with_history(file, ages, level=level), stats) for file, stats in described]
    return prepared_swap(files, written, kind, txn_id=str(uuid.uuid4()))


def _find_removes(view: TableView, removes: Sequence[str], kind: SwapKind) -> Sequence[LiveFile]:
    if not removes:
        raise _Unfit("expected at least one file to remove, found none")
    live = {file.path: index for index, file in enumerate(view.live_files)}
    for name in removes:
        if name not in live:
            raise _Unfit(f"{name}: expected a live file of version {view.state.version}, found it is none")
    first = live[removes[0]]
    for place, name in enumerate(removes):
        if live[name] != first + place:
            before = removes[place - 1]
            raise _Unfit(f"{name}: expected the live file that follows {before} in the order of offsets, found another")
    if kind is SwapKind.LAST_OF_KEYS and first:
        # Files below `first` would count as compacted although keys of their records come again in these files.
        found = f"{removes[0]} from offset {view.live_files[first].base_offset} on"
        raise _Unfit(
            f"expected key compaction to begin with the first live file, {view.live_files[0].path}, found {found}"
        )
    return view.live_files[first : first + len(removes)]


def _check_names(names: Sequence[str], taken: Collection[str]) -> None:
    """`taken`: data files that some version names."""
    if not names:
        raise _Unfit("expected at least one file to add, found none")
    for index, name in enumerate(names):
        if not _FILE_NAME.fullmatch(name):
            raise _Unfit(
                f"expected the name of a file in the table's folder, 20 digits of its first offset, '-', letters, "
                f"digits, '.', '_' or '-', and '.parquet', found {name!r}"
            )
        if name in taken:
            raise _Unfit(f"{name}: expected a file that no version names, found it in the log")
        if name in names[:index]:
            raise _Unfit(f"{name}: expected every file once, found it twice")


def _check_files(
    reader: DataReader,
    schema: pa.Schema,
    removes: Sequence[LiveFile],
    adds: Sequence[str],
    kind: SwapKind,
    *,
    log_start: int,
) -> list[tuple[LiveFile, str]]:
    """The entries of `adds`, each with its statistics as JSON."""
    base_offset = _find_begin(adds[0], removes[0], log_start)
    offsets = _OffsetsToStay(reader, removes, kind, begin=base_offset)
    described: list[tuple[LiveFile, str]] = []
    for name in adds:
        if int(name[:20]) != base_offset:
            raise _Unfit(
                f"{name}: expected a name that begins with the offset where the file has to begin, "
                f"{base_offset:020d}, found {name[:20]}"
            )
        statistics, size_bytes, sums = _check_rows(reader, name, schema, offsets)
        next_offset = removes[-1].next_offset if name == adds[-1] else statistics.next_offset
        file, stats = statistics.describe(name, size_bytes, base_offset=base_offset, next_offset=next_offset)
        described.append((replace(file, sums=sums), stats))
        base_offset = statistics.next_offset
    offsets.check_end(adds[-1], base_offset - 1)
    return described


def _find_begin(name: str, first: LiveFile, log_start: int) -> int:
    """The offset that `name` begins with: that of the first file that goes, or the log start, if it lies in there. One
    between them is that of a job which has read an earlier log start: verification would miss the rows behind it."""
    begin = int(name[:20])
    if begin == log_start > first.base_offset or begin == first.base_offset:
        return begin
    is_deleted = f", or the log start, {log_start:020d}" if log_start > first.base_offset else ""
    raise _Unfit(
        f"{name}: expected a name that begins with the offset where the file has to begin, "
        f"{first.base_offset:020d}{is_deleted}, found {name[:20]}"
    )


def _check_rows(
    reader: DataReader, name: str, schema: pa.Schema, offsets: _OffsetsToStay
) -> tuple[RowStatistics, int, str]:
    """Return the statistics of the rows of `name`, its size in bytes and its checksums. Raises `_Unfit`."""
    with _unfit_named(name):
        parquet, size_bytes = reader.open_unnamed(name)
    statistics = RowStatistics(name)
    for rows in _rows_of(parquet, name, schema):
        try:
            statistics.add(rows)
        except StorageDamaged as disorder:
            raise _Unfit(str(disorder)) from None
        offsets.check(name, rows.column("offset").chunk(0).to_numpy())
    if not statistics.row_count:
        raise _Unfit(f"{name}: expected at least one row, found none")
    return statistics, size_bytes, encode_sums(parquet.footer.sums)


def _rows_of(parquet: ProvedFile, name: str, schema: pa.Schema) -> Iterator[pa.Table]:
    """The columns that statistics need, of all rows; the others are decoded too."""
    _check_columns(name, parquet.schema_arrow, schema)
    names = list(STATISTICS_COLUMNS)
    wanted = pa.schema([schema.field(column) for column in names])
    for group in range(parquet.num_row_groups):
        _check_group_size(name, group, parquet.metadata.row_group(group))
        with _unfit_named(name):
            rows = parquet.read_row_group(group)
        for column in _NEVER_NULL:
            if nulls := rows.column(column).null_count:
                raise _Unfit(f"{name}: expected a value in every {column}, found {count_of(nulls, 'null')}")
        if rows.num_rows:
            yield rows.select(names).cast(wanted).combine_chunks()


@contextlib.contextmanager
def _unfit_named(name: str) -> Iterator[None]:
    """Translate the errors that Arrow raises for a broken Parquet file to `_Unfit`. Faults of the store itself pass."""
    try:
        yield
    except KeyNotFound:
        raise _Unfit(f"{name}: expected a file in the table's folder, found none") from None
    except (pa.ArrowException, OSError, ValueError) as error:
        raise _Unfit(f"{name}: expected a Parquet file that can be decoded, found: {error}") from error


def _check_columns(name: str, found: pa.Schema, expected: pa.Schema) -> None:
    if found.names != expected.names:
        raise _Unfit(f"{name}: expected the columns {', '.join(expected.names)}, found {', '.join(found.names)}")
    for field in expected:
        actual = found.field(field.name).type
        if nullable_type(actual) != nullable_type(field.type):
            raise _Unfit(f"{name}: expected {field.name} of type {field.type}, found {actual}")


def _check_group_size(name: str, group: int, metadata: Any) -> None:
    if metadata.total_byte_size > _ROW_GROUP_BYTES_MAX and metadata.num_rows > _ROWS_OF_A_LARGE_GROUP:
        raise _Unfit(
            f"{name}: expected row groups of at most {_ROW_GROUP_BYTES_MAX} bytes, found {metadata.total_byte_size} in "
            f"row group {group}"
        )


class _OffsetsToStay:
    """The offsets of the rows that are to be replaced, beside those of the rows that come for them."""

    def __init__(self, reader: DataReader, removes: Sequence[LiveFile], kind: SwapKind, *, begin: int) -> None:
        """Read those from `begin` on: rows below it were deleted."""
        self._parts = self._read(reader, removes, begin)
        self._ahead = np.empty(0, np.int64)
        self._may_miss = kind is SwapKind.LAST_OF_KEYS
        self._begin = begin

    def check(self, name: str, found: Any) -> None:
        """`found`: offsets of `name` that grow, and go on where the last call ended. Raises `_Unfit`."""
        expected = self._up_to(int(found[-1]))
        if not self._may_miss and len(expected) == len(found) and np.array_equal(expected, found):
            return
        is_known = np.isin(found, expected, assume_unique=True)
        if not np.all(is_known):
            alien = int(found[np.argmin(is_known)])
            why = "was deleted" if alien < self._begin else "is not in them"
            raise _Unfit(f"{name}: expected offsets of the files to be removed, found {alien}, which {why}")
        if not self._may_miss:
            missing = int(np.setdiff1d(expected, found, assume_unique=True)[0])
            raise _Unfit(f"{name}: expected offset {missing}, which is in the files to be removed, found it missing")

    def check_end(self, name: str, last_offset: int) -> None:
        """`last_offset` of `name` was the last one of all."""
        behind = np.concatenate([self._ahead, *self._parts])
        if len(behind):
            missing = int(behind[-1] if self._may_miss else behind[0])
            raise _Unfit(f"{name}: expected offset {missing} at its end, found {last_offset} to be the last one")

    def _up_to(self, offset: int) -> Any:
        parts = [self._ahead]
        while parts[-1].size == 0 or parts[-1][-1] <= offset:
            following = next(self._parts, None)
            if following is None:
                break
            parts.append(following)
        ahead = np.concatenate(parts)
        count = int(np.searchsorted(ahead, offset, side="right"))
        self._ahead = ahead[count:]
        return ahead[:count]

    @staticmethod
    def _read(reader: DataReader, files: Sequence[LiveFile], begin: int) -> Iterator[Any]:
        for file in files:
            for rows in reader.scan(file, ["offset"]):
                offsets = rows.column("offset").to_numpy()
                yield offsets[offsets >= begin]
