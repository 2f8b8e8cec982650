from __future__ import annotations

from typing import Any

import pytest

from bus.cli.record_format import check_format, compile_format
from bus.client.values import ConsumerRecord
from bus.model import TimestampType


def record(**changes: Any) -> ConsumerRecord:
    fields: dict[str, Any] = {
        "topic": "orders",
        "partition": 3,
        "offset": 42,
        "timestamp_ms": 1357041600000,
        "timestamp_type": TimestampType.CREATE_TIME,
        "key": b"k",
        "value": b"hello",
        "headers": [("trace", b"1"), ("empty", None)],
        "leader_epoch": 0,
    }
    return ConsumerRecord(**{**fields, **changes})


@pytest.mark.parametrize(
    ("text", "printed"),
    [
        ("raw", b"hello\n"),
        ("%s", b"hello"),
        ("%t [%p] at %o\\n", b"orders [3] at 42\n"),
        ("%k=%s;%K/%S\\t%T", b"k=hello;1/5\t1357041600000"),
        ("%h", b"trace=1,empty=NULL"),
        ("100%%", b"100%"),
        ("\\x41\\0\\r\\\\", b"A\0\r\\"),
        ("\\q", b"\\q"),
        ("trailing\\", b"trailing\\"),
        ("ü%s", "ühello".encode()),
    ],
)
def test_format_prints_the_fields_as_kcat_does(text: str, printed: bytes) -> None:
    assert compile_format(text)(record()) == printed


def test_null_key_and_value_are_empty_and_have_size_minus_one() -> None:
    tombstone = record(key=None, value=None, headers=[])
    assert compile_format("[%k][%s][%h]%K,%S")(tombstone) == b"[][][]-1,-1"
    assert compile_format("raw")(tombstone) == b"\n"


def test_value_that_is_a_struct_is_printed_as_json() -> None:
    assert compile_format("%s")(record(value={"type": "x", "n": None})) == b'{"type":"x","n":null}'


def test_key_separator_with_raw_prints_the_key_first_and_is_taken_literally() -> None:
    assert compile_format("raw", key_separator=":%s\\n")(record()) == b"k:%s\\nhello\n"


def test_unknown_field_is_refused_with_those_there_are() -> None:
    with pytest.raises(ValueError, match=r"expected raw, json or a format with %t .* found %q"):
        compile_format("%o %q")


def test_json_is_one_line_with_every_field() -> None:
    assert compile_format("json")(record(value=b"a\nb")) == (
        b'{"topic":"orders","partition":3,"offset":42,"timestamp":1357041600000,"timestamp_type":"CreateTime",'
        b'"key":"k","value":"a\\nb","headers":[{"key":"trace","value":"1"},{"key":"empty","value":null}]}\n'
    )


@pytest.mark.parametrize("text", ["jsno", "", "csv", "\\n", "value"])
def test_a_format_without_a_field_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="expected raw, json or a format with %s or another field, found"):
        check_format(text)
