"""Short forms for tests of assignors: `t0p1` is partition 1 of topic t0."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from bus.client.assignors import Assignment, MemberSubscription
from bus.model import TopicPartition


def partitions(text: str) -> tuple[TopicPartition, ...]:
    """`"t0p0 t1p2"`"""
    pairs = [name.rsplit("p", 1) for name in text.split()]
    return tuple(TopicPartition(topic, int(number)) for topic, number in pairs)


def named(assignment: Assignment) -> dict[str, str]:
    """Sorted: the order within a member says nothing."""
    return {member: text(owned) for member, owned in assignment.items()}


def text(owned: Iterable[TopicPartition]) -> str:
    return " ".join(f"{partition.topic}p{partition.partition}" for partition in sorted(owned))


def all_subscribed(member_ids: str, topics: Sequence[str]) -> dict[str, MemberSubscription]:
    return {member_id: MemberSubscription(topics) for member_id in member_ids.split()}


def subscribed(topics_of: Mapping[str, str]) -> dict[str, MemberSubscription]:
    return {member_id: MemberSubscription(topics.split()) for member_id, topics in topics_of.items()}
