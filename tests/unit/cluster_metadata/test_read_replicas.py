from __future__ import annotations

from dataclasses import replace

from bus.cluster_metadata.cluster_state import (
    EMPTY_CLUSTER,
    Broker,
    ClusterState,
    choose_read_replica,
    find_nearby_brokers,
)
from bus.model import BrokerEndpoint


def cluster_of(*racks: str | None, fenced: int | None = None) -> ClusterState:
    """Brokers from 0 on, each in its rack."""
    brokers = {
        broker_id: Broker(BrokerEndpoint(broker_id, "h", 1 + broker_id), rack, is_fenced=broker_id == fenced)
        for broker_id, rack in enumerate(racks)
    }
    return replace(EMPTY_CLUSTER, brokers=brokers)


def test_brokers_in_the_rack_are_nearby_unless_they_are_fenced() -> None:
    state = cluster_of("a", "b", "b", None, fenced=2)
    assert find_nearby_brokers(state, leader_id=0, rack="b") == {1}
    assert find_nearby_brokers(state, leader_id=0, rack="c") == frozenset()


def test_no_broker_is_nearer_than_a_leader_in_the_rack() -> None:
    assert find_nearby_brokers(cluster_of("a", "a", "b"), leader_id=0, rack="a") == frozenset()


def test_a_consumer_without_a_rack_is_near_no_broker() -> None:
    assert find_nearby_brokers(cluster_of("a", "", None), leader_id=0, rack="") == frozenset()


def test_only_a_nearby_replica_is_chosen() -> None:
    assert choose_read_replica((0, 1), {1, 2}, {}) == 1
    assert choose_read_replica((0, 3), {1, 2}, {}) is None


def test_replica_that_has_applied_most_is_chosen_and_of_equal_ones_the_first() -> None:
    assert choose_read_replica((3, 1, 2), {1, 2, 3}, {1: 7, 2: 9}) == 2
    assert choose_read_replica((3, 1, 2), {1, 2, 3}, {1: 7, 2: 7}) == 1
    assert choose_read_replica((3, 1, 2), {1, 2, 3}, {}) == 3
