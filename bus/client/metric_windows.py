"""Metrics of clients: rates, averages and maxima of the recent past, totals of all time.

Guards one promise: a rate, an average or a maximum speaks of the recent past only: of metrics.num.samples windows of
metrics.sample.window.ms each, the present one included; a total, of the client's whole life. Recording has no lock: its
owner records under the one that it holds anyway. Reading is safe at any time, and may miss what is being recorded just
then. Time comes in as `now_ms` of one clock.
"""

from __future__ import annotations

import math
from collections.abc import Sequence


class Tally:
    """The sum of recorded values. Rates have only `total`; `largest` is undefined while `count` is 0."""

    __slots__ = ("count", "largest", "total")

    def __init__(self) -> None:
        self.count = 0
        self.total = 0.0
        self.largest = -math.inf

    def add(self, value: float, count: int = 1) -> None:
        self.count += count
        self.total += value
        if value > self.largest:
            self.largest = value

    @property
    def average(self) -> float:
        return self.total / self.count if self.count else math.nan

    @property
    def maximum(self) -> float:
        return self.largest if self.count else math.nan


class _Sample:
    __slots__ = ("started_at_ms", "tallies")

    def __init__(self, names: Sequence[str], started_at_ms: float) -> None:
        self.started_at_ms = started_at_ms
        self.tallies = {name: Tally() for name in names}  # all of them now: a reader may be among them


class Window:
    """The tallies of the recent past, in samples of `sample_ms`. A sample begins with its first event."""

    __slots__ = ("_latest", "_names", "_sample_count", "_sample_ms", "_started_at_ms", "_state")

    def __init__(self, names: Sequence[str], sample_ms: float, sample_count: int) -> None:
        self._names = names
        self._sample_ms = sample_ms
        self._sample_count = sample_count
        self._started_at_ms = -math.inf  # the begin of the latest sample
        self._latest: dict[str, Tally] = {}
        # The samples, and what those before them came to; replaced as a whole, so that readers see one state.
        self._state: tuple[tuple[_Sample, ...], dict[str, float]] = ((), dict.fromkeys(names, 0.0))

    def at(self, now_ms: float) -> dict[str, Tally]:
        """The tallies to add to."""
        if now_ms - self._started_at_ms >= self._sample_ms:
            self._begin_sample(now_ms)
        return self._latest

    def _begin_sample(self, now_ms: float) -> None:
        samples, before = self._state
        samples = (*samples, _Sample(self._names, now_ms))
        gone, kept = samples[: -self._sample_count], samples[-self._sample_count :]
        if gone:
            before = {name: total + sum(old.tallies[name].total for old in gone) for name, total in before.items()}
        self._state = kept, before
        self._latest, self._started_at_ms = kept[-1].tallies, now_ms

    def total(self, name: str) -> float:
        """Return the total of all time."""
        samples, before = self._state
        return before[name] + sum(sample.tallies[name].total for sample in samples)

    def merged(self, now_ms: float) -> tuple[dict[str, Tally], float]:
        """The tallies of all samples together, and the seconds that a rate of them is over: never less than all
        samples but one, so that the first event of an idle producer is no burst."""
        oldest = now_ms - self._sample_ms * self._sample_count
        recent = [sample for sample in self._state[0] if sample.started_at_ms > oldest]
        sums = {name: Tally() for name in self._names}
        for sample in recent:
            for name, tally in sample.tallies.items():
                into = sums[name]
                into.count += tally.count
                into.total += tally.total
                into.largest = max(into.largest, tally.largest)
        elapsed_ms = now_ms - recent[0].started_at_ms if recent else 0.0
        full = int(elapsed_ms / self._sample_ms)
        return sums, (elapsed_ms + max(0, self._sample_count - 1 - full) * self._sample_ms) / 1000


def rates(names: Sequence[str], window: Window, tallies: dict[str, Tally], seconds: float) -> dict[str, float]:
    values = {}
    for name in names:
        values[f"{name}-rate"] = per_second(tallies[name].total, seconds)
        values[f"{name}-total"] = window.total(name)
    return values


def per_second(amount: float, seconds: float) -> float:
    return amount / seconds if seconds > 0 else 0.0
