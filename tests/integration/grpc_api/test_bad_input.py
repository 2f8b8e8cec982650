"""Bad input of every kind gets its named error, leaves nothing behind, and the broker goes on."""

from __future__ import annotations

import struct
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pyarrow as pa
import pytest

from bus.broker import Broker
from bus.grpc_api.v1 import bus_pb2 as pb
from bus.grpc_api.v1 import bus_pb2_grpc
from bus.records.arrow_batches import encode_arrow
from bus.settings.broker import BrokerConfig
from tests.support.broker_thread import running_broker

HOUR_MS = 3_600_000


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    with running_broker(tmp_path_factory.mktemp("bus") / "root") as broker:
        yield broker


@pytest.fixture(scope="module")
def stub(broker: Broker) -> Iterator[bus_pb2_grpc.BusStub]:
    with grpc.insecure_channel(f"127.0.0.1:{broker.port}", options=[("grpc.max_send_message_length", -1)]) as channel:
        stub = bus_pb2_grpc.BusStub(channel)
        stub.CreateTopics(
            pb.CreateTopicsRequest(topics=[pb.NewTopic(name="t", partitions=2, configs={"max.message.bytes": "2000"})])
        )
        yield stub


def arrow(**columns: pa.Array) -> bytes:
    return encode_arrow(pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns)))


GOOD = arrow(value=pa.array([b"good"]))


def produce(stub: bus_pb2_grpc.BusStub, *, acks: int | None = None, **data: object) -> pb.PartitionProduceResponse:
    fields = {"topic": "t", "partition": 0, "arrow": GOOD, **data}
    if "records" in data:
        del fields["arrow"]
    request = pb.ProduceRequest(partitions=[pb.PartitionProduceData(**fields)])  # type: ignore[arg-type]
    if acks is not None:
        request.acks = acks
    return stub.ProduceOnce(request).partitions[0]  # type: ignore[no-any-return]


def end_offset(stub: bus_pb2_grpc.BusStub) -> int:
    asked = pb.ListOffsetsPartition(topic="t", partition=0, timestamp_ms=-1)
    return stub.ListOffsets(pb.ListOffsetsRequest(partitions=[asked])).partitions[0].offset  # type: ignore[no-any-return]


def forge_size(payload: bytes, size: int, forged: int) -> bytes:
    """`payload` with a buffer that claims another size than it has."""
    place = payload.rindex(struct.pack("<q", size))
    return payload[:place] + struct.pack("<q", forged) + payload[place + 8 :]


def packed(batch: pa.RecordBatch, codec: str) -> dict[str, object]:
    """Produce fields of a payload that is compressed as a whole."""
    plain = encode_arrow(batch)
    number = {"gzip": pb.PAYLOAD_CODEC_GZIP, "snappy": pb.PAYLOAD_CODEC_SNAPPY}[codec]
    return {"arrow": pa.Codec(codec).compress(plain, asbytes=True), "codec": number, "uncompressed_bytes": len(plain)}


FORGED = forge_size(
    encode_arrow(pa.RecordBatch.from_arrays([pa.array([b"x" * 900])], names=["value"]), "lz4"), 900, 1 << 40
)
# A few kilobytes on the wire.
BOMB = encode_arrow(pa.RecordBatch.from_arrays([pa.array([b"x" * 1_000_000] * 110)], names=["value"]), "zstd")
ZSTD = encode_arrow(pa.RecordBatch.from_arrays([pa.array([b"x" * 900] * 4)], names=["value"]), "zstd")


