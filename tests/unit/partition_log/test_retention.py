"""Records that are deleted, by rule and by time."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bus.errors import ErrorCode, Refused
from bus.partition_log.log_life import (
    Retained,
    RetentionRules,
    RetentionTime,
    decide_delete_records,
    decide_retention,
    read_time,
    time_ms_of,
)
from bus.ports import LogState
from tests.support.fake_table import FakeFile
from tests.support.rolled_log import data_file

BY_AGE = RetentionRules(retention_ms=1_000, retention_bytes=-1)
BY_SIZE = RetentionRules(retention_ms=-1, retention_bytes=100)
DAY_MS = 86_400_000
STATE = LogState(version=5, log_start=10, high_watermark=100, leader_epoch=0, file_count=1, size_bytes=1)


def log_start(files: list[FakeFile], rules: RetentionRules, now_ms: int) -> int | None:
    retained = decide_retention(files, rules, now_ms=now_ms)
    return None if retained is None else retained.log_start


def aged(*times_ms: int) -> list[FakeFile]:
    return [data_file(at * 10, at * 10 + 10, appended_ms=time_ms) for at, time_ms in enumerate(times_ms)]


def test_files_older_than_the_retention_go_from_the_start_on() -> None:
    files = aged(100, 200, 300)
    assert [log_start(files, BY_AGE, now_ms) for now_ms in (1_100, 1_101, 1_201, 1_301)] == [None, 10, 20, 30]


def test_a_young_file_keeps_the_old_ones_behind_it() -> None:
    assert log_start(aged(5_000, 100, 200), BY_AGE, 2_000) is None
    assert log_start(aged(100, 5_000, 200), BY_AGE, 2_000) == 10


def test_without_a_bound_nothing_goes() -> None:
    assert decide_retention(aged(0, 0), RetentionRules(-1, -1), now_ms=10**15) is None
    assert decide_retention([], BY_AGE, now_ms=10**15) is None


def test_a_record_from_the_future_keeps_nothing_longer_than_its_commit_would() -> None:
    (file,) = aged(100)
    assert log_start([replace(file, timestamp_max_ms=10**15)], BY_AGE, 1_101) == 10


def test_an_old_timestamp_takes_no_other_file_with_it() -> None:
    old, young = aged(100_000, 100_000)
    assert log_start([replace(old, timestamp_max_ms=5), young], BY_AGE, 100_100) == 10


def test_a_file_that_compaction_has_emptied_has_the_time_of_its_commit() -> None:
    assert time_ms_of(data_file(0, appended_ms=7, timestamp_max_ms=-1, records=0)) == 7
    assert time_ms_of(data_file(0, appended_ms=7, timestamp_max_ms=3)) == 3


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [
        ([50, 50], None),
        ([50, 50, 50], 10),
        ([50, 50, 49], None),
        ([10, 200, 90], 10),
        ([10, 100, 100], 20),
        ([1000], None),
        ([1000, 100], 10),
    ],
)
def test_files_go_while_the_rest_is_as_large_as_the_bound(sizes: list[int], expected: int | None) -> None:
    files = [data_file(at * 10, at * 10 + 10, size_bytes=size) for at, size in enumerate(sizes)]
    assert log_start(files, BY_SIZE, 0) == expected


def test_the_reason_is_told_with_what_goes() -> None:
    assert decide_retention(aged(0, 9_000), BY_AGE, now_ms=5_000) == Retained(10, 1, "retention.ms=1000")
    files = [data_file(at, size_bytes=100) for at in range(3)]
    assert decide_retention(files, BY_SIZE, now_ms=0) == Retained(2, 2, "retention.bytes=100")


FILES = st.lists(st.tuples(st.integers(0, 5_000), st.integers(0, 9_000), st.integers(0, 200)), max_size=12)


@given(FILES, st.integers(-1, 3_000), st.integers(-1, 600), st.integers(0, 10_000))
def test_only_a_prefix_goes_and_each_file_of_it_was_due(
    given_files: list[tuple[int, int, int]], retention_ms: int, retention_bytes: int, now_ms: int
) -> None:
    files = [
        data_file(at, size_bytes=size, appended_ms=appended_ms, timestamp_max_ms=timestamp_ms)
        for at, (appended_ms, timestamp_ms, size) in enumerate(given_files)
    ]
    start = log_start(files, RetentionRules(retention_ms, retention_bytes), now_ms) or 0
    for at, file in enumerate(files):
        rest_bytes = sum(other.size_bytes for other in files[at + 1 :])
        is_old = retention_ms >= 0 and now_ms - min(file.appended_ms, file.timestamp_max_ms) > retention_ms
        is_excess = retention_bytes >= 0 and rest_bytes >= retention_bytes
        if at < start:
            assert is_old or is_excess
        else:
            assert at > start or not (is_old or is_excess)


@pytest.mark.parametrize(
    ("offset", "expected"), [(-1, 100), (100, 100), (50, 50), (11, 11), (10, 10), (3, 10), (0, 10)]
)
def test_records_are_deleted_up_to_the_high_watermark_and_never_come_back(offset: int, expected: int) -> None:
    assert decide_delete_records(STATE, offset, may_delete=True) == expected


@pytest.mark.parametrize("offset", [101, 120, -2])
def test_an_offset_outside_the_log_is_refused(offset: int) -> None:
    refused = decide_delete_records(STATE, offset, may_delete=True)
    assert isinstance(refused, Refused)
    assert refused.code is ErrorCode.OFFSET_OUT_OF_RANGE
    assert f"found {offset}" in refused.message


def test_a_log_that_is_only_compacted_lets_nobody_delete() -> None:
    refused = decide_delete_records(STATE, 50, may_delete=False)
    assert isinstance(refused, Refused)
    assert refused.code is ErrorCode.POLICY_VIOLATION


def test_a_clock_that_jumps_ahead_is_followed_at_twice_the_speed_of_time() -> None:
    time = read_time(None, wall_ms=1_000_000, monotonic_ms=50)
    assert time == RetentionTime(1_000_000, 50)
    time = read_time(time, wall_ms=1_000_010, monotonic_ms=60)
    assert time.now_ms == 1_000_010
    time = read_time(time, wall_ms=1_000_010 + DAY_MS, monotonic_ms=60)
    assert time.now_ms == 1_000_010
    time = read_time(time, wall_ms=1_000_020 + DAY_MS, monotonic_ms=70)
    assert time.now_ms == 1_000_030
    time = read_time(time, wall_ms=1_000_030, monotonic_ms=80)
    assert time.now_ms == 1_000_030


def test_a_clock_that_goes_back_is_followed_at_once() -> None:
    time = read_time(RetentionTime(10 * DAY_MS, 0), wall_ms=9 * DAY_MS, monotonic_ms=1)
    assert time.now_ms == 9 * DAY_MS
    assert read_time(time, wall_ms=10 * DAY_MS, monotonic_ms=1_001).now_ms == 9 * DAY_MS + 2_000


@given(st.lists(st.tuples(st.integers(0, 1_000), st.integers(-DAY_MS, DAY_MS)), max_size=20))
def test_the_time_of_retention_is_never_ahead_of_the_clock_nor_of_twice_what_has_passed(
    steps: list[tuple[int, int]],
) -> None:
    time, passed_ms = RetentionTime(0, 0), 0
    for pass_ms, wall_ms in steps:
        passed_ms += pass_ms
        time = read_time(time, wall_ms=wall_ms, monotonic_ms=passed_ms)
        assert time.now_ms <= min(wall_ms, 2 * passed_ms)
