"""Tell by the mark of a transactional id in a partition whether a transaction is in the log, or may still come.

The mark is the last of `applied_version` and `aborted_version` that the log has of the id. Numbers rise, so as a rule a
mark above that of a transaction says that it has ended. But a mark may be of an earlier life of the id, whose numbers
began at a clock that was ahead. Guards one promise: a transaction counts as applied only if rows of its producer, with
its epoch or a later one, have come into this log.
"""

from __future__ import annotations

from enum import Enum

from bus.ports import AppliedTransaction


class Ending(Enum):
    OPEN = "open"  # nothing in the log says that it has ended
    APPLIED = "applied"  # its rows are in the log
    GIVEN_UP = "given up"  # its rows are not in the log, and never will be
    LATER = "later"  # later transactions of its producer are in the log
    OVERTAKEN = "overtaken"  # the mark is not of its producer: its rows are not in the log, and must not come


def judge(applied: AppliedTransaction, mark: int, has_written: bool | None) -> Ending:
    """Judge the end of a transaction by its mark. `has_written`: the answer of `TableTransactions.has_written`. A
    forgotten producer counts in favour of the transaction: it was idle for long, and an id that has just begun again
    has a new producer id."""
    if mark < applied.aborted_version:
        return Ending.OPEN
    if mark == applied.aborted_version:
        return Ending.GIVEN_UP
    if has_written is False:
        return Ending.OVERTAKEN
    return Ending.APPLIED if mark == applied.applied_version else Ending.LATER


def number_of(mark: int) -> int:
    """Return the number of the transaction that the mark is of."""
    return mark // 2
