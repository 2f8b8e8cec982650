"""Clients and brokers of different releases: what a broker lacks fails by name, and everything else works."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf import descriptor_pool, message_factory
from google.protobuf.descriptor_pb2 import FileDescriptorProto

from bus import Admin, BusError, Consumer, ErrorCode, NewTopic, Producer, TopicPartition
from bus.grpc_api.contract import CALLS, CONTRACT_VERSION
from bus.grpc_api.v1 import bus_pb2 as pb
from tests.support.broker_thread import running_broker
from tests.support.fake_broker import BreakStream, Cluster, FakeBroker
from tests.support.member_processes import wait_until

CONTRACTS = Path(__file__).parents[2] / "golden" / "contracts"


class OldBroker(FakeBroker):
    """One whose contract is this one without some calls and fields."""

    def __init__(self, *, calls: tuple[str, ...] = (), fields: tuple[str, ...] = ()) -> None:
        super().__init__()
        self._calls = [one for one in CALLS if one not in calls]
        self._contract = _without(fields)

    def ApiVersions(self, request: pb.ApiVersionsRequest, context: Any) -> pb.ApiVersionsResponse:
        self._note("ApiVersions", context)
        return pb.ApiVersionsResponse(
            contract_version=1,
            broker_software_version="0.0.9",
            calls=self._calls,
            contract=self._contract,
        )


def _without(fields: tuple[str, ...]) -> bytes:
    file = FileDescriptorProto.FromString(pb.DESCRIPTOR.serialized_pb)
    for name in fields:
        message, _, field = name.partition(".")
        [found] = [one for one in file.message_type if one.name == message]
        [position] = [number for number, one in enumerate(found.field) if one.name == field]
        del found.field[position]
    return file.SerializeToString()


def test_a_field_that_the_broker_lacks_is_refused_by_name_and_nothing_is_sent() -> None:
    with OldBroker(fields=("NewTopic.configs",)) as broker, Admin(broker.address) as admin:
        with pytest.raises(
            BusError, match=r"the field NewTopic.configs.* its contract is 1 \(delta-bus 0.0.9\)"
        ) as caught:
            admin.create_topics([NewTopic("a", configs={"retention.ms": 1})])
        assert caught.value.code is ErrorCode.UNSUPPORTED_VERSION
        assert "CreateTopics" not in broker.calls
        admin.create_topics([NewTopic("a")])
        assert admin.list_topics() == ["a"]


def test_a_call_that_the_broker_lacks_is_refused_by_name_and_nothing_is_sent() -> None:
    with OldBroker(calls=("ElectLeaders",)) as broker, Admin(broker.address) as admin:
        with pytest.raises(BusError, match="the call ElectLeaders") as caught:
            admin.elect_leaders()
        assert caught.value.code is ErrorCode.UNSUPPORTED_VERSION
        assert "ElectLeaders" not in broker.calls


def test_a_field_of_a_stream_that_the_broker_lacks_fails_its_records_by_name() -> None:
    with OldBroker(fields=("ProduceRequest.timeout_ms",)) as broker:
        broker.cluster.create("t")
        with Producer(broker.address, enable_idempotence=False, delivery_timeout_ms=130_000) as producer:
            error = producer.send("t", b"value").exception(timeout=60)
        assert isinstance(error, BusError)
        assert error.code is ErrorCode.UNSUPPORTED_VERSION
        assert "the field ProduceRequest.timeout_ms" in error.message
        assert broker.produce_requests == []


def test_a_broker_is_asked_once_for_each_client_and_again_where_another_one_may_have_come() -> None:
    with OldBroker() as broker, Admin(broker.address, retry_backoff_ms=1) as admin:
        for _ in range(3):
            admin.list_topics()
        with pytest.raises(BusError):
            admin.describe_topics(["nowhere"])
        assert broker.calls.count("ApiVersions") == 1
        broker.control_script.append(BreakStream(is_appended=False))
        admin.describe_cluster()
        assert broker.calls.count("ApiVersions") == 2


class FailingBroker(FakeBroker):
    """One that cannot say what it knows."""

    def ApiVersions(self, request: pb.ApiVersionsRequest, context: Any) -> pb.ApiVersionsResponse:
        return pb.ApiVersionsResponse(error_code=pb.ERROR_CODE_UNKNOWN_SERVER_ERROR, error_message="no memory")


def test_an_error_in_place_of_what_a_broker_knows_is_said_and_not_taken_for_an_old_broker() -> None:
    with FailingBroker() as broker, Admin(broker.address) as admin:
        with pytest.raises(BusError, match="no memory") as caught:
            admin.list_topics()
        assert caught.value.code is ErrorCode.UNKNOWN_SERVER_ERROR


class SilentBroker(FakeBroker):
    """One of before the question."""

    def ApiVersions(self, request: pb.ApiVersionsRequest, context: Any) -> pb.ApiVersionsResponse:
        context.abort(grpc.StatusCode.UNIMPLEMENTED, "Method not found!")
        raise AssertionError("abort raises")


def test_a_broker_that_does_not_know_the_question_is_used_as_it_is() -> None:
    with SilentBroker() as broker, Admin(broker.address) as admin:
        admin.create_topics([NewTopic("a")])
        assert admin.list_topics() == ["a"]


def test_a_broker_of_before_the_question_is_used_beside_one_that_knows_it() -> None:
    cluster = Cluster()
    cluster.create("t")
    with FakeBroker(cluster, 0) as new, SilentBroker(cluster, 1) as old, Producer([new.address]) as producer:
        assert producer.send("t", b"first").result(60).offset == 0
        cluster.move("t", 0, 1)
        assert producer.send("t", b"second").result(60).offset == 1
        assert old.produce_requests


class _Stranger(grpc.GenericRpcHandler):
    """Another program's server. `answer` None: it knows no call; else the bytes that each call is answered with."""

    def __init__(self, answer: bytes | None) -> None:
        self._answer = answer
        self.was_asked = threading.Event()

    def service(self, details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler | None:
        self.was_asked.set()
        answer = self._answer
        return None if answer is None else grpc.unary_unary_rpc_method_handler(lambda request, context: answer)

    @contextmanager
    def serve(self, address: str) -> Iterator[None]:
        server = grpc.server(ThreadPoolExecutor(4), handlers=[self], options=[("grpc.so_reuseport", 0)])
        server.add_insecure_port(address)
        server.start()
        try:
            yield
        finally:
            server.stop(grace=0).wait()


@pytest.mark.parametrize("answer", [None, b"", b"\xff\xff no message"])
def test_another_program_at_the_address_of_a_broker_that_is_gone_costs_no_record(answer: bytes | None) -> None:
    cluster = Cluster()
    cluster.create("t")
    old = FakeBroker(cluster, 0)
    with (
        FakeBroker(cluster, 1) as new,
        Producer([old.address, new.address]) as producer,
        Consumer([old.address, new.address], auto_offset_reset="earliest") as consumer,
    ):
        consumer.assign([TopicPartition("t", 0)])
        try:
            assert producer.send("t", b"first").result(60).offset == 0
            wait_until(lambda: [record.value for record in consumer.poll(20)] == [b"first"], "it is read")
        finally:
            old.stop()
        stranger = _Stranger(answer)
        with stranger.serve(old.address):
            sent = producer.send("t", b"second")
            assert stranger.was_asked.wait(60)
            cluster.move("t", 0, 1)
            assert sent.result(60).offset == 1
            wait_until(lambda: [record.value for record in consumer.poll(20)] == [b"second"], "it is read")


def test_an_empty_answer_is_no_contract() -> None:
    """Each message without fields is empty, whatever its type."""
    with FakeBroker() as broker:
        address = broker.address
    with _Stranger(b"").serve(address), Admin(address) as admin:
        with pytest.raises(BusError, match=f"version 1 or later of the broker at {address}, found 0") as caught:
            admin.list_topics()
        assert caught.value.code is ErrorCode.UNKNOWN_SERVER_ERROR


@pytest.mark.parametrize("version", range(1, CONTRACT_VERSION + 1))
def test_a_client_of_an_earlier_contract_works_with_this_broker(version: int, tmp_path: Path) -> None:
    """The messages are made from the contract as it was."""
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile((CONTRACTS / f"{version}.binpb").read_bytes())
    message = functools.partial(_new_message, pool)
    with running_broker(tmp_path / "root") as broker, grpc.insecure_channel(f"127.0.0.1:{broker.port}") as channel:
        call = functools.partial(_call, channel, pool)
        topic = message("NewTopic", name="t", partitions=1)
        [created] = call("CreateTopics", message("CreateTopicsRequest", topics=[topic])).topics
        assert not created.error_code
        record = message("Record", value=b"hello")
        batch = message("PartitionProduceData", topic="t", records=message("RecordList", records=[record]))
        [produced] = call("ProduceOnce", message("ProduceRequest", partitions=[batch])).partitions
        assert not produced.error_code
        with Consumer(f"127.0.0.1:{broker.port}", auto_offset_reset="earliest") as consumer:
            consumer.assign([TopicPartition("t", 0)])
            assert [one.value for one in consumer.poll(20_000)] == [b"hello"]


def _new_message(pool: Any, name: str, /, **fields: Any) -> Any:
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(f"bus.v1.{name}"))(**fields)


def _call(channel: grpc.Channel, pool: Any, method: str, request: Any) -> Any:
    descriptor = pool.FindServiceByName("bus.v1.Bus").methods_by_name[method]
    read: Callable[[bytes], Any] = message_factory.GetMessageClass(descriptor.output_type).FromString
    stub = channel.unary_unary(
        f"/bus.v1.Bus/{method}", request_serializer=lambda one: one.SerializeToString(), response_deserializer=read
    )
    return stub(request, timeout=20)
