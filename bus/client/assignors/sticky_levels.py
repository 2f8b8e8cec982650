"""The levelling of loads where members of a group subscribed to different topics.

Topics with the same subscribers make up one `TopicShares`: within it any subscriber may have any partition, so only
numbers matter. Guards that it ends: to level lowers the sum of the squared loads, to bring back never raises it and
leaves more partitions where they were.

Members are their places in the order of members here; `loads` has their numbers of partitions over all topics,
`holders` who held a partition before.
"""

from __future__ import annotations

import heapq
from collections.abc import Collection, Mapping, Sequence

from bus.model import TopicPartition

Holders = Mapping[TopicPartition, int]


class TopicShares:
    """Who has which partitions of topics with the same subscribers: apart what a member held before, and what not."""

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
