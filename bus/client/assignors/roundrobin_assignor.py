"""The round robin assignor: all partitions, sorted, are dealt to the members in turn.

Guards balance across topics: where all members subscribed to the same topics, the numbers of partitions differ by one
at most. Keeps nothing in mind from one assignment to the next, so most partitions move when a member comes or leaves.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from bus.client.assignors.assignor import Assignment, MemberSubscription, RebalanceProtocol
from bus.client.assignors.member_order import ordered_members, partitions_of, subscribers_by_topic
from bus.model import TopicPartition


class RoundRobinAssignor:
    """Kafka's RoundRobinAssignor."""

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
