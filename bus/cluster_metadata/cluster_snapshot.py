"""The cluster's state as records, so that the metadata log need not be kept from its beginning.

A snapshot is ordinary records between `SnapshotBegan` and `SnapshotEnded`, written as one commit: a replay of it
gives the state, and needs no record before it. Guards one promise: `replay(snapshot_of(state)) == state`, which the
broker checks before it writes a snapshot. `is_snapshot_due` bounds both what is replayed and what is written: a
snapshot costs as many rows as it has, so it waits for as many records of changes.
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Iterator

from bus.client_quotas.quotas import encode_entity, encode_quotas
from bus.cluster_metadata.cluster_draft import ClusterState, Topic
from bus.cluster_metadata.cluster_records import (
    BUS_VERSION,
    AclAdded,
    BrokerFenced,
    BrokerListeners,
    BrokerRegistered,
    BrokerStarted,
    BrokerUnfenced,
    BrokerUnregistered,
    ClientQuotaChanged,
    ClusterRecord,
    ControllerElected,
    FeatureLevel,
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
    assign_replicas,
    encode_acl,
    encode_listeners,
)
from bus.cluster_metadata.cluster_state import Broker

# A smaller log is read in no time.
_RECORDS_MIN = 200


def is_snapshot_due(log_records: int, state: ClusterState) -> bool:
    """`log_records` is how many the log has, with the snapshot that it begins with."""
    if log_records <= max(_RECORDS_MIN, 3 * _size_without_leaders(state)):
        return False
    # Partitions of a topic that are led alike have one object.
    changes = sum(sum(map(operator.is_not, topic.partitions, topic.partitions[1:])) for topic in state.topics.values())
    return log_records > 3 * (_size_without_leaders(state) + 2 * changes)


def _size_without_leaders(state: ClusterState) -> int:
    """About as many records as the snapshot has if the partitions of each topic are led alike."""
    topics = sum(2 + len(topic.configs) + bool(topic.assignments) for topic in state.topics.values())
    producers = 2 * len(state.producers.by_name) + len(state.producers.retired.ranges)
    return (
        topics
        + producers
        + len(state.views)
        + len(state.quotas)
        + len(state.acls)
        + 2 * len(state.brokers)
        + 2 * len(state.deleted_topics)
    )


def snapshot_of(state: ClusterState) -> list[ClusterRecord]:
    """In an order in which each record can be applied to those before it."""
    records = [*_brokers(state), *_topics(state), *_producers(state), *_views(state), *_quotas(state), *_acls(state)]
    return [SnapshotBegan(len(records)), *records, SnapshotEnded(len(records))]


def _brokers(state: ClusterState) -> Iterator[ClusterRecord]:
    """The broker epochs rise in their order."""
    if state.level:
        yield FeatureLevel(BUS_VERSION, state.level)
    if state.controller is not None:
        yield ControllerElected(state.controller.broker_id, state.controller.incarnation)
    brokers = sorted(state.brokers.values(), key=lambda broker: broker.broker_epoch)
    for broker in brokers:
        endpoint = broker.endpoint
        if broker.broker_epoch == 0:
            yield BrokerRegistered(endpoint.broker_id, endpoint.host, endpoint.port)
            if broker.is_fenced:
                yield BrokerFenced(endpoint.broker_id, 0)
        else:
            yield _started(broker)
            if endpoint.listeners:
                text = encode_listeners(endpoint.listeners)
                yield BrokerListeners(endpoint.broker_id, broker.broker_epoch, text)
            if not broker.is_fenced:
                yield BrokerUnfenced(endpoint.broker_id, broker.broker_epoch)
    if state.broker_epoch_max > max((broker.broker_epoch for broker in brokers), default=0):
        # The broker that had the last epoch is not registered any more: the epoch stays given.
        last = next(number for number in itertools.count() if number not in state.brokers)
        yield BrokerStarted(last, "", 0, None, "", state.broker_epoch_max, 0, 0)
        yield BrokerUnregistered(last)


def _started(broker: Broker) -> BrokerStarted:
    endpoint = broker.endpoint
    return BrokerStarted(
        endpoint.broker_id,
        endpoint.host,
        endpoint.port,
        broker.rack,
        broker.incarnation,
        broker.broker_epoch,
        broker.level_min,
        broker.level_max,
    )


def _topics(state: ClusterState) -> Iterator[ClusterRecord]:
    for topic_id, name in state.deleted_topics.items():
        yield TopicCreated(name, topic_id, 1, next(iter(state.brokers)))
        yield TopicDeleted(name, topic_id)
    for topic in state.topics.values():
        yield from _leaders(topic)
        if topic.assignments:
            yield from _replicas(topic)
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


def _replicas(topic: Topic) -> Iterator[ClusterRecord]:
    for is_assigned, run in itertools.groupby(enumerate(topic.assignments), key=lambda one: bool(one[1])):
        if is_assigned:
            numbers, lists = zip(*run, strict=True)
            yield assign_replicas(topic.name, topic.topic_id, numbers[0], lists)


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


def _quotas(state: ClusterState) -> Iterator[ClusterRecord]:
    for entity, quotas in state.quotas.items():
        yield ClientQuotaChanged(encode_entity(entity), encode_quotas(quotas))


def _acls(state: ClusterState) -> Iterator[ClusterRecord]:
    """In the order in which they were added, which decides which of several is told as the one that allows."""
    for acl in state.acls:
        yield AclAdded(encode_acl(acl))
