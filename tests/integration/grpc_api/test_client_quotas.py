"""Quotas of a broker as clients meet them. A throttle time here is minutes, so that nothing depends on how fast the
machine is: what waits is still waiting when what does not wait is done."""

from __future__ import annotations

import queue
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import grpc
import pyarrow as pa
import pytest

from bus import Admin, Consumer, ErrorCode, NewTopic, Producer, TopicPartition
from bus.broker import Broker
from bus.descriptions import QuotaEntity
from bus.errors import BusError
from bus.grpc_api.v1 import bus_pb2 as pb
from bus.grpc_api.v1.bus_pb2_grpc import BusStub
from bus.settings.broker import BrokerConfig
from tests.integration.grpc_api.test_listeners import wait_for_all
from tests.support.broker_thread import running_broker

SLOW = (("client-id", "slow"),)
KIB = 1024


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    with running_broker(tmp_path / "root") as broker, Admin(address(broker)) as admin:
        admin.create_topics([NewTopic("t", 1)])
        yield broker


def address(broker: Broker) -> str:
    return f"127.0.0.1:{broker.port}"


def set_quota(broker: Broker, name: str, limit: float, client_id: str = "slow") -> None:
    with Admin(address(broker)) as admin:
        admin.alter_client_quotas({QuotaEntity("ANONYMOUS", client_id): {name: limit}})


@contextmanager
def stub(broker: Broker) -> Iterator[Any]:
    with grpc.insecure_channel(address(broker)) as channel:
        yield BusStub(channel)


def produce(number: int, size: int) -> pb.ProduceRequest:
    sink = pa.BufferOutputStream()
    batch = pa.RecordBatch.from_pydict({"value": pa.array([b"x" * size], pa.binary())})
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    data = pb.PartitionProduceData(topic="t", partition=0, arrow=sink.getvalue().to_pybytes())
    return pb.ProduceRequest(correlation_id=number, acks=-1, partitions=[data])


def fetch(number: int = 1, max_bytes: int = 0) -> pb.FetchRequest:
    asked = pb.FetchPartition(topic="t", partition=0, fetch_offset=0)
    return pb.FetchRequest(correlation_id=number, max_bytes=max_bytes, partitions=[asked])


def end_offset(broker: Broker) -> int:
    with Consumer(address(broker)) as consumer:
        return consumer.end_offsets([TopicPartition("t", 0)])[TopicPartition("t", 0)]


class Stream:
    """A stream of a client that heeds no throttle time."""

    def __init__(self, method: Any) -> None:
        self._requests: queue.Queue[Any] = queue.Queue()
        self.answers = method(iter(self._requests.get, None), metadata=SLOW)

    def send(self, request: Any) -> None:
        self._requests.put(request)

    def close(self) -> None:
        self._requests.put(None)
        self.answers.cancel()


def test_produce_over_the_quota_is_appended_and_what_comes_behind_it_is_not_read(broker: Broker) -> None:
    set_quota(broker, "producer_byte_rate", 10)
    with stub(broker) as bus:
        stream = Stream(bus.Produce)
        for number in (1, 2):
            stream.send(produce(number, 10 * KIB))
        first = next(stream.answers)
        assert first.partitions[0].error_code == pb.ERROR_CODE_NONE
        assert first.throttle_time_ms > 600_000
        other = bus.ProduceOnce(produce(3, 10 * KIB), metadata=(("client-id", "other"),), timeout=20)
        assert (other.throttle_time_ms, other.partitions[0].base_offset) == (0, 1)
        assert end_offset(broker) == 2
        stream.close()


def test_new_stream_of_a_client_that_is_over_its_quota_is_not_read(broker: Broker) -> None:
    set_quota(broker, "producer_byte_rate", 10)
    with stub(broker) as bus:
        first = Stream(bus.Produce)
        first.send(produce(1, 10 * KIB))
        next(first.answers)
        first.close()
        second = Stream(bus.Produce)
        second.send(produce(2, 10 * KIB))
        assert refused_status(bus.ProduceOnce, produce(3, 10 * KIB)) is grpc.StatusCode.RESOURCE_EXHAUSTED
        for number in (4, 5):
            bus.ProduceOnce(produce(number, 1), timeout=20)
        assert end_offset(broker) == 3
        second.close()


def test_stream_that_was_open_before_another_one_went_over_the_quota_waits_as_well(broker: Broker) -> None:
    set_quota(broker, "producer_byte_rate", KIB)  # ten of them at once
    with stub(broker) as bus:
        idle, greedy = Stream(bus.Produce), Stream(bus.Produce)
        idle.send(produce(1, 1))
        assert next(idle.answers).throttle_time_ms == 0
        greedy.send(produce(1, KIB * KIB))
        assert next(greedy.answers).throttle_time_ms > 600_000
        idle.send(produce(2, 1))
        for number in (4, 5):
            bus.ProduceOnce(produce(number, 1), timeout=20)
        assert end_offset(broker) == 4
        idle.close()
        greedy.close()


