"""Sticky assignment: as balanced as possible, and then as few partitions moved as possible, from one rebalance of a
group to the next.

Guards balance first: no member has two partitions more than another one that could take one of them. Where all members
subscribed to the same topics that means a difference of one at most, and the number of partitions that stay is the
largest that there is. Where subscriptions differ, loads are levelled topic by topic until nothing can be levelled any
more, and what moved needlessly is brought back. That ends: to level lowers the sum of the squared loads, to bring back
never raises it and leaves more partitions where they were.

What members claim to have held is made free of contradictions first. A member that slept through a rebalance does not
get back what another one holds by now: of two claims the one of the later generation counts. Between two equal ones no
guess is made: then the partition had no holder.
"""

from __future__ import annotations

import heapq
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from bus.model import TopicPartition

NO_GENERATION = -1


def partitions_of(topic: str, count: int) -> list[TopicPartition]:
    return [TopicPartition(topic, number) for number in range(count)]


Holders = Mapping[TopicPartition, int]


class TopicShares:
    """The partitions of each member, for topics with the same subscribers; partitions that the member held before are
    kept apart from new ones.

    Within it any subscriber may have any partition, so only numbers matter. Members are their places in the order of
    members; `loads` has their numbers of partitions over all topics, `holders` who held a partition before.
    """

    def __init__(self, places: Sequence[int]) -> None:
        self.places = places
        self.unassigned: list[TopicPartition] = []
        self._stayed: dict[int, list[TopicPartition]] = {place: [] for place in places}
        self._come: dict[int, list[TopicPartition]] = {place: [] for place in places}

    def add(self, partitions: Sequence[TopicPartition], holders: Holders, loads: list[int]) -> None:
        """Each goes to who held it."""
        for partition in partitions:
            holder = holders.get(partition)
            if holder is None:
                self.unassigned.append(partition)
            else:
                self._stayed[holder].append(partition)
                loads[holder] += 1

    def of(self, place: int) -> Sequence[TopicPartition]:
        return [*self._stayed.get(place, ()), *self._come.get(place, ())]

    def give(self, partition: TopicPartition, place: int, loads: list[int], holders: Holders) -> None:
        (self._stayed if holders.get(partition) == place else self._come)[place].append(partition)
        loads[place] += 1

    def take(self, place: int, loads: list[int]) -> TopicPartition:
        """One that costs the least to move."""
        loads[place] -= 1
        return (self._come[place] or self._stayed[place]).pop()

    def has_any(self, place: int) -> bool:
        return bool(self._come[place] or self._stayed[place])

    def assign_unassigned(self, loads: list[int], holders: Holders) -> None:
        """Each to the member with the least."""
        least = [(loads[place], place) for place in self.places]
        heapq.heapify(least)
        for partition in self.unassigned:
            load, place = least[0]
            self.give(partition, place, loads, holders)
            heapq.heapreplace(least, (load + 1, place))
        self.unassigned.clear()

    def level(self, loads: list[int], holders: Holders) -> set[int]:
        """From the member with the most to the one with the least, while they differ by two; who gave or took."""
        most = [(-loads[place], place) for place in self.places if self.has_any(place)]
        least = [(loads[place], place) for place in self.places]
        heapq.heapify(most)
        heapq.heapify(least)
        changed: set[int] = set()
        while most:
            load, giver = -most[0][0], most[0][1]
            if load != loads[giver] or not self.has_any(giver):
                heapq.heappop(most)  # an entry of the past; there is a newer one
                continue
            if least[0][0] != loads[least[0][1]]:
                heapq.heappop(least)
                continue
            taker = least[0][1]
            if load - loads[taker] < 2:
                break
            self.give(self.take(giver, loads), taker, loads, holders)
            for place in (giver, taker):
                heapq.heappush(most, (-loads[place], place))
                heapq.heappush(least, (loads[place], place))
                changed.add(place)
        return changed

    def bring_back(self, loads: list[int], holders: Holders) -> set[int]:
        """To who held it: where that costs no balance, and in exchange for another one that has come to it. Returns
        whose load changed."""
        changed: set[int] = set()
        for place in self.places:
            come, self._come[place] = self._come[place], []
            for partition in come:
                holder = holders.get(partition)
                if holder is not None and loads[holder] < loads[place]:
                    loads[place] -= 1
                    self.give(partition, holder, loads, holders)
                    changed |= {place, holder}
                elif holder is not None and self._come[holder]:
                    self.give(self.take(holder, loads), place, loads, holders)
                    loads[place] -= 1
                    self.give(partition, holder, loads, holders)
                else:
                    self._come[place].append(partition)
        return changed


