"""Quotas of callers: what each has used at this broker, and how long it waits.

The quotas themselves are cluster metadata; what was used is memory of each broker, as in Kafka. Theory of operation:
what a request uses is charged before its work is done, and one that goes over the quota is done all the same. The
callers that share the quota owe the rest then, and are held for as long as it takes to pay (`RateMeter.debt_s`). Guards
four promises: while a caller owes something nothing is done for it, by whichever stream, call or deadline it comes; of
callers that wait for the same debt, one goes on, and the others when they do not owe what that one used; a stream is
not refused for a quota, it is not read, and a fetch is answered empty; and where there are no quotas, none of this
costs more than a look whether there are any.

Kafka mutes the connection that went over, and another one evades that. A call of one answer cannot be held longer than
its caller waits: it is refused at once if it would be.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections import Counter
from collections.abc import Awaitable, Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar
from weakref import WeakValueDictionary

from bus.broker_api.authorization import OF_CLUSTER, Access
from bus.broker_api.requests import BrokerStopping, Caller, OverQuota
from bus.descriptions import DEFAULT_NAME, NoName, QuotaEntity, QuotaUsage
from bus.errors import ErrorCode, Refused, show_names
from bus.runtime.blocking import FairTurns
from bus.runtime.cluster import Cluster
from bus.runtime.partitions.fetches import Stopping
from bus.runtime.tasks import time_limit
from bus.security.quota_usage import Allowance, QuotaMeters, RateMeter, Windows
from bus.security.quotas import (
    CLIENT_ID,
    CONSUMER_BYTE_RATE,
    CONTROLLER_MUTATION_RATE,
    ENTITY_TYPES,
    PRODUCER_BYTE_RATE,
    REQUEST_RATE,
    USER,
    AlterQuotas,
    Quotas,
    by_name,
    find_quota,
    matches,
)

CommandT = TypeVar("CommandT")
AnswerT = TypeVar("AnswerT")


_THROTTLE_MS_MAX = 2**31 - 1


class ClientQuotas:
    """The quotas of all callers and what they have used. Belongs to one event loop."""

    def __init__(self, cluster: Cluster, stopping: Stopping) -> None:
        config = cluster.config
        self._cluster = cluster
        self._stopping = stopping
        self._meters = QuotaMeters(Windows(config.quota_window_num, config.quota_window_size_seconds))
        self._turns: WeakValueDictionary[Hashable, FairTurns] = WeakValueDictionary()  # by what is waited for
        self._quotas: object = None  # of which `_by_name` was made
        self._by_name: Mapping[str, Mapping[QuotaEntity, float]] = {}

    def has_any(self) -> bool:
        return bool(self._cluster.state.quotas)

    def has(self, name: str) -> bool:
        return name in self.current()

    async def within_mutation_quota(
        self,
        caller: Caller,
        commands: Sequence[CommandT],
        cost_of: Callable[[CommandT], int],
        do: Callable[[Sequence[CommandT]], Awaitable[list[AnswerT]]],
    ) -> list[AnswerT | Refused]:
        """Do those that the caller's `controller_mutation_rate` allows (KIP-599), by the number of their partitions;
        the others are refused with THROTTLING_QUOTA_EXCEEDED. The answers are in the order of the commands. Raises
        `NotController`: the controller keeps the meter."""
        allowance = self.find(CONTROLLER_MUTATION_RATE, caller)
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
        """Return the use of each quota of which its entity has used something recently, at this broker."""
        now_s, found = _now_s(), []
        for name, entity, meter in self._meters.usage(now_s):
            user, client_id = _name(entity.user), _name(entity.client_id)
            quota = find_quota(self.current().get(name, {}), user, client_id)
            if quota is None or quota[0] != entity:
                continue
            limit = quota[1]
            if isinstance(meter, RateMeter):
                rate, wait_s = meter.rate(now_s), meter.debt_s(limit, now_s)
            else:
                rate = meter.used(limit, now_s) / self._meters.windows.burst_s
                wait_s = meter.wait_s(limit, now_s)
            broker_id, throttle_ms = self._cluster.endpoint.broker_id, min(round(wait_s * 1000), _THROTTLE_MS_MAX)
            found.append(QuotaUsage(broker_id, entity, name, limit, rate, throttle_ms))
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

    def turn(self, debts: Hashable, connection: Hashable) -> contextlib.AbstractAsyncContextManager[None]:
        """Give the turn to one at a time of those who wait for the same debts; connections take turns. What the one
        with the turn charges before it waits for anything else is known to the next one."""
        turns = self._turns.get(debts)
        if turns is None:
            turns = self._turns[debts] = FairTurns(1)
        return turns.turn(connection)

    def find(self, name: str, caller: Caller) -> Allowance | None:
        """The quota of this name that holds for the caller; it stays so until `current` is another object."""
        quotas = self.current().get(name)
        if quotas is None:
            return None
        found = find_quota(quotas, caller.principal.partition(":")[2], caller.client_id)
        return None if found is None else Allowance(name, *found)

    def charge(self, allowance: Allowance, amount: float) -> float:
        """Charge an amount. Return for how many seconds the callers that share the quota are held from now on."""
        return self._meters.charge(allowance, amount, _now_s())

    def charge_unless_over(self, allowance: Allowance, amount: float) -> tuple[float, bool]:
        """The same, and whether the amount was charged; it is not if it is over the quota (`QuotaMeters`)."""
        return self._meters.charge_unless_over(allowance, amount, _now_s())

    def debt_s(self, allowance: Allowance, now_s: float) -> float:
        """Return for how many seconds the callers that share the quota are held from now on. `now_s`: of the loop."""
        return self._meters.debt_s(allowance, now_s)

    def burst(self, allowance: Allowance) -> float:
        """Return the amount that an idle caller may use at once."""
        return allowance.limit * self._meters.windows.burst_s

    def current(self) -> Mapping[str, Mapping[QuotaEntity, float]]:
        """The quotas by name and entity; another object after each change of them."""
        quotas = self._cluster.state.quotas
        if quotas is not self._quotas:
            self._quotas, self._by_name = quotas, by_name(quotas)
        return self._by_name


def _name(part: object) -> str:
    return part if isinstance(part, str) else ""


def _now_s() -> float:
    return asyncio.get_running_loop().time()


THROTTLE_MS_MIN, THROTTLE_MS_MAX = 10, 1_000
THROTTLE_MS_UNKNOWN = 100  # for the first one that is refused
# What counts as lately: after so long, a byte counts for 1/e of one.
_MEMORY_S = 1.0
_PARTITIONS_MAX = 10_000  # those of deleted topics are forgotten at some time


@dataclass(slots=True)
class _Flow:
    """Sums of bytes that fade, as of `at_s`. In a steady flow they are its rate, in bytes per `_MEMORY_S`."""

    at_s: float
    drained: float = 0.0
    refused: float = 0.0

    def fade(self, now_s: float) -> None:
        share = math.exp((self.at_s - now_s) / _MEMORY_S)
        self.drained *= share
        self.refused *= share
        self.at_s = now_s


class DrainRates:
    """How long a producer is asked to wait when a partition's queue is full.

    An estimate and no promise: what was refused lately, over how fast the queue has drained since, so that a client
    that retries then finds room. A partition without refusals is not watched, and costs nothing. Knows no clock.
    """

    def __init__(self) -> None:
        self._flows: dict[Hashable, _Flow] = {}

    def add_drained(self, partition: Hashable, size_bytes: int, now_s: float) -> None:
        flow = self._flows.get(partition)
        if flow is None:
            return
        flow.fade(now_s)
        flow.drained += size_bytes
        if flow.refused < 1:
            del self._flows[partition]

    def throttle_ms(self, partition: Hashable, refused_bytes: int, now_s: float) -> int:
        """Return after how many milliseconds there will be room for these bytes and for all that was refused shortly
        before."""
        flow = self._flows.get(partition)
        if flow is None:
            if len(self._flows) >= _PARTITIONS_MAX:
                self._flows.clear()
            self._flows[partition] = _Flow(now_s, refused=refused_bytes)
            return THROTTLE_MS_UNKNOWN
        flow.fade(now_s)
        flow.refused += refused_bytes
        if flow.drained <= 0:
            return THROTTLE_MS_MAX
        wait_ms = 1000 * _MEMORY_S * flow.refused / flow.drained
        return int(min(max(wait_ms, THROTTLE_MS_MIN), THROTTLE_MS_MAX))


Parts = Sequence[tuple[str, str | NoName]]  # by type


Alterations = Sequence[tuple[Parts, Sequence[tuple[str, float | None]]]]


class QuotaAdminApi:
    """Quotas for administrators: which there are, changes of them, and what is used of them."""

    def __init__(self, cluster: Cluster, quotas: ClientQuotas) -> None:
        self._cluster = cluster
        self._quotas = quotas

    async def describe(
        self, access: Access, parts: Parts, *, is_strict: bool
    ) -> Mapping[QuotaEntity, Quotas] | Refused:
        """Return the quotas of each entity that matches."""
        refused = await access.refusal_of_request(OF_CLUSTER) or _check_types(parts)
        if refused is not None:
            return refused
        known, wanted = self._cluster.state.quotas, dict(parts)
        return {entity: known[entity] for entity in known if matches(entity, wanted, is_strict=is_strict)}

    async def alter(self, access: Access, alterations: Alterations, *, validate_only: bool) -> list[Refused | None]:
        """An answer for each, in order. An entity that is named again is refused."""
        access.changes.begin(lambda: (_show(parts) for parts, _ in alterations), is_change=not validate_only)
        refused = await access.refusal_of_request(OF_CLUSTER)
        if refused is not None:
            access.changes.report_all(refused)
            return [refused] * len(alterations)
        answers = await self._alter(alterations, validate_only=validate_only)
        access.changes.report_in_order(answers)
        return answers

    async def _alter(self, alterations: Alterations, *, validate_only: bool) -> list[Refused | None]:
        answers: list[Refused | None] = []
        commands: dict[QuotaEntity, AlterQuotas] = {}
        for parts, changes in alterations:
            command = _command(parts, changes, validate_only)
            if isinstance(command, AlterQuotas) and command.entity in commands:
                command = Refused(ErrorCode.INVALID_REQUEST, f"expected each entity once, found {command.entity} again")
            if isinstance(command, AlterQuotas):
                commands[command.entity] = command
            answers.append(command if isinstance(command, Refused) else None)
        outcomes = iter(await self._cluster.controller.alter_quotas(list(commands.values())) if commands else ())
        return [answer or _refusal(next(outcomes)) for answer in answers]

    async def usage(self, access: Access) -> list[QuotaUsage] | Refused:
        return await access.refusal_of_request(OF_CLUSTER) or self._quotas.usage()


def _show(parts: Parts) -> str:
    """The entity in a row of the audit."""
    return ", ".join(f"{kind}={name!r}" if name is DEFAULT_NAME else f"{kind}={name}" for kind, name in parts)


def _command(parts: Parts, changes: Sequence[tuple[str, float | None]], validate_only: bool) -> AlterQuotas | Refused:
    refused = _check_types(parts) or _check_once("quota", [name for name, _ in changes])
    if refused is not None:
        return refused
    if not parts:
        return Refused(ErrorCode.INVALID_REQUEST, "expected a user, a client id or both, found neither")
    named = dict(parts)
    return AlterQuotas(QuotaEntity(named.get(USER), named.get(CLIENT_ID)), dict(changes), validate_only)


def _check_types(parts: Parts) -> Refused | None:
    unknown = [kind for kind, _ in parts if kind not in ENTITY_TYPES]
    if "ip" in unknown:
        message = "ip: there are no quotas of addresses here: gRPC does not show the broker when connections are made"
        return Refused(ErrorCode.INVALID_REQUEST, message)
    if unknown:
        message = f"expected types of entities among {', '.join(ENTITY_TYPES)}, found {show_names(unknown)}"
        return Refused(ErrorCode.INVALID_REQUEST, message)
    return _check_once("type of entity", [kind for kind, _ in parts])


def _check_once(what: str, names: Sequence[str]) -> Refused | None:
    again = next((name for name, count in Counter(names).items() if count > 1), None)
    if again is not None:
        return Refused(ErrorCode.INVALID_REQUEST, f"expected each {what} once, found {show_names([again])} again")
    return None


def _refusal(answer: Quotas | Refused) -> Refused | None:
    return answer if isinstance(answer, Refused) else None


# A call waits for at most this share of the time to its deadline: its work takes time as well.
_DEADLINE_SHARE = 0.5
_LOOK_SECONDS = 5.0  # a caller that waits computes its debt again after this time: quotas may have changed


class CallerPace:
    """The pace at which one stream or one call of a caller is read and answered: what it uses is charged to its quotas,
    and what it owes holds it.

    All streams and calls of a caller share its debts. Of those that wait for the same debts one looks whether they are
    paid, so that what waits costs nothing. Used on the event loop."""

    def __init__(self, quotas: ClientQuotas, caller: Caller, *names: str) -> None:
        """`names`: of the quotas whose debts hold the caller; none: `request_rate`."""
        self._quotas = quotas
        self.caller = caller
        self._names = names or (REQUEST_RATE,)
        self._until_s = 0.0  # held until then for an answer that was refused, and so not charged
        self._found_in: object = None  # the quotas of which `_allowances` were found
        self._allowances: dict[str, Allowance | None] = {}

    def note_request(self, count: int = 1) -> None:
        """Charge a request. `count`: for how many it counts."""
        if self._quotas.has_any():
            self._charge(REQUEST_RATE, count)

    def note_produced(self, size_bytes: int) -> int:
        """Charge the bytes. Return for how many milliseconds the caller is to send nothing more, and is not read."""
        return _ms(self._charge(PRODUCER_BYTE_RATE, size_bytes)) if self._quotas.has_any() else 0

    def note_fetched(self, size_bytes: int) -> tuple[int, bool]:
        """Charge the bytes of an answer. Return for how many milliseconds the caller is held, and whether the answer is
        given; else it is an empty one."""
        allowance = self._find(CONSUMER_BYTE_RATE) if self._quotas.has_any() else None
        if allowance is None:
            return 0, True
        wait_s, is_given = self._quotas.charge_unless_over(allowance, size_bytes)
        if not is_given:
            self._until_s = max(self._until_s, _now_s() + wait_s)
        return _ms(wait_s), is_given

    def fetch_bytes_max(self) -> int | None:
        """Return how many bytes fit into the quota of an idle caller; None: there is no quota."""
        allowance = self._find(CONSUMER_BYTE_RATE) if self._quotas.has_any() else None
        return None if allowance is None else max(1, int(self._quotas.burst(allowance)))

    @property
    def is_held(self) -> bool:
        return not self._is_free and self._held_s() > 0

    def throttle_ms(self) -> int:
        """Return for how many milliseconds the caller is held."""
        return _ms(self._held_s())

    async def wait(self, time_left_s: float | None = None) -> None:
        """Wait until the caller may be read, or answered, again; at most for half of `time_left_s`."""
        if self._is_free or self._held_s() <= 0:
            return
        with contextlib.suppress(asyncio.TimeoutError):
            async with time_limit(_share_of(time_left_s)):
                await self._wait_until_free(lambda seconds: None)

    async def wait_or_refuse(self, time_left_s: float | None) -> None:
        """Wait before the work of a call of one answer until the caller owes nothing. Raises `OverQuota` as soon as the
        wait would take too much of the call's time, `BrokerStopping` if the broker stops first."""
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
        """Wait until the caller owes nothing, or the broker stops. `check` gets the seconds that are left, and may
        raise."""
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
        """True if nothing can hold the caller, as of every request without quotas."""
        return not (self._until_s or self._quotas.has_any())

    def _held_s(self) -> float:
        if self._is_free:
            return 0.0
        now_s = _now_s()
        return max(0.0, self._until_s - now_s, self._owed_s(now_s))

    def _owed_s(self, now_s: float) -> float:
        return max(self._debt_s(name, now_s) for name in self._names)

    def _debts(self) -> Hashable:
        """Return what names the debts: the same value for all callers that the same debts hold."""
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
    return min(_THROTTLE_MS_MAX, max(1, round(seconds * 1000))) if seconds > 0 else 0
