"""Latencies collected and told in the words of Kafka's tools. No clock and no client in here."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

_MIB = 1 << 20


@dataclass(slots=True)
class Latencies:
    """Samples in milliseconds, each with the number of records that had it."""

    samples: list[tuple[float, int]] = field(default_factory=list)

    def add(self, milliseconds: float, count: int) -> None:
        self.samples.append((milliseconds, count))

    @property
    def count(self) -> int:
        return sum(count for _, count in self.samples)

    @property
    def average(self) -> float:
        total = self.count
        return sum(value * count for value, count in self.samples) / total if total else 0.0

    @property
    def maximum(self) -> float:
        return max((value for value, _ in self.samples), default=0.0)

    def percentile(self, share: float) -> float:
        """The smallest latency that `share` percent of the records did not exceed."""
        wanted = self.count * share / 100
        reached = 0
        for value, count in sorted(self.samples):
            reached += count
            if reached >= wanted:
                return value
        return 0.0


class ProduceFigures:
    """What `kafka-producer-perf-test` prints: windows while it runs, and the whole at the end.

    Acknowledgements come on the producer's thread; appending to a list is all that is done there.
    """

    def __init__(self, record_size: int, *, started: float) -> None:
        self._record_size = record_size
        self._started = self._window_started = started
        self._all = Latencies()
        self._reported = 0  # samples that a window has shown
        self._failure: BaseException | None = None

    def callback(self, count: int, started: float) -> Callable[[Any], None]:
        def acknowledged(future: Any) -> None:
            error = future.exception(0)
            if error is not None:
                self._failure = self._failure or error
            else:
                self._all.add((time.perf_counter() - started) * 1000, count)

        return acknowledged

    def raise_failure(self) -> None:
        if self._failure is not None:
            raise self._failure

    def window(self, now: float) -> str:
        """What was acknowledged since the last window."""
        until = len(self._all.samples)
        recent = Latencies(self._all.samples[self._reported : until])
        self._reported = until
        line = f"{self._rate(recent, now - self._window_started)}, {recent.average:.1f} ms avg latency, "
        self._window_started = now
        return f"{line}{recent.maximum:.1f} ms max latency."

    def summary(self, now: float) -> str:
        whole = self._all
        percentiles = ", ".join(f"{whole.percentile(share):.0f} ms {share:g}th" for share in (50, 95, 99, 99.9))
        return (
            f"{self._rate(whole, now - self._started)}, {whole.average:.2f} ms avg latency, "
            f"{whole.maximum:.2f} ms max latency, {percentiles}."
        )

    def _rate(self, latencies: Latencies, seconds: float) -> str:
        per_second = latencies.count / max(seconds, 1e-9)
        return (
            f"{latencies.count} records sent, {per_second:.1f} records/sec "
            f"({per_second * self._record_size / _MIB:.2f} MB/sec)"
        )
