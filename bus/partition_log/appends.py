"""May this batch be appended, and where does it go.

Guards dense offsets: each accepted batch begins where the last one ended. Decides on counts, sizes, timestamps and
sequences; it never sees a record.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from bus.errors import ErrorCode, Refused
from bus.model import TIMESTAMP_MS_MAX, LogBatch, ProducerStamp, RecordBatch, Step, TimestampType
from bus.partition_log.producers import (
    AppendRest,
    AskTable,
    Found,
    InOrder,
    ProducerStates,
    Repeat,
    decide_match,
    decide_sequence,
)
from bus.partition_log.state import BatchPlaced, PartitionState, check_leader_epoch
from bus.ports import ProducerMatch

ACKS_ALL, ACKS_NONE, ACKS_LEADER = -1, 0, 1


@dataclass(frozen=True, slots=True)
class AppendRules:
    """A topic's configs that bear on an append."""

    record_bytes_max: int
    timestamp_type: TimestampType
    timestamp_before_max_ms: int
    timestamp_after_max_ms: int
    is_key_required: bool = False  # compaction by key would not know what to do with a record without one


def check_acks(acks: int, *, is_transactional: bool = False) -> Refused | None:
    if is_transactional and acks != ACKS_ALL:
        return Refused(ErrorCode.INVALID_REQUIRED_ACKS, f"expected acks -1 (all) with a transactional id, found {acks}")
    if acks in (ACKS_ALL, ACKS_NONE, ACKS_LEADER):
        return None
    return Refused(ErrorCode.INVALID_REQUIRED_ACKS, f"expected acks -1 (all), 0 or 1, found {acks}")


@dataclass(frozen=True, slots=True)
class NoTrace:
    """The producer never wrote to the table."""


TableAnswer = ProducerMatch | NoTrace
AppendDecision = LogBatch | Repeat | Found | AskTable | Refused


def decide_append(
    state: PartitionState,
    batch: RecordBatch,
    rules: AppendRules,
    *,
    now_ms: int,
    current_leader_epoch: int | None,
    producers: ProducerStates,
    answer: TableAnswer | None = None,
) -> Step[BatchPlaced, AppendDecision]:
    """Give the batch the next offsets, or say why not. With LogAppendTime every record has the time `now_ms`.

    A batch of an idempotent producer may be in the log already, as a whole or in part. Then the offsets that it has
    there are the answer, also if the topic's limits have changed since. After `AskTable` decide again, with the
    table's answer.
    """
    refusal = check_leader_epoch(state, current_leader_epoch)
    if refusal is not None:
        return Step(refusal)
    if batch.producer is not None:
        decision = _decide_producer(state, producers, batch, batch.producer, answer)
        if isinstance(decision, AppendRest):
            batch = decision.rest
        elif not isinstance(decision, InOrder):
            return Step(decision)
    refusal = check_batch(batch, rules, now_ms=now_ms)
    if refusal is not None:
        return Step(refusal)
    placed = place_batch(state, batch, rules, now_ms)
    return Step(placed, records=(BatchPlaced(placed.base_offset, placed.next_offset),))


def _decide_producer(
    log: PartitionState,
    producers: ProducerStates,
    batch: RecordBatch,
    stamp: ProducerStamp,
    answer: TableAnswer | None,
) -> InOrder | AppendRest | Repeat | Found | AskTable | Refused:
    state = producers.get(stamp.producer_id)
    forgotten_max = producers.forgotten_max
    match answer:
        case ProducerMatch():
            assert state is not None, f"the table was asked about producer {stamp.producer_id}, which is unknown"
            return decide_match(state, stamp, batch.record_count, answer, log_start=log.log_start)
        case NoTrace():
            forgotten_max = -1
    return decide_sequence(
        state,
        stamp,
        batch.record_count,
        fence=producers.fence_of(stamp.producer_id),
        forgotten_max=forgotten_max,
    )


def check_batch(batch: RecordBatch, rules: AppendRules, *, now_ms: int) -> Refused | None:
    """Check what the topic requires of every batch, in a transaction or not."""
    return _check_keys(batch, rules) or _check_size(batch, rules) or _check_timestamps(batch, rules, now_ms)


