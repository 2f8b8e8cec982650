"""Quotas of callers: what each has used at this broker, and how long it waits.

The quotas themselves are cluster metadata; what was used is memory of each broker, as in Kafka. Theory of operation:
what a request uses is charged before its work is done, and one that goes over the quota is done all the same. Those who
share the quota owe the rest then, and are held for as long as it takes to pay (`RateMeter.debt_s`). Guards four
promises: while a caller owes something nothing is done for it, by whichever stream, call or deadline it comes; of
callers that wait for the same debt, one goes on, and the others when they do not owe what that one used; a stream is
not refused for a quota, it is not read, and a fetch is answered empty; and where there are no quotas, none of this
costs more than a look whether there are any.

Kafka mutes the connection that went over, and another one evades that. A call of one answer cannot be held longer than
its caller waits: it is refused at once if it would be.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from bus.broker_api.requests import BrokerStopping, Caller, OverQuota, current_caller
from bus.client_quotas.entities import QuotaEntity, find_quota
from bus.client_quotas.meters import RateMeter, Windows
from bus.client_quotas.quotas import (
    CONSUMER_BYTE_RATE,
    CONTROLLER_MUTATION_RATE,
    PRODUCER_BYTE_RATE,
    REQUEST_RATE,
    by_name,
)
from bus.client_quotas.usage import Allowance, QuotaMeters
from bus.errors import ErrorCode, Refused
from bus.runtime.cluster import Cluster
from bus.runtime.partitions.fetches import Stopping
from bus.runtime.time_limits import time_limit

# Of what is left until the deadline of a call, so much at most is spent waiting: its work takes time as well.
_DEADLINE_SHARE = 0.5
_LOOK_SECONDS = 5.0  # after which who waits looks again what it owes: quotas may have changed

CommandT = TypeVar("CommandT")
AnswerT = TypeVar("AnswerT")


@dataclass(frozen=True, slots=True)
class QuotaUsage:
    """What an entity of names uses at this broker, per second; `limit`: of the quota that holds now."""

    name: str
    entity: QuotaEntity
    limit: float
    rate: float
    wait_ms: int


class ClientQuotas:
    """For one event loop."""

    def __init__(self, cluster: Cluster, stopping: Stopping) -> None:
        config = cluster.config
        self._cluster = cluster
        self._stopping = stopping
        self.meters = QuotaMeters(Windows(config.quota_window_num, config.quota_window_size_seconds))
        self._quotas: object = None  # of which `_by_name` was made
        self._by_name: Mapping[str, Mapping[QuotaEntity, float]] = {}

    def has_any(self) -> bool:
        return bool(self._cluster.state.quotas)

    def has(self, name: str) -> bool:
        return name in self.tables()

    async def within_mutation_quota(
        self,
        commands: Sequence[CommandT],
        cost_of: Callable[[CommandT], int],
        do: Callable[[Sequence[CommandT]], Awaitable[list[AnswerT]]],
    ) -> list[AnswerT | Refused]:
        """Do those that the caller's `controller_mutation_rate` allows (KIP-599), by the number of their partitions;
        the others are refused with THROTTLING_QUOTA_EXCEEDED. The answers are in the order of the commands. Raises
        `NotController`: the controller keeps the meter."""
        caller = current_caller.get()
        allowance = None if caller is None else self.find(CONTROLLER_MUTATION_RATE, caller)
        if allowance is None:
            return list(await do(commands))
        self._cluster.metadata.check_is_controller()
        refusals = [self._take(allowance, cost_of(one)) for one in commands]
        allowed = [one for one, refusal in zip(commands, refusals, strict=True) if refusal is None]
        done = iter(await do(allowed) if allowed else ())
        return [next(done) if refusal is None else refusal for refusal in refusals]

    def _take(self, allowance: Allowance, count: int) -> Refused | None:
        wait_s = self.meters.take(allowance, count, _now_s()) if count > 0 else 0
        if wait_s <= 0:
            return None
        return Refused(
            ErrorCode.THROTTLING_QUOTA_EXCEEDED,
            f"{allowance.entity}: expected at most {allowance.limit:g} changes of partitions a second "
            f"({CONTROLLER_MUTATION_RATE}), found more; retry in {wait_s:.1f} s",
        )

    def usage(self) -> list[QuotaUsage]:
        """Of all that have used something of late of which they have a quota, at this broker."""
        now_s, found = _now_s(), []
        for name, entity, meter in self.meters.usage(now_s):
            user, client_id = _name(entity.user), _name(entity.client_id)
            quota = find_quota(self.tables().get(name, {}), user, client_id)
            if quota is None or quota[0] != entity:
                continue
            limit = quota[1]
            if isinstance(meter, RateMeter):
                rate, wait_s = meter.rate(now_s), meter.debt_s(limit, now_s)
            else:
                rate = meter.used(limit, now_s) / self.meters.windows.burst_s
                wait_s = meter.wait_s(limit, now_s)
            found.append(QuotaUsage(name, entity, limit, rate, round(wait_s * 1000)))
        return found

    @property
    def is_stopping(self) -> bool:
        return self._stopping.has_begun

    async def pause(self, seconds: float) -> None:
        """Wait so long, but not beyond the beginning of the broker's end."""
        if seconds <= 0 or self.is_stopping:
            return
        wake = asyncio.Event()
        with self._stopping.waking(wake), contextlib.suppress(asyncio.TimeoutError):
            async with time_limit(seconds):
                await wake.wait()

    def find(self, name: str, caller: Caller) -> Allowance | None:
        quotas = self.tables().get(name)
        if quotas is None:
            return None
        found = find_quota(quotas, caller.principal.partition(":")[2], caller.client_id)
        return None if found is None else Allowance(name, *found)

    def tables(self) -> Mapping[str, Mapping[QuotaEntity, float]]:
        """Another object after each change of the quotas."""
        quotas = self._cluster.state.quotas
        if quotas is not self._quotas:
            self._quotas, self._by_name = quotas, by_name(quotas)
        return self._by_name


