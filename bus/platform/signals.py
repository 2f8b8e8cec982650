"""Signals that end a program, from a terminal or a supervisor, as exceptions in its main thread, and sections of code
that they do not tear.

Guards one promise: SIGTERM and SIGHUP end a program as Ctrl-C does, so that its `finally` blocks end what it has begun:
a broker, a progress bar that hides the cursor, records that are not acknowledged yet.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # `signal` wraps it, and its enumerations cost ten times as much
import functools
import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

_SIGINT = int(_signal.SIGINT)


class _Uninterrupted:
    """Sections of code that Ctrl-C does not tear. One for the process: only the main thread changes it. Sections may be
    nested.

    Guards one promise: what has begun in `uninterrupted` runs to its end; the signal that came meanwhile is handled
    behind it, by the handler of the program. Python runs the handlers of signals in the main thread, between any two
    steps of what runs there, and the usual handler raises: inside a step that moves records from one place to the next,
    that would lose them. For short sections only, which wait for nothing. In other threads nothing is done, for no
    signal comes there. SIGINT is held back whatever its handler is. A handler of another signal that raises has to
    `defer` that itself.
    """

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


EXIT_SIGNAL = 128  # + the number of the signal, as a shell reports it
_DEFAULTS = (signal.default_int_handler, signal.SIG_DFL)


class Interrupts:
    """Raises `KeyboardInterrupt(signal)` for a signal: at once, or at the end of `held`, or of a step of a producer
    that must not be torn, if one is under way."""

    def __init__(self) -> None:
        self._is_held = False
        self._pending: int | None = None

    @contextmanager
    def held(self) -> Iterator[None]:
        """Hold signals back within the block. It must be short, and wait for nothing: a second Ctrl-C is held back
        too."""
        self._is_held = True
        try:
            yield
        finally:
            self._is_held = False
            number, self._pending = self._pending, None
        if number is not None:
            raise KeyboardInterrupt(signal.Signals(number))

    def take(self, number: int, frame: FrameType | None) -> None:
        """Handle a signal."""
        if self._is_held:
            self._pending = number
        elif not uninterrupted.defer(functools.partial(self.take, number, None)):
            raise KeyboardInterrupt(signal.Signals(number))


@contextmanager
def signals_as_interrupts() -> Iterator[Interrupts]:
    """Have SIGTERM, SIGHUP and SIGINT raise `KeyboardInterrupt` with the signal within the block. SIGINT and SIGHUP
    stay ignored where the process was started to ignore them (`nohup`). Within another such block, yields the
    `Interrupts` of that one. Does nothing outside of the main thread, where Python runs no handler."""
    if threading.current_thread() is not threading.main_thread():
        yield Interrupts()
        return
    outer = getattr(signal.getsignal(signal.SIGTERM), "__self__", None)
    if isinstance(outer, Interrupts):
        yield outer
        return
    interrupts = Interrupts()
    wanted = [signal.SIGTERM]
    wanted += [number for number in (signal.SIGINT, signal.SIGHUP) if signal.getsignal(number) in _DEFAULTS]
    before = {number: signal.signal(number, interrupts.take) for number in wanted}
    try:
        yield interrupts
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def signal_of(interrupt: KeyboardInterrupt) -> signal.Signals:
    """Return the signal that `interrupt` was raised for."""
    return signal.Signals(next(iter(interrupt.args), signal.SIGINT))
