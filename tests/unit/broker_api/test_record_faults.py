"""Records at fault in a refused batch are named, all of them and no others."""

from __future__ import annotations

import dataclasses

import pyarrow as pa
import pytest

from bus.broker_api.produce import FAULTS_MAX, find_faults, record_sizes
from bus.errors import ErrorCode, Refused
from bus.model import RecordBatch, TimestampType
from bus.partition_log.appends import AppendRules
from bus.records.arrow_batches import check_records
from bus.records.log_schema import HEADERS_TYPE, TIMESTAMP_TYPE

NOW_MS = 1_700_000_000_000
RULES = AppendRules(
    record_bytes_max=100,
    timestamp_type=TimestampType.CREATE_TIME,
    timestamp_before_max_ms=5_000,
    timestamp_after_max_ms=1_000,
)
TOO_LARGE = Refused(ErrorCode.MESSAGE_TOO_LARGE, "too large")
MISTIMED = Refused(ErrorCode.INVALID_TIMESTAMP, "mistimed")


def records(sizes: list[int], times_ms: list[int] | None = None) -> RecordBatch:
    columns = {"value": pa.array([b"x" * size for size in sizes])}
    if times_ms is not None:
        columns["timestamp"] = pa.array([time_ms * 1000 for time_ms in times_ms], pa.int64()).cast(TIMESTAMP_TYPE)
    batch = pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))
    return check_records(batch, default_timestamp_ms=NOW_MS)


def faults(batch: RecordBatch, refusal: Refused, rules: AppendRules = RULES, took_ms: int = 0) -> dict[int, str]:
    found = find_faults(batch, refusal, rules, received_ms=NOW_MS, answered_ms=NOW_MS + took_ms)
    return {fault.index: fault.message for fault in found}


def test_records_that_are_too_large_are_named_by_place_and_size() -> None:
    assert faults(records([100, 101, 5, 300]), TOO_LARGE) == {
        1: "expected at most 100 bytes (max.message.bytes), found 101",
        3: "expected at most 100 bytes (max.message.bytes), found 300",
    }


def test_timestamps_outside_the_bounds_are_named_whichever_rule_refused_the_batch() -> None:
    times = [NOW_MS, NOW_MS - 5_001, NOW_MS - 5_000, NOW_MS + 1_000, NOW_MS + 1_001, -1]
    bounds = f"expected a timestamp from {NOW_MS - 5_000} to {NOW_MS + 1_000} ms, found"
    expected = {1: f"{bounds} {times[1]}", 4: f"{bounds} {times[4]}", 5: f"{bounds} -1"}
    assert faults(records([1] * 6, times), MISTIMED) == expected
    large = faults(records([1, 1, 1, 1, 101, 1], times), TOO_LARGE)
    assert large.keys() == {1, 4, 5}
    assert large[4] == f"expected at most 100 bytes (max.message.bytes), found 101; {expected[4]}"


def test_record_that_was_at_fault_at_any_time_until_the_answer_is_named() -> None:
    times = [NOW_MS, NOW_MS - 4_990, NOW_MS + 1_001]
    assert faults(records([1] * 3, times), MISTIMED, took_ms=20).keys() == {1, 2}


def test_negative_timestamp_is_at_fault_even_if_every_age_is_allowed() -> None:
    rules = dataclasses.replace(RULES, timestamp_before_max_ms=2**63 - 1, timestamp_after_max_ms=2**63 - 1)
    assert faults(records([1, 1], [-5, 5]), MISTIMED, rules).keys() == {0}


def test_append_time_knows_no_wrong_timestamps() -> None:
    rules = dataclasses.replace(RULES, timestamp_type=TimestampType.LOG_APPEND_TIME)
    assert faults(records([101, 1], [-5, -5]), TOO_LARGE, rules).keys() == {0}


@pytest.mark.parametrize(
    ("batch", "refusal"),
    [
        (records([101, 102]), TOO_LARGE),  # none would be taken
        (records([1, 1], [5, 6]), MISTIMED),
        (records([101, 1]), Refused(ErrorCode.FENCED_LEADER_EPOCH, "fenced")),
        (records([101, 1]), Refused(ErrorCode.THROTTLING_QUOTA_EXCEEDED, "full")),
    ],
)
def test_nothing_is_named_where_the_refusal_says_it_all(batch: RecordBatch, refusal: Refused) -> None:
    assert faults(batch, refusal) == {}


def test_number_of_faults_is_bounded() -> None:
    found = faults(records([1, *[101] * (FAULTS_MAX + 5)]), TOO_LARGE)
    assert list(found) == list(range(1, FAULTS_MAX + 1))


def test_size_of_a_record_counts_key_value_and_headers() -> None:
    batch = pa.RecordBatch.from_arrays(
        [
            pa.array([b"abc", None, b"", b"z"]),
            pa.array([None, b"k", b"kk", None]),
            pa.array(
                [None, [{"key": "hé", "value": b"12"}, {"key": "n", "value": None}], [], [{"key": "a", "value": b"b"}]],
                HEADERS_TYPE,
            ),
        ],
        names=["value", "key", "headers"],
    )
    assert record_sizes(batch).tolist() == [3, 1 + 3 + 2 + 1, 2, 3]
    assert record_sizes(batch.slice(1, 3)).tolist() == [7, 2, 3]


def test_records_without_a_key_are_named_where_a_key_is_required() -> None:
    columns = {"value": pa.array([b"a", b"b", b"c", b"x" * 200]), "key": pa.array([b"k", None, b"", None])}
    batch = check_records(
        pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns)), default_timestamp_ms=NOW_MS
    )
    refusal = Refused(ErrorCode.INVALID_RECORD, "keyless")
    found = faults(batch, refusal, dataclasses.replace(RULES, is_key_required=True))
    assert found.keys() == {1, 3}
    assert found[1] == "expected a key (cleanup.policy has compact), found none"
    assert found[3] == f"expected at most 100 bytes (max.message.bytes), found 200; {found[1]}"
    assert faults(batch, TOO_LARGE, RULES).keys() == {3}


def test_batch_without_any_key_is_refused_as_a_whole() -> None:
    refusal = Refused(ErrorCode.INVALID_RECORD, "keyless")
    assert faults(records([1, 1]), refusal, dataclasses.replace(RULES, is_key_required=True)) == {}
