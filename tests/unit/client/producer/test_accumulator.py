from __future__ import annotations

import threading
from collections import defaultdict
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from bus.client.config.clients import ProducerConfig
from bus.client.config.parsing import parse_config
from bus.client.connection.metadata_cache import PartitionLeader, TopicInfo
from bus.client.producer.accumulator import BufferPool, RecordAccumulator
from bus.client.producer.batch import RECORD_OVERHEAD_BYTES
from tests.support.murmur2 import partition_of_key

MEMORY_BYTES = 1_000_000


class Bench:
    """An accumulator whose undecided records go to the partition `sticky`."""

    def __init__(self, partitions: int = 4, sticky: int = 0, **configs: Any) -> None:
        self.pool = BufferPool(MEMORY_BYTES, threading.Lock(), lambda: 0.0)
        self.asked: list[int] = []  # the sizes that the choice was asked for
        self.sticky = sticky
        config = parse_config(ProducerConfig, {"buffer_memory": MEMORY_BYTES, **configs})
        self.accumulator = RecordAccumulator(config, self.pool, self._choose)
        leaders = tuple(PartitionLeader(number, 0, 0, 0, "") for number in range(partitions))
        self.info = TopicInfo("t", "id", leaders, 0.0)

    def _choose(self, topic: str, info: TopicInfo, size_bytes: int, now_ms: float) -> int:
        self.asked.append(size_bytes)
        return self.sticky

    def fill(self, *records: tuple[bytes, bytes | None, int | None], now_ms: float = 0.0) -> Any:
        """Value, key, partition of each; the batch."""
        limit = self.accumulator.limit_for(100_000, len(self.info.partitions), has_key=False)
        assert self.pool.try_take(limit)
        batch = self.accumulator.open_batch("t", limit, len(self.info.partitions), now_ms)
        for value, key, partition in records:
            batch.add(value, key, None, partition, 5, RECORD_OVERHEAD_BYTES + len(value) + len(key or b""))
        return batch

    def close(self, batch: Any, *, is_known: bool = True) -> dict[int, list[bytes]]:
        placed = {}
        for partition, chunk in self.accumulator.close(batch, self.info if is_known else None, 0.0):
            chunk.to_arrow()
            placed[partition] = chunk.values.to_pylist()
        return placed


def test_batch_is_as_large_as_batch_size_or_its_first_record() -> None:
    accumulator = Bench(batch_size=1_000).accumulator
    assert accumulator.limit_for(10, 8, has_key=False) == 1_000
    assert accumulator.limit_for(5_000, 8, has_key=False) == 5_000


def test_batch_with_keys_has_room_for_a_batch_of_each_partition_within_reason() -> None:
    accumulator = Bench(batch_size=1_000).accumulator
    assert accumulator.limit_for(10, 8, has_key=True) == 8_000
    assert accumulator.limit_for(10, 10_000, has_key=True) == MEMORY_BYTES // 8, "an eighth of all memory at most"
    assert Bench(batch_size=1_000, partitioner_ignore_keys=True).accumulator.limit_for(10, 8, has_key=True) == 1_000


def test_batch_is_due_after_its_linger_and_dies_after_its_delivery_time_out() -> None:
    batch = Bench(linger_ms=20, delivery_timeout_ms=50_000).fill(now_ms=100.0)
    assert (batch.due_at_ms, batch.deadline_ms) == (120, 50_100)


def test_records_without_a_key_stay_together_where_the_choice_says() -> None:
    bench = Bench(sticky=2)
    assert bench.close(bench.fill((b"a", None, None), (b"b", None, None))) == {2: [b"a", b"b"]}
    assert bench.asked == [2 * RECORD_OVERHEAD_BYTES + 2]


def test_keys_are_not_looked_at_if_they_are_ignored() -> None:
    bench = Bench(sticky=2, partitioner_ignore_keys=True)
    assert bench.close(bench.fill((b"a", b"k", None), (b"b", b"l", None), (b"c", b"m", 1))) == {
        2: [b"a", b"b"],
        1: [b"c"],
    }


def test_the_choice_is_not_asked_if_nothing_is_left_to_choose() -> None:
    bench = Bench()
    bench.close(bench.fill((b"a", None, 3), (b"b", None, 1)))
    bench.close(bench.fill((b"a", b"k", None), (b"b", b"l", None)))
    assert bench.asked == []


def test_what_a_batch_did_not_use_is_given_back_when_it_closes_and_the_rest_with_its_chunks() -> None:
    bench = Bench()
    batch = bench.fill((b"aa", b"k", None), (b"b", None, None), (b"c", b"l", 3))
    chunks = bench.accumulator.close(batch, bench.info, 0.0)
    used = 3 * RECORD_OVERHEAD_BYTES + 6
    assert bench.pool.available_bytes == MEMORY_BYTES - used
    assert sum(chunk.reserved_bytes for _, chunk in chunks) == used


RECORDS = st.lists(
    st.tuples(st.binary(max_size=4), st.none() | st.binary(max_size=4), st.none() | st.integers(0, 2)), min_size=1
)


@settings(deadline=None)
@given(RECORDS, st.integers(3, 6), st.integers(0, 2), st.booleans())
def test_every_record_goes_where_the_rules_say_one_by_one(
    records: list[tuple[bytes, bytes | None, int | None]], partitions: int, sticky: int, ignores_keys: bool
) -> None:
    bench = Bench(partitions, sticky, partitioner_ignore_keys=ignores_keys)
    expected: defaultdict[int, list[bytes]] = defaultdict(list)
    for value, key, partition in records:
        if partition is None:
            has_key = key is not None and not ignores_keys
            partition = partition_of_key(key, partitions) if has_key else sticky  # type: ignore[arg-type]
        expected[partition].append(value)
    assert bench.close(bench.fill(*records)) == dict(expected)


def test_batch_that_has_grown_is_shared_out_and_each_share_keeps_its_order() -> None:
    bench = Bench(4)
    drawn = iter([2, 0, 2])
    bench.accumulator._choose = lambda topic, info, size_bytes, now_ms: next(drawn)
    values = [b"%0*d" % (1_000, number) for number in range(205)]
    batch = bench.fill()
    futures = [batch.add(value, None, None, None, 5, RECORD_OVERHEAD_BYTES + 1_000) for value in values]
    assert bench.close(batch) == {0: values[:69], 2: values[69:]}
    places = [(future._batch.chunk_of(future._index)[0].partition.partition) for future in futures]
    assert places == [0] * 69 + [2] * 136


def test_records_of_a_topic_that_is_not_known_any_more_go_by_their_keys_and_partitions_all_the_same() -> None:
    keys = [b"%d" % number for number in range(20)]
    records = [*((key, key, None) for key in keys), (b"asked", None, 3), (b"any", None, None)]
    bench = Bench()
    placed = bench.close(bench.fill(*records), is_known=False)
    expected: dict[int, list[bytes]] = defaultdict(list)
    for key in keys:
        expected[partition_of_key(key, 4)].append(key)
    expected[3].append(b"asked")
    expected[0].append(b"any")
    assert placed == expected
