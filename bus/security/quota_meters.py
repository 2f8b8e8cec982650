"""Meters of an entity's recent use, and the time that it has to wait to be within its quota. Time is an argument, in
seconds.

Guards one promise: the numbers are Kafka's. A rate is the sum of the last `windows` samples of `window_s` each, over
the time since the oldest of them began, but at least over all windows but one (Kafka's `Rate`): so an entity that was
idle may use ten seconds' worth at once. A bucket of tokens (KIP-599) is for what costs much and comes seldom. No
wait is longer than `WAIT_S_MAX`, however small the quota is.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

WAIT_S_MAX = 2_000_000.0  # 23 days; in milliseconds it fits into Kafka's throttle_time_ms


@dataclass(frozen=True, slots=True)
class Windows:
    """`quota.window.num` and `quota.window.size.seconds`."""

    count: int = 11
    size_s: float = 1.0

    def __post_init__(self) -> None:
        assert self.count >= 2, f"expected two windows at least, found {self.count}"

    @property
    def burst_s(self) -> float:
        """So many seconds' worth an idle entity may use at once."""
        return (self.count - 1) * self.size_s


@dataclass(slots=True)
class _Sample:
    begin_s: float
    amount: float


@dataclass(frozen=True, slots=True)
class _Debt:
    until_s: float
    limit: float  # the limit that `until_s` was computed with


@dataclass(slots=True)
class RateMeter:
    windows: Windows
    _samples: deque[_Sample] = field(default_factory=deque)  # the oldest first; each began a window or more after it
    _debt: _Debt | None = None

    def record(self, amount: float, now_s: float) -> None:
        """A negative amount takes back what was recorded."""
        self._drop_old(now_s)
        if not self._samples or now_s - self._samples[-1].begin_s >= self.windows.size_s:
            self._samples.append(_Sample(now_s, 0.0))
        self._samples[-1].amount += amount

    def charge(self, amount: float, limit: float, now_s: float) -> float:
        """Record it. How long the entity has to wait now; it is in debt for so long."""
        self.record(amount, now_s)
        wait_s = max(self.wait_s(limit, now_s), self.debt_s(limit, now_s))
        self._debt = _Debt(now_s + wait_s, limit) if wait_s > 0 else None
        return wait_s

    def debt_s(self, limit: float, now_s: float) -> float:
        """Return the time for which the entity may use nothing more because of its last charge. It may be longer than
        the windows, which forget an amount that is worth more than they hold. A higher limit pays the same debt
        sooner."""
        if self._debt is None:
            return 0.0
        return min(WAIT_S_MAX, max(0.0, self._debt.until_s - now_s) * self._debt.limit / limit)

    def rate(self, now_s: float) -> float:
        """Per second."""
        self._drop_old(now_s)
        return sum(sample.amount for sample in self._samples) / self._span_s(now_s)

    def wait_s(self, limit: float, now_s: float) -> float:
        """Return the time until the entity is within the limit, if it uses nothing meanwhile; 0 if it is (KIP-124,
        `QuotaUtils`)."""
        rate = self.rate(now_s)
        return min(WAIT_S_MAX, (rate - limit) / limit * self._span_s(now_s)) if rate > limit else 0.0

    @property
    def last_used_s(self) -> float:
        """When its last sample began."""
        return self._samples[-1].begin_s if self._samples else float("-inf")

    def _span_s(self, now_s: float) -> float:
        """Return the time by which the sum of the samples is divided. Whole windows without a sample count as well, so
        that the first second of use does not pass for the rate."""
        elapsed_s = now_s - self._samples[0].begin_s if self._samples else 0.0
        missing = self.windows.count - 1 - int(elapsed_s // self.windows.size_s)
        return elapsed_s + max(0, missing) * self.windows.size_s

    def _drop_old(self, now_s: float) -> None:
        oldest_s = now_s - self.windows.count * self.windows.size_s
        while self._samples and self._samples[0].begin_s <= oldest_s:
            self._samples.popleft()


@dataclass(slots=True)
class TokenBucket:
    """Full at first. Each second brings `limit` tokens, up to those of all windows together."""

    windows: Windows
    _tokens: float = 0.0
    _at_s: float | None = None  # when `_tokens` was true; None: it is full

    def wait_s(self, limit: float, now_s: float) -> float:
        """Return the time until there is no debt; 0 if there is none."""
        self._fill(limit, now_s)
        return min(WAIT_S_MAX, max(0.0, -self._tokens / limit))

    def take(self, count: float, limit: float, now_s: float) -> None:
        """Take tokens, even if there are too few: then a debt remains."""
        self._fill(limit, now_s)
        self._tokens -= count

    def used(self, limit: float, now_s: float) -> float:
        """Tokens that are missing until it is full."""
        self._fill(limit, now_s)
        return self._capacity(limit) - self._tokens

    @property
    def last_used_s(self) -> float:
        return float("-inf") if self._at_s is None else self._at_s

    def _capacity(self, limit: float) -> float:
        return limit * self.windows.count * self.windows.size_s

    def _fill(self, limit: float, now_s: float) -> None:
        capacity = self._capacity(limit)
        gained = capacity if self._at_s is None else limit * (now_s - self._at_s)
        self._tokens = min(capacity, self._tokens + gained)
        self._at_s = now_s
