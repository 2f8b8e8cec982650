"""Partitions of rows: as in Kafka, and the same when the task runs again."""

from __future__ import annotations

import random
from collections import Counter

import pyarrow as pa
import pytest

from bus.errors import BusError, ErrorCode
from bus.spark.sink.columns import Placement, RowRefused, Rows
from tests.support.murmur2 import partition_of_key

COUNTS = {"a": 3, "b": 5}


def count_of(topic: str) -> int:
    if topic not in COUNTS:
        raise BusError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"no {topic}")
    return COUNTS[topic]


def placement(topic: str | None = None, *, first_turn: int = 0, by_value: bool = False) -> Placement:
    return Placement(topic, count_of, first_turn=first_turn, by_value=by_value)


def rows(
    topics: list[str] | None = None,
    partitions: list[int | None] | None = None,
    keys: list[bytes | None] | None = None,
    values: list[bytes] | None = None,
) -> Rows:
    count = len(topics or partitions or keys or values or ())
    columns = {"value": pa.array(values or [b"v"] * count, pa.binary())}
    if keys is not None:
        columns["key"] = pa.array(keys, pa.binary())
    return Rows(
        None if topics is None else pa.array(topics),
        None if partitions is None else pa.array(partitions, pa.int32()),
        pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns)),
    )


def places(machine: Placement, some: Rows) -> list[tuple[str, int]]:
    found = [machine.partitions[target] for target in machine.place(some).targets]
    return [(partition.topic, partition.partition) for partition in found]


def test_named_partition_beats_the_key_and_the_key_goes_where_kafka_puts_it() -> None:
    chance = random.Random(1)
    topics = [chance.choice("ab") for _ in range(400)]
    keys = [b"key-%d" % chance.randrange(90) for _ in topics]
    named = [chance.choice([None, None, 0, 1, 2]) for _ in topics]
    expected = [
        (topic, partition_of_key(key, COUNTS[topic]) if partition is None else partition)
        for topic, key, partition in zip(topics, keys, named, strict=True)
    ]
    assert places(placement(), rows(topics, named, list(keys))) == expected


def test_option_topic_takes_all_rows() -> None:
    assert places(placement("b"), rows(keys=[b"x", b"y"])) == [
        ("b", partition_of_key(b"x", 5)),
        ("b", partition_of_key(b"y", 5)),
    ]


def test_rows_with_neither_go_in_long_runs_that_take_turns_and_tasks_begin_elsewhere() -> None:
    machine = placement("a", first_turn=1)
    values = [b"v"] * 10_000
    found = [places(machine, rows(values=values)) for _ in range(6)]
    runs = Counter(partition for batch in found for _, partition in batch)
    assert found[0][0] == ("a", 1)
    assert found[1][6_383:6_385] == [("a", 1), ("a", 2)], "a run is of 16,384 rows, however they come"
    assert set(runs) == {0, 1, 2}
    assert [places(placement("a", first_turn=turn), rows(values=[b"v"]))[0][1] for turn in range(4)] == [0, 1, 2, 0]


def test_by_value_the_position_does_not_matter() -> None:
    values = [b"%d" % number for number in range(200)]
    forth = dict(zip(values, places(placement("b", by_value=True), rows(values=values)), strict=True))
    values.reverse()
    back = dict(zip(values, places(placement("b", first_turn=3, by_value=True), rows(values=values)), strict=True))
    assert back == forth
    assert len(set(forth.values())) == 5


def test_null_key_is_no_key() -> None:
    found = places(placement("b", first_turn=4), rows(keys=[None, b"x", None]))
    assert found == [("b", 4), ("b", partition_of_key(b"x", 5)), ("b", 4)]


@pytest.mark.parametrize("wrong", [-1, 3])
def test_partition_that_is_not_there_is_refused_with_those_that_are(wrong: int) -> None:
    with pytest.raises(RowRefused, match=f"expected a partition of 'a' from 0 to 2, found {wrong}"):
        placement().place(rows(["b", "a"], [3, wrong]))


def test_unknown_topic_is_refused() -> None:
    with pytest.raises(BusError, match="UNKNOWN_TOPIC_OR_PARTITION"):
        placement().place(rows(["a", "c"]))
