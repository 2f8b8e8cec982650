"""The brokers of the cluster over gRPC: messages to values, and answers back."""

from __future__ import annotations

import functools

from bus.broker_api.cluster_admin import ClusterAdminApi, DescribedBroker
from bus.errors import Refused
from bus.grpc_api.contract import CALLS, CONTRACT_DIGEST, CONTRACT_VERSION, software_version
from bus.grpc_api.server.conversions import partitions_of, with_error
from bus.grpc_api.v1 import bus_pb2 as pb
from bus.model import BrokerEndpoint, TopicPartition
from bus.runtime.loop_shares import LoopShares


class ClusterAdminHandler:
    def __init__(self, api: ClusterAdminApi, shares: LoopShares, listener: str) -> None:
        self._api = api
        self._shares = shares
        self._encode = functools.partial(_broker, listener=listener)

    async def api_versions(self, request: pb.ApiVersionsRequest) -> pb.ApiVersionsResponse:
        response = pb.ApiVersionsResponse(
            contract_version=CONTRACT_VERSION,
            broker_software_version=software_version(),
            calls=CALLS,
            features=[
                pb.Feature(name=one.name, level=one.level, min_level=one.level_min, max_level=one.level_max)
                for one in self._api.features()
            ],
        )
        if request.contract_digest and request.contract_digest != CONTRACT_DIGEST:
            response.contract = pb.DESCRIPTOR.serialized_pb
        return response

    async def describe(self, request: pb.DescribeClusterRequest) -> pb.DescribeClusterResponse:
        found = await self._api.describe(is_fenced_included=request.include_fenced_brokers)
        return pb.DescribeClusterResponse(
            cluster_id=found.cluster_id,
            root=found.root_url,
            controller_id=found.controller_id,
            controller_epoch=found.controller_epoch,
            feature_level=found.feature_level,
            brokers=map(self._encode, found.brokers),
            under_replicated_partitions=found.under_replicated_count,
            offline_partitions=found.offline_count,
        )

    async def elect_leaders(self, request: pb.ElectLeadersRequest) -> pb.ElectLeadersResponse:
        named = partitions_of(request.topics)
        response = pb.ElectLeadersResponse()
        if request.topics and not named:
            return response
        answers = await self._api.elect_leaders(named)
        elected = (_elected(partition, answer) for partition, answer in answers.items())
        await self._shares.begin().extend(response.partitions, elected)
        return response

    async def alter_reassignments(
        self, request: pb.AlterPartitionReassignmentsRequest
    ) -> pb.AlterPartitionReassignmentsResponse:
        asked = [
            (TopicPartition(one.topic, one.partition), None if one.cancel else tuple(one.replica_ids))
            for one in request.partitions
        ]
        response = pb.AlterPartitionReassignmentsResponse()
        for (partition, _), refusal in zip(asked, await self._api.reassign_partitions(asked), strict=True):
            result = response.partitions.add(topic=partition.topic, partition=partition.partition)
            if refusal is not None:
                with_error(result, refusal)
        return response

    async def list_reassignments(
        self, _: pb.ListPartitionReassignmentsRequest
    ) -> pb.ListPartitionReassignmentsResponse:
        """None is ever under way: a reassignment counts as soon as it is committed."""
        return pb.ListPartitionReassignmentsResponse()

    async def unregister_broker(self, request: pb.UnregisterBrokerRequest) -> pb.UnregisterBrokerResponse:
        refusal = await self._api.unregister_broker(request.broker_id)
        response = pb.UnregisterBrokerResponse()
        return response if refusal is None else with_error(response, refusal)

    async def update_features(self, request: pb.UpdateFeaturesRequest) -> pb.UpdateFeaturesResponse:
        refusal = await self._api.update_feature(request.feature, request.level, validate_only=request.validate_only)
        response = pb.UpdateFeaturesResponse()
        return response if refusal is None else with_error(response, refusal)


def _broker(described: DescribedBroker, *, listener: str) -> pb.ClusterBroker:
    """Of a broker that has no such listener, the host is empty."""
    broker = described.broker
    seen = broker.endpoint.at(listener) or BrokerEndpoint(broker.broker_id, "", 0)
    return pb.ClusterBroker(
        broker_id=broker.broker_id,
        host=seen.host,
        port=seen.port,
        rack=broker.rack or "",
        is_fenced=broker.is_fenced,
        broker_epoch=broker.broker_epoch,
        incarnation_id=broker.incarnation,
        leader_count=described.leader_count,
        replica_count=described.replica_count,
        min_feature_level=broker.level_min,
        max_feature_level=broker.level_max,
    )


def _elected(partition: TopicPartition, answer: int | Refused) -> pb.ElectedLeader:
    elected = pb.ElectedLeader(topic=partition.topic, partition=partition.partition)
    if isinstance(answer, Refused):
        return with_error(elected, answer)
    elected.leader_id = answer
    return elected
