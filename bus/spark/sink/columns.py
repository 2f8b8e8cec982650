"""The columns that the sink takes, checked when the query starts, and the rows as the log's columns.

    key? binary|string, value binary|string, headers? array<struct<key: string, value: binary>>, topic? string,
    partition? int, timestamp? timestamp (with bus.timestamps=keep)

As with Spark's Kafka sink other columns are left alone, so that what was read from a topic can be written to one.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    StringType,
    StructType,
    TimestampType,
)

from bus.client.producer.partitioning import hashes_of_keys, partitions_by_hash, split_by_partition
from bus.errors import show_range
from bus.model import TopicPartition
from bus.records.log_schema import HEADERS_TYPE, TIMESTAMP_TYPE
from bus.spark.sink.sink_options import SinkOptions
from bus.spark.source.source_options import OptionError

_BYTES = (BinaryType, StringType)


class RowRefused(ValueError):
    """A row that no topic can take. The message says what was expected and what was found."""


@dataclass(frozen=True, slots=True)
class Rows:
    """Some rows of a task. `topics` is None if all go to the topic of the options, `partitions` where no row says."""

    topics: pa.Array | None
    partitions: pa.Array | None  # int32, null: by key
    records: pa.RecordBatch  # `key`, `value`, `headers`, `timestamp`, as far as the query has them

    @property
    def keys(self) -> pa.Array | None:
        index = self.records.schema.get_field_index("key")
        return None if index < 0 else self.records.column(index)


@dataclass(frozen=True, slots=True)
class SinkColumns:
    """The columns of a query's rows that are written."""

    topic: str | None  # of all rows; None: the column `topic`
    records: tuple[str, ...]  # of key, value, headers and timestamp, in this order
    has_partition: bool

    def rows_of(self, batch: pa.RecordBatch) -> Rows:
        """Raises `RowRefused`."""
        columns = {name: _as_logged(name, batch.column(name)) for name in self.records}
        records = pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))
        return Rows(
            None if self.topic is not None else _topics(batch.column("topic")),
            batch.column("partition") if self.has_partition else None,
            records,
        )


def sink_columns(schema: StructType, options: SinkOptions) -> SinkColumns:
    """Raises `OptionError` for a schema that cannot be written."""
    types = {field.name: field.dataType for field in schema.fields}
    if "value" not in types:
        raise OptionError(f"schema: expected the column value, found {', '.join(types) or 'none'}")
    _check_type(types, "value", _BYTES, "binary or string")
    _check_type(types, "key", _BYTES, "binary or string")
    _check_type(types, "partition", (IntegerType,), "int")
    if options.topic is None:
        if "topic" not in types:
            raise OptionError("expected the option topic or the column topic, found neither")
        _check_type(types, "topic", (StringType,), "string")
    has_headers = "headers" in types and options.include_headers
    if has_headers and not _is_headers(types["headers"]):
        raise OptionError(
            "schema: expected column headers to be array<struct<key:string,value:binary>>, "
            f"found {types['headers'].simpleString()}"
        )
    if options.keeps_timestamps:
        if "timestamp" not in types:
            raise OptionError(f"bus.timestamps: expected the column timestamp, found {', '.join(types)}")
        _check_type(types, "timestamp", (TimestampType,), "timestamp")
    present = {"key": "key" in types, "value": True, "headers": has_headers, "timestamp": options.keeps_timestamps}
    return SinkColumns(
        options.topic, tuple(name for name, is_present in present.items() if is_present), "partition" in types
    )


def _check_type(types: dict[str, DataType], name: str, expected: tuple[type[DataType], ...], words: str) -> None:
    if name in types and not isinstance(types[name], expected):
        raise OptionError(f"schema: expected column {name} to be {words}, found {types[name].simpleString()}")


def _is_headers(found: DataType) -> bool:
    if not isinstance(found, ArrayType) or not isinstance(found.elementType, StructType):
        return False
    fields = found.elementType.fields
    return [field.name for field in fields] == ["key", "value"] and (
        isinstance(fields[0].dataType, StringType) and isinstance(fields[1].dataType, BinaryType)
    )


def _topics(topics: pa.Array) -> pa.Array:
    if topics.null_count:
        raise RowRefused("expected a topic in every row, found null; the option topic sends all rows to one")
    return topics


def _as_logged(name: str, column: pa.Array) -> pa.Array:
    if name == "headers":
        return _headers(column)
    if name == "timestamp":
        return column.cast(TIMESTAMP_TYPE)
    return column if pa.types.is_binary(column.type) else column.cast(pa.binary())


def _headers(column: pa.Array) -> pa.Array:
    entries: Any = column.flatten()
    if entries.null_count or pc.struct_field(entries, [0]).null_count:
        raise RowRefused("expected headers that have a key each, found null")
    return column.cast(HEADERS_TYPE)


