"""What every assignor starts from: the members in one order, and the partitions that somebody wants, in one order.

Guards one promise: the order does not depend on when members joined. Static members come first, by instance id, so that
a restarted one, which has a new member id, gets the place that it had (KIP-345); the others follow by member id.
"""

from __future__ import annotations

from collections.abc import Mapping

from bus.client.assignors.assignor import MemberSubscription
from bus.model import TopicPartition


def ordered_members(members: Mapping[str, MemberSubscription]) -> list[str]:
    """Their ids."""
    return sorted(members, key=lambda member_id: _place(member_id, members[member_id].group_instance_id))


def _place(member_id: str, group_instance_id: str | None) -> tuple[bool, str]:
    return (group_instance_id is None, member_id if group_instance_id is None else group_instance_id)


def subscribers_by_topic(
    partitions: Mapping[str, int], members: Mapping[str, MemberSubscription]
) -> dict[str, list[str]]:
    """Topics that exist and that somebody subscribed to, sorted by name; their subscribers in the order of members."""
    subscribers: dict[str, list[str]] = {}
    for member_id in ordered_members(members):
        for topic in dict.fromkeys(members[member_id].topics):
            if partitions.get(topic, 0) > 0:
                subscribers.setdefault(topic, []).append(member_id)
    return dict(sorted(subscribers.items()))


def partitions_of(topic: str, count: int) -> list[TopicPartition]:
    return [TopicPartition(topic, number) for number in range(count)]
