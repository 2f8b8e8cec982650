"""The users as a broker knows them, where the storage fails."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from bus.errors import Refused, StorageFault
from bus.platform.system_clock import SystemClock
from bus.runtime.tasks import TaskScope
from bus.runtime.user_directory import CHANGE_SECONDS_MAX, UserDirectory, UserLedger
from bus.security.users import SetScram
from bus.storage_delta.root import open_storage_on
from tests.support.fake_table import ManualClock
from tests.support.memory_store import MemoryStore

ALICE = SetScram("alice", "SCRAM-SHA-256", 4096, b"12345678", b"p" * 32)


class FullStore(MemoryStore):
    def create(self, *_: Any, **__: Any) -> Any:
        raise StorageFault("the disk is full")


class Threads:
    """Stands in for `BlockingCalls`: the first call waits until `go_on` is set."""

    def __init__(self) -> None:
        self.go_on = asyncio.Event()

    async def control(self, call: Callable[[], Any]) -> Any:
        await self.go_on.wait()
        return call()


@pytest.mark.parametrize("is_caller_gone", [False, True])
def test_a_fault_of_the_storage_is_none_of_the_program(is_caller_gone: bool, caplog: pytest.LogCaptureFixture) -> None:
    async def alter() -> None:
        tasks, threads = TaskScope("test"), Threads()
        store = FullStore()
        storage: Any = open_storage_on(MemoryStore(), exclusive=False)
        storage._store = store
        calls: Any = threads
        directory = UserDirectory(storage, clock=SystemClock(), calls=calls, tasks=tasks)
        caller = asyncio.create_task(directory.alter([ALICE]))
        await asyncio.sleep(0)
        if is_caller_gone:
            caller.cancel()
            await asyncio.wait([caller])
        threads.go_on.set()
        await tasks.join()
        if not is_caller_gone:
            with pytest.raises(StorageFault, match="the disk is full"):
                await caller

    asyncio.run(alter())
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    assert "a change of users has failed: " in caplog.text


@pytest.mark.parametrize(("passed_s", "is_caller_gone"), [(0, True), (CHANGE_SECONDS_MAX + 1, False), (0, False)])
def test_a_change_that_has_not_begun_goes_with_its_caller_and_its_time(passed_s: float, is_caller_gone: bool) -> None:
    """A broker that stood still would undo, with what it has left to do, what its clients had another broker do
    since."""

    async def alter() -> Mapping[str, Refused | None] | BaseException:
        tasks, threads, clock = TaskScope("test"), Threads(), ManualClock()
        calls: Any = threads
        directory = UserDirectory(open_storage_on(store, exclusive=False), clock=clock, calls=calls, tasks=tasks)
        caller = asyncio.create_task(directory.alter([ALICE]))
        await asyncio.sleep(0)
        if is_caller_gone:
            caller.cancel()
            await asyncio.wait([caller])
        clock.advance(int(passed_s * 1000))
        threads.go_on.set()
        await tasks.join()
        [ended] = await asyncio.gather(caller, return_exceptions=True)
        return ended

    store = MemoryStore()
    ended = asyncio.run(alter())
    is_done = not passed_s and not is_caller_gone
    assert set(UserLedger(open_storage_on(store, exclusive=False), SystemClock()).follow().by_name) == (
        {"alice"} if is_done else set()
    )
    if passed_s:
        assert isinstance(ended, StorageFault)
    elif is_done:
        assert ended == {"alice": None}
