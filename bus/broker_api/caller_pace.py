"""How fast one caller is read and answered: what it uses is charged to its quotas, and what it owes holds it.

What is promised about this is in `client_quotas`, which keeps the meters. One `CallerPace` is for one stream or one
call; all of a caller share its debts. Of those that wait for the same debts one looks whether they are paid, so that
what waits costs nothing. Where there are no quotas, it costs a look whether there are any.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Hashable

from bus.broker_api.client_quotas import ClientQuotas
from bus.broker_api.requests import BrokerStopping, Caller, OverQuota
from bus.runtime.tasks import time_limit
from bus.security.quota_usage import Allowance
from bus.security.quotas import CONSUMER_BYTE_RATE, PRODUCER_BYTE_RATE, REQUEST_RATE

# A call waits for at most this share of the time to its deadline: its work takes time as well.
_DEADLINE_SHARE = 0.5
_LOOK_SECONDS = 5.0  # a caller that waits computes its debt again after this time: quotas may have changed


class CallerPace:
    """Of one stream or one call of a caller. Used on the event loop."""

    def __init__(self, quotas: ClientQuotas, caller: Caller, *names: str) -> None:
        """`names`: of the quotas whose debts hold the caller; none: `request_rate`."""
        self._quotas = quotas
        self.caller = caller
        self._names = names or (REQUEST_RATE,)
        self._until_s = 0.0  # held until then for an answer that was refused, and so not charged
        self._found_in: object = None  # the quotas of which `_allowances` were found
        self._allowances: dict[str, Allowance | None] = {}

    def note_request(self, count: int = 1) -> None:
        """`count`: for how many it counts."""
        if self._quotas.has_any():
            self._charge(REQUEST_RATE, count)

    def note_produced(self, size_bytes: int) -> int:
        """For how many milliseconds the caller is to send nothing more, and is not read."""
        return _ms(self._charge(PRODUCER_BYTE_RATE, size_bytes)) if self._quotas.has_any() else 0

    def note_fetched(self, size_bytes: int) -> tuple[int, bool]:
        """The same, and whether an answer of this size is given; else it is an empty one."""
        allowance = self._find(CONSUMER_BYTE_RATE) if self._quotas.has_any() else None
        if allowance is None:
            return 0, True
        wait_s, is_given = self._quotas.charge_unless_over(allowance, size_bytes)
        if not is_given:
            self._until_s = max(self._until_s, _now_s() + wait_s)
        return _ms(wait_s), is_given

    def fetch_bytes_max(self) -> int | None:
        """So many fit into an idle caller's quota; None: there is none."""
        allowance = self._find(CONSUMER_BYTE_RATE) if self._quotas.has_any() else None
        return None if allowance is None else max(1, int(self._quotas.burst(allowance)))

    @property
    def is_held(self) -> bool:
        return not self._is_free and self._held_s() > 0

    def throttle_ms(self) -> int:
        """For how long the caller is held."""
        return _ms(self._held_s())

    async def wait(self, time_left_s: float | None = None) -> None:
        """Until the caller may be read, or answered, again; for half of `time_left_s` at most."""
        if self._is_free or self._held_s() <= 0:
            return
        with contextlib.suppress(asyncio.TimeoutError):
            async with time_limit(_share_of(time_left_s)):
                await self._wait_until_free(lambda seconds: None)

    async def wait_or_refuse(self, time_left_s: float | None) -> None:
        """Before the work of a call of one answer. Raises `OverQuota` as soon as the caller would not wait for it,
        `BrokerStopping` if the broker stops first."""
        if self._is_free or self._held_s() <= 0:
            return
        deadline_s = float("inf") if time_left_s is None else _now_s() + time_left_s

        def check(seconds: float) -> None:
            if seconds > (deadline_s - _now_s()) * _DEADLINE_SHARE:
                raise OverQuota(self._describe(seconds))

        try:
            async with time_limit(_share_of(time_left_s)):
                await self._wait_until_free(check)
        except asyncio.TimeoutError:
            raise OverQuota(self._describe(self._held_s())) from None
        if self._held_s() > 0:
            raise BrokerStopping("the broker is stopping")

    async def _wait_until_free(self, check: Callable[[float], None]) -> None:
        """Or until the broker stops. `check` gets the seconds that are left, and may raise."""
        while not self._quotas.is_stopping and (seconds := self._held_s()) > 0:
            check(seconds)
            debts = self._debts()
            if self._owed_s(_now_s()) <= 0:
                await self._quotas.pause(min(seconds, _LOOK_SECONDS))
                continue
            async with self._quotas.turn(debts, self.caller.connection):
                while not self._quotas.is_stopping and (seconds := self._owed_s(_now_s())) > 0:
                    check(seconds)
                    if self._debts() != debts:  # the quotas have changed
                        break
                    await self._quotas.pause(min(seconds, _LOOK_SECONDS))

    @property
    def _is_free(self) -> bool:
        """Nothing can hold the caller: what every request without quotas costs."""
        return not (self._until_s or self._quotas.has_any())

    def _held_s(self) -> float:
        if self._is_free:
            return 0.0
        now_s = _now_s()
        return max(0.0, self._until_s - now_s, self._owed_s(now_s))

    def _owed_s(self, now_s: float) -> float:
        return max(self._debt_s(name, now_s) for name in self._names)

    def _debts(self) -> Hashable:
        """Whose they are: the same for all that are held by the same ones."""
        return tuple(found and (found.name, found.entity) for found in map(self._find, self._names))

    def _debt_s(self, name: str, now_s: float) -> float:
        allowance = self._find(name)
        return 0.0 if allowance is None else self._quotas.debt_s(allowance, now_s)

    def _charge(self, name: str, amount: float) -> float:
        allowance = self._find(name)
        return 0.0 if allowance is None else self._quotas.charge(allowance, amount)

    def _find(self, name: str) -> Allowance | None:
        current = self._quotas.current()
        if current is not self._found_in:
            self._found_in, self._allowances = current, {}
        if name not in self._allowances:
            self._allowances[name] = self._quotas.find(name, self.caller)
        return self._allowances[name]

    def _describe(self, seconds: float) -> str:
        names = " or ".join(self._names)
        return f"expected a caller within its quota ({names}), found one that is over it; retry in {seconds:.1f} s"


def _share_of(time_left_s: float | None) -> float | None:
    return None if time_left_s is None else max(0.0, time_left_s * _DEADLINE_SHARE)


def _ms(seconds: float) -> int:
    return min(2**31 - 1, max(1, round(seconds * 1000))) if seconds > 0 else 0


def _now_s() -> float:
    return asyncio.get_running_loop().time()
