"""An event loop whose time passes only when nobody has anything to do: hours take milliseconds, in the same order."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any

_TICK_S = 1e-9  # the loop takes timers for due that are so near; their time has really come when they run


class _NoWaiting(selectors.SelectSelector):
    """Instead of waiting until a timer is due it is later."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        assert timeout is not None, "everybody waits, and nothing is going to happen"
        if timeout > 0:
            self.now += timeout + _TICK_S
        return []


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self._clock = _NoWaiting()
        super().__init__(self._clock)

    def time(self) -> float:
        return self._clock.now


def run_virtually(coroutine: Coroutine[Any, Any, None]) -> None:
    loop = VirtualTimeLoop()
    try:
        loop.run_until_complete(coroutine)
    finally:
        loop.close()
