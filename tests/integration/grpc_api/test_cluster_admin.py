"""Calls about the brokers of a cluster, at one broker that serves; the others are registered, and fenced."""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable

import pytest

from bus.cluster_metadata.broker_decisions import RegisterBroker, decide_register_broker
from bus.cluster_metadata.cluster_state import LEVEL_MAX, LEVEL_MIN
from bus.grpc_api.contract import CONTRACT_DIGEST, CONTRACT_VERSION
from bus.grpc_api.v1 import bus_pb2 as pb
from bus.model import BrokerEndpoint
from tests.support.cancelled_calls import QuietBroker, run_on_broker
from tests.support.memory_store import MemoryStore


def on_cluster(do: Callable[[QuietBroker], Awaitable[None]]) -> None:
    """At the highest level: broker 0 serves, brokers 1 and 2 are fenced; the topic t has two partitions."""
    store = MemoryStore()

    async def upgrade(broker: QuietBroker) -> None:
        await broker.call("UpdateFeatures", pb.UpdateFeaturesRequest(feature="bus.version", level=LEVEL_MAX))

    async def prepare(broker: QuietBroker) -> None:
        for broker_id in (1, 2):
            command = RegisterBroker(BrokerEndpoint(broker_id, "h", 9094 + broker_id), f"life {broker_id}", "east")
            decide = functools.partial(decide_register_broker, command=command)
            await broker.cluster.metadata.change([decide])
        await broker.call("CreateTopics", pb.CreateTopicsRequest(topics=[pb.NewTopic(name="t", partitions=2)]))
        await do(broker)

    run_on_broker(store, upgrade)
    run_on_broker(store, prepare)


async def reassign(broker: QuietBroker, *asked: pb.PartitionReassignment) -> list[str]:
    """Return the code of each partition."""
    request = pb.AlterPartitionReassignmentsRequest(partitions=asked)
    answer = await broker.call("AlterPartitionReassignments", request)
    return [pb.ErrorCode.Name(one.error_code).removeprefix("ERROR_CODE_") for one in answer.partitions]


async def replicas(broker: QuietBroker) -> list[list[int]]:
    (topic,) = (await broker.call("Metadata", pb.MetadataRequest(topics=["t"]))).topics
    return [list(one.replica_ids) for one in topic.partitions]


def to(partition: int, *replica_ids: int) -> pb.PartitionReassignment:
    return pb.PartitionReassignment(topic="t", partition=partition, replica_ids=replica_ids)


def test_cluster_is_described_with_and_without_its_fenced_brokers() -> None:
    async def do(broker: QuietBroker) -> None:
        whole = await broker.call("DescribeCluster", pb.DescribeClusterRequest(include_fenced_brokers=True))
        assert [(one.broker_id, one.rack, one.is_fenced) for one in whole.brokers] == [
            (0, "", False),
            (1, "east", True),
            (2, "east", True),
        ]
        assert whole.brokers[1].incarnation_id == "life 1"
        assert whole.brokers[2].broker_epoch > whole.brokers[1].broker_epoch > whole.brokers[0].broker_epoch > 0
        assert [(one.leader_count, one.replica_count) for one in whole.brokers] == [(2, 2), (0, 0), (0, 0)]
        assert (whole.controller_id, whole.feature_level) == (0, LEVEL_MAX)
        assert whole.cluster_id
        assert await reassign(broker, to(1, 0, 1)) == ["NONE"]
        part = await broker.call("DescribeCluster", pb.DescribeClusterRequest())
        assert [one.broker_id for one in part.brokers] == [0]
        whole = await broker.call("DescribeCluster", pb.DescribeClusterRequest(include_fenced_brokers=True))
        assert [(one.leader_count, one.replica_count) for one in whole.brokers] == [(2, 2), (0, 1), (0, 0)]

    on_cluster(do)


def test_each_reassignment_has_an_answer_of_its_own() -> None:
    async def do(broker: QuietBroker) -> None:
        found = await reassign(
            broker,
            to(0, 0, 1),
            to(0, 0, 2),
            to(1, 7),
            to(2, 0),
            pb.PartitionReassignment(topic="t", partition=1, cancel=True),
        )
        assert found == [
            "NONE",
            "INVALID_REQUEST",
            "INVALID_REPLICA_ASSIGNMENT",
            "UNKNOWN_TOPIC_OR_PARTITION",
            "INVALID_REQUEST",
        ]
        cancelled = await reassign(broker, pb.PartitionReassignment(topic="t", partition=1, cancel=True))
        assert cancelled == ["NO_REASSIGNMENT_IN_PROGRESS"]
        assert await replicas(broker) == [[0, 1], [0]]
        listed = await broker.call("ListPartitionReassignments", pb.ListPartitionReassignmentsRequest())
        assert not listed.partitions

    on_cluster(do)


