"""Parquet files of a few rows, written without Arrow's writer: most commits are that small, and its set-up costs more
than their rows.

Guards one promise: such a file is one that Arrow could have written. It has the same schema, byte for byte, one row
group with one page a column, the same statistics, and a checksum for each page. What no row changes is cut out of a
file that Arrow writes once for a schema (`_Template`); numbers that stay the same or go up by one are encoded from
their runs, without a row. Levels and encodings are those of the Parquet format ("Nested Encoding", "Encodings"), the
footer is Thrift's compact protocol. Does no I/O.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from functools import lru_cache
from itertools import groupby
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

_MAGIC = b"PAR1"
_CREATED_BY = "delta-bus version 1"  # the name and number that readers parse, of this writer
_SMALL = [bytes((number,)) for number in range(128)]
_SIZE = struct.Struct("<I").pack

_PLAIN, _RLE, _DELTA_BINARY_PACKED = 0, 3, 5  # Encoding
_INT32, _INT64 = 1, 2  # Type
_PHYSICAL_TYPES = {"INT32": _INT32, "INT64": _INT64, "FLOAT": 4, "DOUBLE": 5, "BYTE_ARRAY": 6}
_NUMBERS = {_INT32: struct.Struct("<i").pack, _INT64: struct.Struct("<q").pack}
_STOP = b"\x00"  # the end of a struct


class Run(NamedTuple):
    """`length` rows of one column: `first`, then `step` more each. All of them are null if `first` is."""

    length: int
    first: int | None
    step: int = 0


# Runs or arrays, of all rows in order. Arrays have the column's type; those of a plain number have no null. None: all
# rows are null.
Column = Sequence[Run] | Sequence[pa.Array] | None


@dataclass(frozen=True, slots=True)
class SmallFile:
    data: bytes
    tail_start: int  # the first byte behind the row group


def may_be_small(schema: pa.Schema) -> bool:
    """True if `encode_small` knows the types of all columns."""
    return _template_of(schema) is not None


def encode_small(schema: pa.Schema, columns: Sequence[Column], row_count: int, notes: Mapping[str, str]) -> SmallFile:
    """Encode `row_count` rows, at least one, as a Parquet file without compression. `columns` are those of `schema`, in
    its order. `notes`: what the footer says beside. `schema` is one that `may_be_small`."""
    template = _template_of(schema)
    assert template is not None, f"expected a schema that may be small, found {schema}"
    group = _RowGroup()
    for node, column in zip(template.nodes, columns, strict=True):
        if column is None:
            for leaf in node.leaves:
                group.add(leaf, _page_of_nulls(leaf.kind, leaf.repetition_max > 0, row_count))
        elif isinstance(column[0], Run):
            group.add(node.leaves[0], _page_of_runs(node.leaves[0], column))
        elif node.is_plain_binary:
            group.add(node.leaves[0], _page_of_binary(column, row_count))
        elif node.is_plain_number:
            group.add(node.leaves[0], _page_of_numbers(node.leaves[0], column))
        else:
            whole = column[0] if len(column) == 1 else pa.concat_arrays(column)
            _shred(group, node, whole, _Entries(row_count, [(row_count, 0)], 0))
    return group.finish(template, row_count, notes)


# ---------------------------------------------------------------- Thrift's compact protocol


def _varint(number: int) -> bytes:
    if number < 0x80:
        return _SMALL[number]
    out = bytearray()
    while number >= 0x80:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def _zigzag(number: int) -> bytes:
    return _varint(number << 1 if number >= 0 else (-number << 1) - 1)


@lru_cache(maxsize=1 << 14)
def _size(number: int) -> bytes:
    """Encode a count, a size or a position, which come again and again."""
    return _varint(number << 1)


def _int32(number: int) -> bytes:
    """Encode 32 bits of a signed number as five bytes, whatever they are: a checksum takes as many."""
    number = number << 1 if number < 1 << 31 else ((1 << 32) - number << 1) - 1
    return bytes(
        (
            number & 0x7F | 0x80,
            number >> 7 & 0x7F | 0x80,
            number >> 14 & 0x7F | 0x80,
            number >> 21 & 0x7F | 0x80,
            number >> 28,
        )
    )


def _text(text: str) -> bytes:
    encoded = text.encode()
    return _varint(len(encoded)) + encoded


def _list_head(count: int, element_type: int) -> bytes:
    return bytes((count << 4 | element_type,)) if count < 15 else bytes((0xF0 | element_type,)) + _varint(count)


_BINARY, _STRUCT = 8, 12  # types of elements


class _Reader:
    """Finds where a field of a struct ends, whatever it holds."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self.position = 0

    def skip_field(self) -> int:
        """Return the distance from the number of the field before."""
        head = self._byte()
        assert head >> 4, "a field of a footer names its number in full: expected a difference"
        self._skip(head & 0x0F)
        return head >> 4

    def _byte(self) -> int:
        self.position += 1
        return self._data[self.position - 1]

    def _number(self) -> int:
        number = shift = 0
        while (byte := self._byte()) >= 0x80:
            number |= (byte & 0x7F) << shift
            shift += 7
        return number | byte << shift

    def _skip(self, kind: int) -> None:
        match kind:
            case 1 | 2:  # a boolean is its type
                pass
            case 3:
                self._byte()
            case 4 | 5 | 6:
                self._number()
            case 7:
                self.position += 8
            case 8:
                length = self._number()
                self.position += length
            case 9 | 10:
                head = self._byte()
                for _ in range(head >> 4 if head >> 4 < 15 else self._number()):
                    self._skip(head & 0x0F)
            case 12:
                while self._data[self.position]:
                    self.skip_field()
                self.position += 1
            case _:
                raise AssertionError(f"type {kind} of Thrift is in no footer")


