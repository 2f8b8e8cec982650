"""Tasks that belong to somebody.

Python 3.10 has no `asyncio.TaskGroup`, and the broker's tasks come and go for as long as it runs, so a scope holds
them: nothing is fire-and-forget, a failure is logged with its traceback, and closing waits for all of them.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any, TypeVar

_log = logging.getLogger(__name__)

T = TypeVar("T")


class TaskScope:
    def __init__(self, name: str) -> None:
        self._name = name
        self._tasks: set[asyncio.Task[Any]] = set()

    def start(self, coroutine: Coroutine[Any, Any, Any], name: str) -> asyncio.Task[Any]:
        task = asyncio.get_running_loop().create_task(coroutine, name=f"{self._name}/{name}")
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    async def finish(self, coroutine: Coroutine[Any, Any, T], name: str) -> T:
        """What the coroutine returns or raises. It runs to its end in a task of this scope: cancelling the caller ends
        the caller's waiting and nothing else."""
        task = self.start(coroutine, name)
        await asyncio.wait([task])  # unlike awaiting the task itself, which would be cancelled with the caller
        result: T = task.result()
        return result

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.error("task %s failed", task.get_name(), exc_info=error)

    async def join(self) -> None:
        """Wait until every task has ended, those too that are started meanwhile."""
        while self._tasks:
            await asyncio.wait(set(self._tasks))

    async def cancel(self) -> None:
        for task in set(self._tasks):
            task.cancel()
        await self.join()
