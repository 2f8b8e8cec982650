"""When the offsets of what is done are committed: the ack modes.

Guards what each mode says of how much may come again after a crash. `record` and `manual_immediate`: as soon as
anything can be committed. `batch` and `manual`: when all records of a poll are handled, and when there is nothing to
do. `time`, `count`, `count_time`: after so long, after so many records, whichever is first. In no mode is anything
committed before all below it is done; that is the tracker's.
"""

from __future__ import annotations

from bus.processing.settings import ProcessingSettings


class CommitPacing:
    def __init__(self, settings: ProcessingSettings, now_ms: int) -> None:
        self._settings = settings
        self._finished_count = 0  # since the last commit
        self._last_commit_ms = now_ms
        self._is_batch_over = False

    def note_finished(self) -> None:
        self._finished_count += 1

    def note_batch_over(self) -> None:
        self._is_batch_over = True

    def note_committed(self, now_ms: int) -> None:
        self._finished_count = 0
        self._last_commit_ms = now_ms
        self._is_batch_over = False

    def is_due(self, now_ms: int, *, is_idle: bool) -> bool:
        """Of offsets that there are."""
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
