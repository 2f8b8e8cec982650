from __future__ import annotations

import signal
import sys
from types import FrameType
from typing import Any

from bus.client.producer import interrupts
from bus.client.producer.interrupts import uninterrupted


class _SignalAt:
    """Runs an empty section, with SIGINT before the `at`-th line of it that runs in interrupts.py."""

    def __init__(self, at: int) -> None:
        self._left = at
        self.line = 0  # where the signal came; 0: the section has fewer lines
        self.handled: list[int] = []

    def run(self) -> None:
        handler = signal.signal(signal.SIGINT, lambda number, frame: self.handled.append(number))
        before = sys.gettrace()
        sys.settrace(self._trace)
        try:
            with uninterrupted:
                pass
        finally:
            sys.settrace(before)
            signal.signal(signal.SIGINT, handler)

    def _trace(self, frame: FrameType, event: str, argument: Any) -> Any:
        if frame.f_code.co_filename != interrupts.__file__:
            return None
        if event == "line":
            self._left -= 1
            if self._left == 0:
                self.line = frame.f_lineno
                sys.settrace(None)
                signal.raise_signal(signal.SIGINT)
        return self._trace


def test_signal_before_any_line_of_a_section_is_handled_once() -> None:
    at = 0
    while True:
        at += 1
        section = _SignalAt(at)
        section.run()
        if not section.line:
            break
        assert section.handled == [signal.SIGINT], f"line {section.line}"
    assert at > 10
