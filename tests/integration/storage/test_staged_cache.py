"""Rows that a leader has staged itself are applied out of memory, and are those that the files have."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from bus.errors import StorageFault
from bus.model import RecordBatch
from bus.storage_delta import staging
from bus.storage_delta.staging import DeltaStagedTransactions, StagedCache
from bus.storage_delta.stores.store import Listing
from tests.support.memory_store import MemoryStore
from tests.support.stores import NOW_MS
from tests.support.transactions import KEY, staged_batch

FOLDER = "topics/prices/0"


class CountingStore(MemoryStore):
    """Counts what is read."""

    reads = 0

    def get(self, key: str) -> bytes:
        self.reads += 1
        return super().get(key)


def numbers(first: int, last: int, now_ms: int = NOW_MS) -> RecordBatch:
    return staged_batch(first, *(b"%d" % number for number in range(first, last + 1)), now_ms=now_ms)


def leader(store: MemoryStore, cache: StagedCache | None, topic_id: str = "one") -> DeltaStagedTransactions:
    return DeltaStagedTransactions(store, FOLDER, cache=cache, topic_id=topic_id)


def values_of(batches: Sequence[RecordBatch]) -> list[bytes]:
    return [value for batch in batches for value in batch.columns.column("value").to_pylist()]


def test_what_this_leader_staged_is_not_read_from_the_files_and_is_the_same() -> None:
    store = CountingStore()
    staged = leader(store, StagedCache())
    for first, last in ((0, 2), (3, 3), (4, 9)):
        staged.stage(KEY, numbers(first, last))
    for last_sequence in (9, 6, 4, 3, 0):
        own = list(staged.read(KEY, last_sequence))
        assert store.reads == 0
        assert own == list(leader(store, None).read(KEY, last_sequence))
        store.reads = 0


def test_what_memory_has_exactly_is_recalled_without_any_reading() -> None:
    store = CountingStore()
    staged = leader(store, StagedCache())
    for first, last in ((0, 2), (3, 3), (4, 9)):
        staged.stage(KEY, numbers(first, last))
    for last_sequence in (9, 3, 2):
        recalled = staged.recall(KEY, last_sequence)
        assert recalled is not None
        assert list(recalled) == list(staged.read(KEY, last_sequence))
    assert store.reads == 0
    assert staged.recall(KEY, 5) is None, "the last batch has to be cut"
    assert staged.recall(KEY, 10) is None
    assert leader(store, StagedCache()).recall(KEY, 9) is None
    staged.drop(KEY)
    assert staged.recall(KEY, 9) is None


def test_what_another_leader_staged_is_read_from_its_file() -> None:
    """Its broker may have given it other timestamps than ours gave to the repeat."""
    store = CountingStore()
    leader(store, None).stage(KEY, numbers(0, 2))
    staged = leader(store, StagedCache())
    staged.stage(KEY, numbers(0, 2, NOW_MS + 5))
    staged.stage(KEY, numbers(3, 4, NOW_MS + 5))
    assert [batch.timestamp_min_ms for batch in staged.read(KEY, 4)] == [NOW_MS, NOW_MS + 5]


def test_what_was_staged_after_this_leader_counts_too() -> None:
    store = CountingStore()
    staged = leader(store, StagedCache())
    staged.stage(KEY, numbers(0, 2))
    leader(store, None).stage(KEY, numbers(3, 5))
    assert values_of(staged.read(KEY, 5)) == [b"0", b"1", b"2", b"3", b"4", b"5"]


def test_a_batch_whose_file_could_not_be_written_is_not_in_memory() -> None:
    class FullStore(MemoryStore):
        def create(self, key: str, data: object, **_: object) -> None:  # type: ignore[override]
            raise StorageFault("no room")

    cache = StagedCache()
    with pytest.raises(StorageFault, match="no room"):
        leader(FullStore(), cache).stage(KEY, numbers(0, 2))
    assert cache.size_bytes == 0


def test_a_table_that_is_created_again_knows_nothing_of_the_one_before() -> None:
    cache = StagedCache()
    leader(MemoryStore(), cache).stage(KEY, numbers(0, 2))
    with pytest.raises(StorageFault, match="sequence 0"):
        leader(MemoryStore(), cache, "two").read(KEY, 2)


def test_the_transaction_of_which_nothing_came_for_longest_leaves_as_a_whole() -> None:
    store = CountingStore()
    cache = StagedCache(3 * (1024 + numbers(0, 0).size_bytes))
    staged = leader(store, cache)
    other = replace(KEY, producer_epoch=4)
    staged.stage(KEY, numbers(0, 0))
    staged.stage(other, staged_batch(0, b"a", key=other))
    staged.stage(KEY, numbers(1, 1))
    staged.stage(KEY, numbers(2, 2))
    assert values_of(staged.read(KEY, 2)) == [b"0", b"1", b"2"]
    assert store.reads == 0
    assert values_of(staged.read(other, 0)) == [b"a"]
    assert store.reads == 1
    staged.stage(KEY, numbers(3, 3))
    assert cache.size_bytes == 0, "larger than all that there is room for"
    assert values_of(staged.read(KEY, 3)) == [b"0", b"1", b"2", b"3"]
    assert store.reads == 5


def test_what_is_dropped_leaves_memory_and_what_comes_twice_counts_once() -> None:
    cache = StagedCache()
    staged = leader(MemoryStore(), cache)
    staged.stage(KEY, numbers(0, 0))
    once = cache.size_bytes
    staged.stage(KEY, numbers(0, 0))
    assert cache.size_bytes == once > 0
    staged.stage(KEY, numbers(0, 4))
    staged.drop(KEY)
    assert cache.size_bytes == 0


# ---------------------------------------------------------------------- in no file


def test_what_is_held_is_recalled_and_in_no_file_until_it_is_saved() -> None:
    store = CountingStore()
    staged = leader(store, StagedCache())
    for first, last in ((0, 2), (3, 3)):
        assert staged.hold(KEY, numbers(first, last))
    recalled = staged.recall(KEY, 3)
    assert recalled is not None
    assert values_of(recalled) == [b"0", b"1", b"2", b"3"]
    assert staged.find(KEY) is None
    assert list(staged.list()) == []
    for _ in range(2):
        assert staged.save(KEY) is None
    saved = staged.read(KEY, 3)
    assert values_of(saved) == [b"0", b"1", b"2", b"3"]
    assert list(leader(store, None).read(KEY, 3)) == list(saved)
    assert [entry.name for entry in store.list(f"{FOLDER}/_staged/{KEY.coordinator_partition}").files] == [
        f"{KEY.producer_id}-{KEY.producer_epoch}-0-3.arrow"
    ]
    assert not staged.forget(KEY)
    staged.drop(KEY)
    assert staged.find(KEY) is None


def test_what_is_held_is_forgotten_without_a_file_being_touched() -> None:
    class ClosedStore(MemoryStore):
        def list(self, folder: str, **_: object) -> Listing:  # type: ignore[override]
            raise StorageFault("nothing is to be listed")

    cache = StagedCache()
    staged = leader(ClosedStore(), cache)
    assert staged.hold(KEY, numbers(0, 2))
    assert staged.forget(KEY)
    assert not staged.forget(KEY)
    assert staged.hold(KEY, numbers(0, 2))
    staged.drop(KEY)
    assert cache.size_bytes == 0
    assert staged.recall(KEY, 2) is None


def test_what_is_held_stays_though_others_leave_for_it() -> None:
    one = 1024 + numbers(0, 0).size_bytes
    cache = StagedCache(2 * one)
    staged = leader(MemoryStore(), cache)
    other = replace(KEY, producer_epoch=4)
    staged.stage(other, staged_batch(0, b"a", key=other))
    assert [staged.hold(KEY, numbers(sequence, sequence)) for sequence in range(3)] == [True, True, False]
    staged.stage(other, staged_batch(1, b"a", key=other))
    assert staged.recall(KEY, 1) is not None
    assert cache.size_bytes == 2 * one
    assert staged.recall(other, 1) is None
    assert staged.save(KEY) is None
    assert staged.hold(other, staged_batch(0, b"a", key=other)), "what is saved makes room"


def test_files_that_another_leader_staged_count_where_what_is_held_is_saved() -> None:
    store = CountingStore()
    leader(store, None).stage(KEY, numbers(0, 4))
    staged = leader(store, StagedCache())
    staged.hold(KEY, numbers(0, 2, NOW_MS + 5))
    staged.hold(KEY, numbers(3, 4, NOW_MS + 5))
    assert staged.save(KEY) is None
    assert [batch.timestamp_min_ms for batch in staged.read(KEY, 4)] == [NOW_MS]


def test_files_that_another_leader_staged_count_beside_those_that_are_saved(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(staging, "_JOINED_BYTES_MAX", 0)
    store = CountingStore()
    leader(store, None).stage(KEY, numbers(0, 2))
    staged = leader(store, StagedCache())
    staged.hold(KEY, numbers(0, 2, NOW_MS + 5))
    staged.hold(KEY, numbers(3, 4, NOW_MS + 5))
    assert staged.save(KEY) is None
    assert [batch.timestamp_min_ms for batch in staged.read(KEY, 4)] == [NOW_MS, NOW_MS + 5]


def test_what_is_held_and_cannot_be_saved_stays() -> None:
    class FullStore(MemoryStore):
        def create(self, key: str, data: object, **_: object) -> None:  # type: ignore[override]
            raise StorageFault("no room")

    staged = leader(FullStore(), StagedCache())
    staged.hold(KEY, numbers(0, 2))
    with pytest.raises(StorageFault, match="no room"):
        staged.save(KEY)
    assert staged.recall(KEY, 2) is not None


def test_memory_of_what_was_held_is_free_though_some_of_it_is_in_files() -> None:
    cache, store = StagedCache(), CountingStore()
    staged = leader(store, cache)
    assert staged.hold(KEY, numbers(0, 2))
    assert staged.save(KEY) is None
    saved_bytes = cache.size_bytes
    assert staged.hold(KEY, numbers(3, 4))
    assert not staged.forget(KEY)
    assert cache.size_bytes == saved_bytes
    assert staged.recall(KEY, 4) is None
    assert staged.recall(KEY, 2) is not None
    staged.drop(KEY)
    assert staged.find(KEY) is None


def test_batches_that_are_saved_share_files_of_bounded_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(staging, "_JOINED_BYTES_MAX", 3 * numbers(0, 0).size_bytes)
    store, cache = CountingStore(), StagedCache()
    staged = leader(store, cache)
    for sequence in range(7):
        staged.hold(KEY, numbers(sequence, sequence, NOW_MS + sequence))
    assert staged.save(KEY) is None
    batches = leader(store, None).read(KEY, 6)
    assert [batch.record_count for batch in batches] == [3, 3, 1]
    assert values_of(batches) == [b"%d" % sequence for sequence in range(7)]
    assert list(staged.read(KEY, 6)) == list(batches)
    assert cache.size_bytes == sum(batch.size_bytes + 1024 for batch in batches), "what was joined is held once"
    times = [time for batch in batches[:2] for time in batch.columns.column("timestamp").cast("int64").to_pylist()]
    assert times == [(NOW_MS + sequence) * 1000 for sequence in range(6)], "each batch has the time of its arrival"
    staged.drop(KEY)
    assert staged.find(KEY) is None
    assert cache.size_bytes == 0


def test_what_was_saved_in_part_is_released_as_a_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(staging, "_JOINED_BYTES_MAX", 0)

    class FailingStore(MemoryStore):
        def create(self, key: str, data: object, **more: object) -> None:  # type: ignore[override]
            if "-3-3" in key:
                raise StorageFault("no room")
            super().create(key, data, **more)  # type: ignore[arg-type]

    cache = StagedCache()
    staged = leader(FailingStore(), cache)
    for first, last in ((0, 2), (3, 3)):
        staged.hold(KEY, numbers(first, last))
    with pytest.raises(StorageFault, match="no room"):
        staged.save(KEY)
    assert not staged.forget(KEY)
    staged.release(KEY)
    assert cache.size_bytes == 0
