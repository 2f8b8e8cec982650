from __future__ import annotations

import asyncio
import threading

import pytest

from bus.aio.consumer import ConsumerThread
from bus.errors import BusError, ErrorCode


def test_calls_run_one_after_another_on_one_thread() -> None:
    thread = ConsumerThread("consumer")
    seen: list[int] = []

    async def scenario() -> list[str]:
        calls = [thread.call(lambda: threading.current_thread().name) for _ in range(3)]
        for number in range(100):
            thread.call(lambda number=number: seen.append(number))  # type: ignore[misc]
        names = await asyncio.gather(*calls)
        await thread.call(lambda: None)
        thread.end()
        return names

    assert asyncio.run(scenario()) == ["consumer"] * 3
    assert seen == list(range(100))


def test_what_a_call_raises_comes_to_who_awaits_it() -> None:
    thread = ConsumerThread("consumer")

    async def scenario() -> None:
        with pytest.raises(ZeroDivisionError):
            await thread.call(lambda: 1 / 0)
        thread.end()
        with pytest.raises(BusError) as caught:
            thread.call(lambda: None)
        assert caught.value.code is ErrorCode.INVALID_REQUEST

    asyncio.run(scenario())


def test_calls_of_a_coroutine_that_the_thread_waits_for_are_served_before_all_others() -> None:
    thread = ConsumerThread("consumer")
    order: list[str] = []

    async def callback() -> str:
        other = asyncio.ensure_future(asyncio.sleep(0))
        await thread.call(lambda: order.append("of the callback"))
        await other
        return "done"

    async def scenario() -> None:
        waiting = thread.call(lambda: order.append(thread.await_here(callback)))
        later = thread.call(lambda: order.append("later"))
        await asyncio.gather(waiting, later)
        thread.end()

    asyncio.run(scenario())
    assert order == ["of the callback", "done", "later"]


def test_task_that_outlives_its_callback_waits_in_line_like_all_others() -> None:
    thread = ConsumerThread("consumer")

    async def scenario() -> str:
        tasks: list[asyncio.Task[str]] = []
        is_over = asyncio.Event()

        async def task() -> str:
            await is_over.wait()
            return await thread.call(lambda: "served")

        async def callback() -> None:
            tasks.append(asyncio.create_task(task()))

        await thread.call(lambda: thread.await_here(callback))
        is_over.set()
        served = await tasks[0]
        thread.end()
        return served

    assert asyncio.run(scenario()) == "served"
