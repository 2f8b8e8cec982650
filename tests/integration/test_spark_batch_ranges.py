"""Ranges that a batch query of Spark plans over a real root, by offsets and times in every combination."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bus.spark.source.batch import BusBatchReader
from bus.spark.source.inputs import BusInput
from bus.spark.source.rows import SOURCE_SCHEMA, columns_of
from bus.spark.source.source_options import OptionError, parse_source_options
from tests.support.hand_written_root import FIRST_TIMESTAMP_MS, HandWrittenRoot

NEVER = 2**63 - 1


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """orders: two partitions of 30 records, a millisecond apart, ten to a file."""
    root = HandWrittenRoot(tmp_path_factory.mktemp("bus"))
    root.create_topic("orders", partitions=2)
    for first in range(0, 30, 10):
        for partition in range(2):
            root.append("orders", partition, *((b"k", b"%d" % n) for n in range(first, first + 10)))
    return root.folder


def at(*numbers: int) -> str:
    return json.dumps({"orders": dict(enumerate(numbers))})


def when(*offsets: int) -> str:
    return at(*(offset if offset == NEVER else FIRST_TIMESTAMP_MS + offset for offset in offsets))


def planned(root: Path, options: dict[str, str]) -> list[list[tuple[int, int, int]]]:
    """Return partition, begin and end of each range, task by task."""
    given = parse_source_options({"bus.root": str(root), "subscribe": "orders", **options}, is_stream=False)
    reader = BusBatchReader(given, columns_of(SOURCE_SCHEMA, include_headers=False), cores=1)
    tasks = [task for task in reader.partitions() if isinstance(task, BusInput)]
    return [
        [(found.offsets.partition.partition, found.offsets.begin, found.offsets.end) for found in task.ranges]
        for task in tasks
    ]


@pytest.mark.parametrize(
    ("options", "ranges"),
    [
        ({"startingOffsetsByTimestamp": when(10, 10), "endingOffsetsByTimestamp": when(20, 20)}, [(10, 20), (10, 20)]),
        ({"startingOffsetsByTimestamp": when(10, 5), "endingOffsets": at(-1, 11)}, [(10, 30), (5, 11)]),
        ({"startingOffsets": at(-2, 0), "endingOffsetsByTimestamp": when(20, 20)}, [(0, 20), (0, 20)]),
        ({"startingOffsetsByTimestamp": when(10, 12)}, [(10, 30), (12, 30)]),
        ({"endingOffsetsByTimestamp": when(20, 15)}, [(0, 20), (0, 15)]),
        ({"endingOffsetsByTimestamp": when(10, NEVER)}, [(0, 10), (0, 30)]),
        ({"endingTimestamp": str(NEVER)}, [(0, 30), (0, 30)]),
        ({"startingOffsetsByTimestamp": at(0, 0)}, [(0, 30), (0, 30)]),
        (
            {
                "startingTimestamp": str(FIRST_TIMESTAMP_MS + 20),
                "startingOffsetsByTimestamp": when(10, 10),
                "startingOffsets": "earliest",
                "endingTimestamp": str(FIRST_TIMESTAMP_MS + 25),
                "endingOffsetsByTimestamp": when(28, 28),
                "endingOffsets": "latest",
            },
            [(20, 25), (20, 25)],
        ),
        (
            {
                "startingOffsetsByTimestamp": when(10, NEVER),
                "startingOffsetsByTimestampStrategy": "latest",
                "endingOffsets": at(12, 30),
            },
            [(10, 12), None],
        ),
        ({"startingOffsets": at(30, 29), "endingOffsets": at(30, 30)}, [None, (29, 30)]),
    ],
)
def test_a_batch_lies_between_its_offsets_and_times(
    root: Path, options: dict[str, str], ranges: list[tuple[int, int] | None]
) -> None:
    expected = [(partition, *found) for partition, found in enumerate(ranges) if found is not None]
    assert planned(root, options) == [expected]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"startingOffsetsByTimestamp": when(10, NEVER)},
            f"startingOffsetsByTimestamp: expected a record of orders-1 at or after {NEVER} ms, found none",
        ),
        ({"startingTimestamp": str(NEVER)}, f"startingTimestamp: expected a record of orders-0 at or after {NEVER} ms"),
        (
            {"startingOffsets": at(13, 0), "endingOffsetsByTimestamp": when(11, 11)},
            "expected the ending offset of orders-0 at or after the starting one, 13, found 11",
        ),
        (
            {"startingOffsetsByTimestamp": when(20, 20), "endingOffsetsByTimestamp": when(20, 19)},
            "expected the ending offset of orders-1 at or after the starting one, 20, found 19",
        ),
        ({"startingOffsets": at(1, 31)}, "expected offsets of orders-1 up to its end, 30, found 31 to 30"),
        (
            {"startingOffsets": at(1, 1, 1), "endingOffsets": at(0, 0)},
            "startingOffsets: .* found one for orders-2, which the query does not read",
        ),
        ({"startingOffsets": at(1, 1), "endingOffsets": at(2)}, "endingOffsets: .* found none for orders-1"),
        ({"endingOffsetsByTimestamp": when(2)}, "endingOffsetsByTimestamp: .* found none for orders-1"),
        ({"startingOffsetsByTimestamp": when(1, 1, 1)}, "startingOffsetsByTimestamp: .* one for orders-2"),
    ],
)
def test_a_batch_that_cannot_be_meant_is_refused_when_it_is_planned(
    root: Path, options: dict[str, str], message: str
) -> None:
    with pytest.raises(OptionError, match=message):
        planned(root, options)


@pytest.mark.parametrize(
    ("options", "tasks"),
    [
        ({}, [[(0, 0, 30), (1, 0, 30)]]),
        (
            {"startingOffsets": at(1, 30), "endingOffsets": at(4, 30), "minPartitions": "3"},
            [[(0, 1, 2)], [(0, 2, 3)], [(0, 3, 4)]],
        ),
        ({"minPartitions": "4"}, [[(0, 0, 15)], [(0, 15, 30)], [(1, 0, 15)], [(1, 15, 30)]]),
        ({"endingOffsets": at(30, 3), "minPartitions": "3"}, [[(0, 0, 11)], [(0, 11, 22)], [(0, 22, 30), (1, 0, 3)]]),
        ({"endingOffsets": at(30, 0), "maxRecordsPerPartition": "10"}, [[(0, 0, 10)], [(0, 10, 20)], [(0, 20, 30)]]),
    ],
)
def test_tasks_share_a_batch_as_it_was_asked_for(
    root: Path, options: dict[str, str], tasks: list[list[tuple[int, int, int]]]
) -> None:
    assert planned(root, options) == tasks
