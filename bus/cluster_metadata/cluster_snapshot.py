"""The cluster's state as records, so that the metadata log need not be kept from its beginning.

A snapshot is ordinary records between `SnapshotBegan` and `SnapshotEnded`, written as one commit: a replay of it
gives the state, and needs no record before it. Guards one promise: `replay(snapshot_of(state)) == state`, which the
broker checks before it writes a snapshot. `is_snapshot_due` bounds both what is replayed and what is written: a
snapshot costs as many rows as it has, so it waits for as many records of changes.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from bus.cluster_metadata.cluster import ClusterState, Topic
from bus.cluster_metadata.cluster_records import (
    BrokerRegistered,
    ClusterRecord,
    LeadersChanged,
    PartitionsAdded,
    ProducerIdsAllocated,
    ProducerIdsRetired,
    ProducerNamed,
    ProducerUsed,
    SnapshotBegan,
    SnapshotEnded,
    TopicConfigChanged,
    TopicCreated,
    TopicDeleted,
    ViewCreated,
)

# A smaller log is read in no time.
_RECORDS_MIN = 200


def is_snapshot_due(log_records: int, state: ClusterState) -> bool:
    """`log_records` is how many the log has, with the snapshot that it begins with."""
    return log_records > max(_RECORDS_MIN, 3 * _size_of(state))


def _size_of(state: ClusterState) -> int:
    """About as many records as its snapshot has."""
    topics = sum(2 + len(topic.configs) for topic in state.topics.values())
    producers = 2 * len(state.producers.by_name) + len(state.producers.retired.ranges)
    return topics + producers + len(state.views) + len(state.brokers) + 2 * len(state.deleted_topics)


def snapshot_of(state: ClusterState) -> list[ClusterRecord]:
    """In an order in which each record can be applied to those before it."""
    records = [*_brokers(state), *_topics(state), *_producers(state), *_views(state)]
    return [SnapshotBegan(len(records)), *records, SnapshotEnded(len(records))]


def _brokers(state: ClusterState) -> Iterator[ClusterRecord]:
    for broker in state.brokers.values():
        yield BrokerRegistered(broker.broker_id, broker.host, broker.port)


def _topics(state: ClusterState) -> Iterator[ClusterRecord]:
    for topic_id, name in state.deleted_topics.items():
        yield TopicCreated(name, topic_id, 1, next(iter(state.brokers)))
        yield TopicDeleted(name, topic_id)
    for topic in state.topics.values():
        yield from _leaders(topic)
        for key, value in topic.configs.items():
            yield TopicConfigChanged(topic.name, topic.topic_id, key, value)


def _leaders(topic: Topic) -> Iterator[ClusterRecord]:
    """By runs of neighbours that are led alike."""
    end = 0
    for leadership, run in itertools.groupby(topic.partitions):
        first, end = end, end + sum(1 for _ in run)
        leader_id = leadership.leader_id
        if first == 0:
            yield TopicCreated(topic.name, topic.topic_id, end, leader_id)
        else:
            yield PartitionsAdded(topic.name, topic.topic_id, end, leader_id)
        if leadership.leader_epoch > 0:
            yield LeadersChanged(topic.name, topic.topic_id, first, end - first, leader_id, leadership.leader_epoch)


def _producers(state: ClusterState) -> Iterator[ClusterRecord]:
    producers = state.producers
    if producers.next_producer_id:
        yield ProducerIdsAllocated(next(iter(state.brokers), 0), producers.next_producer_id)
    for first, next_id in producers.retired.ranges:
        yield ProducerIdsRetired(first, next_id)
    for named in producers.by_name.values():
        yield ProducerNamed(named.name, named.producer_id, named.producer_epoch, named.last_producer_epoch)
        if named.used_ms is not None:
            yield ProducerUsed(named.name, named.used_ms)


def _views(state: ClusterState) -> Iterator[ClusterRecord]:
    for view in state.views.values():
        yield ViewCreated(view.name, view.topic, view.schema, ",".join(view.columns))
