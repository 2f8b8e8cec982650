"""JSON that is written again as it was read, and what is refused: what is no JSON, or nested too deep."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bus.records.json_text import ExactNumber, format_exact, parse_exact, parse_json, parse_strict


@pytest.mark.parametrize(
    "text", ["", "{", b"\xff", "[" * 100_000 + "]" * 100_000, '{"a":' * 100_000 + "1" + "}" * 100_000]
)
def test_what_is_no_json_or_nested_too_deep_raises_value_error(text: str | bytes) -> None:
    with pytest.raises(ValueError, match=r".+"):
        parse_json(text)


def test_each_object_passes_the_hook_from_the_innermost_on() -> None:
    assert parse_json(b'{"a":{"b":1}}', object_hook=lambda node: [*node.values()]) == [[1]]


@pytest.mark.parametrize(
    "text",
    [
        "0.1",
        "1.10",
        "0.12345678901234567890123456789",
        "1e400",
        "-1E-400",
        "1e5",
        "-0",
        "-0.0",
        "12345678901234567890123456789",
        "9" * 5_000,
        '{"b":[1.50,{"a":null}],"a":true,"":"\\n\\u0001ü"}',
    ],
)
def test_number_is_written_with_the_digits_it_came_with(text: str) -> None:
    assert format_exact(parse_exact(text)) == text
    assert format_exact(parse_exact(text.encode())) == text


@given(st.from_regex(r"\A-?(0|[1-9][0-9]{0,30})([.][0-9]{1,30})?([eE][-+]?[0-9]{1,5})?\Z"))
def test_every_number_of_json_is_written_as_it_was_read(text: str) -> None:
    assert format_exact(parse_exact(f'{{"n":[{text}]}}')) == f'{{"n":[{text}]}}'


def test_number_that_a_float_is_stays_a_float() -> None:
    assert parse_exact("[1.5,1.50]") == [1.5, ExactNumber("1.50")]
    assert parse_strict("[1.5,1.50]") == [1.5, 1.5]


@pytest.mark.parametrize("parse", [parse_exact, parse_strict])
@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("NaN", "found NaN"),
        ('{"a":[-Infinity]}', "found -Infinity"),
        ('{"a":1,"b":{"c":1,"c":1}}', "found 'c' twice"),
        ("[" * 100_000 + "]" * 100_000, "nested too deep"),
        ('{"a":' * 100_000 + "1" + "}" * 100_000, "nested too deep"),
        (b"\xff", "in UTF-8"),
        ("1".encode("utf-16"), "in UTF-8"),
        ("[1,]", "."),
        ("01", "."),
        ("", "."),
    ],
)
def test_what_is_no_json_is_refused_and_named(parse: Any, text: str | bytes, found: str) -> None:
    with pytest.raises(ValueError, match=found):
        parse(text)


@pytest.mark.parametrize("value", [float("nan"), {1: 1, "1": 2}, {True: 1, "true": 2}, {"a": {1}}])
def test_what_json_does_not_have_is_not_written(value: Any) -> None:
    with pytest.raises((ValueError, TypeError), match=r"expected|JSON"):
        format_exact(value)