@pytest.mark.parametrize(
    ("data", "error"),
    [
        ({"topic": "nowhere"}, "UNKNOWN_TOPIC_OR_PARTITION"),
        ({"partition": 2}, "UNKNOWN_TOPIC_OR_PARTITION"),
        ({"partition": -1}, "UNKNOWN_TOPIC_OR_PARTITION"),
        ({"topic_id": "another"}, "INCONSISTENT_TOPIC_ID"),
        ({"current_leader_epoch": -1}, "FENCED_LEADER_EPOCH"),
        ({"current_leader_epoch": 99}, "UNKNOWN_LEADER_EPOCH"),
        ({"acks": 7}, "INVALID_REQUIRED_ACKS"),
        ({"arrow": b""}, "INVALID_RECORD"),
        ({"arrow": b"garbage"}, "INVALID_RECORD"),
        ({"arrow": ZSTD[:-40] + bytes(40)}, "INVALID_RECORD"),
        ({"arrow": arrow(key=pa.array([b"k"]))}, "INVALID_RECORD"),
        ({"arrow": arrow(value=pa.array([1, 2]))}, "INVALID_RECORD"),
        ({"arrow": arrow(value=pa.array([b"v"]), offset=pa.array([0]))}, "INVALID_RECORD"),
        ({"arrow": arrow(value=pa.array([], pa.binary()))}, "INVALID_RECORD"),
        ({"records": pb.RecordList()}, "INVALID_RECORD"),
        ({"arrow": arrow(value=pa.array([b"x" * 2001]))}, "MESSAGE_TOO_LARGE"),
        ({"timestamp_ms": int(time.time() * 1000) + 2 * HOUR_MS}, "INVALID_TIMESTAMP"),
        ({"timestamp_ms": -5}, "INVALID_TIMESTAMP"),
        ({"topic": "__cluster_metadata"}, "UNKNOWN_TOPIC_OR_PARTITION"),
        ({"producer_id": -1}, "INVALID_REQUEST"),
        ({"producer_id": 0, "producer_epoch": -1}, "INVALID_REQUEST"),
        ({"producer_id": 0, "producer_epoch": 32_768}, "INVALID_REQUEST"),
        ({"producer_id": 0, "base_sequence": -1}, "INVALID_REQUEST"),
        ({"producer_id": 0, "acks": 0}, "INVALID_REQUEST"),
        ({"producer_epoch": 1}, "INVALID_REQUEST"),
        ({"base_sequence": 1}, "INVALID_REQUEST"),
        ({"producer_id": 1 << 40}, "INVALID_PRODUCER_ID_MAPPING"),
        ({"codec": 9}, "UNSUPPORTED_COMPRESSION_TYPE"),
        ({"codec": pb.PAYLOAD_CODEC_GZIP}, "INVALID_REQUEST"),
        ({"uncompressed_bytes": 5}, "INVALID_REQUEST"),
        ({"codec": pb.PAYLOAD_CODEC_GZIP, "uncompressed_bytes": 5, "records": pb.RecordList()}, "INVALID_REQUEST"),
        ({"codec": pb.PAYLOAD_CODEC_GZIP, "uncompressed_bytes": 2_000_000_000}, "MESSAGE_TOO_LARGE"),
        ({"codec": pb.PAYLOAD_CODEC_GZIP, "uncompressed_bytes": len(GOOD)}, "INVALID_RECORD"),
        ({"codec": pb.PAYLOAD_CODEC_SNAPPY, "uncompressed_bytes": len(GOOD)}, "INVALID_RECORD"),
        ({"arrow": FORGED}, "MESSAGE_TOO_LARGE"),
        ({"arrow": BOMB}, "MESSAGE_TOO_LARGE"),
        ({"arrow": arrow(value=pa.nulls(500_000_000))}, "MESSAGE_TOO_LARGE"),
        ({"arrow": arrow(value=pa.array([b"v"]).dictionary_encode())}, "INVALID_RECORD"),
        ({"arrow": arrow(value=pa.array([b"v"], pa.binary_view()))}, "INVALID_RECORD"),
    ],
)
def test_bad_batch_is_refused_by_name_and_leaves_nothing(
    stub: bus_pb2_grpc.BusStub, data: dict[str, object], error: str
) -> None:
    before = end_offset(stub)
    answer = produce(stub, **data)  # type: ignore[arg-type]
    assert pb.ErrorCode.Name(answer.error_code) == f"ERROR_CODE_{error}", answer
    assert answer.error_message
    assert (answer.base_offset, answer.version) == (-1, -1)
    assert end_offset(stub) == before
    assert produce(stub).base_offset == before


