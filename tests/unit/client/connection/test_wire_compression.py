from __future__ import annotations

import threading

import pyarrow as pa
import pytest

from bus.client.config.clients import ProducerConfig
from bus.client.config.parsing import parse_config
from bus.client.connection.produce_requests import WireCompression
from bus.grpc_api.v1 import bus_pb2 as pb

NAMES = {pb.PAYLOAD_CODEC_GZIP: "gzip", pb.PAYLOAD_CODEC_SNAPPY: "snappy"}
BATCH = pa.record_batch(
    {"value": pa.array([b'{"id": %d, "name": "customer-%d"}' % (number, number % 97) for number in range(1_000)])}
)


def compression_of(**configs: object) -> WireCompression:
    return WireCompression.of(parse_config(ProducerConfig, configs))


def decoded(payload: pa.Buffer, codec: int, uncompressed_bytes: int) -> pa.RecordBatch:
    """Decode the payload by the contract of bus.proto."""
    if codec:
        payload = pa.Codec(NAMES[codec]).decompress(payload, decompressed_size=uncompressed_bytes)
    (batch,) = pa.ipc.open_stream(payload).read_all().to_batches()
    return batch


@pytest.mark.parametrize(
    ("configs", "codec"),
    [
        ({}, pb.PAYLOAD_CODEC_NONE),
        ({"compression_type": "gzip"}, pb.PAYLOAD_CODEC_GZIP),
        ({"compression_type": "gzip", "compression_gzip_level": 1}, pb.PAYLOAD_CODEC_GZIP),
        ({"compression_type": "snappy"}, pb.PAYLOAD_CODEC_SNAPPY),
        ({"compression_type": "lz4"}, pb.PAYLOAD_CODEC_NONE),
        ({"compression_type": "lz4", "compression_lz4_level": 17}, pb.PAYLOAD_CODEC_NONE),
        ({"compression_type": "zstd"}, pb.PAYLOAD_CODEC_NONE),
        ({"compression_type": "zstd", "compression_zstd_level": -131_072}, pb.PAYLOAD_CODEC_NONE),
    ],
)
def test_batch_comes_out_as_it_went_in(configs: dict[str, object], codec: int) -> None:
    payload, found, uncompressed_bytes = compression_of(**configs).encode(BATCH)
    assert found == codec
    assert decoded(payload, found, uncompressed_bytes) == BATCH
    assert (len(payload) < uncompressed_bytes) == ("compression_type" in configs and "-131" not in str(configs))


@pytest.mark.parametrize(("compression_type", "low", "high"), [("gzip", 1, 9), ("lz4", 9, 17), ("zstd", -7, 19)])
def test_level_is_obeyed(compression_type: str, low: int, high: int) -> None:
    words = [b"%d %s" % (number * number % 9_973, b"order" * (number % 5)) for number in range(5_000)]
    batch = pa.record_batch({"value": pa.array(words)})

    def size_at(level: int) -> int:
        configs = {"compression_type": compression_type, f"compression_{compression_type}_level": level}
        return len(compression_of(**configs).encode(batch)[0])

    assert size_at(high) < size_at(low)


def test_default_of_lz4_is_the_fast_compressor_as_in_kafka() -> None:
    default = compression_of(compression_type="lz4")
    assert default.level is None
    assert default == compression_of(compression_type="lz4", compression_lz4_level=9)
    assert len(default.encode(BATCH)[0]) == len(WireCompression("lz4", 1).encode(BATCH)[0])


@pytest.mark.parametrize("compression_type", ["gzip", "snappy"])
def test_what_does_not_get_smaller_is_sent_as_it_is(compression_type: str) -> None:
    stream = pa.py_buffer(bytes(range(40)))
    assert WireCompression(compression_type).pack(stream) == (stream, pb.PAYLOAD_CODEC_NONE, 40)


@pytest.mark.parametrize("compression_type", ["gzip", "snappy", "lz4", "zstd"])
def test_threads_may_share_it(compression_type: str) -> None:
    compression = compression_of(compression_type=compression_type)
    expected = compression.encode(BATCH)[0]
    start = threading.Barrier(4)
    wrong: list[object] = []

    def encode() -> None:
        start.wait()
        for _ in range(50):
            try:
                if compression.encode(BATCH)[0] != expected:
                    wrong.append("other bytes")
            except Exception as error:
                wrong.append(error)

    threads = [threading.Thread(target=encode) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
