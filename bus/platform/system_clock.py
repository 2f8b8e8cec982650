"""The clock of the machine: the implementation of `bus.ports.Clock` where no other one is given."""

from __future__ import annotations

import time

# A clock that also counts while the machine is suspended, if the system has one: sessions end meanwhile.
_MONOTONIC = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


class SystemClock:
    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic_ms(self) -> float:
        return time.clock_gettime_ns(_MONOTONIC) / 1_000_000
