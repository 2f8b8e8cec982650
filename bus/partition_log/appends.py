"""May this batch be appended, and where does it go.

Guards dense offsets: each accepted batch begins where the last one ended. Decides on counts, sizes and timestamps;
it never sees a record.
"""

from __future__ import annotations

from dataclasses import dataclass

from bus.errors import ErrorCode, Refused
from bus.model import LogBatch, RecordBatch, Step, TimestampType
from bus.partition_log.state import BatchPlaced, PartitionState, check_leader_epoch

ACKS_ALL, ACKS_NONE, ACKS_LEADER = -1, 0, 1


@dataclass(frozen=True, slots=True)
class AppendRules:
    """A topic's configs that bear on an append."""

    record_bytes_max: int
    timestamp_type: TimestampType
    timestamp_before_max_ms: int
    timestamp_after_max_ms: int


def check_acks(acks: int) -> Refused | None:
    if acks in (ACKS_ALL, ACKS_NONE, ACKS_LEADER):
        return None
    return Refused(ErrorCode.INVALID_REQUIRED_ACKS, f"expected acks -1 (all), 0 or 1, found {acks}")


def decide_append(
    state: PartitionState, batch: RecordBatch, rules: AppendRules, *, now_ms: int, current_leader_epoch: int | None
) -> Step[BatchPlaced, LogBatch | Refused]:
    """Give the batch the next offsets, or say why not. With LogAppendTime every record has the time `now_ms`."""
    refusal = (
        check_leader_epoch(state, current_leader_epoch)
        or _check_size(batch, rules)
        or _check_timestamps(batch, rules, now_ms)
    )
    if refusal is not None:
        return Step(refusal)
    base_offset, next_offset = state.log_end, state.log_end + batch.record_count
    is_append_time = rules.timestamp_type is TimestampType.LOG_APPEND_TIME
    has_one_timestamp = is_append_time or not batch.has_timestamps
    placed = LogBatch(
        base_offset=base_offset,
        next_offset=next_offset,
        record_count=batch.record_count,
        size_bytes=batch.size_bytes,
        leader_epoch=state.leader_epoch,
        timestamp_type=rules.timestamp_type,
        timestamp_ms=(now_ms if is_append_time else batch.timestamp_min_ms) if has_one_timestamp else None,
        timestamp_max_ms=now_ms if is_append_time else batch.timestamp_max_ms,
        columns=batch.columns,
    )
    return Step(placed, records=(BatchPlaced(base_offset, next_offset),))


def _check_size(batch: RecordBatch, rules: AppendRules) -> Refused | None:
    if batch.record_bytes_max <= rules.record_bytes_max:
        return None
    return Refused(
        ErrorCode.MESSAGE_TOO_LARGE,
        f"expected records of at most {rules.record_bytes_max} bytes (max.message.bytes), "
        f"found one of {batch.record_bytes_max}",
    )


def _check_timestamps(batch: RecordBatch, rules: AppendRules, now_ms: int) -> Refused | None:
    """KIP-937: the producer's clock may be off by so much and no more. Negative times are refused as in Kafka."""
    if rules.timestamp_type is TimestampType.LOG_APPEND_TIME:
        return None
    if batch.timestamp_min_ms < 0:
        return Refused(ErrorCode.INVALID_TIMESTAMP, f"expected timestamps from 0 on, found {batch.timestamp_min_ms}")
    if now_ms - batch.timestamp_min_ms > rules.timestamp_before_max_ms:
        return Refused(
            ErrorCode.INVALID_TIMESTAMP,
            f"expected timestamps at most {rules.timestamp_before_max_ms} ms (message.timestamp.before.max.ms) before "
            f"the broker's {now_ms}, found {batch.timestamp_min_ms}",
        )
    if batch.timestamp_max_ms - now_ms > rules.timestamp_after_max_ms:
        return Refused(
            ErrorCode.INVALID_TIMESTAMP,
            f"expected timestamps at most {rules.timestamp_after_max_ms} ms (message.timestamp.after.max.ms) after "
            f"the broker's {now_ms}, found {batch.timestamp_max_ms}",
        )
    return None
