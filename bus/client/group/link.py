"""Threads and gRPC for the machines of a group: carries their requests and answers, and has them told of the time.

Guards one promise: machines are called with the lock held, calls are made without it. Heartbeats and commits go over
one GroupSession stream, all else is a call of its own; one thread, the keeper, tells that time has passed while the
application does other things.
"""

from __future__ import annotations

import logging
import math
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

from bus.addresses import format_address
from bus.client.connection.cluster import Cluster
from bus.client.connection.group_requests import (
    FindCoordinator,
    GroupCall,
    Heartbeat,
    OffsetCommit,
    decode_group_answer,
    decode_session_answer,
    encode_group_call,
    encode_session_call,
)
from bus.client.connection.request_stream import RequestStream
from bus.client.connection.retrying import SILENT_AFTER_MS, monotonic_ms
from bus.descriptions import BrokerInfo
from bus.errors import BusError, ErrorCode
from bus.platform.reentry import OwnCondition, OwnLock, logger_of

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
        """The name of the call in the service."""
        return type(self.call).__name__


class CoordinatorFinder:
    """Finds the group's coordinator: a machine without threads, clock or I/O, which takes answers and the time, and
    says what to send. One broker is asked at a time, or two while the first one has not answered for a second; a failed
    search is repeated with growing pauses. `send` takes a request and returns at once; `may_retry` says whether a
    failure may pass."""

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
        """Raise the error that keeps the coordinator from being found for good; the next search may begin."""
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


_END_S = 2.0  # the time for threads to end


class Machines(Protocol):
    """The machines that the link works for; called with the lock held."""

    def take_answer(self, request: GroupRequest, answer: Any, now_ms: float) -> None:
        """`answer`: what the call of `request` says that answers it, or a `BusError`."""
        ...

    def take_notice(self) -> None: ...

    def tick(self, now_ms: float) -> float:
        """Time has passed; gives when to be called again."""
        ...


class GroupLink:
    """`changed` is notified after answers, for the thread that waits in poll."""

    def __init__(self, cluster: Cluster, changed: threading.Condition, lock: OwnLock, machines: Machines) -> None:
        self._cluster = cluster
        self._changed = changed
        self._lock = lock
        self._machines = machines
        self._outbox: deque[GroupRequest] = deque()
        self._unsent: deque[tuple[GroupRequest, BusError]] = deque()  # there was no session to send them on
        self._session: GroupSession | None = None
        self._candidate = 0
        self._keeper: threading.Thread | None = None
        self._keeper_due = OwnCondition(lock)
        self._has_news = False  # tells the keeper
        self.is_closed = False

    # ------------------------------------------------------------ requests

    def send(self, request: GroupRequest) -> None:
        """Send a request for the machines, with the lock held; the holder calls `deliver` afterwards."""
        if not isinstance(request.call, (Heartbeat, OffsetCommit)):
            self._outbox.append(request)
            return
        assert request.address is not None, "a coordinator has an address"
        try:
            session = self._session_to(request.address)
        except Exception as failure:  # the machines are in the middle of a step: `deliver` tells them
            self._unsent.append((request, _not_begun(request, failure)))
        else:
            session.send(request)

    def _session_to(self, address: str) -> GroupSession:
        if self._session is None or self._session.is_over or self._session.address != address:
            self.cut_session()
            self._session = GroupSession(self._cluster, address, self._lock, self._on_answers)
        return self._session

    @property
    def has_outgoing(self) -> bool:
        return bool(self._outbox or self._unsent)

    def cut_session(self, is_late: bool = False) -> None:
        """Fail what it has not answered yet. The lock is held. `is_late`: because no answer came in time."""
        session, self._session = self._session, None
        if session is not None:
            session.cut(is_late=is_late)

    def deliver(self) -> None:
        """Send what waits; the lock is not held, since an answer may be there at once."""
        while self._unsent:
            try:
                request, error = self._unsent.popleft()
            except IndexError:  # another thread was faster
                break
            self._on_answer(request, error)
        while self._outbox:
            try:
                request = self._outbox.popleft()
            except IndexError:  # another thread was faster
                return
            address = request.address or self._next_candidate()
            try:
                self._cluster.start_call(
                    request.method,
                    encode_group_call(request.call),
                    address=address,
                    timeout_ms=request.timeout_ms,
                    on_done=partial(self._on_answer, request),
                    patience_ms=request.patience_ms,
                )
            except Exception as failure:
                self._on_answer(request, _not_begun(request, failure))

    def _next_candidate(self) -> str:
        self._candidate += 1
        return self._cluster.candidate_in_turn(self._candidate - 1)

    # ------------------------------------------------------------ answers, on gRPC's threads

    def _on_answer(self, request: GroupRequest, response: Any) -> None:
        """The response, or a `BusError`."""
        if not isinstance(response, BusError):
            response = decode_group_answer(request.call, response)
        elif isinstance(request.call, FindCoordinator):
            response = self._unless_all_failed(response)
        self._on_answers([(request, response)], False)

    def _unless_all_failed(self, error: BusError) -> BusError:
        """A first contact that fails is final only when every address has failed."""
        is_last = self._candidate % len(self._cluster.candidates()) == 0
        if is_last or self._cluster.was_reached or error.code is not ErrorCode.NETWORK_EXCEPTION:
            return error
        return BusError(ErrorCode.COORDINATOR_NOT_AVAILABLE, error.message)

    def _on_answers(self, answers: list[tuple[GroupRequest, Any]], is_notice: bool) -> None:
        now_ms = monotonic_ms()
        with self._lock:
            if self.is_closed:
                return
            if is_notice:
                self._machines.take_notice()
            for request, answer in answers:
                self._machines.take_answer(request, answer, now_ms)
            self._wake_keeper()
            self._changed.notify_all()
        self.deliver()

    # ------------------------------------------------------------ the keeper

    def start_keeper(self, name: str) -> None:
        """Safe to repeat."""
        if self._keeper is None:
            self._keeper = threading.Thread(target=self._keep, name=name, daemon=True)
            self._keeper.start()

    def _wake_keeper(self) -> None:
        self._has_news = True
        self._keeper_due.notify_all()

    def _keep(self) -> None:
        while True:
            with self._lock:
                if self.is_closed:
                    return
                self._has_news = False
                due_ms = self._machines.tick(monotonic_ms())
            self.deliver()
            with self._lock:
                if not self._has_news and not self.is_closed:
                    self._keeper_due.wait(max(0.0, min(60_000, due_ms - monotonic_ms())) / 1000)

    # ------------------------------------------------------------ the end

    def close(self) -> None:
        """End the thread and the stream, without a word to the group. Safe to repeat."""
        with self._lock:
            self.is_closed = True
            session = self._session
            self.cut_session()
            self._wake_keeper()
            self._changed.notify_all()
        if session is not None:
            session.join(_END_S)
        if self._keeper is not None and threading.current_thread() is not self._keeper:
            self._keeper.join(_END_S)


