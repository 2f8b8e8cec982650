"""What the cluster knows of itself, as values: topics, partitions and leaders, configs, brokers, producers, views.

Immutable, so a reader may keep one as long as it likes. How a state comes about is cluster.py's.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

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


@dataclass(frozen=True, slots=True)
class ClusterState:
    """Every look-up is one step. `topic_names` and `collisions` follow from `topics`.

    Invariants: every leader is in `brokers`; no id is both in `topic_names` and in `deleted_topics`.
    """

    topics: Mapping[str, Topic] = field(default_factory=dict)  # by name
    topic_names: Mapping[str, str] = field(default_factory=dict)  # by topic id
    collisions: Mapping[str, str] = field(default_factory=dict)  # collision_key(name) -> name
    brokers: Mapping[int, BrokerEndpoint] = field(default_factory=dict)  # by broker id
    deleted_topics: Mapping[str, str] = field(default_factory=dict)  # topic id -> name, while files may be there
    producers: ProducerIds = field(default_factory=ProducerIds)
    views: Mapping[str, JsonView] = field(default_factory=dict)  # by casefolded name; the topic may be gone

    def topic_by_id(self, topic_id: str) -> Topic | None:
        name = self.topic_names.get(topic_id)
        return None if name is None else self.topics[name]

    def leadership(self, partition: TopicPartition) -> Leadership | None:
        """None if there is no such topic or partition."""
        topic = self.topics.get(partition.topic)
        if topic is None or not 0 <= partition.partition < len(topic.partitions):
            return None
        return topic.partitions[partition.partition]

    def partitions_led_by(self, broker_id: int) -> Iterator[TopicPartition]:
        """In the order of topic creation and partition number."""
        for topic in self.topics.values():
            for number, leadership in enumerate(topic.partitions):
                if leadership.leader_id == broker_id:
                    yield TopicPartition(topic.name, number)


EMPTY_CLUSTER = ClusterState()
