"""Producers that are never closed: their end with the program, when they are forgotten, and after a fork.

Guards one promise: what was accepted is delivered, or it is said that it was not. At the end of the interpreter every
open producer flushes for as long as its delivery.timeout.ms allows, all of them for ten seconds at most, and reports
what it could not deliver. A producer that is garbage flushes in the background. After a fork it belongs to the parent:
the child's copy refuses every call, sends nothing a second time, and leaves the parent's connections alone even when it
is garbage.
"""

from __future__ import annotations

import atexit
import concurrent.futures.thread  # noqa: F401  Arrow imports it with pandas, with the first array: too late at the end
import os
import threading
import time
import weakref
from typing import TYPE_CHECKING, Any

from bus.client.connection.retrying import monotonic_ms
from bus.client.producer.future import wait_all
from bus.errors import BusError, ErrorCode, count_of
from bus.platform.reentry import later, logger_of

if TYPE_CHECKING:
    from bus.client.producer.threads import ProducerThreads

logger = logger_of(__name__)

_EXIT_TIMEOUT_S = 10.0
_CLOSE_TIMEOUT_S = 2.0  # the time for threads and streams to end, after all records have their outcome
_HURRIED_CLOSE_S = 0.2  # the same, beyond the time-out that the caller gave

_producers: weakref.WeakSet[Any] = weakref.WeakSet()
_finalizers: weakref.WeakKeyDictionary[Any, weakref.finalize[[ProducerThreads], Any]] = weakref.WeakKeyDictionary()
_open_threads: set[ProducerThreads] = set()
_inherited: list[ProducerThreads] = []  # the parent's threads: kept, because destroying a connection would send on it


def watch(producer: Any, threads: ProducerThreads) -> None:
    """From now on `producer` may be forgotten. Its threads must not refer to it."""
    _producers.add(producer)
    _open_threads.add(threads)
    finalizer = weakref.finalize(producer, _end_in_background, threads)
    finalizer.atexit = False
    _finalizers[producer] = finalizer


def forget(producer: Any) -> None:
    """It was closed."""
    _producers.discard(producer)
    finalizer = _finalizers.pop(producer, None)
    if finalizer is not None:
        finalizer.detach()


def end(threads: ProducerThreads, timeout: float | None) -> None:
    """Flush for `timeout` seconds, then end the threads. What is left fails with REQUEST_TIMED_OUT."""
    try:
        unsettled = threads.engine.start_flush()
        try:
            wait_all(unsettled, timeout)
        except TimeoutError:
            pass  # the futures tell
        finally:
            threads.engine.end_flush()
    finally:
        _open_threads.discard(threads)
        within = "" if timeout is None else f" within {timeout:g} s"
        error = BusError(ErrorCode.REQUEST_TIMED_OUT, f"the producer was closed before this was acknowledged{within}")
        orderly_s = _CLOSE_TIMEOUT_S if timeout is None else min(_CLOSE_TIMEOUT_S, timeout + _HURRIED_CLOSE_S)
        threads.close(error, timeout_s=orderly_s)


def _failed_count(threads: ProducerThreads) -> int:
    """The number of records that have ever failed."""
    return int(threads.engine.metrics.snapshot(monotonic_ms())["record-error-total"])


def _end_in_background(threads: ProducerThreads) -> None:
    """Memory may be collected anywhere, also in a step of a client: nothing is waited for here."""
    later(_begin_end, threads)


def _begin_end(threads: ProducerThreads) -> None:
    thread = threading.Thread(
        target=_end_and_report, args=(threads, None, _failed_count(threads)), name="bus-producer-end", daemon=True
    )
    thread.start()


def _end_and_report(threads: ProducerThreads, timeout: float | None, failed_before: int) -> None:
    end(threads, timeout)
    failed = _failed_count(threads) - failed_before
    if failed:
        logger.error("a producer that was never closed could not deliver %s", count_of(failed, "record"))


@atexit.register
def _end_all() -> None:
    until = time.monotonic() + _EXIT_TIMEOUT_S
    failed_before = {threads: _failed_count(threads) for threads in list(_open_threads)}
    for threads in failed_before:
        threads.engine.start_flush()  # all of them now: they share the time
    for threads, failed in failed_before.items():
        _end_and_report(threads, max(0.0, min(threads.delivery_timeout_s, until - time.monotonic())), failed)


def _disown_all() -> None:
    for finalizer in list(_finalizers.values()):
        finalizer.detach()
    _finalizers.clear()
    _inherited.extend(_open_threads)
    _open_threads.clear()
    for producer in list(_producers):
        producer.disown()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_disown_all)
