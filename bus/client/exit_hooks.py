"""What becomes of a producer that nobody closes: at the end of the program, when it is forgotten, after a fork.

Guards one promise: what was accepted is delivered, or it is said that it was not. At the end of the interpreter every
open producer flushes for as long as its delivery.timeout.ms allows, ten seconds at most, and reports what is left. A
producer that is garbage flushes in the background. After a fork it belongs to the parent: the child's copy refuses
every call, and sends nothing a second time.
"""

from __future__ import annotations

import atexit
import logging
import os
import threading
import weakref
from typing import TYPE_CHECKING, Any

from bus.client.produce_future import wait_all
from bus.errors import BusError, ErrorCode

if TYPE_CHECKING:
    from bus.client.producer_threads import ProducerThreads

logger = logging.getLogger(__name__)

_EXIT_TIMEOUT_S = 10.0
_CLOSE_TIMEOUT_S = 2.0  # for threads and streams to end, after all records have their outcome

_producers: weakref.WeakSet[Any] = weakref.WeakSet()
_finalizers: weakref.WeakKeyDictionary[Any, weakref.finalize[[ProducerThreads], Any]] = weakref.WeakKeyDictionary()
_open_threads: set[ProducerThreads] = set()


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


def end(threads: ProducerThreads, timeout: float | None) -> int:
    """Flush for `timeout` seconds, then end the threads. Returns how many records failed because of that."""
    try:
        unsettled = threads.sender.start_flush()
        try:
            wait_all(unsettled, timeout)
        except TimeoutError:
            pass  # the futures tell
        finally:
            threads.sender.end_flush()
    finally:
        _open_threads.discard(threads)
        within = "" if timeout is None else f" within {timeout:g} s"
        error = BusError(ErrorCode.REQUEST_TIMED_OUT, f"the producer was closed before this was acknowledged{within}")
        failed = threads.close(error, timeout_s=_CLOSE_TIMEOUT_S)
    return failed


def _end_in_background(threads: ProducerThreads) -> None:
    threading.Thread(target=_end_and_report, args=(threads, None), name="bus-producer-end", daemon=True).start()


def _end_and_report(threads: ProducerThreads, timeout: float | None) -> None:
    failed = end(threads, timeout)
    if failed:
        logger.error("a producer that was never closed could not deliver %d records", failed)


@atexit.register
def _end_all() -> None:
    for threads in list(_open_threads):
        _end_and_report(threads, min(threads.delivery_timeout_s, _EXIT_TIMEOUT_S))


def _disown_all() -> None:
    _open_threads.clear()
    for producer in list(_producers):
        producer.disown()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_disown_all)
