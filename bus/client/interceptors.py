"""Code that a user gives a client: interceptors, which see, and may change, records before they are sent or given out,
and learn which of them are in the log and which offsets were committed; and what they share with serializers and
partitioners.

Guards three promises. An interceptor makes no record, poll or commit fail: what it raises is logged, a few times and
not for each record, and records go on as the interceptor before it left them (Kafka's ProducerInterceptors and
ConsumerInterceptors). Each object that has a `close()` is closed once, also if others raise, and in however many places
it was given. And a function may ask for what it can be told by naming a parameter, so that one without it goes on
working.
"""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol, TypeVar

from bus.client.values import ConsumerRecord, OffsetAndMetadata, RecordMetadata
from bus.errors import BusError, count_of
from bus.model import TopicPartition
from bus.platform.reentry import logger_of

logger = logger_of(__name__)

_LOG_INTERVAL_S = 30.0
_NOTHING_MORE: Mapping[int, Mapping[str, object]] = MappingProxyType({})
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

    def on_acknowledgement(self, metadata: RecordMetadata, error: Exception | None) -> None:
        """The outcome; `error` None: the record is in the log. With an error `metadata` has the topic and the partition
        (-1 if none was chosen), and offset, timestamp and version -1. One that has a parameter `record` besides gets
        the `ProducerRecord` that `on_send` made.

        On the producer's own thread, where answers wait behind it; on the one that sends, if `send` refused the record.
        """
        ...

    def close(self) -> None:
        """The producer is closed."""
        ...


class Outcome(Protocol):
    """A future that is done."""

    def place(self) -> RecordMetadata: ...

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
        """Return `subject` as the last interceptor changed it; results of another type than `kind` are ignored."""
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

    def tell(self, method: str, *arguments: object, more: Mapping[int, Mapping[str, object]] = _NOTHING_MORE) -> None:
        """`more`: arguments by name that some are given besides, by their position."""
        for position, interceptor in enumerate(self._interceptors):
            try:
                getattr(interceptor, method)(*arguments, **more.get(position, {}))
            except Exception as error:
                self._complain(position, method, error)

    def close(self) -> None:
        self.tell("close")


class InterceptorChain(Chain):
    def __init__(
        self, interceptors: Sequence[ProducerInterceptor], clock: Callable[[], float] = time.monotonic
    ) -> None:
        super().__init__(interceptors, "the record", clock)
        self._wanting_record = [
            position
            for position, interceptor in enumerate(interceptors)
            if asks_for(interceptor.on_acknowledgement, "record")
        ]

    def on_send(self, record: ProducerRecord) -> ProducerRecord:
        """Return `record` as the last interceptor changed it."""
        return self.change("on_send", record, ProducerRecord)

    def callback_for(self, record: ProducerRecord) -> Callable[[Outcome], None]:
        """Return a callback for `add_done_callback` of the future of `record`, as `on_send` returned it. Keeps the
        record only if an interceptor wants it."""
        return partial(self._on_done, record) if self._wanting_record else self._on_done_alone

    def on_send_error(self, record: ProducerRecord, error: Exception) -> None:
        """The record that `on_send` gave was refused by `send` itself: there is no future."""
        partition = record.partition if type(record.partition) is int else -1
        self._tell_outcome(RecordMetadata(record.topic, partition, -1, -1, -1), error, record)

    def _on_done_alone(self, future: Outcome) -> None:
        self._on_done(None, future)

    def _on_done(self, record: ProducerRecord | None, future: Outcome) -> None:
        self._tell_outcome(future.place(), future.exception(), record)

    def _tell_outcome(self, metadata: RecordMetadata, error: Exception | None, record: ProducerRecord | None) -> None:
        more = {position: {"record": record} for position in self._wanting_record}
        self.tell("on_acknowledgement", metadata, error, more=more)


class _Complaints:
    """Logs the errors of interceptors a few times, not for each record."""

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
        more = f" ({count_of(complaint.unreported, 'more time')} since the last report)" if complaint.unreported else ""
        complaint.silent_until, complaint.unreported = now + _LOG_INTERVAL_S, 0
        name = type(self._interceptors[position]).__name__
        logger.warning("interceptor %s: %s failed%s; %s goes on", name, method, more, self._subject, exc_info=error)


class _Complaint:
    __slots__ = ("silent_until", "unreported")

    def __init__(self) -> None:
        self.silent_until = float("-inf")
        self.unreported = 0


class ConsumerInterceptor(Protocol):
    """All of it is called in the thread that polls. `poll_arrow` passes it by."""

    def on_consume(self, records: list[ConsumerRecord]) -> list[ConsumerRecord]:
        """The records to give out; the next interceptor gets them. One that is left out counts as consumed."""
        ...

    def on_commit(self, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
        """These were committed."""
        ...

    def close(self) -> None:
        """The consumer is closed."""
        ...


class ConsumerInterceptorChain(Chain):
    def __init__(
        self, interceptors: Sequence[ConsumerInterceptor], clock: Callable[[], float] = time.monotonic
    ) -> None:
        super().__init__(interceptors, "the consumer", clock)

    def on_consume(self, records: list[ConsumerRecord]) -> list[ConsumerRecord]:
        """Return `records` as the last interceptor changed them."""
        return self.change("on_consume", records, list)

    def on_commit(self, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
        self.tell("on_commit", offsets)


def asks_for(function: Callable[..., Any], parameter: str) -> bool:
    """It has a parameter of this name, which can be given by name."""
    try:
        found = inspect.signature(function).parameters.get(parameter)
    except (TypeError, ValueError):  # a function of C without a signature
        return False
    return found is not None and found.kind in (found.POSITIONAL_OR_KEYWORD, found.KEYWORD_ONLY)


def close_all(given: Mapping[str, Any]) -> None:
    """Close what `given` has, by the name of its setting. What a `close()` raises is logged."""
    closed: list[Any] = []
    for name, thing in given.items():
        close = getattr(thing, "close", None)
        if isinstance(thing, type) or not callable(close) or any(thing is other for other in closed):
            continue
        closed.append(thing)
        try:
            close()
        except Exception:  # a user's code, while everything else is to be closed as well
            logger.exception("closing %s failed", name)
