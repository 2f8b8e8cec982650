"""A snapshot is the state, and is due before the log is much longer than it."""

from __future__ import annotations

import pytest

from bus.cluster_metadata.broker_decisions import RegisterBroker, decide_elect_controller
from bus.cluster_metadata.cluster_draft import ClusterRecord
from bus.cluster_metadata.cluster_records import (
    BrokerRegistered,
    BrokerStarted,
    BrokerUnfenced,
    BrokerUnregistered,
    ControllerElected,
    FeatureLevel,
    LeaderChanged,
    LeaderEpochsRaised,
    LeadersChanged,
    PartitionsAdded,
    ProducerIdsAllocated,
    ProducerNamed,
    ReplicasAssigned,
    SnapshotBegan,
    SnapshotEnded,
    TopicCreated,
    TopicDeleted,
    apply,
    apply_all,
    encode_record,
    is_snapshot_due,
    replay_cluster,
    snapshot_of,
)
from bus.cluster_metadata.cluster_state import EMPTY_CLUSTER, ClusterState, Leadership
from bus.model import BrokerEndpoint

BROKERS = (BrokerRegistered(0, "a", 1), BrokerRegistered(1, "b", 2))


def cluster(*records: ClusterRecord) -> ClusterState:
    return apply_all(EMPTY_CLUSTER, (*BROKERS, *records))


def test_neighbours_that_are_led_alike_are_one_record() -> None:
    state = cluster(
        TopicCreated("gone", "id-0", 3, 0),
        TopicDeleted("gone", "id-0"),
        TopicCreated("t", "id-1", 5, 0),
        LeaderEpochsRaised(0),
        PartitionsAdded("t", "id-1", 6, 1),
        LeaderChanged("t", "id-1", 2, 1, 9),
    )
    assert snapshot_of(state) == [
        SnapshotBegan(11),
        *BROKERS,
        TopicCreated("gone", "id-0", 1, 0),
        TopicDeleted("gone", "id-0"),
        TopicCreated("t", "id-1", 2, 0),
        LeadersChanged("t", "id-1", 0, 2, 0, 1),
        PartitionsAdded("t", "id-1", 3, 1),
        LeadersChanged("t", "id-1", 2, 1, 1, 9),
        PartitionsAdded("t", "id-1", 5, 0),
        LeadersChanged("t", "id-1", 3, 2, 0, 1),
        PartitionsAdded("t", "id-1", 6, 1),
        SnapshotEnded(11),
    ]
    assert apply_all(EMPTY_CLUSTER, snapshot_of(state)) == state


def test_snapshot_of_several_brokers_keeps_their_lives_the_controller_the_level_and_the_replicas() -> None:
    state = cluster(
        FeatureLevel("bus.version", 1),
        ControllerElected(1, "life-1"),
        BrokerStarted(1, "b", 2, "r", "life-1", 1, 0, 1),
        BrokerUnfenced(1, 1),
        BrokerStarted(0, "a", 1, None, "life-2", 2, 0, 1),
        BrokerStarted(2, "c", 3, None, "life-3", 3, 0, 1),
        BrokerUnregistered(2),
        TopicCreated("t", "id-1", 4, 1),
        ReplicasAssigned("t", "id-1", 1, 3, "1,0;0,1;1"),
        TopicCreated("u", "id-2", 2, 1),
        ReplicasAssigned("u", "id-2", 0, 2, "1"),
    )
    snapshot = snapshot_of(state)
    assert snapshot[1:-1] == [
        FeatureLevel("bus.version", 1),
        ControllerElected(1, "life-1"),
        BrokerStarted(1, "b", 2, "r", "life-1", 1, 0, 1),
        BrokerUnfenced(1, 1),
        BrokerStarted(0, "a", 1, None, "life-2", 2, 0, 1),
        BrokerStarted(2, "", 0, None, "", 3, 0, 0),
        BrokerUnregistered(2),
        TopicCreated("t", "id-1", 4, 1),
        ReplicasAssigned("t", "id-1", 1, 3, "1,0;0,1;1"),
        TopicCreated("u", "id-2", 2, 1),
        ReplicasAssigned("u", "id-2", 0, 2, "1"),
    ]
    assert apply_all(EMPTY_CLUSTER, snapshot) == state


def test_snapshot_of_partitions_that_are_led_in_turn_is_not_due_again_at_once() -> None:
    turns = [LeaderChanged("t", "id-1", number, 1, 1) for number in range(0, 1_000, 2)]
    state = cluster(TopicCreated("t", "id-1", 1_000, 0), *turns)
    assert not is_snapshot_due(len(snapshot_of(state)) + 1, state)
    assert not is_snapshot_due(2 * len(snapshot_of(state)), state)
    assert is_snapshot_due(4 * len(snapshot_of(state)), state)


def test_epochs_are_raised_for_what_the_broker_leads_by_then_and_not_for_what_comes_later() -> None:
    records = (
        TopicCreated("t", "id-1", 2, 0),
        TopicCreated("u", "id-2", 1, 1),
        LeaderEpochsRaised(0),
        LeaderEpochsRaised(0),
        PartitionsAdded("t", "id-1", 3, 0),
        TopicCreated("v", "id-3", 1, 0),
        LeaderEpochsRaised(1),
        LeaderChanged("t", "id-1", 1, 1, 7),
        LeaderEpochsRaised(0),
    )
    state = cluster(*records)
    one_by_one = cluster()
    for record in records:
        one_by_one = apply(one_by_one, record)
    assert state == one_by_one
    assert state.topics["t"].partitions == (Leadership(0, 3), Leadership(1, 7), Leadership(0, 1))
    assert state.topics["u"].partitions == (Leadership(1, 1),)
    assert state.topics["v"].partitions == (Leadership(0, 1),)


def test_snapshot_that_is_cut_is_refused() -> None:
    rows = [encode_record(record) for record in snapshot_of(cluster(TopicCreated("t", "id-1", 1, 0)))]
    with pytest.raises(ValueError, match="expected a snapshot of 1 more records, found its end"):
        replay_cluster([*rows[:2], *rows[3:]])
    with pytest.raises(ValueError, match="cluster metadata: expected the end of a snapshot"):
        replay_cluster(rows[:-1])


def test_snapshot_waits_for_as_many_records_of_changes_as_it_has_itself() -> None:
    small = cluster(ProducerIdsAllocated(0, 1000))
    assert not is_snapshot_due(200, small)
    assert is_snapshot_due(201, small)
    large = cluster(
        ProducerIdsAllocated(0, 10_000), *(ProducerNamed(f"p{number}", number, 0, -1) for number in range(5_000))
    )
    assert not is_snapshot_due(3 * len(snapshot_of(large)), large)
    assert is_snapshot_due(10 * len(snapshot_of(large)), large)


def test_thousand_restarts_of_ten_thousand_partitions_cost_no_record_for_each_partition() -> None:
    records: list[ClusterRecord] = [BrokerRegistered(0, "a", 1)]
    records += [TopicCreated(f"t{number}", f"id-{number}", 1, 0) for number in range(10_000)]
    state = apply_all(EMPTY_CLUSTER, records)
    start = decide_elect_controller(state, RegisterBroker(BrokerEndpoint(0, "a", 1), "life")).records
    assert len(start) == 2
    state = apply_all(state, [record for _ in range(1_000) for record in start])
    assert {led for topic in state.topics.values() for led in topic.partitions} == {Leadership(0, 1_000)}
