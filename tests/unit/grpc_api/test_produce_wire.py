from __future__ import annotations

import pytest
from google.protobuf.message import DecodeError
from hypothesis import given
from hypothesis import strategies as st

from bus.grpc_api.server.records.produce_decoding import ProduceCall, parse_call
from bus.grpc_api.v1 import bus_pb2 as pb

BIG = bytes(range(256)) * 256


def whole(call: ProduceCall) -> pb.ProduceRequest:
    """The call with every payload put back where it was."""
    message = pb.ProduceRequest()
    message.CopyFrom(call.message)
    for index, partition in enumerate(message.partitions):
        payload = call.payload(index)
        if payload is not None:
            partition.arrow = bytes(payload)
    return message


def test_a_large_payload_is_a_view_of_the_request() -> None:
    request = pb.ProduceRequest(
        acks=1, partitions=[pb.PartitionProduceData(topic="t", partition=3, arrow=BIG, timestamp_ms=7)]
    )
    raw = request.SerializeToString()
    call = parse_call(raw)
    payload = call.payload(0)
    assert isinstance(payload, memoryview)
    assert payload.obj is raw
    assert call.size_bytes == len(raw)
    assert call.message.partitions[0].arrow == b""
    assert whole(call) == request


def test_a_payload_that_is_little_of_its_request_does_not_keep_it_alive() -> None:
    partitions = [pb.PartitionProduceData(topic="t", arrow=arrow) for arrow in (BIG, b"few", BIG)]
    request = pb.ProduceRequest(partitions=partitions)
    call = parse_call(request.SerializeToString())
    assert call.payload(1) == b"few"
    assert isinstance(call.payload(1), bytes)
    assert whole(call) == request


def test_a_small_request_is_left_to_the_generated_code() -> None:
    request = pb.ProduceRequest(partitions=[pb.PartitionProduceData(topic="t", arrow=b"few")])
    call = parse_call(request.SerializeToString())
    assert call.payload(0) is None
    assert call.message == request


def test_the_last_payload_of_a_partition_counts() -> None:
    arrow = pb.PartitionProduceData(topic="t", arrow=BIG).SerializeToString()
    records = pb.PartitionProduceData(records=pb.RecordList(records=[pb.Record(value=b"v")])).SerializeToString()
    for partition in (arrow + records, records + arrow, arrow + arrow):
        length = bytearray()
        size = len(partition)
        while size > 0x7F:
            length.append(size & 0x7F | 0x80)
            size >>= 7
        raw = b"\x22" + bytes([*length, size]) + partition
        assert whole(parse_call(raw)) == pb.ProduceRequest.FromString(raw)


@given(st.binary(max_size=40), st.integers(0, 120), st.data())
def test_whatever_arrives_means_what_the_generated_code_takes_it_for(
    noise: bytes, at: int, data: st.DataObject
) -> None:
    partitions = data.draw(
        st.lists(
            st.builds(
                pb.PartitionProduceData,
                topic=st.text(max_size=3),
                partition=st.integers(-1, 9),
                arrow=st.one_of(st.just(BIG), st.binary(max_size=9)),
            ),
            max_size=3,
        )
    )
    raw = pb.ProduceRequest(correlation_id=5, acks=-1, partitions=partitions).SerializeToString()
    raw = raw[:at] + noise + raw[at:]
    try:
        expected = pb.ProduceRequest.FromString(raw)
    except DecodeError:
        with pytest.raises(DecodeError):
            parse_call(raw)
    else:
        assert whole(parse_call(raw)) == expected
