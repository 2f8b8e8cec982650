"""A producer's calls that have to wait, in lines by topic, so that the event loop need not.

Guards two promises: calls of one topic are made in the order in which they joined, each once, or abandoned; and a topic
that does not exist yet, and is waited for, holds up no other one as long as there are lines enough. Only one thread,
the event loop's, may join; `length` is never too small there.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

from bus.reentry import logger_of

logger = logger_of(__name__)

Call = Callable[[], object]


class WaitingLine:
    """Calls that one thread makes one after another."""

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
        # First join, then ask: a caller that finds `_is_called` set knows that the thread looks afterwards.
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
        """Abandon the callers that wait; none may join any more. A call that is being made goes on. From any thread."""
        while self._waiting:
            try:
                _, abandon = self._waiting.popleft()
            except IndexError:  # its turn came in between
                break
            abandon()
        self._thread.shutdown(wait=False)


_LINES_MAX = 16  # each is a thread, once a call has waited in it


class WaitingLines:
    def __init__(self, lines_max: int = _LINES_MAX) -> None:
        self._lines_max = lines_max
        self._lines: list[WaitingLine] = []
        self._last: dict[str, tuple[WaitingLine, int]] = {}  # of each topic: its line, and its last call's number there

    @property
    def length(self) -> int:
        """How many wait, those whose calls are being made included."""
        return sum(line.length for line in self._lines)

    def has(self, topic: str) -> bool:
        """A call of this topic waits."""
        return self._line_of(topic) is not None

    def _line_of(self, topic: str) -> WaitingLine | None:
        found = self._last.get(topic)
        if found is None:
            return None
        line, number = found
        if line.served >= number:
            del self._last[topic]
            return None
        return line

    def join(self, topic: str, call: Callable[[], object], abandon: Callable[[], object]) -> None:
        """As `WaitingLine.join`, behind the calls of the same topic."""
        line = self._line_of(topic) or self._shortest()
        line.join(call, abandon)
        self._last[topic] = line, line.joined

    def _shortest(self) -> WaitingLine:
        if all(line.length for line in self._lines) and len(self._lines) < self._lines_max:
            self._lines.append(WaitingLine())
        return min(self._lines, key=lambda line: line.length)

    def mark(self) -> list[Future[None]]:
        """Done when everybody who is in line now was served or abandoned."""
        return [line.mark() for line in self._lines]

    def end(self) -> None:
        """Abandon the calls that still wait; no other may join. Calls that are being made go on. From any thread."""
        for line in self._lines:
            line.end()
