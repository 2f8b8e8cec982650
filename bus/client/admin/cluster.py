"""The administrator's calls about brokers: what the cluster consists of, who leads and follows, features."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from bus.client.admin.broker_calls import raise_failures
from bus.client.connection.cluster import error_of
from bus.client.connection.retrying import CHANGES_MAX, portions
from bus.client.values import BrokerDescription, ClusterDescription, PartitionReassignment
from bus.errors import ErrorCode
from bus.grpc_api.v1 import bus_pb2 as pb
from bus.model import TopicPartition


class ClusterAdmin:
    """`on_controller` and `retrying` call the broker, once or until it answers; both raise `BusError`."""

    def __init__(self, on_controller: Callable[[str, Any], Any], retrying: Callable[[str, Any], Any]) -> None:
        self._on_controller = on_controller
        self._retrying = retrying

    def describe(self, *, include_fenced_brokers: bool) -> ClusterDescription:
        request = pb.DescribeClusterRequest(include_fenced_brokers=include_fenced_brokers)
        response = _checked(self._retrying("DescribeCluster", request))
        return ClusterDescription(
            cluster_id=response.cluster_id,
            controller_id=response.controller_id,
            brokers=tuple(map(_broker, response.brokers)),
            root_url=response.root,
            controller_epoch=response.controller_epoch,
            feature_level=response.feature_level,
            under_replicated_partitions=response.under_replicated_partitions,
            offline_partitions=response.offline_partitions,
        )

    def elect_leaders(self, partitions: Sequence[TopicPartition] | None) -> dict[TopicPartition, int]:
        if partitions is None:
            elected: dict[TopicPartition, int] = {}
            while more := self._elect([]):
                elected.update(more)
            return elected
        return {one: leader for some in portions(partitions, CHANGES_MAX) for one, leader in self._elect(some).items()}

    def _elect(self, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
        topics = [pb.TopicPartitions(topic=one.topic, partitions=[one.partition]) for one in partitions]
        response = _checked(self._on_controller("ElectLeaders", pb.ElectLeadersRequest(topics=topics)))
        needed = [one for one in response.partitions if one.error_code != ErrorCode.ELECTION_NOT_NEEDED]
        raise_failures([(f"{one.topic}-{one.partition}", one.error_code, one.error_message) for one in needed])
        return {TopicPartition(one.topic, one.partition): one.leader_id for one in needed}

    def alter_reassignments(self, assignments: Mapping[TopicPartition, Sequence[int] | None]) -> None:
        wanted = [
            pb.PartitionReassignment(
                topic=partition.topic,
                partition=partition.partition,
                replica_ids=replicas or (),
                cancel=replicas is None,
            )
            for partition, replicas in assignments.items()
        ]
        results = []
        for portion in portions(wanted, CHANGES_MAX, lambda one: 1 + len(one.replica_ids)):
            request = pb.AlterPartitionReassignmentsRequest(partitions=portion)
            results += _checked(self._on_controller("AlterPartitionReassignments", request)).partitions
        raise_failures([(f"{one.topic}-{one.partition}", one.error_code, one.error_message) for one in results])

    def list_reassignments(self) -> dict[TopicPartition, PartitionReassignment]:
        response = _checked(self._retrying("ListPartitionReassignments", pb.ListPartitionReassignmentsRequest()))
        return {
            TopicPartition(one.topic, one.partition): PartitionReassignment(
                tuple(one.replica_ids), tuple(one.adding_replica_ids), tuple(one.removing_replica_ids)
            )
            for one in response.partitions
        }

    def unregister_broker(self, broker_id: int) -> None:
        self._done("UnregisterBroker", pb.UnregisterBrokerRequest(broker_id=broker_id))

    def update_features(self, levels: Mapping[str, int], *, validate_only: bool) -> None:
        for feature, level in levels.items():
            request = pb.UpdateFeaturesRequest(feature=feature, level=level, validate_only=validate_only)
            self._done("UpdateFeatures", request)

    def _done(self, method: str, request: Any) -> None:
        _checked(self._on_controller(method, request))


def _checked(response: Any) -> Any:
    """Raises the `BusError` by which a request was refused as a whole."""
    if response.error_code:
        raise error_of(response.error_code, response.error_message)
    return response


def _broker(broker: pb.ClusterBroker) -> BrokerDescription:
    return BrokerDescription(
        broker_id=broker.broker_id,
        host=broker.host,
        port=broker.port,
        rack=broker.rack or None,
        is_fenced=broker.is_fenced,
        broker_epoch=broker.broker_epoch,
        incarnation_id=broker.incarnation_id,
        leader_count=broker.leader_count,
        replica_count=broker.replica_count,
        feature_levels=(broker.min_feature_level, broker.max_feature_level),
    )
