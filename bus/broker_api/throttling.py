"""How long a producer is asked to wait when a partition's queue is full.

An estimate and no promise: what was refused lately, over how fast the queue has drained since, so that a client
that retries then finds room. A partition without refusals is not watched, and costs nothing. Knows no clock.
"""

from __future__ import annotations

import math
from collections.abc import Hashable
from dataclasses import dataclass

THROTTLE_MS_MIN, THROTTLE_MS_MAX = 10, 1_000
THROTTLE_MS_UNKNOWN = 100  # for the first one that is refused
# What counts as lately: after so long, a byte counts for 1/e of one.
_MEMORY_S = 1.0
_PARTITIONS_MAX = 10_000  # those of deleted topics are forgotten at some time


@dataclass(slots=True)
class _Flow:
    """Sums of bytes that fade, as of `at_s`. In a steady flow they are its rate, in bytes per `_MEMORY_S`."""

    at_s: float
    drained: float = 0.0
    refused: float = 0.0

    def fade(self, now_s: float) -> None:
        share = math.exp((self.at_s - now_s) / _MEMORY_S)
        self.drained *= share
        self.refused *= share
        self.at_s = now_s


class DrainRates:
    def __init__(self) -> None:
        self._flows: dict[Hashable, _Flow] = {}

    def add_drained(self, partition: Hashable, size_bytes: int, now_s: float) -> None:
        flow = self._flows.get(partition)
        if flow is None:
            return
        flow.fade(now_s)
        flow.drained += size_bytes
        if flow.refused < 1:
            del self._flows[partition]

    def throttle_ms(self, partition: Hashable, refused_bytes: int, now_s: float) -> int:
        """When there will be room for this and for all that was refused shortly before."""
        flow = self._flows.get(partition)
        if flow is None:
            if len(self._flows) >= _PARTITIONS_MAX:
                self._flows.clear()
            self._flows[partition] = _Flow(now_s, refused=refused_bytes)
            return THROTTLE_MS_UNKNOWN
        flow.fade(now_s)
        flow.refused += refused_bytes
        if flow.drained <= 0:
            return THROTTLE_MS_MAX
        wait_ms = 1000 * _MEMORY_S * flow.refused / flow.drained
        return int(min(max(wait_ms, THROTTLE_MS_MIN), THROTTLE_MS_MAX))
