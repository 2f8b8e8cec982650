from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bus.client.config.clients import ProducerConfig
from bus.client.config.parsing import parse_config
from bus.client.producer.batch import RecordBatchBuilder, RowChunk
from bus.client.producer.connections import Request
from bus.client.producer.future import BatchFuture, RunChunk
from bus.client.producer.queue import Part, PartitionQueue
from bus.client.producer.threads import PartEncoder, batch_of_rows
from bus.grpc_api.v1 import bus_pb2 as pb
from bus.grpc_api.wire_fields import encode_varint
from bus.model import ProducerStamp, TopicPartition
from bus.records.arrow_batches import decode_arrow, decode_records

Row = tuple[bytes | None, bytes | None, list[tuple[str, bytes | None]] | None, int]  # key, value, headers, time


def encoder_of(**configs: Any) -> PartEncoder:
    return PartEncoder(parse_config(ProducerConfig, configs))


def chunk_of(*records: Row) -> RowChunk:
    batch = RecordBatchBuilder("t", limit_bytes=2**30, due_at_ms=0.0, deadline_ms=9.0)
    for key, value, headers, time_ms in records:
        batch.add(value, key, headers, None, time_ms, 1)
    return batch.close_whole(0)[0][1]


def run_of(payload: bytes, *, codec: int = 0, timestamp_ms: int | None = None) -> RunChunk:
    return RunChunk(
        BatchFuture(1),
        0,
        (payload, codec, 2 * len(payload)),
        partition=TopicPartition("t", 0),
        record_count=1,
        size_bytes=len(payload),
        timestamp_ms=timestamp_ms,
        deadline_ms=9.0,
    )


def part_of(chunks: list[Any], *, topic: str = "t", partition: int = 0, stamp: ProducerStamp | None = None) -> Part:
    queue = PartitionQueue(topic, partition)
    queue.topic_id = f"id of {topic}"
    part = Part(queue, chunks, (1,))
    part.stamp = stamp
    return part


def parsed(encoder: PartEncoder, *parts: Part, correlation_id: int = 1) -> pb.ProduceRequest:
    return pb.ProduceRequest.FromString(encoder.encode(Request(correlation_id, list(parts), 0.0, 0.0)))


STAMPS = st.builds(ProducerStamp, st.integers(0, 2**63 - 1), st.integers(0, 2**15 - 1), st.integers(0, 2**31 - 1))


@settings(deadline=None)
@given(
    st.integers(0, 2**63 - 1),
    st.sampled_from([-1, 0, 1]),
    st.lists(
        st.tuples(
            st.text(max_size=9),
            st.integers(0, 2**31 - 1),
            st.binary(max_size=300),
            st.none() | st.just(7),
            st.none() | STAMPS,
            st.sampled_from([pb.PAYLOAD_CODEC_NONE, pb.PAYLOAD_CODEC_GZIP, pb.PAYLOAD_CODEC_SNAPPY]),
        )
    ),
)
def test_request_is_what_the_generated_code_would_write(
    correlation_id: int, acks: int, shares: list[tuple[str, int, bytes, int | None, ProducerStamp | None, Any]]
) -> None:
    parts = [
        part_of([run_of(data, codec=codec, timestamp_ms=at)], topic=topic, partition=partition, stamp=stamp)
        for topic, partition, data, at, stamp, codec in shares
    ]
    expected = pb.ProduceRequest(correlation_id=correlation_id, acks=acks, timeout_ms=4_321)
    for topic, partition, data, at, stamp, codec in shares:
        share = expected.partitions.add(
            topic=topic, partition=partition, topic_id=f"id of {topic}", arrow=data, timestamp_ms=at, codec=codec
        )
        if codec:
            share.uncompressed_bytes = 2 * len(data)
        if stamp is not None:
            share.producer_id, share.producer_epoch = stamp.producer_id, stamp.producer_epoch
            share.base_sequence = stamp.base_sequence
    found = parsed(encoder_of(acks=acks, request_timeout_ms=4_321), *parts, correlation_id=correlation_id)
    assert found == expected


@pytest.mark.parametrize("value", [0, 1, 127, 128, 300, 2**32, 2**63 - 1])
def test_varint_is_protobufs(value: int) -> None:
    message = pb.FetchPartition(fetch_offset=value).SerializeToString()
    assert message == (b"" if value == 0 else b"\x20" + encode_varint(value))


def test_absent_stamp_is_not_producer_zero() -> None:
    without = parsed(encoder_of(), part_of([run_of(b"x")])).partitions[0]
    with_zero = parsed(encoder_of(), part_of([run_of(b"x")], stamp=ProducerStamp(0, 0, 0))).partitions[0]
    assert not without.HasField("producer_id")
    assert with_zero.HasField("producer_id")


