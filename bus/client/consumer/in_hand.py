"""Which records the caller has in hand: its last call gave them, and it has not come back since.

Guards the promise of automatic commits: a record counts as done when the caller comes back for more, commits past it or
seeks. Who leaves by an exception was not done with what it had in hand, so the positions go back to where that begins.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Generic, TypeVar

PlaceT = TypeVar("PlaceT")


class InHand(Generic[PlaceT]):
    """By place, a partition: the offsets of one call, `first <= offset < next`."""

    def __init__(self) -> None:
        self._ranges: dict[PlaceT, tuple[int, int]] = {}

    def come_back(self) -> None:
        """The caller asks for more: what it was given is done."""
        self._ranges.clear()

    def give(self, place: PlaceT, first: int, next_offset: int) -> None:
        """More of the same call extends what it gave before."""
        held = self._ranges.get(place)
        self._ranges[place] = (first if held is None else held[0], next_offset)

    def settle(self, place: PlaceT, offset: int) -> None:
        """The caller says that everything below `offset` is done, and nothing else."""
        held = self._ranges.get(place)
        if held is not None:
            if offset < held[1]:
                self._ranges[place] = (offset, held[1])
            else:
                del self._ranges[place]

    def drop(self, place: PlaceT) -> None:
        """The caller chose another position."""
        self._ranges.pop(place, None)

    def first(self) -> Mapping[PlaceT, int]:
        """Where to read on, should what is in hand come again."""
        return {place: first for place, (first, _) in self._ranges.items()}
