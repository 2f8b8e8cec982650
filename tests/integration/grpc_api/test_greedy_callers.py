"""One caller takes all it can, and others still get theirs: streams without number, streams that are never read,
requests that never end, floods of calls. Nothing here depends on how fast the machine is."""

from __future__ import annotations

import contextlib
import queue
import socket
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1.health_pb2 import HealthCheckRequest, HealthCheckResponse
from grpc_health.v1.health_pb2_grpc import HealthStub

from bus import Admin, Consumer, NewTopic, Producer, TopicPartition
from bus.broker import Broker
from bus.grpc_api.v1 import bus_pb2 as pb
from bus.grpc_api.v1.bus_pb2_grpc import BusStub
from bus.settings.broker import BrokerConfig
from tests.support.broker_thread import running_broker

STREAMS_MAX = 40
CONFIG = BrokerConfig(client_streams_count_max=STREAMS_MAX, queued_max_request_bytes=8 << 20)


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    with running_broker(tmp_path / "root", config=CONFIG) as broker, Admin(address(broker)) as admin:
        admin.create_topics([NewTopic("t", 1)])
        yield broker


def address(broker: Broker) -> str:
    return f"127.0.0.1:{broker.port}"


def check_others_are_served(broker: Broker) -> None:
    with Producer(address(broker)) as producer:
        offset = producer.send("t", b"v").result(50).offset
    with Consumer(address(broker)) as consumer:
        consumer.assign([TopicPartition("t", 0)])
        consumer.seek(TopicPartition("t", 0), offset)
        assert len(consumer.poll(20_000)) == 1


def fetch() -> pb.FetchRequest:
    asked = pb.FetchPartition(topic="t", partition=0, fetch_offset=0)
    return pb.FetchRequest(correlation_id=1, partitions=[asked], max_wait_ms=0)


def test_thousand_streams_of_one_caller_are_refused_above_the_limit_until_some_are_closed(broker: Broker) -> None:
    with grpc.insecure_channel(address(broker)) as channel:
        streams = []
        for _ in range(STREAMS_MAX):
            requests: queue.Queue[Any] = queue.Queue()
            requests.put(fetch())
            stream = BusStub(channel).Fetch(iter(requests.get, None))
            assert next(stream).correlation_id == 1  # it is open
            streams.append((stream, requests))
        for _ in range(1_000 - STREAMS_MAX):
            with pytest.raises(grpc.RpcError) as refused:
                next(BusStub(channel).Fetch(iter([fetch()])))
            assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED  # type: ignore[attr-defined]
        assert "client.streams.count.max" in refused.value.details()  # type: ignore[attr-defined]
        # The bound is for streams only: a unary call of the same caller is answered.
        assert BusStub(channel).FetchOnce(fetch(), timeout=20).correlation_id == 1
        for stream, requests in streams:
            requests.put(None)
            assert list(stream) == []  # it is closed
        check_others_are_served(broker)


def test_those_who_watch_the_health_of_the_broker_are_among_the_streams_of_their_address(broker: Broker) -> None:
    with grpc.insecure_channel(address(broker)) as channel:
        health = HealthStub(channel)
        watching = [health.Watch(HealthCheckRequest()) for _ in range(STREAMS_MAX)]
        assert {next(stream).status for stream in watching} == {HealthCheckResponse.SERVING}
        with pytest.raises(grpc.RpcError) as refused:
            next(health.Watch(HealthCheckRequest()))
        assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED  # type: ignore[attr-defined]
        assert health.Check(HealthCheckRequest()).status == HealthCheckResponse.SERVING
        for stream in watching:
            stream.cancel()
        with pytest.raises(grpc.RpcError) as refused:
            next(health.Watch(HealthCheckRequest(service="x" * 1_000)))
        assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT  # type: ignore[attr-defined]
        check_others_are_served(broker)


def test_callers_that_never_read_and_never_finish_keep_nobody_waiting(broker: Broker) -> None:
    with Producer(address(broker)) as producer:
        for _ in range(16):
            producer.send("t", b"x" * (512 << 10))
    with grpc.insecure_channel(address(broker)) as slow:
        forever: queue.Queue[Any] = queue.Queue()
        silent = [BusStub(slow).Produce(iter(forever.get, None)) for _ in range(10)]
        unread = [BusStub(slow).Fetch(iter([fetch()] * 16)) for _ in range(10)]
        flood = [BusStub(slow).Metadata.future(pb.MetadataRequest()) for _ in range(500)]
        check_others_are_served(broker)
        for call in (*silent, *unread, *flood):
            call.cancel()
        forever.put(None)


def test_headers_beyond_their_bound_are_refused(broker: Broker) -> None:
    with grpc.insecure_channel(address(broker)) as channel:
        with pytest.raises(grpc.RpcError) as refused:
            BusStub(channel).ListViews(pb.ListViewsRequest(), metadata=(("x", "y" * 40_000),), timeout=20)
        assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED  # type: ignore[attr-defined]
        with pytest.raises(grpc.RpcError) as refused:
            BusStub(channel).FetchOnce(fetch(), metadata=(("client-id", "y" * 256),), timeout=20)
        assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT  # type: ignore[attr-defined]
        token = (("authorization", "y" * 16_000),)
        assert BusStub(channel).ListViews(pb.ListViewsRequest(), metadata=token, timeout=20) == pb.ListViewsResponse()


def is_taken(connection: socket.socket) -> bool:
    """The broker has sent gRPC's first frame, and has not closed it at once."""
    try:
        return bool(connection.recv(1))
    except ConnectionResetError:
        return False


def test_connections_above_the_bound_of_a_listener_are_closed_and_those_there_are_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Connections that say nothing would take the open files that commits need, and those of other listeners."""
    monkeypatch.setattr("bus.broker.connections_max", lambda listeners: 8 // listeners)
    config = replace(
        CONFIG,
        listeners=("OUTER://127.0.0.1:0", "INNER://127.0.0.1:0"),
        listener_security_protocol_map=("OUTER:PLAINTEXT", "INNER:PLAINTEXT"),
        inter_broker_listener_name="INNER",
    )
    with running_broker(tmp_path / "root", config=config) as broker, contextlib.ExitStack() as open_ones:
        outer = "127.0.0.1", broker.ports["OUTER"]
        with Admin("{}:{}".format(*outer)) as admin:
            admin.create_topics([NewTopic("t", 1)])
            silent = [open_ones.enter_context(socket.create_connection(outer, timeout=30)) for _ in range(8)]
            assert 0 < sum(map(is_taken, silent)) < 4
            assert list(admin.list_topics()) == ["t"]
        with Admin(f"127.0.0.1:{broker.ports['INNER']}") as admin:
            assert list(admin.list_topics()) == ["t"]
