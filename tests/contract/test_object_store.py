"""The promises of `bus.storage_delta.stores.store.ObjectStore`, run on every store."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from bus.errors import StorageFault
from bus.ports import MaintenanceStopped
from bus.storage_delta.stores.local import LocalStore
from bus.storage_delta.stores.rehearsal import RehearsalStore
from bus.storage_delta.stores.store import KeyExists, KeyLocked, KeyNotFound, ObjectStore
from tests.support.memory_store import MemoryStore


@pytest.fixture(params=["local", "memory", "rehearsal"])
def reopen(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[], ObjectStore]:
    """The same store, as another process that starts later finds it."""
    if request.param == "local":
        return lambda: LocalStore(str(tmp_path / "root"))
    memory = MemoryStore()
    if request.param == "rehearsal":
        rehearsal = RehearsalStore(memory)
        return lambda: rehearsal
    return lambda: memory


@pytest.fixture
def store(reopen: Callable[[], ObjectStore]) -> ObjectStore:
    return reopen()


def test_what_was_written_is_read_back(store: ObjectStore, reopen: Callable[[], ObjectStore]) -> None:
    for write in (store.create, store.write_unique, store.put):
        store.delete("a/b/file")
        write("a/b/file", b"0123456789")
        assert reopen().get("a/b/file") == b"0123456789"
        assert reopen().size("a/b/file") == 10


@pytest.mark.parametrize("data", [b"", b"bytes", memoryview(b"view"), pa.py_buffer(b"arrow")])
def test_any_buffer_can_be_written(store: ObjectStore, data: bytes) -> None:
    store.create("created", data)
    store.put("put", data)
    store.write_unique("written", data)
    assert {store.get(key) for key in ("created", "put", "written")} == {bytes(data)}


def test_parts_are_one_file_and_are_asked_for_one_after_the_other(store: ObjectStore) -> None:
    store.write_parts("a/parts", iter([b"one", pa.py_buffer(b"two"), b"", memoryview(b"three")]))
    assert store.get("a/parts") == b"onetwothree"
    with pytest.raises(KeyExists):
        store.write_parts("a/parts", iter([b"other"]))
    assert store.get("a/parts") == b"onetwothree"


@pytest.mark.parametrize("error", [StorageFault("cannot be read"), MaintenanceStopped()])
def test_of_parts_that_end_in_an_error_nothing_stays(store: ObjectStore, error: Exception) -> None:
    def parts() -> Iterator[bytes]:
        yield b"one"
        raise error

    with pytest.raises(type(error)):
        store.write_parts("a/parts", parts())
    assert store.list("a").files == []


def test_create_of_a_taken_key_fails_and_leaves_what_is_there(store: ObjectStore) -> None:
    store.create("log/1", b"first")
    with pytest.raises(KeyExists):
        store.create("log/1", b"second")
    assert store.get("log/1") == b"first"


def test_one_of_many_creators_wins(store: ObjectStore) -> None:
    winners: list[int] = []
    start = threading.Barrier(8)

    def race(number: int) -> None:
        start.wait()
        for version in range(20):
            try:
                store.create(f"log/{version}", b"%d" % number)
            except KeyExists:
                continue
            winners.append(version)

    threads = [threading.Thread(target=race, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(winners) == list(range(20))


def test_put_replaces(store: ObjectStore) -> None:
    store.put("hint", b"a longer first content")
    store.put("hint", b"short")
    assert store.get("hint") == b"short"


def test_confirm_leaves_the_bytes_as_they_are(store: ObjectStore) -> None:
    store.create("log/1", b"ours")
    store.confirm("log/1", b"ours")
    assert store.get("log/1") == b"ours"


def test_get_range_ends_where_the_file_ends(store: ObjectStore) -> None:
    store.put("file", b"0123456789")
    assert bytes(store.get_range("file", 2, 3)) == b"234"
    assert bytes(store.get_range("file", 8, 100)) == b"89"
    assert bytes(store.get_range("file", 100, 5)) == b""


def test_an_absent_key_is_named(store: ObjectStore) -> None:
    for read in (store.get, store.size, lambda key: store.get_range(key, 0, 1)):
        with pytest.raises(KeyNotFound, match="a/gone"):
            read("a/gone")


def test_list_gives_one_folder_sorted_with_sizes(store: ObjectStore) -> None:
    for key in ("t/b", "t/a", "t/sub/deep", "t/sub2/deeper/x", "tt"):
        store.put(key, key.encode())
    listing = store.list("t")
    assert [(entry.name, entry.size) for entry in listing.files] == [("a", 3), ("b", 3)]
    assert list(listing.folders) == ["sub", "sub2"]
    assert [entry.name for entry in store.list("t", with_sizes=False).files] == ["a", "b"]
    assert [entry.name for entry in store.list("").files] == ["tt"]
    found = store.list("t", start_at="b")
    assert [(entry.name, entry.size) for entry in found.files] == [("b", 3)]
    assert list(found.folders) == ["sub", "sub2"]
    assert list(store.list("t", start_at="sub2").folders) == ["sub2"]
    found = store.list("t", prefix="sub")
    assert (list(found.files), list(found.folders)) == ([], ["sub", "sub2"])
    assert [entry.name for entry in store.list("t", prefix="b", start_at="a").files] == ["b"]


def test_a_listing_tells_when_files_were_written(store: ObjectStore, reopen: Callable[[], ObjectStore]) -> None:
    before_ms = time.time_ns() // 1_000_000 - 1000  # the clock of a file system lags behind
    store.create("t/a", b"1")
    store.put("t/b", b"22")
    after_ms = time.time_ns() // 1_000_000
    assert all(before_ms <= entry.modified_ms <= after_ms for entry in reopen().list("t").files)
    assert {entry.modified_ms for entry in reopen().list("t", with_sizes=False).files} == {-1}


def test_a_local_file_that_goes_while_it_is_listed_hides_no_other(tmp_path: Path) -> None:
    """A link to nowhere is what a file looks like that was deleted between the two looks."""
    store = LocalStore(str(tmp_path))
    store.create("t/a", b"1")
    (tmp_path / "t" / "b").symlink_to("nowhere")
    assert [entry.name for entry in store.list("t").files] == ["a"]


def test_sizes_of_many_keys_are_told_at_once(store: ObjectStore) -> None:
    store.put("t/a", b"123")
    store.put("t/b", b"")
    assert list(store.sizes(["t/b", "t/gone", "t/a", "nowhere/x"])) == [0, None, 3, None]
    assert list(store.sizes([])) == []


def test_a_local_volume_has_a_size_and_what_may_still_be_written_and_memory_has_neither(tmp_path: Path) -> None:
    volume = LocalStore(str(tmp_path)).measure_volume()
    assert 0 <= volume.usable_bytes < volume.total_bytes
    assert MemoryStore().measure_volume() is RehearsalStore(MemoryStore()).measure_volume() is None
    assert RehearsalStore(LocalStore(str(tmp_path))).measure_volume() is not None
    with pytest.raises(KeyNotFound):
        LocalStore(str(tmp_path / "gone")).measure_volume()


def test_an_absent_folder_is_empty(store: ObjectStore) -> None:
    assert [*store.list("nowhere").files, *store.list("nowhere").folders] == []
    store.delete_folder("nowhere")
    store.delete("nowhere/file")
    assert list(store.list("nowhere").leftovers) == []


def test_a_deleted_folder_can_be_written_to_again(store: ObjectStore) -> None:
    store.create("t/0/log/1", b"old")
    store.create("t1/0", b"neighbour")
    store.delete_folder("t")
    assert list(store.list("t").folders) == []
    store.create("t/0/log/1", b"new")
    assert store.get("t/0/log/1") == b"new"
    assert store.get("t1/0") == b"neighbour"


def test_a_folder_that_another_process_has_deleted_is_made_again_by_the_second_try(
    store: ObjectStore, reopen: Callable[[], ObjectStore]
) -> None:
    store.create("t/0/staged/1", b"old")
    reopen().delete_folder("t")
    with contextlib.suppress(KeyNotFound):
        store.create("t/0/staged/2", b"new")
        return
    store.create("t/0/staged/2", b"new")
    assert reopen().get("t/0/staged/2") == b"new"


def test_a_lock_has_one_holder_who_is_named_to_the_others(
    store: ObjectStore, reopen: Callable[[], ObjectStore]
) -> None:
    lock = store.lock("lock", "broker 7 at host:9094")
    with pytest.raises(KeyLocked) as refusal:
        reopen().lock("lock", "another")
    assert refusal.value.holder == "broker 7 at host:9094"
    lock.release()
    lock.release()
    reopen().lock("lock", "short").release()


def test_a_shared_lock_has_many_holders_and_keeps_out_the_one_who_wants_it_alone(
    store: ObjectStore, reopen: Callable[[], ObjectStore]
) -> None:
    first, second = store.lock("lock", "one", is_shared=True), reopen().lock("lock", "two", is_shared=True)
    for lock in (first, second):
        with pytest.raises(KeyLocked):
            reopen().lock("lock", "another")
        lock.release()
        lock.release()
    alone = reopen().lock("lock", "alone")
    with pytest.raises(KeyLocked, match="alone"):
        reopen().lock("lock", "three", is_shared=True)
    alone.release()


def test_who_holds_a_lock_alone_can_be_asked(store: ObjectStore, reopen: Callable[[], ObjectStore]) -> None:
    assert reopen().lock_holder("lock") is None
    lock = store.lock("lock", "broker 7")
    assert (reopen().lock_holder("lock"), store.lock_holder("lock")) == ("broker 7", "broker 7")
    lock.release()
    assert reopen().lock_holder("lock") is None
    shared = store.lock("lock", "broker 8", is_shared=True)
    assert reopen().lock_holder("lock") is None
    shared.release()


def test_sync_of_what_others_wrote(store: ObjectStore) -> None:
    store.put("t/file", b"x")
    store.sync("t", ["file"])
    assert store.get("t/file") == b"x"
