"""Files of a few rows are those that Arrow writes: the same rows, schema, statistics and entry in the log."""

from __future__ import annotations

import io
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bus.model import SEQUENCE_MODULUS, LogBatch, ProducerStamp, TimestampType
from bus.records.log_schema import HEADERS_TYPE, INTERNAL_VALUE_TYPES, TIMESTAMP_TYPE, USERS_VALUE_TYPE, log_schema
from bus.storage_delta.files import data_files
from bus.storage_delta.files.data_files import EncodedFile, encode_data_file

_NOTES = {"bus.note": "ä", "other": ""}

_SCALARS: dict[pa.DataType, st.SearchStrategy[Any]] = {
    pa.binary(): st.binary(max_size=300),
    pa.string(): st.text(st.characters(exclude_categories=["Cs"]), max_size=5),
    pa.int16(): st.integers(-(2**15), 2**15 - 1),
    pa.int32(): st.integers(-(2**31), 2**31 - 1),
    pa.int64(): st.integers(-(2**63), 2**63 - 1),
    pa.float32(): st.floats(width=32, allow_nan=False),
    pa.float64(): st.floats(allow_nan=False),
    TIMESTAMP_TYPE: st.integers(-(2**62), 2**62),
}


def values_of(value_type: pa.DataType, *, is_nullable: bool = True) -> st.SearchStrategy[Any]:
    """Values of a type, nulls among them if it `is_nullable`."""
    if pa.types.is_struct(value_type):
        fields = {one.name: values_of(one.type, is_nullable=one.nullable) for one in value_type}
        values: st.SearchStrategy[Any] = st.fixed_dictionaries(fields)
    elif pa.types.is_list(value_type):
        values = st.lists(values_of(value_type.value_type), max_size=3)
    else:
        values = _SCALARS[value_type]
    return st.none() | values if is_nullable else values


def structs(depth: int) -> st.SearchStrategy[pa.DataType]:
    return st.lists(st.tuples(types(depth), st.booleans()), min_size=1, max_size=3).map(
        lambda fields: pa.struct([pa.field(f"f{at}", kind, null) for at, (kind, null) in enumerate(fields)])
    )


def types(depth: int) -> st.SearchStrategy[pa.DataType]:
    scalars = st.sampled_from(list(_SCALARS))
    return scalars | types(depth - 1).map(pa.list_) | structs(depth - 1) if depth else scalars


VALUE_TYPES = st.just(pa.binary()) | st.sampled_from([*INTERNAL_VALUE_TYPES.values(), USERS_VALUE_TYPE]) | structs(2)


@st.composite
def commits(draw: st.DrawFn) -> tuple[pa.DataType, list[LogBatch]]:
    value_type = draw(VALUE_TYPES)
    batches: list[LogBatch] = []
    offset = draw(st.integers(0, 2**40))
    for _ in range(draw(st.integers(1, 4))):
        batch = draw(_batches(value_type, offset))
        batches.append(batch)
        offset = batch.next_offset
    return value_type, batches


@st.composite
def _batches(draw: st.DrawFn, value_type: pa.DataType, base_offset: int) -> LogBatch:
    count = draw(st.integers(1, 5) | st.integers(1, 140))
    skipped = draw(st.integers(0, 2))  # before a part of a batch

    def column(values: st.SearchStrategy[Any], arrow_type: pa.DataType) -> pa.Array:
        drawn = draw(st.lists(values, min_size=1, max_size=5))  # they repeat: rows that are drawn one by one take long
        return pa.array((drawn * (count + skipped))[: count + skipped], arrow_type)

    arrays = {"value": column(values_of(value_type), value_type)}
    if draw(st.booleans()):
        arrays["key"] = column(values_of(pa.binary()), pa.binary())
    if draw(st.booleans()):
        pairs = st.tuples(_SCALARS[pa.string()], values_of(pa.binary()))
        headers = st.none() | st.lists(pairs.map(lambda pair: {"key": pair[0], "value": pair[1]}), max_size=3)
        arrays["headers"] = column(headers, HEADERS_TYPE)
    times_ms = st.integers(0, 2**45)
    if is_own_time := draw(st.booleans()):
        arrays["timestamp"] = column(times_ms.map(lambda time_ms: time_ms * 1000 + 1), pa.int64()).cast(TIMESTAMP_TYPE)
    columns = pa.RecordBatch.from_arrays(list(arrays.values()), names=list(arrays))
    columns = columns.slice(skipped)
    sequences = st.integers(0, SEQUENCE_MODULUS - 1) | st.just(SEQUENCE_MODULUS - 1)
    stamps = st.builds(ProducerStamp, st.integers(0, 2**40), st.integers(0, 2**15 - 1), sequences)
    return LogBatch(
        base_offset=base_offset,
        next_offset=base_offset + count,
        record_count=count,
        size_bytes=columns.nbytes,
        leader_epoch=draw(st.integers(0, 2**20)),
        timestamp_type=draw(st.sampled_from(list(TimestampType))),
        timestamp_ms=None if is_own_time and draw(st.booleans()) else draw(times_ms),
        timestamp_max_ms=0,
        columns=columns,
        producer=draw(st.none() | stamps),
    )


