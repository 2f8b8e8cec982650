"""The last row of each key, whatever the memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bus.storage_delta.maintenance.key_compaction import RowBits, find_last_of_keys

Keys = Sequence[bytes | None]


def found(groups: Sequence[Keys], budget_bytes: int = 1 << 20) -> tuple[list[int], int]:
    """The rows, and how many passes it took."""
    passes = 0

    def scan() -> Iterator[pa.ChunkedArray]:
        nonlocal passes
        passes += 1
        for group in groups:
            yield pa.chunked_array([pa.array(group, pa.binary())])

    count = sum(map(len, groups))
    bits = find_last_of_keys(scan, count, budget_bytes=budget_bytes)
    return [row for row, is_set in enumerate(bits.slice(0, count)) if is_set], passes


def expected(groups: Sequence[Keys]) -> list[int]:
    keys = [key for group in groups for key in group]
    last = {key: row for row, key in enumerate(keys)}
    return [row for row, key in enumerate(keys) if key is None or last[key] == row]


@settings(deadline=None)
@given(st.lists(st.lists(st.none() | st.binary(max_size=2), max_size=12), max_size=8), st.sampled_from([1, 64, 4096]))
def test_of_every_key_the_last_row_is_found_and_rows_without_a_key(groups: list[Keys], budget_bytes: int) -> None:
    assert found(groups, budget_bytes)[0] == expected(groups)


def test_keys_that_fit_take_one_pass_and_more_keys_take_more() -> None:
    groups: list[Keys] = [
        [f"{row * 7919 % 3000:06d}".encode() for row in range(at, at + 100)] for at in range(0, 9000, 100)
    ]
    assert found(groups) == (expected(groups), 1)
    rows, passes = found(groups, 8 << 10)
    assert rows == expected(groups)
    assert 8 < passes < 60  # 3,000 keys of 18 bytes


def test_an_empty_key_and_one_larger_than_the_budget_are_keys() -> None:
    groups: list[Keys] = [[b"", b"x" * 500, None], [b"", b"x" * 500, b"x" * 501]]
    assert found(groups, 100)[0] == [2, 3, 4, 5]


@pytest.mark.parametrize("first", [0, 3, 8, 13])
def test_bits_are_read_from_any_row_on(first: int) -> None:
    bits = RowBits(20)
    rows = pa.array([0, 4, 8, 9, 15, 19]).to_numpy()
    bits.set(rows)
    assert [first + row for row, is_set in enumerate(bits.slice(first, 20 - first)) if is_set] == [
        row for row in rows if row >= first
    ]
