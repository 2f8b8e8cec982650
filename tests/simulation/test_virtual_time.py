"""Virtual time has a round of its own; a seed decides everything only if that keeps the order of asyncio's."""

from __future__ import annotations

import asyncio
import selectors
from random import Random

import pytest

from tests.support.virtual_time import VirtualTimeLoop

_TICK_S = 1e-9


class _NoWaiting(selectors.SelectSelector):
    """Instead of waiting until a timer is due it is later."""

    now = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        assert timeout is not None, "everybody waits, and nothing is going to happen"
        if timeout > 0:
            self.now += timeout + _TICK_S
        return []


class AsyncioLoop(asyncio.SelectorEventLoop):
    """The round of asyncio itself, without waiting."""

    def __init__(self) -> None:
        self._clock = _NoWaiting()
        super().__init__(self._clock)

    def time(self) -> float:
        return self._clock.now


async def _program(seed: int) -> list[tuple[float, int]]:
    """Return what is called when, of calls and timers that set and cancel others; many timers are due at once."""
    loop, chance = asyncio.get_running_loop(), Random(seed)
    seen: list[tuple[float, int]] = []
    timers: list[asyncio.TimerHandle] = []
    delays_s = (0.0, 0.0, 1e-9, 0.01, 0.01, 0.02, 1.0, chance.random())
    is_over = asyncio.Event()

    def call(number: int) -> None:
        seen.append((loop.time(), number))
        if len(seen) == 2_000:
            is_over.set()
        for _ in range(chance.randrange(4)):
            if chance.randrange(3):
                timers.append(loop.call_later(chance.choice(delays_s), call, chance.randrange(1_000_000)))
            else:
                loop.call_soon(call, chance.randrange(1_000_000))
        for _ in range(chance.randrange(3)):
            if timers:
                timers.pop(chance.randrange(len(timers))).cancel()

    def keep_on() -> None:
        call(-1)
        loop.call_later(0.5, keep_on)

    keep_on()
    await is_over.wait()
    return seen


def _play(loop: asyncio.AbstractEventLoop, seed: int) -> list[tuple[float, int]]:
    try:
        return loop.run_until_complete(_program(seed))
    finally:
        loop.close()


@pytest.mark.parametrize("seed", range(8))
def test_calls_and_timers_come_in_the_order_of_asyncio(seed: int) -> None:
    assert _play(VirtualTimeLoop(), seed) == _play(AsyncioLoop(), seed)


def test_nothing_that_is_going_to_happen_is_told() -> None:
    loop = VirtualTimeLoop()
    try:
        with pytest.raises(AssertionError, match="nothing is going to happen"):
            loop.run_until_complete(loop.create_future())
    finally:
        loop.close()
