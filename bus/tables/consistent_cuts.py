"""The cut of a transaction: versions of the partitions at which every transaction is there as a whole, or not at all.

Partitions do not have their transactions in the same order. So the versions that one transaction left, and what the
other partitions had at that time by the clocks of their leaders, cut through others: those that were in flight then, or
are on the other side of a clock. Guards three promises, whatever the clocks say. No transaction is there in part. All
of the one that the cut is of is there, and in its partitions nothing later. And what these partitions have of others
before it is there in their other partitions too, as far as these have it by now. The rules alone: numbers in, numbers
out.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

from bus.model import TopicPartition
from bus.transactions.state import ProducerIdentity

# transaction -> partition -> the version with the transaction's rows
Places = Mapping[ProducerIdentity, Mapping[TopicPartition, int]]


@dataclass(frozen=True, slots=True)
class ConsistentCut:
    """`hidden`: of a partition the transactions whose rows its version has, and the cut has not."""

    versions: Mapping[TopicPartition, int]
    hidden: Mapping[TopicPartition, frozenset[ProducerIdentity]]


def decide_cut(
    own: Mapping[TopicPartition, int],
    guess: Mapping[TopicPartition, int],
    oldest: Mapping[TopicPartition, int],
    places: Places,
    unfinished: Collection[ProducerIdentity],
) -> ConsistentCut:
    """Decide the versions of a consistent cut. `own`: the transaction's own partitions, with their versions, which
    stay. `guess`: about the version that each other partition should have. `oldest`: its minimum. `unfinished`:
    transactions of `places` with a part that is still to come.

    A version of `guess` is raised to include what the own partitions have, and everything that came with that; and
    lowered to before a transaction that is there in part. A transaction that cannot be excluded without excluding the
    own one is hidden."""
    torn = {each for each, where in places.items() if each in unfinished or _is_behind(own, where)}
    least = _least(own, places, torn)
    versions = {each: max(guess.get(each, -1), least.get(each, -1)) for each in guess.keys() | least.keys()}
    versions |= own
    floor = {each: max(oldest.get(each, 0), least.get(each, 0)) for each in versions}
    is_changed = True
    while is_changed:
        partial = list(_partial(versions, places, torn))
        is_changed = sum(_take_back(versions, floor, own, places[each]) for each in partial) > 0
    hidden: dict[TopicPartition, set[ProducerIdentity]] = {}
    for each in _partial(versions, places, torn):
        for partition in _seen(versions, places[each]):
            hidden.setdefault(partition, set()).add(each)
    return ConsistentCut(versions, {partition: frozenset(some) for partition, some in hidden.items()})


def _is_behind(own: Mapping[TopicPartition, int], where: Mapping[TopicPartition, int]) -> bool:
    """Tell whether it comes later in a partition of the own transaction."""
    return any(version > own.get(partition, version) for partition, version in where.items())


def _least(
    own: Mapping[TopicPartition, int], places: Places, torn: Collection[ProducerIdentity]
) -> dict[TopicPartition, int]:
    """Return the least versions at which everything that exists at `own` exists everywhere, with everything that came
    with it."""
    by_partition: dict[TopicPartition, list[tuple[int, ProducerIdentity]]] = {}
    for identity, where in places.items():
        for partition, version in where.items():
            by_partition.setdefault(partition, []).append((version, identity))
    waiting = {partition: sorted(some, key=lambda each: -each[0]) for partition, some in by_partition.items()}
    least, changed = dict(own), list(own)
    while changed:
        partition = changed.pop()
        left = waiting.get(partition, [])
        while left and left[-1][0] <= least[partition]:
            _, identity = left.pop()
            for other, version in () if identity in torn else places[identity].items():
                if version > least.get(other, -1):
                    least[other] = version
                    changed.append(other)
    return least


def _partial(
    versions: Mapping[TopicPartition, int], places: Places, torn: Collection[ProducerIdentity]
) -> Iterator[ProducerIdentity]:
    for identity, where in places.items():
        count = len(_seen(versions, where))
        if count and (identity in torn or count < len(where)):
            yield identity


def _seen(versions: Mapping[TopicPartition, int], where: Mapping[TopicPartition, int]) -> list[TopicPartition]:
    """A partition that no version is known of is not seen."""
    return [partition for partition, version in where.items() if version <= versions.get(partition, -1)]


def _take_back(
    versions: dict[TopicPartition, int],
    floor: Mapping[TopicPartition, int],
    own: Mapping[TopicPartition, int],
    where: Mapping[TopicPartition, int],
) -> bool:
    """Tell whether some version was taken back."""
    found = [each for each in _seen(versions, where) if each not in own and where[each] > floor[each]]
    for partition in found:
        versions[partition] = where[partition] - 1
    return bool(found)
