"""Assignors: each spreads the partitions of a group's topics over the group's members.

The leader of a group calls `assign` with what every member subscribed to, and the group's coordinator hands the result
out. Guards one promise that every assignor here keeps: each partition of a subscribed topic goes to exactly one member
that subscribed to its topic. Assignors do no I/O and know no clock; the same arguments give the same assignment, so it
does not matter which member leads, nor when members joined.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Protocol

from bus.client.sticky_assignment import NO_GENERATION, Claim, assign_sticky, partitions_of, strongest_claims
from bus.model import TopicPartition
from bus.platform.reentry import logger_of
from bus.records.json_text import parse_json

logger = logger_of(__name__)

Assignment = Mapping[str, Sequence[TopicPartition]]


class RebalanceProtocol(IntEnum):
    """How the members of a group behave when it rebalances (KIP-429). The higher one is the better one.

    EAGER: every member gives up all it has before it joins again. COOPERATIVE: members keep what they have; only what
    moves is given up, and the group rebalances once more to hand that out.
    """

    EAGER = 0
    COOPERATIVE = 1


@dataclass(frozen=True, slots=True)
class MemberSubscription:
    """The subscription that a member sent when it joined."""

    topics: Sequence[str]
    user_data: bytes = b""  # the result of its assignor's `subscription_user_data`
    owned: tuple[TopicPartition, ...] = ()  # the partitions that it holds while the group rebalances; empty under EAGER
    generation: int = NO_GENERATION  # the generation in which it got `owned`
    group_instance_id: str | None = None
    rack: str | None = None


class Assignor(Protocol):
    """A user's own needs these five and nothing else. One object serves one consumer, on one thread."""

    @property
    def name(self) -> str:
        """The name by which the members of a group agree on an assignor: two that assign differently need two names."""
        ...

    @property
    def protocols(self) -> Collection[RebalanceProtocol]:
        """Those under which its assignments work. With COOPERATIVE it never gives a partition to a member while another
        one owns it: it leaves the partition out, and the owner gives it up."""
        ...

    def subscription_user_data(self, topics: Collection[str]) -> bytes:
        """Return the bytes that the leader receives with this member's subscription; called before each join."""
        ...

    def assign(self, partitions: Mapping[str, int], members: Mapping[str, MemberSubscription]) -> Assignment:
        """Assign the partitions. `partitions`: topic -> number of partitions, for every existing topic that a member
        subscribed to. `members`: keyed by member id. The result has each member, perhaps without partitions."""
        ...

    def on_assignment(self, assignment: Collection[TopicPartition], generation: int) -> None:
        """This member holds `assignment` from `generation` on."""
        ...


def ordered_members(members: Mapping[str, MemberSubscription]) -> list[str]:
    """Their ids. Static members come first, by instance id, so that a restarted one, which has a new member id, gets
    the place that it had (KIP-345); the others follow by member id."""
    return sorted(members, key=lambda member_id: _place(member_id, members[member_id].group_instance_id))


def _place(member_id: str, group_instance_id: str | None) -> tuple[bool, str]:
    return (group_instance_id is None, member_id if group_instance_id is None else group_instance_id)


def subscribers_by_topic(
    partitions: Mapping[str, int], members: Mapping[str, MemberSubscription]
) -> dict[str, list[str]]:
    """Topics that exist and that a member subscribed to, sorted by name; their subscribers in the order of members."""
    subscribers: dict[str, list[str]] = {}
    for member_id in ordered_members(members):
        for topic in dict.fromkeys(members[member_id].topics):
            if partitions.get(topic, 0) > 0:
                subscribers.setdefault(topic, []).append(member_id)
    return dict(sorted(subscribers.items()))


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
    one at most. Like the range assignor it keeps nothing in mind from one assignment to the next, so most
    partitions move when a member comes or leaves.
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


