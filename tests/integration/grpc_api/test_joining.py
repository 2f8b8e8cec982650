"""Brokers that join a cluster: the controller asks for them at the address that they advertise."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from bus.broker import Broker
from bus.cluster_metadata.broker_decisions import BrokerIdentity
from bus.cluster_metadata.cluster_state import LEVEL_MAX
from bus.errors import ErrorCode, JoinRefused
from bus.grpc_api.server.server import SERVICE_NAME, BusServer
from bus.grpc_api.v1 import bus_pb2 as pb
from bus.grpc_api.v1.bus_pb2_grpc import BusStub, ClusterStub
from bus.runtime.partitions.fetches import Stopping
from bus.settings.broker import BrokerConfig
from tests.support.broker_process import free_port
from tests.support.broker_thread import running_broker


@pytest.fixture
def controller(tmp_path: Path) -> Iterator[Broker]:
    with running_broker(tmp_path / "root") as broker:
        yield broker


def registering(controller: Broker, broker_id: int, port: int) -> pb.RegisterBrokerRequest:
    return pb.RegisterBrokerRequest(
        cluster_id=controller.cluster.storage.cluster_id,
        broker_id=broker_id,
        host="127.0.0.1",
        port=port,
        incarnation_id=str(uuid.uuid4()),
        max_feature_level=LEVEL_MAX,
    )


def start(controller: Broker, **configs: object) -> None:
    """Another broker of the same root."""

    async def live() -> None:
        root = controller.cluster.storage.root_url
        config = replace(BrokerConfig(), root=root, listen="127.0.0.1:0", broker_id=1, **configs)  # type: ignore[arg-type]
        broker = Broker(config)
        await broker.start()
        await broker.stop()

    asyncio.run(live())


def test_broker_that_the_controller_does_not_reach_is_refused_with_its_address(controller: Broker) -> None:
    nowhere = free_port()
    with grpc.insecure_channel(f"127.0.0.1:{controller.port}") as channel:
        answer = ClusterStub(channel).RegisterBroker(registering(controller, 1, nowhere), timeout=40)
    assert answer.error_code == ErrorCode.BROKER_NOT_AVAILABLE
    assert f"broker 1 advertises 127.0.0.1:{nowhere}, where the controller does not reach it" in answer.error_message
    with pytest.raises(JoinRefused, match=f"broker 1 cannot join the cluster: broker 1 advertises 127.0.0.1:{nowhere}"):
        start(controller, advertise=f"127.0.0.1:{nowhere}")
    assert controller.cluster.state.brokers.keys() == {0}


def test_broker_at_whose_address_another_one_answers_is_refused(controller: Broker) -> None:
    there = f"127.0.0.1:{controller.port}"
    with pytest.raises(JoinRefused, match=f"broker 1 advertises {there}, where the controller reaches broker 0"):
        start(controller, advertise=there)
    assert controller.cluster.state.brokers.keys() == {0}


def test_broker_that_can_be_reached_joins(controller: Broker) -> None:
    start(controller)
    assert controller.cluster.state.brokers.keys() == {0, 1}


def test_broker_that_is_starting_says_who_it_is_and_nothing_else() -> None:
    async def look() -> None:
        server = BusServer(BrokerConfig(listen="127.0.0.1:0"), Stopping())
        [port] = server.bind().values()
        await server.listen(BrokerIdentity("root-1", 7, "life-1"))
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            bus = BusStub(channel)
            found = await ClusterStub(channel).IdentifyBroker(pb.IdentifyBrokerRequest())
            assert (found.cluster_id, found.broker_id, found.incarnation_id) == ("root-1", 7, "life-1")
            for call in (
                bus.Metadata(pb.MetadataRequest()),
                ClusterStub(channel).RegisterBroker(pb.RegisterBrokerRequest()),
                anext(aiter(bus.MaintainLog(pb.MaintainLogRequest()))),
                bus.Produce().read(),
            ):
                with pytest.raises(grpc.aio.AioRpcError, match="broker 7 is starting; retry later") as refused:
                    await call
                assert refused.value.code() is grpc.StatusCode.UNAVAILABLE
            health = health_pb2_grpc.HealthStub(channel)
            for name in ("", SERVICE_NAME):
                told = await health.Check(health_pb2.HealthCheckRequest(service=name))
                assert told.status == health_pb2.HealthCheckResponse.NOT_SERVING
        await server.abandon()

    asyncio.run(look())
