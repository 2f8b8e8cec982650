"""What maintenance of all partitions shares: bytes, time, a timer, and the words in which it is asked for.

Guards three promises: all maintenance together reads and writes at most `bytes_per_second`; a partition that stops
waits for no more than the few bytes that one step takes; and the time that retention goes by is read in every slot of
the timer, so that a wall clock that jumps is seen soon after it did.
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

from bus.errors import Refused
from bus.model import TopicPartition
from bus.partition_log.retention import RetentionTime, read_time
from bus.ports import Clock, MaintenanceStopped

# What may be used at once after a rest, in seconds of the allowance: smooths what comes in large pieces.
_BURST_S = 0.1
_SLOTS_MAX = 60
_SLOT_S_MIN = 1.0
# A broker that has just started has better things to do: with Kafka's interval it waits as long as Kafka does
# (log.initial.task.delay.ms).
_FIRST_DELAY_SHARE = 10


class MaintenanceAction(Enum):
    """What may be asked for by hand."""

    ROLL = "roll"  # small data files become large ones, due or not
    COMPACT = "compact"  # of every key the last record stays
    CLEAN = "clean"  # retention, and what is old enough of versions, removed files and orphans goes


@dataclass(frozen=True, slots=True)
class MaintenanceResult:
    """What became of a partition. Bytes and files are those that are live, but for what was deleted."""

    version: int
    files_before: int
    files_after: int
    bytes_before: int
    bytes_after: int
    rewritten_bytes: int
    log_start: int
    dropped_versions: int
    deleted_files: int
    deleted_bytes: int


@dataclass(frozen=True, slots=True)
class RecordsDeleted:
    """`low_watermark` is the log start now, `version` the one that the table has."""

    low_watermark: int
    version: int


@dataclass(frozen=True, slots=True)
class FilesSwapped:
    version: int


MaintainResult = MaintenanceResult | Refused
DeleteRecordsResult = RecordsDeleted | Refused
SwapResult = FilesSwapped | Refused


class IoThrottle:
    """An allowance of bytes for each second, for any number of threads. What was used already is waited for
    afterwards, each user in turn."""

    def __init__(self, bytes_per_second: float, clock: Clock) -> None:
        self._bytes_per_second = bytes_per_second
        self._clock = clock
        self._lock = threading.Lock()
        self._used_until_s = -math.inf  # by then the allowance has made up for what was used

    def use(self, byte_count: int) -> float:
        """Returns for how many seconds the user has to rest."""
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
        """Whoever rests, or calls again, is told."""
        self._stopped.set()


class MaintenanceClock:
    """The time that retention goes by, the same for all partitions. To be read every now and then."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._time: RetentionTime | None = None
        self.now_ms()

    def now_ms(self) -> int:
        self._time = read_time(self._time, wall_ms=self._clock.now_ms(), monotonic_ms=int(self.monotonic_ms()))
        return self._time.now_ms

    def monotonic_ms(self) -> float:
        return self._clock.monotonic_ms()


@dataclass(frozen=True, slots=True)
class Maintenance:
    """`backoff_s`: how long maintenance of a partition rests after it failed."""

    clock: MaintenanceClock
    throttle: IoThrottle
    backoff_s: float


class Maintained(Protocol):
    @property
    def name(self) -> TopicPartition: ...

    def look_after(self) -> None:
        """Returns at once."""
        ...


class MaintenanceTicker:
    """Has every partition looked at once in an interval, also those that no producer writes to: one timer for all of
    them, each interval in slots, so that thousands of partitions do not ask for the disk at once."""

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