# ---------------------------------------------------------------- what no row changes


@dataclass(frozen=True, slots=True)
class _Leaf:
    """A column of Parquet: a plain column, or a field somewhere within one. Its levels count optional and repeated
    parents, itself included."""

    kind: int  # its physical type
    definition_max: int
    repetition_max: int
    heads: tuple[bytes, bytes]  # the metadata of its chunk up to the number of values, by _PLAIN and _DELTA


class _NodeKind(Enum):
    VALUE = 0
    LIST = 1
    STRUCT = 2


@dataclass(frozen=True, slots=True)
class _Node:
    """A column, or a field somewhere within one, as it is taken apart."""

    kind: _NodeKind
    is_nullable: bool
    leaves: Sequence[_Leaf]  # at or below it, in their order
    children: Sequence[_Node] = ()  # the fields of a struct, the elements of a list
    value_bytes: int = 0  # of each value of a leaf in Arrow; 0: they have a length each
    is_plain_binary: bool = False
    is_plain_number: bool = False


@dataclass(frozen=True, slots=True)
class _Template:
    head: bytes  # of a footer: the version of the format, and the schema
    tail: bytes  # its end: the writer, and the orders of columns
    nodes: Sequence[_Node]  # one for each column
    group_head: bytes  # the number of columns in a row group


# By the schema's identity: Arrow takes as long to hash a schema as a file of one row does.
_templates: dict[int, tuple[pa.Schema, _Template | None]] = {}
_TEMPLATES_MAX = 1024


def _template_of(schema: pa.Schema) -> _Template | None:
    """None if a column has a type whose values are not encoded here."""
    if (found := _templates.get(id(schema))) is not None:
        return found[1]
    if len(_templates) >= _TEMPLATES_MAX:
        _templates.clear()
    template = _make_template(schema)
    _templates[id(schema)] = schema, template  # keeps the schema, so no other one gets its identity
    return template


def _make_template(schema: pa.Schema) -> _Template | None:
    if not all(_is_known(column.type) for column in schema):
        return None
    sink = pa.BufferOutputStream()
    pq.ParquetWriter(sink, schema, store_schema=False).close()
    data = sink.getvalue().to_pybytes()
    footer = data[-8 - int.from_bytes(data[-8:-4], "little") : -8]
    parts = _Reader(footer)
    assert [parts.skip_field(), parts.skip_field()] == [1, 1], "expected a version and a schema"
    metadata = pq.read_metadata(pa.BufferReader(data))
    found = [metadata.schema.column(index) for index in range(len(metadata.schema))]
    leaves = (_leaf(leaf, leaf.path.split(".")) for leaf in found)
    nodes = [_node(column, leaves) for column in schema]
    group_head = b"\x19" + _list_head(len(found), _STRUCT)
    orders = group_head + (b"\x1c" + _STOP + _STOP) * len(found)  # TypeDefinedOrder
    return _Template(footer[: parts.position], _text(_CREATED_BY) + orders + _STOP, nodes, group_head)


