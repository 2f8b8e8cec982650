"""Checksums of a Parquet file, a piece at a time: each row group, and all that lies behind the last one.

Guards one promise: every byte of a file lies in exactly one piece, so a piece that has its sum is what was written, and
a reader of a part of the file proves that part alone. The sums of a data file are in the tag `bus.crc32` of its
`add`: where the tail begins, then the sum of the tail and of each row group, eight digits each. CRC-32 is what Parquet
has for its pages, and what zlib computes without the interpreter's lock. Does no I/O.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

_DIGITS = 8


@dataclass(frozen=True, slots=True)
class FileSums:
    """`groups` has one sum a row group, or a single one for all of them."""

    tail_start: int  # the footer lies behind it
    tail: int
    groups: tuple[int, ...]


def sum_of(piece: Any, before: int = 0) -> int:
    """`before`: the sum of the bytes that lie before the piece, if these count too."""
    return zlib.crc32(piece, before)


def sums_of_pieces(sizes_and_sums: Iterable[tuple[int, int]], tail: int) -> FileSums:
    """Of row groups as they were written, one after the other; `tail` is the sum of what came behind them."""
    pieces = list(sizes_and_sums)
    return FileSums(sum(size for size, _ in pieces), tail, tuple(found for _, found in pieces))


def encode_sums(sums: FileSums) -> str:
    return f"{sums.tail_start} {''.join(f'{one:08x}' for one in (sums.tail, *sums.groups))}"


def decode_sums(text: str) -> FileSums:
    """Raises `ValueError`."""
    start, _, digits = text.partition(" ")
    if not start.isdecimal() or len(digits) < 2 * _DIGITS or len(digits) % _DIGITS:
        raise ValueError(f"expected checksums, found {text[:80]!r}")
    tail, *groups = (int(digits[at : at + _DIGITS], 16) for at in range(0, len(digits), _DIGITS))
    return FileSums(int(start), tail, tuple(groups))


def group_starts(metadata: Any) -> tuple[int, ...]:
    """Where the piece of each row group begins, by a footer (`pq.FileMetaData`); the first has the file's first bytes
    too. Raises `ValueError` unless they follow each other."""
    starts = [0]
    for index in range(1, metadata.num_row_groups):
        start = first_byte(metadata.row_group(index).column(0))
        if start <= starts[-1]:
            raise ValueError(f"expected row group {index} behind byte {starts[-1]}, found it at {start}")
        starts.append(start)
    return tuple(starts)


def first_byte(column: Any) -> int:
    """Of a column chunk (`pq.ColumnChunkMetaData`)."""
    dictionary = column.dictionary_page_offset
    first: int = column.data_page_offset
    return dictionary if dictionary is not None and 0 < dictionary < first else first
