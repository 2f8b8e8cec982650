"""Parquet files whose bytes are proved before Arrow sees them.

Guards one promise: Arrow is given no byte of a file that does not have its checksum. What a flipped bit in a footer or
a page header makes Arrow do has no bound: it raises, it gives other rows, or it ends the process. So the footer is
proved and then decoded from memory, and a row group is read as a whole, proved, and decoded from memory. Sums come from
the file's entry in the log; those of files that have none there come from a trial in another process (trials.py).
"""

from __future__ import annotations

import io
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.parquet as pq

from bus.errors import count_of
from bus.storage_delta.stores.store import Data, ObjectStore

_DIGITS = 8


@dataclass(frozen=True, slots=True)
class FileSums:
    """Checksums (CRC-32) of a file's pieces: every byte lies in exactly one piece, so a reader of one piece checks that
    piece alone. `groups` has one checksum for each row group, or a single one for all of them. The tag `bus.crc32` of
    an `add` has `tail_start`, then `tail` and `groups`, eight digits each."""

    tail_start: int  # the footer lies behind it
    tail: int
    groups: tuple[int, ...]


def sum_of(piece: Any, before: int = 0) -> int:
    """`before`: the sum of the bytes that lie before the piece, if these count too."""
    return zlib.crc32(piece, before)


def sums_of_pieces(sizes_and_sums: Iterable[tuple[int, int]], tail: int) -> FileSums:
    """Return the checksums of a file from its row groups in the order of writing; `tail` is the checksum of the bytes
    behind them."""
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
    """Return the first byte of each row group's piece according to a footer (`pq.FileMetaData`); the first piece also
    has the file's first bytes. Raises `ValueError` unless they follow each other."""
    starts = [0]
    for index in range(1, metadata.num_row_groups):
        start = first_byte(metadata.row_group(index).column(0))
        if start <= starts[-1]:
            raise ValueError(f"expected row group {index} behind byte {starts[-1]}, found it at {start}")
        starts.append(start)
    return tuple(starts)


def first_byte(column: Any) -> int:
    """The first byte of a column chunk (`pq.ColumnChunkMetaData`)."""
    dictionary = column.dictionary_page_offset
    first: int = column.data_page_offset
    return dictionary if dictionary is not None and 0 < dictionary < first else first


_MAGIC = b"PAR1"


class Source(Protocol):
    """A file's bytes."""

    @property
    def size_bytes(self) -> int: ...

    def get(self, start: int, length: int) -> Any:
        """Anything with the buffer protocol; less than `length` bytes where the file ends."""
        ...


@dataclass(frozen=True, slots=True)
class BytesSource:
    """A file that is in memory."""

    data: Any

    @property
    def size_bytes(self) -> int:
        return len(self.data)

    def get(self, start: int, length: int) -> Any:
        return memoryview(self.data)[start : start + length]


@dataclass(frozen=True, slots=True)
class StoreFile:
    """A file of a store as a source of bytes."""

    store: ObjectStore
    key: str
    size_bytes: int

    def get(self, start: int, length: int) -> Data:
        return self.store.get_range(self.key, start, length)


@dataclass(frozen=True, slots=True)
class ProvedFooter:
    metadata: Any  # pq.FileMetaData
    sums: FileSums
    starts: tuple[int, ...]  # first byte of each piece

    def piece_of(self, group: int) -> tuple[int, int, int]:
        """Return first byte, end and checksum of the piece that holds a row group."""
        piece = group if len(self.sums.groups) > 1 else 0
        is_last = piece == len(self.sums.groups) - 1
        return self.starts[piece], self.sums.tail_start if is_last else self.starts[piece + 1], self.sums.groups[piece]


