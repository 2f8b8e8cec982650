from __future__ import annotations

import pyarrow as pa
import pytest

from bus.client.murmur2 import partition_of_key
from bus.client.partitioning import STICKY_BYTES, Partitioner


def batch_of(keys: list[bytes | None], key_type: pa.DataType | None = None) -> pa.RecordBatch:
    values = pa.array([b"%d" % number for number in range(len(keys))], pa.binary())
    return pa.RecordBatch.from_arrays([values, pa.array(keys, key_type or pa.binary())], names=["value", "key"])


def test_split_keeps_every_row_once_and_in_order() -> None:
    keys = [b"k%d" % (number * 7919 % 31) for number in range(1_000)]
    parts = Partitioner().split("t", batch_of(keys), 8)

    rows = {int(value): partition for partition, part in parts for value in part.column("value").to_pylist()}
    assert rows == {number: partition_of_key(key, 8) for number, key in enumerate(keys)}
    for _, part in parts:
        numbers = [int(value) for value in part.column("value").to_pylist()]
        assert numbers == sorted(numbers)


def test_rows_without_a_key_go_together_and_the_next_batch_elsewhere() -> None:
    partitioner = Partitioner()
    keyed = partition_of_key(b"k", 4)
    places = []
    for _ in range(4):
        parts = dict(partitioner.split("t", batch_of([b"k", None, None]), 4))
        assert parts[keyed].column("key").to_pylist()[0] == b"k"
        (null_place,) = [p for p, part in parts.items() if None in part.column("key").to_pylist()]
        assert parts[null_place].column("key").to_pylist().count(None) == 2
        places.append(null_place)
    assert sorted(places) == [0, 1, 2, 3]


def test_batches_without_keys_take_turns() -> None:
    partitioner = Partitioner()
    batch = pa.RecordBatch.from_arrays([pa.array([b"v"])], names=["value"])
    assert [partitioner.split("t", batch, 3)[0][0] for _ in range(6)] == [0, 1, 2, 0, 1, 2]


def test_batch_of_one_partition_is_not_copied() -> None:
    batch = batch_of([b"same"] * 100)
    ((_, part),) = Partitioner().split("t", batch, 8)
    assert part is batch


@pytest.mark.parametrize("key_type", [pa.string(), pa.large_binary(), pa.large_string()])
def test_other_key_types_hash_as_their_bytes(key_type: pa.DataType) -> None:
    keys = [f"ключ-{number}" for number in range(50)]
    texts = keys if key_type in (pa.string(), pa.large_string()) else [key.encode() for key in keys]
    values = pa.array([b"%d" % number for number in range(50)])
    batch = pa.RecordBatch.from_arrays([values, pa.array(texts, key_type)], names=["value", "key"])
    for partition, part in Partitioner().split("t", batch, 4):
        for value in part.column("value").to_pylist():
            assert partition_of_key(keys[int(value)].encode(), 4) == partition


def test_records_without_a_key_stay_until_a_batch_is_full() -> None:
    partitioner = Partitioner()
    half = STICKY_BYTES // 2
    assert [partitioner.of_record("t", None, half, 3) for _ in range(6)] == [0, 0, 1, 1, 2, 2]


def test_empty_key_is_a_key() -> None:
    partitioner = Partitioner()
    assert {partitioner.of_record("t", b"", STICKY_BYTES, 5) for _ in range(5)} == {partition_of_key(b"", 5)}