class CallerPace:
    """How fast one caller is read, on one stream or for one call."""

    def __init__(self, quotas: ClientQuotas, caller: Caller, *names: str) -> None:
        """`names`: of the quotas whose debts hold the caller; none: `request_rate`."""
        self._quotas = quotas
        self.caller = caller
        self._names = names or (REQUEST_RATE,)
        self._until_s = 0.0  # for what was neither given nor charged
        self._tables: object = None  # of which `_allowances` were found
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
        wait_s, is_given = self._quotas.meters.charge_unless_over(allowance, size_bytes, _now_s())
        if not is_given:
            self._until_s = max(self._until_s, _now_s() + wait_s)
        return _ms(wait_s), is_given

    def fetch_bytes_max(self) -> int | None:
        """So many fit into an idle caller's quota; None: there is none."""
        allowance = self._find(CONSUMER_BYTE_RATE) if self._quotas.has_any() else None
        return None if allowance is None else max(1, int(allowance.limit * self._quotas.meters.windows.burst_s))

    @property
    def is_held(self) -> bool:
        return not self._is_free and self._held_s() > 0

    def throttle_ms(self) -> int:
        """For how long the caller is held."""
        return _ms(self._held_s())

    async def wait(self, time_left_s: float | None = None) -> None:
        """Until the caller may be read, or answered, again; for half of `time_left_s` at most."""
        if self._is_free:
            return
        until_s = float("inf") if time_left_s is None else _now_s() + time_left_s * _DEADLINE_SHARE
        while not self._quotas.is_stopping and (seconds := min(self._held_s(), until_s - _now_s())) > 0:
            await self._quotas.pause(min(seconds, _LOOK_SECONDS))

    async def wait_or_refuse(self, time_left_s: float | None) -> None:
        """Before the work of a call of one answer. Raises `OverQuota` as soon as the caller would not wait for it,
        `BrokerStopping` if the broker stops first."""
        deadline_s = float("inf") if time_left_s is None else _now_s() + time_left_s
        while (seconds := self._held_s()) > 0:
            if seconds > (deadline_s - _now_s()) * _DEADLINE_SHARE:
                raise OverQuota(self._describe(seconds))
            if self._quotas.is_stopping:
                raise BrokerStopping("the broker is stopping")
            await self._quotas.pause(min(seconds, _LOOK_SECONDS))

    @property
    def _is_free(self) -> bool:
        """Nothing can hold the caller: what every request without quotas costs."""
        return not (self._until_s or self._quotas.has_any())

    def _held_s(self) -> float:
        if self._is_free:
            return 0.0
        now_s = _now_s()
        return max(0.0, self._until_s - now_s, *(self._debt_s(name, now_s) for name in self._names))

    def _debt_s(self, name: str, now_s: float) -> float:
        allowance = self._find(name)
        return 0.0 if allowance is None else self._quotas.meters.debt_s(allowance, now_s)

    def _charge(self, name: str, amount: float) -> float:
        allowance = self._find(name)
        return 0.0 if allowance is None else self._quotas.meters.charge(allowance, amount, _now_s())

    def _find(self, name: str) -> Allowance | None:
        tables = self._quotas.tables()
        if tables is not self._tables:
            self._tables, self._allowances = tables, {}
        if name not in self._allowances:
            self._allowances[name] = self._quotas.find(name, self.caller)
        return self._allowances[name]

    def _describe(self, seconds: float) -> str:
        names = " or ".join(self._names)
        return f"expected a caller within its quota ({names}), found one that is over it; retry in {seconds:.1f} s"


def _ms(seconds: float) -> int:
    return min(2**31 - 1, max(1, round(seconds * 1000))) if seconds > 0 else 0


def _name(part: object) -> str:
    return part if isinstance(part, str) else ""


def _now_s() -> float:
    return asyncio.get_running_loop().time()
