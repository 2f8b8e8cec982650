"""The claims of an Arrow IPC stream: how much it says it holds, before anything is allocated for it.

A few bytes on the wire can claim any size: a compressed buffer names its own, a column of nulls has rows without
bytes, a dictionary is multiplied by those who refer to it. Guards one promise: what gets past `check_claims` decodes
to no more than it was allowed. Reads the metadata alone (Arrow columnar format, "Encapsulated message format" and
"Serialization and Interprocess Communication"; its tables are flatbuffers); what the columns mean is not its business.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import Any

from bus.broker_api.requests import TakesLong
from bus.records.arrow_batches import MalformedRecords

# Every batch costs some time, however small: a payload is meant to be one.
BATCHES_MAX = 1024
# A schema of four columns and its annotations, and a batch of such, take a fraction of it.
_METADATA_BYTES_MAX = 64 * 1024
# What a record takes in the log beside its key, value and headers: offset, timestamp, sequence and so on. Empty records
# take next to nothing on the wire.
_RECORD_BYTES = 32
# An entry of a column takes at least so much: offsets into its bytes, and validity.
_ENTRY_BYTES = 8
_BATCH_COST_BYTES = 16 * 1024
# A record in plain form is a few bytes on the wire, and several objects until it is in columns.
_PLAIN_BYTE_COST_BYTES = 16

_CONTINUATION = 0xFFFFFFFF
_SCHEMA, _DICTIONARY_BATCH, _RECORD_BATCH = 1, 2, 3
_VERSION_5 = 4  # as the enum counts
_NOT_COMPRESSED = -1  # of one buffer in a compressed batch

_Unpack = Callable[[Any, int], tuple[Any, ...]]
_int16: _Unpack = struct.Struct("<h").unpack_from
_uint16: _Unpack = struct.Struct("<H").unpack_from
_int32: _Unpack = struct.Struct("<i").unpack_from
_uint32: _Unpack = struct.Struct("<I").unpack_from
_int64: _Unpack = struct.Struct("<q").unpack_from
_OFFSETS: Sequence[_Unpack] = [struct.Struct(f"<{count}H").unpack_from for count in range(6)]
_INT64S: Sequence[_Unpack] = [struct.Struct(f"<{count}q").unpack_from for count in range(33)]


class PayloadTooLarge(ValueError):
    """More bytes than a request may unpack to."""


class Allowance:
    """Bytes that a request may still unpack to; and as many for what its records take beside those.

    With `quick_bytes_max`, more than that of both together raises `TakesLong`; without it, nothing does.
    """

    def __init__(self, bytes_max: int, quick_bytes_max: int | None = None) -> None:
        self._bytes_max = self.bytes_left = self._row_bytes_left = bytes_max
        self._quick_bytes_left = quick_bytes_max

    def take(self, size: int) -> None:
        """Raises `PayloadTooLarge` if there is not so much left; then nothing is taken."""
        self._spend(size)
        if size > self.bytes_left:
            raise PayloadTooLarge(
                f"expected records of at most {self._bytes_max} bytes unpacked, "
                f"of which {self.bytes_left} are left in this request, found {size}"
            )
        self.bytes_left -= size

    def take_plain(self, size: int) -> None:
        """Spend what records in plain form cost in time, by their bytes on the wire; it takes none of the allowance."""
        self._spend(min(size * _PLAIN_BYTE_COST_BYTES, 2 * self._bytes_max))

    def take_batch(self) -> None:
        """Spend what a batch costs in time, counted as bytes; it takes none of the allowance."""
        self._spend(_BATCH_COST_BYTES)

    def take_records(self, records: int, entries: int) -> None:
        """`entries`: of all columns together, at every depth. Raises `PayloadTooLarge` if they are too many."""
        size = records * _RECORD_BYTES + entries * _ENTRY_BYTES
        self._spend(size)
        if size > self._row_bytes_left:
            raise PayloadTooLarge(
                f"expected records that take at most {self._bytes_max} bytes beside their own, "
                f"{_RECORD_BYTES} each and {_ENTRY_BYTES} for each entry of a column; "
                f"{self._row_bytes_left} are left in this request, found {records} records with {entries} entries"
            )
        self._row_bytes_left -= size

    def _spend(self, size: int) -> None:
        if self._quick_bytes_left is None:
            return
        if size > self._quick_bytes_left and size <= 2 * self._bytes_max:
            raise TakesLong
        self._quick_bytes_left -= size


def check_claims(payload: Any, allowance: Allowance) -> None:
    """`payload` is bytes-like. Raises `MalformedRecords` for a stream that cannot be read or that has dictionaries,
    `PayloadTooLarge` for one that would take more than its allowance."""
    try:
        _check_messages(payload, allowance)
    except (struct.error, IndexError) as error:
        raise MalformedRecords(f"expected an Arrow IPC stream, found {len(payload)} bytes: {error}") from None


def _check_messages(payload: Any, allowance: Allowance) -> None:
    position, end, batches = _skip_known_schema(payload), len(payload), 0
    while position < end:
        metadata, body = _extent(payload, position)
        if metadata == body:
            return  # the end of the stream; Arrow reads no further either
        if body - metadata > _METADATA_BYTES_MAX:
            raise MalformedRecords(
                f"expected Arrow metadata of at most {_METADATA_BYTES_MAX} bytes, found {body - metadata}"
            )
        message = metadata + _uint32(payload, metadata)[0]
        version, header_type, header, body_length, custom_metadata = _fields(payload, message, 5)
        size = _int64(payload, message + body_length)[0] if body_length else 0
        if size < 0 or body + size > end:
            raise MalformedRecords(
                f"expected an Arrow IPC stream, found a message of {size} bytes, of which {end - body} are there"
            )
        kind = payload[message + header_type] if header_type else 0
        if kind == _RECORD_BATCH:
            batches += 1
            if batches > BATCHES_MAX:
                raise MalformedRecords(f"expected at most {BATCHES_MAX} record batches, found more")
            allowance.take_batch()
            if custom_metadata and (_int16(payload, message + version)[0] if version else 0) < _VERSION_5:
                # There, and only there, compression may be named outside the batch.
                raise MalformedRecords(
                    "expected Arrow metadata of version 5, found an earlier one with custom metadata"
                )
            _check_batch(payload, _follow(payload, message, header), body, allowance)
        elif kind == _SCHEMA:
            if not size:
                _remember_schema(payload, position, body)
        elif kind == _DICTIONARY_BATCH:
            raise MalformedRecords("expected plain columns, found one that is encoded by a dictionary")
        else:
            raise MalformedRecords(f"expected messages of schema and record batches, found one of type {kind}")
        position = body + size


def _extent(payload: Any, position: int) -> tuple[int, int]:
    """Return where the metadata of a message begins and ends; behind it is its body."""
    (length,) = _uint32(payload, position)
    if length == _CONTINUATION:
        position += 4
        (length,) = _uint32(payload, position)
    return position + 4, position + 4 + length


# A producer's requests all begin with the same schema, which is half of what there is to look at.
_SCHEMA_BYTES_MAX = 4096
_SCHEMAS_MAX = 256
_known_schemas: set[bytes] = set()


def _skip_known_schema(payload: Any) -> int:
    """Return where the message after the schema begins; 0 if the schema is not known."""
    if len(payload) < 8:
        return 0
    body = _extent(payload, 0)[1]
    return body if body <= _SCHEMA_BYTES_MAX and bytes(payload[:body]) in _known_schemas else 0


def _remember_schema(payload: Any, position: int, body: int) -> None:
    if position == 0 and body <= _SCHEMA_BYTES_MAX:
        if len(_known_schemas) >= _SCHEMAS_MAX:
            _known_schemas.clear()
        _known_schemas.add(bytes(payload[:body]))


def _check_batch(payload: Any, batch: int, body: int, allowance: Allowance) -> None:
    length, nodes, buffers, compression = _fields(payload, batch, 4)
    records = _int64(payload, batch + length)[0] if length else 0
    # Pairs of a length and a number of nulls.
    entries = _pairs(payload, batch, nodes)[::2]
    if records < 0 or any(count < 0 for count in entries):
        raise MalformedRecords("expected columns of a length from 0 on, found a negative one")
    allowance.take_records(records, sum(entries))
    _check_buffers(payload, _pairs(payload, batch, buffers), body, allowance, is_compressed=bool(compression))


def _check_buffers(
    payload: Any, places: Sequence[int], body: int, allowance: Allowance, *, is_compressed: bool
) -> None:
    """Columns may share a buffer, so each that refers to it takes its size."""
    for offset, length in zip(places[::2], places[1::2], strict=True):
        if not is_compressed:
            allowance.take(max(0, length))
            continue
        if length < 8:
            continue  # empty, or Arrow refuses it
        if offset < 0:
            raise MalformedRecords(f"expected a buffer within its message, found one at {offset}")
        (claimed,) = _int64(payload, body + offset)
        if claimed < _NOT_COMPRESSED:
            raise MalformedRecords(f"expected the size of a compressed buffer, found {claimed}")
        allowance.take(length if claimed == _NOT_COMPRESSED else claimed)


# ------------------------------------------------------------------ flatbuffers
# What points outside the payload raises `IndexError` or `struct.error`.


def _fields(payload: Any, table: int, count: int) -> tuple[int, ...]:
    """Return where a table has its first `count` fields, from its beginning on; 0: it has not got the field."""
    vtable = table - _int32(payload, table)[0]
    if vtable < 0:  # which Python would count from the end
        raise IndexError(f"a table that begins at {vtable}")
    found = (_uint16(payload, vtable)[0] - 4) // 2
    offsets: tuple[int, ...] = _OFFSETS[min(max(found, 0), count)](payload, vtable + 4)
    return offsets if found >= count else offsets + (0,) * (count - len(offsets))


def _follow(payload: Any, table: int, field: int) -> int:
    """Return where the table or vector begins that a field refers to."""
    if not field:
        raise IndexError("a table without a field that it needs")
    return table + field + int(_uint32(payload, table + field)[0])


def _pairs(payload: Any, table: int, field: int) -> tuple[int, ...]:
    """A vector of structs with two numbers each, one number after the other."""
    if not field:
        return ()
    start = _follow(payload, table, field)
    count = 2 * _uint32(payload, start)[0]
    unpack = _INT64S[count] if count < len(_INT64S) else struct.Struct(f"<{count}q").unpack_from
    numbers: tuple[int, ...] = unpack(payload, start + 4)
    return numbers