class ProvedFile:
    """A Parquet file to be read. Not for several threads."""

    def __init__(self, source: Source, footer: ProvedFooter, whole: pq.ParquetFile | None = None) -> None:
        """`whole`: the file in memory, if it is there."""
        self._source = source
        self._whole = whole or _open_whole(source, footer.metadata)
        self.footer = footer
        self.metadata = footer.metadata
        self._piece_start = -1
        self._piece: Any = None  # proved

    @property
    def schema_arrow(self) -> pa.Schema:
        """The types that rows are read with: INT96, as Spark writes times, as microseconds, and one type for what is
        one in the file. What Arrow notes in a footer is how the writer held columns in memory: delta-rs has views."""
        leaves = self.metadata.schema
        columns = (leaves.column(index) for index in range(len(leaves)))
        of_spark = {column.path for column in columns if column.physical_type == "INT96"}
        found: pa.Schema = leaves.to_arrow_schema()
        return pa.schema(
            [
                field.with_type(pa.timestamp("us") if field.name in of_spark else plain_type(field.type))
                for field in found
            ]
        )

    @property
    def num_row_groups(self) -> int:
        return int(self.metadata.num_row_groups)

    def read_row_group(self, index: int, columns: Sequence[str] | None = None) -> pa.Table:
        """Raises `ValueError` if its bytes are not those that were written, and what Arrow raises."""
        if not self.metadata.row_group(index).num_rows:
            empty = self.schema_arrow.empty_table()
            return empty if columns is None else empty.select(list(columns))
        start, end, expected = self.footer.piece_of(index)
        if self._piece_start != start:
            self._piece = self._source.get(start, end - start)
            check_sum(self._piece, expected, start=start, end=end)
            self._piece_start = start
        parquet = self._whole or open_piece(self.metadata, start, self._piece)
        return with_plain_types(
            parquet.read_row_group(index, columns=None if columns is None else list(columns), use_threads=False)
        )

    def read(self, columns: Sequence[str] | None = None) -> pa.Table:
        """All row groups, one after the other."""
        if self.num_row_groups == 1:
            return self.read_row_group(0, columns)
        groups = [self.read_row_group(index, columns) for index in range(self.num_row_groups)]
        return pa.concat_tables(groups) if groups else self.schema_arrow.empty_table()


@lru_cache(maxsize=256)  # asked for each column of each row group that is read
def plain_type(data_type: pa.DataType) -> pa.DataType:
    """The type of a column by the file alone, whatever the memory of its writer was laid out like."""
    kinds = pa.types
    if kinds.is_large_binary(data_type) or kinds.is_binary_view(data_type):
        return pa.binary()
    if kinds.is_large_string(data_type) or kinds.is_string_view(data_type):
        return pa.string()
    if kinds.is_dictionary(data_type):
        return plain_type(data_type.value_type)
    if kinds.is_struct(data_type):
        return pa.struct([inner.with_type(plain_type(inner.type)) for inner in data_type])
    if any(is_kind(data_type) for is_kind in (kinds.is_list, kinds.is_large_list, kinds.is_list_view)):
        return pa.list_(data_type.value_field.with_type(plain_type(data_type.value_type)))
    return data_type


def with_plain_types(table: pa.Table) -> pa.Table:
    """See `plain_type`."""
    types = [plain_type(data_type) for data_type in table.schema.types]
    if types == table.schema.types:
        return table
    fields = [field.with_type(data_type) for field, data_type in zip(table.schema, types, strict=True)]
    return table.cast(pa.schema(fields))


def has_sums(source: Source, sums: FileSums) -> bool:
    """Return True if every byte of the file is one that was written. Raises what Arrow and `source` raise."""
    start, end = sums.tail_start, source.size_bytes
    if not 0 < start < end:
        return False
    tail = source.get(start, end - start)
    if len(tail) != end - start or sum_of(tail) != sums.tail:
        return False
    starts = group_starts(decode_footer(tail)) if len(sums.groups) > 1 else (0,)
    if len(starts) != len(sums.groups):
        return False
    spans = zip(starts, (*starts[1:], start), sums.groups, strict=True)
    return all(sum_of(source.get(first, following - first)) == expected for first, following, expected in spans)