def level(shares: Sequence[TopicShares], loads: list[int], holders: Holders) -> None:
    """Assign what is unassigned, then level all; what few may have first, since the others can make up for it."""
    for share in sorted(shares, key=lambda share: len(share.places)):
        share.assign_unassigned(loads, holders)
    shares_of: dict[int, list[int]] = {}
    for number, share in enumerate(shares):
        for place in share.places:
            shares_of.setdefault(place, []).append(number)
    uneven: Collection[int] = range(len(shares))
    while uneven:
        _level_shares(uneven, shares, shares_of, loads, holders)
        uneven = {
            touched for share in shares for place in share.bring_back(loads, holders) for touched in shares_of[place]
        }


def _level_shares(
    uneven: Collection[int],
    shares: Sequence[TopicShares],
    shares_of: Mapping[int, Sequence[int]],
    loads: list[int],
    holders: Holders,
) -> None:
    """Level these, and again each one of which a member's load changes."""
    waiting = dict.fromkeys(uneven)
    while waiting:
        number = next(iter(waiting))
        del waiting[number]
        for place in sorted(shares[number].level(loads, holders)):
            waiting.update(dict.fromkeys(touched for touched in shares_of[place] if touched != number))


@dataclass(frozen=True, slots=True)
class Claim:
    """The partitions that a member says it held, and the generation since which it held them."""

    partitions: Iterable[TopicPartition] = ()
    generation: int = NO_GENERATION


def strongest_claims(claims: Mapping[str, Claim]) -> dict[TopicPartition, str | None]:
    """Return, for each claimed partition, the member whose claim counts; None: no one's, because two are equal."""
    strongest: dict[TopicPartition, tuple[int, str | None]] = {}
    for member_id, claim in claims.items():
        for partition in dict.fromkeys(claim.partitions):
            rival = strongest.get(partition)
            if rival is None or claim.generation > rival[0]:
                strongest[partition] = (claim.generation, member_id)
            elif claim.generation == rival[0]:
                strongest[partition] = (claim.generation, None)
    return {partition: holder for partition, (_, holder) in strongest.items()}


def settle_claims(
    claims: Mapping[str, Claim], partitions: Mapping[str, int], subscribers: Mapping[str, Collection[str]]
) -> dict[str, list[TopicPartition]]:
    """Return, for each member, the partitions that it held, in the order of its claim: partitions that exist, of topics
    that it still subscribes to, each with one member at most."""
    entitled = {topic: frozenset(members) for topic, members in subscribers.items()}
    held: dict[str, list[TopicPartition]] = {member_id: [] for member_id in claims}
    for partition, holder in strongest_claims(claims).items():
        exists = 0 <= partition.partition < partitions.get(partition.topic, 0)
        if exists and holder is not None and holder in entitled.get(partition.topic, ()):
            held[holder].append(partition)
    return held


MutableAssignment = dict[str, list[TopicPartition]]


def assign_sticky(
    partitions: Mapping[str, int],
    order: Sequence[str],
    subscribers: Mapping[str, Sequence[str]],
    claims: Mapping[str, Claim],
) -> MutableAssignment:
    """Assign all partitions to the members in `order`. `partitions`: topic -> number of partitions. `subscribers`: by
    topic, in the order of members. `claims`: by member id, of every member."""
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
