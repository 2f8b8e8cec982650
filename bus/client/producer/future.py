"""Futures of a producer: what they have in common, the one of `send_batch`, and the chunks of its records.

Guards one promise: a future is resolved exactly once, and what waits for it always learns of it. Never runs a callback
while a lock is held. Single records have lighter futures: `batch`.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any, Protocol, TypeVar

from bus.client.values import BatchMetadata
from bus.errors import BusError, ErrorCode, count_of
from bus.model import TopicPartition
from bus.platform.reentry import CalledInside, Flag, OwnLock, later, logger_of

logger = logger_of(__name__)

_lock = OwnLock()  # one for all futures: held for a few instructions only
_ResultT = TypeVar("_ResultT")
_STANDARD_STATE = frozenset(vars(Future()))  # names of what each future of the standard library has


class CallbackThreads:
    """Those that run callbacks of one producer now. Answers wait behind these, so what waits there for answers without
    an end is refused."""

    __slots__ = ("_depths",)

    def __init__(self) -> None:
        self._depths: dict[int, int] = {}  # keyed by thread

    def is_here(self) -> bool:
        return threading.get_ident() in self._depths

    def enter(self) -> None:
        here = threading.get_ident()
        self._depths[here] = self._depths.get(here, 0) + 1

    def leave(self) -> None:
        here = threading.get_ident()
        if self._depths[here] == 1:
            del self._depths[here]
        else:
            self._depths[here] -= 1

    def check_may_wait(self) -> None:
        """Raises `BusError` INVALID_REQUEST."""
        if self.is_here():
            raise BusError(
                ErrorCode.INVALID_REQUEST,
                "expected a time-out, or a future that is done, in a callback of the same producer: answers wait "
                "behind the callback, and result(), exception() and wait() would wait for themselves",
            )


class ProduceFuture(Future[_ResultT]):
    """A future of the standard library: `concurrent.futures.wait` and `as_completed` and `asyncio.wrap_future` take it.

    What those look at, a lock and a state of each future, is made when they first do, so a future that only its owner
    waits for is no heavier for it. A record that was sent cannot be called back: `cancel` is always refused.
    """

    __slots__ = ()

    def __getattr__(self, name: str) -> Any:
        if name not in _STANDARD_STATE:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        made, own = vars(Future()), vars(self)
        with _lock:  # nothing is allocated under it, so no finalizer runs
            is_first = name not in own
            if is_first:
                own.update(made)
        if is_first:
            self.add_done_callback(self._show_outcome)
        return own[name]

    def _show_outcome(self, done: Future[_ResultT]) -> None:
        """To those who wait by means of the standard library. `done` may be another object for the same record."""
        error = done.exception()
        if error is None:
            Future.set_result(self, done.result())
        else:
            Future.set_exception(self, error)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} at {id(self):#x} {'done' if self.done() else 'pending'}>"

    def cancel(self) -> bool:
        return False

    def cancelled(self) -> bool:
        return False

    def running(self) -> bool:
        return not self.done()


class BatchFuture(ProduceFuture[list[BatchMetadata]]):
    """The future of one batch: a `BatchMetadata` for each run of it that was produced in one piece, by partition, in
    order.

    Done when every run has its outcome. It fails with the `BusError` of the first run that failed; the others may have
    succeeded. After REQUEST_TIMED_OUT or NETWORK_EXCEPTION the records may still be, or come to be, in the log.
    """

    __slots__ = ("_callback_threads", "_callbacks", "_error", "_event", "_is_done", "_missing", "_runs")

    def __init__(self, run_count: int, callback_threads: CallbackThreads | None = None) -> None:
        self._callback_threads = callback_threads
        self._runs: list[BatchMetadata | None] = [None] * run_count
        self._missing = run_count
        self._error: BusError | None = None
        self._is_done = run_count == 0
        self._event: Flag | None = None
        self._callbacks: list[Callable[[Any], object]] = []

    def done(self) -> bool:
        return self._is_done

    def result(self, timeout: float | None = None) -> list[BatchMetadata]:
        """Wait at most `timeout` seconds. Raises the `BusError`, or `TimeoutError` if there is no outcome yet."""
        self.wait(timeout)
        if self._error is not None:
            raise self._error
        return [run for run in self._runs if run is not None]

    def exception(self, timeout: float | None = None) -> BusError | None:
        """Wait as `result` does; None if all went well."""
        self.wait(timeout)
        return self._error

    def add_done_callback(self, callback: Callable[[Any], object]) -> None:
        """`callback(future)` runs on the producer's own thread, or at once if the future is done.

        It must not block: answers wait behind it. What it raises is logged.
        """
        try:
            with _lock:
                if not self._is_done:
                    self._callbacks.append(callback)
                    return
        except CalledInside:
            later(self.add_done_callback, callback)
            return
        self._run(callback)

    def wait(self, timeout: float | None = None) -> None:
        """Raises `TimeoutError` if there is no outcome within `timeout` seconds."""
        if timeout is None and not self._is_done and self._callback_threads is not None:
            self._callback_threads.check_may_wait()
        with _lock:
            if self._is_done:
                return
            event = self._event = self._event or Flag()
        if not event.wait(timeout):
            raise TimeoutError(f"expected the broker's answer within {timeout} s, found none yet")

    def resolve(self, slot: int, metadata: BatchMetadata | None, error: BusError | None) -> None:
        """The outcome of one run."""
        with _lock:
            self._runs[slot] = metadata
            self._missing -= 1
            self._error = self._error or error
            if self._missing:
                return
            self._is_done = True
            event, callbacks = self._event, self._callbacks
            self._callbacks = []
        if event is not None:
            event.set()
        for callback in callbacks:
            try:
                self._run(callback)
            except SystemExit:  # on a thread that is not the callback's to end
                logger.exception("a callback of a produce future failed")

    def _run(self, callback: Callable[[Any], object]) -> None:
        try:
            callback(self)
        except Exception:  # a user's code, on a thread that must go on
            logger.exception("a callback of a produce future failed")


class RunChunk:
    """One run of a batch: records of one partition, encoded already."""

    __slots__ = (
        "_metadata",
        "_slot",
        "batch",
        "deadline_ms",
        "due_at_ms",
        "failure",
        "is_settled",
        "partition",
        "payload",
        "record_count",
        "reserved_bytes",
        "size_bytes",
        "timestamp_ms",
    )

    def __init__(
        self,
        future: BatchFuture,
        slot: int,
        payload: tuple[Any, int, int],
        *,
        partition: TopicPartition,
        record_count: int,
        size_bytes: int,
        timestamp_ms: int | None,
        deadline_ms: float,
    ) -> None:
        """`payload` as `PartEncoder.pack` gives it; `timestamp_ms` None: every record brings its own."""
        self.batch = future
        self._slot = slot
        self.payload: Any = payload
        self.record_count = record_count
        self.size_bytes = size_bytes
        self.reserved_bytes = size_bytes
        self.timestamp_ms = timestamp_ms
        self.due_at_ms = 0.0
        self.deadline_ms = deadline_ms
        self.is_settled = False
        self.partition = partition
        self._metadata: BatchMetadata | None = None
        self.failure: BusError | None = None

    def settle(
        self, metadata: BatchMetadata | None, error: BusError | None, offsets: Sequence[int] | None = None
    ) -> None:
        assert not self.is_settled, "a chunk is settled once"
        self.is_settled = True
        if metadata is not None and metadata.timestamp_ms < 0 and self.timestamp_ms is not None:
            metadata = metadata.with_timestamp(self.timestamp_ms)
        self._metadata, self.failure = metadata, error
        self.payload = ()

    def announce(self) -> None:
        self.batch.resolve(self._slot, self._metadata, self.failure)

    def refuse_records(self, errors: Mapping[int, BusError]) -> None:
        raise AssertionError("a run is refused as a whole")


class Waitable(Protocol):
    def done(self) -> bool: ...

    def wait(self, timeout: float | None = None) -> None: ...


def wait_all(waitables: Iterable[Waitable], timeout: float | None) -> None:
    """Wait for all within `timeout` seconds together. Raises `TimeoutError`; errors of the futures stay in them."""
    deadline = None if timeout is None else time.monotonic() + timeout
    left = list(waitables)
    for count, waitable in enumerate(left):
        try:
            waitable.wait(None if deadline is None else max(0.0, deadline - time.monotonic()))
        except TimeoutError:
            unanswered = sum(not later.done() for later in left[count:])
            raise TimeoutError(
                f"expected all records to be answered within {timeout} s, found "
                f"{count_of(unanswered, 'batch', 'batches')} open"
            ) from None