# Which partition each row goes to, as in Kafka: the one that the row names, else its key's.
#
# Guards one promise: a task that runs again puts the same rows where they went before, so nothing is drawn by chance.
# Rows with neither go by their position in the task or, where rows come in any order, by their value. Works on whole
# columns.

Hashes = npt.NDArray[np.uint32]
Numbers = npt.NDArray[np.int64]
# So many rows in a row stay together: as many commits as there are partitions cost more than one.
_RUN_ROWS = 16_384


@dataclass(frozen=True, slots=True)
class Placed:
    """`targets[i]` says, by its number, to which partition row i goes."""

    targets: Numbers
    key_hashes: Hashes | None  # None: the query has no keys


class Placement:
    """`partition_count(topic)` raises for a topic that does not exist. `first_turn` is where rows with neither key nor
    partition begin; with `by_value` they go by their value."""

    def __init__(
        self, topic: str | None, partition_count: Callable[[str], int], *, first_turn: int, by_value: bool
    ) -> None:
        self._topic = topic
        self._partition_count = partition_count
        self._first_turn = first_turn
        self._by_value = by_value
        self._position = 0
        self._starts: dict[str, tuple[int, int]] = {}  # topic -> its first target, and how many
        self.partitions: list[TopicPartition] = []  # by the number of the target

    def place(self, rows: Rows) -> Placed:
        """Raises `RowRefused`, or what `partition_count` raises."""
        count = rows.records.num_rows
        keys = rows.keys
        hashes = None if keys is None else hashes_of_keys(keys)
        targets: Numbers = np.empty(count, np.int64)
        if rows.topics is None:
            assert self._topic is not None, "rows name no topic, and the options neither"
            targets[:] = self._of_topic(self._topic, rows, hashes, slice(None))
        else:
            topics = rows.topics.dictionary_encode()
            of_row = topics.indices.to_numpy()
            for number, topic in enumerate(topics.dictionary.to_pylist()):
                where = np.flatnonzero(of_row == number)
                targets[where] = self._of_topic(topic, rows, hashes, where)
        self._position += count
        return Placed(targets, hashes)

    def _of_topic(self, topic: str, rows: Rows, hashes: Hashes | None, where: Any) -> Numbers:
        """The targets of the rows `where`, all of one topic."""
        first, count = self._targets_of(topic)
        numbers: Numbers = self._without_key(rows, count)[where]
        if hashes is not None and rows.keys is not None:
            by_key = partitions_by_hash(hashes[where], count)
            numbers = np.where(_is_valid(rows.keys)[where], by_key, numbers)
        if rows.partitions is not None:
            named = rows.partitions.fill_null(-1).to_numpy()[where]
            is_named = _is_valid(rows.partitions)[where]
            _check_partitions(topic, named[is_named], count)
            numbers = np.where(is_named, named, numbers)
        return numbers + first

    def _targets_of(self, topic: str) -> tuple[int, int]:
        if topic not in self._starts:
            count = self._partition_count(topic)
            self._starts[topic] = (len(self.partitions), count)
            self.partitions += [TopicPartition(topic, number) for number in range(count)]
        return self._starts[topic]

    def _without_key(self, rows: Rows, count: int) -> Numbers:
        if self._by_value:
            return partitions_by_hash(hashes_of(rows.records.column("value")), count)
        numbers: Numbers = np.arange(self._position, self._position + rows.records.num_rows, dtype=np.int64)
        return (numbers // _RUN_ROWS + self._first_turn) % count


def hashes_of(column: pa.Array) -> Hashes:
    """murmur2 of each, 0 of a null."""
    hashes: Hashes = hashes_of_keys(column)
    return hashes if not column.null_count else np.where(_is_valid(column), hashes, np.uint32(0))


def _is_valid(column: pa.Array) -> Any:
    return pc.is_valid(column).to_numpy(zero_copy_only=False)


def _check_partitions(topic: str, named: Any, count: int) -> None:
    wrong = named[(named < 0) | (named >= count)]
    if len(wrong):
        raise RowRefused(f"expected a partition of {topic!r} {show_range(0, int(count) - 1)}, found {int(wrong[0])}")


# An order of a task's rows that does not depend on the order in which they came.
#
# Behind a shuffle a task that runs again may see its rows in another order. Guards one promise: the same rows are given
# out in the same order within each partition. It is the order of a hash, which is fast; rows whose hashes are equal by
# chance are ordered by what was hashed. Rows that are equal in that keep the order in which they came.
#
# Up to `memory_bytes` are sorted in memory. Beyond it rows go to files by ranges of the hash, which are sorted one
# after another: the order is the same, and memory is bounded by the largest range (rows of one key stay together).

Codes = npt.NDArray[np.uint64]
_RANGES_BITS = 6
_RANGES = 1 << _RANGES_BITS
_TARGET, _CODE = "__target", "__code"
# Odd, so that no two codes become one, and the ranges are as good as random (Knuth's multiplicative hashing).
_MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)


