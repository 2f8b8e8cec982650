"""When a partition is compacted, and up to where."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from bus.partition_log.log_life import (
    DIRTY_BYTES_MIN,
    DIRTY_FILES_MAX,
    DIRTY_FILES_MIN,
    Backlog,
    CompactionRules,
    decide_internal_compaction,
    decide_key_compaction,
)
from bus.settings.keys import LONG_MAX
from tests.support.fake_table import FakeFile
from tests.support.rolled_log import data_file


@pytest.mark.parametrize(
    ("backlog", "is_due"),
    [
        (Backlog(DIRTY_FILES_MIN - 1, 10**9, 0), False),
        (Backlog(DIRTY_FILES_MIN, 1, 0), True),
        (Backlog(DIRTY_FILES_MIN, 100, 100), False),
        (Backlog(DIRTY_FILES_MIN, 101, 100), True),
        (Backlog(DIRTY_FILES_MAX - 1, 1, 10**9), False),
        (Backlog(DIRTY_FILES_MAX, 1, 10**9), True),
    ],
)
def test_many_files_or_more_than_was_compacted_before_make_it_due(backlog: Backlog, is_due: bool) -> None:
    assert decide_internal_compaction(backlog) is is_due


def test_what_is_rewritten_stays_within_twice_what_was_appended_plus_a_share_of_the_compacted() -> None:
    file_bytes, key_bytes_max = 10, 3_000
    compacted = appended = rewritten = commits = 0
    backlog = Backlog(0, 0, 0)
    for _ in range(20_000):
        commits, appended = commits + 1, appended + file_bytes
        backlog = Backlog(backlog.file_count + 1, backlog.size_bytes + file_bytes, compacted)
        if decide_internal_compaction(backlog):
            compacted = min(key_bytes_max, compacted + backlog.size_bytes)
            rewritten += compacted
            backlog = Backlog(0, 0, compacted)
        assert backlog.file_count < DIRTY_FILES_MAX
    assert 0 < rewritten <= 2 * appended + commits * key_bytes_max // DIRTY_FILES_MAX


RULES = CompactionRules(dirty_ratio_min=0.5, lag_min_ms=0, lag_max_ms=LONG_MAX)


def live(count: int, *, size_bytes: int = 1, apart_ms: int = 0) -> list[FakeFile]:
    return [data_file(at, size_bytes=size_bytes, appended_ms=at * apart_ms) for at in range(count)]


def end_offset(files: list[FakeFile], unseen: int, rules: CompactionRules = RULES, **options: Any) -> int | None:
    return decide_key_compaction(files, unseen_count=unseen, rules=rules, now_ms=options.pop("now_ms", 0), **options)


def test_a_topic_is_compacted_up_to_its_newest_file() -> None:
    assert end_offset(live(DIRTY_FILES_MIN + 1), DIRTY_FILES_MIN + 1) == DIRTY_FILES_MIN
    assert end_offset(live(DIRTY_FILES_MIN), DIRTY_FILES_MIN) is None


def test_few_but_large_files_are_worth_it_too() -> None:
    assert end_offset(live(2, size_bytes=DIRTY_BYTES_MIN), 2) == 1
    assert end_offset(live(2, size_bytes=DIRTY_BYTES_MIN - 1), 2) is None


@pytest.mark.parametrize(("seen_bytes", "is_due"), [(19, True), (20, False), (21, False)])
def test_the_dirty_part_has_to_exceed_its_ratio(seen_bytes: int, is_due: bool) -> None:
    files = [data_file(0, size_bytes=seen_bytes), *(data_file(at + 1) for at in range(DIRTY_FILES_MIN + 1))]
    assert (end_offset(files, DIRTY_FILES_MIN + 1) is not None) is is_due
    always = replace(RULES, dirty_ratio_min=0.0)
    assert end_offset(files, DIRTY_FILES_MIN + 1, always) == DIRTY_FILES_MIN + 1


def test_what_is_younger_than_the_smallest_lag_waits_and_counts_for_nothing() -> None:
    rules = replace(RULES, lag_min_ms=100)
    files = live(DIRTY_FILES_MIN + 10, apart_ms=10)
    last_old = DIRTY_FILES_MIN * 10
    assert end_offset(files, DIRTY_FILES_MIN + 10, rules, now_ms=last_old + 100) == DIRTY_FILES_MIN + 1
    assert end_offset(files, DIRTY_FILES_MIN + 10, rules, now_ms=last_old + 79) is None


def test_what_is_older_than_the_largest_lag_is_compacted_however_little_there_is() -> None:
    rules = replace(RULES, lag_max_ms=1_000)
    files = [data_file(0, size_bytes=10**9), data_file(1), data_file(2)]
    assert end_offset(files, 2, rules, now_ms=1_000) is None
    assert end_offset(files, 2, rules, now_ms=1_001) == 2
    assert end_offset(files, 1, rules, now_ms=1_001) is None


def test_who_asks_for_it_gets_it_but_for_the_newest_file_and_the_smallest_lag() -> None:
    assert end_offset(live(3), 3, is_requested=True) == 2
    assert end_offset(live(1), 1, is_requested=True) is None
    assert end_offset(live(3), 0, is_requested=True) is None
    assert end_offset(live(3, apart_ms=100), 3, replace(RULES, lag_min_ms=100), now_ms=150, is_requested=True) == 1