@pytest.mark.parametrize("codec", ["gzip", "snappy"])
@pytest.mark.parametrize("count", [1, 500])  # unpacked on the loop, and in a thread
def test_payload_that_is_compressed_as_a_whole_is_taken(stub: bus_pb2_grpc.BusStub, codec: str, count: int) -> None:
    values = [b"%d " % number * 200 for number in range(count)]
    before = end_offset(stub)
    sent = packed(pa.RecordBatch.from_arrays([pa.array(values)], names=["value"]), codec)
    assert produce(stub, **sent).base_offset == before  # type: ignore[arg-type]
    asked = pb.FetchPartition(topic="t", partition=0, fetch_offset=before, partition_max_bytes=10_000_000)
    found = stub.FetchOnce(pb.FetchRequest(format=pb.RECORD_FORMAT_RECORDS, partitions=[asked])).partitions[0]
    assert [record.value for record in found.records.records] == values


def test_compressed_requests_of_a_stream_keep_their_order(stub: bus_pb2_grpc.BusStub) -> None:
    before = end_offset(stub)
    large = packed(pa.RecordBatch.from_arrays([pa.array([b"large" * 100] * 1000)], names=["value"]), "gzip")
    requests = []
    for number in range(6):
        payload = large if number % 2 == 0 else {"arrow": GOOD}
        data = pb.PartitionProduceData(topic="t", partition=0, **payload)  # type: ignore[arg-type]
        requests.append(pb.ProduceRequest(correlation_id=number, partitions=[data]))
    answers = list(stub.Produce(iter(requests)))
    assert [answer.correlation_id for answer in answers] == list(range(6))
    offsets = [answer.partitions[0].base_offset - before for answer in answers]
    assert offsets == [0, 1000, 1001, 2001, 2002, 3002]


def test_records_at_fault_are_named_if_the_others_would_be_taken(stub: bus_pb2_grpc.BusStub) -> None:
    before = end_offset(stub)
    late_ms = int(time.time() * 1000) + 2 * HOUR_MS
    records = [pb.Record(value=b"x" * size) for size in (10, 2001, 20, 5000)]
    records[2].timestamp_ms = late_ms
    refused = produce(stub, records=pb.RecordList(records=records))
    assert refused.error_code == pb.ERROR_CODE_MESSAGE_TOO_LARGE
    assert [fault.index for fault in refused.record_errors] == [1, 2, 3]
    assert refused.record_errors[0].message == "expected at most 2000 bytes (max.message.bytes), found 2001"
    assert refused.record_errors[1].message.endswith(f"found {late_ms}")
    assert end_offset(stub) == before
    assert produce(stub, records=pb.RecordList(records=records[:1])).base_offset == before
    mistimed = produce(stub, records=pb.RecordList(records=[records[0], records[2]]))
    assert mistimed.error_code == pb.ERROR_CODE_INVALID_TIMESTAMP
    assert [fault.index for fault in mistimed.record_errors] == [1]
    alone = produce(stub, records=pb.RecordList(records=records[1:2]))
    assert alone.error_code == pb.ERROR_CODE_MESSAGE_TOO_LARGE
    assert not alone.record_errors


