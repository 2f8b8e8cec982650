"""The protocol of assignors: an assignor spreads the partitions of a group's topics over the group's members.

The leader of a group calls `assign` with what every member subscribed to, and the group's coordinator hands the result
out. Guards one promise that every assignor here keeps: each partition of a subscribed topic goes to exactly one member
that subscribed to its topic. Assignors do no I/O and know no clock; the same arguments give the same assignment, so it
does not matter which member leads, nor when members joined.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Protocol

from bus.model import TopicPartition

Assignment = Mapping[str, Sequence[TopicPartition]]

NO_GENERATION = -1


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


def partitions_of(topic: str, count: int) -> list[TopicPartition]:
    return [TopicPartition(topic, number) for number in range(count)]
