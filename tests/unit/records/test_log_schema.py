"""The columns of the log as a Delta schema."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest
from deltalake import Schema

from bus.records.log_schema import (
    CLUSTER_METADATA_VALUE_TYPE,
    INTERNAL_VALUE_TYPES,
    LOG_SCHEMA,
    arrow_schema,
    is_same_schema,
    log_schema,
    table_schema_string,
)


def test_no_column_of_the_table_is_not_null() -> None:
    for schema in (LOG_SCHEMA, log_schema(CLUSTER_METADATA_VALUE_TYPE)):
        assert '"nullable":false' not in table_schema_string(schema)


def test_schemas_differ_by_columns_and_types_not_by_nulls() -> None:
    text = table_schema_string(LOG_SCHEMA)
    assert is_same_schema(text.replace('"nullable":true', '"nullable":false'), LOG_SCHEMA)
    assert not is_same_schema(text, log_schema(pa.struct([pa.field("a", pa.int64())])))
    assert not is_same_schema("no json", LOG_SCHEMA)


PRIMITIVES = ("string", "long", "integer", "short", "byte", "float", "double", "boolean", "binary", "date", "timestamp")
NESTED = (
    "timestamp_ntz",
    "void",
    "decimal(10,2)",
    "decimal(38, 18)",
    {"type": "array", "elementType": "string", "containsNull": False},
    {"type": "map", "keyType": "string", "valueType": "binary", "valueContainsNull": True},
    {"type": "map", "keyType": "long", "valueType": "decimal(5,0)", "valueContainsNull": False},
    {"type": "struct", "fields": [{"name": "a b", "type": "long", "nullable": False, "metadata": {}}]},
)


@pytest.mark.parametrize("value_type", [None, *INTERNAL_VALUE_TYPES.values()], ids=str)
def test_a_schema_of_the_log_is_read_as_it_was_written(value_type: pa.DataType | None) -> None:
    text = table_schema_string(log_schema(value_type))
    assert table_schema_string(arrow_schema(text)) == text
    assert arrow_schema(text).equals(pa.schema(Schema.from_json(text).to_arrow()))


@pytest.mark.parametrize("delta_type", [*PRIMITIVES, *NESTED], ids=str)
def test_a_column_of_another_engine_has_the_type_that_delta_rs_gives_it(delta_type: Any) -> None:
    column = {"name": "c", "type": delta_type, "nullable": True, "metadata": {"comment": "of another engine"}}
    text = json.dumps({"type": "struct", "fields": [column]})
    assert arrow_schema(text).equals(pa.schema(Schema.from_json(text).to_arrow()))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "null",
        '"long"',
        '{"type": "struct"}',
        '{"type": "struct", "fields": [{"name": "c", "type": "variant", "nullable": true}]}',
        '{"type": "struct", "fields": [{"name": "c", "type": "decimal(99,1)", "nullable": true}]}',
        '{"type": "struct", "fields": [{"name": 7, "type": "long", "nullable": true}]}',
        '{"type": "struct", "fields": [{"type": "long", "nullable": true}]}',
        '{"type": "array", "elementType": ' * 100_000,
        '{"type": "array", "containsNull": true, "elementType": ' * 900 + '"long"' + "}" * 900,
    ],
    ids=range(11),
)
def test_text_that_is_no_schema_is_refused_as_a_value_error(text: str) -> None:
    with pytest.raises(ValueError, match="expected"):
        arrow_schema(text)