def test_full_queue_says_how_long_to_wait(tmp_path: Path) -> None:
    config = BrokerConfig(queued_max_bytes=1)
    batch = arrow(value=pa.array([b"x" * 1000] * 500))
    with (
        running_broker(tmp_path / "root", config=config) as broker,
        grpc.insecure_channel(f"127.0.0.1:{broker.port}") as channel,
    ):
        stub = bus_pb2_grpc.BusStub(channel)
        stub.CreateTopics(pb.CreateTopicsRequest(topics=[pb.NewTopic(name="t", partitions=1)]))
        # The first of them is queued, so there is no room for the others of the same request.
        data = [pb.PartitionProduceData(topic="t", partition=0, arrow=batch)] * 3
        for _ in range(2):
            answer = stub.ProduceOnce(pb.ProduceRequest(partitions=data))
            assert [found.error_code for found in answer.partitions] == [0, 89, 89]
            assert 10 <= answer.throttle_time_ms <= 1000
        assert stub.ProduceOnce(pb.ProduceRequest(partitions=data[:1])).throttle_time_ms == 0


def test_one_bad_partition_does_not_harm_the_others_of_its_request(stub: bus_pb2_grpc.BusStub) -> None:
    before = end_offset(stub)
    bad = pb.PartitionProduceData(topic="t", partition=1, arrow=b"garbage")
    good = pb.PartitionProduceData(topic="t", partition=0, arrow=GOOD)
    answers = stub.ProduceOnce(pb.ProduceRequest(partitions=[bad, good, bad])).partitions
    assert [answer.error_code for answer in answers] == [87, 0, 87]
    assert answers[1].base_offset == before


@pytest.mark.parametrize(
    ("position", "error"),
    [
        ({"topic": "nowhere"}, "UNKNOWN_TOPIC_OR_PARTITION"),
        ({"partition": 9}, "UNKNOWN_TOPIC_OR_PARTITION"),
        ({"fetch_offset": -1}, "OFFSET_OUT_OF_RANGE"),
        ({"fetch_offset": 1 << 60}, "OFFSET_OUT_OF_RANGE"),
        ({"current_leader_epoch": 99}, "UNKNOWN_LEADER_EPOCH"),
        ({"topic_id": "another"}, "INCONSISTENT_TOPIC_ID"),
    ],
)
def test_bad_fetch_is_answered_at_once(stub: bus_pb2_grpc.BusStub, position: dict[str, object], error: str) -> None:
    asked = pb.FetchPartition(**{"topic": "t", "partition": 1, "fetch_offset": 0, **position})  # type: ignore[arg-type]
    answer = stub.FetchOnce(pb.FetchRequest(max_wait_ms=50_000, min_bytes=1, partitions=[asked]), timeout=40)
    assert pb.ErrorCode.Name(answer.partitions[0].error_code) == f"ERROR_CODE_{error}"


def test_unknown_column_of_a_fetch_is_named(stub: bus_pb2_grpc.BusStub) -> None:
    asked = pb.FetchPartition(topic="t", partition=1)
    answer = stub.FetchOnce(pb.FetchRequest(columns=["colour"], partitions=[asked])).partitions[0]
    assert answer.error_message.endswith("found colour")


@pytest.mark.parametrize(
    ("topic", "error"),
    [
        (pb.NewTopic(name="t", partitions=1), "TOPIC_ALREADY_EXISTS"),
        (pb.NewTopic(name="", partitions=1), "INVALID_TOPIC_EXCEPTION"),
        (pb.NewTopic(name="a/b", partitions=1), "INVALID_TOPIC_EXCEPTION"),
        (pb.NewTopic(name="..", partitions=1), "INVALID_TOPIC_EXCEPTION"),
        (pb.NewTopic(name="x" * 250, partitions=1), "INVALID_TOPIC_EXCEPTION"),
        (pb.NewTopic(name="__mine", partitions=1), "INVALID_TOPIC_EXCEPTION"),
        (pb.NewTopic(name="n", partitions=-7), "INVALID_PARTITIONS"),
        (pb.NewTopic(name="n", partitions=1_000_000), "INVALID_PARTITIONS"),
        (pb.NewTopic(name="n", partitions=1, configs={"retention.millis": "1"}), "INVALID_CONFIG"),
        (pb.NewTopic(name="n", partitions=1, configs={"retention.ms": "soon"}), "INVALID_CONFIG"),
    ],
)
def test_bad_topic_is_refused_and_not_created(
    stub: bus_pb2_grpc.BusStub, broker: Broker, topic: pb.NewTopic, error: str
) -> None:
    answer = stub.CreateTopics(pb.CreateTopicsRequest(topics=[topic])).topics[0]
    assert pb.ErrorCode.Name(answer.error_code) == f"ERROR_CODE_{error}"
    assert answer.error_message
    assert [found.name for found in stub.Metadata(pb.MetadataRequest()).topics] == ["t"]
    folders = sorted(path.name for path in (Path(broker.cluster.storage.root_url) / "topics").iterdir())
    assert folders == ["__cluster_metadata", "t"]


