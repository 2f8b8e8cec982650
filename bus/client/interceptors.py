"""Interceptors: a user's code that sees, and may change, every record before it is sent, and learns of its outcome.

Guards one promise: an interceptor cannot make a record fail. What it raises is logged, a few times and not for each
record, and the record goes on as the interceptor before it left it (Kafka's ProducerInterceptors).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol, TypeVar

from bus.client.values import RecordMetadata
from bus.errors import BusError

logger = logging.getLogger(__name__)

_LOG_INTERVAL_S = 30.0
_T = TypeVar("_T")


class ProducerRecord(NamedTuple):
    """A record as it was given to `send`, before it is serialized; `_replace` makes another one of it."""

    topic: str
    value: Any = None
    key: Any = None
    headers: Sequence[tuple[str, bytes | None]] | None = None
    partition: int | None = None
    timestamp_ms: int | None = None


class ProducerInterceptor(Protocol):
    """All of it may be called from several threads at once."""

    def on_send(self, record: ProducerRecord) -> ProducerRecord:
        """The record to send, on the thread that sends; the next interceptor gets it."""
        ...

    def on_acknowledgement(self, metadata: RecordMetadata | None, error: BusError | None) -> None:
        """The outcome: one of the two is None. On the producer's own thread, where answers wait behind it."""
        ...

    def close(self) -> None:
        """The producer is closed."""
        ...


class Outcome(Protocol):
    """A future that is done."""

    def result(self) -> RecordMetadata: ...

    def exception(self) -> BusError | None: ...


class Chain:
    """Calls each interceptor in the order in which they were given. False if there are none."""

    def __init__(self, interceptors: Sequence[object], subject: str, clock: Callable[[], float]) -> None:
        """`subject` goes on in spite of what they raise."""
        self._interceptors = tuple(interceptors)
        self._complain = _Complaints(self._interceptors, subject, clock).add

    def __bool__(self) -> bool:
        return bool(self._interceptors)

    def change(self, method: str, subject: _T, kind: type[_T]) -> _T:
        """What the last of them made of `subject`; what is no `kind` does not count."""
        for position, interceptor in enumerate(self._interceptors):
            try:
                changed = getattr(interceptor, method)(subject)
                if not isinstance(changed, kind):
                    raise TypeError(f"expected {method} to give a {kind.__name__}, found {type(changed).__name__}")
            except Exception as error:
                self._complain(position, method, error)
            else:
                subject = changed
        return subject

    def tell(self, method: str, *arguments: object) -> None:
        for position, interceptor in enumerate(self._interceptors):
            try:
                getattr(interceptor, method)(*arguments)
            except Exception as error:
                self._complain(position, method, error)

    def close(self) -> None:
        self.tell("close")


class InterceptorChain(Chain):
    def __init__(
        self, interceptors: Sequence[ProducerInterceptor], clock: Callable[[], float] = time.monotonic
    ) -> None:
        super().__init__(interceptors, "the record", clock)

    def on_send(self, record: ProducerRecord) -> ProducerRecord:
        """What the last of them made of `record`."""
        return self.change("on_send", record, ProducerRecord)

    def on_done(self, future: Outcome) -> None:
        """For `add_done_callback`."""
        error = future.exception()
        self.tell("on_acknowledgement", None if error is not None else future.result(), error)

    def on_send_error(self, error: BusError) -> None:
        """The record that `on_send` gave was refused by `send` itself: there is no future."""
        self.tell("on_acknowledgement", None, error)


class _Complaints:
    """What interceptors raise, in the log, a few times and not for each record."""

    def __init__(self, interceptors: Sequence[object], subject: str, clock: Callable[[], float]) -> None:
        """`subject` goes on in spite of them."""
        self._interceptors = interceptors
        self._subject = subject
        self._clock = clock
        self._complaints: dict[tuple[int, str], _Complaint] = {}

    def add(self, position: int, method: str, error: Exception) -> None:
        complaint = self._complaints.setdefault((position, method), _Complaint())
        now = self._clock()
        if now < complaint.silent_until:
            complaint.unreported += 1
            return
        more = f" ({complaint.unreported} more times since the last report)" if complaint.unreported else ""
        complaint.silent_until, complaint.unreported = now + _LOG_INTERVAL_S, 0
        name = type(self._interceptors[position]).__name__
        logger.warning("interceptor %s: %s failed%s; %s goes on", name, method, more, self._subject, exc_info=error)


class _Complaint:
    __slots__ = ("silent_until", "unreported")

    def __init__(self) -> None:
        self.silent_until = float("-inf")
        self.unreported = 0
