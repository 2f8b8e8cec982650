"""The one place where blocking calls cross into threads.

Pools of their own, so that one kind of work never waits behind another: commits, which a producer waits for and which
take turns; control, the cluster's metadata, which changes one at a time; reads of data files; computing, what would
hold up the event loop; maintenance, which takes long and is in no hurry (rolling, compaction); housekeeping, which is
short and must not wait behind it (checkpoints, deletion of files), one at a time.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Hashable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

from bus.ports import Clock
from bus.runtime.commit_turns import CommitTurns
from bus.runtime.fair_turns import FairTurns

T = TypeVar("T")

# It holds no interpreter lock; more of it at a time would only take the cores from the commits.
_COMPUTING_THREADS = 2
# What a broker with thousands of partitions opens meanwhile; one that hangs holds up the others no longer.
_OPENING_WAIT_MAX_S = 30.0


class BlockingCalls:
    def __init__(self, threads: int, *, clock: Clock, maintenance_threads: int = 1) -> None:
        self._commits = ThreadPoolExecutor(threads, thread_name_prefix="commit")
        self._control = ThreadPoolExecutor(1, thread_name_prefix="control")
        self._reads = ThreadPoolExecutor(threads, thread_name_prefix="read")
        self._computing = ThreadPoolExecutor(_COMPUTING_THREADS, thread_name_prefix="compute")
        self._maintenance = ThreadPoolExecutor(maintenance_threads, thread_name_prefix="maintenance")
        self._housekeeping = ThreadPoolExecutor(1, thread_name_prefix="housekeeping")
        self.commit_turns = CommitTurns(threads, clock)
        self._computing_turns = FairTurns(_COMPUTING_THREADS)
        self._opening_turns = CommitTurns(threads, clock, _OPENING_WAIT_MAX_S)

    async def append(self, call: Callable[[], T]) -> T:
        """`commit` of one who has a turn."""
        return await self._measure(self.commit_turns, call)

    async def open(self, call: Callable[[], T]) -> T:
        """Of a partition, of which there may be thousands: in turns."""
        async with self._opening_turns.turn():
            return await self._measure(self._opening_turns, call)

    async def _measure(self, turns: CommitTurns, call: Callable[[], T]) -> T:
        processor_s = 0.0

        def measured() -> T:
            nonlocal processor_s
            started = time.thread_time()
            try:
                return call()
            finally:
                processor_s = time.thread_time() - started

        return await turns.measure(lambda: self.commit(measured), lambda: processor_s)

    def commit(self, call: Callable[[], T]) -> asyncio.Future[T]:
        return _submit(self._commits, call)

    def control(self, call: Callable[[], T]) -> asyncio.Future[T]:
        return _submit(self._control, call)

    def read(self, call: Callable[[], T]) -> asyncio.Future[T]:
        return _submit(self._reads, call)

    async def compute(self, call: Callable[[], T], client: Hashable = None) -> T:
        """Clients take turns; None is the broker itself."""
        async with self._computing_turns.turn(client):
            return await _submit(self._computing, call)

    def maintain(self, call: Callable[[], T]) -> asyncio.Future[T]:
        return _submit(self._maintenance, call)

    def housekeep(self, call: Callable[[], T]) -> asyncio.Future[T]:
        return _submit(self._housekeeping, call)

    def close(self) -> None:
        """Wait for what runs; what has not begun is dropped."""
        for pool in (
            self._commits,
            self._control,
            self._reads,
            self._computing,
            self._maintenance,
            self._housekeeping,
        ):
            pool.shutdown(wait=True, cancel_futures=True)


def _submit(pool: ThreadPoolExecutor, call: Callable[[], T]) -> asyncio.Future[T]:
    future: Future[T] = pool.submit(call)
    return asyncio.wrap_future(future)