def test_preferred_leader_is_elected_only_where_another_leads_and_it_is_active() -> None:
    async def do(broker: QuietBroker) -> None:
        assert await reassign(broker, to(0, 1, 0)) == ["NONE"]
        named = [pb.TopicPartitions(topic="t", partitions=[0, 1, 1, 2])]
        answer = await broker.call("ElectLeaders", pb.ElectLeadersRequest(topics=named))
        assert [(one.partition, pb.ErrorCode.Name(one.error_code)) for one in answer.partitions] == [
            (0, "ERROR_CODE_PREFERRED_LEADER_NOT_AVAILABLE"),
            (1, "ERROR_CODE_ELECTION_NOT_NEEDED"),
            (2, "ERROR_CODE_UNKNOWN_TOPIC_OR_PARTITION"),
        ]
        assert not (await broker.call("ElectLeaders", pb.ElectLeadersRequest())).partitions
        nothing = pb.ElectLeadersRequest(topics=[pb.TopicPartitions(topic="t")])
        assert not (await broker.call("ElectLeaders", nothing)).partitions

    on_cluster(do)


def test_broker_is_unregistered_when_no_partition_needs_it() -> None:
    async def do(broker: QuietBroker) -> None:
        async def unregister(broker_id: int) -> str:
            answer = await broker.call("UnregisterBroker", pb.UnregisterBrokerRequest(broker_id=broker_id))
            return f"{pb.ErrorCode.Name(answer.error_code).removeprefix('ERROR_CODE_')} {answer.error_message}".strip()

        assert await reassign(broker, to(0, 0, 1)) == ["NONE"]
        assert "it is a replica of 1 partition" in await unregister(1)
        assert await reassign(broker, to(0, 0)) == ["NONE"]
        assert await unregister(1) == "NONE"
        assert (await unregister(1)).startswith("BROKER_ID_NOT_REGISTERED")
        assert "it is the controller" in await unregister(0)
        assert await unregister(2) == "NONE"
        assert "it is the last broker" in await unregister(0)

    on_cluster(do)


@pytest.mark.parametrize(
    ("feature", "level", "said"),
    [
        ("bus.version", 0, f"expected a level of bus.version that is {LEVEL_MAX}, found 0"),
        ("bus.version", 9, f"expected a level of bus.version that is {LEVEL_MAX}, found 9"),
        ("metadata.version", 2, "expected the feature bus.version, found 'metadata.version'"),
    ],
)
def test_level_that_cannot_be_is_not_finalized(feature: str, level: int, said: str) -> None:
    async def do(broker: QuietBroker) -> None:
        answer = await broker.call("UpdateFeatures", pb.UpdateFeaturesRequest(feature=feature, level=level))
        assert answer.error_code == pb.ERROR_CODE_INVALID_UPDATE_VERSION
        assert said in answer.error_message
        again = pb.UpdateFeaturesRequest(feature="bus.version", level=LEVEL_MAX, validate_only=True)
        assert not (await broker.call("UpdateFeatures", again)).error_code

    on_cluster(do)


def test_a_broker_tells_what_it_knows_and_its_contract_to_who_has_another_one() -> None:
    async def do(broker: QuietBroker) -> None:
        same = await broker.call("ApiVersions", pb.ApiVersionsRequest(contract_digest=CONTRACT_DIGEST))
        assert (same.contract_version, same.contract) == (CONTRACT_VERSION, b"")
        assert set(same.calls) == {method.name for method in pb.DESCRIPTOR.services_by_name["Bus"].methods}
        assert list(same.features) == [
            pb.Feature(name="bus.version", level=LEVEL_MAX, min_level=LEVEL_MIN, max_level=LEVEL_MAX)
        ]
        assert not (await broker.call("ApiVersions", pb.ApiVersionsRequest())).contract
        other = await broker.call("ApiVersions", pb.ApiVersionsRequest(contract_digest=b"another one"))
        assert other.contract == pb.DESCRIPTOR.serialized_pb

    on_cluster(do)
