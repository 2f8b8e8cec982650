"""The state of a partition's log, and the only ways in which it changes.

Guards the invariant of every reader: offsets below the high watermark are committed, and the high watermark never goes
back. Knows no table and no time; what happened comes in as an event.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from bus.errors import ErrorCode, Refused


@dataclass(frozen=True, slots=True)
class PartitionState:
    """Invariant: 0 <= log_start <= high_watermark <= log_end."""

    log_start: int
    high_watermark: int  # readers see offsets below it
    log_end: int  # offset of the next record; ahead of the high watermark until the placed batches are committed
    leader_epoch: int
    version: int  # the Delta version whose end is the high watermark


@dataclass(frozen=True, slots=True)
class BatchPlaced:
    """Offsets from `base_offset` up to `next_offset` are taken; no reader sees them yet."""

    base_offset: int
    next_offset: int


@dataclass(frozen=True, slots=True)
class CommitSucceeded:
    version: int
    high_watermark: int


@dataclass(frozen=True, slots=True)
class CommitFailed:
    """The commit has failed: none of the placed batches is in the log, and their offsets are given again."""


@dataclass(frozen=True, slots=True)
class LogReloaded:
    """The log was read again and stands here."""

    log_start: int
    high_watermark: int
    version: int


@dataclass(frozen=True, slots=True)
class LogStartAdvanced:
    """Records below `log_start` are gone, by `version`."""

    version: int
    log_start: int


LogEvent = BatchPlaced | CommitSucceeded | CommitFailed | LogReloaded | LogStartAdvanced


def apply(state: PartitionState, event: LogEvent) -> PartitionState:
    """The only way a partition's state changes."""
    match event:
        case BatchPlaced(base_offset, next_offset):
            assert base_offset == state.log_end < next_offset, f"batch at {base_offset}, log end {state.log_end}"
            return replace(state, log_end=next_offset)
        case CommitSucceeded(version, high_watermark):
            assert version > state.version, f"version went from {state.version} to {version}"
            assert state.high_watermark <= high_watermark <= state.log_end, (
                f"high watermark {high_watermark} outside [{state.high_watermark}, {state.log_end}]"
            )
            return replace(state, version=version, high_watermark=high_watermark)
        case CommitFailed():
            return replace(state, log_end=state.high_watermark)
        case LogStartAdvanced(version, log_start):
            assert version > state.version, f"version went from {state.version} to {version}"
            assert state.log_start < log_start <= state.high_watermark, (
                f"log start {log_start} outside ({state.log_start}, {state.high_watermark}]"
            )
            return replace(state, version=version, log_start=log_start)
        case LogReloaded(log_start, high_watermark, version):
            assert high_watermark >= state.high_watermark, (
                f"high watermark went back from {state.high_watermark} to {high_watermark}"
            )
            assert version >= state.version, f"version went back from {state.version} to {version}"
            return replace(
                state, log_start=log_start, high_watermark=high_watermark, log_end=high_watermark, version=version
            )


def check_leader_epoch(state: PartitionState, current_leader_epoch: int | None) -> Refused | None:
    """KIP-320: a client that knows an older epoch must refresh, one that knows a newer one must ask again later."""
    if current_leader_epoch is None or current_leader_epoch == state.leader_epoch:
        return None
    older = current_leader_epoch < state.leader_epoch
    return Refused(
        ErrorCode.FENCED_LEADER_EPOCH if older else ErrorCode.UNKNOWN_LEADER_EPOCH,
        f"expected leader epoch {state.leader_epoch}, found {current_leader_epoch}",
    )
