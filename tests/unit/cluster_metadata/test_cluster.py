"""What each record does to the cluster, and which records cannot be."""

from __future__ import annotations

import pytest

from bus.cluster_metadata.cluster import EMPTY_CLUSTER, ClusterState, Leadership, Topic, apply, replay_cluster
from bus.cluster_metadata.cluster_records import (
    BrokerRegistered,
    BrokerUnregistered,
    ClusterRecord,
    LeaderChanged,
    PartitionsAdded,
    TopicConfigChanged,
    TopicCreated,
    TopicDeleted,
    TopicFilesDeleted,
    encode_record,
)
from bus.model import BrokerEndpoint, TopicPartition


def cluster(*records: ClusterRecord) -> ClusterState:
    state = EMPTY_CLUSTER
    for record in (BrokerRegistered(0, "a", 1), BrokerRegistered(1, "b", 2), *records):
        state = apply(state, record)
    return state


ORDERS = TopicCreated("orders", "id-1", 2, 0)


def test_broker_registered_again_has_its_newest_address() -> None:
    state = cluster(BrokerRegistered(0, "c", 3))
    assert state.brokers == {0: BrokerEndpoint(0, "c", 3), 1: BrokerEndpoint(1, "b", 2)}


def test_broker_unregistered_is_gone() -> None:
    assert cluster(BrokerUnregistered(1)).brokers == {0: BrokerEndpoint(0, "a", 1)}


def test_topic_created_is_found_by_name_id_and_partition() -> None:
    state = cluster(ORDERS)
    topic = Topic("orders", "id-1", (Leadership(0, 0), Leadership(0, 0)))
    assert state.topics == {"orders": topic}
    assert state.topic_by_id("id-1") == topic
    assert state.topic_by_id("id-2") is None
    assert state.leadership(TopicPartition("orders", 1)) == Leadership(0, 0)
    for nothing in (TopicPartition("orders", 2), TopicPartition("orders", -1), TopicPartition("other", 0)):
        assert state.leadership(nothing) is None


def test_partitions_added_keep_the_old_ones_and_begin_at_epoch_0() -> None:
    state = cluster(ORDERS, LeaderChanged("orders", "id-1", 1, 0, 5), PartitionsAdded("orders", "id-1", 4, 1))
    assert state.topics["orders"].partitions == (
        Leadership(0, 0),
        Leadership(0, 5),
        Leadership(1, 0),
        Leadership(1, 0),
    )


def test_leader_changed_touches_one_partition() -> None:
    state = cluster(ORDERS, LeaderChanged("orders", "id-1", 0, 1, 1))
    assert state.topics["orders"].partitions == (Leadership(1, 1), Leadership(0, 0))
    assert list(state.partitions_led_by(1)) == [TopicPartition("orders", 0)]
    assert list(state.partitions_led_by(0)) == [TopicPartition("orders", 1)]


def test_config_changed_sets_replaces_and_removes_the_override() -> None:
    state = cluster(ORDERS, TopicConfigChanged("orders", "id-1", "retention.ms", "1"))
    assert state.topics["orders"].configs == {"retention.ms": "1"}
    state = apply(state, TopicConfigChanged("orders", "id-1", "retention.ms", "2"))
    assert state.topics["orders"].configs == {"retention.ms": "2"}
    state = apply(state, TopicConfigChanged("orders", "id-1", "retention.ms", None))
    assert state.topics["orders"].configs == {}


def test_topic_deleted_is_remembered_by_id_until_its_files_are_gone() -> None:
    state = cluster(ORDERS, TopicDeleted("orders", "id-1"))
    assert (state.topics, state.topic_names, state.collisions) == ({}, {}, {})
    assert state.deleted_topics == {"id-1": "orders"}
    assert apply(state, TopicFilesDeleted("id-1")) == cluster()


def test_topic_of_the_same_name_may_follow_while_the_old_files_are_there() -> None:
    state = cluster(ORDERS, TopicDeleted("orders", "id-1"), TopicCreated("orders", "id-2", 1, 0))
    assert state.topics["orders"].topic_id == "id-2"
    assert state.deleted_topics == {"id-1": "orders"}


def test_earlier_state_is_untouched_by_what_follows() -> None:
    before = cluster(ORDERS)
    apply(before, TopicConfigChanged("orders", "id-1", "retention.ms", "1"))
    apply(before, TopicDeleted("orders", "id-1"))
    assert before == cluster(ORDERS)


@pytest.mark.parametrize(
    ("record", "broken"),
    [
        (BrokerUnregistered(7), "expected broker 7 to be registered"),
        (BrokerUnregistered(0), "expected broker 0 to lead nothing, found that it leads orders-0"),
        (TopicCreated("orders", "id-2", 1, 0), "collides with orders, found orders"),
        (TopicCreated("a.b", "id-2", 1, 0), "collides with a.b, found a_b"),
        (TopicCreated("new", "id-1", 1, 0), "expected a new topic id for new, found id-1"),
        (TopicCreated("new", "id-9", 1, 0), "expected a new topic id for new, found id-9"),
        (TopicCreated("new", "id-2", 0, 0), "expected at least one partition of new, found 0"),
        (TopicCreated("new", "id-2", 1, 7), "expected a registered leader, found broker 7"),
        (PartitionsAdded("orders", "id-1", 2, 0), "expected more than the 2 partitions of orders, found 2"),
        (PartitionsAdded("orders", "id-1", 3, 7), "expected a registered leader, found broker 7"),
        (LeaderChanged("orders", "id-1", 2, 0, 9), "expected a partition of orders below 2, found 2"),
        (LeaderChanged("orders", "id-1", 0, 7, 9), "expected a registered leader, found broker 7"),
        (LeaderChanged("orders", "id-1", 0, 0, 0), "leader epoch of orders-0 went from 0 to 0"),
        (LeaderChanged("orders", "id-0", 0, 0, 9), "expected topic id id-1 for orders, found id-0"),
        (TopicConfigChanged("none", "id-1", "retention.ms", "1"), "expected a topic none, found none"),
        (TopicDeleted("orders", "id-0"), "expected topic id id-1 for orders, found id-0"),
        (TopicFilesDeleted("id-1"), "expected topic id id-1 among the deleted ones"),
    ],
)
def test_record_that_breaks_an_invariant_stops_the_machine(record: ClusterRecord, broken: str) -> None:
    state = cluster(
        ORDERS,
        TopicCreated("a_b", "id-8", 1, 1),
        TopicCreated("old", "id-9", 1, 1),
        TopicDeleted("old", "id-9"),
    )
    with pytest.raises(AssertionError, match=broken):
        apply(state, record)


def test_log_that_contradicts_itself_is_refused_with_the_offset() -> None:
    rows = [encode_record(record) for record in (BrokerRegistered(0, "a", 1), ORDERS, ORDERS)]
    assert replay_cluster(rows[:2]).topics.keys() == {"orders"}
    with pytest.raises(ValueError, match="record at offset 2 of the cluster metadata: expected no topic whose name"):
        replay_cluster(rows)


def test_log_with_a_row_of_a_newer_version_is_refused_with_the_offset() -> None:
    rows = [encode_record(BrokerRegistered(0, "a", 1)), {"type": "TopicMoved", "topic": "orders"}]
    with pytest.raises(ValueError, match=r"record at offset 1 .* found 'TopicMoved': written by a newer version\?"):
        replay_cluster(rows)
