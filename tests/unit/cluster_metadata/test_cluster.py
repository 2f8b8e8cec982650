"""Effects of each record on the cluster, and records that cannot be applied."""

from __future__ import annotations

import pytest

from bus.cluster_metadata.cluster_draft import ClusterRecord
from bus.cluster_metadata.cluster_records import (
    AclAdded,
    AclRemoved,
    BrokerFenced,
    BrokerListeners,
    BrokerRegistered,
    BrokerStarted,
    BrokerUnfenced,
    BrokerUnregistered,
    ClientQuotaChanged,
    ControllerElected,
    FeatureLevel,
    LeaderChanged,
    PartitionsAdded,
    ReplicasAssigned,
    TopicConfigChanged,
    TopicCreated,
    TopicDeleted,
    TopicFilesDeleted,
    apply,
    encode_record,
    replay_cluster,
)
from bus.cluster_metadata.cluster_state import (
    EMPTY_CLUSTER,
    LEVEL_MAX,
    Broker,
    ClusterState,
    ElectedController,
    Leadership,
    Topic,
)
from bus.model import BrokerEndpoint, TopicPartition
from tests.support.cluster_states import partitions_led_by, topic_by_id


def cluster(*records: ClusterRecord) -> ClusterState:
    state = EMPTY_CLUSTER
    for record in (BrokerRegistered(0, "a", 1), BrokerRegistered(1, "b", 2), *records):
        state = apply(state, record)
    return state


ORDERS = TopicCreated("orders", "id-1", 2, 0)


def test_broker_registered_again_has_its_newest_address() -> None:
    state = cluster(BrokerRegistered(0, "c", 3))
    assert state.brokers == {0: Broker(BrokerEndpoint(0, "c", 3)), 1: Broker(BrokerEndpoint(1, "b", 2))}


def test_broker_unregistered_is_gone() -> None:
    assert cluster(BrokerUnregistered(1)).brokers == {0: Broker(BrokerEndpoint(0, "a", 1))}


LEVEL = FeatureLevel("bus.version", 1)
STARTED = BrokerStarted(1, "c", 3, "r", "life-1", 5, 0, 1)


def test_broker_of_the_old_record_is_unfenced_and_one_that_started_is_fenced_until_it_is_unfenced() -> None:
    state = cluster(LEVEL, STARTED)
    started = Broker(BrokerEndpoint(1, "c", 3), "r", "life-1", 5, True, 0, 1)
    assert state.brokers[1] == started
    assert (state.unfenced_brokers, state.broker_epoch_max, state.level) == ([0], 5, 1)
    state = apply(state, BrokerUnfenced(1, 5))
    assert state.unfenced_brokers == [0, 1]
    assert apply(state, BrokerFenced(1, 5)).brokers[1] == started
    assert apply(state, BrokerFenced(0, 0)).unfenced_brokers == [1]


def test_same_life_of_a_broker_that_registers_again_changes_its_address_only() -> None:
    moved = BrokerStarted(1, "d", 4, None, "life-1", 5, 0, 1)
    assert cluster(LEVEL, STARTED, moved).brokers[1].is_fenced
    state = cluster(LEVEL, STARTED, BrokerUnfenced(1, 5), moved)
    assert state.brokers[1] == Broker(BrokerEndpoint(1, "d", 4), None, "life-1", 5, False, 0, 1)
    state = apply(state, BrokerStarted(1, "d", 4, None, "life-2", 6, 0, 1))
    assert state.brokers[1].is_fenced


def test_broker_epoch_of_a_broker_that_is_gone_stays_given() -> None:
    state = cluster(LEVEL, STARTED, BrokerUnregistered(1))
    with pytest.raises(AssertionError, match="expected a broker epoch above 5 for broker 2, found 5"):
        apply(state, BrokerStarted(2, "c", 3, None, "life-2", 5, 0, 1))


def test_controller_may_be_elected_before_its_broker_is_registered() -> None:
    state = cluster(LEVEL, ControllerElected(7, "life-7"))
    assert state.controller == ElectedController(7, "life-7")