class RowSorter:
    """`names`: the columns that decide, those that were hashed. Use as a context: files end with it."""

    def __init__(self, names: Sequence[str], *, memory_bytes: int) -> None:
        self._names = tuple(names)
        self._memory_bytes = memory_bytes
        self._held: list[pa.RecordBatch] = []
        self._held_bytes = 0
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._files: dict[int, Any] = {}

    def add(self, targets: Numbers, hashes: Codes, records: pa.RecordBatch) -> None:
        """`hashes`: equal for rows that are equal in `names`."""
        if not records.num_rows:
            return  # of a batch whose rows have no key
        codes = hashes * _MULTIPLIER
        batch = records.append_column(_TARGET, pa.array(targets)).append_column(_CODE, pa.array(codes))
        self._held.append(batch)
        self._held_bytes += batch.nbytes
        if self._held_bytes > self._memory_bytes:
            self._spill()

    def drain(self) -> Iterator[tuple[int, pa.RecordBatch]]:
        """Targets and rows. A target may come several times."""
        if not self._files:
            held, self._held, self._held_bytes = self._held, [], 0
            yield from self._sorted(held)
            return
        self._spill()
        for number in sorted(self._files):
            self._files[number].close()
            with pa.memory_map(str(self._path(number))) as file, pa.ipc.open_stream(file) as reader:
                yield from self._sorted(list(reader))

    def _sorted(self, batches: Sequence[pa.RecordBatch]) -> Iterator[tuple[int, pa.RecordBatch]]:
        if not batches:
            return
        together = pa.concat_batches(batches)
        targets, codes = together.column(_TARGET).to_numpy(), together.column(_CODE).to_numpy()
        order = np.lexsort((codes, targets))
        targets, codes = targets[order], codes[order]
        rows = together.drop_columns([_TARGET, _CODE]).take(pa.array(order))
        rows = _order_ties(rows, self._names, (targets[1:] == targets[:-1]) & (codes[1:] == codes[:-1]))
        starts = np.flatnonzero(np.diff(targets, prepend=-1))
        for start, stop in zip(starts, [*starts[1:], len(targets)], strict=True):
            yield int(targets[start]), rows.slice(int(start), int(stop - start))

    def _spill(self) -> None:
        if not self._held:
            return
        together = pa.concat_batches(self._held)
        self._held, self._held_bytes = [], 0
        ranges = (together.column(_CODE).to_numpy() >> np.uint64(64 - _RANGES_BITS)).astype(np.int64)
        for number, rows in split_by_partition(together, ranges, _RANGES):
            if number not in self._files:
                self._files[number] = pa.ipc.new_stream(str(self._path(number)), together.schema)
            self._files[number].write_batch(rows)

    def _path(self, number: int) -> Path:
        if self._folder is None:
            self._folder = tempfile.TemporaryDirectory(prefix="bus-sink-")
        return Path(self._folder.name) / f"{number}.arrow"

    def __enter__(self) -> RowSorter:
        return self

    def __exit__(self, *_: object) -> None:
        for file in self._files.values():
            file.close()
        if self._folder is not None:
            self._folder.cleanup()


def _order_ties(rows: pa.RecordBatch, names: Sequence[str], is_tied: Any) -> pa.RecordBatch:
    """`is_tied[i]`: rows i and i + 1 have one target and one hash. Where they are not equal, the columns decide."""
    present = [name for name in names if name in rows.schema.names]
    differs = is_tied & np.logical_or.reduce([_differ(rows.column(name)) for name in present])
    if not differs.any():
        return rows
    order = np.arange(rows.num_rows)
    # A run of ties begins after each pair that is not tied.
    run_of_row = np.concatenate([[0], np.cumsum(~is_tied)])
    for run in np.unique(run_of_row[:-1][differs]):
        where = np.arange(*np.searchsorted(run_of_row, [run, run + 1]))
        columns = [rows.column(name).take(pa.array(where)).to_pylist() for name in present]
        values = [tuple(map(_comparable, row)) for row in zip(*columns, strict=True)]
        order[where] = where[sorted(range(len(where)), key=values.__getitem__)]
    return rows.take(pa.array(order))


def _differ(column: pa.Array) -> Any:
    """True for each value that is another than the one before it. What Arrow cannot compare counts as different."""
    if not pa.types.is_binary(column.type):
        return pc.or_(pc.is_valid(column[1:]), pc.is_valid(column[:-1])).to_numpy(zero_copy_only=False)
    is_other = pc.fill_null(pc.not_equal(column[1:], column[:-1]), False)
    return pc.or_(is_other, pc.xor(pc.is_null(column[1:]), pc.is_null(column[:-1]))).to_numpy(zero_copy_only=False)


def _comparable(value: Any) -> tuple[bool, Any]:
    if isinstance(value, list):
        return True, [(entry["key"], _comparable(entry["value"])) for entry in value]
    return value is not None, b"" if value is None else value
