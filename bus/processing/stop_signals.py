"""SIGTERM and SIGINT while a run is under way: the first one ends it in order, the second one at once.

Guards two promises. The handlers that were there before are there again afterwards; and a signal handler here takes no
lock, which the code that it interrupts might hold: a thread beside it does what has to be done.
"""

from __future__ import annotations

import logging
import signal
import threading
from collections.abc import Callable
from queue import SimpleQueue
from types import FrameType, TracebackType
from typing import Any

logger = logging.getLogger(__name__)

_SIGNALS = (signal.SIGTERM, signal.SIGINT)


class StopSignals:
    """A context. Outside of the main thread it does nothing: signals are the main thread's."""

    def __init__(self, on_signal: Callable[[str], None]) -> None:
        self._on_signal = on_signal  # with the signal's name, on a thread of its own
        self._before: dict[signal.Signals, Any] = {}
        self._came: SimpleQueue[str | None] = SimpleQueue()  # its put is safe in signal handlers
        self._thread: threading.Thread | None = None

    def __enter__(self) -> StopSignals:
        if threading.current_thread() is threading.main_thread():
            self._thread = threading.Thread(target=self._pass_on, name="bus-signals", daemon=True)
            self._thread.start()
            self._before = {number: signal.signal(number, self._note) for number in _SIGNALS}
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
        self._came.put(None)
        if self._thread is not None:
            self._thread.join()

    def _note(self, number: int, frame: FrameType | None) -> None:
        self._came.put(signal.Signals(number).name)

    def _pass_on(self) -> None:
        while (name := self._came.get()) is not None:
            self._on_signal(name)
