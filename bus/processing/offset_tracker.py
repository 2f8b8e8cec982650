"""Which offset of a partition may be committed while its records are finished in any order.

Guards one promise: an offset is committed only when every record below it is done. The records of a partition are
noted in the order of their offsets; gaps, which compaction leaves, do not matter.
"""

from __future__ import annotations

from collections import deque


class OffsetTracker:
    def __init__(self) -> None:
        self._open: deque[int] = deque()  # ascending; the first one is not done
        self._done: set[int] = set()  # above the first open one
        self._next: int | None = None  # offset after the last record such that all up to it are done
        self._committed: int | None = None

    def deliver(self, offset: int) -> None:
        """A record came. Offsets only grow."""
        last = self._open[-1] if self._open else (self._next or 0) - 1
        assert offset > last, f"offset {offset} came after {last}"
        self._open.append(offset)

    def finish(self, offset: int) -> bool:
        """Its record is done; False if it was so before."""
        if not self._open or offset < self._open[0] or offset in self._done:
            return False
        self._done.add(offset)
        while self._open and self._open[0] in self._done:
            self._next = self._open.popleft() + 1
            self._done.remove(self._next - 1)
        return True

    @property
    def outstanding(self) -> int:
        """How many records came and are not done."""
        return len(self._open) - len(self._done)

    @property
    def span(self) -> int:
        """How many records are remembered: those that are not done, and done ones behind them."""
        return len(self._open)

    @property
    def to_commit(self) -> int | None:
        """The offset of the next record to read after everything that is done; None if that is committed."""
        return None if self._next == self._committed else self._next

    @property
    def position(self) -> int | None:
        """Where to go on, should what is not done be read again; None before the first record."""
        return self._next if self._next is not None or not self._open else self._open[0]

    def note_committed(self, offset: int) -> None:
        assert self._next is not None, f"{offset} was committed, nothing is done"
        assert offset <= self._next, f"{offset} was committed, all below {self._next} is done"
        self._committed = offset
