"""Records as bytes: raw, as a line of JSON, or by a format string as kcat's; and lines of JSON as records to produce.

    {"topic": "orders", "partition": 0, "offset": 7, "timestamp": 1357041600000, "key": "42", "value": "..",
     "headers": [{"key": "trace", "value": "1"}]}

Guards two promises: what was consumed with `--format json` and is produced again with `--json` is the same record; and
a value that is JSON keeps every digit of its numbers, or the line is refused. Bytes that are no UTF-8 travel as base64
under `key_base64` or `value_base64`, in headers too. A format is compiled once into parts, so that a record costs a few
calls. Nothing here knows where records come from.
"""

from __future__ import annotations

import base64
import binascii
import io
import json
import re
import time
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING, Any, TextIO

from bus.cli.output import Descriptor
from bus.cli.partition_arguments import parse_timestamp_ms
from bus.client_texts import escape_controls
from bus.model import TIMESTAMP_MS_MAX
from bus.platform.signals import Interrupts
from bus.records.json_text import format_exact, parse_exact

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


def compile_format(text: str, *, key_separator: str | None = None, is_terminal: bool = False) -> Writer:
    """`raw`, `json` or a format string. For a terminal, what a record has is escaped, and what the format has is not.
    Raises ValueError for an unknown `%` sequence."""
    if text == "json":
        return _escaped(write_json, is_json=True) if is_terminal else write_json
    if text == "raw":
        if key_separator is None:
            return _escaped(write_raw) if is_terminal else write_raw
        text = "%k" + key_separator.replace("%", "%%").replace("\\", "\\\\") + r"%s\n"
    parts = [_part(*token) for token in _TOKEN.findall(text.encode())]
    if is_terminal:
        parts = [part if isinstance(part, bytes) else _escaped(part) for part in parts]
    return lambda record: b"".join(part if isinstance(part, bytes) else part(record) for part in parts)


def _escaped(write: Writer, *, is_json: bool = False) -> Writer:
    """Bytes that are no UTF-8 are written out, too: to a terminal of eight bits they are control characters."""

    def escaped(record: ConsumerRecord) -> bytes:
        return escape_controls(write(record).decode(errors="backslashreplace"), is_json=is_json).encode()

    return escaped


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
    """Return the value as it is; a struct of a typed topic as JSON; null is nothing."""
    if value is None:
        return b""
    if isinstance(value, bytes):
        return value
    return _encode(value).encode()


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
_SHOWN_CHARACTERS_MAX = 100


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
    return _encode(record)


def _scalar(value: Any) -> str:
    """Return a value of a typed topic that JSON has no type for, as a broker writes it."""
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    return value.isoformat() if hasattr(value, "isoformat") else str(value)


_encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), default=_scalar).encode


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
        record = parse_exact(line)
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
        if name in record:
            raise ValueError(f"expected {name} or {name}_base64, found both")
        try:
            return base64.b64decode(record[f"{name}_base64"], validate=True)
        except (binascii.Error, TypeError, ValueError):
            raise ValueError(f"expected base64 in {name}_base64, found {_cut(record[f'{name}_base64'])}") from None
    value = record.get(name)
    if value is None:
        return None
    return _text(value if isinstance(value, str) else format_exact(value), name).encode()


def _text(text: str, name: str = "the name of a header") -> str:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ValueError(f"expected {name} as text, found half of a surrogate pair") from None
    return text


def _integer(record: Mapping[str, Any], name: str) -> int | None:
    value = record.get(name)
    if value is not None and (isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 2**31):
        raise ValueError(f"expected {name} as a number from 0, found {_cut(value)}")
    return value


def _timestamp_ms(value: object) -> int | None:
    if value is None:
        return None
    timestamp_ms = parse_timestamp_ms(value) if isinstance(value, str) else value
    if isinstance(timestamp_ms, bool) or not isinstance(timestamp_ms, int):
        raise ValueError(f"expected timestamp in milliseconds or as ISO 8601 text, found {_cut(value)}")
    if not 0 <= timestamp_ms <= TIMESTAMP_MS_MAX:
        raise ValueError(f"expected timestamp from 0 to {TIMESTAMP_MS_MAX} ms, found {_cut(value)}")
    return timestamp_ms