class GroupSession:
    """A GroupSession stream to the coordinator. Each request is answered once, by correlation id; when the stream ends,
    its error answers the requests that are left. `on_answers` gets pairs of request and answer, and whether the
    coordinator gave notice, on the stream's reading thread, without the lock.

    The caller holds `lock` from looking at `is_over` until it has sent, and the end takes it: so no request is put on a
    stream that has answered all it had, also if the stream ends while it is being made.
    """

    def __init__(
        self,
        cluster: Cluster,
        address: str,
        lock: OwnLock,
        on_answers: Callable[[list[tuple[GroupRequest, Any]], bool], None],
    ) -> None:
        self.address = address
        self._lock = lock
        self._on_answers = on_answers
        self._unanswered: dict[
            int, GroupRequest
        ] = {}  # requests without an answer; guarded by the lock, as is `is_over`
        self._correlation_id = 0
        self.is_over = False
        self._stream = RequestStream(cluster, address, "GroupSession", on_answer=self._on_answer, on_end=self._on_end)

    def send(self, request: GroupRequest) -> None:
        self._correlation_id += 1
        self._unanswered[self._correlation_id] = request
        self._stream.send(encode_session_call(self._correlation_id, request.call))

    def cut(self, *, is_late: bool) -> None:
        self._stream.cut("the coordinator is another one, or cannot be reached", is_late=is_late)

    def join(self, timeout_s: float) -> None:
        self._stream.join(timeout_s)

    def _on_answer(self, stream: RequestStream, response: Any) -> None:
        if response.correlation_id == 0:
            self._on_answers([], True)
            return
        with self._lock:
            request = self._unanswered.pop(response.correlation_id, None)
        if request is None:
            raise ValueError(f"expected an answer that is not there yet, found {response.correlation_id} once more")
        self._on_answers([(request, decode_session_answer(request.call, response))], False)

    def _on_end(self, stream: RequestStream, error: BusError) -> None:
        with self._lock:
            self.is_over = True
            unanswered, self._unanswered = self._unanswered, {}
        self._on_answers([(request, error) for request in unanswered.values()], False)


def _not_begun(request: GroupRequest, failure: Exception) -> BusError:
    if isinstance(failure, BusError):
        return failure
    return BusError(ErrorCode.NETWORK_EXCEPTION, f"{request.method} could not be begun: {failure!r}")
