"""Sticky assignment: as balanced as possible, and then as few partitions moved as possible.

Guards balance first: no member has two partitions more than another one that could take one of them. Where all members
subscribed to the same topics that means a difference of one at most, and the number of partitions that stay is the
largest that there is. Where subscriptions differ, loads are levelled topic by topic until nothing can be levelled any
more, and what moved needlessly is brought back.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence

from bus.client.assignors.assignor import MemberSubscription
from bus.client.assignors.claims import Claim, settle_claims
from bus.client.assignors.member_order import ordered_members, partitions_of, subscribers_by_topic
from bus.client.assignors.sticky_levels import TopicShares, level
from bus.model import TopicPartition

MutableAssignment = dict[str, list[TopicPartition]]


def assign_sticky(
    partitions: Mapping[str, int], members: Mapping[str, MemberSubscription], claims: Mapping[str, Claim]
) -> MutableAssignment:
    """`claims`: by member id, of every member."""
    order = ordered_members(members)
    subscribers = subscribers_by_topic(partitions, members)
    held = settle_claims(claims, partitions, subscribers)
    if all(len(subscribed) == len(order) for subscribed in subscribers.values()):
        every = [partition for topic in subscribers for partition in partitions_of(topic, partitions[topic])]
        return _assign_to_equals(every, order, held)
    return _assign_to_unequals(partitions, order, subscribers, held)


def _assign_to_equals(
    partitions: Sequence[TopicPartition], order: Sequence[str], held: Mapping[str, Sequence[TopicPartition]]
) -> MutableAssignment:
    if not order:
        return {}
    each, with_one_more = divmod(len(partitions), len(order))
    assigned: MutableAssignment = {}
    for member_id in order:
        keeps_one_more = with_one_more > 0 and len(held[member_id]) > each
        with_one_more -= keeps_one_more
        assigned[member_id] = list(held[member_id][: each + keeps_one_more])
    kept = {partition for member_partitions in assigned.values() for partition in member_partitions}
    loads = [(len(assigned[member_id]), place) for place, member_id in enumerate(order)]
    heapq.heapify(loads)
    for partition in partitions:
        if partition not in kept:
            load, place = loads[0]
            assigned[order[place]].append(partition)
            heapq.heapreplace(loads, (load + 1, place))
    return assigned


def _assign_to_unequals(
    partitions: Mapping[str, int],
    order: Sequence[str],
    subscribers: Mapping[str, Sequence[str]],
    held: Mapping[str, Sequence[TopicPartition]],
) -> MutableAssignment:
    place_of = {member_id: place for place, member_id in enumerate(order)}
    holders = {partition: place_of[member_id] for member_id in order for partition in held[member_id]}
    loads = [0] * len(order)
    shares: dict[tuple[int, ...], TopicShares] = {}
    for topic, subscribed in subscribers.items():
        places = tuple(place_of[member_id] for member_id in subscribed)
        share = shares.setdefault(places, TopicShares(places))
        share.add(partitions_of(topic, partitions[topic]), holders, loads)
    level(list(shares.values()), loads, holders)
    return {member_id: [p for s in shares.values() for p in s.of(place)] for place, member_id in enumerate(order)}
