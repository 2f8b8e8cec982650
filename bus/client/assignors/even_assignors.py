"""Assignors that keep nothing in mind from one assignment to the next: range and round robin.

Most partitions move when a member comes or leaves.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from bus.client.assignors.assignor import (
    Assignment,
    MemberSubscription,
    RebalanceProtocol,
    ordered_members,
    partitions_of,
    subscribers_by_topic,
)
from bus.model import TopicPartition


class RangeAssignor:
    """Kafka's RangeAssignor: of each topic, every member gets a run of partitions that lie side by side.

    Guards what joins need: topics with the same number of partitions and the same subscribers are spread alike, so the
    partitions of one number, and with them the records of one key, are with one member. The price: the first members
    get one more of every topic that does not come out even. Racks are not looked at.
    """

    name = "range"
    protocols = (RebalanceProtocol.EAGER,)

    def subscription_user_data(self, topics: Collection[str]) -> bytes:
        return b""

    def assign(self, partitions: Mapping[str, int], members: Mapping[str, MemberSubscription]) -> Assignment:
        assigned: dict[str, list[TopicPartition]] = {member_id: [] for member_id in ordered_members(members)}
        for topic, subscribers in subscribers_by_topic(partitions, members).items():
            _assign_topic(partitions_of(topic, partitions[topic]), subscribers, assigned)
        return assigned

    def on_assignment(self, assignment: Collection[TopicPartition], generation: int) -> None:
        pass


def _assign_topic(
    partitions: list[TopicPartition], subscribers: list[str], assigned: dict[str, list[TopicPartition]]
) -> None:
    each, with_one_more = divmod(len(partitions), len(subscribers))
    start = 0
    for position, member_id in enumerate(subscribers):
        end = start + each + (position < with_one_more)
        assigned[member_id] += partitions[start:end]
        start = end


class RoundRobinAssignor:
    """Kafka's RoundRobinAssignor: all partitions, sorted, are dealt to the members in turn.

    Guards balance across topics: where all members subscribed to the same topics, the numbers of partitions differ by
    one at most.
    """

    name = "roundrobin"
    protocols = (RebalanceProtocol.EAGER,)

    def subscription_user_data(self, topics: Collection[str]) -> bytes:
        return b""

    def assign(self, partitions: Mapping[str, int], members: Mapping[str, MemberSubscription]) -> Assignment:
        order = ordered_members(members)
        assigned: dict[str, list[TopicPartition]] = {member_id: [] for member_id in order}
        turn = 0
        for topic, subscribers in subscribers_by_topic(partitions, members).items():
            entitled = frozenset(subscribers)
            for partition in partitions_of(topic, partitions[topic]):
                while order[turn] not in entitled:  # passed over: its turn is gone, as in Kafka
                    turn = (turn + 1) % len(order)
                assigned[order[turn]].append(partition)
                turn = (turn + 1) % len(order)
        return assigned

    def on_assignment(self, assignment: Collection[TopicPartition], generation: int) -> None:
        pass
