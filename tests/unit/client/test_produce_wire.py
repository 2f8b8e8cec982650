from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bus.arrow_batches import decode_arrow, decode_records, encode_arrow_buffer
from bus.client.produce_wire import Row, batch_of_rows, encode_partition, encode_request, varint
from bus.grpc_api.v1 import bus_pb2 as pb


@given(
    st.integers(0, 2**63 - 1),
    st.sampled_from([-1, 0, 1]),
    st.lists(
        st.tuples(st.text(max_size=9), st.integers(0, 2**31 - 1), st.binary(max_size=300), st.none() | st.just(7))
    ),
)
def test_framed_request_is_what_the_generated_code_would_write(
    correlation_id: int, acks: int, shares: list[tuple[str, int, bytes, int | None]]
) -> None:
    framed = encode_request(
        correlation_id=correlation_id,
        acks=acks,
        timeout_ms=30_000,
        partitions=[
            encode_partition(
                pb.PartitionProduceData(topic=topic, partition=partition, topic_id="id").SerializeToString(), data, at
            )
            for topic, partition, data, at in shares
        ],
    )
    expected = pb.ProduceRequest(
        correlation_id=correlation_id,
        acks=acks,
        timeout_ms=30_000,
        partitions=[
            pb.PartitionProduceData(topic=topic, partition=partition, topic_id="id", arrow=data, timestamp_ms=at)
            for topic, partition, data, at in shares
        ],
    )
    assert pb.ProduceRequest.FromString(framed) == expected


@pytest.mark.parametrize("value", [0, 1, 127, 128, 300, 2**32, 2**63 - 1])
def test_varint_is_protobufs(value: int) -> None:
    message = pb.FetchPartition(fetch_offset=value).SerializeToString()
    assert message == (b"" if value == 0 else b"\x20" + varint(value))


@pytest.mark.parametrize("compression", ["none", "lz4", "zstd"])
def test_payload_is_read_back_whatever_its_compression(compression: str) -> None:
    batch = pa.RecordBatch.from_arrays([pa.array([b"value" * 100] * 50)], names=["value"])
    payload = encode_arrow_buffer(batch, compression)
    assert decode_arrow(bytes(payload)).equals(batch)
    assert (len(payload) < batch.nbytes) == (compression != "none")


def test_rows_become_the_smallest_batch_that_holds_them() -> None:
    batch, timestamp_ms = batch_of_rows([(None, b"a", None, 5), (None, None, None, 5)])
    assert (batch.schema.names, timestamp_ms) == (["value"], 5)


def test_rows_keep_keys_headers_and_their_own_timestamps() -> None:
    rows: list[Row] = [
        (b"k", b"v", [("h", b"1"), ("h", None)], 1_700_000_000_001),
        (None, b"", None, 1_700_000_000_002),
    ]
    batch, timestamp_ms = batch_of_rows(rows)
    assert timestamp_ms is None
    checked = decode_records(bytes(encode_arrow_buffer(batch, "none")), default_timestamp_ms=0)
    assert (checked.timestamp_min_ms, checked.timestamp_max_ms) == (1_700_000_000_001, 1_700_000_000_002)
    columns = checked.columns.to_pydict()
    assert columns["key"] == [b"k", None]
    assert columns["value"] == [b"v", b""]
    assert columns["headers"][0] == [{"key": "h", "value": b"1"}, {"key": "h", "value": None}]
    assert not columns["headers"][1]
