"""The SELECT that stands for a view, for each engine, over a topic with text in `key` and `value`.

Guards two promises: both engines give the same columns and the same values; and a number is shown with all of its
digits or not at all, but for FLOAT and DOUBLE, which show the nearest one that they have. The parsers of both make a
double of a fraction. So a value whose numbers may change is parsed with its numbers as marked texts. Both engines then
turn the object into a struct of texts, of the shape of the schema, and each text into its type by the same patterns and
the same cast: what does not match is null. A struct none of whose fields is there is null. An object that has a name
twice makes the value none, at any depth.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Protocol

from bus.json_views.view import (
    BOOLEAN,
    CORRUPT_COLUMN,
    DATE,
    EXPONENT,
    FRACTION_KINDS,
    INTEGER_KINDS,
    NUMBER,
    TIMESTAMP,
    WHOLE,
    ZONE,
    ArrayType,
    Field,
    JsonType,
    JsonView,
    ScalarType,
    StructType,
    format_type,
)

_TEXT = ScalarType("string")
OBJECT = "_object"
MARKED = "_marked"  # the value as the engine's parser gets it

# 7 and "7" are not the same within an object that is shown as text, so the text of a number is marked. Marks are
# noncharacters of Unicode, which texts between programs do not have: a value with one counts as no JSON.
NUMBER_MARK = "\ufdd0"
TEXT_MARK = "\ufdd1"  # marks a text that an engine would take for the object that it spells
_RESERVED = rf"[\x01\x02\x03{NUMBER_MARK}{TEXT_MARK}]|\\u[fF][dD][dD][01]"  # control characters: JSON has none
# Numbers that a parser may return in another form: a fraction, an exponent, a negative zero, more than 18 digits.
_CHANGEABLE = "[0-9][.eE]|-0|[0-9]{19}"
_JSON_NUMBER = "-?(?:0|[1-9][0-9]*)(?:[.][0-9]+)?(?:[eE][-+]?[0-9]+)?"
_SPACE = r"[ \t\r\n]*"
_NUMBER_AS_NAME = f"-?[0-9][-+.0-9eE]*{_SPACE}:"  # is no JSON, and would be with quotes


class Dialect(Protocol):
    """How an engine says it."""

    def name(self, name: str) -> str: ...
    def parse(self, fields: tuple[Field, ...]) -> tuple[tuple[str, str], ...]:
        """Return the columns to add to those of the topic, in order. The last one is `_object`, the struct of texts;
        null if the value is no JSON object."""
        ...

    def matches(self, text: str, pattern: str) -> str: ...
    def unmarked(self, text: str, json_type: ScalarType) -> str:
        """`text` of a field as it was written."""
        ...

    def cast(self, text: str, json_type: ScalarType) -> str: ...
    def each(self, items: str, item: JsonType, variable: str, body: str) -> str: ...
    def struct(self, values: list[tuple[str, str]]) -> str: ...


def select_view(view: JsonView, dialect: Dialect, source: str) -> str:
    """`source` is the topic, as the dialect names it."""
    for name, expression in dialect.parse(view.fields):
        source = f"(SELECT *, {expression} AS {name} FROM {source}) AS {name}_rows"
    return f"SELECT {', '.join(columns_of(view, dialect))} FROM {source}"


def columns_of(view: JsonView, dialect: Dialect) -> list[str]:
    """Over the columns of the topic and those of `parse`."""
    before = [dialect.name(column) for column in view.columns if column != CORRUPT_COLUMN]
    fields = [f"{value} AS {dialect.name(name)}" for name, value in _values(view.fields, dialect)]
    if CORRUPT_COLUMN not in view.columns:
        return [*before, *fields]
    corrupt = f"CASE WHEN {OBJECT} IS NULL THEN {dialect.name('value')} END AS {dialect.name(CORRUPT_COLUMN)}"
    return [*before, *fields, corrupt]


def struct_of(fields: tuple[Field, ...], dialect: Dialect) -> str:
    """Over the columns of `parse`: the value as one struct, null where it is no JSON object."""
    return f"CASE WHEN {OBJECT} IS NOT NULL THEN {dialect.struct(_values(fields, dialect))} END"


def _values(fields: tuple[Field, ...], dialect: Dialect) -> list[tuple[str, str]]:
    return [(field.name, _convert(dialect, field.type, _part(dialect, OBJECT, field), 0)) for field in fields]


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
            return f"CASE WHEN NOT ({_is_empty(dialect, json_type, text)}) THEN {dialect.struct(values)} END"


def _is_empty(dialect: Dialect, json_type: JsonType, text: str) -> str:
    """Tell whether nothing of it is there. A struct within another may be null, or one of nulls: engines differ."""
    if not isinstance(json_type, StructType):
        return f"{text} IS NULL"
    return " AND ".join(_is_empty(dialect, field.type, _part(dialect, text, field)) for field in json_type.fields)


def _convert_scalar(dialect: Dialect, json_type: ScalarType, text: str) -> str:
    kind = json_type.kind
    text = dialect.unmarked(text, json_type)
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
    if kind == "decimal":
        cast = f"CASE WHEN {_has_scale(dialect, text, json_type.scale)} THEN {cast} END"
    return f"CASE WHEN {dialect.matches(text, pattern.get(kind, NUMBER))} THEN {cast} END"


def _has_scale(dialect: Dialect, text: str, scale: int) -> str:
    """Tell whether the number of `text` has at most `scale` digits behind the point: casts round without a word. One
    with an exponent of more than four digits has not."""
    mantissa = f"regexp_extract({text}, '^[-.0-9]+', 0)"
    digits = f"regexp_replace(replace(replace({mantissa}, '-', ''), '.', ''), '0+$', '')"
    whole = f"length(regexp_extract({text}, '^-?([0-9]+)', 1))"
    exponent = dialect.cast(f"regexp_extract({text}, '[eE](.*)$', 1)", ScalarType("int"))
    is_scaled = f"length({digits}) - {whole} - coalesce({exponent}, 0) <= {scale}"
    has_exponent = f"({dialect.matches(text, f'.*{EXPONENT}')} AND ({digits} = '' OR {is_scaled}))"
    return f"({dialect.matches(text, f'-?[0-9]+([.][0-9]{{0,{scale}}}0*)?')} OR {has_exponent})"


# One half of a pair of surrogates, for Java: Spark's parser makes a question mark of it.
_HALF = (
    r"(?<!\\)(?:\\\\)*+\\u[dD](?:[89abAB][0-9a-fA-F]{2}(?!\\u[dD][c-fC-F][0-9a-fA-F]{2})"
    r"|(?<!\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD])[c-fC-F][0-9a-fA-F]{2})"
)
_STRICTLY = "map('allowSingleQuotes', 'false', 'allowNonNumericNumbers', 'false', 'mode', 'PERMISSIVE')"


@dataclass(frozen=True, slots=True)
class SparkDialect:
    """Spark's parser stops after the first value, so the text is parsed as a list, which must have one object. Its
    leniency towards other quotes and NaN is switched off. Of two fields of one name it takes the last, so its variants,
    which refuse them, are asked. A list of objects that has one element of another type would be null as a whole, so
    such lists are texts first, and parsed element by element; texts are marked then, lest one be taken for an object.
    """

    def name(self, name: str) -> str:
        return "`" + name.replace("`", "``") + "`"

    def parse(self, fields: tuple[Field, ...]) -> tuple[tuple[str, str], ...]:
        row = StructType(tuple(Field(field.name, _spark_shape(field.type)) for field in fields))
        listed = f"concat('[', {MARKED}, ']')"
        items = f"from_json({listed}, '{format_type(ArrayType(row))}', {_STRICTLY})"
        is_object = f"{_rlike('`value`', f'^{_SPACE}[{{]')} AND size(_items) = 1"
        is_right = f"{is_object} AND try_parse_json({listed}) IS NOT NULL AND NOT {_rlike('`value`', _HALF)}"
        return (
            (MARKED, self._marked(marks_texts=any(_has_list_of_lists(field.type) for field in fields))),
            ("_items", items),
            (OBJECT, f"CASE WHEN {is_right} THEN _items[0] END"),
        )

    def _marked(self, *, marks_texts: bool) -> str:
        # Possessive: Java's stack bounds how often other groups repeat.
        text = r'"(?:[^"\\]++|\\.)*+"'
        name = text + _SPACE + ":" if marks_texts else text
        pattern = f"(?s)({name}|{_NUMBER_AS_NAME})|({_JSON_NUMBER})" + (f"|({text})" if marks_texts else "")
        signs = "concat('$1', chr(1), '$2', chr(2)" + (", chr(3), '$3')" if marks_texts else ")")
        marked = f"replace(regexp_replace(`value`, {_spark_text(pattern)}, {signs}), concat(chr(1), chr(2)), '')"
        if marks_texts:
            marked = f"replace(replace({marked}, concat(chr(3), '\"'), '\"{TEXT_MARK}'), chr(3), '')"
        marked = f"replace(replace({marked}, chr(1), '\"{NUMBER_MARK}'), chr(2), '\"')"
        unchanged = "" if marks_texts else f"WHEN NOT {_rlike('`value`', _CHANGEABLE)} THEN `value` "
        return f"CASE WHEN {_rlike('`value`', _RESERVED)} THEN NULL {unchanged}ELSE {marked} END"

    def matches(self, text: str, pattern: str) -> str:
        return f"{text} RLIKE '^({pattern})$'"

    def unmarked(self, text: str, json_type: ScalarType) -> str:
        if json_type.kind == "string":  # the text may spell an object or a list
            inside = f"""regexp_replace({text}, '"{NUMBER_MARK}([^"]*)"', '$1')"""
            text = f"CASE WHEN contains({text}, '{NUMBER_MARK}') THEN {inside} ELSE {text} END"
        return f"replace(replace({text}, '{NUMBER_MARK}', ''), '{TEXT_MARK}', '')"

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
    where there is a trace of them at all. Of two fields of one name it takes the first, and lists both."""

    def name(self, name: str) -> str:
        return '"' + name.replace('"', '""') + '"'

    def parse(self, fields: tuple[Field, ...]) -> tuple[tuple[str, str], ...]:
        shape = _quote(json.dumps({field.name: _duckdb_shape(field.type) for field in fields}))
        lenient = f"(?i)nan|inf|,{_SPACE}[]}}]"
        strings = r'"([^"\\]|\\.)*"'
        is_lenient = (
            f"regexp_matches(\"value\", '{lenient}') AND "
            f"regexp_matches(regexp_replace(\"value\", '{strings}', '\"\"', 'g'), '{lenient}')"
        )
        is_object = f"regexp_matches(\"value\", '^{_SPACE}[{{]')"
        is_right = f"{is_object} AND json_valid({MARKED}) AND NOT ({is_lenient})"
        # This needs a CASE of its own: a value that is no JSON has no names, and asking for them is an error.
        return (
            (MARKED, self._marked()),
            (OBJECT, f"CASE WHEN {is_right} THEN {self._if_names_are_once(f'json_transform({MARKED}, {shape})')} END"),
        )

    def _marked(self) -> str:
        pattern = f'(?s)("(?:[^"\\\\]|\\\\.)*"|{_NUMBER_AS_NAME})|({_JSON_NUMBER})'
        signs = r"'\1' || chr(1) || '\2' || chr(2)"
        marked = f"""replace(regexp_replace("value", '{pattern}', {signs}, 'g'), chr(1) || chr(2), '')"""
        marked = f"""replace(replace({marked}, chr(1), '"{NUMBER_MARK}'), chr(2), '"')"""
        is_reserved = f"regexp_matches(\"value\", '{_RESERVED}')"
        is_changeable = f"regexp_matches(\"value\", '{_CHANGEABLE}')"
        return f'CASE WHEN {is_reserved} THEN NULL WHEN {is_changeable} THEN {marked} ELSE "value" END'

    def _if_names_are_once(self, value: str) -> str:
        outer, inner = f"json_keys({MARKED})", f"json_keys({MARKED}, '$..*')"
        has_inner = f"contains(substr({MARKED}, strpos({MARKED}, '{{') + 1), '{{')"
        is_inner_once = f"list_bool_and(list_transform({inner}, lambda names: list_unique(names) = len(names)))"
        return (
            f"CASE WHEN list_unique({outer}) < len({outer}) THEN NULL "
            f"WHEN NOT {has_inner} THEN {value} WHEN {is_inner_once} THEN {value} END"
        )

    def matches(self, text: str, pattern: str) -> str:
        return f"regexp_full_match({text}, '{pattern}')"

    def unmarked(self, text: str, json_type: ScalarType) -> str:
        if json_type.kind == "string":  # the text may spell an object or a list
            inside = f"""regexp_replace({text}, '"{NUMBER_MARK}([^"]*)"', '\\1', 'g')"""
            text = f"CASE WHEN contains({text}, '{NUMBER_MARK}') THEN {inside} ELSE {text} END"
        return f"replace({text}, '{NUMBER_MARK}', '')"

    def cast(self, text: str, json_type: ScalarType) -> str:
        return f"try_cast({text} AS {_duckdb_type(json_type)})"

    def each(self, items: str, item: JsonType, variable: str, body: str) -> str:
        return f"list_transform({items}, lambda {variable}: {body})"

    def struct(self, values: list[tuple[str, str]]) -> str:
        return "struct_pack(" + ", ".join(f'"{name}" := {value}' for name, value in values) + ")"


def _has_list_of_lists(json_type: JsonType) -> bool:
    """Look for a list whose elements are lists or objects."""
    match json_type:
        case ScalarType():
            return False
        case ArrayType(item):
            return not isinstance(item, ScalarType)
        case StructType(fields):
            return any(_has_list_of_lists(field.type) for field in fields)


def _rlike(text: str, pattern: str) -> str:
    return f"{text} RLIKE {_spark_text(pattern)}"


def _spark_text(text: str) -> str:
    return _quote(text.replace("\\", "\\\\"))


def _spark_shape(json_type: JsonType) -> JsonType:
    """Return the shape in which every scalar is a text."""
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
