"""Has every partition looked at once in an interval, also those that no producer writes to.

One timer for all of them, each interval in slots, so that thousands of partitions do not ask for the disk at once.
Guards one promise: the time that retention goes by is read in every slot, so that a wall clock that jumps is seen soon
after it did.
"""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Callable, Iterable
from typing import Protocol

from bus.model import TopicPartition
from bus.runtime.partitions.maintenance import MaintenanceClock

_SLOTS_MAX = 60
_SLOT_S_MIN = 1.0
# A broker that has just started has better things to do: with Kafka's interval it waits as long as Kafka does
# (log.initial.task.delay.ms).
_FIRST_DELAY_SHARE = 10


class Maintained(Protocol):
    @property
    def name(self) -> TopicPartition: ...

    def look_after(self) -> None:
        """Returns at once."""
        ...


class MaintenanceTicker:
    def __init__(
        self, interval_s: float, clock: MaintenanceClock, partitions: Callable[[], Iterable[Maintained]]
    ) -> None:
        self._clock = clock
        self._partitions = partitions
        self._first_delay_s = interval_s / _FIRST_DELAY_SHARE
        self._slots = max(1, min(_SLOTS_MAX, int(interval_s / _SLOT_S_MIN)))
        self._slot_s = interval_s / self._slots
        self._slot = 0
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        self._wait(self._first_delay_s)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _wait(self, delay_s: float) -> None:
        self._timer = asyncio.get_running_loop().call_later(delay_s, self._tick)

    def _tick(self) -> None:
        self._wait(self._slot_s)
        self._clock.now_ms()
        for partition in self._partitions():
            if zlib.crc32(str(partition.name).encode()) % self._slots == self._slot:
                partition.look_after()
        self._slot = (self._slot + 1) % self._slots
