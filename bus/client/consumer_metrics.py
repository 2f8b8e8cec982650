"""What a consumer knows of its own work, by Kafka's names; read whenever somebody asks.

Averages are over the consumer's whole life: with few commits and polls a window would mostly be empty.
"""

from __future__ import annotations

import math
from collections.abc import Callable

Gauge = Callable[[float], float]


class ConsumerMetrics:
    def __init__(self) -> None:
        self.records_consumed = 0
        self.last_poll_at = math.nan
        self._commits = 0
        self._commit_s = 0.0
        self._commit_max_s = 0.0
        self._gauges: dict[str, Gauge] = {}

    def add_gauge(self, name: str, gauge: Gauge) -> None:
        """`gauge` gets the time at which it is read."""
        self._gauges[name] = gauge

    def record_commit(self, seconds: float) -> None:
        """From the call to the coordinator's answer."""
        self._commits += 1
        self._commit_s += seconds
        self._commit_max_s = max(self._commit_max_s, seconds)

    def snapshot(self, now: float) -> dict[str, float]:
        return {
            "records-consumed-total": float(self.records_consumed),
            "last-poll-seconds-ago": now - self.last_poll_at,
            "commit-total": float(self._commits),
            "commit-latency-avg": 1000 * self._commit_s / self._commits if self._commits else math.nan,
            "commit-latency-max": 1000 * self._commit_max_s if self._commits else math.nan,
            **{name: gauge(now) for name, gauge in self._gauges.items()},
        }