def test_replicas_are_the_assigned_ones_else_the_leader_alone() -> None:
    state = cluster(LEVEL, ORDERS, ReplicasAssigned("orders", "id-1", 1, 1, "1,0"))
    assert state.topics["orders"].assignments == ((), (1, 0))
    assert [state.topics["orders"].replicas(number) for number in (0, 1)] == [(0,), (1, 0)]
    state = apply(state, PartitionsAdded("orders", "id-1", 5, 1))
    assert state.topics["orders"].assignments == ((), (1, 0), (), (), ())
    state = apply(state, ReplicasAssigned("orders", "id-1", 2, 3, "0,1"))
    state = apply(state, ReplicasAssigned("orders", "id-1", 0, 2, "0;1"))
    assert state.topics["orders"].assignments == ((0,), (1,), (0, 1), (0, 1), (0, 1))
    assert state.topics["orders"].partitions[3] == Leadership(1, 0)
    assert cluster(ORDERS).topics["orders"].assignments == ()
    assert cluster(ORDERS).topics["orders"].replicas(1) == (0,)


def test_topic_created_is_found_by_name_id_and_partition() -> None:
    state = cluster(ORDERS)
    topic = Topic("orders", "id-1", (Leadership(0, 0), Leadership(0, 0)))
    assert state.topics == {"orders": topic}
    assert topic_by_id(state, "id-1") == topic
    assert topic_by_id(state, "id-2") is None
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
    assert list(partitions_led_by(state, 1)) == [TopicPartition("orders", 0)]
    assert list(partitions_led_by(state, 0)) == [TopicPartition("orders", 1)]


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
        (FeatureLevel("other", 1), "expected the feature bus.version, found 'other'"),
        (FeatureLevel("bus.version", 0), f"expected a level of bus.version from 1 to {LEVEL_MAX}, found 0"),
        (FeatureLevel("bus.version", LEVEL_MAX + 1), f"found {LEVEL_MAX + 1}: written by a newer version"),
        (STARTED, "expected bus.version 1 before a record BrokerStarted, found 0"),
        (BrokerFenced(0, 0), "expected bus.version 1 before a record BrokerFenced"),
        (BrokerUnfenced(0, 0), "expected bus.version 1 before a record BrokerUnfenced"),
        (ControllerElected(0, "life"), "expected bus.version 1 before a record ControllerElected"),
        (ReplicasAssigned("orders", "id-1", 0, 1, "0"), "expected bus.version 1 before a record ReplicasAssigned"),
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


@pytest.mark.parametrize(
    ("record", "broken"),
    [
        (LEVEL, f"expected a level of bus.version from 2 to {LEVEL_MAX}, found 1"),
        (
            ClientQuotaChanged('{"user": "a"}', None),
            "expected bus.version 3 before a record ClientQuotaChanged, found 1",
        ),
        (BrokerListeners(0, 1, "A:PLAINTEXT://h:1"), "expected bus.version 2 before a record BrokerListeners, found 1"),
        (AclAdded("{}"), "expected bus.version 3 before a record AclAdded, found 1"),
        (AclRemoved("{}"), "expected bus.version 3 before a record AclRemoved, found 1"),
        (BrokerStarted(0, "a", 1, None, "life", 5, 0, 1), "expected a broker epoch above 5 for broker 0, found 5"),
        (BrokerStarted(1, "a", 1, None, "other", 5, 0, 1), "expected a broker epoch above 5 for broker 1, found 5"),
        (BrokerFenced(7, 5), "expected broker 7 to be registered"),
        (BrokerFenced(1, 4), "expected epoch 5 of broker 1, found 4"),
        (BrokerUnfenced(1, 6), "expected epoch 5 of broker 1, found 6"),
        (BrokerUnregistered(1), "expected broker 1 to be no replica, found that it is one of orders-1"),
        (ReplicasAssigned("none", "id-1", 0, 1, "0"), "expected a topic none, found none"),
        (ReplicasAssigned("orders", "id-0", 0, 1, "0"), "expected topic id id-1 for orders, found id-0"),
        (ReplicasAssigned("orders", "id-1", 1, 2, "0"), "expected a partition of orders below 2, found 2"),
        (ReplicasAssigned("orders", "id-1", 0, 0, "0"), "expected at least one partition of orders, found 0"),
        (ReplicasAssigned("orders", "id-1", 0, 1, ""), "replicas of orders: expected broker ids with commas"),
        (ReplicasAssigned("orders", "id-1", 0, 1, "0,7"), "expected registered replicas of orders, found broker 7"),
        (ReplicasAssigned("orders", "id-1", 0, 1, "0,1,0"), "expected each replica of orders once"),
        (ReplicasAssigned("orders", "id-1", 0, 1, "0;1"), "expected replicas of 1 partitions of orders, found 2"),
    ],
)
def test_record_of_several_brokers_that_breaks_an_invariant_stops_the_machine(
    record: ClusterRecord, broken: str
) -> None:
    state = cluster(LEVEL, STARTED, ORDERS, ReplicasAssigned("orders", "id-1", 1, 1, "0,1"))
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
