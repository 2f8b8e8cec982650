"""Where the time of a commit went, for the line that the log has of it at DEBUG."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from bus.runtime.partitions.partition_queue import WaitingBatch, WaitingTransaction


@dataclass(slots=True)
class CommitTimes:
    """Of the commit that is due, by a monotonic clock: `due_ms <= turn_ms <= write_ms`. What a commit takes up was
    queued before it had its turn."""

    due_ms: float = 0.0  # the pace of commits lets it begin
    turn_ms: float = 0.0  # it is among the partitions that commit now
    write_ms: float = 0.0  # its records have their offsets, and the table is asked to append them

    def describe(self, waiting: Sequence[WaitingBatch | WaitingTransaction], done_ms: float) -> str:
        """Of a commit that took up `waiting`, from the first of them on; empty if that was queued while nothing was
        logged."""
        if not waiting or waiting[0].queued_ms is None:
            return ""
        queued_ms = waiting[0].queued_ms
        total, turn = done_ms - queued_ms, self.turn_ms - max(self.due_ms, queued_ms)
        write = done_ms - self.write_ms
        return f" in {total:.1f} ms: {total - turn - write:.1f} queued, {turn:.1f} for a turn, {write:.1f} writing"
