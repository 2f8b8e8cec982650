"""The records of a produce request, from bytes to checked batches: on the event loop if that is quick, or in a thread.

Guards four promises: a batch that goes from here to the log is sound; decoding on the loop handles at most
`QUICK_BYTES_MAX` of a request; each partition of a request gets a batch or a refusal of its own, also if decoding
fails with an unexpected error; and a payload that was compressed as a whole is never unpacked to more than was
announced and allowed. Decides nothing about a partition: that may change while a thread is at work.

Arrow compresses buffers with lz4 and zstd; gzip and snappy, which Kafka's producers know too, are around the whole
stream.
"""

from __future__ import annotations

import logging
import zlib
from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa
from google.protobuf.message import DecodeError

from bus.broker_api.calls import ITEMS_MAX
from bus.broker_api.produce import DecodedRecords
from bus.broker_api.requests import TakesLong
from bus.errors import ErrorCode, Refused, reduce_error
from bus.grpc_api.server.records.arrow_claims import Allowance, PayloadTooLarge, check_claims
from bus.grpc_api.v1 import bus_pb2 as pb
from bus.grpc_api.wire_fields import encode_field, fields_of, tag_of
from bus.model import TIMESTAMP_MS_MAX, TIMESTAMP_STORED_MS_MAX, TIMESTAMP_STORED_MS_MIN, RecordBatch
from bus.records.arrow_batches import (
    MalformedRecords,
    MistimedRecords,
    check_records,
    decode_records,
    records_from_rows,
)

_log = logging.getLogger(__name__)

# Produce requests off the wire, without a copy of the records.
#
# The generated code copies a payload twice (into the message, out of it again), on the event loop and with the
# interpreter held. Here a large Arrow payload is cut out of the request's bytes as a view, and the generated code
# parses what is left. Guards two promises: a request means what the generated code would take it for, and the generated
# code makes no more objects than the bounds below allow, however few bytes they take on the wire. A request that takes
# long to parse is left to a thread (`begin_parse`).

# Below, two copies cost less than looking for the payload.
_CUT_BYTES_MIN = 32 * 1024
# Plain records and their headers. Arrow has no such bound: there, a record makes no object.
PLAIN_ITEMS_MAX = 100_000
_FIELDS_MAX = 10 * ITEMS_MAX + 8 * PLAIN_ITEMS_MAX
# What the event loop parses by itself: about two milliseconds of work.
_QUICK_FIELDS_MAX = 2_000
_QUICK_PLAIN_BYTES_MAX = 16 * 1024
# A larger request whose fields cannot be followed here is refused, though the generated code may know better.
_UNBOUNDED_BYTES_MAX = 1024 * 1024


Payload = bytes | memoryview


class TooManyItems(ValueError):
    """A request, or another broker's answer, has more items than the broker looks at."""

    def __init__(self, name: str, items_max: int) -> None:
        remedy = "; send several requests" if name.endswith("Request") else ""
        super().__init__(f"expected a {name} of at most {items_max} items, found more{remedy}")

    __reduce__ = reduce_error


@dataclass(frozen=True, slots=True)
class ProduceCall:
    """`payloads` is empty, or has an entry for each partition of `message`: the Arrow bytes that were cut out of it,
    or None if it still has its own. A payload keeps at most twice its size in memory."""

    message: pb.ProduceRequest
    payloads: Sequence[Payload | None]
    size_bytes: int

    def payload(self, index: int) -> Payload | None:
        return self.payloads[index] if self.payloads else None


@dataclass(frozen=True, slots=True)
class UnparsedCall:
    """A request that takes long to parse: `parse_call(raw)` is to run in a thread."""

    raw: bytes

    @property
    def size_bytes(self) -> int:
        return len(self.raw)


def begin_parse(request: bytes) -> ProduceCall | UnparsedCall:
    """Raises as `parse_call` does."""
    try:
        return _parse(request, _Bounds(_QUICK_FIELDS_MAX, is_quick=True))
    except TakesLong:
        return UnparsedCall(request)


