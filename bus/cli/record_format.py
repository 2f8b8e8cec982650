"""How `bus consume` writes a record: raw, as JSON, or by a format string as kcat's.

A format is compiled once into parts, so that a record costs a few calls. Nothing here knows where records come from.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from bus.cli.record_json import encode_record

if TYPE_CHECKING:
    from bus.client.values import ConsumerRecord

Writer = Callable[["ConsumerRecord"], bytes]

_TIMESTAMP_TYPES = ("CreateTime", "LogAppendTime")
_TOKEN = re.compile(rb"%(.)|\\x([0-9a-fA-F]{2})|\\(.)|([^%\\]+)|(.)", re.DOTALL)
_ESCAPES = {b"n": b"\n", b"r": b"\r", b"t": b"\t", b"0": b"\0", b"\\": b"\\"}

FORMAT_HELP = (
    "%t topic, %p partition, %o offset, %k key, %s value, %T timestamp (ms), %h headers, %K and %S size of key and "
    r"value (-1: null), %% percent, \n \t \r \0 \xFF"
)


def compile_format(text: str, *, key_separator: str | None = None) -> Writer:
    """`raw`, `json` or a format string. Raises ValueError for an unknown `%` sequence."""
    if text == "json":
        return write_json
    if text == "raw":
        if key_separator is None:
            return write_raw
        text = "%k" + key_separator.replace("%", "%%").replace("\\", "\\\\") + r"%s\n"
    parts = [_part(*token) for token in _TOKEN.findall(text.encode())]
    return lambda record: b"".join(part if isinstance(part, bytes) else part(record) for part in parts)


def check_format(text: str) -> None:
    """Raises ValueError for a text that would print the same for every record."""
    if text not in ("raw", "json") and "%" not in text:
        raise ValueError(f"expected raw, json or a format with %s or another field, found {text!r}")


def _part(field: bytes, hexadecimal: bytes, escape: bytes, plain: bytes, other: bytes) -> bytes | Writer:
    if field == b"%":
        return b"%"
    if field:
        if field not in _FIELDS:
            known = " ".join(f"%{name.decode()}" for name in _FIELDS)
            raise ValueError(f"expected raw, json or a format with {known} %%, found %{field.decode()}")
        return _FIELDS[field]
    if hexadecimal:
        return bytes.fromhex(hexadecimal.decode())
    if escape:
        return _ESCAPES.get(escape, b"\\" + escape)
    return plain or other


def value_bytes(value: Any) -> bytes:
    """As it is; a struct of a typed topic as JSON; null is nothing."""
    if value is None:
        return b""
    if isinstance(value, bytes):
        return value
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), default=str).encode()


def _size(data: Any) -> bytes:
    return b"-1" if data is None else b"%d" % len(value_bytes(data))


def format_headers(headers: Sequence[tuple[str, bytes | None]]) -> bytes:
    """`name=value,name=value`, as kcat writes them; a null value is `NULL`."""
    return b",".join(name.encode() + b"=" + (b"NULL" if data is None else data) for name, data in headers)


_FIELDS: dict[bytes, Writer] = {
    b"t": lambda record: record.topic.encode(),
    b"p": lambda record: b"%d" % record.partition,
    b"o": lambda record: b"%d" % record.offset,
    b"k": lambda record: value_bytes(record.key),
    b"s": lambda record: value_bytes(record.value),
    b"T": lambda record: b"%d" % record.timestamp_ms,
    b"h": lambda record: format_headers(record.headers),
    b"K": lambda record: _size(record.key),
    b"S": lambda record: _size(record.value),
}


def write_raw(record: ConsumerRecord) -> bytes:
    return value_bytes(record.value) + b"\n"


def write_json(record: ConsumerRecord) -> bytes:
    line = encode_record(
        topic=record.topic,
        partition=record.partition,
        offset=record.offset,
        timestamp_ms=record.timestamp_ms,
        timestamp_type=_TIMESTAMP_TYPES[record.timestamp_type],
        key=record.key,
        value=record.value,
        headers=record.headers,
    )
    return line.encode() + b"\n"
