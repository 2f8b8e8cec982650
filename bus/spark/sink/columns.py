"""The columns that the sink takes, checked when the query starts, and the rows as the log's columns.

    key? binary|string, value binary|string, headers? array<struct<key: string, value: binary>>, topic? string,
    partition? int, timestamp? timestamp (with bus.timestamps=keep)

As with Spark's Kafka sink other columns are left alone, so that what was read from a topic can be written to one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

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

from bus.records.log_schema import HEADERS_TYPE, TIMESTAMP_TYPE
from bus.spark.sink.options import SinkOptions
from bus.spark.source.options import OptionError

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
    """Which columns of a query's rows are written."""

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
