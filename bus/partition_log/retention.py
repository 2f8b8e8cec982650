"""Deletion of records by retention and by DeleteRecords.

Guards two promises: only records at the start of the log are deleted, and none before it is due. A file's time is its
largest timestamp, but never later than its commit: a record from the future keeps nothing forever, and since files are
deleted as a whole, a record from the past takes nothing with it. The clock of retention runs at most twice as fast as
time passes, so a clock that jumps ahead by a day deletes nothing at once, and the operator has half a day to correct
it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from bus.errors import ErrorCode, Refused
from bus.ports import LogFile, LogState

NO_BOUND = -1
TO_HIGH_WATERMARK = -1


@dataclass(frozen=True, slots=True)
class RetentionRules:
    """-1: no bound."""

    retention_ms: int  # retention.ms
    retention_bytes: int  # retention.bytes


@dataclass(frozen=True, slots=True)
class Retained:
    """The log is to start at `log_start`: `file_count` files end at or below it."""

    log_start: int
    file_count: int
    reason: str


def decide_retention(files: Sequence[LogFile], rules: RetentionRules, *, now_ms: int) -> Retained | None:
    """Decide which of `files`, all live ones, to delete: whole files from the first on, as long as each is due by
    itself, by age, or because the rest without it is still as large as `retention.bytes`. All of them may go. None:
    nothing is due."""
    excess_bytes = sum(file.size_bytes for file in files) - rules.retention_bytes
    count = 0
    is_by_size = False
    for file in files:
        is_old = rules.retention_ms != NO_BOUND and now_ms - time_ms_of(file) > rules.retention_ms
        is_excess = rules.retention_bytes != NO_BOUND and excess_bytes >= file.size_bytes
        if not is_old and not is_excess:
            break
        excess_bytes -= file.size_bytes
        is_by_size = is_by_size or not is_old
        count += 1
    if not count:
        return None
    reason = f"retention.bytes={rules.retention_bytes}" if is_by_size else f"retention.ms={rules.retention_ms}"
    return Retained(files[count - 1].next_offset, count, reason)


def time_ms_of(file: LogFile) -> int:
    """When its newest record was written, as far as that can be believed. A file without records has no timestamp."""
    return min(file.timestamp_max_ms, file.appended_ms) if file.record_count else file.appended_ms


def decide_delete_records(log: LogState, offset: int, *, may_delete: bool) -> int | Refused:
    """Return the new start of the log, which may be the present one. `offset` -1: at the high watermark."""
    if not may_delete:
        return Refused(
            ErrorCode.POLICY_VIOLATION, "expected a topic with cleanup.policy=delete or none, found compact alone"
        )
    wanted = log.high_watermark if offset == TO_HIGH_WATERMARK else offset
    if not 0 <= wanted <= log.high_watermark:
        return Refused(
            ErrorCode.OFFSET_OUT_OF_RANGE,
            f"expected an offset from 0 to the high watermark, {log.high_watermark}, or -1 for it, found {offset}",
        )
    return max(wanted, log.log_start)


@dataclass(frozen=True, slots=True)
class RetentionTime:
    """`now_ms` is what retention takes the wall clock to say at the monotonic time `read_at_ms`."""

    now_ms: int
    read_at_ms: int


def read_time(before: RetentionTime | None, *, wall_ms: int, monotonic_ms: int) -> RetentionTime:
    """Return the wall clock's time, but ahead of `before` by at most twice the time that has passed since. A clock that
    goes back is followed at once: then records only stay longer. `before` None: there is no earlier time, and the clock
    is believed."""
    if before is None:
        return RetentionTime(wall_ms, monotonic_ms)
    ahead_max_ms = 2 * max(0, monotonic_ms - before.read_at_ms)
    return RetentionTime(min(wall_ms, before.now_ms + ahead_max_ms), monotonic_ms)
