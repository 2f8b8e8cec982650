"""Kafka's published examples of the range assignor, and those of what it does with uneven subscriptions."""

from __future__ import annotations

from bus.client.assignors import MemberSubscription, RangeAssignor
from tests.support.assignments import all_subscribed, named, subscribed


def test_two_members_share_each_of_two_topics_as_kafka_documents() -> None:
    assigned = RangeAssignor().assign({"t0": 3, "t1": 3}, all_subscribed("C0 C1", ["t0", "t1"]))
    assert named(assigned) == {"C0": "t0p0 t0p1 t1p0 t1p1", "C1": "t0p2 t1p2"}


def test_nine_partitions_make_three_runs() -> None:
    assigned = RangeAssignor().assign({"t": 9}, all_subscribed("a b c", ["t"]))
    assert named(assigned) == {"a": "tp0 tp1 tp2", "b": "tp3 tp4 tp5", "c": "tp6 tp7 tp8"}


def test_without_its_third_member_a_group_of_nine_partitions_moves_some_between_the_others() -> None:
    assigned = RangeAssignor().assign({"t": 9}, all_subscribed("a b", ["t"]))
    assert named(assigned) == {"a": "tp0 tp1 tp2 tp3 tp4", "b": "tp5 tp6 tp7 tp8"}


def test_static_members_keep_their_runs_under_new_member_ids() -> None:
    topics = ["t0", "t1"]
    before = {
        "C0": MemberSubscription(topics, group_instance_id="I1"),
        "C1": MemberSubscription(topics, group_instance_id="I2"),
    }
    after = {
        "C3": MemberSubscription(topics, group_instance_id="I1"),
        "C2": MemberSubscription(topics, group_instance_id="I2"),
    }
    partitions = {"t0": 3, "t1": 3}
    assert named(RangeAssignor().assign(partitions, before)) == {"C0": "t0p0 t0p1 t1p0 t1p1", "C1": "t0p2 t1p2"}
    assert named(RangeAssignor().assign(partitions, after)) == {"C3": "t0p0 t0p1 t1p0 t1p1", "C2": "t0p2 t1p2"}


def test_static_members_come_before_others() -> None:
    members = {"a": MemberSubscription(["t"]), "z": MemberSubscription(["t"], group_instance_id="i")}
    assert named(RangeAssignor().assign({"t": 3}, members)) == {"z": "tp0 tp1", "a": "tp2"}


def test_topics_alike_in_partitions_and_subscribers_are_with_the_same_members_number_by_number() -> None:
    assigned = RangeAssignor().assign({"orders": 8, "payments": 8}, all_subscribed("a b c", ["orders", "payments"]))
    for owned in assigned.values():
        numbers = {topic: {p.partition for p in owned if p.topic == topic} for topic in ("orders", "payments")}
        assert numbers["orders"] == numbers["payments"]


def test_only_subscribers_of_a_topic_share_it() -> None:
    members = subscribed({"C0": "t0", "C1": "t0 t1", "C2": "t1"})
    assert named(RangeAssignor().assign({"t0": 3, "t1": 1}, members)) == {
        "C0": "t0p0 t0p1",
        "C1": "t0p2 t1p0",
        "C2": "",
    }


def test_a_topic_that_does_not_exist_is_passed_over() -> None:
    assert named(RangeAssignor().assign({"t": 1}, all_subscribed("a", ["t", "gone"]))) == {"a": "tp0"}
