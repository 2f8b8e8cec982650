"""The columns of the log as a Delta schema."""

from __future__ import annotations

import pyarrow as pa

from bus.records.log_schema import (
    CLUSTER_METADATA_VALUE_TYPE,
    LOG_SCHEMA,
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
