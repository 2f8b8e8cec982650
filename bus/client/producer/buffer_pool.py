"""The memory of a producer: how many bytes are taken in and not settled, and who waits for more.

Guards two promises: never more than `total_bytes` are out, and what is given back goes to the longest waiter first,
whole, however small the wishes of those behind it (Kafka's BufferPool). Counts bytes, holds none.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable

from bus.client.producer.interrupts import uninterrupted
from bus.errors import BusError, ErrorCode


class _Waiter:
    __slots__ = ("event", "is_granted", "size_bytes")

    def __init__(self, size_bytes: int) -> None:
        self.size_bytes = size_bytes
        self.is_granted = False
        self.event = threading.Event()


class BufferPool:
    """`lock` is its owner's and is held at every call; `wait` gives it up while it waits."""

    def __init__(self, total_bytes: int, lock: threading.Lock, clock: Callable[[], float] = time.monotonic) -> None:
        self.total_bytes = total_bytes
        self.available_bytes = total_bytes
        self._lock = lock
        self._clock = clock
        self._waiters: deque[_Waiter] = deque()
        self._closed_by: BusError | None = None

    @property
    def waiting_count(self) -> int:
        return len(self._waiters)

    def try_take(self, size_bytes: int) -> bool:
        """Never past somebody who waits."""
        if self._waiters or size_bytes > self.available_bytes:
            return False
        self.available_bytes -= size_bytes
        return True

    def wait(self, size_bytes: int, deadline: float, on_wait: Callable[[float], None]) -> None:
        """Take the bytes, or wait for them until `deadline`; `on_wait` gets the seconds that it took.

        Raises `BusError`: MESSAGE_TOO_LARGE at once if there will never be so many, REQUEST_TIMED_OUT, or what `close`
        was given.
        """
        if size_bytes > self.total_bytes:
            raise BusError(
                ErrorCode.MESSAGE_TOO_LARGE,
                f"expected at most buffer.memory={self.total_bytes} bytes at once, found {size_bytes}",
            )
        if self._closed_by is not None:
            raise self._closed_by
        if self.try_take(size_bytes):
            return
        waiter = _Waiter(size_bytes)
        started = self._clock()
        try:
            self._waiters.append(waiter)
            self._wait_unlocked(waiter, deadline)
        except BaseException:  # an interrupt of the user's thread
            self._give_up(waiter)
            raise
        finally:
            on_wait(self._clock() - started)
        if not waiter.is_granted:
            self._give_up(waiter)
            if self._closed_by is not None:
                raise self._closed_by
            raise BusError(
                ErrorCode.REQUEST_TIMED_OUT,
                f"waited {self._clock() - started:.3f} s (max.block.ms) for {size_bytes} bytes of "
                f"buffer.memory={self.total_bytes}: {self.available_bytes} are free, "
                f"{self.total_bytes - self.available_bytes} are not acknowledged yet",
            )

    def _wait_unlocked(self, waiter: _Waiter, deadline: float) -> None:
        self._lock.release()
        try:
            waiter.event.wait(max(0.0, deadline - self._clock()))
        finally:
            with uninterrupted:  # the caller releases it, held or not
                self._lock.acquire()

    def _give_up(self, waiter: _Waiter) -> None:
        if waiter.is_granted:
            self.give_back(waiter.size_bytes)
        elif waiter in self._waiters:
            self._waiters.remove(waiter)
            self._grant()

    def give_back(self, size_bytes: int) -> None:
        self.available_bytes += size_bytes
        assert self.available_bytes <= self.total_bytes, f"{self.available_bytes} of {self.total_bytes} bytes are free"
        if self._waiters:
            self._grant()

    def _grant(self) -> None:
        while self._waiters and self._waiters[0].size_bytes <= self.available_bytes:
            waiter = self._waiters.popleft()
            self.available_bytes -= waiter.size_bytes
            waiter.is_granted = True
            waiter.event.set()

    def close(self, reason: BusError) -> None:
        """Whoever waits, or would have to, gets `reason`. Safe to repeat."""
        self._closed_by = self._closed_by or reason
        waiters, self._waiters = self._waiters, deque()
        for waiter in waiters:
            waiter.event.set()
