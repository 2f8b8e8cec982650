"""Columns from a sample of JSON."""

from __future__ import annotations

import pytest

from bus.json_views import SchemaError, format_ddl, infer_fields, parse_ddl


def inferred(*texts: str) -> str:
    return format_ddl(infer_fields(texts))


def test_each_json_type_has_its_column_in_the_order_of_the_fields() -> None:
    plain = '"s":"x","i":1,"f":1.5,"b":true,"d":"2024-02-29","t":"2024-02-29T01:02:03.5+01:00"'
    assert inferred("{" + plain + ',"n":null,"a":[1],"o":{"x":1}}') == (
        "s STRING, i BIGINT, f DOUBLE, b BOOLEAN, d DATE, t TIMESTAMP, n STRING, a ARRAY<BIGINT>, o STRUCT<x: BIGINT>"
    )


@pytest.mark.parametrize(
    ("texts", "ddl"),
    [
        (('{"a":1}', '{"a":2.5}'), "a DOUBLE"),
        (('{"a":1}', '{"a":"x"}'), "a STRING"),
        (('{"a":1}', '{"a":true}'), "a STRING"),
        (('{"a":null}', '{"a":1}', '{"b":2}'), "a BIGINT, b BIGINT"),
        (('{"a":[]}', '{"a":[null,1]}', '{"a":[2.5]}'), "a ARRAY<DOUBLE>"),
        (('{"a":[]}',), "a ARRAY<STRING>"),
        (('{"a":{}}',), "a STRING"),
        (('{"a":{"b":1}}', '{"a":{"c":"x"}}'), "a STRUCT<b: BIGINT, c: STRING>"),
        (('{"a":{"b":1}}', '{"a":3}'), "a STRING"),
        (('{"a":[{"b":1},{"c":null}]}',), "a ARRAY<STRUCT<b: BIGINT, c: STRING>>"),
        (('{"a":9223372036854775808}',), "a DECIMAL(38,0)"),
        (('{"a":9007199254740993}', '{"a":1}'), "a BIGINT"),
        (('{"a":9007199254740993}', '{"a":0.5}'), "a DECIMAL(38,1)"),
        (('{"a":9007199254740992}', '{"a":0.5}'), "a DOUBLE"),
        (('{"a":1.10}', '{"a":0.1}', '{"a":-0.0}', '{"a":1e300}'), "a DOUBLE"),
        (('{"a":12345678901234567.89}', '{"a":1.5}', '{"a":7}'), "a DECIMAL(38,2)"),
        (('{"a":12345678901234567.89}', '{"a":1e-7}'), "a DECIMAL(38,7)"),
        (('{"a":12345678901234567.89}', '{"a":1e300}'), "a STRING"),
        (('{"a":12345678901234567.89}', '{"a":"x"}'), "a STRING"),
        (('{"a":[0.12345678901234567890]}',), "a ARRAY<DECIMAL(38,20)>"),
        (('{"a":1' + "0" * 37 + "}",), "a DECIMAL(38,0)"),
        (('{"a":1' + "0" * 38 + "}",), "a STRING"),
        (('{"a":1' + "0" * 5000 + "}",), "a STRING"),
        (('{"a":1e400}',), "a STRING"),
        (('{"a":1e-400}',), "a STRING"),
        (('{"a":1e99999999999999999999}',), "a STRING"),
        (('{"a":12345678901234567.89}', '{"a":0e10000}'), "a STRING"),
        (('{"a":12345678901234567.89}', '{"a":0e1000}'), "a DECIMAL(38,2)"),
        (('{"a":1,"a":"x"}', '{"a":2}'), "a BIGINT"),  # the former is none: a name twice
        (('{"a":"2024-02-30"}',), "a STRING"),
        (('{"a":"2024-02-29"}', '{"a":"2024-02-29T01:02:03Z"}'), "a STRING"),
        (('{"a":1,"A":2,"b\\"c":3}',), "a BIGINT"),
        (("no json", "[1]", '{"a":NaN}', '{"a":1}'), "a BIGINT"),
    ],
)
def test_a_column_holds_all_that_was_seen(texts: tuple[str, ...], ddl: str) -> None:
    assert inferred(*texts) == ddl


@pytest.mark.parametrize("texts", [(), ("no json",), ("[1]", "5"), ("{}",), ('{"":1}',)])
def test_a_sample_without_a_field_is_refused(texts: tuple[str, ...]) -> None:
    with pytest.raises(SchemaError, match=r"in the sample, found none|a column's, found none"):
        inferred(*texts)


@pytest.mark.parametrize("depth", [33, 50, 500])
def test_what_lies_too_deep_is_text(depth: int) -> None:
    fields = infer_fields(['{"a":' * depth + "1" + "}" * depth])
    assert format_ddl(fields).count("STRUCT") == 31
    assert parse_ddl(format_ddl(fields)) == fields
