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

import pyarrow as pa

from bus.broker_api.produce import DecodedRecords
from bus.broker_api.requests import TakesLong
from bus.errors import ErrorCode, Refused
from bus.grpc_api.server.arrow_claims import Allowance, PayloadTooLarge, check_claims
from bus.grpc_api.server.produce_wire import Payload, ProduceCall
from bus.grpc_api.v1 import bus_pb2 as pb
from bus.model import TIMESTAMP_MS_MAX, TIMESTAMP_STORED_MS_MAX, TIMESTAMP_STORED_MS_MIN, RecordBatch
from bus.records.arrow_batches import (
    MalformedRecords,
    MistimedRecords,
    check_records,
    decode_records,
    records_from_rows,
)

_log = logging.getLogger(__name__)

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