def encode(batches: list[LogBatch], schema: pa.Schema) -> EncodedFile:
    return encode_data_file(
        batches, schema, name_suffix="x", compression="none", committed_ms=5, notes=_NOTES if len(batches) > 1 else None
    )


def encode_by_arrow(batches: list[LogBatch], schema: pa.Schema) -> EncodedFile:
    with patch.object(data_files, "SMALL_ROWS_MAX", 0):
        return encode(batches, schema)


def open_file(encoded: EncodedFile) -> pq.ParquetFile:
    return pq.ParquetFile(io.BytesIO(encoded.data), page_checksum_verification=True)


def statistics_of(file: pq.ParquetFile) -> list[tuple[Any, ...]]:
    group = file.metadata.row_group(0)
    found = []
    for index in range(group.num_columns):
        column = group.column(index)
        statistics = column.statistics
        bounds = (statistics.null_count, statistics.min, statistics.max) if column.is_stats_set else ()
        found.append((column.path_in_schema, column.physical_type, column.num_values, *bounds))
    return found


@given(commits())
def test_small_file_is_the_file_of_arrow(commit: tuple[pa.DataType, list[LogBatch]]) -> None:
    value_type, batches = commit
    schema = log_schema(value_type)
    own, expected = encode(batches, schema), encode_by_arrow(batches, schema)
    found, by_arrow = open_file(own), open_file(expected)
    assert found.read().equals(by_arrow.read())
    assert str(found.schema).partition("\n")[2] == str(by_arrow.schema).partition("\n")[2]  # behind its address
    assert statistics_of(found) == statistics_of(by_arrow)
    assert found.metadata.metadata == by_arrow.metadata.metadata
    assert own.stats == expected.stats
    assert own.file == replace(expected.file, size_bytes=own.data.size, sums=own.file.sums)


@pytest.mark.parametrize("value_type", [pa.binary(), *INTERNAL_VALUE_TYPES.values()], ids=lambda one: str(one)[:20])
def test_duckdb_reads_what_arrow_reads(value_type: pa.DataType, tmp_path: Any) -> None:
    values = pa.array([None, *([{}] if value_type != pa.binary() else [b"x"])] * 3, value_type)
    keys = pa.array([b"k", None] * 3, pa.binary())
    headers = pa.array([None, [], [{"key": "a", "value": None}, {"key": "b", "value": b"c"}]] * 2, HEADERS_TYPE)
    columns = pa.RecordBatch.from_arrays([keys, values, headers], names=["key", "value", "headers"])
    batch = LogBatch(0, 6, 6, 100, 3, TimestampType.CREATE_TIME, 1_700_000_000_123, 0, columns, ProducerStamp(1, 2, 3))
    own = encode([batch], log_schema(value_type))
    path = tmp_path / "small.parquet"
    path.write_bytes(own.data)
    found = duckdb.read_parquet(str(path)).to_arrow_table()
    assert found.num_rows == 6
    assert [row["offset"] for row in found.to_pylist()] == list(range(6))
    expected = open_file(own).read()
    assert found.column("value").to_pylist() == expected.column("value").to_pylist()
    assert found.column("headers").to_pylist() == expected.column("headers").to_pylist()
    assert found.column("sequence").to_pylist() == [3, 4, 5, 6, 7, 8]
