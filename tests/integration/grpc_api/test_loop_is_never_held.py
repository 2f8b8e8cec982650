"""No request below the limits holds the event loop: neither a hostile one nor a large one that is in good order."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import grpc
import pyarrow as pa
import pytest

from bus.broker import Broker
from bus.grpc_api.server.request_limits import ITEMS_MAX
from bus.grpc_api.v1 import bus_pb2 as pb
from bus.grpc_api.v1 import bus_pb2_grpc
from bus.records.arrow_batches import encode_arrow
from bus.settings.broker import BrokerConfig
from tests.support.broker_thread import running_broker
from tests.support.loop_watch import LoopWatch, watched_loops

HELD_S_MAX = 0.05
ATTEMPTS = 3  # code that holds the loop does so each time; what a busy machine adds to its time comes and goes
PARTITIONS = 20
COMMITS = 400  # of one record, in each partition


@pytest.fixture(scope="module")
def watch() -> Iterator[LoopWatch]:
    with watched_loops(processor_s_max=HELD_S_MAX, thread="broker") as watch:
        yield watch


@pytest.fixture(scope="module")
def broker(watch: LoopWatch, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    config = BrokerConfig(group_initial_rebalance_delay_ms=0)
    with running_broker(tmp_path_factory.mktemp("bus") / "root", config=config) as broker:
        yield broker


@pytest.fixture(scope="module")
def stub(broker: Broker) -> Iterator[bus_pb2_grpc.BusStub]:
    options = [("grpc.max_send_message_length", -1), ("grpc.max_receive_message_length", -1)]
    with grpc.insecure_channel(f"127.0.0.1:{broker.port}", options=options) as channel:
        stub = bus_pb2_grpc.BusStub(channel)
        topics = [pb.NewTopic(name="t", partitions=PARTITIONS), pb.NewTopic(name="one", partitions=1)]
        topics.append(pb.NewTopic(name="strict", partitions=1, configs={"cleanup.policy": "compact"}))
        stub.CreateTopics(pb.CreateTopicsRequest(topics=topics))
        one = encode_arrow(pa.record_batch({"value": pa.array([b"v" * 20])}))
        data = [pb.PartitionProduceData(topic="t", partition=number, arrow=one) for number in range(PARTITIONS)]
        for _ in stub.Produce(iter([pb.ProduceRequest(partitions=data)] * COMMITS)):
            pass
        yield stub


def arrow(array: pa.Array, codec: str = "none", topic: str = "one") -> pb.ProduceRequest:
    payload = encode_arrow(pa.RecordBatch.from_arrays([array], names=["value"]), codec)
    return pb.ProduceRequest(partitions=[pb.PartitionProduceData(topic=topic, arrow=payload)])


def shared_views(count: int) -> pa.Array:
    """Strings that all point to the same megabyte."""
    size = 1_000_000
    view = (size).to_bytes(4, "little") + b"xxxx" + (0).to_bytes(4, "little") + (0).to_bytes(4, "little")
    buffers = [None, pa.py_buffer(view * count), pa.py_buffer(b"x" * size)]
    return pa.Array.from_buffers(pa.string_view(), count, buffers)


def names(count: int) -> list[str]:
    return [f"n{number}" for number in range(count)]


PLAIN = pb.RecordList(records=[pb.Record(value=b"v", headers=[pb.Header(key="k")])] * 40_000)
MANY_HEADERS = pb.RecordList(records=[pb.Record(value=b"v", headers=[pb.Header(key="k", value=b"v")] * 99_000)])
TP = [pb.TopicPartitions(topic="t", partitions=range(ITEMS_MAX - 100))]
REQUESTS: dict[str, tuple[str, Callable[[], object]]] = {
    "one partition ten thousand times": (
        "FetchOnce",
        lambda: pb.FetchRequest(partitions=[pb.FetchPartition(topic="t")] * 10_000),
    ),
    "fetch of unknown partitions": (
        "FetchOnce",
        lambda: pb.FetchRequest(partitions=[pb.FetchPartition(topic="t", partition=p) for p in range(ITEMS_MAX)]),
    ),
    "many small batches": (
        "FetchOnce",
        lambda: pb.FetchRequest(partitions=[pb.FetchPartition(topic="t", partition=p) for p in range(PARTITIONS)]),
    ),
    "many small batches as plain records": (
        "FetchOnce",
        lambda: pb.FetchRequest(
            format=pb.RECORD_FORMAT_RECORDS,
            partitions=[pb.FetchPartition(topic="t", partition=p) for p in range(PARTITIONS)],
        ),
    ),
    "fetch of too many": (
        "FetchOnce",
        lambda: pb.FetchRequest(partitions=[pb.FetchPartition(topic="t", partition=p) for p in range(60_000)]),
    ),
    "produce to unknown partitions": (
        "ProduceOnce",
        lambda: pb.ProduceRequest(
            partitions=[pb.PartitionProduceData(topic="t", partition=100 + p, arrow=b"x") for p in range(ITEMS_MAX)]
        ),
    ),
    "produce to 300,000 partitions": (
        "ProduceOnce",
        lambda: pb.ProduceRequest(partitions=[pb.PartitionProduceData(topic="t")] * 300_000),
    ),
    "shared views": ("ProduceOnce", lambda: arrow(shared_views(100_000))),
    "empty records from zstd": ("ProduceOnce", lambda: arrow(pa.array([b""] * 3_000_000), "zstd")),
    "large batch in good order": ("ProduceOnce", lambda: arrow(pa.array([b"v" * 10] * 1_000_000))),
    "largest request": ("ProduceOnce", lambda: arrow(pa.array([b"v" * 1_000] * 16_500))),
    "largest request for an unknown topic": (
        "ProduceOnce",
        lambda: arrow(pa.array([b"v" * 1_000] * 16_500), topic="unknown"),
    ),
    "largest answer": (
        "FetchOnce",
        lambda: pb.FetchRequest(partitions=[pb.FetchPartition(topic="one", partition_max_bytes=64_000_000)]),
    ),
    "plain records": (
        "ProduceOnce",
        lambda: pb.ProduceRequest(partitions=[pb.PartitionProduceData(topic="one", records=PLAIN)]),
    ),
    "one record of many headers": (
        "ProduceOnce",
        lambda: pb.ProduceRequest(partitions=[pb.PartitionProduceData(topic="one", records=MANY_HEADERS)]),
    ),
    "large batch that is refused": ("ProduceOnce", lambda: arrow(pa.array([b"v"] * 2_000_000), topic="strict")),
    "names of topics": ("Metadata", lambda: pb.MetadataRequest(topics=names(ITEMS_MAX))),
    "one topic many times": ("Metadata", lambda: pb.MetadataRequest(topics=["t"] * ITEMS_MAX)),
    "configs": (
        "DescribeConfigs",
        lambda: pb.DescribeConfigsRequest(
            resources=[pb.ConfigResource(type=pb.RESOURCE_TYPE_TOPIC, name=name) for name in ["t"] * 999]
        ),
    ),
    "configs of 40,000": (
        "DescribeConfigs",
        lambda: pb.DescribeConfigsRequest(resources=[pb.ConfigResource()] * 40_000),
    ),
    "offsets": (
        "ListOffsets",
        lambda: pb.ListOffsetsRequest(
            partitions=[
                pb.ListOffsetsPartition(topic="t", partition=p % PARTITIONS, timestamp_ms=-1) for p in range(ITEMS_MAX)
            ]
        ),
    ),
    "deletions": (
        "DeleteRecords",
        lambda: pb.DeleteRecordsRequest(
            partitions=[pb.DeleteRecordsPartition(topic="t", partition=100 + p) for p in range(ITEMS_MAX)]
        ),
    ),
    "what all logs take": ("DescribeLogDirs", pb.DescribeLogDirsRequest),
    "what the logs of topics take": (
        "DescribeLogDirs",
        lambda: pb.DescribeLogDirsRequest(topics=[*names(ITEMS_MAX - 1), "t"]),
    ),
    "resumed producers": (
        "ResumeProducer",
        lambda: pb.ResumeProducerRequest(
            partitions=[pb.ResumeProducerPartition(topic="t", partition=100 + p) for p in range(ITEMS_MAX)]
        ),
    ),
    "topics that cannot be": (
        "CreateTopics",
        lambda: pb.CreateTopicsRequest(topics=[pb.NewTopic(name=f"a/{number}") for number in range(2_000)]),
    ),
    "topics that are not": ("DeleteTopics", lambda: pb.DeleteTopicsRequest(topics=names(1_000))),
    "partitions that cannot be": (
        "CreatePartitions",
        lambda: pb.CreatePartitionsRequest(topics=[pb.NewPartitions(name=name) for name in names(1_000)]),
    ),
    "leaders to elect": (
        "ElectLeaders",
        lambda: pb.ElectLeadersRequest(topics=[pb.TopicPartitions(topic="t", partitions=range(998))]),
    ),
    "replicas": (
        "AlterPartitionReassignments",
        lambda: pb.AlterPartitionReassignmentsRequest(
            partitions=[pb.PartitionReassignment(topic="t", partition=p, replica_ids=[0]) for p in range(1_000)]
        ),
    ),
    "replicas of one partition": (
        "AlterPartitionReassignments",
        lambda: pb.AlterPartitionReassignmentsRequest(
            partitions=[pb.PartitionReassignment(topic="t", replica_ids=range(1_999))]
        ),
    ),
    "groups": ("DescribeGroups", lambda: pb.DescribeGroupsRequest(group_ids=names(1_000))),
    "groups to delete": ("DeleteGroups", lambda: pb.DeleteGroupsRequest(group_ids=names(1_000))),
    "offsets of a group": (
        "OffsetFetch",
        lambda: pb.OffsetFetchRequest(groups=[pb.OffsetFetchGroup(group_id="g", topics=TP)]),
    ),
    "offsets to commit": (
        "OffsetCommit",
        lambda: pb.OffsetCommitRequest(
            group_id="g",
            generation=-1,
            partitions=[pb.OffsetCommitPartition(topic="t", partition=p % PARTITIONS) for p in range(ITEMS_MAX)],
        ),
    ),
    "offsets to forget": ("OffsetDelete", lambda: pb.OffsetDeleteRequest(group_id="g", topics=TP)),
    "users": ("DescribeUserScramCredentials", lambda: pb.DescribeUserScramCredentialsRequest(users=names(1_000))),
    "users to alter": (
        "AlterUserScramCredentials",
        lambda: pb.AlterUserScramCredentialsRequest(
            upsertions=[
                pb.ScramUpsertion(
                    user=name, mechanism="SCRAM-SHA-256", iterations=4096, salt=b"12345678", salted_password=b"p" * 32
                )
                for name in names(1_000)
            ]
        ),
    ),
    "empty fields": ("OffsetFetch", lambda: pb.OffsetFetchRequest(groups=[pb.OffsetFetchGroup()] * ITEMS_MAX)),
}


@pytest.mark.parametrize("kind", REQUESTS)
def test_no_request_holds_the_loop(stub: bus_pb2_grpc.BusStub, watch: LoopWatch, kind: str) -> None:
    method, make = REQUESTS[kind]
    request = make()
    refused = (None, grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.RESOURCE_EXHAUSTED)
    for _ in range(ATTEMPTS):
        watch.clear()
        call = getattr(stub, method).future(request, timeout=50)
        assert call.exception() is None or call.code() in refused, call.exception()
        stub.ListViews(pb.ListViewsRequest(), timeout=50)
        if not watch.holds:
            return
    pytest.fail("\n".join(map(str, watch.holds)))
