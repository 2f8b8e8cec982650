"""Ctrl-C and SIGTERM for commands that have something to put in order when they end.

Guards two promises: SIGTERM, which supervisors send, ends such a command as Ctrl-C does at a terminal;
and what is done while interrupts are held is done as a whole, with what it says of itself.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class Interrupts:
    """Raises `KeyboardInterrupt(number)` for a signal, at once or when it is held no more."""

    def __init__(self) -> None:
        self._is_held = False
        self._pending: int | None = None

    @contextmanager
    def held(self) -> Iterator[None]:
        """For moments, not for what may wait: a second Ctrl-C does not come through either."""
        self._is_held = True
        try:
            yield
        finally:
            self._is_held = False
            number, self._pending = self._pending, None
        if number is not None:
            raise KeyboardInterrupt(signal.Signals(number))

    def take(self, number: int, frame: FrameType | None) -> None:
        """A signal's handler."""
        if not self._is_held:
            raise KeyboardInterrupt(signal.Signals(number))
        self._pending = number


@contextmanager
def sigterm_as_interrupt() -> Iterator[Interrupts]:
    """Within the block SIGTERM, as Ctrl-C, raises `KeyboardInterrupt` with the signal. A signal that the process was
    started to ignore stays ignored; outside of the main thread it does nothing."""
    interrupts = Interrupts()
    if threading.current_thread() is not threading.main_thread():
        yield interrupts
        return
    wanted = [signal.SIGTERM]
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        wanted.append(signal.SIGINT)
    before = {number: signal.signal(number, interrupts.take) for number in wanted}
    try:
        yield interrupts
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
