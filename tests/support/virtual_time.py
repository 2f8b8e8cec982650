"""An event loop whose time passes only when nobody has anything to do: hours take milliseconds, in the same order.

It has its own round in place of that of `asyncio`, which asks the machine for events and compares timers in Python: a
simulation makes hundreds of thousands of rounds. Calls and timers, also those that are due at once, come in the order
in which `asyncio` would make them.
"""

from __future__ import annotations

import asyncio
import heapq
import selectors
from collections import deque
from collections.abc import Callable, Coroutine, Iterable
from contextvars import Context
from typing import Any

_TICK_S = 1e-9  # timers that are so near are taken for due; their time has really come when they run
_CANCELLED_MIN = 100  # so many timers are kept as they are, however many of them are cancelled


class _Due(float):
    """The time of a timer, by which alone timers are compared."""

    timer: asyncio.TimerHandle


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """`new_handle` and `new_timer` may be others, that do more than to call."""

    _ready: deque[asyncio.Handle]
    _stopping: bool

    def __init__(self) -> None:
        super().__init__(selectors.SelectSelector())
        self.new_handle: Callable[..., asyncio.Handle] = asyncio.Handle
        self.new_timer: Callable[..., asyncio.TimerHandle] = asyncio.TimerHandle
        self._now = 0.0
        self._timers: list[_Due] = []
        self._cancelled_count = 0

    def time(self) -> float:
        return self._now

    def call_soon(self, callback: Callable[..., object], *args: Any, context: Context | None = None) -> asyncio.Handle:
        handle = self.new_handle(callback, args, self, context)
        self._ready.append(handle)
        return handle

    def call_at(
        self, when: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        due = _Due(when)
        due.timer = timer = self.new_timer(when, callback, args, self, context)
        timer._scheduled = True  # type: ignore[attr-defined]  # so that its end is told
        heapq.heappush(self._timers, due)
        return timer

    def call_later(
        self, delay: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        return self.call_at(self._now + delay, callback, *args, context=context)

    def call_again(self, handles: Iterable[asyncio.Handle]) -> None:
        """Calls that were kept when their turn came have it once more, soon."""
        self._ready.extend(handles)

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        if handle._scheduled:  # type: ignore[attr-defined]
            self._cancelled_count += 1

    def _pop(self) -> asyncio.TimerHandle:
        timer = heapq.heappop(self._timers).timer
        timer._scheduled = False  # type: ignore[attr-defined]
        return timer

    def _drop_cancelled(self) -> None:
        timers = self._timers
        if len(timers) > _CANCELLED_MIN and self._cancelled_count > len(timers) / 2:
            self._timers = [due for due in timers if not due.timer.cancelled()]
            heapq.heapify(self._timers)
            self._cancelled_count = 0
            return
        while timers and timers[0].timer.cancelled():
            self._cancelled_count -= 1
            self._pop()

    def _run_once(self) -> None:
        if self._cancelled_count:
            self._drop_cancelled()
        ready, timers = self._ready, self._timers
        if not ready and not self._stopping:
            assert timers, "everybody waits, and nothing is going to happen"
            wait_s = timers[0] - self._now
            if wait_s > 0:
                self._now += wait_s + _TICK_S
        end = self._now + _TICK_S
        while timers and timers[0] < end:
            ready.append(self._pop())
        for _ in range(len(ready)):
            handle = ready.popleft()
            if not handle.cancelled():
                handle._run()

    def close(self) -> None:
        self._timers.clear()
        super().close()


def run_virtually(coroutine: Coroutine[Any, Any, None]) -> None:
    loop = VirtualTimeLoop()
    try:
        loop.run_until_complete(coroutine)
    finally:
        loop.close()
