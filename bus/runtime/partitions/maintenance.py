"""Resources shared by the maintenance of all partitions: a byte rate, the time, a timer, and its requests and results.

Guards three promises: all maintenance together reads and writes at most `bytes_per_second`; a partition that stops
waits for at most one step of a few bytes; and the time of retention is read in every slot of the timer, so a jump of
the wall clock is noticed soon.
"""

from __future__ import annotations

import asyncio
import math
import threading
import zlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

from bus.descriptions import DeletedRecords, MaintainedLog
from bus.errors import Refused
from bus.model import TopicPartition
from bus.partition_log.log_life import RetentionTime, read_time
from bus.ports import Clock, MaintenanceStopped

# How much of the allowance may be saved up, in seconds: large pieces would otherwise come in bursts.
_BURST_S = 0.1
_SLOTS_MAX = 60
_SLOT_S_MIN = 1.0
# The first run waits for this share of the interval after a start: with Kafka's interval, as long as Kafka waits
# (log.initial.task.delay.ms).
_FIRST_DELAY_SHARE = 10


class MaintenanceAction(Enum):
    """The actions that an operator may request."""

    ROLL = "roll"  # small data files become large ones, due or not
    COMPACT = "compact"  # the last record of each key stays
    CLEAN = "clean"  # retention; then versions, removed files and orphans that are old enough are deleted
    UPGRADE = "upgrade"  # the table lets other Delta engines write or not, as its topic's configs say


@dataclass(frozen=True, slots=True)
class FilesSwapped:
    version: int


MaintainResult = MaintainedLog | Refused
DeleteRecordsResult = DeletedRecords | Refused
SwapResult = FilesSwapped | Refused


class IoThrottle:
    """An allowance of bytes per second for any number of threads. A thread uses bytes first and waits afterwards."""

    def __init__(self, bytes_per_second: float, clock: Clock) -> None:
        self._bytes_per_second = bytes_per_second
        self._clock = clock
        self._lock = threading.Lock()
        self._used_until_s = -math.inf  # when the allowance will have covered all bytes used so far

    def use(self, byte_count: int) -> float:
        """Returns for how many seconds the caller has to wait."""
        with self._lock:
            now_s = self._clock.monotonic_ms() / 1000
            self._used_until_s = max(self._used_until_s, now_s - _BURST_S) + byte_count / self._bytes_per_second
            return max(0.0, self._used_until_s - now_s)


class MaintenancePace:
    """One partition's share of the throttle: a `bus.ports.Pace` until it is stopped."""

    def __init__(self, throttle: IoThrottle) -> None:
        self._throttle = throttle
        self._stopped = threading.Event()

    def __call__(self, byte_count: int) -> None:
        delay_s = self._throttle.use(byte_count)
        if self._stopped.is_set() or (delay_s > 0 and self._stopped.wait(min(delay_s, threading.TIMEOUT_MAX))):
            raise MaintenanceStopped("the partition is going away")

    def stop(self) -> None:
        """A call that waits and every later call raise `MaintenanceStopped`."""
        self._stopped.set()


class MaintenanceClock:
    """The time of retention, the same for all partitions. Has to be read regularly."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._time: RetentionTime | None = None
        self.now_ms()

    def now_ms(self) -> int:
        self._time = read_time(self._time, wall_ms=self._clock.now_ms(), monotonic_ms=int(self.monotonic_ms()))
        return self._time.now_ms

    def monotonic_ms(self) -> float:
        return self._clock.monotonic_ms()


@dataclass(slots=True)
class Maintenance:
    """`backoff_s`: how long the maintenance of a partition pauses after a failure. `version_age_min_ms`: no
    younger version is deleted, also where the configs of its topic would allow it."""

    clock: MaintenanceClock
    throttle: IoThrottle
    backoff_s: float
    version_age_min_ms: int = 0


class Maintained(Protocol):
    @property
    def name(self) -> TopicPartition: ...

    def look_after(self) -> None:
        """Returns at once."""
        ...


class MaintenanceTicker:
    """Runs maintenance on every partition once per interval, also on those without producers. One timer serves all
    partitions; an interval is cut into slots, so that thousands of partitions do not use the disk at once."""

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
