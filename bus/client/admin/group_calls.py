"""Calls to the coordinators of groups: which broker it is, and what to do while it moves or reads its log.

Guards one promise: each group is answered once, by a coordinator that was ready for it. An answer that says nothing
was done yet (COORDINATOR_LOAD_IN_PROGRESS and the like) is no answer: the call is made again, where the coordinator is
by then, until the time is over. Safe to use from several threads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from bus.client.connection.cluster import Cluster, error_of
from bus.client.connection.connections import NotConnected
from bus.client.connection.portions import portions
from bus.client.connection.retrying import monotonic_ms
from bus.errors import BusError, ErrorCode
from bus.grpc_api.v1 import bus_pb2 as pb

# A broker takes so many, or more, of them in one request.
GROUPS_MAX = 500
MEMBERS_MAX = 1_000
# The coordinator says so before it has done anything.
_NOTHING_DONE = frozenset(
    {
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
    }
)


@dataclass(frozen=True, slots=True)
class GroupAnswer:
    """What a response says of one group; `code` is of the group as a whole."""

    group_id: str
    code: int
    message: str
    item: Any


RequestOf = Callable[[Sequence[str]], Any]
AnswersOf = Callable[[Any], Iterable[GroupAnswer]]


class _OutcomeUnknown(BusError):
    """Of a call that changes something and must not be sent a second time."""


@dataclass(frozen=True, slots=True)
class _Call:
    method: str
    request_of: RequestOf
    answers_of: AnswersOf
    is_repeatable: bool
    groups_max: int  # in one request
    deadline_ms: float


class GroupCalls:
    def __init__(self, cluster: Cluster, *, timeout_ms: int, retries: int) -> None:
        self._cluster = cluster
        self._timeout_ms = timeout_ms
        self._retries = retries
        self._addresses: dict[str, str] = {}  # by group id

    def ask(
        self,
        method: str,
        group_ids: Iterable[str],
        request_of: RequestOf,
        answers_of: AnswersOf,
        *,
        is_repeatable: bool = True,
        groups_max: int = GROUPS_MAX,
    ) -> dict[str, GroupAnswer]:
        """The answer for each group, refusals included; of the groups of a coordinator, `groups_max` go in one call.

        Raises `BusError` if a group was not answered. What is not `is_repeatable` is not sent again after a call whose
        outcome is not known: the second answer would not be the first one's.
        """
        wanted = list(dict.fromkeys(group_ids))
        answers: dict[str, GroupAnswer] = {}
        deadline_ms = monotonic_ms() + self._timeout_ms
        call = _Call(method, request_of, answers_of, is_repeatable, groups_max, deadline_ms)

        def ask() -> dict[str, GroupAnswer]:
            self._ask_once(call, [group_id for group_id in wanted if group_id not in answers], answers)
            return answers

        return self._cluster.retry(ask, deadline_ms=deadline_ms, retries=self._retries, may_retry=self._may_retry)

    def _may_retry(self, error: BusError) -> bool:
        return not isinstance(error, _OutcomeUnknown) and self._cluster.may_retry(error)

    def _ask_once(self, call: _Call, group_ids: Sequence[str], answers: dict[str, GroupAnswer]) -> None:
        """Add to `answers`. Raises an error that is final, else the last one of those that may pass."""
        by_address: dict[str, list[str]] = {}
        error: BusError | None = None
        for group_id in group_ids:
            try:
                by_address.setdefault(self._find(group_id, call.deadline_ms), []).append(group_id)
            except BusError as failure:
                if not self._cluster.may_retry(failure):
                    raise
                error = failure
        asked = [
            (address, ids) for address, all_ids in by_address.items() for ids in portions(all_ids, call.groups_max)
        ]
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
                if answer.code in _NOTHING_DONE:
                    error = error_of(answer.code, answer.message)
                    self._forget([answer.group_id])
                else:
                    answers[answer.group_id] = answer
        if error is not None:
            raise error

    def _find(self, group_id: str, deadline_ms: float) -> str:
        address = self._addresses.get(group_id)
        if address is None:
            request = pb.FindCoordinatorRequest(group_id=group_id)
            response = self._cluster.call("FindCoordinator", request, deadline_ms=deadline_ms)
            if response.error_code:
                raise error_of(response.error_code, response.error_message)
            address = f"{response.coordinator.host}:{response.coordinator.port}"
            self._addresses[group_id] = address
        return address

    def _forget(self, group_ids: Iterable[str]) -> None:
        for group_id in group_ids:
            self._addresses.pop(group_id, None)