def test_fewer_partitions_unknown_configs_and_broker_configs_are_refused(stub: bus_pb2_grpc.BusStub) -> None:
    fewer = stub.CreatePartitions(pb.CreatePartitionsRequest(topics=[pb.NewPartitions(name="t", partitions=1)]))
    assert fewer.topics[0].error_code == pb.ERROR_CODE_INVALID_PARTITIONS
    for resource, name in (
        (pb.ConfigResource(type=pb.RESOURCE_TYPE_TOPIC, name="t"), "no.such"),
        (pb.ConfigResource(type=pb.RESOURCE_TYPE_BROKER, name=""), "listen"),
    ):
        change = pb.AlterConfigsResource(resource=resource, operations=[pb.AlterConfigOp(name=name, value="1")])
        answer = stub.AlterConfigs(pb.AlterConfigsRequest(resources=[change])).resources[0]
        assert answer.error_code in (pb.ERROR_CODE_INVALID_CONFIG, pb.ERROR_CODE_INVALID_REQUEST)
        assert answer.error_message


def test_enum_that_does_not_exist_is_an_invalid_argument(stub: bus_pb2_grpc.BusStub) -> None:
    change = pb.AlterConfigsResource(
        resource=pb.ConfigResource(name="t"),
        operations=[pb.AlterConfigOp(name="retention.ms", operation=9, value="1")],  # type: ignore[arg-type]
    )
    with pytest.raises(grpc.RpcError) as caught:
        stub.AlterConfigs(pb.AlterConfigsRequest(resources=[change]))
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT


BAD_BYTES = b"\xff\xff\xff no message"
STREAMS = ("Produce", "Fetch", "GroupSession")


def call_with(channel: grpc.Channel, method: str, requests: list[bytes]) -> Iterator[bytes]:
    path = f"/bus.v1.Bus/{method}"
    if method in STREAMS:
        yield from channel.stream_stream(path)(iter(requests), timeout=20)
    elif method == "MaintainLog":
        yield from channel.unary_stream(path)(requests[0], timeout=20)
    else:
        yield channel.unary_unary(path)(requests[0], timeout=20)


@pytest.mark.parametrize("method", [method.name for method in pb.DESCRIPTOR.services_by_name["Bus"].methods])
def test_bytes_that_are_no_message_are_an_invalid_argument(
    broker: Broker, method: str, caplog: pytest.LogCaptureFixture
) -> None:
    with (
        grpc.insecure_channel(f"127.0.0.1:{broker.port}") as channel,
        pytest.raises(grpc.RpcError) as caught,
    ):
        list(call_with(channel, method, [BAD_BYTES]))
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert "bytes that are none" in caught.value.details()
    assert not [record for record in caplog.records if record.exc_info], "no traceback for what a client sends"


@pytest.mark.parametrize("path", ["/bus.v1.Bus/ListViews", "/bus.v1.Bus/MaintainLog", "/grpc.health.v1.Health/Check"])
def test_a_call_that_ends_without_its_request_is_an_invalid_argument(broker: Broker, path: str) -> None:
    with grpc.insecure_channel(f"127.0.0.1:{broker.port}") as channel:
        call = channel.stream_stream(path)(iter(()), timeout=20)
        assert call.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert "found the end of the call" in call.details()


