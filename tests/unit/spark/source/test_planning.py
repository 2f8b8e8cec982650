from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bus.model import TopicPartition
from bus.spark.source.planning import OffsetRange, Sharing, limit_offsets, pack, ranges_between

P0, P1, P2 = (TopicPartition("orders", number) for number in range(3))


def test_ranges_are_what_waits_and_none_is_empty() -> None:
    assert ranges_between({P0: 5, P1: 7, P2: 9}, {P2: 9, P1: 8, P0: 10}) == [
        OffsetRange(P0, 5, 10),
        OffsetRange(P1, 7, 8),
    ]


def test_a_limit_is_shared_in_proportion_to_what_waits() -> None:
    # The case of Spark's own source: 101, 11 and 1 wait, 10 may be taken.
    begin, end = {P0: 0, P1: 0, P2: 0}, {P0: 101, P1: 11, P2: 1}
    first = limit_offsets(begin, end, 10)
    assert first == {P0: 8, P1: 1, P2: 1}
    assert limit_offsets(first, end, 10) == {P0: 8 + 9, P1: 2, P2: 1}


def test_a_limit_above_what_waits_takes_all() -> None:
    assert limit_offsets({P0: 5}, {P0: 10}, 2**63 - 1) == {P0: 10}
    assert limit_offsets({P0: 5}, {P0: 10}, 5) == {P0: 10}


def test_where_nothing_waits_nothing_is_taken() -> None:
    assert limit_offsets({P0: 5, P1: 0}, {P0: 5, P1: 100}, 10) == {P0: 5, P1: 10}


@settings(max_examples=2 * settings.default.max_examples)
@given(st.lists(st.integers(0, 1_000), min_size=1, max_size=6), st.integers(1, 500))
def test_a_limit_is_kept_but_for_one_offset_a_partition_and_starves_none(sizes: list[int], limit: int) -> None:
    begin = {TopicPartition("orders", number): number for number in range(len(sizes))}
    end = {partition: begin[partition] + size for partition, size in zip(begin, sizes, strict=True)}
    limited = limit_offsets(begin, end, limit)
    taken = {partition: limited[partition] - begin[partition] for partition in begin}
    assert all((taken[p] > 0) == (end[p] > begin[p]) and limited[p] <= end[p] for p in begin)
    assert sum(taken.values()) <= limit + len(sizes)


def test_a_range_that_does_not_divide_is_cut_into_sizes_that_differ_by_one() -> None:
    assert pack([OffsetRange(P0, 1, 11)], Sharing(1, 3)) == [
        (OffsetRange(P0, 1, 4),),
        (OffsetRange(P0, 4, 7),),
        (OffsetRange(P0, 7, 11),),
    ]


def test_small_ranges_share_a_task_with_a_piece_of_a_large_one() -> None:
    assert pack([OffsetRange(P0, 1, 3), OffsetRange(P1, 0, 10)], Sharing(1, 3)) == [
        (OffsetRange(P0, 1, 3), OffsetRange(P1, 0, 2)),
        (OffsetRange(P1, 2, 6),),
        (OffsetRange(P1, 6, 10),),
    ]


ranges = st.lists(st.tuples(st.integers(0, 10), st.integers(1, 300_000)), max_size=8).map(
    lambda given: [
        OffsetRange(TopicPartition("orders", n), begin, begin + size) for n, (begin, size) in enumerate(given)
    ]
)


@settings(max_examples=2 * settings.default.max_examples)
@given(ranges, st.integers(1, 8), st.none() | st.integers(1, 40), st.none() | st.integers(10_000, 500_000))
def test_inputs_are_the_ranges_cut_and_nothing_else(
    wanted: list[OffsetRange], cores: int, min_partitions: int | None, max_records: int | None
) -> None:
    packed = pack(wanted, Sharing(cores, min_partitions, max_records))
    pieces = [piece for taken in packed for piece in taken]
    for found in wanted:
        own = [piece for piece in pieces if piece.partition == found.partition]
        assert own[0].begin == found.begin
        assert own[-1].end == found.end
        assert all(before.end == after.begin for before, after in itertools.pairwise(own))
    assert {piece.partition for piece in pieces} == {found.partition for found in wanted}
    assert all(taken and all(piece.size > 0 for piece in taken) for taken in packed)
    sizes = [sum(piece.size for piece in taken) for taken in packed]
    assert len(sizes) >= min(min_partitions or 0, sum(sizes))
    assert not sizes or max(sizes) - min(sizes) <= 1
    if max_records is not None:
        assert all(size <= max_records for size in sizes)


@settings(max_examples=2 * settings.default.max_examples)
@given(ranges, st.integers(1, 8), st.none() | st.integers(1, 40))
def test_whole_partitions_have_one_task_each_and_tasks_as_little_difference_as_that_allows(
    wanted: list[OffsetRange], cores: int, min_partitions: int | None
) -> None:
    packed = pack(wanted, Sharing(cores, min_partitions, splits=False))
    assert sorted(piece for taken in packed for piece in taken) == sorted(wanted)
    assert all(taken == tuple(sorted(taken)) and taken for taken in packed)
    assert len(packed) <= max(min_partitions or 0, cores)
    if packed:
        sizes = [sum(piece.size for piece in taken) for taken in packed]
        assert max(sizes) - min(sizes) <= max(found.size for found in wanted)
    assert packed == pack(wanted[::-1], Sharing(cores, min_partitions, splits=False))


@pytest.mark.parametrize(
    ("sizes", "cores", "min_partitions", "max_records", "expected"),
    [
        ([], 4, None, None, 0),
        ([1], 4, None, None, 1),
        ([49_999], 4, None, None, 1),
        ([10] * 1_000, 4, None, None, 1),  # a thousand small partitions are one task's work
        ([100_000], 4, None, None, 2),
        ([1_000_000], 4, None, None, 4),  # one large partition keeps all cores busy
        ([1_000_000, 1_000_000], 4, None, None, 4),
        ([100], 4, 10, None, 10),
        ([3], 4, 10, None, 3),  # an input has one record at least
        ([10], 4, 6, None, 6),
        ([4, 20], 1, 4, None, 4),
        ([1, 1_000], 1, 4, None, 4),
        ([10, 10, 1], 1, 6, None, 6),
        ([500, 12_000, 15_001], 1, 6, None, 6),
        ([1, 1, 10_000], 1, 6, None, 6),
        ([1_000], 4, 3, 100, 10),
        ([1_000], 4, None, 100, 10),
        ([1_000_000], 4, 2, None, 4),  # minPartitions asks for more, never for fewer
    ],
)
def test_as_many_inputs_as_keep_the_cores_busy(
    sizes: list[int], cores: int, min_partitions: int | None, max_records: int | None, expected: int
) -> None:
    wanted = [OffsetRange(TopicPartition("orders", number), 0, size) for number, size in enumerate(sizes)]
    packed = pack(wanted, Sharing(cores, min_partitions, max_records))
    assert len(packed) == expected
