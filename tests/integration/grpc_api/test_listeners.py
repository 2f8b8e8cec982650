"""Several listeners: clients of each are told the addresses of that one, at every broker and for every answer."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import grpc
import pytest

from bus import Consumer, Producer
from bus.broker import Broker
from bus.errors import JoinRefused
from bus.grpc_api.v1 import bus_pb2 as pb
from bus.grpc_api.v1.bus_pb2_grpc import BusStub
from bus.settings.broker import BrokerConfig
from tests.support.broker_thread import run_on, running_broker


def settings(broker_id: int) -> BrokerConfig:
    return BrokerConfig(
        broker_id=broker_id,
        listeners=("CLIENTS://127.0.0.1:0", "INSIDE://127.0.0.1:0"),
        listener_security_protocol_map=("CLIENTS:PLAINTEXT", "INSIDE:PLAINTEXT"),
        inter_broker_listener_name="INSIDE",
        offsets_topic_num_partitions=2,
    )


@pytest.fixture
def brokers(tmp_path: Path) -> Iterator[list[Broker]]:
    with ExitStack() as stack:
        started = [stack.enter_context(running_broker(tmp_path / "root", config=settings(one))) for one in range(2)]
        wait_for_all(*started)
        yield started


def wait_for_all(*brokers: Broker) -> None:
    """Wait until each of them knows that the cluster counts on all."""

    async def wait(broker: Broker) -> None:
        metadata = broker.cluster.metadata
        while len(metadata.cluster.unfenced_brokers) < len(brokers):
            await metadata.wait_until_applied(metadata.applied_offset + 1)

    for broker in brokers:
        run_on(broker, wait(broker))


def ask(broker: Broker, listener: str, method: str, request: Any) -> Any:
    with grpc.insecure_channel(f"127.0.0.1:{broker.ports[listener]}") as channel:
        return getattr(BusStub(channel), method)(request, timeout=20)


def test_clients_are_told_the_addresses_of_their_listener(brokers: list[Broker]) -> None:
    topic = pb.NewTopic(name="t", partitions=4)
    ask(brokers[0], "CLIENTS", "CreateTopics", pb.CreateTopicsRequest(topics=[topic]))
    for listener in ("CLIENTS", "INSIDE"):
        expected = {number: broker.ports[listener] for number, broker in enumerate(brokers)}
        for broker in brokers:
            metadata = ask(broker, listener, "Metadata", pb.MetadataRequest())
            assert {one.broker_id: one.port for one in metadata.brokers} == expected
            described = ask(broker, listener, "DescribeCluster", pb.DescribeClusterRequest())
            assert {one.broker_id: one.port for one in described.brokers} == expected
            # The broker that is not the controller has this one forwarded, as the topic has to be created first.
            created = pb.MetadataRequest(topics=[f"{listener}-{broker.port}"], allow_auto_topic_creation=True)
            assert {one.broker_id: one.port for one in ask(broker, listener, "Metadata", created).brokers} == expected
            group = pb.FindCoordinatorRequest(key="g")
            coordinator = ask(broker, listener, "FindCoordinator", group).coordinator
            assert coordinator.port == expected[coordinator.broker_id]
            for one in ask(broker, listener, "FetchOnce", fetching(4)).partitions:
                if one.HasField("current_leader"):
                    leader = one.current_leader.broker
                    assert leader.port == expected[leader.broker_id]


def fetching(partitions: int) -> pb.FetchRequest:
    return pb.FetchRequest(partitions=[pb.FetchPartition(topic="t", partition=one) for one in range(partitions)])


@pytest.mark.parametrize("listener", ["CLIENTS", "INSIDE"])
def test_records_go_in_and_out_by_each_listener(brokers: list[Broker], listener: str) -> None:
    address = f"127.0.0.1:{brokers[1].ports[listener]}"
    with Producer(address) as producer:
        for number in range(8):
            producer.send("t", value=b"%d" % number)
    with Consumer(address, group_id="g", auto_offset_reset="earliest") as consumer:
        consumer.subscribe(["t"])
        found: list[bytes | None] = []
        while len(found) < 8:
            found += [record.value for record in consumer.poll(timeout_ms=5_000)]
    assert sorted(found) == [b"%d" % number for number in range(8)]


def test_listeners_outlive_a_restart(tmp_path: Path) -> None:
    for _ in range(2):
        with running_broker(tmp_path / "root", config=settings(0)) as broker:
            metadata = ask(broker, "CLIENTS", "Metadata", pb.MetadataRequest())
            assert [one.port for one in metadata.brokers] == [broker.ports["CLIENTS"]]
    with running_broker(tmp_path / "root") as broker:
        metadata = ask(broker, "PLAINTEXT", "Metadata", pb.MetadataRequest())
        assert [one.port for one in metadata.brokers] == [broker.port]


def test_broker_without_the_listener_is_not_shown(tmp_path: Path) -> None:
    root = tmp_path / "root"
    with (
        running_broker(root, config=settings(0)) as first,
        running_broker(root, config=BrokerConfig(broker_id=1)) as old,
    ):
        wait_for_all(first, old)
        assert [one.broker_id for one in ask(first, "CLIENTS", "Metadata", pb.MetadataRequest()).brokers] == [0]
        assert [one.broker_id for one in ask(old, "PLAINTEXT", "Metadata", pb.MetadataRequest()).brokers] == [1]


# Written by a version that knew of no other listener than PLAINTEXT.
EARLIER = Path(__file__).parents[2] / "golden" / "root_before_group_placement"


def test_root_of_an_earlier_version_has_listeners_once_its_level_is_raised(tmp_path: Path) -> None:
    root = Path(shutil.copytree(EARLIER, tmp_path / "root"))
    with (
        pytest.raises(JoinRefused, match=r"listeners need bus.version 2, found [01]: start the broker with listen"),
        running_broker(root, config=settings(0)),
    ):
        pass
    with running_broker(root) as broker:
        upgrade = pb.UpdateFeaturesRequest(feature="bus.version", level=2)
        assert ask(broker, "PLAINTEXT", "UpdateFeatures", upgrade).error_code == pb.ERROR_CODE_NONE
    with running_broker(root, config=settings(0)) as broker:
        metadata = ask(broker, "CLIENTS", "Metadata", pb.MetadataRequest())
        assert [one.port for one in metadata.brokers] == [broker.ports["CLIENTS"]]
