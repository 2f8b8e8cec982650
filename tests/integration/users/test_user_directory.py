"""The users as a broker knows them, where the storage fails."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any

import pytest

from bus.errors import StorageFault
from bus.runtime.tasks import TaskScope
from bus.runtime.users.user_directory import UserDirectory
from bus.storage_delta.root import open_storage_on
from bus.storage_delta.stores.memory import MemoryStore
from bus.system_clock import SystemClock
from bus.users.users import SetScram

ALICE = SetScram("alice", "SCRAM-SHA-256", 4096, b"12345678", b"p" * 32)


class FullStore(MemoryStore):
    def create(self, *_: Any, **__: Any) -> Any:
        raise StorageFault("the disk is full")


class Threads:
    """In place of `BlockingCalls`: the first call waits until it is let go."""

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