class StickyAssignor:
    """Kafka's StickyAssignor. Members give up everything before they join again, so each says in its user data what it
    had."""

    name = "sticky"
    protocols = (RebalanceProtocol.EAGER,)

    def __init__(self) -> None:
        self._claim = Claim()

    def subscription_user_data(self, topics: Collection[str]) -> bytes:
        return encode_claim(self._claim)

    def assign(self, partitions: Mapping[str, int], members: Mapping[str, MemberSubscription]) -> Assignment:
        claims = {member_id: _claim_of(member_id, member.user_data) for member_id, member in members.items()}
        return _assign_sticky(partitions, members, claims)

    def on_assignment(self, assignment: Collection[TopicPartition], generation: int) -> None:
        self._claim = Claim(tuple(assignment), generation)


def encode_claim(claim: Claim) -> bytes:
    topics: dict[str, list[int]] = {}
    for partition in claim.partitions:
        topics.setdefault(partition.topic, []).append(partition.partition)
    return json.dumps({"generation": claim.generation, "partitions": topics}, separators=(",", ":")).encode()


def decode_claim(user_data: bytes) -> Claim:
    """Raises ValueError for what is no claim."""
    if not user_data:
        return Claim()
    claim: Any = parse_json(user_data)
    try:
        generation = claim.get("generation", NO_GENERATION)
        partitions = [(topic, number) for topic, numbers in claim["partitions"].items() for number in numbers]
    except (AttributeError, KeyError, TypeError):
        raise ValueError("expected a generation and partitions by topic") from None
    numbers = [generation, *(number for _, number in partitions)]
    if any(isinstance(number, bool) or not isinstance(number, int) for number in numbers):
        raise ValueError("expected a generation and partition numbers that are whole numbers")
    return Claim(tuple(TopicPartition(topic, number) for topic, number in partitions), generation)


def _claim_of(member_id: str, user_data: bytes) -> Claim:
    try:
        return decode_claim(user_data)
    except ValueError as error:
        logger.warning("member %s: its user data of the sticky assignor is not used: %s", member_id, error)
        return Claim()


class CooperativeStickyAssignor:
    """Kafka's CooperativeStickyAssignor. It supports both protocols, so that a group can change to it step by step.

    Guards one promise: a partition is never given to a member while another one owns it. What moves is in no assignment
    at first; its owner gives it up, which makes the group rebalance again, and then it finds its new member (KIP-429).
    """

    name = "cooperative-sticky"
    protocols = (RebalanceProtocol.COOPERATIVE, RebalanceProtocol.EAGER)

    def subscription_user_data(self, topics: Collection[str]) -> bytes:
        return b""

    def assign(self, partitions: Mapping[str, int], members: Mapping[str, MemberSubscription]) -> Assignment:
        claims = {member_id: Claim(member.owned, member.generation) for member_id, member in members.items()}
        holders = strongest_claims(claims)
        return {
            member_id: [partition for partition in assigned if holders.get(partition, member_id) == member_id]
            for member_id, assigned in _assign_sticky(partitions, members, claims).items()
        }

    def on_assignment(self, assignment: Collection[TopicPartition], generation: int) -> None:
        pass


def _assign_sticky(
    partitions: Mapping[str, int], members: Mapping[str, MemberSubscription], claims: Mapping[str, Claim]
) -> Assignment:
    return assign_sticky(partitions, ordered_members(members), subscribers_by_topic(partitions, members), claims)


_BY_NAME: dict[str, type[Assignor]] = {
    "range": RangeAssignor,
    "roundrobin": RoundRobinAssignor,
    "sticky": StickyAssignor,
    "cooperative-sticky": CooperativeStickyAssignor,
}
_METHODS = ("subscription_user_data", "assign", "on_assignment")


def assignors_of(strategy: str | Assignor | Iterable[str | Assignor]) -> tuple[Assignor, ...]:
    """The assignors of partition.assignment.strategy: one object for each name or object, several names perhaps in one
    text with commas between; new ones for names, since an assignor serves one consumer. Raises ValueError, which says
    what was expected.

    The order is that of preference: the coordinator takes, of the assignors that every member of the group supports,
    the one that most members prefer.
    """
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
    """How a consumer with these assignors rebalances: the highest protocol that all of them support.

    So a running group can go from eager to cooperative: members that offer both kinds behave eagerly, whichever of them
    the group uses, until each offers a cooperative one alone. A first rolling restart adds "cooperative-sticky", a
    second one takes the old assignor away, and at no time could one member own what another one was given.
    """
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
