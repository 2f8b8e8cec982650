"""The columns of a view as text."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bus.json_views import ArrayType, Field, ScalarType, SchemaError, StructType, format_ddl, parse_ddl
from bus.json_views.view import SPARK_NAMES, JsonType

KINDS = [kind for kind in SPARK_NAMES if kind != "decimal"]
SCALARS = st.sampled_from(KINDS).map(ScalarType) | st.tuples(st.integers(1, 38), st.integers(0, 38)).map(
    lambda found: ScalarType("decimal", found[0], min(found))
)
NAMES = st.sampled_from(["a", "dep_delay", "dep-delay", "2nd", "é ü", "struct", "x.y", "a<b>,c"])


def structs(types: st.SearchStrategy[JsonType]) -> st.SearchStrategy[StructType]:
    fields = st.lists(st.builds(Field, NAMES, types), min_size=1, max_size=3, unique_by=lambda field: field.name)
    return fields.map(lambda found: StructType(tuple(found)))


TYPES = st.recursive(SCALARS, lambda inner: inner.map(ArrayType) | structs(inner), max_leaves=5)


@given(structs(TYPES))
def test_what_is_written_is_what_is_read(row: StructType) -> None:
    assert parse_ddl(format_ddl(row.fields)) == row.fields


def test_other_spellings_have_one_text() -> None:
    ddl = "a long,b: Integer , `c d` array < struct<e:decimal, f real> >, g DECIMAL(12)"
    assert format_ddl(parse_ddl(ddl)) == (
        "a BIGINT, b INT, `c d` ARRAY<STRUCT<e: DECIMAL(10,0), f: FLOAT>>, g DECIMAL(12,0)"
    )


@pytest.mark.parametrize(
    ("ddl", "message"),
    [
        ("", "the name of a column, found the end"),
        ("a", "a type, found the end"),
        ("a INT,", "the name of a column, found the end"),
        ("a INT b INT", "the end, found 'b'"),
        ("a VARIANT", r"one of STRING, .*STRUCT<...>, found 'VARIANT'"),
        ("a ARRAY", "expected <, found the end"),
        ("a ARRAY<INT", "expected >, found the end"),
        ("a STRUCT<>", "the name of a column, found '>'"),
        ("a DECIMAL(39,2)", r"1 to 38 digits.*found DECIMAL\(39,2\)"),
        ("a DECIMAL(5,6)", r"found DECIMAL\(5,6\)"),
        ("a DECIMAL(x)", "a number of digits, found 'x'"),
        ("a INT, A STRING", "differ in more than case, found 'a' and 'A'"),
        ("`i` INT, `\u0131` STRING", "differ in more than case"),  # the same in capitals
        ("`i` INT, `\u0130` STRING", "differ in more than case"),
        ("k INT, `\u212a` STRING", "differ in more than case"),  # the sign of the kelvin
        ("`\u00e9` INT, `E\u0301` STRING", "differ in more than case"),
        ("a INT, a INT", "differ in more than case, found 'a' and 'a'"),
        ("a STRUCT<b: INT, b: INT>", "differ in more than case, found 'b' and 'b'"),
        ("a STRUCT<b: INT, B: INT>", "differ in more than case, found 'b' and 'B'"),
        ("`` INT", "the name of a column, found '``'"),
        ('`a"b` INT', "without quotes"),
        ("a INT; DROP", "the end, found ';'"),
        ("a " + "ARRAY<" * 40 + "INT" + ">" * 40, "at most 32 types inside each other"),
    ],
)
def test_what_is_no_schema_is_refused_with_what_was_found(ddl: str, message: str) -> None:
    with pytest.raises(SchemaError, match=message):
        parse_ddl(ddl)
