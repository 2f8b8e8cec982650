"""Clocks at the seams of running code: when a function was called and answered, and the processor time in between.

Guards one promise: only clocks are added, about a microsecond a call; the path is the one that ships. A seam that is
not there any more is an `AttributeError` at the start, not a zero in a table.
"""

from __future__ import annotations

import functools
import threading
import time
from collections import defaultdict
from typing import Any

now = time.perf_counter


class Seams:
    """`readings`, `wall` and `cpu` seconds by name; `own_cpu` is without what inner seams took, and by whether the
    thread was the main one."""

    def __init__(self) -> None:
        self.readings: dict[str, list[float]] = defaultdict(list)
        self.wall: dict[str, float] = defaultdict(float)
        self.cpu: dict[str, float] = defaultdict(float)
        self.own_cpu: dict[tuple[str, bool], float] = defaultdict(float)
        self._inner = threading.local()

    def around(self, owner: Any, name: str, *, begins: str | None = None, ends: str | None = None) -> None:
        """Read the clock before and after each call of `owner.name`."""
        original = getattr(owner, name)
        inner = self._inner

        @functools.wraps(original)
        def timed(*arguments: Any, **named: Any) -> Any:
            outer_inner, inner.cpu = getattr(inner, "cpu", 0.0), 0.0
            cpu, started = time.thread_time(), now()
            if begins is not None:
                self.readings[begins].append(started)
            try:
                return original(*arguments, **named)
            finally:
                ended = now()
                used = time.thread_time() - cpu
                self.wall[name] += ended - started
                self.cpu[name] += used
                self.own_cpu[name, threading.current_thread() is threading.main_thread()] += used - inner.cpu
                inner.cpu = outer_inner + used
                if ends is not None:
                    self.readings[ends].append(ended)

        setattr(owner, name, timed)
