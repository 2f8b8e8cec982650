"""The same rows come out in one order, however they came in, and rows of one key in the order in which they came."""

from __future__ import annotations

import random

import numpy as np
import pyarrow as pa
import pytest

from bus.records.log_schema import HEADERS_TYPE
from bus.spark.sink.columns import RowSorter

Row = tuple[int, bytes | None, bytes, object]  # target, key, value, headers
KEY, CONTENT = ("key",), ("key", "value", "headers")


def sort(rows: list[Row], names: tuple[str, ...], *, hash_bits: int, batch_rows: int = 100) -> dict[int, list[Row]]:
    """Few bits of hash: rows that are not equal collide all the time."""
    found: dict[int, list[Row]] = {}
    with RowSorter(names, memory_bytes=2**40) as sorter:
        for start in range(0, len(rows), batch_rows):
            some = rows[start : start + batch_rows]
            records = pa.RecordBatch.from_arrays(
                [
                    pa.array([key for _, key, _, _ in some], pa.binary()),
                    pa.array([value for _, _, value, _ in some], pa.binary()),
                    pa.array([headers for _, _, _, headers in some], HEADERS_TYPE),
                ],
                names=list(CONTENT),
            )
            hashed = [hash_of(row, names) % (1 << hash_bits) for row in some]
            sorter.add(np.array([row[0] for row in some]), np.array(hashed, np.uint64), records)
        for target, batch in sorter.drain():
            for row in batch.to_pylist():
                found.setdefault(target, []).append((target, row["key"], row["value"], row["headers"]))
    return found


def hash_of(row: Row, names: tuple[str, ...]) -> int:
    return sum(row[1] or b"none") if names == KEY else sum(row[1] or b"none") + sum(row[2])


def keyed_rows(chance: random.Random, count: int) -> list[Row]:
    """The value counts the rows of a key."""
    counts: dict[bytes, int] = {}
    rows: list[Row] = []
    for _ in range(count):
        key = b"k%d" % chance.randrange(30)
        counts[key] = counts.get(key, 0) + 1
        rows.append((sum(key) % 3, key, b"%d" % counts[key], None))
    return rows


def shuffled_but_for_keys(rows: list[Row], chance: random.Random) -> list[Row]:
    """Another order that keeps that of each key."""
    queues: dict[object, list[Row]] = {}
    for row in rows:
        queues.setdefault(row[1], []).append(row)
    shuffled = []
    while queues:
        key = chance.choice(list(queues))
        shuffled.append(queues[key].pop(0))
        if not queues[key]:
            del queues[key]
    return shuffled


@pytest.mark.parametrize("hash_bits", [0, 2, 4, 32])
def test_order_of_arrival_does_not_matter_but_within_a_key(hash_bits: int) -> None:
    chance = random.Random(hash_bits)
    rows = keyed_rows(chance, 700)
    first = sort(rows, KEY, hash_bits=hash_bits)
    again = sort(shuffled_but_for_keys(rows, chance), KEY, hash_bits=hash_bits, batch_rows=37)
    assert again == first
    for found in first.values():
        for key in {row[1] for row in found}:
            values = [int(row[2]) for row in found if row[1] == key]
            assert values == sorted(values), f"{key!r} lost its order"
    assert sorted(str(row) for found in first.values() for row in found) == sorted(map(str, rows))


@pytest.mark.parametrize("hash_bits", [0, 3, 32])
def test_by_content_no_order_of_arrival_matters_at_all(hash_bits: int) -> None:
    chance = random.Random(hash_bits)
    headers = [None, [], [{"key": "a", "value": None}], [{"key": "a", "value": b"x"}], [{"key": "b", "value": b""}]]
    keys = [None, b"", b"a", b"b"]
    rows: list[Row] = [
        (chance.randrange(3), chance.choice(keys), b"%d" % chance.randrange(3), chance.choice(headers))
        for _ in range(500)
    ]
    first = sort(rows, CONTENT, hash_bits=hash_bits)
    chance.shuffle(rows)
    again = sort(rows, CONTENT, hash_bits=hash_bits, batch_rows=11)
    assert again == first


def test_nothing_in_nothing_out() -> None:
    assert sort([], KEY, hash_bits=1) == {}


@pytest.mark.parametrize("memory_bytes", [0, 2**40])
def test_a_batch_without_rows_that_are_to_be_sorted_changes_nothing(memory_bytes: int) -> None:
    records = pa.RecordBatch.from_arrays([pa.array([b"k"]), pa.array([b"v"])], names=["key", "value"])
    none, one = np.empty(0, np.int64), np.array([2])
    with RowSorter(KEY, memory_bytes=memory_bytes) as sorter:
        sorter.add(none, none.astype(np.uint64), records.slice(0, 0))
        assert list(sorter.drain()) == []
        sorter.add(one, one.astype(np.uint64), records)
        assert [(target, rows.to_pylist()) for target, rows in sorter.drain()] == [(2, records.to_pylist())]
