"""Sections of code that Ctrl-C does not tear.

Guards one promise: what has begun in `uninterrupted` runs to its end; the signal that came meanwhile is handled behind
it, by the handler of the program. Python runs the handlers of signals in the main thread, between any two steps of
what runs there, and the usual handler raises: inside a step that moves records from one place to the next, that
would lose them. For short sections only, which wait for nothing. In other threads nothing is done, for no signal comes
there. SIGINT is held back whatever its handler is. A handler of another signal that raises has to `defer` that itself.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # `signal` wraps it, and its enumerations cost ten times as much
import os
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

_SIGINT = int(_signal.SIGINT)


class _Uninterrupted:
    """One for the process: only the main thread changes it. Sections may be nested."""

    __slots__ = ("_deferred", "_depth", "_handler", "_is_noted", "_thread_id")

    def __init__(self) -> None:
        self._depth = 0
        self._handler: Any = None  # the program's handler, while a section runs
        self._is_noted = False
        self._deferred: Callable[[], object] | None = None
        self._thread_id = 0  # the thread that runs the section

    def __enter__(self) -> None:
        if threading.get_ident() != threading.main_thread().ident:
            return
        if self._depth == 0:
            handler = _signal.getsignal(_SIGINT)
            # Any other one is not run by Python, and so tears nothing.
            self._handler = handler if callable(handler) else None
            if self._handler is not None:
                _signal.signal(_SIGINT, self._note)
        self._depth += 1
        self._thread_id = threading.get_ident()

    def __exit__(self, *error: object) -> None:
        if threading.get_ident() != threading.main_thread().ident:
            return
        self._depth -= 1
        if self._depth:
            return
        if self._handler is not None:
            handler, self._handler = self._handler, None
            _signal.signal(_SIGINT, handler)
            if self._is_noted:  # asked only now: up to here a signal is noted
                self._is_noted = False
                handler(_SIGINT, None)
        if self._deferred is not None:  # asked only now: up to here a handler defers
            handle, self._deferred = self._deferred, None
            handle()

    def defer(self, handle: Callable[[], object]) -> bool:
        """Have `handle` called behind the section that the main thread is in; False if it is in none. For handlers of
        signals, which run in the main thread."""
        is_inside = self._depth > 0 or bool(_signal.getsignal(_SIGINT) == self._note)
        if is_inside:
            self._deferred = handle
        return is_inside

    def _note(self, number: int, frame: FrameType | None) -> None:
        self._is_noted = True

    def end_in_child(self) -> None:
        """After a fork in another thread: in the child that one is the main thread, and the section has no end."""
        if self._depth and self._thread_id != threading.get_ident():
            handler, self._handler = self._handler, None
            self._depth, self._is_noted, self._deferred = 0, False, None
            if handler is not None:
                _signal.signal(_SIGINT, handler)


uninterrupted = _Uninterrupted()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=uninterrupted.end_in_child)
