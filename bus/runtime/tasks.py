"""Tasks of the event loop, which belong to a scope, and shares of the loop for work that takes long."""

from __future__ import annotations

import asyncio
import logging
import sys
import time
from collections import deque
from collections.abc import Coroutine, Iterable, Iterator, Sequence
from typing import Any, Protocol, TypeVar

from bus.errors import NotController, StorageFault

_log = logging.getLogger(__name__)
T = TypeVar("T")

_LOGGED_AFTER_S = 5.0


class TaskScope:
    """Holds tasks that come and go for as long as the broker runs (Python 3.10 has no `asyncio.TaskGroup`). Guards one
    promise: nothing is fire-and-forget, a failure is logged with its traceback, and closing waits for all of them."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._tasks: dict[asyncio.Task[Any], None] = {}  # in the order of their start

    def start(self, coroutine: Coroutine[Any, Any, Any], name: str) -> asyncio.Task[Any]:
        task = self._create(coroutine, name)
        task.add_done_callback(_log_failure)
        return task

    async def finish(self, coroutine: Coroutine[Any, Any, T], name: str) -> T:
        """Return or raise the coroutine's result. It runs to its end in a task of this scope: cancelling the caller
        ends the caller's waiting and nothing else. An error is logged only if no caller is left to get it; that another
        broker is the controller is none."""
        task = self._create(coroutine, name)
        try:
            await asyncio.wait([task])  # unlike awaiting the task itself, which would be cancelled with the caller
        except asyncio.CancelledError:
            task.add_done_callback(_log_failure)
            raise
        result: T = task.result()
        return result

    def _create(self, coroutine: Coroutine[Any, Any, T], name: str) -> asyncio.Task[T]:
        task = asyncio.get_running_loop().create_task(coroutine, name=f"{self._name}/{name}")
        self._tasks[task] = None
        task.add_done_callback(self._tasks.pop)
        return task

    async def join(self) -> None:
        """Wait until every task has ended, those too that are started meanwhile. Which ones let it wait is logged."""
        while self._tasks:
            ended, _ = await asyncio.wait(list(self._tasks), timeout=_LOGGED_AFTER_S)
            if not ended:
                names = sorted(task.get_name() for task in self._tasks)
                _log.warning("%s: waiting for %d tasks to end: %s", self._name, len(names), ", ".join(names[:10]))

    async def cancel(self) -> None:
        for task in list(self._tasks):
            task.cancel()
        await self.join()


async def together(coroutines: Sequence[Coroutine[Any, Any, T]]) -> Sequence[T]:
    """Run them concurrently and return their results, in order. Raises the first exception; the others then run on.
    Cancelling the caller cancels all of them. A single one is awaited without a task of its own, which would take more
    turns of the event loop than most calls within a broker."""
    if len(coroutines) == 1:
        return [await coroutines[0]]
    return await asyncio.gather(*coroutines)


def answered(result: T) -> asyncio.Future[T]:
    """Return a finished future, for callers that otherwise wait for an answer."""
    answer: asyncio.Future[T] = asyncio.get_running_loop().create_future()
    answer.set_result(result)
    return answer


def _log_failure(task: asyncio.Task[Any]) -> None:
    """A fault of the store is one of the outside: where in the code it came out tells nothing."""
    if not task.cancelled() and (error := task.exception()) is not None and not isinstance(error, NotController):
        if isinstance(error, StorageFault):
            _log.error("task %s failed: %s", task.get_name(), error)
        else:
            _log.error("task %s failed", task.get_name(), exc_info=error)


class Wakeable(Protocol):
    """A reader that a partition wakes: an `asyncio.Event`, or an object that also notes which partition woke it."""

    def set(self) -> None:
        """There may be more to read. Returns at once."""
        ...


# `asyncio.wait_for` of Python 3.10 and 3.11 forgets a cancellation that comes at the moment in which the awaited task
# is done: a task that is cancelled once then continues for good, and a stop that joins it hangs. No code uses it.

if sys.version_info >= (3, 11):
    from asyncio import timeout as time_limit
else:
    from async_timeout import timeout as time_limit

__all__ = ["time_limit"]


SLICE_S = 0.005


class Growing(Protocol):
    def append(self, item: Any, /) -> None: ...


GrowingT = TypeVar("GrowingT", bound=Growing)


class LoopShares:
    """The shares of one event loop: long work on it, in slices, so that what is short never waits for all of it.

    A request may name thousands of partitions. Each is looked at in microseconds, all of them in a time that others
    would notice. Guards one promise: such work holds the loop for about `SLICE_S` at a time, and of all that is under
    way one slice is run in each round of the loop, in turn, however many requests there are.
    """

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
