"""What an Arrow IPC stream claims to hold, before anything is allocated for it.

A few bytes on the wire can claim any size: a compressed buffer names its own, a column of nulls has rows without
bytes, a dictionary is multiplied by those who refer to it. Guards one promise: what gets past `check_claims` decodes
to no more than it was allowed. Reads the metadata alone (Arrow columnar format, "Encapsulated message format" and
"Serialization and Interprocess Communication"; its tables are flatbuffers); what the columns mean is not its business.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from bus.arrow_batches import MalformedRecords

# Every batch costs some time, however small: a payload is meant to be one.
BATCHES_MAX = 1024
# No column of the log takes less for a row, so more rows than that would not fit either.
_ROW_BYTES_MIN = 4

_CONTINUATION = 0xFFFFFFFF
_SCHEMA, _DICTIONARY_BATCH, _RECORD_BATCH = 1, 2, 3
_VERSION_5 = 4  # as the enum counts
# Fields of the tables, by their place in the format's .fbs files.
_MESSAGE_VERSION, _MESSAGE_HEADER_TYPE, _MESSAGE_HEADER, _MESSAGE_BODY_LENGTH, _MESSAGE_METADATA = range(5)
_BATCH_LENGTH, _BATCH_NODES, _BATCH_BUFFERS, _BATCH_COMPRESSION = range(4)
_NOT_COMPRESSED = -1  # of one buffer in a compressed batch

_Unpack = Callable[[Any, int], tuple[Any, ...]]
_uint8: _Unpack = struct.Struct("<B").unpack_from
_int16: _Unpack = struct.Struct("<h").unpack_from
_uint16: _Unpack = struct.Struct("<H").unpack_from
_int32: _Unpack = struct.Struct("<i").unpack_from
_uint32: _Unpack = struct.Struct("<I").unpack_from
_int64: _Unpack = struct.Struct("<q").unpack_from
_FIELDS_MAX = 8  # no table here has one behind them that counts
_OFFSETS: Sequence[_Unpack] = [struct.Struct(f"<{count}H").unpack_from for count in range(_FIELDS_MAX + 1)]


class PayloadTooLarge(ValueError):
    """More bytes than a request may unpack to."""


class Allowance:
    """Bytes that a request may still unpack to."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = self.bytes_left = bytes_max

    def take(self, size: int) -> None:
        """Raises `PayloadTooLarge` if there is not so much left; then nothing is taken."""
        if size > self.bytes_left:
            raise PayloadTooLarge(
                f"expected records of at most {self._bytes_max} bytes unpacked (socket.request.max.bytes), "
                f"of which {self.bytes_left} are left in this request, found {size}"
            )
        self.bytes_left -= size

    def check_rows(self, rows: int) -> None:
        """Raises `PayloadTooLarge` if so many rows cannot be within the bound."""
        if rows * _ROW_BYTES_MIN > self._bytes_max:
            raise PayloadTooLarge(
                f"expected columns of at most {self._bytes_max // _ROW_BYTES_MIN} rows "
                f"(socket.request.max.bytes), found {rows}"
            )


def check_claims(payload: Any, allowance: Allowance) -> None:
    """`payload` is bytes-like. Raises `MalformedRecords` for a stream that cannot be read or that has dictionaries,
    `PayloadTooLarge` for one that would take more than its allowance."""
    try:
        _check_messages(payload, allowance)
    except (struct.error, IndexError) as error:
        raise MalformedRecords(f"expected an Arrow IPC stream, found {len(payload)} bytes: {error}") from None


