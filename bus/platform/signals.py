"""Signals that end a program, from a terminal or a supervisor, as exceptions in its main thread.

Guards one promise: SIGTERM and SIGHUP end a program as Ctrl-C does, so that its `finally` blocks end what it has begun:
a broker, a progress bar that hides the cursor, records that are not acknowledged yet.
"""

from __future__ import annotations

import functools
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from bus.platform.interrupts import uninterrupted

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
