"""The one place where blocking calls cross into threads.

Pools of their own, so that one kind of work never waits behind another: commits, which a producer waits for and which
take turns; opening partitions, in turns too, for which the producers of a broker that failed wait; control, the
cluster's metadata, which changes one at a time; reads of data files; computing, what would hold up the event loop;
maintenance, which takes long and is in no hurry (rolling, compaction); housekeeping, which is short and must not wait
behind it (checkpoints, deletion of files), one at a time; following the tables that other brokers lead; checking
passwords, one at a time; fetching keys from another server, one at a time; renewing this broker's lease, which other
brokers watch. What a pool is made of can be replaced: a simulation has pools without threads.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import OrderedDict, deque
from collections.abc import AsyncIterator, Callable, Hashable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Generic, Protocol, TypeVar

from bus.ports import Clock

T = TypeVar("T")


class FairTurns:
    """Turns at a scarce resource, shared by client: `turns_max` at once, for one event loop.

    Guards one promise: waiting clients take turns one after another, so a client with a thousand requests waits longer
    and does not delay the others."""

    def __init__(self, turns_max: int) -> None:
        self._free = turns_max
        # waiting calls by client, in the order in which the clients came; no entry is empty
        self._waiting: OrderedDict[Hashable, OrderedDict[asyncio.Future[None], None]] = OrderedDict()

    @contextlib.asynccontextmanager
    async def turn(self, client: Hashable) -> AsyncIterator[None]:
        if self._free and not self._waiting:
            self._free -= 1
        else:
            await self._wait(client)
        try:
            yield
        finally:
            self._free += 1
            self._call_next()

    async def _wait(self, client: Hashable) -> None:
        called: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(client, OrderedDict())[called] = None
        self._call_next()
        try:
            await called
        except asyncio.CancelledError:
            if called.done() and not called.cancelled():
                self._free += 1
                self._call_next()
            else:
                self._forget(client, called)
            raise

    def _forget(self, client: Hashable, called: asyncio.Future[None]) -> None:
        """It has gone away before it was called. A line that is long may have passed over it already."""
        line = self._waiting.get(client, OrderedDict())
        line.pop(called, None)
        if not line:
            self._waiting.pop(client, None)

    def _call_next(self) -> None:
        while self._free and self._waiting:
            client, line = next(iter(self._waiting.items()))
            called, _ = line.popitem(last=False)
            if line:
                self._waiting.move_to_end(client)
            else:
                del self._waiting[client]
            if not called.done():
                self._free -= 1
                called.set_result(None)


WAIT_MAX_S = 0.05
_WEIGHT = 0.1  # the weight of the newest commit in the moving average


class CommitTurns:
    """Turns to commit: as many partitions at once as keep one core busy. For one event loop.

    A small commit costs about the same for one record as for a thousand. If the processor is the bottleneck, more
    commits at once only make each slower and smaller; a partition that waits for its turn gathers records meanwhile and
    commits them together. If the store is the bottleneck (a slow disk, an object store), a commit mostly waits, and
    many can wait at once. The duration and processor time of commits that ran alone tell which case it is. Guards one
    promise: nobody waits for a turn longer than `wait_max_s`, so a commit that hangs does not block the others. Opening
    partitions has turns of its own by the same rules."""

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
        """Hold a turn, first come, first served."""
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


# It holds no interpreter lock; more of it at a time would only take the cores from the commits.
_COMPUTING_THREADS = 2
# The time for a broker with thousands of partitions to open them; after it, an opening that hangs no longer blocks
# others.
_OPENING_WAIT_MAX_S = 30.0


class Pool(Protocol):
    """Takes up calls in their order, a number of them at a time."""

    def submit(self, call: Callable[[], T]) -> asyncio.Future[T]:
        """Cancelled before it was taken up, a call is not made; later, it is made to its end."""
        ...

    def close(self) -> None:
        """Wait for the running calls; drop those that have not begun."""
        ...


class _Submit(Protocol):
    """Submits a call to a pool."""

    def __call__(self, call: Callable[[], T], /) -> asyncio.Future[T]: ...


class ThreadPool:
    def __init__(self, name: str, threads: int) -> None:
        self._executor = ThreadPoolExecutor(threads, thread_name_prefix=name)

    def submit(self, call: Callable[[], T]) -> asyncio.Future[T]:
        future: Future[T] = self._executor.submit(call)
        return asyncio.wrap_future(future)

    def close(self) -> None:
        self._executor.shutdown(wait=True, cancel_futures=True)


class _Measured(Generic[T]):
    """A call, and the processor time that it took."""

    def __init__(self, call: Callable[[], T], clock_s: Callable[[], float]) -> None:
        self._call = call
        self._clock_s = clock_s
        self.processor_s = 0.0

    def __call__(self) -> T:
        started = self._clock_s()
        try:
            return self._call()
        finally:
            self.processor_s = self._clock_s() - started


class BlockingCalls:
    """`processor_s` tells how much processor time its caller's thread has had."""

    def __init__(
        self,
        threads: int,
        *,
        clock: Clock,
        maintenance_threads: int = 1,
        new_pool: Callable[[str, int], Pool] = ThreadPool,
        processor_s: Callable[[], float] = time.thread_time,
    ) -> None:
        self._processor_s = processor_s
        self._commits = new_pool("commit", threads)
        self._openings = new_pool("open", threads)
        self._control = new_pool("control", 1)
        self._reads = new_pool("read", threads)
        self._computing = new_pool("compute", _COMPUTING_THREADS)
        self._maintenance = new_pool("maintenance", maintenance_threads)
        self._housekeeping = new_pool("housekeeping", 1)
        self._following = new_pool("following", 1)
        self._logins = new_pool("login", 1)
        self._fetches = new_pool("fetch", 1)
        self._leases = new_pool("lease", 1)
        self.commit_turns = CommitTurns(threads, clock)
        self._computing_turns = FairTurns(_COMPUTING_THREADS)
        self._opening_turns = CommitTurns(threads, clock, _OPENING_WAIT_MAX_S)

    async def append(self, call: Callable[[], T]) -> T:
        """`commit` of one who has a turn."""
        return await self._measure(self.commit_turns, self.commit, call)

    async def open(self, call: Callable[[], T]) -> T:
        """Run `call`, which opens a partition, in its turn: there may be thousands."""
        async with self._opening_turns.turn():
            return await self._measure(self._opening_turns, self._openings.submit, call)

    async def _measure(self, turns: CommitTurns, submit: _Submit, call: Callable[[], T]) -> T:
        measured = _Measured(call, self._processor_s)
        return await turns.measure(lambda: submit(measured), lambda: measured.processor_s)

    def commit(self, call: Callable[[], T]) -> asyncio.Future[T]:
        return self._commits.submit(call)

    def control(self, call: Callable[[], T]) -> asyncio.Future[T]:
        return self._control.submit(call)

    def read(self, call: Callable[[], T]) -> asyncio.Future[T]:
        return self._reads.submit(call)

    async def compute(self, call: Callable[[], T], client: Hashable = None) -> T:
        """Clients take turns; None is the broker itself."""
        async with self._computing_turns.turn(client):
            return await self._computing.submit(call)

    def log_in(self, call: Callable[[], T]) -> asyncio.Future[T]:
        """Run a password check, which takes milliseconds of processor time, in a thread of its own, because
        unauthenticated clients request it."""
        return self._logins.submit(call)

    def fetch(self, call: Callable[[], T]) -> asyncio.Future[T]:
        """A request to a server that is no broker. It may take until its time-out."""
        return self._fetches.submit(call)

    def renew(self, call: Callable[[], T]) -> asyncio.Future[T]:
        return self._leases.submit(call)

    def maintain(self, call: Callable[[], T]) -> asyncio.Future[T]:
        return self._maintenance.submit(call)

    def housekeep(self, call: Callable[[], T]) -> asyncio.Future[T]:
        return self._housekeeping.submit(call)

    async def follow(self, call: Callable[[], T]) -> tuple[T, float]:
        """Run `call`; return its result and the processor time that it took, in seconds."""
        measured = _Measured(call, self._processor_s)
        return await self._following.submit(measured), measured.processor_s

    def close(self) -> None:
        """Wait for the running calls; drop those that have not begun."""
        for pool in (
            self._commits,
            self._openings,
            self._control,
            self._reads,
            self._computing,
            self._maintenance,
            self._housekeeping,
            self._following,
            self._logins,
            self._fetches,
            self._leases,
        ):
            pool.close()
