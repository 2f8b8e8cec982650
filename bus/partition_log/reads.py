"""Visibility for readers: fetches at a leader and at a follower, and the special timestamps of ListOffsets.

Guards two promises. No reader sees an uncommitted record: every answer ends at the high watermark. And what a reader
has seen stays true wherever it asks next: a broker that does not know the Delta version that the reader has seen gives
no answer from an earlier one, so neither the high watermark nor the log start of a reader goes back.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from bus.errors import ErrorCode, Refused, show_range
from bus.model import EARLIEST_TIMESTAMP, LATEST_TIMESTAMP, MAX_TIMESTAMP
from bus.partition_log.state import PartitionState, check_leader_epoch


class Readable(NamedTuple):  # a tuple: one is made for each partition of each fetch
    """Records from `offset` up to, but not including, `end_offset`; none yet if they are equal."""

    offset: int
    end_offset: int


@dataclass(frozen=True, slots=True)
class NotYet:
    """Nothing may be read here for now. That passes as soon as this broker knows more of the log; `refused` is the
    answer if it does not in time."""

    refused: Refused


def decide_fetch(
    state: PartitionState, offset: int, current_leader_epoch: int | None, seen_version: int | None = None
) -> Readable | NotYet | Refused:
    """Decide a fetch at a leader. An offset that was given but is not committed yet is no error: there is nothing to
    read there for now. `seen_version`: the newest version that the reader has seen, None if it has seen none."""
    refusal = check_leader_epoch(state, current_leader_epoch)
    if refusal is not None:
        return refusal
    if seen_version is not None and seen_version > state.version:
        return _not_yet(f"version {seen_version} of the log", f"version {state.version}")
    if not state.log_start <= offset <= state.log_end:
        return refuse_offset(state, offset)
    return Readable(offset, max(offset, state.high_watermark))


def decide_follower_fetch(
    state: PartitionState, offset: int, current_leader_epoch: int | None, seen_version: int | None
) -> Readable | NotYet | Refused:
    """Decide a fetch at a follower (KIP-392), whose `state` may be behind the leader's: the follower cannot tell
    whether an offset beyond its high watermark exists, so it must assume so."""
    refusal = check_leader_epoch(state, current_leader_epoch)
    if refusal is not None:
        return refusal
    if seen_version is not None and seen_version > state.version:
        return _not_yet(f"version {seen_version} of the log", f"version {state.version}")
    if offset > state.high_watermark:
        return _not_yet(f"offset {offset}", f"the high watermark {state.high_watermark}")
    if offset < state.log_start:
        return refuse_offset(state, offset)
    return Readable(offset, state.high_watermark)


def _not_yet(expected: str, found: str) -> NotYet:
    return NotYet(Refused(ErrorCode.OFFSET_NOT_AVAILABLE, f"expected {expected} to be known here, found {found}"))


def refuse_offset(state: PartitionState, offset: int) -> Refused:
    """It is outside the log."""
    return Refused(
        ErrorCode.OFFSET_OUT_OF_RANGE,
        f"expected an offset {show_range(state.log_start, state.high_watermark)}, found {offset}",
    )


@dataclass(frozen=True, slots=True)
class ListedOffset:
    """`offset` -1: there is no such record. `timestamp_ms` -1: the offset is a bound, not a record."""

    offset: int
    timestamp_ms: int
    leader_epoch: int


@dataclass(frozen=True, slots=True)
class SearchTimestamp:
    """The table has to be asked for the first record at or after `timestamp_ms`; None asks for the largest."""

    timestamp_ms: int | None


def decide_list_offsets(
    state: PartitionState, timestamp_ms: int, current_leader_epoch: int | None
) -> ListedOffset | SearchTimestamp | Refused:
    refusal = check_leader_epoch(state, current_leader_epoch)
    if refusal is not None:
        return refusal
    if timestamp_ms == LATEST_TIMESTAMP:
        return ListedOffset(state.high_watermark, -1, state.leader_epoch)
    if timestamp_ms == EARLIEST_TIMESTAMP:
        return ListedOffset(state.log_start, -1, state.leader_epoch)
    if timestamp_ms == MAX_TIMESTAMP:
        return SearchTimestamp(None)
    if timestamp_ms < 0:
        return Refused(
            ErrorCode.INVALID_REQUEST,
            f"expected a timestamp in milliseconds, -1 (latest), -2 (earliest) or -3 (largest), found {timestamp_ms}",
        )
    return SearchTimestamp(timestamp_ms)
