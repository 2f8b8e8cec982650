"""One driver for many timers: it sleeps until the next slot of the wheel that is not empty.

Time is that of the event loop, which no change of the wall clock moves: a session does not end because an operator set
the clock. The driver is no task, so nothing has to be waited for when it is closed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

from bus.runtime.timing_wheel import TimingWheel

KeyT = TypeVar("KeyT", bound=Hashable)


class Timers(Generic[KeyT]):
    """`on_expired` is called on the loop with each timer that expires, after it has ceased to be one."""

    def __init__(self, on_expired: Callable[[KeyT], None], loop: asyncio.AbstractEventLoop | None = None) -> None:
        self._loop = loop or asyncio.get_running_loop()
        self._on_expired = on_expired
        self._wheel: TimingWheel[KeyT] = TimingWheel(self._now_ms())
        self._wake: asyncio.TimerHandle | None = None
        self._wake_ms = 0

    def __len__(self) -> int:
        return len(self._wheel)

    def __contains__(self, key: object) -> bool:
        return key in self._wheel

    def set(self, key: KeyT, after_ms: int) -> None:
        """Set the timer, or move it. O(1); moving one back touches nothing else."""
        # One more: the loop's time has fractions of a millisecond, and no timer may expire early.
        self._wheel.set(key, self._now_ms() + after_ms + 1)
        self._sleep()

    def cancel(self, key: KeyT) -> None:
        self._wheel.cancel(key)

    def close(self) -> None:
        """Nothing expires any more."""
        if self._wake is not None:
            self._wake.cancel()
            self._wake = None
        self._wheel = TimingWheel(self._now_ms())

    def _sleep(self) -> None:
        begin_ms = self._wheel.next_begin_ms
        if begin_ms is None or (self._wake is not None and self._wake_ms <= begin_ms):
            return
        if self._wake is not None:
            self._wake.cancel()
        self._wake_ms = begin_ms
        self._wake = self._loop.call_at(begin_ms / 1000, self._advance)

    def _advance(self) -> None:
        self._wake = None
        # The loop may call a little before the time that it was told, by its clock's resolution.
        for key in self._wheel.advance(max(self._now_ms(), self._wake_ms)):
            self._on_expired(key)
        self._sleep()

    def _now_ms(self) -> int:
        return int(self._loop.time() * 1000)