def parse_call(request: bytes) -> ProduceCall:
    """Raises what the generated code raises, and `TooManyItems`."""
    return _parse(request, _Bounds(_FIELDS_MAX, is_quick=False))


class _Bounds:
    """How much of a request may still be looked at."""

    def __init__(self, fields_max: int, *, is_quick: bool) -> None:
        self._fields_left = fields_max
        self._is_quick = is_quick
        self._partitions = self._plain_bytes = self._plain_items = 0

    def take_field(self) -> None:
        self._fields_left -= 1
        if self._fields_left < 0:
            raise self._exceeded(ITEMS_MAX)

    def take_partition(self) -> None:
        self._partitions += 1
        if self._partitions > ITEMS_MAX:
            raise self._exceeded(ITEMS_MAX)

    def take_plain(self, records: memoryview) -> None:
        """A `pb.RecordList`."""
        self._plain_bytes += len(records)
        if self._is_quick:
            if self._plain_bytes > _QUICK_PLAIN_BYTES_MAX:
                raise TakesLong
            return
        for tag, _, record in fields_of(records):
            self._take_plain_item()
            if tag == _RECORD:
                for inner, _, _ in fields_of(record):
                    self.take_field()
                    if inner == _HEADERS:
                        self._take_plain_item()

    def _take_plain_item(self) -> None:
        self._plain_items += 1
        if self._plain_items > PLAIN_ITEMS_MAX:
            raise self._exceeded(PLAIN_ITEMS_MAX)

    def _exceeded(self, items_max: int) -> Exception:
        return TakesLong() if self._is_quick else TooManyItems(pb.ProduceRequest.DESCRIPTOR.name, items_max)


def _parse(request: bytes, bounds: _Bounds) -> ProduceCall:
    size = len(request)
    if size >= _CUT_BYTES_MIN:
        try:
            rest, payloads = _cut_partitions(memoryview(request), bounds)
        except TooManyItems:
            raise
        except (IndexError, ValueError) as error:
            if size > _UNBOUNDED_BYTES_MAX:
                raise DecodeError(str(error)) from None
            # The generated code says what is wrong with it.
        else:
            return ProduceCall(pb.ProduceRequest.FromString(rest), payloads, size)
    return ProduceCall(pb.ProduceRequest.FromString(request), (), size)


_PARTITIONS = tag_of(pb.ProduceRequest, "partitions")
_ARROW = tag_of(pb.PartitionProduceData, "arrow")
_RECORDS = tag_of(pb.PartitionProduceData, "records")
_RECORD = tag_of(pb.RecordList, "records")
_HEADERS = tag_of(pb.Record, "headers")


def _cut_partitions(request: memoryview, bounds: _Bounds) -> tuple[bytes, list[Payload | None]]:
    rest: list[bytes | memoryview] = []
    payloads: list[Payload | None] = []
    for tag, field, value in fields_of(request):
        bounds.take_field()
        if tag == _PARTITIONS:
            bounds.take_partition()
            partition, payload = _cut_payload(value, bounds)
            rest += encode_field(_PARTITIONS, [partition])
            # A view keeps the whole request alive for as long as its records stay in memory.
            is_most_of_it = payload is not None and len(payload) * 2 >= len(request)
            payloads.append(payload if payload is None or is_most_of_it else bytes(payload))
        else:
            rest.append(field)
    return b"".join(rest), payloads


def _cut_payload(partition: memoryview, bounds: _Bounds) -> tuple[bytes | memoryview, memoryview | None]:
    """Cut the payload out of a partition. Where a payload comes twice, or in two forms, the last one counts: the
    generated code knows."""
    rest: list[memoryview] = []
    payload: memoryview | None = None
    has_one_payload = True
    for tag, field, value in fields_of(partition):
        bounds.take_field()
        if tag == _RECORDS:
            bounds.take_plain(value)
        if tag == _RECORDS or (tag == _ARROW and payload is not None):
            has_one_payload = False
        if tag == _ARROW:
            payload = value
        else:
            rest.append(field)
    if not has_one_payload:
        return partition, None
    return b"".join(rest), payload


