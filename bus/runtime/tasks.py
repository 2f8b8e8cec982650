"""Tasks that belong to a scope.

Python 3.10 has no `asyncio.TaskGroup`, and the broker's tasks come and go for as long as it runs, so a scope holds
them: nothing is fire-and-forget, a failure is logged with its traceback, and closing waits for all of them.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Coroutine, Sequence
from typing import Any, Protocol, TypeVar

from bus.errors import NotController, StorageFault

_log = logging.getLogger(__name__)
T = TypeVar("T")

_LOGGED_AFTER_S = 5.0


class TaskScope:
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
