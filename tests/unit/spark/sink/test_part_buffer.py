"""Rows keep the order in which they were added to their partition, and parts are worth a request and bounded."""

from __future__ import annotations

import random

import pyarrow as pa

from bus.model import TopicPartition
from bus.spark.sink.stamped_writer import PartBuffer


def rows(first: int, count: int, size: int = 10) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays(
        [pa.array([b"%d" % number + b"." * size for number in range(first, first + count)])], names=["value"]
    )


class Sent:
    def __init__(self) -> None:
        self.values: dict[TopicPartition, list[bytes]] = {}
        self.batches: list[pa.RecordBatch] = []

    def __call__(self, partition: TopicPartition, records: pa.RecordBatch) -> None:
        so_far = self.values.setdefault(partition, [])
        so_far += records.column("value").to_pylist()
        self.batches.append(records)


def test_rows_are_sent_in_the_order_in_which_they_were_added() -> None:
    chance = random.Random(5)
    sent, expected = Sent(), dict[TopicPartition, list[bytes]]()
    parts = PartBuffer(sent, part_bytes=500, buffered_bytes_max=2_000)
    for step in range(300):
        partition = TopicPartition("t", chance.randrange(7))
        added = rows(step * 100, chance.randrange(1, 90))
        parts.add(partition, added)
        expected.setdefault(partition, []).extend(added.column("value").to_pylist())
    parts.flush()
    assert sent.values == expected
    assert parts.record_count == sum(map(len, expected.values()))
    assert max(batch.nbytes for batch in sent.batches) <= 500


def test_small_additions_gather_until_they_are_worth_a_request() -> None:
    sent = Sent()
    parts = PartBuffer(sent, part_bytes=10_000, buffered_bytes_max=10**9)
    for number in range(3_000):
        parts.add(TopicPartition("t", 0), rows(number, 1))
    assert sent.batches, "a full part does not wait for the end"
    parts.flush()
    assert min(batch.num_rows for batch in sent.batches[:-1]) > 100


def test_many_partitions_together_hold_no_more_than_the_bound() -> None:
    sent = Sent()
    parts = PartBuffer(sent, part_bytes=10_000, buffered_bytes_max=20_000)
    added = 0
    for number in range(100):
        parts.add(TopicPartition("t", number), (batch := rows(0, 50)))
        added += batch.nbytes
        assert added - sum(one.nbytes for one in sent.batches) <= 20_000


def test_record_larger_than_a_part_travels_alone() -> None:
    sent = Sent()
    parts = PartBuffer(sent, part_bytes=100, buffered_bytes_max=1_000)
    parts.add(TopicPartition("t", 0), rows(0, 3, size=5_000))
    assert [batch.num_rows for batch in sent.batches] == [1, 1, 1]
