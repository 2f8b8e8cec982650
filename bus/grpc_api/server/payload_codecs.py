"""Payloads that a producer compressed as a whole: unpacked here, never to more than was announced and allowed.

Arrow compresses buffers with lz4 and zstd; gzip and snappy, which Kafka's producers know too, are around the whole
stream. Guards one promise: memory is taken for what is there, and for no claim of it.
"""

from __future__ import annotations

import zlib

import pyarrow as pa

from bus.errors import ErrorCode, Refused
from bus.grpc_api.server.arrow_claims import Allowance, PayloadTooLarge
from bus.grpc_api.server.produce_wire import Payload
from bus.grpc_api.v1 import bus_pb2 as pb
from bus.records.arrow_batches import MalformedRecords

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