@pytest.mark.parametrize("method", STREAMS)
def test_stream_answers_what_came_before_a_request_that_cannot_be_read(broker: Broker, method: str) -> None:
    requests: dict[str, Any] = {
        "Produce": pb.ProduceRequest(partitions=[pb.PartitionProduceData(topic="t", arrow=GOOD)]),
        "Fetch": pb.FetchRequest(partitions=[pb.FetchPartition(topic="t")]),
        "GroupSession": pb.GroupSessionRequest(correlation_id=1, heartbeat=pb.HeartbeatRequest(group_id="g")),
    }
    good = requests[method].SerializeToString()
    with grpc.insecure_channel(f"127.0.0.1:{broker.port}") as channel:
        answers = call_with(channel, method, [good, good, BAD_BYTES, good])
        assert [type(next(answers)) for _ in range(2)] == [bytes, bytes]
        with pytest.raises(grpc.RpcError) as caught:
            next(answers)
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT


@pytest.mark.parametrize("timestamp_ms", [2**63 - 1, 2**63 // 1000, 253_402_300_800_000, -(2**63)])
@pytest.mark.parametrize("kind", ["LogAppendTime", "CreateTime"])
def test_bad_partition_beside_a_good_one_fails_alone_whatever_is_wrong_with_it(
    stub: bus_pb2_grpc.BusStub, timestamp_ms: int, kind: str
) -> None:
    configs = {"message.timestamp.type": kind, "message.timestamp.after.max.ms": str(2**63 - 1)}
    stub.CreateTopics(pb.CreateTopicsRequest(topics=[pb.NewTopic(name="ends", configs=configs)]))
    try:
        before = end_offset(stub)
        plain = pb.RecordList(records=[pb.Record(value=b"v", timestamp_ms=timestamp_ms)])
        bad = [
            pb.PartitionProduceData(topic="ends", records=plain),
            pb.PartitionProduceData(topic="ends", arrow=GOOD, timestamp_ms=timestamp_ms),
        ]
        good = pb.PartitionProduceData(topic="t", arrow=GOOD)
        answers = stub.ProduceOnce(pb.ProduceRequest(partitions=[*bad, good])).partitions
        taken = (
            0 if kind == "LogAppendTime" and timestamp_ms == 253_402_300_800_000 else pb.ERROR_CODE_INVALID_TIMESTAMP
        )
        assert [answer.error_code for answer in answers] == [taken, taken, 0], answers
        assert end_offset(stub) == before + 1
    finally:
        stub.DeleteTopics(pb.DeleteTopicsRequest(topics=["ends"]))


def test_fetch_that_names_a_column_twice_is_refused_by_name(stub: bus_pb2_grpc.BusStub) -> None:
    asked = pb.FetchPartition(topic="t", partition=1)
    answer = stub.FetchOnce(pb.FetchRequest(columns=["key", "value", "key"], partitions=[asked])).partitions[0]
    assert answer.error_code == pb.ERROR_CODE_INVALID_REQUEST
    assert answer.error_message == "expected each column once, found key, value, key"


def test_request_beyond_the_limit_of_a_message_is_refused_by_the_transport(stub: bus_pb2_grpc.BusStub) -> None:
    with pytest.raises(grpc.RpcError) as caught:
        produce(stub, arrow=bytes(105_000_000))
    assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert produce(stub).error_code == 0


def test_cancelled_stream_leaves_whole_batches_and_no_halves(stub: bus_pb2_grpc.BusStub) -> None:
    count = 1000
    batch = arrow(value=pa.array([b"%d" % number for number in range(count)]))
    before = end_offset(stub)
    data = pb.PartitionProduceData(topic="t", partition=0, arrow=batch)
    call = stub.Produce(iter([pb.ProduceRequest(partitions=[data])] * 50))
    next(call)
    call.cancel()
    assert produce(stub).error_code == 0
    # What was taken before the cancellation is committed before the record that came after it.
    assert (end_offset(stub) - before - 1) % count == 0
