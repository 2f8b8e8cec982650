"""A hierarchical timing wheel: many timers, most of which are moved again and again and seldom expire.

Theory of operation. A wheel has 20 slots; those of the first are 1 ms wide, each next wheel's are as wide as the whole
wheel before it. A timer lies in the finest wheel that reaches its deadline, in the slot that the deadline falls into;
so a slot is known by the time at which it begins, whatever wheel it is of. When a slot comes up, its timers expire, or
go into a finer wheel. Moving a deadline back touches no slot: the timer stays where it lies, and when that slot comes
up its deadline decides. So a session timer that a heartbeat moves every few seconds costs one assignment for each.

Guards one promise: a timer expires at its last deadline, never before, and not later than the first `advance` after it.
Knows no clock: time comes in, in milliseconds, and only grows.
"""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

SLOTS = 20

KeyT = TypeVar("KeyT", bound=Hashable)


class _Timer:
    __slots__ = ("deadline_ms", "slot_ms")

    def __init__(self, deadline_ms: int) -> None:
        self.deadline_ms = deadline_ms
        self.slot_ms = deadline_ms  # slot_ms <= deadline_ms: the begin of the slot in which it lies


class TimingWheel(Generic[KeyT]):
    def __init__(self, now_ms: int) -> None:
        self._now_ms = now_ms
        self._timers: dict[KeyT, _Timer] = {}
        self._slots: dict[int, dict[KeyT, _Timer]] = {}  # keyed by their begin; about 20 for each wheel in use
        self._begins: list[int] = []  # a heap of the keys of _slots

    def __len__(self) -> int:
        return len(self._timers)

    def __contains__(self, key: object) -> bool:
        return key in self._timers

    @property
    def next_begin_ms(self) -> int | None:
        """When `advance` is due: the begin of the first slot that is not empty. None: there is no timer."""
        while self._begins and not self._slots[self._begins[0]]:
            del self._slots[heapq.heappop(self._begins)]
        return self._begins[0] if self._begins else None

    def set(self, key: KeyT, deadline_ms: int) -> None:
        """Set the timer, or move it. A deadline that has passed expires with the next `advance`."""
        timer = self._timers.get(key)
        if timer is None:
            timer = self._timers[key] = _Timer(deadline_ms)
            self._place(key, timer)
        elif deadline_ms >= timer.slot_ms:
            timer.deadline_ms = deadline_ms
        else:
            del self._slots[timer.slot_ms][key]
            timer.deadline_ms = deadline_ms
            self._place(key, timer)

    def cancel(self, key: KeyT) -> None:
        """Cancel the timer, if there is one."""
        timer = self._timers.pop(key, None)
        if timer is not None:
            del self._slots[timer.slot_ms][key]

    def advance(self, now_ms: int) -> list[KeyT]:
        """The timers whose deadline has come, about in the order of their deadlines; they are timers no more."""
        assert now_ms >= self._now_ms, f"time went from {self._now_ms} to {now_ms}"
        self._now_ms = now_ms
        expired: list[KeyT] = []
        while self._begins and self._begins[0] <= now_ms:
            for key, timer in self._slots.pop(heapq.heappop(self._begins)).items():
                if timer.deadline_ms <= now_ms:
                    del self._timers[key]
                    expired.append(key)
                else:
                    self._place(key, timer)
        return expired

    def _place(self, key: KeyT, timer: _Timer) -> None:
        remaining_ms = timer.deadline_ms - self._now_ms
        width_ms = 1
        while remaining_ms >= width_ms * SLOTS:
            width_ms *= SLOTS
        # Later than now if the deadline is: with more than one tick a whole slot lies in between.
        timer.slot_ms = timer.deadline_ms - timer.deadline_ms % width_ms
        slot = self._slots.get(timer.slot_ms)
        if slot is None:
            slot = self._slots[timer.slot_ms] = {}
            heapq.heappush(self._begins, timer.slot_ms)
        slot[key] = timer


class Timers(Generic[KeyT]):
    """One driver for many timers: it sleeps until the next slot of the wheel that is not empty. Time is that of the
    event loop, which no change of the wall clock moves: a session does not end because an operator set the clock. The
    driver is no task, so nothing has to be waited for when it is closed.

    `on_expired` is called on the loop with each timer that expires, after it has ceased to be one."""

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
        """Stop: nothing expires any longer."""
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
        # The loop may call a little early, by its clock's resolution.
        for key in self._wheel.advance(max(self._now_ms(), self._wake_ms)):
            self._on_expired(key)
        self._sleep()

    def _now_ms(self) -> int:
        return int(self._loop.time() * 1000)
