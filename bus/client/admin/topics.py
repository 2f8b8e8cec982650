"""The administrator's calls about topics: messages to values and back."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from bus.client.admin.broker_calls import BrokerCalls
from bus.client.admin.failures import raise_failures
from bus.client.connection.cluster import Cluster, error_of
from bus.client.connection.portions import CHANGES_MAX, portions
from bus.client.values import NewTopic, PartitionDescription, TopicDescription
from bus.grpc_api.v1 import bus_pb2 as pb


class TopicAdmin:
    """Every method blocks until the broker's answer and raises `BusError`."""

    def __init__(self, cluster: Cluster, calls: BrokerCalls) -> None:
        self._cluster = cluster
        self._calls = calls

    def create(self, topics: Iterable[tuple[NewTopic, Mapping[str, str]]], *, validate_only: bool) -> dict[str, str]:
        """Each with its configs as texts."""
        wanted = [
            pb.NewTopic(
                name=topic.name,
                partitions=-1 if topic.partitions is None else topic.partitions,
                configs=configs,
                replication_factor=-1 if topic.replication_factor is None else topic.replication_factor,
                replica_assignment=[pb.ReplicaList(broker_ids=ids) for ids in topic.replica_assignment],
            )
            for topic, configs in topics
        ]
        some_at_a_time = portions(
            wanted, CHANGES_MAX, lambda topic: 1 + len(topic.configs) + len(topic.replica_assignment)
        )
        results = self._change(
            "CreateTopics",
            [pb.CreateTopicsRequest(topics=some, validate_only=validate_only) for some in some_at_a_time],
        )
        return {result.name: result.topic_id for result in results}

    def delete(self, names: Sequence[str]) -> None:
        self._change("DeleteTopics", [pb.DeleteTopicsRequest(topics=some) for some in portions(names, CHANGES_MAX)])
        self._cluster.forget(names)

    def create_partitions(
        self, totals: Mapping[str, int], assigned: Mapping[str, Sequence[Sequence[int]]], *, validate_only: bool
    ) -> None:
        wanted = [
            pb.NewPartitions(
                name=name,
                partitions=total,
                replica_assignment=[pb.ReplicaList(broker_ids=ids) for ids in assigned.get(name, ())],
            )
            for name, total in totals.items()
        ]
        self._change(
            "CreatePartitions",
            [
                pb.CreatePartitionsRequest(topics=some, validate_only=validate_only)
                for some in portions(wanted, CHANGES_MAX, lambda topic: 1 + len(topic.replica_assignment))
            ],
        )
        self._cluster.forget(totals)

    def list(self, *, include_internal: bool) -> list[str]:
        response = self._calls.describe()
        return sorted(topic.name for topic in response.topics if include_internal or not topic.is_internal)

    def describe(self, names: Sequence[str]) -> dict[str, TopicDescription]:
        response = self._calls.describe(names)
        raise_failures([(topic.name, topic.error_code, topic.error_message) for topic in response.topics])
        return {topic.name: _description(topic) for topic in response.topics}

    def _change(self, method: str, requests: Iterable[Any]) -> Sequence[Any]:
        results = [result for request in requests for result in self._calls.on_controller(method, request).topics]
        raise_failures([(result.name, result.error_code, result.error_message) for result in results])
        return results


def _description(topic: pb.TopicMetadata) -> TopicDescription:
    partitions = [
        PartitionDescription(
            partition=partition.partition,
            leader_id=partition.leader_id,
            leader_epoch=partition.leader_epoch,
            error=str(error_of(partition.error_code, partition.error_message)) if partition.error_code else None,
            replicas=tuple(partition.replica_ids),
            isr=tuple(partition.isr_ids),
            is_offline=partition.is_offline,
        )
        for partition in topic.partitions
    ]
    return TopicDescription(
        name=topic.name,
        topic_id=topic.topic_id,
        is_internal=topic.is_internal,
        partitions=tuple(sorted(partitions, key=lambda partition: partition.partition)),
    )
