"""Kafka's published examples of the round robin assignor."""

from __future__ import annotations

from bus.client.assignors import MemberSubscription, RoundRobinAssignor
from tests.support.assignments import all_subscribed, named, subscribed

FOUR_TOPICS = {"t0": 2, "t1": 2, "t2": 2, "t3": 2}


def test_two_members_take_turns_across_topics_as_kafka_documents() -> None:
    assigned = RoundRobinAssignor().assign({"t0": 3, "t1": 3}, all_subscribed("C0 C1", ["t0", "t1"]))
    assert named(assigned) == {"C0": "t0p0 t0p2 t1p1", "C1": "t0p1 t1p0 t1p2"}


def test_members_are_passed_over_for_topics_they_did_not_subscribe_to_as_kafka_documents() -> None:
    members = subscribed({"C0": "t0", "C1": "t0 t1", "C2": "t0 t1 t2"})
    assigned = RoundRobinAssignor().assign({"t0": 1, "t1": 2, "t2": 3}, members)
    assert named(assigned) == {"C0": "t0p0", "C1": "t1p0", "C2": "t1p1 t2p0 t2p1 t2p2"}


def test_most_partitions_move_when_a_member_leaves_as_kafka_documents() -> None:
    topics = list(FOUR_TOPICS)
    three = RoundRobinAssignor().assign(FOUR_TOPICS, all_subscribed("C0 C1 C2", topics))
    assert named(three) == {"C0": "t0p0 t1p1 t3p0", "C1": "t0p1 t2p0 t3p1", "C2": "t1p0 t2p1"}
    two = RoundRobinAssignor().assign(FOUR_TOPICS, all_subscribed("C0 C2", topics))
    assert named(two) == {"C0": "t0p0 t1p0 t2p0 t3p0", "C2": "t0p1 t1p1 t2p1 t3p1"}


def test_nine_partitions_are_dealt_to_three_members() -> None:
    assigned = RoundRobinAssignor().assign({"t": 9}, all_subscribed("a b c", ["t"]))
    assert named(assigned) == {"a": "tp0 tp3 tp6", "b": "tp1 tp4 tp7", "c": "tp2 tp5 tp8"}


def test_static_members_are_dealt_to_by_their_instance_ids() -> None:
    members = {
        "C9": MemberSubscription(["t"], group_instance_id="I1"),
        "C3": MemberSubscription(["t"], group_instance_id="I2"),
    }
    assert named(RoundRobinAssignor().assign({"t": 3}, members)) == {"C9": "tp0 tp2", "C3": "tp1"}


def test_topics_are_dealt_in_the_order_of_their_names() -> None:
    assigned = RoundRobinAssignor().assign({"b": 1, "a": 1}, all_subscribed("x y", ["b", "a"]))
    assert named(assigned) == {"x": "ap0", "y": "bp0"}
