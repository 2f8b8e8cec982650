"""Items that are asked of a broker in several requests: one request of them all would be beyond what a broker reads.

A broker bounds each request in items and bytes, before it looks at them. The bounds here are below its own, whatever
the length of names.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

# Partitions, topics and members are items alike; a topic name with its partitions are several.
ITEMS_MAX = 5_000
# Of requests whose items are decisions about the cluster: topics to create, to grow, to delete.
CHANGES_MAX = 500

ItemT = TypeVar("ItemT")


def portions(
    items: Iterable[ItemT], items_max: int = ITEMS_MAX, count_of: Callable[[ItemT], int] = lambda _: 1
) -> Iterator[list[ItemT]]:
    """In order; each counts at most `items_max`, or is a single item. One empty portion of nothing."""
    portion: list[ItemT] = []
    count = 0
    for item in items:
        counted = count_of(item)
        if portion and count + counted > items_max:
            yield portion
            portion, count = [], 0
        portion.append(item)
        count += counted
    yield portion
