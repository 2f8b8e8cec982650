"""Finds what holds an event loop: each callback that takes more processor time than it should, and where it was.

Processor time of the loop's own thread is counted, so that a busy machine, which takes the processor away, causes no
finding. The garbage collector's time is left out: it grows with the objects of the whole process, which in a test
session are those of all tests before. A sampler looks at the thread's stack meanwhile, so that a finding names the code
and not only the callback.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import sys
import threading
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

_SAMPLE_S = 0.01


@dataclass(slots=True)
class Hold:
    """A callback that took `processor_s`. `stacks`: where it was, as often as it was looked at."""

    callback: str
    processor_s: float
    stacks: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        seen = "\n".join(self.stacks[-2:])
        return f"{self.processor_s * 1000:.0f} ms in {self.callback}\n{seen}"


class LoopWatch:
    """The callbacks of one loop that took longer than `processor_s_max`, since `clear`."""

    def __init__(self, processor_s_max: float) -> None:
        self._processor_s_max = processor_s_max
        self._lock = threading.Lock()
        self._holds: list[Hold] = []
        self._running: tuple[int, float] | None = None  # the loop's thread, and when its callback began
        self._stacks: list[str] = []
        self._collecting_since_s = 0.0
        self._collected_s = 0.0  # by the garbage collector, within the callback that runs

    @property
    def holds(self) -> list[Hold]:
        with self._lock:
            return list(self._holds)

    def clear(self) -> None:
        with self._lock:
            self._holds.clear()

    def run(self, handle: asyncio.Handle, run: Any) -> None:
        begun = time.thread_time()
        self._stacks = []
        self._collected_s = 0.0
        self._running = (threading.get_ident(), time.perf_counter())
        run(handle)
        self._running = None
        took = time.thread_time() - begun - self._collected_s
        if took > self._processor_s_max:
            with self._lock:
                self._holds.append(Hold(_described(handle), took, self._stacks))

    def count_collection(self, phase: str, _: dict[str, int]) -> None:
        """Count a collection, as an entry of `gc.callbacks`."""
        if self._running is None or self._running[0] != threading.get_ident():
            return
        if phase == "start":
            self._collecting_since_s = time.thread_time()
        else:
            self._collected_s += time.thread_time() - self._collecting_since_s

    def sample(self, ended: threading.Event) -> None:
        while not ended.wait(_SAMPLE_S):
            running = self._running
            if running is None or time.perf_counter() - running[1] < self._processor_s_max / 2:
                continue
            frame = sys._current_frames().get(running[0])
            if frame is not None:
                # The loop goes on meanwhile, and a frame that it has left may be anything.
                with contextlib.suppress(AttributeError):
                    self._stacks.append("".join(traceback.format_stack(frame)[-6:]))


def _described(handle: asyncio.Handle) -> str:
    """Not its `repr`, which spells out results, of which some are answers of many megabytes."""
    callback: Any = handle._callback  # type: ignore[attr-defined]
    task = getattr(callback, "__self__", None)
    return (
        task.get_name()
        if isinstance(task, asyncio.Task)
        else getattr(callback, "__qualname__", type(callback).__name__)
    )


@contextmanager
def watched_loops(*, processor_s_max: float, thread: str) -> Iterator[LoopWatch]:
    """Watches the loops that run in the thread of that name while the block does."""
    watch = LoopWatch(processor_s_max)
    original = asyncio.Handle._run
    ended = threading.Event()

    def run(handle: asyncio.Handle) -> None:
        if threading.current_thread().name == thread:
            watch.run(handle, original)
        else:
            original(handle)

    sampler = threading.Thread(target=watch.sample, args=(ended,), name="loop-watch", daemon=True)
    asyncio.Handle._run = run  # type: ignore[method-assign]
    gc.callbacks.append(watch.count_collection)
    sampler.start()
    try:
        yield watch
    finally:
        gc.callbacks.remove(watch.count_collection)
        asyncio.Handle._run = original  # type: ignore[method-assign]
        ended.set()
        sampler.join()
