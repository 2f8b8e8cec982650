"""Views of JSON values as typed columns: what they are, the text of their columns, and their SQL for both engines."""

from bus.json_views.inference import infer_fields
from bus.json_views.view import (
    ENVELOPE_COLUMNS,
    ArrayType,
    Field,
    JsonType,
    JsonView,
    ScalarType,
    SchemaError,
    StructType,
    check_view,
    format_ddl,
    format_type,
    parse_ddl,
)

__all__ = [
    "ENVELOPE_COLUMNS",
    "ArrayType",
    "Field",
    "JsonType",
    "JsonView",
    "ScalarType",
    "SchemaError",
    "StructType",
    "check_view",
    "format_ddl",
    "format_type",
    "infer_fields",
    "parse_ddl",
]
