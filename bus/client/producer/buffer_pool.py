"""The memory of a producer: how many bytes are taken in and not settled, and who waits for more.

Guards two promises: never more than `total_bytes` are out, and what is given back goes to the longest waiter first,
whole, however small the wishes of those behind it (Kafka's BufferPool). Counts bytes, holds none.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TypeVar

from bus.client.connection.retrying import monotonic_ms
from bus.client.producer.interrupts import uninterrupted
from bus.errors import BusError, ErrorCode
from bus.platform.reentry import Flag, OwnLock

ResultT = TypeVar("ResultT")


class _Waiter:
    __slots__ = ("event", "is_granted", "is_released", "size_bytes")

    def __init__(self, size_bytes: int) -> None:
        self.size_bytes = size_bytes
        self.is_granted = False
        self.is_released = False  # the lock
        self.event = Flag()


class BufferPool:
    """`lock` is its owner's and is held at every call; `wait` gives it up while it waits."""

    def __init__(self, total_bytes: int, lock: OwnLock, clock: Callable[[], float] = monotonic_ms) -> None:
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
        """Never past a thread that waits."""
        if self._waiters or size_bytes > self.available_bytes:
            return False
        self.available_bytes -= size_bytes
        return True

    def wait(
        self, size_bytes: int, deadline_ms: float, on_wait: Callable[[float], None], use: Callable[[], ResultT]
    ) -> ResultT:
        """Take the bytes, or wait for them until `deadline_ms`; `on_wait` gets the milliseconds that it took. Returns
        what `use` makes of them: no interrupt comes in between, or they would be lost.

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
        with uninterrupted:
            if self.try_take(size_bytes):
                return use()
        waiter = _Waiter(size_bytes)
        started_ms = self._clock()
        interrupt: BaseException | None = None
        try:
            with uninterrupted:
                self._waiters.append(waiter)
                self._lock.release()
                waiter.is_released = True
            waiter.event.wait(max(0.0, deadline_ms - self._clock()) / 1000)
        except BaseException as failure:  # an interrupt of the user's thread: the lock comes first
            interrupt = failure
        with uninterrupted:
            if waiter.is_released:
                self._lock.acquire()
            on_wait(self._clock() - started_ms)
            if waiter.is_granted and interrupt is None:
                return use()
            self._give_up(waiter)
        if interrupt is not None:
            raise interrupt
        if self._closed_by is not None:
            raise self._closed_by
        raise BusError(
            ErrorCode.REQUEST_TIMED_OUT,
            f"waited {(self._clock() - started_ms) / 1000:.3f} s (max.block.ms) for {size_bytes} bytes of "
            f"buffer.memory={self.total_bytes}: {self.available_bytes} are free, "
            f"{self.total_bytes - self.available_bytes} are not acknowledged yet",
        )

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
        """Every call that waits now or would have to wait later raises `reason`. Safe to repeat."""
        self._closed_by = self._closed_by or reason
        waiters, self._waiters = self._waiters, deque()
        for waiter in waiters:
            waiter.event.set()
