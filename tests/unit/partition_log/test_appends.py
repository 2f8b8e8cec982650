from __future__ import annotations

from dataclasses import replace

import pytest

from bus.errors import ErrorCode, Refused
from bus.model import LogBatch, RecordBatch, TimestampType
from bus.partition_log.appends import AppendRules, check_acks, decide_append
from bus.partition_log.producers import ProducerStates
from bus.partition_log.state import BatchPlaced, PartitionState, apply

NOW_MS = 1_000_000
STATE = PartitionState(log_start=0, high_watermark=5, log_end=7, leader_epoch=3, version=2)
RULES = AppendRules(
    record_bytes_max=100,
    timestamp_type=TimestampType.CREATE_TIME,
    timestamp_before_max_ms=10_000,
    timestamp_after_max_ms=1_000,
)
BATCH = RecordBatch(
    record_count=4,
    size_bytes=400,
    record_bytes_max=100,
    timestamp_min_ms=NOW_MS - 5,
    timestamp_max_ms=NOW_MS,
    has_timestamps=True,
    columns=None,
)


def decide(batch: RecordBatch = BATCH, rules: AppendRules = RULES, epoch: int | None = None):  # type: ignore[no-untyped-def]
    return decide_append(STATE, batch, rules, now_ms=NOW_MS, current_leader_epoch=epoch, producers=ProducerStates())


def refusal_of(batch: RecordBatch = BATCH, rules: AppendRules = RULES, epoch: int | None = None) -> Refused:
    step = decide(batch, rules, epoch)
    assert isinstance(step.response, Refused)
    assert step.records == ()
    return step.response


def test_batch_takes_the_offsets_from_the_log_end_not_from_the_high_watermark() -> None:
    step = decide()
    assert isinstance(step.response, LogBatch)
    assert (step.response.base_offset, step.response.next_offset) == (7, 11)
    assert step.records == (BatchPlaced(7, 11),)
    assert apply(STATE, step.records[0]).log_end == 11
    assert apply(STATE, step.records[0]).high_watermark == 5


def test_producer_timestamps_stay_in_their_column() -> None:
    assert decide().response.timestamp_ms is None


def test_batch_without_timestamps_has_one_for_all_records() -> None:
    batch = replace(BATCH, has_timestamps=False, timestamp_min_ms=NOW_MS)
    assert decide(batch).response.timestamp_ms == NOW_MS


def test_log_append_time_overrides_whatever_the_producer_said() -> None:
    rules = replace(RULES, timestamp_type=TimestampType.LOG_APPEND_TIME)
    ancient = replace(BATCH, timestamp_min_ms=-1, timestamp_max_ms=NOW_MS * 100)
    response = decide(ancient, rules).response
    assert (response.timestamp_ms, response.timestamp_max_ms) == (NOW_MS, NOW_MS)
    assert response.timestamp_type is TimestampType.LOG_APPEND_TIME


def test_record_of_exactly_the_limit_is_taken_and_one_byte_more_is_refused() -> None:
    assert isinstance(decide().response, LogBatch)
    assert refusal_of(replace(BATCH, record_bytes_max=101)).code is ErrorCode.MESSAGE_TOO_LARGE


@pytest.mark.parametrize(
    ("minimum", "maximum", "is_taken"),
    [
        (NOW_MS - 10_000, NOW_MS, True),
        (NOW_MS - 10_001, NOW_MS, False),
        (NOW_MS, NOW_MS + 1_000, True),
        (NOW_MS, NOW_MS + 1_001, False),
        (-1, NOW_MS, False),
    ],
)
def test_timestamps_are_bounded_on_both_sides(minimum: int, maximum: int, is_taken: bool) -> None:
    response = decide(replace(BATCH, timestamp_min_ms=minimum, timestamp_max_ms=maximum)).response
    if is_taken:
        assert isinstance(response, LogBatch)
    else:
        assert response.code is ErrorCode.INVALID_TIMESTAMP
        assert "found" in response.message


def test_leader_epoch_is_checked_in_both_directions() -> None:
    assert isinstance(decide(epoch=3).response, LogBatch)
    assert refusal_of(epoch=2).code is ErrorCode.FENCED_LEADER_EPOCH
    assert refusal_of(epoch=4).code is ErrorCode.UNKNOWN_LEADER_EPOCH


def test_stale_epoch_is_fenced_before_the_batch_is_looked_at() -> None:
    assert refusal_of(replace(BATCH, record_bytes_max=1_000), epoch=2).code is ErrorCode.FENCED_LEADER_EPOCH


@pytest.mark.parametrize("acks", [-2, 2, 100])
def test_other_acks_are_refused(acks: int) -> None:
    refusal = check_acks(acks)
    assert refusal is not None
    assert refusal.code is ErrorCode.INVALID_REQUIRED_ACKS
    assert str(acks) in refusal.message


@pytest.mark.parametrize("acks", [-1, 0, 1])
def test_kafkas_acks_are_taken(acks: int) -> None:
    assert check_acks(acks) is None


def test_record_without_a_key_is_refused_where_the_log_is_compacted_by_key() -> None:
    keyless = replace(BATCH, keyless_count=1)
    assert isinstance(decide(keyless).response, LogBatch)
    refused = refusal_of(keyless, replace(RULES, is_key_required=True))
    assert refused.code is ErrorCode.INVALID_RECORD
    assert "found 1 of 4 without" in refused.message
    assert isinstance(decide(BATCH, replace(RULES, is_key_required=True)).response, LogBatch)
