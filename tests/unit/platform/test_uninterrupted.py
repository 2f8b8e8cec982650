from __future__ import annotations

import signal
import subprocess
import sys
from types import FrameType
from typing import Any

import pytest

from bus.platform import signals
from bus.platform.signals import uninterrupted


class _SignalAt:
    """Runs an empty section, with a signal before the `at`-th line of it that runs in signals.py."""

    def __init__(self, number: signal.Signals, at: int) -> None:
        self._number = number
        self._left = at
        self.line = 0  # where the signal came; 0: the section has fewer lines
        self.handled: list[int] = []

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if number == signal.SIGINT or not uninterrupted.defer(lambda: self.handled.append(number)):
            self.handled.append(number)

    def run(self) -> None:
        handler = signal.signal(self._number, self._handle)
        before = sys.gettrace()
        sys.settrace(self._trace)
        try:
            with uninterrupted:
                pass
        finally:
            sys.settrace(before)
            signal.signal(self._number, handler)

    def _trace(self, frame: FrameType, event: str, argument: Any) -> Any:
        if frame.f_code.co_filename != signals.__file__:
            return None
        if event == "line":
            self._left -= 1
            if self._left == 0:
                self.line = frame.f_lineno
                sys.settrace(None)
                signal.raise_signal(self._number)
        return self._trace


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signal_before_any_line_of_a_section_is_handled_once(number: signal.Signals) -> None:
    at = 0
    while True:
        at += 1
        section = _SignalAt(number, at)
        section.run()
        if not section.line:
            break
        assert section.handled == [number], f"line {section.line}"
    assert at > 10


def test_child_of_a_fork_in_another_thread_has_the_handler_of_the_program() -> None:
    """There the other thread is the main thread, and what the main thread was in has no end."""
    script = """
import os, signal, sys, threading, warnings
from bus.platform.signals import uninterrupted
warnings.simplefilter("ignore")
handler = signal.getsignal(signal.SIGINT)
def fork():
    child = os.fork()
    if child == 0:
        with uninterrupted:
            pass
        os._exit(0 if signal.getsignal(signal.SIGINT) is handler else 3)
    codes.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
codes = []
with uninterrupted:
    thread = threading.Thread(target=fork)
    thread.start()
    thread.join()
sys.exit(codes[0])
"""
    assert subprocess.run([sys.executable, "-c", script], timeout=100, check=False).returncode == 0
