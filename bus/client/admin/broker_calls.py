"""How the administrator reaches brokers: any of them, each of them, or the controller.

Guards one promise: what changes the cluster is sent once. After an unknown outcome the second answer would not be the
first one's, so only what was never sent is sent again. A question is repeated for as long as that may help. Safe to use
from several threads.
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from bus.addresses import format_address
from bus.client.connection.cluster import Cluster
from bus.client.connection.connections import NotConnected
from bus.client.connection.metadata_cache import error_of
from bus.client.connection.retrying import SILENT_AFTER_MS, monotonic_ms, portions
from bus.errors import BusError, ErrorCode
from bus.grpc_api.v1 import bus_pb2 as pb

ResultT = TypeVar("ResultT")


class CallTimes(Protocol):
    """The settings of a client that say how long it tries."""

    @property
    def retries(self) -> int: ...
    @property
    def default_api_timeout_ms(self) -> int: ...


class BrokerCalls:
    """Every method that asks blocks until the answer, at most for `default.api.timeout.ms`, and raises `BusError`: also
    if the answer refuses the request as a whole."""

    def __init__(self, cluster: Cluster, times: CallTimes) -> None:
        self.cluster = cluster
        self.groups = CoordinatorCalls(cluster, pb.COORDINATOR_TYPE_GROUP, times)
        self.transactions = CoordinatorCalls(cluster, pb.COORDINATOR_TYPE_TRANSACTION, times)
        self._times = times

    def deadline_ms(self) -> float:
        return monotonic_ms() + self._times.default_api_timeout_ms

    def retrying(self, ask: Callable[[], ResultT], deadline_ms: float) -> ResultT:
        return self.cluster.retry(ask, deadline_ms=deadline_ms, retries=self._times.retries)

    def describe(self, names: Sequence[str] = (), deadline_ms: float | None = None) -> Any:
        """Return the cluster and these topics, or all."""
        deadline_ms = self.deadline_ms() if deadline_ms is None else deadline_ms
        return self.retrying(lambda: self.cluster.describe(names, deadline_ms=deadline_ms), deadline_ms)

    def ask(self, method: str, request: Any) -> Any:
        """Ask any broker, as often as it takes: the question changes nothing."""
        deadline_ms = self.deadline_ms()
        return _checked(
            self.retrying(
                lambda: self.cluster.call(method, request, deadline_ms=deadline_ms, is_reading=True), deadline_ms
            )
        )

    def ask_each(
        self,
        method: str,
        request: Any,
        decode: Callable[[pb.Broker, Any], Iterable[ResultT]],
        deadline_ms: float | None = None,
        *,
        broker_ids: Collection[int] | None = None,
    ) -> list[ResultT]:
        """Ask each of these brokers that is there, or all; what `decode` makes of their answers. After a failure all
        are asked again, as they are by then: what a broker had that is gone is found at another one."""
        until_ms = self.deadline_ms() if deadline_ms is None else deadline_ms

        def ask_one(broker: pb.Broker) -> Iterable[ResultT]:
            address = format_address(broker.host, broker.port)
            return decode(broker, _checked(self.cluster.call(method, request, address=address, deadline_ms=until_ms)))

        def ask() -> list[ResultT]:
            known = self.cluster.describe(deadline_ms=until_ms).brokers
            wanted = [one for one in known if broker_ids is None or one.broker_id in broker_ids]
            return [found for broker in wanted for found in ask_one(broker)]

        return self.retrying(ask, until_ms)

    def on_controller(self, method: str, request: Any) -> Any:
        """Ask the controller once. It has to answer a question first, so most faults come before the request leaves."""
        deadline_ms = self.deadline_ms()
        patience_ms = itertools.accumulate(itertools.repeat(2), operator.mul, initial=SILENT_AFTER_MS)

        def ask() -> Any:
            self.describe(deadline_ms=deadline_ms)
            address = self.cluster.metadata.controller_address
            if address is not None:
                left_ms = max(0.0, deadline_ms - monotonic_ms())
                self.cluster.knock(address, min(next(patience_ms), left_ms))
            return self.cluster.call(method, request, address=address, deadline_ms=deadline_ms, is_repeatable=False)

        return _checked(
            self.cluster.retry(
                ask,
                deadline_ms=deadline_ms,
                retries=self._times.retries,
                may_retry=lambda error: isinstance(error, NotConnected) and self.cluster.may_retry(error),
            )
        )


def _checked(response: Any) -> Any:
    """The response. Raises the `BusError` by which the request was refused as a whole; not every response has one."""
    if getattr(response, "error_code", ErrorCode.NONE):
        raise error_of(response.error_code, response.error_message)
    return response


_NAMES_MAX = 4  # of those that failed for one reason


def raise_failures(results: Sequence[tuple[str, int, str]]) -> None:
    """Raise one `BusError` for all failures of a call, if there are any: with the code of the first and the messages of
    all. `results`: name of the item, its error code, its message."""
    failures = [(name, error_of(code, message)) for name, code, message in results if code]
    if not failures:
        return
    first = failures[0][1]
    if len(failures) == 1:
        raise first
    raise BusError(first.code, f"{len(failures)} of {len(results)} failed: {_describe_failures(failures)}")


def _describe_failures(failures: Sequence[tuple[str, BusError]]) -> str:
    """Write each failure with the name of its item; a reason that all have in common is written once."""
    reasons = {(error.code, error.message.removeprefix(f"{name}: ")) for name, error in failures}
    if len(reasons) > 1:
        return "; ".join(f"{name!r}: {error}" for name, error in failures)
    names = [repr(name) for name, _ in failures]
    shown = ", ".join(names[:_NAMES_MAX])
    more = f" and {len(names) - _NAMES_MAX} more" if len(names) > _NAMES_MAX else ""
    ((code, message),) = reasons
    return f"{shown}{more}: {code.name}: {message}"


# Calls to the coordinators of groups and of transactional ids, each by its key, wherever the coordinators are.
#
# Guards one promise: each key is answered once, by a coordinator that was ready for it. An answer that says nothing was
# done yet (COORDINATOR_LOAD_IN_PROGRESS and the like) is no answer: the call is made again, where the coordinator is by
# then, until the time is over. Safe to use from several threads.

KEYS_MAX = 500  # a broker takes so many, or more, in one request
# The coordinator says so before it has done anything.
NOTHING_DONE = frozenset(
    {
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
    }
)


@dataclass(frozen=True, slots=True)
class CoordinatorAnswer:
    """The part of a response about one key; `code` is of the group, or the transactional id, as a whole."""

    key: str
    code: int
    message: str
    item: Any


def answered_items(answers: Mapping[str, CoordinatorAnswer]) -> dict[str, Any]:
    """Return the items that were answered, by key. Raises `BusError` if any was refused."""
    raise_failures([(key, answer.code, answer.message) for key, answer in answers.items()])
    return {key: answer.item for key, answer in answers.items()}


RequestOf = Callable[[Sequence[str]], Any]
AnswersOf = Callable[[Any], Iterable[CoordinatorAnswer]]


class _OutcomeUnknown(BusError):
    """The failure of a call that changes something and must not be sent a second time."""


@dataclass(frozen=True, slots=True)
class _Call:
    method: str
    request_of: RequestOf
    answers_of: AnswersOf
    is_repeatable: bool
    asked_again: Collection[int]
    keys_max: int  # in one request
    deadline_ms: float


class CoordinatorCalls:
    """`key_type`: what the keys are, COORDINATOR_TYPE_GROUP or COORDINATOR_TYPE_TRANSACTION."""

    def __init__(self, cluster: Cluster, key_type: pb.CoordinatorType, times: CallTimes) -> None:
        self._cluster = cluster
        self._key_type = key_type
        self._times = times
        self._addresses: dict[str, str] = {}  # by key

    def ask(
        self,
        method: str,
        keys: Iterable[str],
        request_of: RequestOf,
        answers_of: AnswersOf,
        *,
        is_repeatable: bool = True,
        asked_again: Collection[int] = NOTHING_DONE,
        keys_max: int = KEYS_MAX,
    ) -> dict[str, CoordinatorAnswer]:
        """The answer for each key, refusals included; of the keys of a coordinator, `keys_max` go in one call.

        Raises `BusError` if a key was not answered; an answer with one of the codes `asked_again` is none. What is not
        `is_repeatable` is not sent again after a call whose outcome is not known: the second answer would not be the
        first one's.
        """
        wanted = list(dict.fromkeys(keys))
        answers: dict[str, CoordinatorAnswer] = {}
        deadline_ms = monotonic_ms() + self._times.default_api_timeout_ms
        call = _Call(method, request_of, answers_of, is_repeatable, asked_again, keys_max, deadline_ms)

        def ask() -> dict[str, CoordinatorAnswer]:
            self._ask_once(call, [key for key in wanted if key not in answers], answers)
            return answers

        retries = self._times.retries
        return self._cluster.retry(ask, deadline_ms=deadline_ms, retries=retries, may_retry=self._may_retry)

    def _may_retry(self, error: BusError) -> bool:
        return not isinstance(error, _OutcomeUnknown) and self._cluster.may_retry(error)

    def _ask_once(self, call: _Call, keys: Sequence[str], answers: dict[str, CoordinatorAnswer]) -> None:
        """Add to `answers`. Raises an error that is final, else the last one of those that may pass."""
        by_address: dict[str, list[str]] = {}
        error: BusError | None = None
        for key in keys:
            try:
                by_address.setdefault(self._find(key, call.deadline_ms), []).append(key)
            except BusError as failure:
                if not self._cluster.may_retry(failure):
                    raise
                error = failure
        asked = [(address, ids) for address, all_ids in by_address.items() for ids in portions(all_ids, call.keys_max)]
        for address, ids in asked:
            try:
                response = self._cluster.call(
                    call.method, call.request_of(ids), address=address, deadline_ms=call.deadline_ms
                )
            except BusError as failure:
                self._forget(ids)
                if not call.is_repeatable and not isinstance(failure, NotConnected):
                    raise _OutcomeUnknown(failure.code, failure.message) from failure
                if not self._cluster.may_retry(failure):
                    raise
                error = failure
                continue
            for answer in call.answers_of(response):
                if answer.code in call.asked_again:
                    error = error_of(answer.code, answer.message)
                    self._forget([answer.key])
                else:
                    answers[answer.key] = answer
        if error is not None:
            raise error

    def _find(self, key: str, deadline_ms: float) -> str:
        address = self._addresses.get(key)
        if address is None:
            request = pb.FindCoordinatorRequest(key=key, key_type=self._key_type)
            response = self._cluster.call("FindCoordinator", request, deadline_ms=deadline_ms, is_reading=True)
            if response.error_code:
                raise error_of(response.error_code, response.error_message)
            address = format_address(response.coordinator.host, response.coordinator.port)
            self._addresses[key] = address
        return address

    def _forget(self, keys: Iterable[str]) -> None:
        for key in keys:
            self._addresses.pop(key, None)
