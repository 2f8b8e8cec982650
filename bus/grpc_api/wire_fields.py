"""Protobuf fields by hand, where the generated code would copy large payloads several times.

Knows the encoding of fields and nothing of what they mean. The fields of a message may come in any order, so a payload
can be put behind, or cut out of, what the generated code reads and writes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

_LENGTH_DELIMITED = 2


def tag_of(message: Any, name: str) -> int:
    """Return the tag of a field of the generated class `message` that is bytes or a message."""
    return int(message.DESCRIPTOR.fields_by_name[name].number) << 3 | _LENGTH_DELIMITED


def encode_field(tag: int, pieces: Sequence[Any]) -> list[Any]:
    """A field whose value is all of `pieces`, as pieces itself: to be joined once, at the end."""
    return [encode_varint(tag) + encode_varint(sum(map(len, pieces))), *pieces]


def fields_of(message: memoryview) -> Iterator[tuple[int, memoryview, memoryview]]:
    """Tag, whole field and value of each. Raises `IndexError` or `ValueError` if these are no fields."""
    start, end = 0, len(message)
    while start < end:
        tag, position = _decode_varint(message, start)
        match tag & 7:
            case 2:  # length-delimited
                length, position = _decode_varint(message, position)
                stop = position + length
            case 0:  # varint
                stop = _decode_varint(message, position)[1]
            case 1:  # fixed, 64 bits
                stop = position + 8
            case 5:  # fixed, 32 bits
                stop = position + 4
            case wire_type:
                raise ValueError(f"expected a wire type of proto3, found {wire_type}")
        if stop > end:
            raise ValueError(f"expected a field of {stop - start} bytes, found {end - start}")
        yield tag, message[start:stop], message[position:stop]
        start = stop


def _decode_varint(message: memoryview, position: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = message[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
        shift += 7
        if shift > 63:
            raise ValueError("expected a varint of at most ten bytes")


def encode_varint(value: int) -> bytes:
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)
