"""Payloads that are compressed as a whole: unpacked exactly, or refused with what was found."""

from __future__ import annotations

import gzip
import zlib

import pyarrow as pa
import pytest

from bus.errors import ErrorCode, Refused
from bus.grpc_api.server.records.arrow_claims import Allowance
from bus.grpc_api.server.records.produce_decoding import ProduceCall, count_packed_bytes, parse_call, unpack_partition
from bus.grpc_api.v1 import bus_pb2 as pb

DATA = bytes(range(256)) * 400
BYTES_MAX = 1_000_000
GZIP, SNAPPY = pb.PAYLOAD_CODEC_GZIP, pb.PAYLOAD_CODEC_SNAPPY


def pack(codec: int, data: bytes = DATA) -> bytes:
    return gzip.compress(data) if codec == GZIP else pa.Codec("snappy").compress(data, asbytes=True)  # type: ignore[no-any-return]


def call_of(*partitions: pb.PartitionProduceData) -> ProduceCall:
    return parse_call(pb.ProduceRequest(partitions=partitions).SerializeToString())


def unpacked(*partitions: pb.PartitionProduceData, bytes_max: int = BYTES_MAX) -> list[bytes | Refused | None]:
    allowance, call = Allowance(bytes_max), call_of(*partitions)
    found = [
        unpack_partition(data, call.payload(index), allowance) if data.codec else call.payload(index)
        for index, data in enumerate(call.message.partitions)
    ]
    return [bytes(one) if isinstance(one, memoryview) else one for one in found]


def packed(codec: int, arrow: bytes, uncompressed_bytes: int = len(DATA)) -> pb.PartitionProduceData:
    return pb.PartitionProduceData(arrow=arrow, codec=codec, uncompressed_bytes=uncompressed_bytes)  # type: ignore[arg-type]


@pytest.mark.parametrize("codec", [GZIP, SNAPPY])
@pytest.mark.parametrize("noise", [b"", bytes(40_000)])  # with and without the payload cut out of the request
def test_payload_is_what_was_packed(codec: int, noise: bytes) -> None:
    plain = pb.PartitionProduceData(arrow=noise)
    first, second, third = unpacked(packed(codec, pack(codec)), plain, packed(codec, pack(codec)))
    assert (first, third) == (DATA, DATA)
    assert second in (None, noise)


def test_request_without_packed_payloads_has_nothing_to_unpack() -> None:
    assert count_packed_bytes(call_of(pb.PartitionProduceData(arrow=DATA)).message) == 0
    assert count_packed_bytes(call_of(packed(GZIP, b"", 7), packed(SNAPPY, b"", 0)).message) == 8


@pytest.mark.parametrize(
    ("data", "code", "message"),
    [
        (packed(7, DATA), ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, "PAYLOAD_CODEC_SNAPPY, found 7"),
        (packed(GZIP, pack(GZIP), 0), ErrorCode.INVALID_REQUEST, "expected uncompressed_bytes of a payload that"),
        (packed(GZIP, pack(GZIP), -5), ErrorCode.INVALID_REQUEST, "found -5"),
        (
            pb.PartitionProduceData(records=pb.RecordList(), codec=GZIP, uncompressed_bytes=1),
            ErrorCode.INVALID_REQUEST,
            "expected a codec with 'arrow' only",
        ),
        (packed(GZIP, pack(GZIP), BYTES_MAX + 1), ErrorCode.MESSAGE_TOO_LARGE, "at most 1000000 bytes unpacked"),
        (packed(GZIP, pack(GZIP), len(DATA) - 1), ErrorCode.INVALID_RECORD, "of gzip, found more"),
        (packed(GZIP, pack(GZIP), len(DATA) + 1), ErrorCode.INVALID_RECORD, f"of gzip, found {len(DATA)}"),
        (packed(GZIP, pack(GZIP)[:-9]), ErrorCode.INVALID_RECORD, "expected one member of gzip, found no end"),
        (packed(GZIP, pack(GZIP)[:-5] + bytes(5)), ErrorCode.INVALID_RECORD, "expected gzip, found"),
        (packed(GZIP, pack(GZIP) + b"more"), ErrorCode.INVALID_RECORD, "found 4 bytes behind it"),
        (packed(GZIP, zlib.compress(DATA)), ErrorCode.INVALID_RECORD, "expected gzip, found"),
        (packed(GZIP, DATA), ErrorCode.INVALID_RECORD, "expected gzip, found 102400 bytes"),
        (packed(GZIP, b""), ErrorCode.INVALID_RECORD, "found 0"),
        (packed(SNAPPY, pack(SNAPPY), len(DATA) - 1), ErrorCode.INVALID_RECORD, f"of snappy, found {len(DATA)}"),
        (packed(SNAPPY, pack(SNAPPY), len(DATA) + 1), ErrorCode.INVALID_RECORD, f"of snappy, found {len(DATA)}"),
        (packed(SNAPPY, pack(SNAPPY)[:-9]), ErrorCode.INVALID_RECORD, "expected snappy, found"),
        (packed(SNAPPY, b"\xff" * 9), ErrorCode.INVALID_RECORD, "found 9 bytes without a length"),
        (packed(SNAPPY, b""), ErrorCode.INVALID_RECORD, "found 0 bytes without a length"),
    ],
)
def test_wrong_payload_is_refused_and_harms_no_other(
    data: pb.PartitionProduceData, code: ErrorCode, message: str
) -> None:
    refused, sound = unpacked(data, packed(GZIP, pack(GZIP)))
    assert isinstance(refused, Refused)
    assert refused.code is code
    assert message in refused.message
    assert sound == DATA


def test_partitions_of_a_request_share_its_bound() -> None:
    one = packed(GZIP, pack(GZIP))
    first, second, third = unpacked(one, one, one, bytes_max=2 * len(DATA) + 100)
    assert (first, second) == (DATA, DATA)
    assert isinstance(third, Refused)
    assert third.code is ErrorCode.MESSAGE_TOO_LARGE
    assert "of which 100 are left in this request" in third.message
