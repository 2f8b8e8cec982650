"""The data files that together have a table's records, and the records that none of them has."""

from __future__ import annotations

import pytest

from bus.storage_delta.files.live_file import LiveFile
from bus.storage_delta.repair.files import FoundFile, choose_files, find_holes, without_overlaps


def found(base: int, end: int, name: str = "a") -> FoundFile:
    path = f"{base:020d}-{name}.parquet"
    return FoundFile(LiveFile(path, 100, base, end, end - base, 0, 0, 0), None, "{}")


def ranges(files: object) -> list[tuple[int, int]]:
    return [(one.file.base_offset, one.file.next_offset) for one in files]  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("files", "holes"),
    [
        ([(0, 10), (10, 20)], []),
        ([(0, 5), (8, 20)], [(5, 8)]),
        ([(3, 20)], [(0, 3)]),
        ([(0, 15)], [(15, 20)]),
        ([], [(0, 20)]),
        ([(0, 30)], []),
        ([(0, 5), (25, 30)], [(5, 20)]),  # beyond the end nothing is missed
    ],
)
def test_holes_are_what_no_file_stands_for(files: list[tuple[int, int]], holes: list[tuple[int, int]]) -> None:
    assert find_holes([found(*one).file for one in files], start=0, end=20) == holes


def test_of_files_that_overlap_the_one_that_reaches_furthest_stays() -> None:
    files = [found(0, 10), found(0, 20, "rolled"), found(10, 20), found(20, 30), found(25, 28)]
    assert ranges(without_overlaps(files)) == [(0, 20), (20, 30)]


def test_holes_are_filled_by_files_that_fit_into_them() -> None:
    named = [found(0, 10), found(30, 40)]
    others = [found(5, 15), found(10, 20), found(20, 30), found(25, 35), found(40, 50)]
    cover = choose_files(named, others, start=0, end=40, may_go_on=False)
    assert ranges(cover.files) == [(0, 10), (10, 20), (20, 30), (30, 40)]
    assert cover.holes == []


def test_a_rolled_file_is_better_than_those_that_it_was_made_of() -> None:
    cover = choose_files([], [found(0, 10), found(10, 20), found(0, 20, "rolled")], start=0, end=20, may_go_on=False)
    assert ranges(cover.files) == [(0, 20)]


def test_behind_the_end_files_count_only_where_versions_were_lost() -> None:
    named, others = [found(0, 10)], [found(10, 20), found(25, 30)]
    cover = choose_files(named, others, start=0, end=10, may_go_on=False)
    assert (ranges(cover.files), cover.holes) == ([(0, 10)], [])
    cover = choose_files(named, others, start=0, end=10, may_go_on=True)
    assert (ranges(cover.files), cover.holes) == ([(0, 10), (10, 20), (25, 30)], [(20, 25)])
