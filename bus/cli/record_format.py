"""Records as bytes: raw, as a line of JSON, or by a format string as kcat's; and lines of JSON as records to produce.

    {"topic": "orders", "partition": 0, "offset": 7, "timestamp": 1357041600000, "key": "42", "value": "..",
     "headers": [{"key": "trace", "value": "1"}]}

Guards one promise: what was consumed with `--format json` and is produced again with `--json` is the same record. Bytes
that are no UTF-8 travel as base64 under `key_base64` or `value_base64`, in headers too. A format is compiled once into
parts, so that a record costs a few calls. Nothing here knows where records come from.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from bus.cli.positions import parse_timestamp_ms

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


_GIVEN = ("key", "key_base64", "value", "value_base64", "headers", "partition", "timestamp")
# What consume adds and produce has no use for, so that its lines can be sent again as they are.
_IGNORED = ("topic", "offset", "timestamp_type", "leader_epoch")
_JSON_FIELDS = frozenset((*_GIVEN, *_IGNORED))
_COMPACT = (",", ":")


@dataclass(frozen=True, slots=True)
class InputRecord:
    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes | None]]
    partition: int | None
    timestamp_ms: int | None


def encode_record(
    *,
    topic: str,
    partition: int,
    offset: int,
    timestamp_ms: int,
    timestamp_type: str,
    key: Any,
    value: Any,
    headers: Sequence[tuple[str, bytes | None]],
) -> str:
    """One line without its end. A value that is a struct is an object."""
    record: dict[str, Any] = {
        "topic": topic,
        "partition": partition,
        "offset": offset,
        "timestamp": timestamp_ms,
        "timestamp_type": timestamp_type,
    }
    _put(record, "key", key)
    _put(record, "value", value)
    record["headers"] = [_put({"key": name}, "value", data) for name, data in headers]
    return json.dumps(record, ensure_ascii=False, separators=_COMPACT, default=str)


def _put(record: dict[str, Any], name: str, data: Any) -> dict[str, Any]:
    if isinstance(data, bytes):
        try:
            record[name] = data.decode()
        except UnicodeDecodeError:
            record[f"{name}_base64"] = base64.b64encode(data).decode()
    else:
        record[name] = data
    return record


def decode_record(line: bytes | str) -> InputRecord:
    """Raises ValueError that says what was expected and what was found.

    A value or key that is no text, such as an object, is sent as its JSON text; null is null, a tombstone.
    """
    try:
        record = json.loads(line)
    except ValueError as error:
        raise ValueError(f"expected a JSON object, found: {error}") from None
    if not isinstance(record, dict):
        raise ValueError(f"expected a JSON object, found {type(record).__name__}")
    if unknown := record.keys() - _JSON_FIELDS:
        raise ValueError(f"expected key, value, headers, partition and timestamp, found {', '.join(sorted(unknown))}")
    if "value" not in record and "value_base64" not in record:
        raise ValueError("expected a value (null for a tombstone), found none")
    return InputRecord(
        key=_bytes(record, "key"),
        value=_bytes(record, "value"),
        headers=_headers(record.get("headers")),
        partition=_integer(record, "partition"),
        timestamp_ms=_timestamp_ms(record.get("timestamp")),
    )


def _bytes(record: Mapping[str, Any], name: str) -> bytes | None:
    if f"{name}_base64" in record:
        try:
            return base64.b64decode(record[f"{name}_base64"], validate=True)
        except (binascii.Error, TypeError, ValueError):
            raise ValueError(f"expected base64 in {name}_base64, found {record[f'{name}_base64']!r}") from None
    value = record.get(name)
    if value is None:
        return None
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, separators=_COMPACT)
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise ValueError(f"expected {name} as text, found half of a surrogate pair") from None


def _integer(record: Mapping[str, Any], name: str) -> int | None:
    value = record.get(name)
    if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 0):
        raise ValueError(f"expected {name} as a number from 0, found {value!r}")
    return value


def _timestamp_ms(value: object) -> int | None:
    if value is None:
        return None
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    timestamp_ms = parse_timestamp_ms(value) if isinstance(value, str) else None
    if timestamp_ms is None:
        raise ValueError(f"expected timestamp in milliseconds or as ISO 8601 text, found {value!r}")
    return timestamp_ms


def _headers(value: object) -> list[tuple[str, bytes | None]]:
    """An object, or a list of objects with key and value, since a name may come twice."""
    if value is None:
        return []
    if isinstance(value, dict):
        return [(name, _bytes({"value": data}, "value")) for name, data in value.items()]
    if not isinstance(value, list):
        raise ValueError(f"expected headers as an object or a list, found {value!r}")
    headers = []
    for entry in value:
        if not isinstance(entry, dict) or not isinstance(entry.get("key"), str):
            raise ValueError(f'expected a header as {{"key": text, "value": text}}, found {entry!r}')
        headers.append((entry["key"], _bytes(entry, "value")))
    return headers
