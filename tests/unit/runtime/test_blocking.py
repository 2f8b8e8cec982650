"""Kinds of work, and what each waits behind."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

from bus.runtime.blocking import BlockingCalls
from tests.support.fake_table import ManualClock

T = TypeVar("T")


class BusyPool:
    """A pool whose threads are all taken: what it was given waits."""

    def submit(self, call: Callable[[], T]) -> asyncio.Future[T]:
        return asyncio.get_running_loop().create_future()

    def close(self) -> None:
        pass


class FreePool(BusyPool):
    def submit(self, call: Callable[[], T]) -> asyncio.Future[T]:
        future = super().submit(call)
        future.set_result(call())
        return future


def test_partition_is_opened_though_all_threads_are_committing() -> None:
    """A failover: the partitions that the broker led before are as busy as ever."""

    async def scenario() -> None:
        calls = BlockingCalls(
            2, clock=ManualClock(), new_pool=lambda name, _: BusyPool() if name == "commit" else FreePool()
        )
        commits = [asyncio.ensure_future(calls.append(lambda: "committed")) for _ in range(3)]
        assert await calls.open(lambda: "opened") == "opened"
        assert not any(commit.done() for commit in commits)
        for commit in commits:
            commit.cancel()
        await asyncio.wait(commits)

    asyncio.run(asyncio.wait_for(scenario(), 10))
