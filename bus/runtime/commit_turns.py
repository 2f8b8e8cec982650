"""Who may commit now: as many partitions at once as keep one core busy, and no more.

What a small commit costs is mostly the same for one record and for a thousand. Where the processor is the bound, more
commits at once make each of them slower and smaller; a partition that waits for its turn instead gathers what arrives
meanwhile, and commits it as one. Where the store is the bound (a slow disk, an object store), most of a commit is
waiting, and many may wait at once. Which of the two it is, is measured: how long a commit that ran alone took, and how
much of that was processor time. Guards one promise: no caller waits for a turn longer than `wait_max_s`, so that a
commit that hangs does not hold up the others. What is true of commits is true of opening partitions, which take turns
of their own.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncIterator, Callable
from typing import TypeVar

from bus.ports import Clock

T = TypeVar("T")

WAIT_MAX_S = 0.05
_WEIGHT = 0.1  # of the newest commit among those before


class CommitTurns:
    """For one event loop."""

    def __init__(self, turns_max: int, clock: Clock, wait_max_s: float = WAIT_MAX_S) -> None:
        self._turns_max = turns_max
        self._clock = clock
        self._wait_max_s = wait_max_s
        self._running = 0  # turns that are taken, those that were just called included
        self._taken_count = 0  # ever
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._elapsed_ms = 0.0
        self._processor_ms = 0.0

    @property
    def at_once(self) -> int:
        if self._processor_ms <= 0:
            return 1
        return max(1, min(self._turns_max, int(self._elapsed_ms / self._processor_ms)))

    @contextlib.asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        """In the order of coming."""
        if self._running < self.at_once:
            self._take()
        else:
            await self._wait()
        try:
            yield
        finally:
            self._give_back()

    async def measure(self, commit: Callable[[], asyncio.Future[T]], processor_s: Callable[[], float]) -> T:
        """Run `commit` within a turn; `processor_s` tells afterwards how much processor time it took. Only what was
        alone all the time is a measure: others would have held it up."""
        count, started_ms = self._taken_count, self._clock.monotonic_ms()
        result = await commit()
        if self._running == 1 and self._taken_count == count:
            self._elapsed_ms += _WEIGHT * (self._clock.monotonic_ms() - started_ms - self._elapsed_ms)
            self._processor_ms += _WEIGHT * (processor_s() * 1000 - self._processor_ms)
        return result

    def _take(self) -> None:
        self._running += 1
        self._taken_count += 1

    def _give_back(self) -> None:
        self._running -= 1
        while self._waiting and self._running < self.at_once:
            self._take()
            self._waiting.popleft().set_result(None)

    async def _wait(self) -> None:
        called: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(called)
        try:
            await asyncio.wait([called], timeout=self._wait_max_s)
        except asyncio.CancelledError:
            if called.done():
                self._give_back()
            else:
                self._waiting.remove(called)
            raise
        if not called.done():
            self._waiting.remove(called)
            self._take()
