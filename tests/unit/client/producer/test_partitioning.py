from __future__ import annotations

import threading
from collections import Counter
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bus.client.producer.partitioning import (
    StickyPartitioner,
    UserPartitioner,
    murmur2_column,
    partitions_of_keys,
    random_partitioner,
    record_partitioner_of,
    round_robin_partitioner,
    split_by_key,
    split_by_partition,
)
from bus.errors import BusError
from tests.support.murmur2 import murmur2, partition_of_key


class EvenlySpaced:
    """Stands for chance: `count` numbers, spaced evenly from 0 to 1, again and again. What is drawn with it is drawn
    exactly as often as its share."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._drawn = 0

    def __call__(self) -> float:
        self._drawn += 1
        return ((self._drawn - 1) % self._count + 0.5) / self._count


def draws(partitioner: StickyPartitioner, count: int, partition_count: int) -> list[int]:
    drawn = []
    for _ in range(count):
        assert partitioner.is_switching
        drawn.append(partitioner.partition(partition_count))
        partitioner.update(1)
    return drawn


def never() -> int:
    raise AssertionError("every row has a key")


def batch_of(keys: list[bytes | None], key_type: pa.DataType | None = None) -> pa.RecordBatch:
    values = pa.array([b"%d" % number for number in range(len(keys))], pa.binary())
    return pa.RecordBatch.from_arrays([values, pa.array(keys, key_type or pa.binary())], names=["value", "key"])


def test_split_keeps_every_row_once_and_in_order() -> None:
    keys = [b"k%d" % (number * 7919 % 31) for number in range(1_000)]
    parts = split_by_key(batch_of(keys), 8, never)

    rows = {int(value): partition for partition, part in parts for value in part.column("value").to_pylist()}
    assert rows == {number: partition_of_key(key, 8) for number, key in enumerate(keys)}
    for _, part in parts:
        numbers = [int(value) for value in part.column("value").to_pylist()]
        assert numbers == sorted(numbers)


def test_batch_of_one_partition_is_not_copied() -> None:
    batch = batch_of([b"same"] * 100)
    ((_, part),) = split_by_key(batch, 8, never)
    assert part is batch


@pytest.mark.parametrize("key_type", [pa.string(), pa.large_binary(), pa.large_string()])
def test_other_key_types_hash_as_their_bytes(key_type: pa.DataType) -> None:
    keys = [f"ключ-{number}" for number in range(50)]
    texts = keys if key_type in (pa.string(), pa.large_string()) else [key.encode() for key in keys]
    values = pa.array([b"%d" % number for number in range(50)])
    batch = pa.RecordBatch.from_arrays([values, pa.array(texts, key_type)], names=["value", "key"])
    for partition, part in split_by_key(batch, 4, never):
        for value in part.column("value").to_pylist():
            assert partition_of_key(keys[int(value)].encode(), 4) == partition


def test_empty_key_is_a_key() -> None:
    parts = split_by_key(batch_of([b"", b"other", b""]), 5, never)
    assert dict(parts)[partition_of_key(b"", 5)].column("key").to_pylist().count(b"") == 2


def test_batch_without_keys_goes_where_it_is_told_and_is_not_copied() -> None:
    batch = pa.RecordBatch.from_arrays([pa.array([b"v"])], names=["value"])
    for keyless in (batch, batch_of([None, None])):
        ((partition, part),) = split_by_key(keyless, 3, lambda: 2)
        assert partition == 2
        assert part is keyless


def test_keys_that_are_no_bytes_are_refused() -> None:
    batch = pa.RecordBatch.from_arrays([pa.array([b"v", b"w"]), pa.array([1, 2])], names=["value", "key"])
    with pytest.raises(BusError, match="found int64"):
        split_by_key(batch, 3, never)


def test_keyless_rows_ask_for_one_partition_and_keyed_ones_for_none() -> None:
    asked: list[int] = []

    def choose() -> int:
        asked.append(2)
        return 2

    parts = split_by_key(batch_of([b"a", None, b"b", None]), 4, choose)
    assert asked == [2]
    assert dict(parts)[2].column("key").to_pylist().count(None) == 2
    assert [partition for partition, _ in parts] == sorted({2, partition_of_key(b"a", 4), partition_of_key(b"b", 4)})

    split_by_key(batch_of([b"a", b"b"]), 4, choose)
    assert asked == [2]


def test_sticky_stays_until_batch_size_bytes_went_there() -> None:
    partitioner = StickyPartitioner(100, EvenlySpaced(3))
    places = []
    for size in (60, 39, 1, 250, 99, 1, 1):
        places.append(partitioner.partition(3))
        partitioner.update(size)
    assert places == [0, 0, 0, 1, 2, 2, 0]


def test_sticky_tells_when_it_draws() -> None:
    partitioner = StickyPartitioner(10, EvenlySpaced(2))
    assert partitioner.is_switching
    partitioner.partition(2)
    partitioner.update(9)
    assert not partitioner.is_switching
    partitioner.update(1)
    assert partitioner.is_switching


def test_without_batching_every_record_draws() -> None:
    partitioner = StickyPartitioner(0, EvenlySpaced(4))
    assert draws(partitioner, 8, 4) == [0, 1, 2, 3, 0, 1, 2, 3]


def test_sticky_leaves_a_partition_that_is_gone() -> None:
    partitioner = StickyPartitioner(100, iter([0.9, 0.9]).__next__)
    assert partitioner.partition(4) == 3
    assert partitioner.partition(2) == 1


def test_longer_queues_are_drawn_less_often() -> None:
    # The example of KIP-794: queues of 0, 3 and 1 have shares of 4, 1 and 3.
    partitioner = StickyPartitioner(1, EvenlySpaced(8))
    partitioner.update_load([0, 3, 1])
    assert draws(partitioner, 8, 3) == [0, 0, 0, 0, 1, 2, 2, 2]


@pytest.mark.parametrize("queue_sizes", [[0, 3, 1], [7, 7, 0, 2, 5], [1000, 0], [1, 2, 3, 4, 5, 6]])
def test_frequencies_are_the_shares(queue_sizes: list[int]) -> None:
    shares = {partition: max(queue_sizes) + 1 - size for partition, size in enumerate(queue_sizes)}
    total = sum(shares.values())
    partitioner = StickyPartitioner(1, EvenlySpaced(total))
    partitioner.update_load(queue_sizes)
    assert Counter(draws(partitioner, 3 * total, len(queue_sizes))) == {p: 3 * share for p, share in shares.items()}


def test_even_queues_are_drawn_alike() -> None:
    partitioner = StickyPartitioner(1, EvenlySpaced(3))
    partitioner.update_load([5, 5, 5])
    assert draws(partitioner, 6, 3) == [0, 1, 2, 0, 1, 2]


def test_partition_that_is_not_available_is_left_out() -> None:
    even = StickyPartitioner(1, EvenlySpaced(4))
    even.update_load([0, 0, 0], [True, False, True])
    assert Counter(draws(even, 8, 3)) == {0: 4, 2: 4}

    # The queue of the one left out has no part in the shares: they are 2 and 1.
    uneven = StickyPartitioner(1, EvenlySpaced(3))
    uneven.update_load([0, 50, 1], [True, False, True])
    assert Counter(draws(uneven, 3, 3)) == {0: 2, 2: 1}


def test_all_are_drawn_while_none_is_available() -> None:
    partitioner = StickyPartitioner(1, EvenlySpaced(3))
    partitioner.update_load([0, 0, 0], [False, False, False])
    assert sorted(draws(partitioner, 3, 3)) == [0, 1, 2]


def test_load_of_a_topic_that_has_grown_since_is_forgotten() -> None:
    partitioner = StickyPartitioner(1, EvenlySpaced(4))
    partitioner.update_load([0, 99], [True, False])
    assert sorted(draws(partitioner, 4, 4)) == [0, 1, 2, 3]


def test_round_robin_takes_turns_for_each_topic_whatever_the_key() -> None:
    partitioner = round_robin_partitioner()
    assert [partitioner.partition("t", b"k", b"v", 3) for _ in range(4)] == [0, 1, 2, 0]
    assert partitioner.partition("u", b"k", b"v", 3) == 0


def test_round_robin_passes_by_what_is_not_available() -> None:
    partitioner = round_robin_partitioner()
    assert [partitioner.partition("t", None, b"v", 4, [1, 3]) for _ in range(3)] == [1, 3, 1]
    assert partitioner.partition("t", None, b"v", 4, []) == 3


def test_round_robin_gives_no_turn_twice_between_threads() -> None:
    partitioner = round_robin_partitioner()
    taken: list[int] = []

    def take() -> None:
        for _ in range(500):
            taken.append(partitioner.partition("t", None, b"v", 4))

    threads = [threading.Thread(target=take) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert Counter(taken) == {0: 500, 1: 500, 2: 500, 3: 500}


def test_user_chooses_by_function_or_object() -> None:
    class ByLength:
        def partition(self, topic: str, key: bytes | None, value: bytes | None, partition_count: int) -> int:
            return len(value or b"") % partition_count

    by_topic = record_partitioner_of(lambda topic, key, value, partition_count: np.int64(len(topic) % partition_count))
    by_length = record_partitioner_of(ByLength())
    assert by_topic is not None
    assert by_length is not None
    assert (by_topic.partition("orders", None, b"v", 4), by_length.partition("orders", None, b"vvvvv", 4)) == (2, 1)


def test_user_learns_which_partitions_serve_if_it_asks() -> None:
    class FirstThatServes:
        def partition(self, topic: str, key: Any, value: Any, partition_count: int, available: list[int]) -> int:
            return available[0] if available else partition_count - 1

    for chooser in (FirstThatServes(), lambda topic, key, value, count, available=None: (available or [count - 1])[0]):
        partitioner = UserPartitioner(chooser)
        assert partitioner.wants_available
        assert partitioner.partition("orders", None, b"v", 4, [2, 3]) == 2
        assert partitioner.partition("orders", None, b"v", 4, []) == 3
    assert not UserPartitioner(lambda *given: 0).wants_available


def test_user_gets_objects_beside_bytes_if_it_asks() -> None:
    class ByCustomer:
        def partition(self, topic: str, key: Any, value: Any, count: int, *, key_object: Any, value_object: Any) -> int:
            seen.append((key, value, key_object, value_object))
            return int(value_object["customer"]) % count

    seen: list[Any] = []
    given = {"key_object": 7, "value_object": {"customer": 5}}
    assert UserPartitioner(ByCustomer()).partition("orders", b"k", b"v", 4, **given) == 1
    assert (
        UserPartitioner(lambda topic, key, value, count, key_object: key_object % count).partition(
            "orders", b"k", b"v", 4, **given
        )
        == 3
    )
    assert seen == [(b"k", b"v", 7, {"customer": 5})]


def test_random_draws_among_partitions_that_serve_and_among_all_where_none_does() -> None:
    drawn = iter([0.0, 0.99, 0.5])
    partitioner = random_partitioner(lambda: next(drawn))
    assert [partitioner.partition("t", b"k", b"v", 8, [1, 3, 5]) for _ in range(2)] == [1, 5]
    assert partitioner.partition("t", b"k", b"v", 8, []) == 4
    chosen = record_partitioner_of("random")
    assert chosen is not None
    assert {chosen.partition("t", b"k", b"v", 2) for _ in range(200)} == {0, 1}


def test_partitioner_of_no_config_is_none() -> None:
    assert record_partitioner_of(None) is None
    chosen = record_partitioner_of("round_robin")
    assert chosen is not None
    assert [chosen.partition("t", b"k", b"v", 3) for _ in range(4)] == [0, 1, 2, 0]


@pytest.mark.parametrize("answer", [-1, 4, 1.0, True, None, "1"])
def test_answer_that_is_no_partition_is_refused(answer: Any) -> None:
    with pytest.raises(ValueError, match=r"partition of 'orders' from 0 to 3, found ") as caught:
        UserPartitioner(lambda *_: answer).partition("orders", None, b"v", 4)
    assert repr(answer) in str(caught.value)


@pytest.mark.parametrize("partitions", [[2, 2, 0, 0, 1], [2, 0, 2, 1, 0], [1, 1, 1, 1, 1]])
def test_rows_are_split_by_partition_in_their_order(partitions: list[int]) -> None:
    batch = pa.record_batch({"value": [b"a", b"b", b"c", b"d", b"e"]})
    found = {
        number: part.column("value").to_pylist() for number, part in split_by_partition(batch, np.array(partitions), 3)
    }
    expected: dict[int, list[bytes]] = {}
    for number, value in sorted(
        zip(partitions, batch.column("value").to_pylist(), strict=True), key=lambda row: row[0]
    ):
        expected.setdefault(number, []).append(value)
    assert list(found.items()) == list(expected.items())


def test_rows_that_lie_together_are_not_copied() -> None:
    batch = pa.record_batch({"value": [b"a", b"b", b"c", b"d"]})
    parts = split_by_partition(batch, np.array([3, 3, 0, 1]), 4)
    values = batch.column("value").buffers()[2]
    assert all(part.column("value").buffers()[2].address == values.address for _, part in parts)


# From Kafka's own UtilsTest.
KAFKAS_VECTORS = {
    b"21": -973932308,
    b"foobar": -790332482,
    b"a-little-bit-long-string": -985981536,
    b"a-little-bit-longer-string": -1486304829,
    b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971,
    b"abc": 479470107,
}


@pytest.mark.parametrize(("key", "expected"), KAFKAS_VECTORS.items())
def test_single_form_gives_kafkas_hash(key: bytes, expected: int) -> None:
    assert murmur2(key) == expected


def test_column_form_gives_kafkas_hash() -> None:
    hashes = murmur2_column(pa.array(list(KAFKAS_VECTORS), pa.binary())).view(np.int32)
    assert hashes.tolist() == list(KAFKAS_VECTORS.values())


def test_negative_hash_loses_its_sign_bit_not_its_sign() -> None:
    # Kafka's toPositive is a mask; abs() would give another partition.
    assert partition_of_key(b"21", 7) == (-973932308 & 0x7FFFFFFF) % 7
    assert partition_of_key(b"21", 7) != abs(-973932308) % 7


@pytest.mark.parametrize("count", [0, 1, 2_000])
def test_column_of_nothing_but_nulls_has_a_partition_for_each(count: int) -> None:
    found = partitions_of_keys(pa.nulls(count, pa.binary()), 3)
    assert len(found) == count
    assert set(found.tolist()) <= {0, 1, 2}


@given(st.lists(st.binary(max_size=40), max_size=60), st.integers(0, 20))
def test_column_form_equals_single_form_row_by_row(keys: list[bytes], start: int) -> None:
    column = pa.array(keys, pa.binary())[start:]
    assert murmur2_column(column).view(np.int32).tolist() == [murmur2(key) for key in keys[start:]]


def test_one_huge_key_among_small_ones_is_hashed_right() -> None:
    keys = [b"a", b"x" * 100_003, b"bc", b"", b"four"] * 4
    assert murmur2_column(pa.array(keys, pa.binary())).view(np.int32).tolist() == [murmur2(key) for key in keys]


@pytest.mark.parametrize("distinct", [3, 5_000])
def test_partitions_are_the_same_whether_keys_repeat_or_not(distinct: int) -> None:
    keys = [b"key-%d" % (number % distinct) for number in range(5_000)]
    partitions = partitions_of_keys(pa.array(keys, pa.binary()), 7)
    assert partitions.tolist() == [partition_of_key(key, 7) for key in keys]
