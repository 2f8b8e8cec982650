"""The config partition.assignment.strategy: which assignors a consumer offers, and how it then rebalances.

The order is that of preference: the coordinator takes, of the assignors that every member of the group supports, the
one that most members prefer. Guards the upgrade of a running group from eager to cooperative: members that offer both
kinds behave eagerly, whichever of them the group uses, until each offers a cooperative one alone. So a first rolling
restart adds "cooperative-sticky", a second one takes the old assignor away, and at no time could one member own what
another one was given.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from bus.client.assignors.assignor import (
    Assignment,
    Assignor,
    MemberSubscription,
    RebalanceProtocol,
    ordered_members,
    partitions_of,
    subscribers_by_topic,
)
from bus.client.assignors.sticky_assignors import CooperativeStickyAssignor, StickyAssignor
from bus.model import TopicPartition

# Assignors that keep nothing in mind from one assignment to the next: range and round robin.
#
# Most partitions move when a member comes or leaves.


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


_BY_NAME: dict[str, type[Assignor]] = {
    "range": RangeAssignor,
    "roundrobin": RoundRobinAssignor,
    "sticky": StickyAssignor,
    "cooperative-sticky": CooperativeStickyAssignor,
}
_METHODS = ("subscription_user_data", "assign", "on_assignment")


def assignors_of(strategy: str | Assignor | Iterable[str | Assignor]) -> tuple[Assignor, ...]:
    """One object for each name or object, several names perhaps in one text with commas between; new ones for names,
    since an assignor serves one consumer. Raises ValueError, which says what was expected."""
    if isinstance(strategy, str):
        strategy = [name.strip() for name in strategy.split(",")]
    elif not isinstance(strategy, Iterable):
        strategy = [strategy]
    assignors = tuple(_assignor_of(entry) for entry in strategy)
    names = [assignor.name for assignor in assignors]
    if not names or len(set(names)) < len(names):
        raise ValueError("one assignor or more, each with a name of its own")
    if not _shared_protocols(assignors):
        raise ValueError("assignors that support one rebalance protocol together, eager or cooperative")
    return assignors


def rebalance_protocol(assignors: Sequence[Assignor]) -> RebalanceProtocol:
    """How a consumer with these assignors rebalances: the highest protocol that all of them support."""
    return max(_shared_protocols(assignors))


def _shared_protocols(assignors: Sequence[Assignor]) -> frozenset[RebalanceProtocol]:
    return frozenset(RebalanceProtocol).intersection(*(assignor.protocols for assignor in assignors))


def _assignor_of(entry: Any) -> Assignor:
    if isinstance(entry, str):
        if entry not in _BY_NAME:
            raise ValueError(f"assignors by name ({', '.join(_BY_NAME)}) or as objects")
        return _BY_NAME[entry]()
    missing = [method for method in _METHODS if not callable(getattr(entry, method, None))]
    if isinstance(entry, type) or missing:
        raise ValueError(f"an assignor to be an object with the methods {', '.join(_METHODS)}")
    if not isinstance(getattr(entry, "name", None), str) or not entry.name:
        raise ValueError("an assignor's name to be a text that is not empty")
    protocols = getattr(entry, "protocols", None)
    if isinstance(protocols, (str, bytes)) or not isinstance(protocols, Iterable):
        raise ValueError("an assignor's protocols to be a list of RebalanceProtocol")
    listed = list(protocols)
    if not listed or not all(isinstance(protocol, RebalanceProtocol) for protocol in listed):
        raise ValueError("an assignor's protocols to be a list of RebalanceProtocol, one or more")
    return entry  # type: ignore[no-any-return]
