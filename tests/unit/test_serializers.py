from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from functools import reduce
from typing import Any
from uuid import UUID

import pytest

from bus import serializers
from bus.errors import BusError, ErrorCode
from bus.serializers import Headers, serializer_of


def refusal(serializer: Any, value: Any) -> str:
    with pytest.raises(BusError) as caught:
        serializer_of(serializer, "value")("orders", None, value)
    assert caught.value.code is ErrorCode.INVALID_RECORD
    assert "'orders'" in caught.value.message
    return caught.value.message


@pytest.mark.parametrize(
    ("serializer", "value", "expected"),
    [
        (serializers.text, "grün", "grün".encode()),
        (serializers.text, "", b""),
        (serializers.json, {"b": 1, "a": [None, True, 1.5, "ü"]}, '{"b":1,"a":[null,true,1.5,"ü"]}'.encode()),
        (serializers.integer, -2, b"\xff\xff\xff\xfe"),
        (serializers.integer, 2**31 - 1, b"\x7f\xff\xff\xff"),
        (serializers.long, 258, b"\x00\x00\x00\x00\x00\x00\x01\x02"),
        (serializers.long, -(2**63), b"\x80\x00\x00\x00\x00\x00\x00\x00"),
        (serializers.double, 1.0, b"\x3f\xf0\x00\x00\x00\x00\x00\x00"),
        (serializers.json, {1: 2, "x": '{"3":4}', "3.5": [5]}, b'{"1":2,"x":"{\\"3\\":4}","3.5":[5]}'),
        (serializers.double, 2**53, b"\x43\x40\x00\x00\x00\x00\x00\x00"),
        (serializers.double, -0.5, b"\xbf\xe0\x00\x00\x00\x00\x00\x00"),
        (serializers.uuid, UUID("123E4567-E89B-12D3-A456-426614174000"), b"123e4567-e89b-12d3-a456-426614174000"),
    ],
)
def test_bytes_are_those_of_kafkas_serializers(serializer: Callable[[Any], bytes], value: Any, expected: bytes) -> None:
    assert serializer(value) == expected
    assert serializer_of(serializer, "value")("orders", None, value) == expected


@pytest.mark.parametrize(
    ("serializer", "value", "found"),
    [
        (serializers.text, 7, "found int: AttributeError"),
        (serializers.text, "\ud800", "found str: UnicodeEncodeError"),
        (serializers.json, {1, 2}, "found set: TypeError"),
        (serializers.json, float("nan"), "found float: ValueError"),
        (serializers.json, [float("inf")], "found list: ValueError"),
        (serializers.integer, 2**31, "found int: error"),
        (serializers.integer, 1.5, "found float: error"),
        (serializers.long, 2**63, "found int: error"),
        (serializers.double, "1.0", "found str: error"),
        (serializers.double, 2**53 + 1, "found int: ValueError"),
        (serializers.double, Decimal("0.1"), "found Decimal: ValueError"),
        (
            serializers.json,
            {1: "a", "1": "b"},
            "found dict: ValueError: expected each name once in an object, found '1' twice",
        ),
        (serializers.json, [{"deep": {None: 1, "null": 2}}], "found list: ValueError: expected each name once"),
        (serializers.json, {"amount": Decimal("0.1")}, "found dict: TypeError"),
        (serializers.json, reduce(lambda inner, _: [inner], range(100_000), 0), "found list: RecursionError"),
        (serializers.json, "\ud800", "found str: UnicodeEncodeError"),
        (serializers.uuid, "123e4567-e89b-12d3-a456-426614174000", "found str: AttributeError"),
    ],
)
def test_what_cannot_be_serialized_names_the_topic_the_type_and_the_cause(
    serializer: Any, value: Any, found: str
) -> None:
    message = refusal(serializer, value)
    assert "value_serializer" in message
    assert found in message


def test_cause_is_kept_for_the_traceback() -> None:
    failure = KeyError("id")

    def fail(value: Any) -> bytes:
        raise failure

    with pytest.raises(BusError) as caught:
        serializer_of(fail, "key")("orders", None, {})
    assert caught.value.__cause__ is failure


@pytest.mark.parametrize("result", ["text", 7, ["b"]])
def test_serializer_that_gives_no_bytes_is_named(result: Any) -> None:
    found = f"expected value_serializer to give bytes or None, found {type(result).__name__}"
    assert found in refusal(lambda value: result, "x")


def test_none_is_a_tombstone_and_never_serialized() -> None:
    asked: list[Any] = []
    assert serializer_of(asked.append, "value")("orders", None, None) is None
    assert serializer_of(serializers.json, "value")("orders", None, None) is None
    assert asked == []


def test_serializer_may_make_a_tombstone() -> None:
    assert serializer_of(lambda value: None, "value")("orders", None, "x") is None


def test_object_gets_topic_headers_and_value() -> None:
    class Tagged:
        def serialize(self, topic: str, headers: Headers | None, value: Any) -> bytes:
            return f"{topic}|{headers}|{value}".encode()

        def __call__(self, value: Any) -> bytes:
            raise AssertionError("serialize() knows more")

    serialize = serializer_of(Tagged(), "value")
    assert serialize("orders", [("h", b"1")], 5) == b"orders|[('h', b'1')]|5"


def test_without_a_serializer_everything_stays_what_it_is() -> None:
    value = object()
    assert serializer_of(None, "value")("orders", None, value) is value
