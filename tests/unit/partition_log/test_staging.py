from __future__ import annotations

from dataclasses import replace

from bus.errors import ErrorCode, Refused
from bus.model import ProducerStamp, RecordBatch, TimestampType
from bus.partition_log.appends import AppendRules
from bus.partition_log.producers import ProducerStates
from bus.partition_log.staging import (
    ALREADY_STAGED,
    LOOK_FOR_STAGED,
    STAGE,
    StagedState,
    decide_stage,
    has_older_records_only,
    place_transaction,
)
from bus.partition_log.state import PartitionState
from tests.support.fake_table import log_batch, records

RULES = AppendRules(
    record_bytes_max=1000,
    timestamp_type=TimestampType.CREATE_TIME,
    timestamp_before_max_ms=10**15,
    timestamp_after_max_ms=10**15,
)


def batch(base_sequence: int, count: int = 10, size_bytes: int = 100) -> RecordBatch:
    return records(count, size_bytes, producer=ProducerStamp(7, 3, base_sequence))


def decide(state: StagedState | None, given: RecordBatch, *, bytes_max: int = 10_000, rules: AppendRules = RULES):  # type: ignore[no-untyped-def]
    return decide_stage(state, given, rules, now_ms=0, bytes_max=bytes_max)


def code_of(decision: object) -> ErrorCode:
    assert isinstance(decision, Refused), decision
    return decision.code


def test_next_sequence_is_staged_a_repeat_is_not_and_a_gap_is_refused() -> None:
    state = StagedState(last_sequence=9, size_bytes=100)
    assert decide(state, batch(10)) is STAGE
    assert decide(state, batch(0)) is ALREADY_STAGED
    assert decide(state, batch(3, 4)) is ALREADY_STAGED
    assert code_of(decide(state, batch(11))) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert code_of(decide(state, batch(5))) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_first_batch_needs_no_look_and_a_later_one_does() -> None:
    assert decide(None, batch(0)) is STAGE
    assert decide(None, batch(10)) is LOOK_FOR_STAGED
    assert code_of(decide(StagedState(), batch(10))) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_transaction_beyond_its_bytes_is_to_be_aborted() -> None:
    state = StagedState(last_sequence=9, size_bytes=950)
    assert code_of(decide(state, batch(10), bytes_max=1000)) is ErrorCode.TRANSACTION_ABORTABLE
    assert decide(state, batch(10), bytes_max=1050) is STAGE
    assert decide(state, batch(0), bytes_max=1000) is ALREADY_STAGED


def test_what_the_topic_would_refuse_later_is_refused_now() -> None:
    keyed = replace(RULES, is_key_required=True)
    assert code_of(decide(None, replace(batch(0), keyless_count=1), rules=keyed)) is ErrorCode.INVALID_RECORD
    assert code_of(decide(None, replace(batch(0), record_bytes_max=1001))) is ErrorCode.MESSAGE_TOO_LARGE
    assert code_of(decide(None, replace(batch(0), timestamp_min_ms=-1))) is ErrorCode.INVALID_TIMESTAMP


def test_rows_of_a_transaction_follow_each_other_densely() -> None:
    state = PartitionState(0, 5, 5, leader_epoch=1, version=4)
    step = place_transaction(state, [batch(0, 2), batch(2, 3)], RULES, now_ms=0)
    assert [(placed.base_offset, placed.next_offset) for placed in step.response] == [(5, 7), (7, 10)]
    assert [placed.producer for placed in step.response] == [ProducerStamp(7, 3, 0), ProducerStamp(7, 3, 2)]
    assert step.records[-1].next_offset == 10


def test_records_that_the_producer_wrote_under_a_later_epoch_are_noticed() -> None:
    producers = ProducerStates()
    first = log_batch(0, 2, ProducerStamp(7, 3, 0))
    assert has_older_records_only(producers, first)
    producers.place(log_batch(0, 1, ProducerStamp(7, 2, 0)), version=1, now_ms=0)
    assert has_older_records_only(producers, first)
    producers.place(first, version=1, now_ms=0)
    assert has_older_records_only(producers, log_batch(2, 2, ProducerStamp(7, 3, 2)))
    producers.place(log_batch(4, 1, ProducerStamp(7, 9, 0)), version=1, now_ms=0)
    assert not has_older_records_only(producers, log_batch(5, 2, ProducerStamp(7, 4, 0)))
