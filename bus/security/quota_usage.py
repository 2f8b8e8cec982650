"""The meters of all entities that use something of which they have a quota.

Guards two promises: what has no quota has no meter; and meters are bounded, since a client chooses its id. One that was
idle for an hour is forgotten, and beyond `METERS_MAX` of a quota the one that was used least lately is, with its debt;
so what a client uses of one quota makes no room in another one's meters.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass

from bus.security.quota_meters import RateMeter, TokenBucket, Windows
from bus.security.quotas import CONTROLLER_MUTATION_RATE, QuotaEntity

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
        """How many seconds the entity has to wait, now that it has used so much more."""
        return self._rate(allowance, now_s).charge(amount, allowance.limit, now_s)

    def debt_s(self, allowance: Allowance, now_s: float) -> float:
        """How many seconds it still has to wait for what it was charged. Makes no meter."""
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
