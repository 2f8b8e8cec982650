"""A rehearsal sees what it has done, and the store beneath sees nothing of it."""

from __future__ import annotations

import pytest

from bus.storage_delta.stores.rehearsal import RehearsalStore
from bus.storage_delta.stores.store import KeyExists, KeyNotFound
from tests.support.memory_store import MemoryStore


@pytest.fixture
def beneath() -> MemoryStore:
    store = MemoryStore()
    for name in ("old", "kept", "changed"):
        store.create(f"t/{name}", b"before")
    return store


def test_changes_are_seen_here_and_not_beneath(beneath: MemoryStore) -> None:
    rehearsal = RehearsalStore(beneath)
    rehearsal.delete("t/old")
    rehearsal.put("t/changed", b"after it")
    rehearsal.create("t/new", b"new")
    rehearsal.create("t/below/new", b"new")
    assert [(entry.name, entry.size) for entry in rehearsal.list("t").files] == [
        ("changed", 8),
        ("kept", 6),
        ("new", 3),
    ]
    assert list(rehearsal.list("t").folders) == ["below"]
    assert bytes(rehearsal.get_range("t/changed", 6, 10)) == b"it"
    with pytest.raises(KeyNotFound):
        rehearsal.get("t/old")
    assert [entry.name for entry in beneath.list("t").files] == ["changed", "kept", "old"]
    assert beneath.get("t/changed") == b"before"


def test_what_is_there_beneath_is_there(beneath: MemoryStore) -> None:
    rehearsal = RehearsalStore(beneath)
    with pytest.raises(KeyExists):
        rehearsal.create("t/kept", b"x")
    rehearsal.delete("t/kept")
    rehearsal.create("t/kept", b"x")
    assert rehearsal.get("t/kept") == b"x"


def test_a_folder_that_was_deleted_is_empty(beneath: MemoryStore) -> None:
    rehearsal = RehearsalStore(beneath)
    rehearsal.create("t/below/new", b"new")
    rehearsal.delete_folder("t")
    assert not rehearsal.list("t").files
    assert len(beneath.list("t").files) == 3


def test_what_is_large_is_read_back_whole_and_in_parts(beneath: MemoryStore) -> None:
    rehearsal = RehearsalStore(beneath)
    large, other = bytes(range(256)) * 8192, b"x" * (1 << 20)
    rehearsal.write_unique("t/large", large)
    rehearsal.write_parts("t/other", [other[:10], other[10:]])
    assert (rehearsal.get("t/large"), rehearsal.get("t/other")) == (large, other)
    assert rehearsal.get_range("t/large", 255, 3) == b"\xff\x00\x01"
    assert rehearsal.get_range("t/large", len(large) - 1, 10) == b"\xff"
    assert rehearsal.sizes(["t/large", "t/other"]) == [len(large), len(other)]
