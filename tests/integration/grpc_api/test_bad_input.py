"""Bad input of every kind gets its named error, leaves nothing behind, and the broker goes on."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import grpc
import pyarrow as pa
import pytest

from bus.arrow_batches import encode_arrow
from bus.broker import Broker
from bus.grpc_api.v1 import bus_pb2 as pb
from bus.grpc_api.v1 import bus_pb2_grpc
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
    answer = stub.FetchOnce(pb.FetchRequest(max_wait_ms=50_000, min_bytes=1, partitions=[asked]), timeout=10)
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
