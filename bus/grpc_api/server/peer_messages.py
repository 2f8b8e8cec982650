"""Values of calls between brokers as messages and back, for the broker that asks and for the one that answers.

As in `bus.grpc_api.value_messages`, each kind of value is one `Mapper`. What brokers say to each other about
transactions is in `bus.grpc_api.server.transactions`.
"""

from __future__ import annotations

from collections.abc import Iterable

from bus.cluster_metadata.broker_decisions import BrokerIdentity, RegisterBroker
from bus.cluster_metadata.cluster_decisions import RaiseLeaderEpoch
from bus.grpc_api.v1 import bus_pb2 as pb
from bus.grpc_api.value_messages import Field, Mapper, each, inlined, none_as
from bus.model import BrokerEndpoint, ListenerAddress, TopicPartition
from bus.runtime.metadata.peers import BrokerHeartbeat, HeartbeatAnswer, Registered
from bus.runtime.replicas.followed_tables import CommittedVersion, FollowerReport, VersionsAnswer, VersionsRequest
from bus.runtime.replicas.in_sync_replicas import Lagging


def versions_of(topics: Iterable[pb.CommittedVersionsOfTopic]) -> list[CommittedVersion]:
    """A partition without a version, or a version without a partition, is nothing."""
    return [
        CommittedVersion(TopicPartition(topic.topic, partition), topic.topic_id, version)
        for topic in topics
        for partition, version in zip(topic.partitions, topic.versions, strict=False)
    ]


def topics_of(versions: Iterable[CommittedVersion]) -> list[pb.CommittedVersionsOfTopic]:
    topics: dict[str, pb.CommittedVersionsOfTopic] = {}
    for found in versions:
        topic = topics.get(found.topic_id)
        if topic is None:
            topic = pb.CommittedVersionsOfTopic(topic=found.name.topic, topic_id=found.topic_id)
            topics[found.topic_id] = topic
        topic.partitions.append(found.name.partition)
        topic.versions.append(found.version)
    return list(topics.values())


def lagging_of(lagging: Iterable[pb.LaggingReplicas]) -> dict[TopicPartition, tuple[int, ...]]:
    return {TopicPartition(one.topic, one.partition): tuple(one.broker_ids) for one in lagging}


def encode_lagging(lagging: Lagging) -> list[pb.LaggingReplicas]:
    return [
        pb.LaggingReplicas(topic=name.topic, partition=name.partition, broker_ids=broker_ids)
        for name, broker_ids in lagging.items()
    ]


def _versions(name: str) -> Field:
    return Field(lambda value: {name: topics_of(value)}, lambda found: versions_of(getattr(found, name)))


_LAGGING = Field(lambda value: {"lagging": encode_lagging(value)}, lambda found: lagging_of(found.lagging))


_PARTITION = Field(
    lambda value: {"topic": value.topic, "partition": value.partition},
    lambda found: TopicPartition(found.topic, found.partition),
)

IDENTITY = Mapper(BrokerIdentity, pb.IdentifyBrokerResponse, columns={"incarnation": "incarnation_id"})
REGISTRATION = Mapper(
    RegisterBroker,
    pb.RegisterBrokerRequest,
    endpoint=inlined(
        Mapper(
            BrokerEndpoint,
            pb.RegisterBrokerRequest,
            listeners=each("listeners", Mapper(ListenerAddress, pb.BrokerListener)),
        )
    ),
    rack=none_as("rack", ""),
    columns={"incarnation": "incarnation_id", "level_min": "min_feature_level", "level_max": "max_feature_level"},
)
REGISTERED = Mapper(Registered, pb.RegisterBrokerResponse)
HEARTBEAT = Mapper(
    BrokerHeartbeat,
    pb.BrokerHeartbeatRequest,
    lagging=_LAGGING,
    columns={"incarnation": "incarnation_id", "wants_shut_down": "want_shut_down", "wants_fence": "want_fence"},
)
HEARTBEAT_ANSWER = Mapper(HeartbeatAnswer, pb.BrokerHeartbeatResponse, lagging=_LAGGING)
VERSIONS_REQUEST = Mapper(
    VersionsRequest,
    pb.CommittedVersionsRequest,
    report=inlined(Mapper(FollowerReport, pb.CommittedVersionsRequest, applied=_versions("applied"))),
    columns={"incarnation": "incarnation_id", "wait_ms_max": "max_wait_ms"},
)
VERSIONS_ANSWER = Mapper(
    VersionsAnswer,
    pb.CommittedVersionsResponse,
    versions=_versions("topics"),
    columns={"incarnation": "incarnation_id"},
)
EPOCH_RAISE = Mapper(
    RaiseLeaderEpoch,
    pb.RaiseLeaderEpochRequest,
    partition=_PARTITION,
    columns={"leader_id": "broker_id"},
)
