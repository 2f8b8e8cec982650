"""What the cluster knows of itself: topics, partitions and their leaders, configs, brokers, producer ids.

A `ClusterState` is the log `__cluster_metadata` replayed, and `apply` is the only way it changes, live and while
loading. Guards these promises: a topic's partitions are never fewer than before, a leader epoch never goes back, a
topic id never stands for two topics, no two topics have names that collide; those of producers stand in
producer_ids.py. Decides nothing (cluster_decisions.py and producer_decisions.py do), does no I/O; states are immutable,
so a reader may keep one as long as it likes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from bus.json_views import JsonView
from bus.model import BrokerEndpoint, TopicPartition
from bus.topics.cluster_records import (
    BrokerRegistered,
    BrokerUnregistered,
    ClusterRecord,
    LeaderChanged,
    PartitionsAdded,
    ProducerIdsAllocated,
    ProducerNamed,
    TopicConfigChanged,
    TopicCreated,
    TopicDeleted,
    TopicFilesDeleted,
    ViewCreated,
    ViewDeleted,
    decode_record,
)
from bus.topics.names import collision_key
from bus.topics.producer_ids import ProducerIds, apply_producer

KeyT = TypeVar("KeyT")
ValueT = TypeVar("ValueT")


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


def replay_cluster(rows: Iterable[Mapping[str, Any]]) -> ClusterState:
    """The state after the rows of the metadata log, in offset order from 0.

    Raises `ValueError` that names the offset for a row that cannot be read or that contradicts those before it.
    """
    state = EMPTY_CLUSTER
    for offset, row in enumerate(rows):
        try:
            state = apply(state, decode_record(row))
        except (ValueError, AssertionError) as error:
            raise ValueError(f"record at offset {offset} of the cluster metadata: {error}") from error
    return state


def apply(state: ClusterState, record: ClusterRecord) -> ClusterState:
    """The only way a cluster changes, live and while loading."""
    match record:
        case BrokerRegistered(broker_id, host, port):
            return replace(state, brokers=_with(state.brokers, broker_id, BrokerEndpoint(broker_id, host, port)))
        case BrokerUnregistered(broker_id):
            assert broker_id in state.brokers, f"expected broker {broker_id} to be registered"
            led = next(state.partitions_led_by(broker_id), None)
            assert led is None, f"expected broker {broker_id} to lead nothing, found that it leads {led}"
            return replace(state, brokers=_without(state.brokers, broker_id))
        case TopicCreated():
            return _create_topic(state, record)
        case PartitionsAdded(_, _, partitions, leader_id):
            topic = _live_topic(state, record)
            count = len(topic.partitions)
            assert partitions > count, f"expected more than the {count} partitions of {topic.name}, found {partitions}"
            added = _new_partitions(state, partitions - count, leader_id)
            return _change_topic(state, replace(topic, partitions=topic.partitions + added))
        case LeaderChanged():
            return _change_leader(state, record)
        case TopicConfigChanged(_, _, name, value):
            topic = _live_topic(state, record)
            configs = _without(topic.configs, name) if value is None else _with(topic.configs, name, value)
            return _change_topic(state, replace(topic, configs=configs))
        case TopicDeleted(name, topic_id):
            _live_topic(state, record)
            return replace(
                state,
                topics=_without(state.topics, name),
                topic_names=_without(state.topic_names, topic_id),
                collisions=_without(state.collisions, collision_key(name)),
                deleted_topics=_with(state.deleted_topics, topic_id, name),
            )
        case TopicFilesDeleted(topic_id):
            assert topic_id in state.deleted_topics, f"expected topic id {topic_id} among the deleted ones"
            return replace(state, deleted_topics=_without(state.deleted_topics, topic_id))
        case ProducerIdsAllocated() | ProducerNamed():
            return replace(state, producers=apply_producer(state.producers, record))
        case ViewCreated(name, topic, schema, columns):
            view = JsonView(name, topic, schema, tuple(columns.split(",")) if columns else ())
            return replace(state, views=_with(state.views, name.casefold(), view))
        case ViewDeleted(name):
            assert name.casefold() in state.views, f"expected a view {name}, found none"
            return replace(state, views=_without(state.views, name.casefold()))


def _create_topic(state: ClusterState, record: TopicCreated) -> ClusterState:
    name, topic_id = record.topic, record.topic_id
    holder = state.collisions.get(collision_key(name))
    assert holder is None, f"expected no topic whose name collides with {name}, found {holder}"
    is_new_id = topic_id not in state.topic_names and topic_id not in state.deleted_topics
    assert is_new_id, f"expected a new topic id for {name}, found {topic_id}, which another topic has"
    assert record.partitions > 0, f"expected at least one partition of {name}, found {record.partitions}"
    topic = Topic(name, topic_id, _new_partitions(state, record.partitions, record.leader_id))
    return replace(
        state,
        topics=_with(state.topics, name, topic),
        topic_names=_with(state.topic_names, topic_id, name),
        collisions=_with(state.collisions, collision_key(name), name),
    )


def _change_leader(state: ClusterState, record: LeaderChanged) -> ClusterState:
    topic = _live_topic(state, record)
    number, epoch = record.partition, record.leader_epoch
    assert number < len(topic.partitions), (
        f"expected a partition of {topic.name} below {len(topic.partitions)}, found {number}"
    )
    assert record.leader_id in state.brokers, f"expected a registered leader, found broker {record.leader_id}"
    before = topic.partitions[number].leader_epoch
    assert epoch > before, f"leader epoch of {topic.name}-{number} went from {before} to {epoch}"
    leadership = Leadership(record.leader_id, epoch)
    return _change_topic(
        state, replace(topic, partitions=(*topic.partitions[:number], leadership, *topic.partitions[number + 1 :]))
    )


def _live_topic(
    state: ClusterState, record: PartitionsAdded | LeaderChanged | TopicConfigChanged | TopicDeleted
) -> Topic:
    topic = state.topics.get(record.topic)
    assert topic is not None, f"expected a topic {record.topic}, found none"
    assert topic.topic_id == record.topic_id, (
        f"expected topic id {topic.topic_id} for {topic.name}, found {record.topic_id}"
    )
    return topic


def _new_partitions(state: ClusterState, count: int, leader_id: int) -> tuple[Leadership, ...]:
    assert leader_id in state.brokers, f"expected a registered leader, found broker {leader_id}"
    return (Leadership(leader_id, 0),) * count


def _change_topic(state: ClusterState, topic: Topic) -> ClusterState:
    return replace(state, topics=_with(state.topics, topic.name, topic))


def _with(mapping: Mapping[KeyT, ValueT], key: KeyT, value: ValueT) -> Mapping[KeyT, ValueT]:
    return {**mapping, key: value}


def _without(mapping: Mapping[KeyT, ValueT], key: KeyT) -> Mapping[KeyT, ValueT]:
    return {other: value for other, value in mapping.items() if other != key}