# Decoded in a millisecond or two, at worst.
QUICK_BYTES_MAX = 256 * 1024


class CallPayload:
    """A `Payload` of the API. All of a request's records unpack to at most `bytes_max`."""

    def __init__(self, call: ProduceCall, bytes_max: int) -> None:
        self.size_bytes = call.size_bytes
        self._call = call
        self._bytes_max = bytes_max

    def decode_quickly(self, refused: Sequence[Refused | None], now_ms: int) -> list[DecodedRecords]:
        if self.size_bytes > QUICK_BYTES_MAX or count_packed_bytes(self._call.message) > QUICK_BYTES_MAX:
            raise TakesLong
        return _decode(self._call, refused, self._bytes_max, now_ms, QUICK_BYTES_MAX)

    def decode(self, refused: Sequence[Refused | None], now_ms: int) -> list[DecodedRecords]:
        return _decode(self._call, refused, self._bytes_max, now_ms, None)


def decode_produce(
    data: pb.PartitionProduceData, now_ms: int, payload: bytes | memoryview | None, allowance: Allowance
) -> RecordBatch | Refused:
    """`payload`: the Arrow bytes, if they were cut out of `data` or were packed in it."""
    timestamp_ms = data.timestamp_ms if data.HasField("timestamp_ms") else now_ms
    if data.uncompressed_bytes and not data.codec:
        return Refused(
            ErrorCode.INVALID_REQUEST, f"expected a codec with uncompressed_bytes={data.uncompressed_bytes}, found none"
        )
    try:
        form = "arrow" if payload is not None else data.WhichOneof("payload")
        match form:
            case "arrow":
                payload = data.arrow if payload is None else payload
                check_claims(payload, allowance)
                return decode_records(payload, default_timestamp_ms=timestamp_ms)
            case "records":
                allowance.take_plain(data.records.ByteSize())
                return check_records(_batch_of(data.records.records), default_timestamp_ms=timestamp_ms)
            case _:
                return Refused(ErrorCode.INVALID_RECORD, "expected 'arrow' or 'records', found neither")
    except MistimedRecords as error:
        return Refused(ErrorCode.INVALID_TIMESTAMP, str(error))
    except MalformedRecords as error:
        return Refused(ErrorCode.INVALID_RECORD, str(error))
    except PayloadTooLarge as error:
        return Refused(ErrorCode.MESSAGE_TOO_LARGE, str(error))


def _decode(
    call: ProduceCall, refused: Sequence[Refused | None], bytes_max: int, now_ms: int, quick_bytes_max: int | None
) -> list[DecodedRecords]:
    packed, plain = Allowance(bytes_max), Allowance(bytes_max, quick_bytes_max)
    return [refusal or _decode_partition(call, index, packed, plain, now_ms) for index, refusal in enumerate(refused)]


def _decode_partition(
    call: ProduceCall, index: int, packed: Allowance, plain: Allowance, now_ms: int
) -> DecodedRecords:
    data, payload = call.message.partitions[index], call.payload(index)
    try:
        unpacked = unpack_partition(data, payload, packed) if data.codec else payload
        return unpacked if isinstance(unpacked, Refused) else decode_produce(data, now_ms, unpacked, plain)
    except TakesLong:
        raise
    except Exception:
        _log.exception("records could not be decoded", extra={"topic": data.topic, "partition": data.partition})
        return Refused(ErrorCode.UNKNOWN_SERVER_ERROR, "the broker failed to decode these records; see its log")


def _batch_of(records: Sequence[pb.Record]) -> pa.RecordBatch:
    return records_from_rows(
        [
            (
                record.key if record.HasField("key") else None,
                record.value if record.HasField("value") else None,
                [(header.key, header.value if header.HasField("value") else None) for header in record.headers],
                _timestamp_ms(record),
            )
            for record in records
        ]
    )


def _timestamp_ms(record: pb.Record) -> int | None:
    if not record.HasField("timestamp_ms"):
        return None
    if not TIMESTAMP_STORED_MS_MIN <= record.timestamp_ms <= TIMESTAMP_STORED_MS_MAX:
        raise MistimedRecords(f"expected timestamps from 0 to {TIMESTAMP_MS_MAX}, found {record.timestamp_ms}")
    return record.timestamp_ms


