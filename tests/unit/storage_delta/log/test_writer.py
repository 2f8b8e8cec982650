"""Versions that a leader finds behind the last one that it knows."""

from __future__ import annotations

from bus.model import TopicPartition
from bus.ports import Committed
from bus.storage_delta.root import open_storage_on
from tests.support.memory_store import MemoryStore

P0 = TopicPartition("orders", 0)


def test_version_of_another_leader_is_seen_behind_one_of_ours_that_memory_does_not_have() -> None:
    """A commit had an unknown outcome, and the log cannot be read again."""
    store = MemoryStore()
    ours, others = open_storage_on(store, exclusive=False), open_storage_on(store, exclusive=False)
    table = ours.create_partition(P0, topic_id="id-1")
    assert isinstance(table.lead(1, 0, fence=True), Committed)
    assert table.is_last()
    assert table.is_at_end()
    doubtful = ours.open_partition(P0, topic_id="id-1")
    assert isinstance(doubtful.lead(2, 0, fence=True), Committed)
    assert table.is_last(), "a version of ours, on its way into memory"
    assert not table.is_at_end()
    assert isinstance(others.open_partition(P0, topic_id="id-1").lead(3, 0, fence=True), Committed)
    assert not table.is_last()
