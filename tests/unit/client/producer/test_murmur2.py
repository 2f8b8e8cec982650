from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bus.client.producer.murmur2 import murmur2, murmur2_column, partition_of_key, partitions_of_keys

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
