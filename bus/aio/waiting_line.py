"""Calls that have to wait, made one after another by one thread, so that whoever lined them up need not.

Guards one promise: calls are made in the order in which they joined, each once, or abandoned. Only one thread, the
event loop's, may join; `length` is never too small there.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

logger = logging.getLogger(__name__)

Call = Callable[[], object]


class WaitingLine:
    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="bus-aio-producer")
        self._waiting: deque[tuple[Call, Call]] = deque()
        self._is_called = False  # the thread was asked to look, and has not yet
        # How many so far. Each is written under the hand of one thread only; who was abandoned is never served.
        self.joined = 0
        self.served = 0

    @property
    def length(self) -> int:
        """How many wait, the one whose call is being made included."""
        return self.joined - self.served

    def join(self, call: Call, abandon: Call) -> None:
        """`call` is made on the line's thread, or `abandon` by `end`. Neither may raise."""
        self.joined += 1
        # First join, then ask: whoever finds `_is_called` set knows that the thread looks afterwards.
        self._waiting.append((call, abandon))
        if not self._is_called:
            self._is_called = True
            self._thread.submit(self._serve)

    def mark(self) -> Future[None]:
        """Done when everybody who is in line now was served or abandoned."""
        marker: Future[None] = Future()
        if self.length == 0:
            marker.set_result(None)
        else:
            self.join(lambda: marker.set_result(None), lambda: marker.set_result(None))
        return marker

    def _serve(self) -> None:
        self._is_called = False
        while self._waiting:
            try:
                call, _ = self._waiting.popleft()
            except IndexError:  # abandoned in between
                return
            try:
                call()
            except BaseException:  # the thread's edge: the others must have their turn
                logger.exception("a call in line failed")
            finally:
                self.served += 1

    def end(self) -> None:
        """Abandon who still waits; nobody may join any more. A call that is being made goes on. From any thread."""
        while self._waiting:
            try:
                _, abandon = self._waiting.popleft()
            except IndexError:  # its turn came in between
                break
            abandon()
        self._thread.shutdown(wait=False)