def test_single_produce_that_goes_over_the_quota_is_done_and_the_next_one_is_refused_before_it_is(
    broker: Broker,
) -> None:
    set_quota(broker, "producer_byte_rate", 10)
    with stub(broker) as bus:
        answer = bus.ProduceOnce(produce(1, 10 * KIB), metadata=SLOW, timeout=20)
        assert (answer.partitions[0].base_offset, answer.throttle_time_ms > 600_000) == (0, True)
        for timeout in (0.5, 20):
            status = refused_status(bus.ProduceOnce, produce(2, 1), timeout)
            assert status in (grpc.StatusCode.RESOURCE_EXHAUSTED, grpc.StatusCode.DEADLINE_EXCEEDED)
    assert end_offset(broker) == 1


def refused_status(method: Any, request: Any, timeout: float = 20) -> grpc.StatusCode:
    with pytest.raises(grpc.RpcError) as caught:
        method(request, metadata=SLOW, timeout=timeout)
    found: grpc.StatusCode = caught.value.code()
    return found


def test_fetch_over_the_quota_is_answered_empty_and_the_first_one_is_not(broker: Broker) -> None:
    with Producer(address(broker)) as producer:
        producer.send("t", b"x" * 10 * KIB).result()
    set_quota(broker, "consumer_byte_rate", 10)
    with stub(broker) as bus:
        stream = Stream(bus.Fetch)
        stream.send(fetch(1))
        first = next(stream.answers)  # above the whole quota, and nothing was used before it
        assert len(first.partitions[0].batches) == 1
        assert first.throttle_time_ms > 600_000
        stream.close()
        second = bus.FetchOnce(fetch(2), metadata=SLOW, timeout=40)
        assert (list(second.partitions), second.correlation_id) == ([], 2)
        assert second.throttle_time_ms > 600_000
        other = bus.FetchOnce(fetch(3), timeout=20)
        assert (len(other.partitions), other.throttle_time_ms) == (1, 0)


def test_consumer_with_a_quota_reads_on_at_its_rate(broker: Broker) -> None:
    with Producer(address(broker)) as producer:
        producer.send("t", b"x" * KIB).result()
    set_quota(broker, "consumer_byte_rate", KIB * KIB)
    with Consumer(address(broker), client_id="slow") as consumer:
        consumer.assign([TopicPartition("t", 0)])
        consumer.seek_to_beginning([TopicPartition("t", 0)])
        assert len(consumer.poll(20_000)) == 1
        with Admin(address(broker)) as admin:
            (used,) = admin.describe_quota_usage()
        assert (used.entity, used.quota, used.limit) == (
            QuotaEntity("ANONYMOUS", "slow"),
            "consumer_byte_rate",
            2.0**20,
        )
        assert 0 <= used.rate < used.limit == KIB * KIB


def test_flood_of_calls_waits_and_other_clients_are_served(broker: Broker) -> None:
    set_quota(broker, "request_rate", 0.01)
    with stub(broker) as bus:
        assert bus.ListViews(pb.ListViewsRequest(), metadata=SLOW, timeout=20) == pb.ListViewsResponse()
        waiting = [bus.ListViews.future(pb.ListViewsRequest(), metadata=SLOW, timeout=600) for _ in range(50)]
        assert bus.ListViews(pb.ListViewsRequest(), timeout=20) == pb.ListViewsResponse()
        assert not any(call.done() for call in waiting)
        for call in waiting:
            call.cancel()


def test_call_whose_deadline_is_shorter_than_its_caller_has_to_wait_is_refused_before_it_is_done(
    broker: Broker,
) -> None:
    set_quota(broker, "request_rate", 0.01)
    request = pb.CreateTopicsRequest(topics=[pb.NewTopic(name="flood", partitions=1)])
    with stub(broker) as bus:
        bus.ListViews(pb.ListViewsRequest(), metadata=SLOW, timeout=20)
        with pytest.raises(grpc.RpcError, match=r"THROTTLING_QUOTA_EXCEEDED.*request_rate") as caught:
            bus.CreateTopics(request, metadata=SLOW, timeout=20)
    assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    with Admin(address(broker)) as admin:
        assert admin.list_topics() == ["t"]
    with Admin(address(broker), client_id="slow", retries=0) as admin, pytest.raises(BusError) as refused:
        admin.list_topics()
    assert refused.value.code is ErrorCode.THROTTLING_QUOTA_EXCEEDED


def test_maintenance_by_hand_counts_as_a_request_for_each_partition(broker: Broker) -> None:
    with Admin(address(broker)) as admin:
        admin.create_topics([NewTopic("wide", 12)])
    set_quota(broker, "request_rate", 0.1)  # one at once
    with stub(broker) as bus:
        request = pb.MaintainLogRequest(topic="wide", partitions=[3])
        assert len(list(bus.MaintainLog(request, metadata=SLOW, timeout=20))) == 1
        assert len(list(bus.MaintainLog(pb.MaintainLogRequest(topic="wide"), metadata=SLOW, timeout=20))) == 12
        with pytest.raises(grpc.RpcError, match="THROTTLING_QUOTA_EXCEEDED"):
            list(bus.MaintainLog(pb.MaintainLogRequest(topic="t"), metadata=SLOW, timeout=20))
        assert len(list(bus.MaintainLog(pb.MaintainLogRequest(topic="t"), timeout=20))) == 1


