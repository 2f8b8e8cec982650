from __future__ import annotations

import json
from datetime import datetime, timezone
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import BinaryType, DoubleType, IntegerType, LongType, StringType, StructField, StructType

from bus.model import TopicPartition
from bus.records.log_schema import log_schema
from bus.spark.source.rows import (
    BATCH_ROWS_MAX,
    SOURCE_SCHEMA,
    SOURCE_SCHEMA_WITH_HEADERS,
    RowColumns,
    columns_of,
)
from bus.spark.source.source_options import OptionError

P3 = TopicPartition("orders", 3)
AT = datetime(2024, 5, 1, 12, 30, tzinfo=timezone.utc)


def log_rows(rows: list[dict[str, Any]], columns: RowColumns, value_type: pa.DataType | None = None) -> pa.Table:
    """Return the rows as a data file gives them."""
    defaults = {"timestamp": AT, "timestamp_type": 0, "leader_epoch": 0}
    filled = [{"offset": offset, **defaults, **row} for offset, row in enumerate(rows)]
    return pa.Table.from_pylist(filled, schema=log_schema(value_type)).select(columns.log_columns)


TYPES = {
    "bigint": LongType(),
    "binary": BinaryType(),
    "double": DoubleType(),
    "int": IntegerType(),
    "string": StringType(),
}


def schema_of(text: str, *, is_nullable: bool = True) -> StructType:
    """Spark's own parser is in Java."""
    columns = [column.split() for column in text.split(", ")]
    return StructType([StructField(name, TYPES[kind], is_nullable) for name, kind in columns])


def test_the_schema_is_kafkas() -> None:
    assert SOURCE_SCHEMA.simpleString() == (
        "struct<key:binary,value:binary,topic:string,partition:int,offset:bigint,timestamp:timestamp,timestampType:int>"
    )
    assert SOURCE_SCHEMA_WITH_HEADERS.fields[:7] == SOURCE_SCHEMA.fields
    assert SOURCE_SCHEMA_WITH_HEADERS.fields[7].simpleString() == "headers:array<struct<key:string,value:binary>>"


def test_rows_have_every_column_of_the_record() -> None:
    columns = columns_of(SOURCE_SCHEMA_WITH_HEADERS, include_headers=True)
    headers = [{"key": "a", "value": b"1"}, {"key": "a", "value": None}]
    rows = [{"key": b"k", "value": b"v", "headers": headers}, {"key": None, "value": None, "timestamp_type": 1}]
    (batch,) = columns.batches(P3, log_rows(rows, columns))
    assert batch.schema.equals(to_arrow_schema(SOURCE_SCHEMA_WITH_HEADERS, timezone="UTC"))
    place = {"topic": "orders", "partition": 3, "timestamp": AT}
    assert batch.to_pylist() == [
        {"key": b"k", "value": b"v", **place, "offset": 0, "timestampType": 0, "headers": headers},
        {"key": None, "value": None, **place, "offset": 1, "timestampType": 1, "headers": None},
    ]


def test_a_record_without_headers_has_none_whichever_way_the_log_says_it() -> None:
    columns = columns_of(SOURCE_SCHEMA_WITH_HEADERS, include_headers=True)
    rows = [{"headers": []}, {"headers": None}, {"headers": [{"key": "a", "value": None}]}]
    (batch,) = columns.batches(P3, log_rows(rows, columns))
    assert batch.column("headers").to_pylist() == [None, None, [{"key": "a", "value": None}]]


def test_a_users_schema_is_all_that_is_read_and_in_its_order() -> None:
    columns = columns_of(schema_of("value binary, offset bigint"), include_headers=False)
    assert columns.log_columns == ["offset", "value"]
    (batch,) = columns.batches(P3, log_rows([{"value": b"v"}], columns))
    assert batch.to_pylist() == [{"value": b"v", "offset": 0}]
    assert columns_of(schema_of("topic string, partition int"), include_headers=False).log_columns == ["offset"]


def test_rows_without_a_column_of_the_log_are_as_many() -> None:
    columns = columns_of(schema_of("topic string, partition int"), include_headers=False)
    (batch,) = columns.batches(P3, log_rows([{}, {}], columns))
    assert batch.to_pylist() == [{"topic": "orders", "partition": 3}] * 2


def test_columns_may_be_not_null_in_a_users_schema() -> None:
    schema = schema_of("offset bigint", is_nullable=False)
    columns = columns_of(schema, include_headers=False)
    (batch,) = columns.batches(P3, log_rows([{}], columns))
    assert batch.schema.equals(to_arrow_schema(schema, timezone="UTC"))


def test_large_tables_become_batches_of_a_bounded_size() -> None:
    columns = columns_of(schema_of("offset bigint"), include_headers=False)
    count = 2 * BATCH_ROWS_MAX + 1
    batches = list(columns.batches(P3, pa.table({"offset": pa.array(range(count), pa.int64())})))
    assert [batch.num_rows for batch in batches] == [BATCH_ROWS_MAX, BATCH_ROWS_MAX, 1]
    assert batches[-1].to_pylist() == [{"offset": count - 1}]


def test_values_of_a_typed_topic_are_the_json_of_their_struct() -> None:
    value_type = pa.struct(
        [
            ("name", pa.string()),
            ("raw", pa.binary()),
            ("at", pa.timestamp("us", "UTC")),
            ("counts", pa.list_(pa.int64())),
        ]
    )
    columns = columns_of(schema_of("value binary"), include_headers=False)
    rows = [{"value": {"name": "é", "raw": b"\xff", "at": AT, "counts": [1]}}, {"value": None}]
    (batch,) = columns.batches(P3, log_rows(rows, columns, value_type))
    first, second = batch.column("value").to_pylist()
    assert json.loads(first) == {"name": "é", "raw": "/w==", "at": "2024-05-01T12:30:00+00:00", "counts": [1]}
    assert second is None


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        ("offset bigint, price double", "expected columns among key, value, .*found price"),
        ("offset int", "expected column offset to be bigint, found int"),
        ("value string", "expected column value to be binary, found string"),
    ],
)
def test_a_schema_of_other_columns_is_refused(schema: str, message: str) -> None:
    with pytest.raises(OptionError, match=message):
        columns_of(schema_of(schema), include_headers=False)


def test_headers_have_to_be_asked_for() -> None:
    with pytest.raises(OptionError, match="found headers: set includeHeaders"):
        columns_of(SOURCE_SCHEMA_WITH_HEADERS, include_headers=False)


def test_a_schema_without_columns_is_refused() -> None:
    with pytest.raises(OptionError, match="expected at least one of the columns"):
        columns_of(StructType([]), include_headers=False)
