"""Serializers: how keys and values that are no bytes become bytes, for key_serializer and value_serializer.

Each is a plain function of the value, so a user's own is as good. Numbers, text and UUIDs have the bytes that Kafka's
serializers of these names give, so that either side reads the other's. Guards one promise: None is a record without a
value, a tombstone, and no serializer ever sees it.

    from bus import Producer, serializers
    Producer("127.0.0.1:9094", key_serializer=serializers.text, value_serializer=serializers.json)
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from json import JSONEncoder
from typing import Any, Protocol
from uuid import UUID

from bus.errors import BusError, ErrorCode
from bus.records.json_text import checked_names

Headers = Sequence[tuple[str, bytes | None]]


class Serializer(Protocol):
    """Kafka's shape, for those who need to know the topic. Called from every thread that sends."""

    def serialize(self, topic: str, headers: Headers | None, value: Any) -> bytes | None: ...


_encode_json = JSONEncoder(ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode


def text(value: str) -> bytes:
    """UTF-8."""
    return value.encode()


def json(value: Any) -> bytes:
    """JSON in UTF-8 without spaces, members in their order. What JSON does not have is refused: NaN, infinity, two
    members of one name (`{1: "a", "1": "b"}`), and what is no text, number, list or dict: say how a Decimal is to be
    written, as text or as a float."""
    return checked_names(_encode_json(value), value).encode()


def integer(value: int) -> bytes:
    """Four bytes, signed, big-endian."""
    return struct.pack(">i", value)


def long(value: int) -> bytes:
    """Eight bytes, signed, big-endian."""
    return struct.pack(">q", value)


def double(value: float) -> bytes:
    """Eight bytes, IEEE 754, big-endian. Numbers that no double is are refused: 2**53 + 1, Decimal("0.1")."""
    data = struct.pack(">d", value)
    if type(value) is not float and struct.unpack(">d", data)[0] != value:
        raise ValueError(f"expected a number that a double holds exactly, found {value!r}")
    return data


def uuid(value: UUID) -> bytes:
    """Its 36 characters."""
    return str(UUID(int=value.int)).encode()


def serializer_of(
    serializer: Serializer | Callable[[Any], bytes | None] | None, field: str
) -> Callable[[str, Headers | None, Any], Any]:
    """One function (topic, headers, value) for the config `<field>_serializer`; without one, the value itself.

    It raises `BusError` INVALID_RECORD for what the serializer raises, and for a result that is neither bytes nor None.
    """
    if serializer is None:
        return _as_it_is
    serialize = getattr(serializer, "serialize", None) or _ignoring_the_topic(serializer)

    def checked(topic: str, headers: Headers | None, value: Any) -> bytes | None:
        if value is None:
            return None
        try:
            data = serialize(topic, headers, value)
        except Exception as error:
            raise BusError(
                ErrorCode.INVALID_RECORD,
                f"topic {topic!r}: expected a {field} that {field}_serializer accepts, "
                f"found {type(value).__name__}: {type(error).__name__}: {error}",
            ) from error
        if data is not None and not isinstance(data, (bytes, bytearray, memoryview)):
            raise BusError(
                ErrorCode.INVALID_RECORD,
                f"topic {topic!r}: expected {field}_serializer to give bytes or None, found {type(data).__name__}",
            )
        return data  # type: ignore[return-value]

    return checked


def _as_it_is(topic: str, headers: Headers | None, value: Any) -> Any:
    return value


def _ignoring_the_topic(function: Any) -> Callable[[str, Headers | None, Any], Any]:
    def serialize(topic: str, headers: Headers | None, value: Any) -> Any:
        return function(value)

    return serialize
