from __future__ import annotations

import pytest

from bus.cli.record_format import write_json
from bus.cli.record_json import InputRecord, decode_record
from bus.client.values import ConsumerRecord
from bus.model import TimestampType


@pytest.mark.parametrize(
    ("line", "record"),
    [
        ('{"value": "x"}', InputRecord(None, b"x", [], None, None)),
        ('{"value": null, "key": "k"}', InputRecord(b"k", None, [], None, None)),
        ('{"value": {"a": 1, "b": "ü"}}', InputRecord(None, '{"a":1,"b":"ü"}'.encode(), [], None, None)),
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
    ],
)
def test_line_that_is_no_record_says_what_was_expected(line: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        decode_record(line)


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
