from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bus.storage_delta.files.live_file import (
    LiveFile,
    ages_of,
    check_ages,
    decode_ages,
    encode_ages,
    end_of_old,
    thin,
    thin_by_ratio,
)


def file(base: int, following: int, *, committed_ms: int = 0, ages: str = "") -> LiveFile:
    return LiveFile("f", 1, base, following, 1, 0, 0, 0, committed_ms=committed_ms, ages=ages)


def test_an_appended_file_is_as_old_as_its_commit_and_a_compacted_one_as_its_pairs_say() -> None:
    files = [file(0, 30, committed_ms=99, ages="10:5 30:7"), file(30, 40, committed_ms=8)]
    assert ages_of(files) == [(10, 5), (30, 7), (40, 8)]


def test_a_clock_that_went_back_makes_nothing_older() -> None:
    assert ages_of([file(0, 10, committed_ms=9), file(10, 20, committed_ms=4)]) == [(10, 9), (20, 9)]


def test_old_is_what_was_there_by_then() -> None:
    ages = [(10, 5), (30, 7)]
    assert [end_of_old(ages, until_ms=until_ms) for until_ms in (4, 5, 6, 7)] == [0, 10, 10, 30]


@pytest.mark.parametrize(
    ("base", "following", "text"),
    [(0, 10, "10:5"), (0, 20, "10:5 20:7"), (10, 30, "30:7"), (12, 40, "30:7 40:8"), (30, 35, "35:8")],
)
def test_a_file_gets_the_pairs_of_its_own_offsets(base: int, following: int, text: str) -> None:
    assert encode_ages([(10, 5), (30, 7), (40, 8)], base_offset=base, next_offset=following) == text
    assert check_ages(text) == text
    assert decode_ages(text)[-1][0] == following


@pytest.mark.parametrize("text", ["10", "10:", "10:5 ", "10:5,20:6", "-1:5"])
def test_what_is_no_list_of_pairs_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="expected pairs"):
        check_ages(text)


@given(st.lists(st.integers(0, 300), min_size=1, max_size=200), st.integers(0, 300), st.integers(0, 100))
def test_thinned_pairs_are_few_never_older_and_hardly_younger(times: list[int], now_ms: int, retention_ms: int) -> None:
    ages = [(offset + 1, time_ms) for offset, time_ms in enumerate(sorted(min(time, now_ms) for time in times))]
    thinned = thin(ages, now_ms=now_ms, retention_ms=retention_ms)
    assert thin(thinned, now_ms=now_ms, retention_ms=retention_ms) == thinned
    assert thinned[-1] == ages[-1]
    assert len(thinned) <= 18 + (retention_ms % 16 if retention_ms >= 16 else 0)
    for offset, since_ms in enumerate(time_ms for _, time_ms in ages):
        told_ms = next(time_ms for end, time_ms in thinned if offset < end)
        assert told_ms >= since_ms
        assert told_ms <= now_ms - retention_ms or told_ms - since_ms <= max(1, retention_ms // 16)


@given(st.lists(st.integers(0, 400 * 86_400_000), min_size=1, max_size=300))
def test_pairs_thinned_by_their_ratio_are_few_never_older_and_hardly_younger(times: list[int]) -> None:
    ages = [(offset + 1, time_ms) for offset, time_ms in enumerate(sorted(times))]
    thinned = thin_by_ratio(ages)
    assert thinned[-1] == ages[-1]
    assert len(thinned) <= 170
    newest_ms = ages[-1][1]
    for offset, since_ms in enumerate(time_ms for _, time_ms in ages):
        told_ms = next(time_ms for end, time_ms in thinned if offset < end)
        assert since_ms <= told_ms <= since_ms + 0.1 * (newest_ms - since_ms) + 60_000
