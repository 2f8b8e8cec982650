"""When a stream is held back."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import pytest

from bus.grpc_api.server.records.produce import STREAM_BYTES_MAX, STREAM_REQUESTS_MAX, Window


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
        window: Window[Request] = Window()
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


def test_failure_of_a_stream_is_raised_behind_all_that_came_before_it() -> None:
    async def scenario() -> None:
        window: Window[Request] = Window()
        await window.admit(Request(1))
        window.end(ValueError("no request"))
        assert await window.next() == Request(1)
        with pytest.raises(ValueError, match="no request"):
            await window.next()

    run(scenario)
