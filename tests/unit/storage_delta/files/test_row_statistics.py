"""Statistics gathered from rows, part by part: the same as by looking at each row."""

from __future__ import annotations

import json
from collections.abc import Sequence

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bus.errors import StorageDamaged
from bus.records.log_schema import TIMESTAMP_TYPE
from bus.storage_delta.files import row_statistics
from bus.storage_delta.files.producer_spans import decode_spans
from bus.storage_delta.files.row_statistics import RowStatistics

# offset, timestamp in microseconds, leader epoch, and id, epoch and sequence of a producer or None
Row = tuple[int, int, int, tuple[int, int, int] | None]

PRODUCERS = st.none() | st.tuples(
    st.integers(0, 3), st.integers(0, 2), st.integers(0, 5) | st.integers(2**31 - 3, 2**31 - 1)
)
PARTS = st.lists(
    st.lists(
        st.tuples(st.integers(1, 3), st.integers(0, 10_000), st.integers(0, 9), PRODUCERS), min_size=1, max_size=8
    ),
    min_size=1,
    max_size=8,
)


def table_of(rows: Sequence[Row]) -> pa.Table:
    """Return a table of two chunks, if there are two rows."""
    stamps = [row[3] or (None, None, None) for row in rows]
    table = pa.table(
        {
            "offset": pa.array([row[0] for row in rows], pa.int64()),
            "timestamp": pa.array([row[1] for row in rows], pa.int64()).cast(TIMESTAMP_TYPE),
            "producer_id": pa.array([stamp[0] for stamp in stamps], pa.int64()),
            "producer_epoch": pa.array([stamp[1] for stamp in stamps], pa.int16()),
            "sequence": pa.array([stamp[2] for stamp in stamps], pa.int32()),
            "leader_epoch": pa.array([row[2] for row in rows], pa.int32()),
        }
    )
    middle = len(rows) // 2
    return pa.concat_tables([table.slice(0, middle), table.slice(middle)]) if middle else table


def plain_row(offset: int, producer: tuple[int, int, int] | None = None) -> Row:
    return (offset, 0, 0, producer)


def gathered(parts: Sequence[Sequence[Row]]) -> RowStatistics:
    statistics = RowStatistics("here")
    for part in parts:
        statistics.add(table_of(part))
    return statistics


def is_within(span: Sequence[int], producer: tuple[int, int, int]) -> bool:
    """`span`: file, then a minimum and a maximum for each of the three."""
    return all(span[1 + 2 * at] <= value <= span[2 + 2 * at] for at, value in enumerate(producer))


@settings(deadline=None)
@given(PARTS, st.sampled_from([2, 5, 1 << 16]))
def test_what_is_said_is_true_of_every_row(steps: list[list[Row]], runs_max: int) -> None:
    offset, parts = -1, []
    for part in steps:
        rows: list[Row] = []
        for step, micros, epoch, producer in part:
            offset += step
            rows.append((offset, micros, epoch, producer))
        parts.append(rows)
    rows = [row for part in parts for row in part]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(row_statistics, "_RUNS_MAX", runs_max)
        statistics = gathered(parts)
    assert statistics.next_offset == offset + 1
    file, stats = statistics.describe("name", 99, base_offset=0, next_offset=offset + 7)
    assert (file.path, file.size_bytes, file.base_offset, file.next_offset) == ("name", 99, 0, offset + 7)
    assert (file.record_count, file.leader_epoch) == (len(rows), max(row[2] for row in rows))
    times_ms = [row[1] // 1000 for row in rows]
    assert (file.timestamp_min_ms, file.timestamp_max_ms) == (min(times_ms), max(times_ms))
    producers = [row[3] for row in rows if row[3] is not None]
    told = json.loads(stats)
    assert (told["minValues"]["offset"], told["maxValues"]["offset"]) == (rows[0][0], offset)
    assert told["nullCount"]["sequence"] == told["nullCount"]["producer_id"] == len(rows) - len(producers)
    assert told["maxValues"].get("sequence") == max((producer[2] for producer in producers), default=None)
    assert told["minValues"].get("producer_id") == min((producer[0] for producer in producers), default=None)
    spans = decode_spans([file.producers]).tolist()
    assert all(any(is_within(span, producer) for span in spans) for producer in producers)
    assert {span[1] for span in spans} <= {producer[0] for producer in producers}


def test_sequences_that_go_on_from_part_to_part_are_one_run_and_holes_are_kept_apart() -> None:
    parts = [
        [plain_row(0, (7, 0, 0)), plain_row(1, (7, 0, 1)), plain_row(2, (8, 0, 0))],
        [plain_row(3, (7, 0, 2)), plain_row(4), plain_row(5, (7, 0, 9)), plain_row(6, (7, 1, 10))],
    ]
    file, _ = gathered(parts).describe("name", 1, base_offset=0, next_offset=7)
    assert file.producers == "7 0 0 0 0 2 7 0 0 0 9 0 7 0 1 0 10 0 8 0 0 0 0 0"


def test_runs_that_are_too_many_to_be_kept_are_one_for_each_producer_and_epoch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(row_statistics, "_RUNS_MAX", 3)
    parts = [[plain_row(at, (7 + at % 2, 0, 10 * at)), plain_row(at + 1, (7 + at % 2, 1, at))] for at in range(0, 8, 2)]
    file, _ = gathered(parts).describe("name", 1, base_offset=0, next_offset=9)
    assert file.producers == "7 0 0 0 0 60 7 0 1 0 0 6"


@pytest.mark.parametrize(
    ("parts", "said"),
    [
        ([[0, 1, 1]], "expected an offset above 1 after it, found 1"),
        ([[0, 3, 2, 1]], "expected an offset above 3 after it, found 2"),
        ([[0, 1], [1, 2]], "expected an offset above 1 after it, found 1"),
        ([[4], [3]], "expected an offset above 4 after it, found 3"),
    ],
)
def test_offsets_that_do_not_grow_are_damage(parts: list[list[int]], said: str) -> None:
    with pytest.raises(StorageDamaged, match=f"here: {said}"):
        gathered([[plain_row(offset) for offset in part] for part in parts])
