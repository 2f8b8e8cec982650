"""Which named producers write at this broker, and what of it the controller has not been told.

Names expire by their last use at any broker, so each broker tells the controller with its heartbeats. Guards two
promises: a use is told within about one interval, or is told again to the next controller if the one that was told may
not have said so in the metadata yet; and an id is told once in an interval at most, however often it is used. Bounded
by the number of names.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Hashable

# Of one heartbeat; the others go with the next ones.
TOLD_MAX = 1_000


class ProducerUses:
    def __init__(self, interval_ms: float) -> None:
        """`interval_ms`: within which a controller looks through what it was told."""
        self._interval_ms = interval_ms
        self._began_ms = 0.0
        self._used: set[int] = set()  # in this interval
        self._due: set[int] = set()  # used in an earlier one, and not told yet
        self._told: set[int] = set()  # in this interval
        self._told_before: set[int] = set()  # in the one before
        self._controller: Hashable = None

    def note(self, producer_id: int) -> None:
        """For every batch of a named producer."""
        self._used.add(producer_id)

    def find_due(self, controller: Hashable, now_ms: float) -> list[int]:
        """What this controller is to be told next, at most TOLD_MAX. The same again, until it `was_told`."""
        if controller != self._controller:
            self._due |= self._told | self._told_before
            self._told, self._told_before = set(), set()
            self._controller = controller
        if not self._due and now_ms - self._began_ms >= self._interval_ms:
            self._began_ms = now_ms
            self._due, self._used = self._used, set()
            self._told, self._told_before = set(), self._told
        return list(itertools.islice(self._due, TOLD_MAX))

    def was_told(self, producer_ids: Collection[int]) -> None:
        self._due.difference_update(producer_ids)
        self._told.update(producer_ids)

    def take_all(self) -> set[int]:
        """For the controller itself: everything that was used here or told to it since the last time, and what it told
        another one of late."""
        uses = self._used | self._due | self._told | self._told_before
        self._used, self._due, self._told, self._told_before = set(), set(), set(), set()
        return uses
