from __future__ import annotations

import json
from typing import Any

import pytest

from bus.cli.records.record_format import InputRecord, check_format, compile_format, decode_record, write_json
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


@pytest.mark.parametrize(
    ("text", "printed"),
    [
        ("raw", b"a\\x1b[2J\\x9b\\xffb\\u202e\n"),
        ("\\x1b[1m%s\\x1b[0m\\n", b"\x1b[1ma\\x1b[2J\\x9b\\xffb\\u202e\x1b[0m\n"),
        ("%k %h", b"\\x9b name\\x07=\\x1b"),
    ],
)
def test_record_never_controls_the_terminal_but_the_format_may(text: str, printed: bytes) -> None:
    hostile = record(key="\x9b".encode(), value=b"a\x1b[2J\x9b\xffb\xe2\x80\xae", headers=[("name\x07", b"\x1b")])
    assert compile_format(text, is_terminal=True)(hostile) == printed


def test_json_for_a_terminal_is_the_same_json() -> None:
    hostile = record(key="\x9b\u202e\x7f".encode(), value=b"\xff\x1b", headers=[("\u200f", b"\x07")])
    printed = compile_format("json", is_terminal=True)(hostile)
    assert printed.isascii()
    assert json.loads(printed) == json.loads(write_json(hostile))


@pytest.mark.parametrize("text", ["jsno", "", "csv", "\\n", "value"])
def test_a_format_without_a_field_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="expected raw, json or a format with %s or another field, found"):
        check_format(text)


@pytest.mark.parametrize(
    ("line", "record"),
    [
        ('{"value": "x"}', InputRecord(None, b"x", [], None, None)),
        ('{"value": null, "key": "k"}', InputRecord(b"k", None, [], None, None)),
        ('{"value": {"a": 1, "b": "ü"}}', InputRecord(None, '{"a":1,"b":"ü"}'.encode(), [], None, None)),
        (
            '{"value": {"a": 0.12345678901234567890, "b": [1.10, 1e400, -1E-400, -0, 123456789012345678901]}}',
            InputRecord(
                None,
                b'{"a":0.12345678901234567890,"b":[1.10,1e400,-1E-400,-0,123456789012345678901]}',
                [],
                None,
                None,
            ),
        ),
        ('{"value": 1e400, "key": 1.00}', InputRecord(b"1.00", b"1e400", [], None, None)),
        ('{"value": 1.5, "key": 42}', InputRecord(b"42", b"1.5", [], None, None)),
        ('{"value_base64": "/w=="}', InputRecord(None, b"\xff", [], None, None)),
        (
            '{"value": "x", "headers": {"a": "1", "b": null}}',
            InputRecord(None, b"x", [("a", b"1"), ("b", None)], None, None),
        ),
        (
            '{"value": "x", "headers": [{"key": "a", "value": "1"}, {"key": "a", "value_base64": "/w=="}]}',
            InputRecord(None, b"x", [("a", b"1"), ("a", b"\xff")], None, None),
        ),
        ('{"value": "x", "partition": 3, "timestamp": 7}', InputRecord(None, b"x", [], 3, 7)),
        ('{"value": "x", "timestamp": "1970-01-01T00:00:01Z"}', InputRecord(None, b"x", [], None, 1000)),
    ],
)
def test_line_is_read_as_a_record(line: str, record: InputRecord) -> None:
    assert decode_record(line) == record


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("", "expected a JSON object"),
        ("{", "expected a JSON object"),
        ("[1]", "found list"),
        ('{"key": "k"}', "expected a value"),
        ('{"value": 1, "vlaue": 2}', "found vlaue"),
        ('{"value": 1, "partition": -1}', "expected partition as a number from 0, found -1"),
        ('{"value": 1, "partition": true}', "expected partition as a number"),
        ('{"value": 1, "timestamp": "soon"}', "expected timestamp in milliseconds or as ISO 8601 text, found 'soon'"),
        ('{"value": 1, "headers": "a"}', "expected headers as an object or a list"),
        ('{"value": 1, "headers": [["a", "b"]]}', "expected a header as"),
        ('{"value_base64": "%"}', "expected base64 in value_base64"),
        ('{"value": "\\ud800"}', "half of a surrogate pair"),
        ('{"value": {"a": "\\ud800"}}', "half of a surrogate pair"),
        ('{"value": 1, "key": "\\udfff"}', "expected key as text, found half of a surrogate pair"),
        ('{"value": 1, "headers": {"\\ud800": "x"}}', "expected the name of a header as text, found half of"),
        ('{"value": 1, "headers": [{"key": "\\ud800"}]}', "expected the name of a header as text, found half of"),
        ('{"value": 1, "headers": {"a": "\\ud800"}}', "half of a surrogate pair"),
        ('{"value": NaN}', "found NaN, which JSON does not have"),
        ('{"value": {"a": -Infinity}}', "found -Infinity"),
        ('{"value": 1, "value": 2}', "found 'value' twice"),
        ('{"value": {"a": {"b": 1, "b": 2}}}', "found 'b' twice"),
        ('{"value": ' + "[" * 100_000 + "]" * 100_000 + "}", "nested too deep"),
        ('{"value": "x", "value_base64": "/w=="}', "expected value or value_base64, found both"),
        ('{"value": 1, "timestamp": 1.5}', "found 1.5"),
        ('{"value": 1, "timestamp": -1}', "expected timestamp from 0 to 253402214399999 ms, found -1"),
        ('{"value": 1, "timestamp": ' + "9" * 30 + "}", "expected timestamp from 0 to"),
        ('{"value": 1, "timestamp": 1e400}', "found 1e400"),
        ('{"value": 1, "partition": ' + "9" * 30 + "}", "expected partition as a number"),
    ],
)
def test_line_that_is_no_record_says_what_was_expected(line: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        decode_record(line)


@pytest.mark.parametrize("inner", ["1", "1.10"])
@pytest.mark.parametrize("depth", [900, 5_000, 50_000])
def test_value_of_any_depth_is_sent_as_it_is_or_refused(depth: int, inner: str) -> None:
    value = "[" * depth + inner + "]" * depth
    try:
        sent = decode_record(f'{{"value": {value}}}').value
    except ValueError:
        return
    assert sent == value.encode()


@pytest.mark.parametrize(
    ("key", "value", "headers"),
    [
        (None, None, []),
        (b"k", b"v", [("a", b"1"), ("a", None)]),
        (b"\xff\x00", b"\x80", [("bytes", b"\xfe")]),
        (b"", b"line\nbreak", []),
    ],
)
def test_consumed_line_is_the_same_record_when_it_is_produced(
    key: bytes | None, value: bytes | None, headers: list[tuple[str, bytes | None]]
) -> None:
    consumed = ConsumerRecord("t", 2, 9, 1234, TimestampType.LOG_APPEND_TIME, key, value, headers, 1)
    assert decode_record(write_json(consumed)) == InputRecord(key, value, headers, 2, 1234)
