"""The SELECT that stands for a view, for each engine, over a topic with text in `key` and `value`.

Guards one promise: both engines give the same columns and the same values. So both first turn the object into a struct
of texts, of the shape of the schema, and then each text into its type by the same patterns and the same cast: what does
not match is null. A struct none of whose fields is there is null. Only a fraction in a column of text is written as the
engine writes it.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Protocol

from bus.json_views.columns import (
    BOOLEAN,
    DATE,
    FRACTION_KINDS,
    INTEGER_KINDS,
    NUMBER,
    TIMESTAMP,
    WHOLE,
    ZONE,
    ArrayType,
    Field,
    JsonType,
    ScalarType,
    StructType,
)
from bus.json_views.ddl import format_type
from bus.json_views.view import CORRUPT_COLUMN, JsonView

_TEXT = ScalarType("string")
OBJECT = "_object"


class Dialect(Protocol):
    """How an engine says it."""

    def name(self, name: str) -> str: ...
    def parse(self, view: JsonView) -> tuple[tuple[str, str], ...]:
        """Columns to add to those of the topic, one after the other. The last one is `_object`, the struct of texts;
        null of what is no JSON object."""
        ...

    def matches(self, text: str, pattern: str) -> str: ...
    def cast(self, text: str, json_type: ScalarType) -> str: ...
    def each(self, items: str, item: JsonType, variable: str, body: str) -> str: ...
    def struct(self, values: list[tuple[str, str]]) -> str: ...


def select_view(view: JsonView, dialect: Dialect, source: str) -> str:
    """`source` is the topic, as the dialect names it."""
    for name, expression in dialect.parse(view):
        source = f"(SELECT *, {expression} AS {name} FROM {source}) AS {name}_rows"
    return f"SELECT {', '.join(columns_of(view, dialect))} FROM {source}"


def columns_of(view: JsonView, dialect: Dialect) -> list[str]:
    """Over the columns of the topic and those of `parse`."""
    before = [dialect.name(column) for column in view.columns if column != CORRUPT_COLUMN]
    fields = [
        f"{_convert(dialect, field.type, _part(dialect, OBJECT, field), 0)} AS {dialect.name(field.name)}"
        for field in view.fields
    ]
    if CORRUPT_COLUMN not in view.columns:
        return [*before, *fields]
    corrupt = f"CASE WHEN {OBJECT} IS NULL THEN {dialect.name('value')} END AS {dialect.name(CORRUPT_COLUMN)}"
    return [*before, *fields, corrupt]


def _part(dialect: Dialect, struct: str, field: Field) -> str:
    return f"{struct}.{dialect.name(field.name)}"


def _convert(dialect: Dialect, json_type: JsonType, text: str, depth: int) -> str:
    match json_type:
        case ScalarType():
            return _convert_scalar(dialect, json_type, text)
        case ArrayType(item):
            variable = f"item{depth}"
            return dialect.each(text, item, variable, _convert(dialect, item, variable, depth + 1))
        case StructType(fields):
            parts = [(field, _part(dialect, text, field)) for field in fields]
            values = [(field.name, _convert(dialect, field.type, part, depth)) for field, part in parts]
            is_empty = " AND ".join(f"{part} IS NULL" for _, part in parts)
            return f"CASE WHEN NOT ({is_empty}) THEN {dialect.struct(values)} END"


def _convert_scalar(dialect: Dialect, json_type: ScalarType, text: str) -> str:
    kind = json_type.kind
    if kind == "string":
        return text
    pattern = {"boolean": BOOLEAN, "date": DATE, "timestamp": TIMESTAMP, **dict.fromkeys(INTEGER_KINDS, WHOLE)}
    value = text
    if kind == "timestamp":  # without a zone: UTC, in any time zone of the session
        has_zone = dialect.matches(text, f".*({ZONE})")
        value = f"CASE WHEN {has_zone} THEN {text} ELSE concat({text}, 'Z') END"
    cast = dialect.cast(value, json_type)
    if kind in FRACTION_KINDS:
        infinite = dialect.cast("'Infinity'", json_type)
        cast = f"CASE WHEN abs({cast}) < {infinite} THEN {cast} END"
    return f"CASE WHEN {dialect.matches(text, pattern.get(kind, NUMBER))} THEN {cast} END"


_STRICTLY = "map('allowSingleQuotes', 'false', 'allowNonNumericNumbers', 'false', 'mode', 'PERMISSIVE')"


@dataclass(frozen=True, slots=True)
class SparkDialect:
    """Spark's parser stops after the first value, so the text is parsed as a list, which must have one object. Its
    leniency towards other quotes and NaN is switched off. A list of objects that has one element of another type would
    be null as a whole, so such lists are texts first, and parsed element by element."""

    def name(self, name: str) -> str:
        return "`" + name.replace("`", "``") + "`"

    def parse(self, view: JsonView) -> tuple[tuple[str, str], ...]:
        row = StructType(tuple(Field(field.name, _spark_shape(field.type)) for field in view.fields))
        items = f"from_json(concat('[', `value`, ']'), '{format_type(ArrayType(row))}', {_STRICTLY})"
        is_object = "`value` RLIKE '^[ \\\\t\\\\r\\\\n]*[{]'"
        return ("_items", items), (OBJECT, f"CASE WHEN {is_object} AND size(_items) = 1 THEN _items[0] END")

    def matches(self, text: str, pattern: str) -> str:
        return f"{text} RLIKE '^({pattern})$'"

    def cast(self, text: str, json_type: ScalarType) -> str:
        return f"try_cast({text} AS {format_type(json_type)})"

    def each(self, items: str, item: JsonType, variable: str, body: str) -> str:
        if not isinstance(item, ScalarType):
            shape = format_type(_spark_shape(item))
            items = f"transform({items}, text -> from_json(text, '{shape}', {_STRICTLY}))"
        return f"transform({items}, {variable} -> {body})"

    def struct(self, values: list[tuple[str, str]]) -> str:
        return "named_struct(" + ", ".join(f"{_quote(name)}, {value}" for name, value in values) + ")"


@dataclass(frozen=True, slots=True)
class DuckdbDialect:
    """DuckDB's parser takes commas at the end of lists and objects, NaN and Infinity: looked for outside of strings,
    where there is a trace of them at all."""

    def name(self, name: str) -> str:
        return '"' + name.replace('"', '""') + '"'

    def parse(self, view: JsonView) -> tuple[tuple[str, str], ...]:
        shape = _quote(json.dumps({field.name: _duckdb_shape(field.type) for field in view.fields}))
        lenient = "(?i)nan|inf|,[ \\t\\r\\n]*[]}]"
        strings = '"([^"\\\\]|\\\\.)*"'
        is_lenient = (
            f"regexp_matches(\"value\", '{lenient}') AND "
            f"regexp_matches(regexp_replace(\"value\", '{strings}', '\"\"', 'g'), '{lenient}')"
        )
        is_object = "regexp_matches(\"value\", '^[ \\t\\r\\n]*[{]')"
        is_right = f'{is_object} AND json_valid("value") AND NOT ({is_lenient})'
        return ((OBJECT, f'CASE WHEN {is_right} THEN json_transform("value", {shape}) END'),)

    def matches(self, text: str, pattern: str) -> str:
        return f"regexp_full_match({text}, '{pattern}')"

    def cast(self, text: str, json_type: ScalarType) -> str:
        return f"try_cast({text} AS {_duckdb_type(json_type)})"

    def each(self, items: str, item: JsonType, variable: str, body: str) -> str:
        return f"list_transform({items}, lambda {variable}: {body})"

    def struct(self, values: list[tuple[str, str]]) -> str:
        return "struct_pack(" + ", ".join(f'"{name}" := {value}' for name, value in values) + ")"


def _spark_shape(json_type: JsonType) -> JsonType:
    """With texts in it."""
    match json_type:
        case ScalarType():
            return _TEXT
        case ArrayType():
            return ArrayType(_TEXT)
        case StructType(fields):
            return StructType(tuple(Field(field.name, _spark_shape(field.type)) for field in fields))


def _duckdb_type(json_type: ScalarType) -> str:
    if json_type.kind == "timestamp":
        return "TIMESTAMP WITH TIME ZONE"
    return "VARCHAR" if json_type.kind == "string" else format_type(json_type)


def _duckdb_shape(json_type: JsonType) -> object:
    match json_type:
        case ScalarType():
            return "VARCHAR"
        case ArrayType(item):
            return [_duckdb_shape(item)]
        case StructType(fields):
            return {field.name: _duckdb_shape(field.type) for field in fields}


def _quote(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


SPARK = SparkDialect()
DUCKDB = DuckdbDialect()
