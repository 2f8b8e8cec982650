"""The process that reads unproved Parquet files: such a file may end its reader.

Run as a program by trials.py. Takes a footer, then the pieces of the file, on its standard input, decodes every page of
them, and answers each with a line of JSON: what is wrong, or nothing. Ends when nothing was asked for a while, and with
its parent. Reads and writes no file.
"""

from __future__ import annotations

import contextlib
import json
import resource
import select
import struct
import sys
from io import RawIOBase
from itertools import pairwise
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from bus.errors import count_of
from bus.storage_delta.files.proved_parquet import decode_footer, first_byte, group_starts, open_piece

# Header before the bytes of a footer or a piece: its kind, where it begins in the file, its number of bytes.
HEAD = struct.Struct(">cQQ")
FOOTER, PIECE, COLUMN = b"F", b"P", b"C"
# Header before a piece of which one column is decoded: its row group, and the length of the column's name in bytes.
COLUMN_HEAD = struct.Struct(">IB")
IDLE_S = 60.0
# an allocation of a damaged file beyond this fails and takes no memory from other processes
_MEMORY_BYTES_MAX = 8 << 30


class Trial:
    """A trial of one file; its footer comes first."""

    def __init__(self) -> None:
        self._metadata: Any = None
        self._starts: tuple[int, ...] = ()

    def take_footer(self, start: int, tail: bytes) -> dict[str, Any]:
        """Return where the pieces begin, and where the last one ends."""
        metadata = decode_footer(tail)
        self._metadata = metadata
        _look_at_all(metadata)
        groups = [metadata.row_group(index) for index in range(metadata.num_row_groups)]
        spans = [_span(group) for group in groups if group.num_rows]
        end = max((end for _, end in spans), default=4)
        if not all(4 <= first < last <= start for first, last in spans):
            raise ValueError(f"expected row groups between bytes 4 and {start}, found {spans[:3]}")
        self._starts = _starts_of(metadata, spans)
        return {"starts": self._starts, "end": end}

    def take_piece(self, start: int, piece: bytes) -> dict[str, Any]:
        is_single = len(self._starts) == 1
        groups = range(self._metadata.num_row_groups) if is_single else [self._starts.index(start)]
        for group in groups:
            if not self._metadata.row_group(group).num_rows:
                continue
            rows = open_piece(self._metadata, start, piece, is_checked=False).read_row_group(group, use_threads=False)
            rows.validate(full=True)
            _compare_statistics(self._metadata.row_group(group), rows)
        return {}

    def take_column(self, start: int, request: bytes) -> dict[str, Any]:
        group, length = COLUMN_HEAD.unpack_from(request)
        end = COLUMN_HEAD.size + length
        name, piece = request[COLUMN_HEAD.size : end].decode(), request[end:]
        parquet = open_piece(self._metadata, start, piece, is_checked=False)
        rows = parquet.read_row_group(group, columns=[name], use_threads=False)
        rows.validate(full=True)
        _compare_statistics(self._metadata.row_group(group), rows)
        return {}


def _look_at_all(metadata: Any) -> None:
    """Read everything that a reader may ask a footer for. Raises `ValueError` if the footer contradicts itself."""
    metadata.schema.to_arrow_schema()
    with contextlib.suppress(OverflowError):  # times from the year 10000 on, for which Python has no day
        metadata.to_dict()
    for group in range(metadata.num_row_groups):
        row_group = metadata.row_group(group)
        for index in range(row_group.num_columns):
            column = row_group.column(index)
            expected = metadata.schema.column(index)
            if (column.path_in_schema, column.physical_type) != (expected.path, expected.physical_type):
                raise ValueError(f"expected column {index} to be {expected.path}, found {column.path_in_schema}")
            if column.is_stats_set and column.statistics.has_min_max:
                _ = column.statistics.min_raw, column.statistics.max_raw, column.statistics.null_count


def _compare_statistics(group: Any, rows: pa.Table) -> None:
    """Readers skip columns and row groups by them, and take a minimum that is the maximum for the whole column. Raises
    `ValueError` unless they are true."""
    if group.num_rows != rows.num_rows:
        raise ValueError(f"expected {count_of(group.num_rows, 'row')} in a row group, found {rows.num_rows}")
    for index in range(group.num_columns):
        column = group.column(index)
        name, statistics = column.path_in_schema, column.statistics if column.is_stats_set else None
        if statistics is None or name not in rows.column_names:
            continue
        values = rows.column(name)
        if statistics.has_null_count and statistics.null_count != values.null_count:
            raise ValueError(f"expected {count_of(statistics.null_count, 'null')} in {name}, found {values.null_count}")
        if statistics.has_min_max and (bounds := _bounds(values)) not in (
            None,
            (statistics.min_raw, statistics.max_raw),
        ):
            raise ValueError(f"expected {name} from {statistics.min_raw} to {statistics.max_raw}, found {bounds}")


def _bounds(values: pa.ChunkedArray) -> tuple[int | None, int | None] | None:
    """Return minimum and maximum as the file stores them; None for values that are no integers."""
    if pa.types.is_timestamp(values.type):
        values = values.cast(pa.int64())
    if not pa.types.is_integer(values.type):
        return None
    bounds = pc.min_max(values)
    return bounds["min"].as_py(), bounds["max"].as_py()


def _span(group: Any) -> tuple[int, int]:
    columns = [group.column(index) for index in range(group.num_columns)]
    firsts = [first_byte(column) for column in columns]
    ends = [first + column.total_compressed_size for first, column in zip(firsts, columns, strict=True)]
    return min(firsts), max(ends)


def _starts_of(metadata: Any, spans: list[tuple[int, int]]) -> tuple[int, ...]:
    """One for each row group if they lie one behind the other, each with its first column first."""
    is_in_order = all(before[1] <= after[0] for before, after in pairwise(spans))
    if not is_in_order or len(spans) < metadata.num_row_groups:
        return (0,)
    starts = group_starts(metadata)
    return starts if starts[1:] == tuple(first for first, _ in spans[1:]) else (0,)


def answer(trial: Trial, kind: bytes, start: int, data: bytes) -> dict[str, Any]:
    takes = {FOOTER: trial.take_footer, PIECE: trial.take_piece, COLUMN: trial.take_column}
    try:
        return takes[kind](start, data)
    except (pa.ArrowException, OSError, ValueError, KeyError, OverflowError, MemoryError, RuntimeError) as error:
        return {"error": f"{error}" or type(error).__name__}


def main() -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY_BYTES_MAX, hard))
    request = open(sys.stdin.fileno(), "rb", buffering=0)  # noqa: SIM115 - it ends with the process
    trial = Trial()
    while select.select([request], [], [], IDLE_S)[0]:
        head = _read(request, HEAD.size)
        if len(head) < HEAD.size:
            return
        kind, start, length = HEAD.unpack(head)
        data = _read(request, length)
        if len(data) < length:
            return
        if kind == FOOTER:
            trial = Trial()
        sys.stdout.write(json.dumps(answer(trial, kind, start, data)) + "\n")
        sys.stdout.flush()


def _read(source: RawIOBase, length: int) -> bytes:
    found = bytearray()
    while len(found) < length and (more := source.read(length - len(found))):
        found += more
    return bytes(found)


if __name__ == "__main__":
    main()