_GZIP_WRAPPER = 16 + zlib.MAX_WBITS  # zlib's way to say: a gzip header, and a check sum behind
_SNAPPY = pa.Codec("snappy")


def count_packed_bytes(request: pb.ProduceRequest) -> int:
    """How much the request says that it has to be unpacked to; 0 if nothing is packed."""
    packed_bytes = 0
    for data in request.partitions:
        if data.codec:
            packed_bytes += max(1, data.uncompressed_bytes)
    return packed_bytes


def unpack_partition(data: pb.PartitionProduceData, payload: Payload | None, allowance: Allowance) -> Payload | Refused:
    """Its Arrow stream, or why there is none."""
    if data.codec not in pb.PayloadCodec.values():
        return Refused(
            ErrorCode.UNSUPPORTED_COMPRESSION_TYPE,
            f"expected a codec among {', '.join(pb.PayloadCodec.keys())}, found {data.codec}",
        )
    if payload is None and data.WhichOneof("payload") != "arrow":
        return Refused(ErrorCode.INVALID_REQUEST, "expected a codec with 'arrow' only, found it with something else")
    if data.uncompressed_bytes <= 0:
        return Refused(
            ErrorCode.INVALID_REQUEST,
            f"expected uncompressed_bytes of a payload that is compressed, found {data.uncompressed_bytes}",
        )
    try:
        allowance.take(data.uncompressed_bytes)
        return unpack(data.arrow if payload is None else payload, data.codec, data.uncompressed_bytes)
    except PayloadTooLarge as error:
        return Refused(ErrorCode.MESSAGE_TOO_LARGE, str(error))
    except MalformedRecords as error:
        return Refused(ErrorCode.INVALID_RECORD, str(error))


def unpack(payload: Payload, codec: int, uncompressed_bytes: int) -> Payload:
    """Exactly `uncompressed_bytes`. Raises `MalformedRecords`."""
    return (_ungzip if codec == pb.PAYLOAD_CODEC_GZIP else _unsnap)(payload, uncompressed_bytes)


def _ungzip(payload: Payload, uncompressed_bytes: int) -> Payload:
    decompressor = zlib.decompressobj(_GZIP_WRAPPER)
    try:
        # One more than announced, so that a longer one shows.
        unpacked = decompressor.decompress(payload, uncompressed_bytes + 1)
    except zlib.error as error:
        raise MalformedRecords(f"expected gzip, found {len(payload)} bytes: {error}") from None
    if len(unpacked) != uncompressed_bytes:
        found = "more" if len(unpacked) > uncompressed_bytes else len(unpacked)
        raise MalformedRecords(f"expected {uncompressed_bytes} bytes in {len(payload)} of gzip, found {found}")
    if not decompressor.eof or decompressor.unused_data:
        found = f"{len(decompressor.unused_data)} bytes behind it" if decompressor.eof else "no end"
        raise MalformedRecords(f"expected one member of gzip, found {found}")
    return unpacked


def _unsnap(payload: Payload, uncompressed_bytes: int) -> Payload:
    found = _snappy_length(payload)
    if found != uncompressed_bytes:
        raise MalformedRecords(f"expected {uncompressed_bytes} bytes in {len(payload)} of snappy, found {found}")
    try:
        return memoryview(_SNAPPY.decompress(pa.py_buffer(payload), decompressed_size=uncompressed_bytes))
    except (pa.ArrowException, OSError) as error:
        raise MalformedRecords(f"expected snappy, found {len(payload)} bytes: {error}") from None


def _snappy_length(payload: Payload) -> int:
    """The length that a raw snappy block begins with, a varint of 32 bits."""
    length = 0
    for position, byte in enumerate(bytes(payload[:5])):
        length |= (byte & 0x7F) << (7 * position)
        if byte < 0x80:
            return length
    raise MalformedRecords(f"expected a block of snappy, found {len(payload)} bytes without a length")
