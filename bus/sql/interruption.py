"""Calls of the engine that Ctrl-C ends.

The engine runs a statement in one call, and Python takes up a signal between calls only. So in the main thread, where
signals come to, the call is made by another thread, and the engine is told when one comes.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

import duckdb

T = TypeVar("T")
_INTERRUPT_AGAIN_S = 0.05  # the call may not have begun when it is interrupted


def run_interruptible(session: duckdb.DuckDBPyConnection, call: Callable[[], T]) -> T:
    """What `call` returns or raises. `KeyboardInterrupt` when the engine has let go of the statement."""
    if threading.current_thread() is not threading.main_thread():
        return call()
    outcome: Future[T] = Future()

    def work() -> None:
        try:
            outcome.set_result(call())
        except BaseException as error:  # it is raised again, in the thread that waits for it
            outcome.set_exception(error)

    thread = threading.Thread(target=work, name="bus-sql", daemon=True)
    try:
        thread.start()
        return outcome.result()
    except KeyboardInterrupt:
        while thread.is_alive():
            session.interrupt()
            thread.join(_INTERRUPT_AGAIN_S)
        raise
