"""The rows of `format("bus")`: Kafka's columns, made of the log's.

    key binary, value binary, topic string, partition int, offset bigint, timestamp timestamp, timestampType int
    [, headers array<struct<key: string, value: binary>>]

A user's schema names some of them, in any order; what it does not name is never read. Works on whole columns. The value
of a typed topic is the JSON text of its struct.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from bus.model import TopicPartition
from bus.spark.source.source_options import OptionError

_HEADERS = StructField(
    "headers", ArrayType(StructType([StructField("key", StringType()), StructField("value", BinaryType())]))
)
SOURCE_SCHEMA = StructType(
    [
        StructField("key", BinaryType()),
        StructField("value", BinaryType()),
        StructField("topic", StringType()),
        StructField("partition", IntegerType()),
        StructField("offset", LongType()),
        StructField("timestamp", TimestampType()),
        StructField("timestampType", IntegerType()),
    ]
)
SOURCE_SCHEMA_WITH_HEADERS = StructType([*SOURCE_SCHEMA.fields, _HEADERS])

# Columns of a row that are columns of the log.
_LOG_COLUMNS = {
    "key": "key",
    "value": "value",
    "offset": "offset",
    "timestamp": "timestamp",
    "timestampType": "timestamp_type",
    "headers": "headers",
}
# Spark takes a batch as it is; smaller ones cost a round of its reader each, larger ones memory in both processes.
BATCH_ROWS_MAX = 20_000


@dataclass(frozen=True, slots=True)
class RowColumns:
    """The columns that a query reads."""

    names: tuple[str, ...]
    schema: pa.Schema  # exactly what Spark expects

    @property
    def log_columns(self) -> list[str]:
        """The columns of the log that have to be read for them, `offset` always."""
        wanted = [_LOG_COLUMNS[name] for name in self.names if name in _LOG_COLUMNS]
        return list(dict.fromkeys(["offset", *wanted]))

    def batches(self, partition: TopicPartition, table: pa.Table) -> Iterator[pa.RecordBatch]:
        """`table` has `log_columns`, all of one partition."""
        for batch in table.to_batches(max_chunksize=BATCH_ROWS_MAX):
            columns = [self._column(field, partition, batch) for field in self.schema]
            yield pa.RecordBatch.from_arrays(columns, schema=self.schema)

    def _column(self, field: pa.Field, partition: TopicPartition, batch: pa.RecordBatch) -> pa.Array:
        if field.name == "topic":
            return _repeated_text(partition.topic, batch.num_rows)
        if field.name == "partition":
            return _repeated_int(partition.partition, batch.num_rows)
        column = batch.column(_LOG_COLUMNS[field.name])
        if field.name == "headers":
            column = _none_if_empty(column)
        if pa.types.is_struct(column.type) and field.name == "value":
            column = _json_texts(column)
        return column if column.type.equals(field.type) else column.cast(field.type)


def columns_of(schema: StructType, *, include_headers: bool) -> RowColumns:
    """Raises `OptionError` for a schema that names or types a column otherwise than the source does."""
    known = {field.name: field for field in (SOURCE_SCHEMA_WITH_HEADERS if include_headers else SOURCE_SCHEMA).fields}
    for field in schema.fields:
        expected = known.get(field.name)
        if expected is None:
            hint = ": set includeHeaders" if field.name == "headers" else ""
            raise OptionError(f"schema: expected columns among {', '.join(known)}, found {field.name}{hint}")
        if field.dataType != expected.dataType:
            raise OptionError(
                f"schema: expected column {field.name} to be {expected.dataType.simpleString()}, "
                f"found {field.dataType.simpleString()}"
            )
    if not schema.fields:
        raise OptionError(f"schema: expected at least one of the columns {', '.join(known)}, found none")
    return RowColumns(tuple(schema.fieldNames()), to_arrow_schema(schema, timezone="UTC"))


# Of buffers: Arrow imports pandas, if it is there, for the first Python value that it is to convert.


def _repeated_text(text: str, count: int) -> pa.Array:
    data = text.encode()
    ends = np.arange(0, (count + 1) * len(data), len(data), dtype=np.int32)
    return pa.Array.from_buffers(pa.string(), count, [None, pa.py_buffer(ends), pa.py_buffer(data * count)])


def _repeated_int(number: int, count: int) -> pa.Array:
    return pa.Array.from_buffers(pa.int32(), count, [None, pa.py_buffer(np.full(count, number, np.int32))])


def _none_if_empty(lists: pa.Array) -> pa.Array:
    """Return null for a record without headers, as Spark's Kafka source does; the log has an empty list."""
    return pc.if_else(pc.equal(pc.list_value_length(lists), 0), pa.scalar(None, lists.type), lists)


def _json_texts(structs: pa.Array) -> pa.Array:
    texts = [None if row is None else json.dumps(row, default=_json_value).encode() for row in structs.to_pylist()]
    return pa.array(texts, pa.binary())


def _json_value(value: Any) -> str:
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    assert isinstance(value, datetime), f"no JSON for {type(value).__name__}"
    return value.isoformat()