def place_batch(state: PartitionState, batch: RecordBatch, rules: AppendRules, now_ms: int) -> LogBatch:
    """The batch with the next offsets, and with the time `now_ms` if the topic has LogAppendTime."""
    is_append_time = rules.timestamp_type is TimestampType.LOG_APPEND_TIME
    has_one_timestamp = is_append_time or not batch.has_timestamps
    return LogBatch(
        base_offset=state.log_end,
        next_offset=state.log_end + batch.record_count,
        record_count=batch.record_count,
        size_bytes=batch.size_bytes,
        leader_epoch=state.leader_epoch,
        timestamp_type=rules.timestamp_type,
        timestamp_ms=(now_ms if is_append_time else batch.timestamp_min_ms) if has_one_timestamp else None,
        timestamp_max_ms=now_ms if is_append_time else batch.timestamp_max_ms,
        columns=batch.columns,
        producer=batch.producer,
    )


def _check_keys(batch: RecordBatch, rules: AppendRules) -> Refused | None:
    if not rules.is_key_required or not batch.keyless_count:
        return None
    return Refused(
        ErrorCode.INVALID_RECORD,
        f"expected a key in every record (cleanup.policy has compact), found {batch.keyless_count} of "
        f"{batch.record_count} without",
    )


def _check_size(batch: RecordBatch, rules: AppendRules) -> Refused | None:
    if batch.record_bytes_max <= rules.record_bytes_max:
        return None
    return Refused(
        ErrorCode.MESSAGE_TOO_LARGE,
        f"expected records of at most {rules.record_bytes_max} bytes (max.message.bytes), "
        f"found one of {batch.record_bytes_max}",
    )


def _check_timestamps(batch: RecordBatch, rules: AppendRules, now_ms: int) -> Refused | None:
    """Check the timestamps (KIP-937): the producer's clock may be off by a configured time. Negative times are refused
    as in Kafka."""
    if rules.timestamp_type is TimestampType.LOG_APPEND_TIME:
        return None
    if batch.timestamp_min_ms < 0:
        return Refused(ErrorCode.INVALID_TIMESTAMP, f"expected timestamps from 0 on, found {batch.timestamp_min_ms}")
    if batch.timestamp_max_ms > TIMESTAMP_MS_MAX:
        return Refused(
            ErrorCode.INVALID_TIMESTAMP,
            f"expected timestamps of at most {TIMESTAMP_MS_MAX} (the year 9999), found {batch.timestamp_max_ms}",
        )
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


FULL_COMMIT_BYTES = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Pacing:
    """The pacing of a partition's commits. Every commit is a version file and a small data file, and native Delta
    readers list them all; so a token bucket allows `burst` commits at once and one per `interval_ms` in the long run. A
    commit that is worth a file of its own (`FULL_COMMIT_BYTES`) never waits: pacing costs latency under load, not
    throughput. 0 <= tokens <= burst. `interval_ms` 0: commits are never paced."""

    interval_ms: int
    burst: int
    tokens: float
    refilled_at_ms: float


def start_pacing(interval_ms: int, burst: int, now_ms: float) -> Pacing:
    return Pacing(interval_ms, burst, float(burst), now_ms)


def refill(pacing: Pacing, now_ms: float) -> Pacing:
    if pacing.interval_ms == 0:
        return pacing
    gained = max(0.0, now_ms - pacing.refilled_at_ms) / pacing.interval_ms
    return replace(pacing, tokens=min(float(pacing.burst), pacing.tokens + gained), refilled_at_ms=now_ms)


def decide_delay_ms(pacing: Pacing, waiting_bytes: int) -> float:
    """How long the next commit has to wait for a token, as of the last `refill`; 0: it may go now."""
    if pacing.interval_ms == 0 or waiting_bytes >= FULL_COMMIT_BYTES or pacing.tokens >= 1:
        return 0.0
    return (1 - pacing.tokens) * pacing.interval_ms


def spend(pacing: Pacing) -> Pacing:
    return pacing if pacing.interval_ms == 0 else replace(pacing, tokens=max(0.0, pacing.tokens - 1))
