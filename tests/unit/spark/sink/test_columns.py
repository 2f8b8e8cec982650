"""The columns of the sink: which a query may have, and rows that no topic can take."""

from __future__ import annotations

import pyarrow as pa
import pytest
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from bus.records.log_schema import HEADERS_TYPE, TIMESTAMP_TYPE
from bus.spark.sink.columns import RowRefused, SinkColumns, sink_columns
from bus.spark.sink.sink_options import SinkOptions, parse_sink_options
from bus.spark.source.source_options import OptionError


def headers_type(name: str) -> DataType:
    return ArrayType(StructType([StructField(name, StringType()), StructField("value", BinaryType())]))


TYPES: dict[str, DataType] = {
    "binary": BinaryType(),
    "string": StringType(),
    "int": IntegerType(),
    "bigint": LongType(),
    "timestamp": TimestampType(),
    "entries": headers_type("key"),
    "named_entries": headers_type("name"),
}
SOURCE = "key binary, value binary, topic string, partition int, offset bigint, timestamp timestamp, headers entries"


def options(**given: str) -> SinkOptions:
    return parse_sink_options({"bus.bootstrap.servers": "a:1", **given}, is_stream=True)


def columns(schema: str, **given: str) -> SinkColumns:
    fields = [field.split() for field in schema.split(", ")]
    return sink_columns(StructType([StructField(name, TYPES[kind]) for name, kind in fields]), options(**given))


def test_what_was_read_from_a_topic_can_be_written_to_one() -> None:
    assert columns(SOURCE) == SinkColumns(None, ("key", "value", "headers"), True)
    assert columns(SOURCE, topic="t", includeHeaders="false") == SinkColumns("t", ("key", "value"), True)


def test_value_alone_is_enough_with_a_topic() -> None:
    assert columns("value string", topic="t") == SinkColumns("t", ("value",), False)


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        ("key string, topic string", "schema: expected the column value, found key, topic"),
        ("value int, topic string", "schema: expected column value to be binary or string, found int"),
        ("key bigint, value binary, topic string", "schema: expected column key to be binary or string, found bigint"),
        ("value binary", "expected the option topic or the column topic, found neither"),
        ("value binary, topic int", "schema: expected column topic to be string, found int"),
        ("value binary, topic string, partition bigint", "schema: expected column partition to be int, found bigint"),
        ("value binary, topic string, headers string", "array<struct<key:string,value:binary>>, found string"),
        ("value binary, topic string, headers named_entries", "found array<struct<name:string,value:binary>>"),
    ],
)
def test_schema_that_cannot_be_written_is_refused(schema: str, message: str) -> None:
    with pytest.raises(OptionError) as refused:
        columns(schema)
    assert message in str(refused.value)


def batch(**arrays: pa.Array) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays(list(arrays.values()), names=list(arrays))


def test_texts_are_their_bytes_and_nulls_stay() -> None:
    rows = columns("key string, value string", topic="t").rows_of(
        batch(key=pa.array(["ä", None]), value=pa.array([None, "v"], pa.large_string()))
    )
    assert rows.records.to_pydict() == {"key": ["ä".encode(), None], "value": [None, b"v"]}
    assert rows.topics is None
    assert rows.partitions is None


def test_headers_are_those_of_the_log_and_may_be_null_as_a_whole() -> None:
    entries = pa.list_(pa.field("element", pa.struct([("key", pa.string()), ("value", pa.binary())])))
    found = pa.array([[{"key": "a", "value": None}, {"key": "a", "value": b"2"}], None, []], entries)
    rows = columns("value binary, headers entries", topic="t").rows_of(batch(value=pa.array([b"1"] * 3), headers=found))
    headers = rows.records.column("headers")
    assert headers.type == HEADERS_TYPE
    assert headers.to_pylist() == found.to_pylist()


@pytest.mark.parametrize("entry", [None, {"key": None, "value": b"x"}])
def test_header_without_a_key_is_refused(entry: object) -> None:
    entries = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
    wrong = batch(value=pa.array([b"1"]), headers=pa.array([[entry]], entries))
    with pytest.raises(RowRefused, match="expected headers that have a key each, found null"):
        columns("value binary, headers entries", topic="t").rows_of(wrong)


def test_times_of_the_query_are_written_only_if_they_are_to_be_kept() -> None:
    kept = {"topic": "t", "bus.timestamps": "Keep"}
    assert columns("value binary, timestamp timestamp", topic="t").records == ("value",)
    keeping = columns("timestamp timestamp, value binary", **kept)
    assert keeping.records == ("value", "timestamp")
    rows = keeping.rows_of(batch(timestamp=pa.array([5], pa.timestamp("us", "Europe/Paris")), value=pa.array([b"v"])))
    assert rows.records.column("timestamp").type == TIMESTAMP_TYPE
    with pytest.raises(OptionError, match=r"bus\.timestamps: expected the column timestamp, found value"):
        columns("value binary", **kept)
    with pytest.raises(OptionError, match="expected column timestamp to be timestamp, found bigint"):
        columns("value binary, timestamp bigint", **kept)
    with pytest.raises(OptionError, match=r"bus\.timestamps: expected now or keep, found 'then'"):
        options(**{"bus.timestamps": "then"})


def test_row_without_a_topic_is_refused() -> None:
    wrong = batch(value=pa.array([b"1", b"2"]), topic=pa.array(["t", None]))
    with pytest.raises(RowRefused, match="expected a topic in every row, found null"):
        columns("value binary, topic string").rows_of(wrong)
