from __future__ import annotations

from bus.model import LogBatch, TimestampType
from bus.runtime.partitions.tail_cache import Tail, TailCache

OVERHEAD = 1024


def batch(base_offset: int, count: int = 10, size_bytes: int = 1000) -> LogBatch:
    return LogBatch(
        base_offset, base_offset + count, count, size_bytes, 0, TimestampType.CREATE_TIME, 0, 0, columns=None
    )


def test_reading_begins_with_the_batch_that_holds_the_offset() -> None:
    cache, tail = TailCache(1_000_000), Tail()
    cache.extend(tail, [batch(0), batch(10), batch(20)])
    assert [found.base_offset for found in tail.read(15, 2_000)] == [10, 20]
    assert [found.base_offset for found in tail.read(15, 1)] == [10]


def test_offset_below_the_tail_or_beyond_it_is_not_there() -> None:
    cache, tail = TailCache(1_000_000), Tail()
    cache.extend(tail, [batch(10)])
    assert tail.start_offset == 10
    assert tail.read(9, 1_000) == []
    assert tail.read(20, 1_000) == []


def test_oldest_batch_of_the_broker_goes_first() -> None:
    cache, old, new = TailCache(3 * (1000 + OVERHEAD)), Tail(), Tail()
    cache.extend(old, [batch(0), batch(10)])
    cache.extend(new, [batch(0), batch(10)])
    assert (old.start_offset, new.start_offset) == (10, 0)
    assert cache.size_bytes == 3 * (1000 + OVERHEAD)


def test_bound_holds_over_many_batches_and_tail_stays_gapless() -> None:
    cache, tail = TailCache(50 * (1000 + OVERHEAD)), Tail()
    for index in range(1000):
        cache.extend(tail, [batch(index * 10)])
    assert tail.start_offset == 9500
    assert [found.base_offset for found in tail.read(9500, 1_000_000)] == list(range(9500, 10000, 10))
    assert tail.bytes_from(9990, 10_000) == 1000
    assert tail.bytes_from(9500, 2_000) == 2_000


def test_cleared_tail_gives_its_bytes_back_and_can_grow_again() -> None:
    cache, tail, other = TailCache(1_000_000), Tail(), Tail()
    cache.extend(tail, [batch(0)])
    cache.extend(other, [batch(0)])
    cache.clear(tail)
    assert tail.start_offset is None
    assert cache.size_bytes == 1000 + OVERHEAD
    cache.extend(tail, [batch(70)])
    assert [found.base_offset for found in tail.read(70, 1)] == [70]


def test_a_cut_tail_begins_at_the_offset_or_above_and_the_others_stay() -> None:
    cache, tail, other = TailCache(1_000_000), Tail(), Tail()
    for base_offset in range(0, 40, 10):
        cache.extend(tail, [batch(base_offset)])
        cache.extend(other, [batch(base_offset)])
    cache.cut(tail, 15)
    assert (tail.start_offset, other.start_offset) == (20, 0)
    assert cache.size_bytes == 6 * (1000 + OVERHEAD)
    cache.cut(tail, 15)
    assert cache.size_bytes == 6 * (1000 + OVERHEAD)


def test_bound_holds_for_tails_that_are_cut_again_and_again() -> None:
    cache, tail, other = TailCache(10 * (1000 + OVERHEAD)), Tail(), Tail()
    for index in range(1000):
        cache.extend(tail, [batch(index * 10)])
        cache.extend(other, [batch(index * 10)])
        if index % 3 == 0:
            cache.cut(tail, index * 10)
    held = [found for each in (tail, other) for found in each.read(each.start_offset or 0, 1 << 40)]
    assert cache.size_bytes == len(held) * (1000 + OVERHEAD) <= 10 * (1000 + OVERHEAD)
    assert len(cache._order) <= 2 * len(held) + 1
    cache.clear(tail)
    cache.clear(other)
    assert cache.size_bytes == 0