def _node(column: pa.Field, leaves: Iterator[_Leaf]) -> _Node:
    """Takes its leaves off `leaves`, which come in the order of the file."""
    kinds, found = pa.types, column.type
    if not kinds.is_struct(found) and not kinds.is_list(found):
        leaf, width = next(leaves), _WIDTHS[found]
        is_binary = not width and leaf.definition_max == 1 and not leaf.repetition_max
        is_number = width > 0 and not leaf.definition_max
        return _Node(_NodeKind.VALUE, column.nullable, [leaf], (), width, is_binary, is_number)
    fields = list(found) if kinds.is_struct(found) else [found.value_field]
    children = [_node(one, leaves) for one in fields]
    kind = _NodeKind.STRUCT if kinds.is_struct(found) else _NodeKind.LIST
    return _Node(kind, column.nullable, [leaf for child in children for leaf in child.leaves], children)


def _leaf(found: Any, path: Sequence[str]) -> _Leaf:
    kind = _PHYSICAL_TYPES[found.physical_type]
    names = _list_head(len(path), _BINARY) + b"".join(map(_text, path))
    heads = [
        b"\x26\x00\x1c\x15" + _zigzag(kind) + b"\x19\x25" + _zigzag(encoding) + _zigzag(_RLE) + b"\x19" + names
        + b"\x15\x00\x16"  # no compression
        for encoding in (_PLAIN, _DELTA_BINARY_PACKED)
    ]  # fmt: skip
    return _Leaf(kind, found.max_definition_level, found.max_repetition_level, (heads[0], heads[1]))


def _is_known(arrow_type: pa.DataType) -> bool:
    kinds = pa.types
    if kinds.is_struct(arrow_type):
        return arrow_type.num_fields > 0 and all("." not in one.name and _is_known(one.type) for one in arrow_type)
    if kinds.is_list(arrow_type):
        return _is_known(arrow_type.value_type)
    return arrow_type in _WIDTHS


_WIDTHS = {
    pa.binary(): 0,
    pa.string(): 0,
    pa.int16(): 2,
    pa.int32(): 4,
    pa.int64(): 8,
    pa.float32(): 4,
    pa.float64(): 8,
    pa.timestamp("us", "UTC"): 8,
}


# ---------------------------------------------------------------- pages and the footer


class _Page(NamedTuple):
    """The only page of a column, which may be that of several ones."""

    data: bytes  # its header and its values
    description: bytes  # in the metadata of the chunk, from the number of values to the head of its position
    statistics: bytes  # behind the position, with the end of the metadata
    encoding: int


def _page_of(values: bytes, value_count: int, *, statistics: bytes = b"", encoding: int = _PLAIN) -> _Page:
    """`values`: levels and values. `value_count` counts nulls and empty lists too."""
    count, size = _size(value_count), _size(len(values))
    header = (
        b"\x15\x00\x15" + size + b"\x15" + size + b"\x15" + _int32(zlib.crc32(values)) + b"\x1c\x15" + count
        + b"\x15" + _SMALL[encoding << 1] + b"\x15\x06\x15\x06" + _STOP + _STOP
    )  # fmt: skip
    total = b"\x16" + _size(len(header) + len(values))
    return _Page(header + values, count + total + total + b"\x26", statistics + _STOP + _STOP, encoding)


@dataclass(slots=True)
class _RowGroup:
    """The bytes of the pages, and what the footer says of them."""

    parts: list[bytes] = field(default_factory=lambda: [_MAGIC])
    position: int = len(_MAGIC)
    chunks: list[bytes] = field(default_factory=list)

    def add(self, leaf: _Leaf, page: _Page) -> None:
        head = leaf.heads[page.encoding != _PLAIN]
        self.chunks.append(head + page.description + _size(self.position) + page.statistics)
        self.parts.append(page.data)
        self.position += len(page.data)

    def finish(self, template: _Template, row_count: int, notes: Mapping[str, str]) -> SmallFile:
        rows, size = _size(row_count), _size(self.position - len(_MAGIC))
        footer = (
            template.head + b"\x16" + rows + b"\x19" + _list_head(1, _STRUCT) + template.group_head
            + b"".join(self.chunks)
            + b"\x16" + size + b"\x16" + rows + b"\x26" + _size(len(_MAGIC)) + b"\x16" + size + _STOP
            + _encode_notes(notes) + template.tail
        )  # fmt: skip
        self.parts += (footer, _SIZE(len(footer)), _MAGIC)
        return SmallFile(b"".join(self.parts), self.position)