def test_topics_that_are_created_by_the_way_count_as_changes(broker: Broker) -> None:
    set_quota(broker, "controller_mutation_rate", 0.2)  # 2.2 partitions at once
    with stub(broker) as bus:
        request = pb.MetadataRequest(topics=["a", "b", "c", "d"], allow_auto_topic_creation=True)
        told = bus.Metadata(request, metadata=SLOW, timeout=20).topics
        codes = {topic.name: topic.error_code for topic in told}
        throttled = pb.ERROR_CODE_THROTTLING_QUOTA_EXCEEDED
        assert codes == {"a": 0, "b": 0, "c": 0, "d": throttled}
        known = pb.MetadataRequest(topics=["a", "t"], allow_auto_topic_creation=True)
        assert [topic.error_code for topic in bus.Metadata(known, metadata=SLOW, timeout=20).topics] == [0, 0]
    with Admin(address(broker)) as admin:
        assert admin.list_topics() == ["a", "b", "c", "t"]


def test_changes_of_topics_beyond_the_quota_are_refused_each_by_itself(broker: Broker) -> None:
    set_quota(broker, "controller_mutation_rate", 0.5, "bus-admin")  # 5.5 partitions at once
    with Admin(address(broker), retries=0) as admin:
        admin.create_topics([NewTopic("a", 4), NewTopic("b", 4)])  # the second one leaves a debt
        with pytest.raises(BusError) as caught:
            admin.create_topics([NewTopic("c", 1)])
        assert caught.value.code is ErrorCode.THROTTLING_QUOTA_EXCEEDED
        assert "controller_mutation_rate" in str(caught.value)
        admin.create_topics([NewTopic("c", 1)], validate_only=True)
        with pytest.raises(BusError, match="THROTTLING_QUOTA_EXCEEDED"):
            admin.delete_topics(["a"])
        assert sorted(admin.list_topics()) == ["a", "b", "t"]
    with Admin(address(broker), client_id="other") as admin:
        admin.delete_topics(["a"])


def test_changes_count_once_for_the_principal_whichever_broker_was_asked(tmp_path: Path) -> None:
    configs = [BrokerConfig(broker_id=one, quota_window_num=1_001) for one in range(3)]  # a burst of 1,000 s
    with ExitStack() as stack:
        brokers = [stack.enter_context(running_broker(tmp_path / "root", config=config)) for config in configs]
        wait_for_all(*brokers)
        with Admin(address(brokers[0])) as admin:
            admin.alter_client_quotas({QuotaEntity("ANONYMOUS"): {"controller_mutation_rate": 0.0115}})  # 11.5 at once
        controller = brokers[0].cluster.state.controller
        assert controller is not None
        assert controller.broker_id == 0
        for client_id, broker in (("one", brokers[1]), ("other", brokers[2])):
            assert create_topic(broker, client_id, 6) == 0  # counted twice, the first would leave nothing
        assert [create_topic(broker, "third", 1) for broker in brokers] == [ErrorCode.THROTTLING_QUOTA_EXCEEDED] * 3
        used = {broker.cluster.endpoint.broker_id: len(usage(broker)) for broker in brokers}
        assert used == {0: 1, 1: 0, 2: 0}


def create_topic(broker: Broker, name: str, partitions: int) -> int:
    """Create the topic at this broker, as a client of the topic's name. Returns the error of the answer."""
    request = pb.CreateTopicsRequest(topics=[pb.NewTopic(name=name, partitions=partitions)])
    with stub(broker) as calls:
        (created,) = calls.CreateTopics(request, metadata=(("client-id", name),), timeout=30).topics
    return int(created.error_code)


def usage(broker: Broker) -> list[Any]:
    with stub(broker) as calls:
        return list(calls.DescribeQuotaUsage(pb.DescribeQuotaUsageRequest(), timeout=30).entries)


def test_broker_stops_while_a_client_waits(tmp_path: Path) -> None:
    with running_broker(tmp_path / "root") as broker:
        with Admin(address(broker)) as admin:
            admin.create_topics([NewTopic("t", 1)])
        set_quota(broker, "producer_byte_rate", 10)
        channel = grpc.insecure_channel(address(broker))
        bus = BusStub(channel)
        bus.ProduceOnce(produce(1, KIB), metadata=SLOW, timeout=20)
        call = bus.ProduceOnce.future(produce(2, KIB), metadata=SLOW, timeout=600)
        bus.ProduceOnce(produce(3, 1), timeout=20)
        assert not call.done()
    assert call.exception(timeout=20).code() is grpc.StatusCode.UNAVAILABLE
    channel.close()
