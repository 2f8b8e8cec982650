"""The meters of all entities that use something of which they have a quota.

Guards two promises: what has no quota has no meter; and meters are bounded, since a client chooses its id. One that was
idle for an hour is forgotten, and beyond `METERS_MAX` the one that was used least lately is.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass

from bus.client_quotas.entities import QuotaEntity
from bus.client_quotas.meters import RateMeter, TokenBucket, Windows
from bus.client_quotas.quotas import CONTROLLER_MUTATION_RATE

METERS_MAX = 20_000
_IDLE_S = 3600.0
_Key = tuple[str, QuotaEntity]


@dataclass(frozen=True, slots=True)
class Allowance:
    """A quota, and whose meter it is about: an entity of names only."""

    name: str
    entity: QuotaEntity
    limit: float


class QuotaMeters:
    def __init__(self, windows: Windows) -> None:
        self.windows = windows
        self._meters: OrderedDict[_Key, RateMeter | TokenBucket] = OrderedDict()  # the last one was used last

    def charge(self, allowance: Allowance, amount: float, now_s: float) -> float:
        """How many seconds the entity has to wait, now that it has used so much more."""
        meter = self._rate(allowance, now_s)
        meter.record(amount, now_s)
        return meter.wait_s(allowance.limit, now_s)

    def charge_unless_over(self, allowance: Allowance, amount: float, now_s: float) -> tuple[float, bool]:
        """As `charge`, and whether the amount is recorded. One that would be over the quota is not, unless nothing else
        was used of late: an amount that is above the whole quota must come through at some time."""
        meter = self._rate(allowance, now_s)
        is_idle = meter.rate(now_s) <= 0
        meter.record(amount, now_s)
        wait_s = meter.wait_s(allowance.limit, now_s)
        is_over = wait_s > 0 and not is_idle
        if is_over:
            meter.record(-amount, now_s)
        return wait_s, not is_over

    def take(self, allowance: Allowance, count: float, now_s: float) -> float:
        """0 if the tokens were taken; else how many seconds to wait until some may be, and none were."""
        meter = self._find(allowance, now_s)
        assert isinstance(meter, TokenBucket)
        wait_s = meter.wait_s(allowance.limit, now_s)
        if wait_s <= 0:
            meter.take(count, allowance.limit, now_s)
        return wait_s

    def usage(self, now_s: float) -> Iterator[tuple[str, QuotaEntity, RateMeter | TokenBucket]]:
        self._forget_idle(now_s)
        for (name, entity), meter in self._meters.items():
            yield name, entity, meter

    def _rate(self, allowance: Allowance, now_s: float) -> RateMeter:
        meter = self._find(allowance, now_s)
        assert isinstance(meter, RateMeter)
        return meter

    def _find(self, allowance: Allowance, now_s: float) -> RateMeter | TokenBucket:
        key = (allowance.name, allowance.entity)
        meter = self._meters.get(key)
        if meter is None:
            self._forget_idle(now_s)
            is_bucket = allowance.name == CONTROLLER_MUTATION_RATE
            meter = self._meters[key] = TokenBucket(self.windows) if is_bucket else RateMeter(self.windows)
            if len(self._meters) > METERS_MAX:
                self._meters.popitem(last=False)
        else:
            self._meters.move_to_end(key)
        return meter

    def _forget_idle(self, now_s: float) -> None:
        while self._meters:
            key, meter = next(iter(self._meters.items()))
            if meter.last_used_s > now_s - _IDLE_S:
                return
            del self._meters[key]
