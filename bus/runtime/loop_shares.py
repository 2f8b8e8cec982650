"""Long work on the event loop, in slices, so that what is short never waits for all of it.

A request may name thousands of partitions. Each is looked at in microseconds, all of them in a time that others would
notice. Guards one promise: such work holds the loop for about `SLICE_S` at a time, and of all that is under way one
slice is run in each round of the loop, in turn, however many requests there are.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Iterable, Iterator
from typing import Any, Protocol, TypeVar

SLICE_S = 0.005


class Growing(Protocol):
    def append(self, item: Any, /) -> None: ...


GrowingT = TypeVar("GrowingT", bound=Growing)


class LoopShares:
    """The shares of one event loop."""

    def __init__(self) -> None:
        self._waiting: deque[asyncio.Future[None]] = deque()

    def begin(self) -> LoopShare:
        """Begin the share of one piece of work."""
        return LoopShare(self)

    async def wait(self) -> None:
        """Wait for the caller's round of the loop."""
        turn = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        if len(self._waiting) == 1:
            asyncio.get_running_loop().call_soon(self._let_one_go_on)
        await turn

    def _let_one_go_on(self) -> None:
        turn = self._waiting.popleft()
        if not turn.done():
            turn.set_result(None)
        if self._waiting:
            asyncio.get_running_loop().call_soon(self._let_one_go_on)


def run_in_slices(steps: Iterator[object]) -> None:
    """Run `steps` to their end: one slice now, and one in each later round of the loop."""
    begun_s = time.perf_counter()
    for _ in steps:
        if time.perf_counter() - begun_s >= SLICE_S:
            asyncio.get_running_loop().call_soon(run_in_slices, steps)
            return


class LoopShare:
    """To be asked between any two items: `if share.is_used_up: await share.wait()`."""

    __slots__ = ("_begun_s", "_shares", "wait_count")

    def __init__(self, shares: LoopShares) -> None:
        self._shares = shares
        self._begun_s = time.perf_counter()
        self.wait_count = 0  # how often others had the loop in between

    @property
    def is_used_up(self) -> bool:
        return time.perf_counter() - self._begun_s >= SLICE_S

    async def wait(self) -> None:
        await self._shares.wait()
        self._begun_s = time.perf_counter()
        self.wait_count += 1

    async def extend(self, found: GrowingT, items: Iterable[object]) -> GrowingT:
        """Append `items` to `found`, which is returned, in slices: they are made while they are iterated over."""
        for item in items:
            if self.is_used_up:
                await self.wait()
            found.append(item)
        return found

    def renew(self) -> None:
        """The caller has waited for something else, so the loop was free meanwhile."""
        self._begun_s = time.perf_counter()