def check_every_byte(source: Source, sums: FileSums) -> None:
    """Raises `ValueError` unless every byte of the file is one that was written, and what Arrow and `source` raise."""
    if not has_sums(source, sums):
        raise ValueError("expected the bytes of its checksums, found others: they have changed since they were written")


def open_proved(source: Source, sums: FileSums) -> ProvedFile:
    """Raises `ValueError` if the footer is not the one that was written, and what Arrow raises."""
    start, end = sums.tail_start, source.size_bytes
    if not 0 < start < end:
        raise ValueError(f"expected a footer between byte {start} and the end, found {end} bytes")
    tail = source.get(start, end - start)
    check_sum(tail, sums.tail, start=start, end=end)
    whole = _open_whole(source)
    metadata = decode_footer(tail) if whole is None else whole.metadata
    starts = group_starts(metadata) if len(sums.groups) > 1 else (0,)
    if len(starts) != len(sums.groups) or starts[-1] >= start:
        raise ValueError(
            f"expected {count_of(len(sums.groups), 'row group')} below byte {start}, found {metadata.num_row_groups}"
        )
    return ProvedFile(source, ProvedFooter(metadata, sums, starts), whole)


def _open_whole(source: Source, metadata: Any = None) -> pq.ParquetFile | None:
    """None if it is not in memory. Its footer is proved, its row groups are not."""
    if not isinstance(source, BytesSource):
        return None
    return pq.ParquetFile(pa.BufferReader(source.data), metadata=metadata, coerce_int96_timestamp_unit="us")


def check_sum(piece: Any, expected: int, *, start: int, end: int) -> None:
    """Raises `ValueError`."""
    if len(piece) != end - start:
        raise ValueError(f"expected {end - start} bytes from byte {start} on, found {len(piece)}")
    if (found := sum_of(piece)) != expected:
        raise ValueError(
            f"expected the checksum {expected:08x} of bytes {start} to {end - 1}, found {found:08x}: they have changed "
            "since they were written"
        )


def decode_footer(tail: Any) -> Any:
    """Decode the end of a Parquet file as `pq.FileMetaData`, without the bytes before it."""
    return pq.read_metadata(pa.BufferReader(_MAGIC + bytes(tail)))


def open_piece(metadata: Any, start: int, piece: Any, *, is_checked: bool = True) -> pq.ParquetFile:
    """A file of which only the bytes from `start` on are there that `piece` has. Unless they are `is_checked`, Arrow
    compares the checksums of pages."""
    return pq.ParquetFile(
        pa.PythonFile(_Piece(start, pa.py_buffer(piece)), mode="r"),
        metadata=metadata,
        coerce_int96_timestamp_unit="us",  # Delta allows for it, and Spark writes it
        page_checksum_verification=not is_checked,
    )


class _Piece(io.RawIOBase):
    """The part of the file interface that Arrow needs; returns slices without copying them."""

    def __init__(self, start: int, data: pa.Buffer) -> None:
        self._start = start
        self._data = data
        self._position = 0

    def read_buffer(self, size: int) -> pa.Buffer:
        begin = self._position - self._start
        if begin < 0 or begin > self._data.size:
            raise OSError(f"expected a read within the row group from byte {self._start}, found {self._position}")
        found = self._data.slice(begin, min(size, self._data.size - begin))
        self._position += found.size
        return found

    def read(self, size: int | None = -1, /) -> bytes:
        found: bytes = self.read_buffer(self._data.size if size is None or size < 0 else size).to_pybytes()
        return found

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        end = self._start + self._data.size
        self._position = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: end}[whence] + offset
        return self._position

    def tell(self) -> int:
        return self._position

    def seekable(self) -> bool:
        return True

    def readable(self) -> bool:
        return True
