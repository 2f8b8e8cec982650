"""Staged batches against a naive model: whatever leaders stage over one another, each sequence comes back once."""

from __future__ import annotations

import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bus.errors import StorageFault
from bus.storage_delta.staging import DeltaStagedTransactions, StagedCache
from tests.support.memory_store import MemoryStore
from tests.support.transactions import KEY, staged_batch

SPANS = st.lists(st.tuples(st.integers(0, 12), st.integers(1, 6)), max_size=12)
FLIPS = st.lists(st.tuples(st.integers(0, 1 << 16), st.integers(0, 255)), min_size=1, max_size=4)


@given(SPANS, st.integers(0, 18))
def test_what_is_read_is_each_sequence_once(spans: list[tuple[int, int]], last_sequence: int) -> None:
    staged = DeltaStagedTransactions(MemoryStore(), "table")
    for first, count in spans:
        assert staged.stage(KEY, staged_batch(first, *(b"%d" % at for at in range(first, first + count)))) is None
    there = {at for first, count in spans for at in range(first, first + count)}
    dense = next(at for at in range(20) if at not in there)
    found = staged.find(KEY)
    assert (found is None) == (not spans)
    assert found is None or found.last_sequence == dense - 1
    if last_sequence >= dense:
        with pytest.raises(StorageFault, match=f"sequence {dense}"):
            staged.read(KEY, last_sequence)
        return
    values = [value for batch in staged.read(KEY, last_sequence) for value in batch.columns.column(0).to_pylist()]
    assert values == [b"%d" % at for at in range(last_sequence + 1)]


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 3), st.integers(1, 4)), max_size=12), st.integers(0, 18))
def test_memory_of_either_leader_has_each_sequence_once(steps: list[tuple[bool, int, int]], last_sequence: int) -> None:
    """Two leaders stage over one another."""
    store = MemoryStore()
    leaders = [DeltaStagedTransactions(store, "table", cache=StagedCache()) for _ in range(2)]
    end = 0
    for is_second, back, count in steps:
        first = max(0, end - back)
        values = (b"%d" % at for at in range(first, first + count))
        assert leaders[is_second].stage(KEY, staged_batch(first, *values)) is None
        end = max(end, first + count)
    if last_sequence >= end:
        return
    for leader in leaders:
        values = [value for batch in leader.read(KEY, last_sequence) for value in batch.columns.column(0).to_pylist()]
        assert values == [b"%d" % at for at in range(last_sequence + 1)]


@given(FLIPS)
def test_bytes_that_someone_forged_with_their_checksum_are_a_batch_or_a_fault(flips: list[tuple[int, int]]) -> None:
    store = MemoryStore()
    staged = DeltaStagedTransactions(store, "table")
    staged.stage(KEY, staged_batch(0, b"one", b"two" * 10, b"three"))
    name = "table/_staged/7/41-3-0-2.arrow"
    stream = bytearray(store.get(name)[:-8])
    for at, value in flips:
        stream[at % len(stream)] = value
    store.put(name, bytes(stream) + b"BUS1" + zlib.crc32(stream).to_bytes(4, "little"))
    said, record_count = "", 3
    try:
        record_count = sum(batch.record_count for batch in staged.read(KEY, 2))
    except StorageFault as fault:
        said = str(fault)
    assert record_count == 3
    assert not said or name in said
