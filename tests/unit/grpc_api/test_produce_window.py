"""Who is held back, when, and who goes on first."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import pytest

from bus.grpc_api.server.produce_window import STREAM_BYTES_MAX, STREAM_REQUESTS_MAX, RequestMemory, Window


@dataclass(frozen=True)
class Request:
    size_bytes: int


def run(scenario: Callable[[], Awaitable[None]]) -> None:
    async def main() -> None:
        await scenario()

    asyncio.run(main())


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


@pytest.mark.parametrize(
    ("size_bytes", "count"), [(STREAM_BYTES_MAX // 4, 4), (1, STREAM_REQUESTS_MAX), (2 * STREAM_BYTES_MAX, 1)]
)
def test_stream_is_read_no_further_at_its_bound_until_one_is_answered(size_bytes: int, count: int) -> None:
    async def scenario() -> None:
        window: Window[Request] = Window(RequestMemory(1 << 40))
        admitted = 0

        async def read() -> None:
            nonlocal admitted
            while True:
                await window.admit(Request(size_bytes))
                admitted += 1

        reader = asyncio.ensure_future(read())
        await settle()
        assert admitted == count - 1, "the last one is in, and nothing is read behind it"
        first = await window.next()
        assert first is not None
        window.release(first)
        await settle()
        assert admitted == count
        reader.cancel()

    run(scenario)


def test_streams_together_are_held_back_and_go_on_in_the_order_they_came() -> None:
    async def scenario() -> None:
        memory = RequestMemory(100)
        windows: list[Window[Request]] = [Window(memory) for _ in range(3)]
        admitted: list[int] = []

        async def admit(place: int) -> None:
            await windows[place].admit(Request(60))
            admitted.append(place)

        tasks = []
        for place in range(3):
            tasks.append(asyncio.ensure_future(admit(place)))
            await settle()
        assert admitted == [0], "the first found room; the others are in, but read nothing more"
        assert memory.is_full
        for released, expected in ((0, [0]), (1, [0, 1, 2])):  # 120 bytes are still too many, 60 are not
            request = await windows[released].next()
            assert request is not None
            windows[released].release(request)
            await settle()
            assert admitted == expected
        await asyncio.gather(*tasks)

    run(scenario)


def test_stream_that_is_gone_gives_back_what_it_held() -> None:
    async def scenario() -> None:
        memory = RequestMemory(100)
        gone: Window[Request] = Window(memory)
        waiting = asyncio.ensure_future(gone.admit(Request(500)))
        other = asyncio.ensure_future(memory.wait_for_room())
        await settle()
        assert not other.done()
        waiting.cancel()
        gone.close()
        await asyncio.wait_for(other, 1)
        assert not memory.is_full

    run(scenario)


def test_cancelled_waiter_takes_nobodys_turn() -> None:
    async def scenario() -> None:
        memory = RequestMemory(10)
        memory.take(10)
        first, second = (asyncio.ensure_future(memory.wait_for_room()) for _ in range(2))
        await settle()
        first.cancel()
        memory.give_back(10)
        await asyncio.wait_for(second, 1)

    run(scenario)
