"""Quotas of callers: what each has used at this broker, and how long it waits.

The quotas themselves are cluster metadata; what was used is memory of each broker, as in Kafka. Guards three promises:
a produce request is never refused for a quota, and a fetch gets an empty answer rather than an error; a caller that
waits is not read, whether it heeds the time that it is told or not; and where there are no quotas, none of this costs
more than a look whether there are any.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from bus.broker_api.requests import Caller, current_caller
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

# Of what is left until the deadline of a call, so much at most is spent waiting: it is to be answered all the same.
_DEADLINE_SHARE = 0.5

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
        self._meters = QuotaMeters(Windows(config.quota_window_num, config.quota_window_size_seconds))
        self._quotas: object = None  # of which `_by_name` was made
        self._by_name: Mapping[str, Mapping[QuotaEntity, float]] = {}

    def has_any(self) -> bool:
        return bool(self._cluster.state.quotas)

    def has(self, name: str) -> bool:
        return name in self._tables()

    def charge_request(self, caller: Caller) -> float:
        """The seconds to wait, now that there is one request more."""
        return self._charge(REQUEST_RATE, caller, 1)

    def charge_produce(self, caller: Caller, size_bytes: int) -> float:
        return self._charge(PRODUCER_BYTE_RATE, caller, size_bytes)

    def charge_fetch(self, caller: Caller, size_bytes: int) -> tuple[float, bool]:
        """The seconds to wait, and whether the answer is given all the same."""
        allowance = self._find(CONSUMER_BYTE_RATE, caller)
        if allowance is None:
            return 0.0, True
        return self._meters.charge_unless_over(allowance, size_bytes, _now_s())

    def fetch_bytes_max(self, caller: Caller) -> int | None:
        """So many fit into an idle caller's quota; None: there is none."""
        allowance = self._find(CONSUMER_BYTE_RATE, caller)
        return None if allowance is None else max(1, int(allowance.limit * self._meters.windows.burst_s))

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
        allowance = None if caller is None else self._find(CONTROLLER_MUTATION_RATE, caller)
        if allowance is None:
            return list(await do(commands))
        self._cluster.metadata.check_is_controller()
        refusals = [self._take(allowance, cost_of(one)) for one in commands]
        allowed = [one for one, refusal in zip(commands, refusals, strict=True) if refusal is None]
        done = iter(await do(allowed) if allowed else ())
        return [next(done) if refusal is None else refusal for refusal in refusals]

    def _take(self, allowance: Allowance, count: int) -> Refused | None:
        wait_s = self._meters.take(allowance, count, _now_s()) if count > 0 else 0
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
        for name, entity, meter in self._meters.usage(now_s):
            user, client_id = _name(entity.user), _name(entity.client_id)
            quota = find_quota(self._tables().get(name, {}), user, client_id)
            if quota is None or quota[0] != entity:
                continue
            limit = quota[1]
            if isinstance(meter, RateMeter):
                rate = meter.rate(now_s)
            else:
                rate = meter.used(limit, now_s) / self._meters.windows.burst_s
            found.append(QuotaUsage(name, entity, limit, rate, round(meter.wait_s(limit, now_s) * 1000)))
        return found

    async def pause(self, seconds: float, time_left_s: float | None = None) -> None:
        """Wait so long, but for half of `time_left_s` at most; not beyond the beginning of the broker's end."""
        if time_left_s is not None:
            seconds = min(seconds, time_left_s * _DEADLINE_SHARE)
        if seconds <= 0 or self._stopping.has_begun:
            return
        wake = asyncio.Event()
        with self._stopping.waking(wake), contextlib.suppress(asyncio.TimeoutError):
            async with time_limit(seconds):
                await wake.wait()

    def _charge(self, name: str, caller: Caller, amount: float) -> float:
        allowance = self._find(name, caller)
        return 0.0 if allowance is None else self._meters.charge(allowance, amount, _now_s())

    def _find(self, name: str, caller: Caller) -> Allowance | None:
        quotas = self._tables().get(name)
        if quotas is None:
            return None
        found = find_quota(quotas, caller.principal.partition(":")[2], caller.client_id)
        return None if found is None else Allowance(name, *found)

    def _tables(self) -> Mapping[str, Mapping[QuotaEntity, float]]:
        quotas = self._cluster.state.quotas
        if quotas is not self._quotas:
            self._quotas, self._by_name = quotas, by_name(quotas)
        return self._by_name


class CallerPace:
    """How fast one caller is read, on one stream or for one call."""

    def __init__(self, quotas: ClientQuotas, caller: Caller) -> None:
        self._quotas = quotas
        self.caller = caller
        self._until_s = 0.0

    def note_request(self) -> None:
        if self._quotas.has_any():
            self._mute(self._quotas.charge_request(self.caller))

    def note_produced(self, size_bytes: int) -> int:
        """For how many milliseconds the caller is to send nothing more, and is not read."""
        if not self._quotas.has_any():
            return 0
        return self._mute(self._quotas.charge_produce(self.caller, size_bytes))

    def note_fetched(self, size_bytes: int) -> tuple[int, bool]:
        """The same, and whether an answer of this size is given; else it is an empty one."""
        if not self._quotas.has_any():
            return 0, True
        wait_s, is_given = self._quotas.charge_fetch(self.caller, size_bytes)
        return self._mute(wait_s), is_given

    def fetch_bytes_max(self) -> int | None:
        return self._quotas.fetch_bytes_max(self.caller) if self._quotas.has_any() else None

    async def wait(self, time_left_s: float | None = None) -> None:
        """Until the caller may be read, or answered, again."""
        if self._until_s:
            left_s = self._until_s - _now_s()
            self._until_s = 0.0
            await self._quotas.pause(left_s, time_left_s)

    def _mute(self, wait_s: float) -> int:
        if wait_s <= 0:
            return 0
        self._until_s = max(self._until_s, _now_s() + wait_s)
        return min(2**31 - 1, max(1, round(wait_s * 1000)))


def _name(part: object) -> str:
    return part if isinstance(part, str) else ""


def _now_s() -> float:
    return asyncio.get_running_loop().time()