def _encode_notes(notes: Mapping[str, str]) -> bytes:
    """Return the notes and the head of the field behind them, which counts from the field before it."""
    if not notes:
        return b"\x28"
    pairs = b"".join([b"\x18" + _text(key) + b"\x18" + _text(value) + _STOP for key, value in notes.items()])
    return b"\x19" + _list_head(len(notes), _STRUCT) + pairs + b"\x18"


# ---------------------------------------------------------------- the columns


def _levels(runs: Iterable[tuple[int, int]]) -> bytes:
    """Levels (count, level) as RLE; a level takes one byte, as none is above 127."""
    encoded = b"".join([_varint(count << 1) + _SMALL[level] for count, level in runs])
    return _SIZE(len(encoded)) + encoded


def _page_of_runs(leaf: _Leaf, runs: Sequence[Run]) -> _Page:
    if len(runs) == 1 and runs[0].first is not None:
        return _page_of_run(leaf.kind, leaf.definition_max, *runs[0])
    row_count = sum(run.length for run in runs)
    levels = _levels((run.length, run.first is not None) for run in runs) if leaf.definition_max else b""
    values = [_plain_series(run.length, run.first, run.step, leaf.kind) for run in runs if run.first is not None]
    if not values:
        return _page_of_nulls(leaf.kind, False, row_count)
    null_count = sum(run.length for run in runs if run.first is None)
    ends = [
        end for run in runs if run.first is not None for end in (run.first, run.first + run.step * (run.length - 1))
    ]
    statistics = _statistics(leaf.kind, min(ends), max(ends), null_count)
    return _page_of(levels + b"".join(values), row_count, statistics=statistics)


