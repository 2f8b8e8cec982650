"""Futures of the producer: what `send` and `send_batch` return.

Guards one promise: a future is resolved exactly once, and what waits for it always learns of it. Lean on purpose: a
future that nobody waits for costs no lock object of its own. Never runs a callback while a lock is held.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Any, Generic, TypeVar

from bus.client.values import BatchMetadata, RecordMetadata
from bus.errors import BusError

logger = logging.getLogger(__name__)

ResultT = TypeVar("ResultT")
_lock = threading.Lock()  # of all futures: held for a few instructions only


class ProduceFuture(Generic[ResultT]):
    """The outcome of a produce call, once there is one.

    It fails with the `BusError` of the first record that could not be produced. After REQUEST_TIMED_OUT or
    NETWORK_EXCEPTION the records may still be, or come to be, in the log.
    """

    __slots__ = ("_callbacks", "_error", "_event", "_is_done", "_result")

    def __init__(self) -> None:
        self._is_done = False
        self._result: ResultT | None = None
        self._error: BusError | None = None
        self._event: threading.Event | None = None
        self._callbacks: list[Callable[[Any], object]] | None = None

    def done(self) -> bool:
        return self._is_done

    def result(self, timeout: float | None = None) -> ResultT:
        """Wait at most `timeout` seconds. Raises the `BusError`, or `TimeoutError` if there is no outcome yet."""
        self.wait(timeout)
        if self._error is not None:
            raise self._error
        return self._result  # type: ignore[return-value]

    def exception(self, timeout: float | None = None) -> BusError | None:
        """Wait as `result` does; None if all went well."""
        self.wait(timeout)
        return self._error

    def add_done_callback(self, callback: Callable[[Any], object]) -> None:
        """`callback(future)` runs on the producer's own thread, or at once if the future is done.

        It must not block: answers wait behind it. What it raises is logged.
        """
        with _lock:
            if not self._is_done:
                self._callbacks = self._callbacks or []
                self._callbacks.append(callback)
                return
        self._run(callback)

    def wait(self, timeout: float | None = None) -> None:
        """Raises `TimeoutError` if there is no outcome within `timeout` seconds."""
        if self._is_done:
            return
        with _lock:
            if self._is_done:
                return
            event = self._event = self._event or threading.Event()
        if not event.wait(timeout):
            raise TimeoutError(f"expected the broker's answer within {timeout} s, found none yet")

    def _settle(self, result: ResultT | None, error: BusError | None) -> bool:
        with _lock:
            if self._is_done:
                return False
            self._result, self._error, self._is_done = result, error, True
            event, callbacks = self._event, self._callbacks
            self._callbacks = None
        if event is not None:
            event.set()
        for callback in callbacks or ():
            self._run(callback)
        return True

    def _run(self, callback: Callable[[Any], object]) -> None:
        try:
            callback(self)
        except Exception:  # a user's code, on a thread that must go on
            logger.exception("a callback of a produce future failed")


class RecordFuture(ProduceFuture[RecordMetadata]):
    """Of one record."""

    __slots__ = ()

    def resolve(self, slot: int, metadata: BatchMetadata | None, error: BusError | None) -> None:
        if metadata is None:
            self._settle(None, error)
            return
        self._settle(
            RecordMetadata(
                topic=metadata.topic,
                partition=metadata.partition,
                offset=metadata.base_offset,
                timestamp_ms=metadata.timestamp_ms,
                version=metadata.version,
            ),
            None,
        )


class BatchFuture(ProduceFuture[list[BatchMetadata]]):
    """Of one batch: a `BatchMetadata` for each run of it that was produced in one piece, by partition, in order.

    Done when every run has its outcome. It fails if any run failed; the others may have succeeded.
    """

    __slots__ = ("_first_error", "_missing", "_runs")

    def __init__(self, run_count: int) -> None:
        super().__init__()
        self._runs: list[BatchMetadata | None] = [None] * run_count
        self._missing = run_count
        self._first_error: BusError | None = None
        if run_count == 0:
            self._settle([], None)

    def resolve(self, slot: int, metadata: BatchMetadata | None, error: BusError | None) -> None:
        with _lock:
            self._runs[slot] = metadata
            self._missing -= 1
            self._first_error = self._first_error or error
            if self._missing:
                return
        if self._first_error is not None:
            self._settle(None, self._first_error)
        else:
            self._settle([run for run in self._runs if run is not None], None)


def wait_all(futures: list[ProduceFuture[Any]], timeout: float | None) -> None:
    """Wait for all within `timeout` seconds together. Raises `TimeoutError`; errors of the futures stay in them."""
    deadline = None if timeout is None else time.monotonic() + timeout
    for count, future in enumerate(futures):
        try:
            future.wait(None if deadline is None else max(0.0, deadline - time.monotonic()))
        except TimeoutError:
            unanswered = sum(not later.done() for later in futures[count:])
            raise TimeoutError(
                f"expected all records to be answered within {timeout} s, found {unanswered} open"
            ) from None
