"""The choice of files to be rolled, and the time for it."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from bus.partition_log.log_life import RUN_FILES_MAX, SMALL_FILES_MAX, RollingRules, decide_roll, plan_full_roll
from bus.ports import LogFile
from tests.support.fake_table import FakeFile
from tests.support.rolled_log import RolledLog, data_file

RULES = RollingRules(segment_bytes=1000, segment_ms=1_000_000)


def files(*sizes: int, level: int = 0, base: int = 0) -> list[FakeFile]:
    return [data_file(base + at, size_bytes=size, level=level) for at, size in enumerate(sizes)]


def bases(run: Sequence[LogFile]) -> list[int]:
    return [file.base_offset for file in run]


def roll(
    live: Sequence[LogFile],
    *,
    rules: RollingRules = RULES,
    now_ms: int = 0,
    compacted_to: int = 0,
    left_alone: frozenset[str] = frozenset(),
) -> list[int]:
    return bases(decide_roll(live, rules, compacted_to=compacted_to, now_ms=now_ms, left_alone=left_alone))


def test_a_run_is_rolled_when_there_are_many_and_not_before() -> None:
    many = files(*[1] * RUN_FILES_MAX)
    assert roll(many[:-1]) == []
    assert roll(many) == list(range(RUN_FILES_MAX))


def test_a_run_is_rolled_when_the_next_file_would_not_fit_any_more() -> None:
    assert roll(files(400, 400, 200)) == []
    assert roll(files(400, 400, 201)) == [0, 1]


def test_levels_are_not_mixed_and_the_newest_run_goes_first() -> None:
    old = files(*[1] * RUN_FILES_MAX, level=1)
    new = files(*[1] * RUN_FILES_MAX, base=RUN_FILES_MAX)
    assert roll([*old, *new[:-1]]) == list(range(RUN_FILES_MAX))
    assert roll([*old[:-1], *new[:-1]]) == []
    assert roll([*old, *new]) == list(range(RUN_FILES_MAX, 2 * RUN_FILES_MAX))


def test_a_file_of_half_a_segment_is_never_rolled_again() -> None:
    assert roll(files(500, 500, 500)) == []
    assert roll(files(499, 499, 3)) == [0, 1]


def test_small_files_before_a_full_one_are_rolled_together_whatever_their_levels() -> None:
    enclosed = [*files(1, level=2), *files(1, 1, base=1), *files(500, base=3), *files(1, 1, base=4)]
    assert roll(enclosed) == [0, 1, 2]
    assert roll(enclosed[2:]) == []


def test_what_key_compaction_has_seen_is_not_rolled_with_what_it_has_not() -> None:
    many = files(*[1] * (RUN_FILES_MAX + 10))
    assert roll(many, compacted_to=11) == []
    assert roll(many, compacted_to=10) == list(range(10, RUN_FILES_MAX + 10))


def test_files_that_cannot_be_read_stay_and_part_their_neighbours() -> None:
    many = files(*[1] * (RUN_FILES_MAX + 3))
    rotten = frozenset({many[1].path})
    assert roll(many, left_alone=rotten) == list(range(2, RUN_FILES_MAX + 3))
    assert roll(many[:-2], left_alone=rotten) == []


@pytest.mark.parametrize(("now_ms", "expected"), [(1_000_099, []), (1_000_100, [0, 1])])
def test_a_run_is_rolled_when_its_oldest_file_is_old(now_ms: int, expected: list[int]) -> None:
    live = [data_file(0, appended_ms=100), data_file(1, appended_ms=1_000_000)]
    assert roll(live, now_ms=now_ms) == expected


def test_a_single_file_is_never_rolled_however_old() -> None:
    assert roll([data_file(0)], now_ms=10**12) == []


def test_a_roll_spans_no_more_than_segment_ms() -> None:
    live = [data_file(at, appended_ms=at * 400_000) for at in range(6)]
    assert roll(live, now_ms=2_000_000) == [0, 1, 2]
    weekly = [data_file(at, appended_ms=at * 1_000_000, level=1) for at in range(6)]
    assert roll(weekly, now_ms=10**12) == []


def test_too_many_small_files_are_rolled_though_they_span_more_than_segment_ms() -> None:
    rare = [data_file(at, appended_ms=at * 1_000_000) for at in range(SMALL_FILES_MAX)]
    assert roll(rare[:-1], now_ms=10**12) == []
    assert len(roll(rare, now_ms=10**12)) == SMALL_FILES_MAX


def test_too_many_small_files_of_many_levels_have_their_longest_run_rolled() -> None:
    runs = [files(*[1] * count, level=level) for level, count in ((3, 250), (2, 399), (1, 151))]
    live = [data_file(at, level=file.level) for at, file in enumerate(file for run in runs for file in run)]
    assert roll(live) == list(range(250, 649))
    assert roll(live[1:]) == []


def test_a_full_roll_takes_all_that_no_roll_has_made_in_as_few_files_as_fit() -> None:
    live = [*files(300, 300), *files(300, 200, base=2), *files(500, base=4), *files(1, base=5)]
    plan = plan_full_roll(live, RULES, compacted_to=0)
    assert [bases(run) for run in plan] == [[0, 1, 2]]
    assert [bases(run) for run in plan_full_roll(live, RULES, compacted_to=1)] == [[1, 2, 3]]
    assert plan_full_roll(live, RULES, compacted_to=0, left_alone={live[1].path}) != plan


def test_what_was_rolled_is_not_rolled_again_by_hand_so_that_it_comes_of_age() -> None:
    live = [*files(10, level=1), *files(1, 1, base=1)]
    assert [bases(run) for run in plan_full_roll(live, RULES, compacted_to=0)] == [[1, 2]]
    enclosed = [*live, *files(500, base=3)]
    assert [bases(run) for run in plan_full_roll(enclosed, RULES, compacted_to=0)] == [[0, 1, 2]]


@pytest.mark.parametrize("size_bytes", [700, 5_000, 40_000, 300_000, 3_000_000])
def test_a_steady_stream_is_rewritten_twice_and_keeps_few_files(size_bytes: int) -> None:
    """Commits are as large against a segment as a commit of 3 KB is against 1 GiB, and larger."""
    log = RolledLog(RollingRules(segment_bytes=200_000_000, segment_ms=7 * 86_400_000))
    for commit in range(40_000):
        log.append(size_bytes)
        if commit % 20 == 0:
            log.look()
    assert log.live_max - log.full_count < 1_000
    assert log.rewritten_bytes <= 2 * log.appended_bytes


def test_a_full_roll_takes_the_first_file_alone_if_deleted_records_are_in_it() -> None:
    live = [*files(500, 500, level=1)]
    plans = {start: plan_full_roll(live, RULES, compacted_to=0, log_start=start) for start in (0, 1)}
    assert {start: [bases(run) for run in plan] for start, plan in plans.items()} == {0: [], 1: [[0]]}
    small = files(1, 1)
    assert [bases(run) for run in plan_full_roll(small, RULES, compacted_to=0, log_start=1)] == [[0, 1]]
    left_alone = {live[0].path}
    assert plan_full_roll(live, RULES, compacted_to=0, log_start=1, left_alone=left_alone) == []