def _check_messages(payload: Any, allowance: Allowance) -> None:
    batches = 0
    for message, body in _messages(payload):
        header_type = message.scalar(_MESSAGE_HEADER_TYPE, _uint8)
        if header_type == _SCHEMA:
            continue
        if header_type == _DICTIONARY_BATCH:
            raise MalformedRecords("expected plain columns, found one that is encoded by a dictionary")
        if header_type != _RECORD_BATCH:
            raise MalformedRecords(f"expected messages of schema and record batches, found one of type {header_type}")
        batches += 1
        if batches > BATCHES_MAX:
            raise MalformedRecords(f"expected at most {BATCHES_MAX} record batches, found more")
        if message.has(_MESSAGE_METADATA) and message.scalar(_MESSAGE_VERSION, _int16) < _VERSION_5:
            # There, and only there, compression may be named outside the batch.
            raise MalformedRecords("expected Arrow metadata of version 5, found an earlier one with custom metadata")
        _check_batch(message.table(_MESSAGE_HEADER), body, allowance)


def _messages(payload: Any) -> Iterator[tuple[_Table, int]]:
    """The metadata of each message, and where its body begins."""
    position, end = 0, len(payload)
    while position < end:
        (length,) = _uint32(payload, position)
        position += 4
        if length == _CONTINUATION:
            (length,) = _uint32(payload, position)
            position += 4
        if length == 0:
            return  # the end of the stream; Arrow reads no further either
        body = position + length
        message = _Table(payload, position + _uint32(payload, position)[0])
        body_length = message.scalar(_MESSAGE_BODY_LENGTH, _int64)
        if body_length < 0 or body + body_length > end:
            raise MalformedRecords(
                f"expected an Arrow IPC stream, found a message of {body_length} bytes, of which {end - body} are there"
            )
        yield message, body
        position = body + body_length


def _check_batch(batch: _Table, body: int, allowance: Allowance) -> None:
    payload = batch.payload
    allowance.check_rows(batch.scalar(_BATCH_LENGTH, _int64))
    count, start = batch.vector(_BATCH_NODES)
    # Pairs of a length and a number of nulls.
    for rows in struct.unpack_from(f"<{2 * count}q", payload, start)[::2]:
        allowance.check_rows(rows)
    if not batch.has(_BATCH_COMPRESSION):
        return
    count, start = batch.vector(_BATCH_BUFFERS)
    places = struct.unpack_from(f"<{2 * count}q", payload, start)
    for offset, length in zip(places[::2], places[1::2], strict=True):
        if length < 8:
            continue  # empty, or Arrow refuses it
        if offset < 0:
            raise MalformedRecords(f"expected a buffer within its message, found one at {offset}")
        (claimed,) = _int64(payload, body + offset)
        if claimed < _NOT_COMPRESSED:
            raise MalformedRecords(f"expected the size of a compressed buffer, found {claimed}")
        if claimed != _NOT_COMPRESSED:
            allowance.take(claimed)


class _Table:
    """A flatbuffers table. Whatever points outside the payload raises `IndexError` or `struct.error`."""

    __slots__ = ("_offsets", "_position", "payload")

    def __init__(self, payload: Any, position: int) -> None:
        self.payload = payload
        self._position = position
        vtable = position - _int32(payload, position)[0]
        if vtable < 0:  # which Python would count from the end
            raise IndexError(f"a table that begins at {vtable}")
        count = (_uint16(payload, vtable)[0] - 4) // 2
        self._offsets: tuple[int, ...] = _OFFSETS[min(max(count, 0), _FIELDS_MAX)](payload, vtable + 4)

    def has(self, field: int) -> bool:
        return field < len(self._offsets) and self._offsets[field] != 0

    def scalar(self, field: int, unpack: _Unpack) -> int:
        """0 if it is absent: the default of every field here."""
        if field >= len(self._offsets) or not (offset := self._offsets[field]):
            return 0
        return int(unpack(self.payload, self._position + offset)[0])

    def table(self, field: int) -> _Table:
        place = self._place(field)
        return _Table(self.payload, place + _uint32(self.payload, place)[0])

    def vector(self, field: int) -> tuple[int, int]:
        """Number of elements and where they begin."""
        if not self.has(field):
            return 0, 0
        place = self._place(field)
        start = place + _uint32(self.payload, place)[0]
        return _uint32(self.payload, start)[0], start + 4

    def _place(self, field: int) -> int:
        if not self.has(field):
            raise IndexError(f"a table without field {field}")
        return self._position + self._offsets[field]
