"""Records as lines of JSON, there and back: what `consume --format json` prints, `produce --json` takes.

    {"topic": "orders", "partition": 0, "offset": 7, "timestamp": 1357041600000, "key": "42", "value": "..",
     "headers": [{"key": "trace", "value": "1"}]}

Guards one promise: what was consumed and is produced again is the same record. Bytes that are no UTF-8 travel as base64
under `key_base64` or `value_base64`, in headers too.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bus.cli.positions import parse_timestamp_ms

_GIVEN = ("key", "key_base64", "value", "value_base64", "headers", "partition", "timestamp")
# What consume adds and produce has no use for, so that its lines can be sent again as they are.
_IGNORED = ("topic", "offset", "timestamp_type", "leader_epoch")
_FIELDS = frozenset((*_GIVEN, *_IGNORED))
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
    if unknown := record.keys() - _FIELDS:
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
