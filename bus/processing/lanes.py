"""Lanes: which records may be worked on at the same time.

Records of one lane are handed out one after another, in the order in which they came; lanes are independent of each
other and take turns. Guards that order also over errors: a record that is tried again stays at the head of its lane,
and what is behind it waits.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

ItemT = TypeVar("ItemT")


class Lanes(Generic[ItemT]):
    def __init__(self) -> None:
        self._items: dict[Hashable, deque[ItemT]] = {}  # no lane is empty; the first one of a lane may be handed out
        self._ready: deque[Hashable] = deque()  # lanes whose first item may be taken
        self._delayed: list[tuple[int, int, Hashable]] = []  # lanes whose first item waits: until when, serial number
        self._taken: set[Hashable] = set()  # lanes whose first item is being worked on
        self._serial = 0

    def add(self, lane: Hashable, item: ItemT) -> None:
        items = self._items.get(lane)
        if items is None:
            self._items[lane] = deque((item,))
            self._ready.append(lane)
        else:
            items.append(item)

    def take(self, now_ms: int) -> ItemT | None:
        """The next item that may be worked on. It stays in its lane until it is finished or put off."""
        while self._delayed and self._delayed[0][0] <= now_ms:
            _, _, lane = heapq.heappop(self._delayed)
            self._ready.append(lane)
        if not self._ready:
            return None
        lane = self._ready.popleft()
        self._taken.add(lane)
        return self._items[lane][0]

    def finish(self, lane: Hashable) -> None:
        """The item taken from `lane` is done; the next one may be taken."""
        assert lane in self._taken, f"lane {lane!r}: nothing was taken from it"
        self._taken.remove(lane)
        items = self._items[lane]
        items.popleft()
        if items:
            self._ready.append(lane)
        else:
            del self._items[lane]

    def put_off(self, lane: Hashable, item: ItemT, until_ms: int) -> None:
        """What was taken from `lane` is tried again as `item`, at `until_ms`, before all that is behind it."""
        assert lane in self._taken, f"lane {lane!r}: nothing was taken from it"
        self._taken.remove(lane)
        self._items[lane][0] = item
        self._serial += 1
        heapq.heappush(self._delayed, (until_ms, self._serial, lane))

    def next_delayed_ms(self) -> int | None:
        """When the first of the items that wait may be taken."""
        return self._delayed[0][0] if self._delayed else None

    def drop(self, is_wanted: Callable[[ItemT], bool]) -> int:
        """Forget items that are not wanted any more, but for those that are being worked on; how many."""
        dropped = 0
        for lane in list(self._items):
            items = self._items[lane]
            first = [items[0]] if lane in self._taken else []
            kept = deque([*first, *(item for item in list(items)[len(first) :] if is_wanted(item))])
            dropped += len(items) - len(kept)
            self._items[lane] = kept
        self._ready = deque(lane for lane in self._ready if self._items[lane])
        self._delayed = [entry for entry in self._delayed if self._items[entry[2]]]
        heapq.heapify(self._delayed)
        self._items = {lane: items for lane, items in self._items.items() if items}
        return dropped

    @property
    def is_empty(self) -> bool:
        return not self._items
