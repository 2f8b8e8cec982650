"""What the cluster knows of itself, as values: topics, partitions and leaders, configs, brokers, producers, views.

Immutable, so a reader may keep one as long as it likes. How a state comes about is cluster.py's.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from bus.authorization.index import NO_ACLS, AclIndex
from bus.client_quotas.entities import QuotaEntity
from bus.client_quotas.quotas import Quotas
from bus.cluster_metadata.producer_ids import ProducerIds
from bus.json_views import JsonView
from bus.model import BrokerEndpoint, TopicPartition


@dataclass(frozen=True, slots=True)
class Leadership:
    leader_id: int
    leader_epoch: int  # >= 0; 0 for a new partition


@dataclass(frozen=True, slots=True)
class Topic:
    name: str
    topic_id: str
    partitions: tuple[Leadership, ...]  # never empty; the place is the partition's number
    configs: Mapping[str, str] = field(default_factory=dict)  # overrides in canonical text
    # As they were assigned, () for a partition that has none; empty if no partition has any, else one each.
    assignments: tuple[tuple[int, ...], ...] = ()

    def replicas(self, partition: int) -> tuple[int, ...]:
        """Never empty; the first one is the preferred leader. A partition without an assignment has its leader only."""
        assigned = self.assignments[partition] if self.assignments else ()
        return assigned or (self.partitions[partition].leader_id,)


@dataclass(frozen=True, slots=True)
class Broker:
    """A registered broker. Without more than an endpoint it was registered at level 0, where a root has one broker."""

    endpoint: BrokerEndpoint
    rack: str | None = None
    incarnation: str = ""
    broker_epoch: int = 0  # > 0 of a broker that registered at level 1
    is_fenced: bool = False
    level_min: int = 0  # levels of bus.version
    level_max: int = 0

    @property
    def broker_id(self) -> int:
        return self.endpoint.broker_id

    @property
    def life(self) -> tuple[str, int]:
        return self.incarnation, self.broker_epoch


@dataclass(frozen=True, slots=True)
class ElectedController:
    broker_id: int
    incarnation: str


@dataclass(frozen=True, slots=True)
class ClusterState:
    """Every look-up is one step. `topic_names`, `collisions` and the counts follow from `topics`.

    Invariants: every leader and every replica is in `brokers`, no partition has a replica twice; no id is both in
    `topic_names` and in `deleted_topics`.
    """

    topics: Mapping[str, Topic] = field(default_factory=dict)  # by name
    topic_names: Mapping[str, str] = field(default_factory=dict)  # by topic id
    collisions: Mapping[str, str] = field(default_factory=dict)  # collision_key(name) -> name
    brokers: Mapping[int, Broker] = field(default_factory=dict)  # by broker id
    leader_counts: Mapping[int, int] = field(default_factory=dict)  # by id of a broker that leads any partition
    preferred_counts: Mapping[int, int] = field(default_factory=dict)  # by id of the first replica of any partition
    broker_epoch_max: int = 0  # that was ever given
    controller: ElectedController | None = None  # None: none was elected since the cluster has level 1
    level: int = 0  # of bus.version
    deleted_topics: Mapping[str, str] = field(default_factory=dict)  # topic id -> name, while files may be there
    producers: ProducerIds = field(default_factory=ProducerIds)
    views: Mapping[str, JsonView] = field(default_factory=dict)  # by casefolded name; the topic may be gone
    quotas: Mapping[QuotaEntity, Quotas] = field(default_factory=dict)  # of those that have any
    acls: AclIndex = NO_ACLS

    def topic_by_id(self, topic_id: str) -> Topic | None:
        name = self.topic_names.get(topic_id)
        return None if name is None else self.topics[name]

    def leadership(self, partition: TopicPartition) -> Leadership | None:
        """None if there is no such topic or partition."""
        topic = self.topics.get(partition.topic)
        if topic is None or not 0 <= partition.partition < len(topic.partitions):
            return None
        return topic.partitions[partition.partition]

    @property
    def unfenced_brokers(self) -> list[int]:
        """Ascending."""
        return sorted(broker_id for broker_id, broker in self.brokers.items() if not broker.is_fenced)

    def is_alone(self, broker_id: int) -> bool:
        """Whether no other broker than that one is registered, fenced or not: then none can be at work."""
        return self.brokers.keys() <= {broker_id}

    def partitions_led_by(self, broker_id: int) -> Iterator[TopicPartition]:
        """In the order of topic creation and partition number."""
        for topic in self.topics.values():
            for number, leadership in enumerate(topic.partitions):
                if leadership.leader_id == broker_id:
                    yield TopicPartition(topic.name, number)


EMPTY_CLUSTER = ClusterState()
