"""Where the group's coordinator is, and what is asked of it: a machine without threads, clock or I/O.

Guards one promise: one broker is asked at a time, or two while the first one has not answered for a second, and a
failed search is repeated with growing pauses. It is told what was answered and that time has passed, and says what to
send.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from dataclasses import dataclass

from bus.addresses import format_address
from bus.client.connection.group_requests import FindCoordinator, GroupCall
from bus.client.connection.silent_brokers import SILENT_AFTER_MS
from bus.client.values import BrokerInfo
from bus.errors import BusError, ErrorCode
from bus.reentry import logger_of

logger = logger_of(__name__)

LOST_COORDINATOR = frozenset(
    {
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NETWORK_EXCEPTION,
        ErrorCode.REQUEST_TIMED_OUT,
    }
)


@dataclass(frozen=True, slots=True, eq=False)
class GroupRequest:
    """A call on its way; its answer comes with this very object. `address` None: any broker. `patience_ms`: of a call
    that waits for other members, how long its connection may be silent until a question shows whether it is dead."""

    call: GroupCall
    address: str | None
    timeout_ms: int
    patience_ms: int | None = None

    @property
    def method(self) -> str:
        """Of the service."""
        return type(self.call).__name__


class CoordinatorFinder:
    """`send` takes a request and returns at once; `may_retry` says whether a failure may mend itself."""

    def __init__(
        self,
        group_id: str,
        request_timeout_ms: int,
        *,
        send: Callable[[GroupRequest], None],
        backoff_ms: Callable[[int], float],
        may_retry: Callable[[BusError], bool],
        on_lost: Callable[[bool], None] = lambda is_late: None,
    ) -> None:
        """`on_lost`: requests to the former address will have no answer; true if one had none in time."""
        self.group_id = group_id
        self.address: str | None = None
        self.error: BusError | None = None  # one that does not mend itself; for the caller that asks next
        self._request_timeout_ms = request_timeout_ms
        self._send = send
        self._backoff_ms = backoff_ms
        self._may_retry = may_retry
        self._on_lost = on_lost
        self._under_way: list[GroupRequest] = []
        self._begun_at_ms = -math.inf  # the search
        self._retry_at_ms = -math.inf
        self._failures = 0

    def find(self, now_ms: float) -> None:
        """Have a search under way unless the coordinator is known, or it is too early to search again."""
        if self.address is None and self.error is None and now_ms >= self.next_event():
            if not self._under_way:
                self._begun_at_ms = now_ms
            request = GroupRequest(FindCoordinator(self.group_id), None, self._request_timeout_ms)
            self._under_way.append(request)
            self._send(request)

    def next_event(self) -> float:
        """When `find` may have something to do without any answer."""
        if self.address is not None or len(self._under_way) > 1:
            return math.inf
        return self._begun_at_ms + SILENT_AFTER_MS if self._under_way else self._retry_at_ms

    def next_event_after(self, now_ms: float) -> float:
        """The same for who waits, but a search that is due by now is nothing to wake up for: who wants it begins it."""
        due_ms = self.next_event()
        return due_ms if due_ms > now_ms else math.inf

    def raise_error(self) -> None:
        """What keeps the coordinator from being found for good; the next search may begin."""
        if self.error is not None:
            error, self.error = self.error, None
            raise error

    def on_answer(self, request: GroupRequest, answer: BrokerInfo | BusError, now_ms: float) -> None:
        if request not in self._under_way:
            return
        self._under_way.remove(request)
        if isinstance(answer, BrokerInfo):
            self._under_way.clear()
            self.address = format_address(answer.host, answer.port)
            self._failures = 0
            logger.info("the coordinator of group %r is broker %d", self.group_id, answer.broker_id)
            return
        if self._under_way:
            return  # another broker is asked, too
        self._retry_at_ms = now_ms + self._backoff_ms(self._failures)
        self._failures += 1
        if self._may_retry(answer):
            level = logging.WARNING if self._failures == 1 else logging.DEBUG
            logger.log(level, "finding the coordinator of group %r is tried again: %s", self.group_id, answer)
        else:
            self.error = answer

    def mark_unknown(self, address: str | None, reason: object, now_ms: float) -> None:
        """`address` is the coordinator no longer, or cannot be reached. Nothing happens if it was not."""
        if self.address is not None and self.address == address:
            logger.info("the coordinator of group %r has to be found again: %s", self.group_id, reason)
            self.address = None
            self._retry_at_ms = now_ms + self._backoff_ms(self._failures)
            self._on_lost(isinstance(reason, BusError) and reason.code is ErrorCode.REQUEST_TIMED_OUT)