@lru_cache(maxsize=1024)  # of the columns, most are what they were in the last commit
def _page_of_run(kind: int, definition_max: int, count: int, first: int, step: int) -> _Page:
    """One series in DELTA_BINARY_PACKED: blocks of 128 differences, of no bits in each of four miniblocks."""
    levels = _levels([(count, 1)]) if definition_max else b""
    blocks = (_zigzag(step) + b"\0\0\0\0") * ((count + 126) // 128)
    series = b"\x80\x01\x04" + _varint(count) + _zigzag(first) + blocks
    last = first + step * (count - 1)
    statistics = _statistics(kind, min(first, last), max(first, last), 0)
    return _page_of(levels + series, count, statistics=statistics, encoding=_DELTA_BINARY_PACKED)


@lru_cache(maxsize=1024)
def _page_of_nulls(kind: int, is_repeated: bool, count: int) -> _Page:
    levels = _levels([(count, 0)]) * (1 + is_repeated)
    return _page_of(levels, count, statistics=b"\x3c\x36" + _size(count) + _STOP if kind in _NUMBERS else b"")


def _statistics(kind: int, low: int, high: int, null_count: int) -> bytes:
    size, pack = (b"\x04" if kind == _INT32 else b"\x08"), _NUMBERS[kind]
    return (
        b"\x3c\x36" + _size(null_count) + b"\x28" + size + pack(high) + b"\x18" + size + pack(low) + b"\x11\x11" + _STOP
    )


def _plain_series(count: int, first: int, step: int, kind: int) -> bytes:
    if not step or count == 1:
        return _NUMBERS[kind](first) * count
    return struct.pack(f"<{count}{'i' if kind == _INT32 else 'q'}", *range(first, first + step * count, step))


def _page_of_binary(arrays: Sequence[pa.Array], row_count: int) -> _Page:
    levels: list[tuple[int, int]] = []
    parts: list[bytes] = []
    for array in arrays:
        null_count = array.null_count
        if null_count == len(array):
            levels.append((null_count, 0))
        elif not null_count:
            levels.append((len(array), 1))
            parts.append(_plain_bytes(array))
        else:
            levels += _runs_of(array.is_valid().to_pylist())
            parts.append(_plain_bytes(array.drop_null()))
    return _page_of(_levels(levels) + b"".join(parts), row_count)


def _page_of_numbers(leaf: _Leaf, arrays: Sequence[pa.Array]) -> _Page:
    dtype = "<i4" if leaf.kind == _INT32 else "<i8"
    width = np.dtype(dtype).itemsize
    values = b"".join([_plain_numbers(array, width) for array in arrays])
    numbers = np.frombuffer(values, dtype)
    return _page_of(values, len(numbers), statistics=_statistics(leaf.kind, int(numbers.min()), int(numbers.max()), 0))


def _plain_bytes(array: pa.Array) -> bytes:
    """Binary or text values, none of them null, in PLAIN."""
    _, offsets, data = array.buffers()
    ends = struct.unpack_from(f"<{len(array) + 1}i", offsets, array.offset * 4)
    start = ends[0]
    if start == ends[-1]:
        return b"\0\0\0\0" * len(array)
    view = memoryview(data)
    parts: list[Any] = []
    for end in ends[1:]:
        parts += (_SIZE(end - start), view[start:end])
        start = end
    return b"".join(parts)


def _runs_of(levels: Iterable[int]) -> Sequence[tuple[int, int]]:
    return [(len(list(same)), int(level)) for level, same in groupby(levels)]


class _Entries(NamedTuple):
    """The entries of a column at some depth: one for each value, and one for each parent that is null or empty."""

    size: int
    definitions: Sequence[tuple[int, int]]  # levels as runs
    level: int  # the definition level of those that have a value here
    repetitions: Sequence[int] = ()  # none where nothing above is a list
    depth: int = 0  # lists above

    def present(self, array: pa.Array, null_count: int) -> _Entries:
        """Return them for an optional `array` of their values, one level on where it is not null."""
        level = self.level + 1
        if not null_count:
            definitions: Sequence[tuple[int, int]] = [
                (count, level if one == self.level else one) for count, one in self.definitions
            ]
        else:
            is_there = iter(array.is_valid().to_pylist())
            levels: list[int] = []
            for count, one in self.definitions:
                levels += [one + next(is_there) for _ in range(count)] if one == self.level else [one] * count
            definitions = _runs_of(levels)
        return _Entries(self.size, definitions, level, self.repetitions, self.depth)

    def elements(self, lengths: Iterable[int]) -> _Entries:
        """Return those of the elements of lists, of which each entry that has a value here is one."""
        level, depth = self.level + 1, self.depth + 1
        definitions: list[int] = []
        repetitions: list[int] = []
        remaining = iter(lengths)
        before = iter(self.repetitions or [0] * self.size)
        for count, definition in self.definitions:
            for _ in range(count):
                length = next(remaining) if definition == self.level else 0
                definitions += [level] * length or [definition]
                repetitions += [next(before), *[depth] * (length - 1)]
        return _Entries(len(definitions), _runs_of(definitions), level, repetitions, depth)

    def encode(self, leaf: _Leaf) -> bytes:
        """Return the levels of a leaf at or below."""
        levels = b""
        if leaf.repetition_max:
            levels = _levels(_runs_of(self.repetitions) if self.repetitions else [(self.size, 0)])
        return levels + _levels(self.definitions) if leaf.definition_max else levels


def _shred(group: _RowGroup, node: _Node, array: pa.Array, entries: _Entries) -> None:
    """`array` has a value for each entry of `entries.level`."""
    if node.is_nullable:
        null_count = array.null_count
        if null_count == len(array):
            _add_nulls(group, node.leaves, entries)
            return
        entries = entries.present(array, null_count)
        if null_count:
            array = array.drop_null()
    match node.kind:
        case _NodeKind.STRUCT:
            for index, child in enumerate(node.children):
                _shred(group, child, array.field(index), entries)
        case _NodeKind.LIST:
            elements = entries.elements(array.value_lengths().to_pylist())
            _shred(group, node.children[0], array.flatten(), elements)
        case _NodeKind.VALUE:
            leaf = node.leaves[0]
            values = _plain_numbers(array, node.value_bytes) if node.value_bytes else _plain_bytes(array)
            group.add(leaf, _page_of(entries.encode(leaf) + values, entries.size))


def _add_nulls(group: _RowGroup, leaves: Sequence[_Leaf], entries: _Entries) -> None:
    pages: dict[bool, _Page] = {}  # by whether it is within a list
    for leaf in leaves:
        is_repeated = leaf.repetition_max > 0
        if is_repeated not in pages:
            pages[is_repeated] = _page_of(entries.encode(leaf), entries.size)
        group.add(leaf, pages[is_repeated])


def _plain_numbers(array: pa.Array, value_bytes: int) -> bytes:
    """Numbers, none of them null, in PLAIN, which has none of 16 bits."""
    begin = array.offset * value_bytes
    found: bytes = array.buffers()[1].slice(begin, len(array) * value_bytes).to_pybytes()
    return found if value_bytes > 2 else np.frombuffer(found, "<i2").astype("<i4").tobytes()