@pytest.mark.parametrize("compression", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_records_are_read_back_whatever_their_compression(compression: str) -> None:
    values: list[bytes | None] = [b"value" * 100] * 50
    part = part_of([chunk_of(*((None, value, None, 5) for value in values))])
    share = parsed(encoder_of(compression_type=compression), part).partitions[0]
    arrow = share.arrow
    if share.codec:
        name = {pb.PAYLOAD_CODEC_GZIP: "gzip", pb.PAYLOAD_CODEC_SNAPPY: "snappy"}[share.codec]
        arrow = pa.Codec(name).decompress(arrow, share.uncompressed_bytes, asbytes=True)
    assert decode_arrow(arrow).column("value").to_pylist() == values
    assert (len(share.arrow) < 25_000) == (compression != "none")
    assert (share.codec != pb.PAYLOAD_CODEC_NONE) == (compression in ("gzip", "snappy"))


def test_part_is_encoded_once_however_often_it_is_sent() -> None:
    encoder = encoder_of()
    part = part_of([chunk_of((None, b"a", None, 5))], stamp=ProducerStamp(1, 0, 0))
    first = parsed(encoder, part).partitions[0]
    payload = part.payload
    part.stamp = ProducerStamp(1, 1, 9)
    again = parsed(encoder, part).partitions[0]
    assert part.payload is payload
    assert (again.arrow, again.timestamp_ms) == (first.arrow, 5)
    assert (again.producer_epoch, again.base_sequence) == (1, 9), "the stamp is no part of what was encoded"


def test_part_of_which_records_were_refused_is_encoded_without_them() -> None:
    encoder = encoder_of()
    chunk = chunk_of((b"k0", b"0", None, 5), (None, b"1", [("h", b"1")], 6), (b"k2", b"2", [("h", b"2")], 7))
    part = part_of([chunk])
    parsed(encoder, part)
    chunk.refuse_records({1: None})  # type: ignore[dict-item]
    part.payload = None
    found = decode_arrow(parsed(encoder, part).partitions[0].arrow).to_pydict()
    assert (found["value"], found["key"]) == ([b"0", b"2"], [b"k0", b"k2"])
    assert found["headers"] == [[], [{"key": "h", "value": b"2"}]]


# ---------------------------------------------------------------- rows to columns


def test_rows_become_the_smallest_batch_that_holds_them() -> None:
    batch, timestamp_ms = batch_of_rows([chunk_of((None, b"a", None, 5), (None, None, None, 5))])
    assert (batch.schema.names, timestamp_ms) == (["value"], 5)


def test_rows_keep_keys_headers_and_their_own_timestamps() -> None:
    chunk = chunk_of((b"k", b"v", [("h", b"1"), ("h", None)], 1_700_000_000_001), (None, b"", None, 1_700_000_000_002))
    payload, _, _ = encoder_of().pack(batch_of_rows([chunk])[0])
    checked = decode_records(bytes(payload), default_timestamp_ms=0)
    assert (checked.timestamp_min_ms, checked.timestamp_max_ms) == (1_700_000_000_001, 1_700_000_000_002)
    columns = checked.columns.to_pydict()
    assert columns["key"] == [b"k", None]
    assert columns["value"] == [b"v", b""]
    assert columns["headers"][0] == [{"key": "h", "value": b"1"}, {"key": "h", "value": None}]
    assert not columns["headers"][1]


BYTES = st.none() | st.binary(max_size=5)
HEADERS = st.none() | st.lists(st.tuples(st.text(max_size=3), BYTES), min_size=1, max_size=2)
TIMES = st.sampled_from([0, 5, 1_700_000_000_123, (2**63 - 1) // 1000])
ROWS = st.lists(st.tuples(st.none() | st.binary(max_size=3), BYTES, HEADERS, TIMES), min_size=1, max_size=6)


@settings(deadline=None)
@given(st.lists(st.tuples(ROWS, st.booleans()), min_size=1, max_size=4))
def test_chunks_of_any_shape_join_into_exactly_their_records(shapes: list[tuple[list[Row], bool]]) -> None:
    chunks = []
    for records, is_split in shapes:
        chunks.append(chunk_of(*records))
        if is_split:
            chunks[-1].to_arrow()  # as a chunk is that shared its batch with others
    batch, timestamp_ms = batch_of_rows(chunks)
    expected = [record for records, _ in shapes for record in records]
    found = {name: batch.column(name).to_pylist() for name in batch.schema.names if name != "timestamp"}
    count = len(expected)
    assert batch.num_rows == count
    assert found["value"] == [value for _, value, _, _ in expected]
    assert found.get("key", [None] * count) == [key for key, _, _, _ in expected]
    headers = [[(entry["key"], entry["value"]) for entry in row] for row in found.get("headers", [[]] * count)]
    assert headers == [row or [] for _, _, row, _ in expected]
    times = [timestamp_ms] * count
    if timestamp_ms is None:
        times = [time // 1000 for time in batch.column("timestamp").cast(pa.int64()).to_pylist()]
    assert times == [time for _, _, _, time in expected]
