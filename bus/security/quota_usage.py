"""The meters of all entities that use something of which they have a quota, and the time that each has to wait to be
within it. Time is an argument, in seconds.

Guards three promises. The numbers are Kafka's: a rate is the sum of the last `windows` samples of `window_s` each, over
the time since the oldest of them began, but at least over all windows but one (Kafka's `Rate`), so an entity that was
idle may use ten seconds' worth at once; a bucket of tokens (KIP-599) is for what costs much and comes seldom. What has
no quota has no meter. Meters are bounded, since a client chooses its id: one that was idle for an hour is forgotten,
and beyond `METERS_MAX` of a quota the one that was used least lately is, with its debt; so what a client uses of one
quota makes no room in another one's meters.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterator
from dataclasses import dataclass, field

from bus.descriptions import QuotaEntity
from bus.security.quotas import CONTROLLER_MUTATION_RATE

# No wait is longer, however small the quota is: 23 days, which fit into Kafka's throttle_time_ms in milliseconds.
WAIT_S_MAX = 2_000_000.0


@dataclass(frozen=True, slots=True)
class Windows:
    """`quota.window.num` and `quota.window.size.seconds`."""

    count: int = 11
    size_s: float = 1.0

    def __post_init__(self) -> None:
        assert self.count >= 2, f"expected two windows at least, found {self.count}"

    @property
    def burst_s(self) -> float:
        """The number of seconds' worth that an idle entity may use at once."""
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
        """Record an amount; a negative one takes back what was recorded."""
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


METERS_MAX = 20_000  # for each quota
_IDLE_S = 3600.0
_Meters = OrderedDict[QuotaEntity, RateMeter | TokenBucket]  # the last one was used last


@dataclass(frozen=True, slots=True)
class Allowance:
    """A quota, and whose meter it is about: an entity of names only."""

    name: str
    entity: QuotaEntity
    limit: float


class QuotaMeters:
    def __init__(self, windows: Windows) -> None:
        self.windows = windows
        self._meters: dict[str, _Meters] = {}  # keyed by the quota's name

    def charge(self, allowance: Allowance, amount: float, now_s: float) -> float:
        """Charge the entity for the amount; return how many seconds it has to wait."""
        return self._rate(allowance, now_s).charge(amount, allowance.limit, now_s)

    def debt_s(self, allowance: Allowance, now_s: float) -> float:
        """Return how many seconds it still has to wait for earlier charges. Creates no meter."""
        meters = self._meters.get(allowance.name)
        meter = None if meters is None else meters.get(allowance.entity)
        return meter.debt_s(allowance.limit, now_s) if isinstance(meter, RateMeter) else 0.0

    def charge_unless_over(self, allowance: Allowance, amount: float, now_s: float) -> tuple[float, bool]:
        """Charge the entity like `charge`, unless the amount would exceed the quota; the second value is True if the
        amount is recorded. An amount is always recorded if nothing else was used recently: one above the whole quota
        must succeed at some time."""
        meter = self._rate(allowance, now_s)
        debt_s = meter.debt_s(allowance.limit, now_s)
        if debt_s > 0:
            return debt_s, False
        if meter.rate(now_s) <= 0:
            return meter.charge(amount, allowance.limit, now_s), True
        meter.record(amount, now_s)
        wait_s = meter.wait_s(allowance.limit, now_s)
        if wait_s > 0:
            meter.record(-amount, now_s)
        return wait_s, wait_s <= 0

    def take(self, allowance: Allowance, count: float, now_s: float) -> float:
        """0 if the tokens were taken; else how many seconds to wait until some may be, and none were."""
        meter = self._find(allowance, now_s)
        assert isinstance(meter, TokenBucket)
        wait_s = meter.wait_s(allowance.limit, now_s)
        if wait_s <= 0:
            meter.take(count, allowance.limit, now_s)
        return wait_s

    def usage(self, now_s: float) -> Iterator[tuple[str, QuotaEntity, RateMeter | TokenBucket]]:
        for name, meters in self._meters.items():
            _forget_idle(meters, now_s)
            for entity, meter in meters.items():
                yield name, entity, meter

    def _rate(self, allowance: Allowance, now_s: float) -> RateMeter:
        meter = self._find(allowance, now_s)
        assert isinstance(meter, RateMeter)
        return meter

    def _find(self, allowance: Allowance, now_s: float) -> RateMeter | TokenBucket:
        meters = self._meters.setdefault(allowance.name, OrderedDict())
        meter = meters.get(allowance.entity)
        if meter is None:
            _forget_idle(meters, now_s)
            is_bucket = allowance.name == CONTROLLER_MUTATION_RATE
            meter = meters[allowance.entity] = TokenBucket(self.windows) if is_bucket else RateMeter(self.windows)
            if len(meters) > METERS_MAX:
                meters.popitem(last=False)
        else:
            meters.move_to_end(allowance.entity)
        return meter


def _forget_idle(meters: _Meters, now_s: float) -> None:
    while meters:
        entity, meter = next(iter(meters.items()))
        if meter.last_used_s > now_s - _IDLE_S:
            return
        del meters[entity]
