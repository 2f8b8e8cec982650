"""Tracking of the offset of a partition that may be committed while its records are finished in any order, and the time
to commit it.

Guards one promise: an offset is committed only when every record below it is done. The records of a partition are
noted in the order of their offsets; gaps, which compaction leaves, do not matter. `CommitPacing` has the ack modes,
which differ in how much may come again after a crash.
"""

from __future__ import annotations

from collections import deque

from bus.processing.settings import ProcessingSettings


class OffsetTracker:
    def __init__(self) -> None:
        # Ascending, each a record or a batch: first and last offset, how many records. The first one is not done.
        self._open: deque[tuple[int, int, int]] = deque()
        self._span = 0
        self._done: set[int] = set()  # above the first open one
        self._next: int | None = None  # offset after the last record such that all up to it are done
        self._committed: int | None = None
        self._bound: int | None = None  # no offset above it is committed

    @property
    def last(self) -> int:
        """The offset of the record that came last; -1 before the first one."""
        return self._open[-1][1] if self._open else (self._next or 0) - 1

    def deliver(self, offset: int, last: int | None = None, count: int = 1) -> None:
        """A record came, or a batch of `count` up to `last`, which is done as one. Offsets only grow."""
        assert offset > self.last, f"offset {offset} came after {self.last}"
        self._open.append((offset, offset if last is None else last, count))
        self._span += count

    def finish(self, offset: int) -> bool:
        """The record, or the batch that begins there, is done; False if it was so before."""
        if not self._open or offset < self._open[0][0] or offset in self._done:
            return False
        self._done.add(offset)
        while self._open and self._open[0][0] in self._done:
            first, last, count = self._open.popleft()
            self._next = last + 1
            self._span -= count
            self._done.remove(first)
        return True

    @property
    def span(self) -> int:
        """How many records are remembered: those that are not done, and done ones behind them."""
        return self._span

    @property
    def to_commit(self) -> int | None:
        """The offset of the next record to read after everything that is done; None if that is committed."""
        end = self._next if self._next is None or self._bound is None else min(self._next, self._bound)
        return None if end == self._committed else end

    def hold(self, offset: int) -> None:
        """Its record is not done after all, and never will be: nothing is committed that passes it."""
        self._bound = offset if self._bound is None else min(self._bound, offset)

    @property
    def position(self) -> int | None:
        """The offset to continue from if unfinished records are to be read again; None before the first record."""
        if self._next is None:
            return self._open[0][0] if self._open else None
        return self._next if self._bound is None else min(self._next, self._bound)

    def note_committed(self, offset: int) -> None:
        assert self._next is not None, f"{offset} was committed, nothing is done"
        assert offset <= self._next, f"{offset} was committed, all below {self._next} is done"
        self._committed = offset


class CommitPacing:
    """The ack modes. `record` and `manual_immediate` commit as soon as anything can be committed; `batch` and `manual`
    when all records of a poll are handled, and when there is nothing to do; `time`, `count` and `count_time` after a
    time, after a number of records, or whichever is first."""

    def __init__(self, settings: ProcessingSettings, now_ms: int) -> None:
        self._settings = settings
        self._finished_count = 0  # since the last commit
        self._last_commit_ms = now_ms
        self._is_batch_over = False

    def note_finished(self, count: int = 1) -> None:
        self._finished_count += count

    def note_batch_over(self) -> None:
        self._is_batch_over = True

    def note_committed(self, now_ms: int) -> None:
        self._finished_count = 0
        self._last_commit_ms = now_ms
        self._is_batch_over = False

    def is_due(self, now_ms: int, *, is_idle: bool) -> bool:
        """True if existing offsets are to be committed now."""
        match self._settings.ack:
            case "record" | "manual_immediate":
                return True
            case "batch" | "manual":
                return self._is_batch_over or is_idle
            case "time":
                return self._is_time_over(now_ms)
            case "count":
                return self._is_count_reached()
            case "count_time":
                return self._is_count_reached() or self._is_time_over(now_ms)

    def next_due_ms(self) -> int | None:
        """When time alone makes a commit due; None: it never does."""
        if self._settings.ack in ("time", "count_time"):
            return self._last_commit_ms + self._settings.ack_time_ms
        return None

    def _is_time_over(self, now_ms: int) -> bool:
        return now_ms >= self._last_commit_ms + self._settings.ack_time_ms

    def _is_count_reached(self) -> bool:
        return self._finished_count >= self._settings.ack_count