def _cut(value: object) -> str:
    return repr(value)[:_SHOWN_CHARACTERS_MAX]


def _headers(value: object) -> list[tuple[str, bytes | None]]:
    """An object, or a list of objects with key and value, since a name may come twice."""
    if value is None:
        return []
    if isinstance(value, dict):
        return [(_text(name), _bytes({"value": data}, "value")) for name, data in value.items()]
    if not isinstance(value, list):
        raise ValueError(f"expected headers as an object or a list, found {_cut(value)}")
    headers = []
    for entry in value:
        if not isinstance(entry, dict) or not isinstance(entry.get("key"), str):
            raise ValueError(f'expected a header as {{"key": text, "value": text}}, found {_cut(entry)}')
        headers.append((_text(entry["key"]), _bytes(entry, "value")))
    return headers


# Where `bus consume` writes records to, and which of them are written when a signal ends it.
#
# Guards two promises. Of a batch that was not written to its end, because the command was stopped, the reader went away
# or the disk is full, it is known to the record how much is written. And a record that is begun when the command is
# stopped is written to its end, if the reader takes it soon.

_LAST_RECORD_MS = 1_000


class WrittenBatch:
    """`records`, of which the first `count` are written."""

    def __init__(self, records: Sequence[ConsumerRecord], write: Writer) -> None:
        self.records = records
        lines = list(map(write, records))
        self._ends = list(accumulate(map(len, lines)))
        self._data = memoryview(b"".join(lines))
        self._taken = 0

    @property
    def count(self) -> int:
        return bisect_right(self._ends, self._taken)

    @property
    def rest(self) -> memoryview:
        return self._data[self._taken :]

    @property
    def rest_of_record(self) -> memoryview:
        """Return the rest of the record that is begun; nothing if there is none."""
        begin = self._ends[self.count - 1] if self.count else 0
        end = begin if self._taken == begin else self._ends[self.count]
        return self._data[self._taken : end]

    def take(self, count: int) -> None:
        self._taken += count


class RecordOutput:
    """A stream, standard output mostly, for records as `write` makes them bytes."""

    def __init__(self, stream: TextIO, write: Writer, interrupts: Interrupts) -> None:
        self._stream = stream
        self._interrupts = interrupts
        self._write = write
        self.batch = WrittenBatch((), write)  # the last one that was begun and is not forgotten
        try:
            self._descriptor: Descriptor | None = Descriptor(stream.fileno())
        except io.UnsupportedOperation:  # a stream in memory
            self._descriptor = None

    def write(self, records: Sequence[ConsumerRecord]) -> None:
        """All of them. Raises `OSError`, `KeyboardInterrupt`; `batch` tells then how many are written."""
        self.batch = batch = WrittenBatch(records, self._write)
        if self._descriptor is None:
            batch.take(self._stream.buffer.write(batch.rest))
            self._stream.buffer.flush()
            return
        try:
            while batch.rest:
                self._descriptor.wait()
                self._write_some(self._descriptor, batch, batch.rest)
        except KeyboardInterrupt:
            self._end_record(self._descriptor, batch)
            raise

    def forget(self) -> None:
        self.batch = WrittenBatch((), self._write)

    def _end_record(self, descriptor: Descriptor, batch: WrittenBatch) -> None:
        deadline = time.monotonic() + _LAST_RECORD_MS / 1000
        while batch.rest_of_record:
            if not descriptor.wait(max(0, round((deadline - time.monotonic()) * 1000))):
                return
            self._write_some(descriptor, batch, batch.rest_of_record)

    def _write_some(self, descriptor: Descriptor, batch: WrittenBatch, data: memoryview) -> None:
        with self._interrupts.held():
            batch.take(descriptor.write_some(data))
