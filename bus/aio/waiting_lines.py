"""The lines of a producer's calls that have to wait, by topic.

Guards two promises: calls of one topic are made in the order in which they joined; and a topic that does not exist yet,
and is waited for, holds up no other one as long as there are lines enough. Used as `WaitingLine` is: only the event
loop's thread may join.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future

from bus.aio.waiting_line import WaitingLine

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
