"""Partitions that a broker opens and closes, by the difference of two states."""

from __future__ import annotations

from dataclasses import dataclass

from bus.cluster_metadata.cluster_draft import ClusterRecord
from bus.cluster_metadata.cluster_records import (
    BrokerRegistered,
    FeatureLevel,
    LeaderChanged,
    LeaderEpochsRaised,
    LeadersChanged,
    PartitionsAdded,
    ProducerIdsAllocated,
    ReplicasAssigned,
    TopicConfigChanged,
    TopicCreated,
    TopicDeleted,
    apply,
    apply_all,
)
from bus.cluster_metadata.cluster_state import (
    BUS_VERSION,
    EMPTY_CLUSTER,
    ClusterState,
    FollowingPlan,
    HostingPlan,
    Lead,
    plan_following,
    plan_hosting,
)
from bus.model import TopicPartition


@dataclass(frozen=True)
class Open:
    lead: Lead


BROKERS = apply_all(EMPTY_CLUSTER, [BrokerRegistered(0, "a", 1), BrokerRegistered(1, "b", 2)])
ORDERS = TopicCreated("orders", "id-1", 2, 0)
P0, P1, P2 = (TopicPartition("orders", number) for number in range(3))
LEVEL_1 = FeatureLevel(BUS_VERSION, 1)
NOTHING = HostingPlan([], [], {}, [])


def cluster(*records: ClusterRecord) -> ClusterState:
    return apply_all(BROKERS, records)


def hosted(**epochs: int) -> dict[str, dict[int, Open]]:
    """Partitions of orders, by number."""
    return {"orders": {int(number[1:]): Open(Lead("id-1", epoch)) for number, epoch in epochs.items()}}


def plan(old: ClusterState, new: ClusterState, there: dict[str, dict[int, Open]]) -> HostingPlan:
    return plan_hosting(old, new, there, broker_id=0)


def test_led_partitions_are_opened_in_the_order_of_creation_and_others_are_not() -> None:
    new = cluster(ORDERS, TopicCreated("a", "id-2", 1, 0), LeaderChanged("orders", "id-1", 1, 1, 5))
    opened = plan(EMPTY_CLUSTER, new, {}).opens
    assert list(opened.items()) == [(P0, Lead("id-1", 0)), (TopicPartition("a", 0), Lead("id-2", 0))]


def test_what_says_nothing_of_topics_changes_nothing() -> None:
    old = cluster(ORDERS)
    plans = plan(old, apply(old, ProducerIdsAllocated(0, 1000)), {})
    assert (plans.opens, plans.closes, plans.retires) == ({}, (), ())


def test_added_partitions_are_opened_alone() -> None:
    old = cluster(ORDERS)
    new = apply(old, PartitionsAdded("orders", "id-1", 3, 0))
    assert plan(old, new, hosted(p0=0, p1=0)) == HostingPlan([], [], {P2: Lead("id-1", 0)}, [])


def test_leader_elsewhere_closes_and_a_higher_epoch_here_opens_again() -> None:
    old = cluster(ORDERS)
    new = apply_all(old, [LeaderChanged("orders", "id-1", 0, 1, 1), LeaderChanged("orders", "id-1", 1, 0, 1)])
    assert plan(old, new, hosted(p0=0, p1=0)) == HostingPlan([], [P0, P1], {P1: Lead("id-1", 1)}, [])


def test_start_of_another_broker_touches_nothing_here() -> None:
    old = cluster(ORDERS, TopicCreated("other", "id-2", 1, 1))
    new = apply(old, LeaderEpochsRaised(1))
    assert plan(old, new, hosted(p0=0, p1=0)) == NOTHING


def test_partitions_of_a_deleted_topic_retire_also_where_its_name_has_a_new_topic() -> None:
    old = cluster(ORDERS)
    gone = apply(old, TopicDeleted("orders", "id-1"))
    assert plan(old, gone, hosted(p0=0, p1=0)) == HostingPlan([P0, P1], [], {}, [])
    again = apply(gone, TopicCreated("orders", "id-9", 1, 0))
    assert plan(old, again, hosted(p0=0, p1=0)).retires == [P0, P1]
    assert plan(old, again, hosted(p0=0, p1=0)).opens == {P0: Lead("id-9", 0)}


def test_altered_configs_are_for_topics_with_partitions_here() -> None:
    old = cluster(ORDERS, TopicCreated("other", "id-2", 1, 1))
    new = apply_all(
        old,
        [
            TopicConfigChanged("orders", "id-1", "retention.ms", "7"),
            TopicConfigChanged("other", "id-2", "retention.ms", "7"),
        ],
    )
    assert plan(old, new, hosted(p0=0, p1=0)) == HostingPlan([], [], {}, [new.topics["orders"]])


def test_after_an_interruption_all_that_differs_is_put_right() -> None:
    state = cluster(ORDERS)
    found = plan(EMPTY_CLUSTER, state, {**hosted(p1=0), "gone": {0: Open(Lead("id-7", 3))}})
    assert (found.retires, found.closes) == ([TopicPartition("gone", 0)], [])
    assert found.opens == {P0: Lead("id-1", 0)}


# ------------------------------------------------------------------ what is followed

BOTH = ReplicasAssigned("orders", "id-1", 0, 2, "1,0;1")


@dataclass(frozen=True)
class Follow:
    topic_id: str


def following(old: ClusterState, new: ClusterState, *numbers: int) -> FollowingPlan:
    return plan_following(old, new, {"orders": {number: Follow("id-1") for number in numbers}}, broker_id=0)


LED_BY_1 = LeadersChanged("orders", "id-1", 0, 2, 1, 1)


def test_replica_that_does_not_lead_follows_and_no_other_broker_does() -> None:
    new = cluster(LEVEL_1, ORDERS, BOTH, LED_BY_1)
    assert following(EMPTY_CLUSTER, new) == FollowingPlan([], {P0: "id-1"})
    assert following(EMPTY_CLUSTER, new, 0) == FollowingPlan([], {})


def test_partition_that_comes_here_or_is_deleted_or_loses_this_replica_is_not_followed_any_more() -> None:
    old = cluster(LEVEL_1, ORDERS, BOTH, LED_BY_1)
    comes = apply(old, LeaderChanged("orders", "id-1", 0, 0, 2))
    assert following(old, comes, 0) == FollowingPlan([P0], {})
    assert following(old, apply(old, ReplicasAssigned("orders", "id-1", 0, 1, "1")), 0) == FollowingPlan([P0], {})
    again = apply_all(
        apply(old, TopicDeleted("orders", "id-1")),
        [TopicCreated("orders", "id-2", 1, 1), ReplicasAssigned("orders", "id-2", 0, 1, "1,0")],
    )
    assert following(old, again, 0) == FollowingPlan([P0], {P0: "id-2"})
    assert following(old, apply(old, TopicDeleted("orders", "id-1")), 0) == FollowingPlan([P0], {})


def test_what_has_not_changed_is_not_looked_at() -> None:
    old = cluster(LEVEL_1, ORDERS, BOTH, LED_BY_1)
    assert following(old, apply(old, ProducerIdsAllocated(0, 1000))) == FollowingPlan((), {})
    assert following(old, apply(old, TopicCreated("a", "id-3", 1, 1))) == FollowingPlan([], {})
