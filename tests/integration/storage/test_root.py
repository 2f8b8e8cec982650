"""A root: what may become one, who may hold it, and whose files are removed."""

from __future__ import annotations

import contextlib
import errno
import json
import logging
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from bus.errors import RootInUse, RootLost, RootNotUsable, StorageDamaged, StorageFault
from bus.model import CLUSTER_METADATA_TOPIC, ROOT_MARKER, TopicPartition
from bus.records.log_schema import CLUSTER_METADATA_VALUE_TYPE
from bus.storage_delta import root as root_module
from bus.storage_delta.root import (
    LOCK,
    DeltaStorage,
    open_reader,
    open_storage,
    open_storage_on,
)
from bus.storage_delta.stores.local import FileSystem, LocalStore, find_mount
from bus.storage_delta.stores.store import KeyLocked, KeyNotFound, temporary_name
from bus.storage_delta.typed_log import replay_values
from tests.support.memory_store import MemoryStore
from tests.support.stores import (
    NOW_MS,
    FailingFileSystem,
    ScriptedStore,
    led,
    log_batch,
    memory_storage,
    open_partition_readonly,
)

ORDERS = TopicPartition("orders", 0)


@pytest.mark.parametrize("make", [False, True])
def test_an_absent_or_empty_folder_becomes_a_root(tmp_path: Path, make: bool) -> None:
    root = tmp_path / "deep" / "root"
    if make:
        root.mkdir(parents=True)
        (root / "lost+found").mkdir()
    storage = open_storage(str(root))
    cluster_id = storage.cluster_id
    assert json.loads((root / "bus-root.json").read_text()) == {"format_version": 2, "cluster_id": cluster_id}
    storage.close()
    storage.close()
    again = open_storage(str(root), create=False)
    assert (again.cluster_id, again.root_url) == (cluster_id, str(root))
    again.close()


@pytest.mark.parametrize(("umask", "file_mode", "folder_mode"), [(0, 0o640, 0o750), (0o077, 0o600, 0o700)])
def test_what_is_in_a_root_is_read_by_the_owner_and_the_group_alone(
    tmp_path: Path, umask: int, file_mode: int, folder_mode: int
) -> None:
    before = os.umask(umask)
    try:
        storage = open_storage(str(tmp_path / "root"))
        led(storage.open_metadata())
        table = led(storage.create_partition(ORDERS, topic_id="id"))
        for value in (b"a", b"b"):
            batch = log_batch(table.state.high_watermark, [value], keys=[b"k"])
            table.append([batch], leader_epoch=0, now_ms=NOW_MS)
        prepared = table.rewrites.prepare_key_compaction(now_ms=NOW_MS, tombstone_retention_ms=1)
        assert prepared is not None
        table.rewrites.swap(prepared, leader_epoch=0, now_ms=NOW_MS)
        table.cleanup.write_checkpoint()
        storage.close()
    finally:
        os.umask(before)
    found = [tmp_path / "root", *(tmp_path / "root").rglob("*")]
    assert len(found) > 12
    wrong = {path: oct(path.stat().st_mode) for path in found}
    for path in found:
        if path.stat().st_mode & 0o777 == (folder_mode if path.is_dir() else file_mode):
            del wrong[path]
    assert wrong == {}


@pytest.mark.parametrize("form", ["{}", "{}/", "file://{}", "file://localhost{}", "{}/x/.."])
def test_paths_and_file_urls_name_the_same_root(tmp_path: Path, form: str) -> None:
    root = tmp_path / "with space" if "file" not in form else tmp_path / "with%20space"
    storage = open_storage(form.format(root))
    assert storage.root_url == str(tmp_path / "with space")
    storage.close()


def test_nothing_is_created_where_it_is_not_wanted(tmp_path: Path) -> None:
    with pytest.raises(RootNotUsable, match=r"found no bus-root\.json"):
        open_storage(str(tmp_path / "absent"), create=False)
    with pytest.raises(RootNotUsable, match=r"found no bus-root\.json"):
        open_reader(str(tmp_path / "absent"))
    assert list(tmp_path.iterdir()) == []


def test_a_root_that_another_process_makes_between_two_looks_is_a_root() -> None:
    class LateStore(MemoryStore):
        made = False

        def get(self, key: str) -> bytes:
            if key == ROOT_MARKER and not self.made:
                self.made = True
                open_storage_on(self, broker_id=1).close()
                raise KeyNotFound(key)
            return super().get(key)

    open_storage_on(LateStore(), create=False, broker_id=2).close()


def test_a_folder_with_other_things_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").touch()
    with pytest.raises(RootNotUsable, match=r"empty folder, found thesis\.tex"):
        open_storage(str(tmp_path))
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


@pytest.mark.parametrize(
    ("root", "found"),
    [
        ("s3://bucket/root", "s3:// is not supported yet"),
        ("file://another-host/root", "not supported yet"),
        ("", "expected the path"),
        ("/proc/1/nothing-can-be-made-here", "expected a folder that can be written"),
    ],
)
def test_what_cannot_be_a_root_is_refused(root: str, found: str) -> None:
    with pytest.raises(RootNotUsable, match=found):
        open_storage(root)


def test_a_file_is_no_root(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(RootNotUsable, match="expected a folder, found a file"):
        open_storage(str(tmp_path / "file"))
    with pytest.raises(RootNotUsable):
        open_storage(str(tmp_path / "file" / "below"))


@pytest.mark.parametrize(
    ("marker", "found"),
    [
        ('{"format_version":3,"cluster_id":"x"}', "newer bus"),
        ("{", "expected format_version and cluster_id"),
        ("[]", "expected format_version and cluster_id"),
        ('{"format_version":1}', "cluster_id"),
    ],
)
def test_a_marker_that_is_not_understood_is_refused(tmp_path: Path, marker: str, found: str) -> None:
    (tmp_path / "bus-root.json").write_text(marker)
    with pytest.raises(RootNotUsable, match=found):
        open_storage(str(tmp_path))
    assert [path.name for path in tmp_path.iterdir()] == ["bus-root.json"]


def test_a_held_root_is_refused_with_the_holders_own_words(tmp_path: Path) -> None:
    first = open_storage(str(tmp_path), holder="broker 0 at 127.0.0.1:9094, pid 17")
    with pytest.raises(RootInUse, match=r"in use by broker 0 at 127\.0\.0\.1:9094, pid 17"):
        open_storage(str(tmp_path), holder="second")
    assert open_reader(str(tmp_path)).cluster_id == first.cluster_id
    first.close()
    open_storage(str(tmp_path)).close()


def test_a_root_is_free_when_its_holder_was_killed(tmp_path: Path) -> None:
    program = (
        "from bus.storage_delta.root import open_storage\n"
        f"storage = open_storage({str(tmp_path)!r}, holder='doomed')\n"
        "print('held', flush=True)\n"
        "input()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        with pytest.raises(RootInUse, match="doomed"):
            open_storage(str(tmp_path))
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
    open_storage(str(tmp_path), holder="heir").close()


def test_brokers_share_a_root_and_each_id_is_there_once(tmp_path: Path) -> None:
    one = open_storage(str(tmp_path), broker_id=1, holder="broker 1 at a:9094")
    two = open_storage(str(tmp_path), broker_id=2, holder="broker 2 at b:9094")
    assert (one.cluster_id, one.is_alive(2), two.is_alive(1)) == (two.cluster_id, True, True)
    assert (one.is_alive(1), one.is_alive(3)) == (True, False)
    with pytest.raises(RootInUse, match=r"in use by broker 2 at b:9094; stop it first, or take another broker\.id"):
        open_storage(str(tmp_path), broker_id=2, holder="the same again")
    two.close()
    assert not one.is_alive(2)
    open_storage(str(tmp_path), broker_id=2).close()
    assert not one.is_alive(2)
    one.close()


def test_a_program_without_a_broker_has_the_root_alone_and_is_told_which_brokers_run(tmp_path: Path) -> None:
    brokers = [open_storage(str(tmp_path), broker_id=number, holder=f"broker {number}") for number in (1, 2, 3)]
    brokers[2].close()  # the last one that wrote its name into the common lock
    with pytest.raises(RootInUse, match="in use by broker 1 and by broker 2; stop them first"):
        open_storage(str(tmp_path), holder="a repair")
    for broker in brokers:
        broker.close()
    repair = open_storage(str(tmp_path), holder="a repair")
    with pytest.raises(RootInUse, match="in use by a repair; stop it first"):
        open_storage(str(tmp_path), broker_id=1)
    assert not repair.is_alive(1)
    repair.close()
    open_storage(str(tmp_path), broker_id=1).close()


def test_brokers_in_one_process_share_a_root_in_memory() -> None:
    store = MemoryStore()
    one, two = (open_storage_on(store, broker_id=number, holder=f"broker {number}") for number in (1, 2))
    with pytest.raises(RootInUse, match="in use by broker 1 and by broker 2"):
        open_storage_on(store)
    two.close()
    two.close()
    assert (one.is_alive(1), one.is_alive(2)) == (True, False)
    one.close()
    open_storage_on(store).close()


def test_a_broker_that_was_killed_is_known_to_be_gone_and_its_id_is_free(tmp_path: Path) -> None:
    program = (
        "from bus.storage_delta.root import open_storage\n"
        f"storage = open_storage({str(tmp_path)!r}, broker_id=7, holder='broker 7')\n"
        "print('held', flush=True)\n"
        "input()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        with open_closing(tmp_path, 8) as other:
            assert other.is_alive(7)
            with pytest.raises(RootInUse, match="broker 7"):
                open_storage(str(tmp_path), broker_id=7)
            os.kill(process.pid, signal.SIGKILL)
            process.wait()
            assert not other.is_alive(7)
            open_storage(str(tmp_path), broker_id=7).close()


def test_a_broker_is_not_refused_because_another_one_asks_whether_it_is_alive(tmp_path: Path) -> None:
    open_storage(str(tmp_path), broker_id=1).close()
    asked = 0

    def flock_while_another_asks(fd: int, operation: int) -> None:
        nonlocal asked
        if os.readlink(f"/proc/self/fd/{fd}").endswith("broker-1.lock"):
            asked += 1
            if asked < 3:
                raise BlockingIOError(errno.EWOULDBLOCK, "locked")
        FileSystem.flock(fd, operation)

    system = FileSystem()
    system.flock = flock_while_another_asks  # type: ignore[method-assign]
    open_storage_on(LocalStore(str(tmp_path), system), broker_id=1).close()
    assert asked == 3


def open_closing(root: Path, broker_id: int) -> contextlib.closing[DeltaStorage]:
    return contextlib.closing(open_storage(str(root), broker_id=broker_id))


def test_an_earlier_root_is_upgraded_by_the_first_broker_and_refused_by_an_earlier_program(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster_id = make_format_1(tmp_path)
    open_reader(str(tmp_path))
    open_storage(str(tmp_path)).close()  # not by a program without a broker
    assert format_version(tmp_path) == 1
    with open_closing(tmp_path, 1) as one, open_closing(tmp_path, 2) as two:
        assert (one.cluster_id, two.cluster_id) == (cluster_id, cluster_id)
    assert format_version(tmp_path) == 2
    with monkeypatch.context() as earlier_program:
        earlier_program.setattr(root_module, "FORMAT_VERSION", 1)
        for open_root in (open_storage, open_reader):
            with pytest.raises(RootNotUsable, match="expected format version 1, found 2: a newer bus wrote this root"):
                open_root(str(tmp_path))
    open_storage(str(tmp_path)).close()


def test_an_upgrade_needs_the_root_for_itself(tmp_path: Path) -> None:
    make_format_1(tmp_path)
    earlier = LocalStore(str(tmp_path)).lock(LOCK, "an earlier broker")
    with pytest.raises(RootInUse, match="in use by an earlier broker"):
        open_storage(str(tmp_path), broker_id=1)
    assert format_version(tmp_path) == 1
    earlier.release()
    open_storage(str(tmp_path), broker_id=1).close()
    assert format_version(tmp_path) == 2


def test_metadata_gets_its_new_fields_before_the_marker_and_nobody_else_may_come_in_between(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_format_1(tmp_path)
    seen: list[tuple[str, int]] = []

    def add_fields(store: LocalStore, folder: str, *_: object) -> None:
        seen.append((folder, format_version(tmp_path)))
        for is_shared in (True, False):
            with pytest.raises(KeyLocked):
                LocalStore(str(tmp_path)).lock(LOCK, "another", is_shared=is_shared)
        if len(seen) == 1:
            raise StorageDamaged("the process ended")

    monkeypatch.setattr(root_module, "add_new_fields", add_fields)
    with pytest.raises(StorageDamaged, match="the process ended"):
        open_storage(str(tmp_path), broker_id=1)
    assert format_version(tmp_path) == 1
    open_storage(str(tmp_path), broker_id=1).close()
    assert seen == [(f"topics/{CLUSTER_METADATA_TOPIC}/0", 1)] * 2
    assert format_version(tmp_path) == 2


@pytest.mark.parametrize("is_new", [True, False])
def test_brokers_that_start_together_wait_for_the_one_that_prepares_the_root(tmp_path: Path, is_new: bool) -> None:
    if not is_new:
        make_format_1(tmp_path)
    with ThreadPoolExecutor(8) as threads:
        storages = list(threads.map(lambda number: open_storage(str(tmp_path), broker_id=number), range(8)))
    assert len({storage.cluster_id for storage in storages}) == 1
    assert all(storages[0].is_alive(number) for number in range(8))
    for storage in storages:
        storage.close()
    assert format_version(tmp_path) == 2


def make_format_1(root: Path) -> str:
    storage = open_storage(str(root))
    led(storage.open_metadata())
    storage.close()
    (root / "bus-root.json").write_text(json.dumps({"format_version": 1, "cluster_id": storage.cluster_id}))
    return storage.cluster_id


def format_version(root: Path) -> int:
    return int(json.loads((root / "bus-root.json").read_text())["format_version"])


@pytest.mark.parametrize(
    ("call", "error", "lacks"),
    [
        ("flock", errno.ENOSYS, "flock"),
        ("flock", errno.ENOLCK, "flock"),
        ("link", errno.EPERM, "hard links"),
        ("link", errno.EOPNOTSUPP, "hard links"),
        ("fsync", errno.EINVAL, "syncs of folders"),
    ],
)
def test_a_file_system_that_lacks_a_call_is_refused_by_name_before_anything_is_made(
    tmp_path: Path, call: str, error: int, lacks: str
) -> None:
    system = FileSystem()
    system.mounts = str(mounts(tmp_path, "fuse.toy", "toy:/x", "rw"))

    def refuse(*_: object) -> None:
        raise OSError(error, os.strerror(error))

    setattr(system, call, refuse)
    root = tmp_path / "root"
    root.mkdir()
    with pytest.raises(RootNotUsable, match=rf"found fuse\.toy \(toy:/x at {tmp_path}\) without {lacks}"):
        open_storage_on(LocalStore(str(root), system), broker_id=1)
    assert {path.name for path in root.rglob("*")} <= {LOCK}
    open_storage(str(root), broker_id=1).close()  # the lock was released


def test_a_failing_disk_is_not_taken_for_a_file_system_that_lacks_a_call(tmp_path: Path) -> None:
    system = FailingFileSystem()
    system.fail("link", 1, errno.EIO)
    with pytest.raises(RootNotUsable, match=r"expected a folder that can be written, found .*Input/output error"):
        open_storage_on(LocalStore(str(tmp_path), system), broker_id=1)


@pytest.mark.parametrize(("kind", "is_warned"), [("nfs4", True), ("nfs", True), ("ext4", False)])
def test_a_root_on_nfs_is_warned_of_with_its_options(
    tmp_path: Path, kind: str, is_warned: bool, caplog: pytest.LogCaptureFixture
) -> None:
    system = FileSystem()
    system.mounts = str(mounts(tmp_path, kind, "server:/export", "rw,vers=4.2,local_lock=none"))
    with caplog.at_level(logging.WARNING, "bus"):
        open_storage_on(LocalStore(str(tmp_path / "root"), system), broker_id=1).close()
    warnings = [record.getMessage() for record in caplog.records]
    assert len(warnings) == is_warned
    if is_warned:
        assert "is on NFS (server:/export, mounted with rw,relatime,rw,vers=4.2,local_lock=none)" in warnings[0]
        assert "lookupcache=positive" in warnings[0]


def test_the_innermost_and_the_last_mount_counts(tmp_path: Path) -> None:
    table = tmp_path / "mountinfo"
    table.write_text(
        "22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw\n"
        "31 22 0:40 / /srv/with\\040space rw - nfs4 one:/x rw,hard\n"
        "32 22 0:41 / /srv/with\\040space rw - xfs /dev/sdb rw\n"
        "33 22 0:42 / /srv/with rw - tmpfs tmpfs rw\n"
        "a line of another form\n"
    )
    found = {path: find_mount(path, str(table)) for path in ("/srv/with space/root", "/srv/without", "/srv/with")}
    assert {path: mount.type for path, mount in found.items() if mount} == {
        "/srv/with space/root": "xfs",
        "/srv/without": "ext4",
        "/srv/with": "tmpfs",
    }
    assert find_mount("/srv", str(tmp_path / "absent")) is None
    assert find_mount(str(tmp_path), "/proc/self/mountinfo") is not None


def mounts(folder: Path, kind: str, source: str, options: str) -> Path:
    table = folder.parent / f"{folder.name}-mountinfo"
    table.write_text(
        "22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw,errors=remount-ro\n"
        f"31 22 0:40 / {folder} rw,relatime shared:5 - {kind} {source} {options}\n"
    )
    return table


@pytest.mark.parametrize("broker_id", [None, 1])
@pytest.mark.parametrize("remove", ["the folder", "what is in it"])
@pytest.mark.parametrize("is_made_again", [True, False])
def test_nothing_is_written_to_a_root_that_is_not_the_one_that_was_locked(
    tmp_path: Path, broker_id: int | None, remove: str, is_made_again: bool
) -> None:
    root = tmp_path / "root"
    storage = open_storage(str(root), holder="old", broker_id=broker_id)
    table = led(storage.create_partition(ORDERS, topic_id="one"))
    table.append([log_batch(0, [b"a"])], leader_epoch=0, now_ms=NOW_MS)
    storage.check_held()
    shutil.rmtree(root)
    if remove == "what is in it":
        root.mkdir()
    if is_made_again:
        heir = open_storage(str(root), holder="new", broker_id=broker_id)
        led(heir.create_partition(ORDERS, topic_id="two")).append([log_batch(0, [b"b"])], leader_epoch=0, now_ms=NOW_MS)
    before = sorted(root.rglob("*"))
    writes: list[Callable[[], object]] = [
        storage.check_held,
        lambda: table.append([log_batch(1, [b"c"])], leader_epoch=0, now_ms=NOW_MS),
        lambda: led(storage.create_partition(TopicPartition("t", 0), topic_id="id")),
        lambda: storage.delete_topic("orders", topic_id="two"),
    ]
    for write in writes:
        with pytest.raises(RootLost, match="made again" if is_made_again else "removed"):
            write()
    with pytest.raises(StorageFault):  # the versions that it begins with are not there either
        table.cleanup.write_checkpoint()
    assert sorted(root.rglob("*")) == before
    storage.close()


def test_creating_a_partition_again_opens_it(tmp_path: Path) -> None:
    storage = open_storage(str(tmp_path), exclusive=False)
    table = led(storage.create_partition(ORDERS, topic_id="one"))
    table.append([log_batch(0, [b"a"])], leader_epoch=0, now_ms=NOW_MS)
    assert led(storage.create_partition(ORDERS, topic_id="one")).state.high_watermark == 1


def test_creating_a_partition_removes_what_another_topic_id_left(tmp_path: Path) -> None:
    storage = open_storage(str(tmp_path), exclusive=False)
    old = led(storage.create_partition(ORDERS, topic_id="one"))
    old.append([log_batch(0, [b"a"])], leader_epoch=0, now_ms=NOW_MS)
    old.cleanup.write_checkpoint()
    new = led(storage.create_partition(ORDERS, topic_id="two"))
    assert (new.state.version, new.state.high_watermark) == (0, 0)
    assert list((tmp_path / "topics/orders/0").glob("*.parquet")) == []
    assert [path.name for path in (tmp_path / "topics/orders/0/_delta_log").iterdir()] == [f"{0:020d}.json"]


def test_a_creation_that_was_never_finished_is_done_anew(tmp_path: Path) -> None:
    storage = open_storage(str(tmp_path), exclusive=False)
    (tmp_path / "topics/orders/0/_delta_log").mkdir(parents=True)
    (tmp_path / "topics/orders/0/_delta_log/.writing-1").touch()
    assert led(storage.create_partition(ORDERS, topic_id="one")).state.version == 0


def test_deleting_a_topic_leaves_other_topic_ids_alone(tmp_path: Path) -> None:
    storage = open_storage(str(tmp_path), exclusive=False)
    for number, topic_id in enumerate(["one", "one", "two"]):
        table = led(storage.create_partition(TopicPartition("orders", number), topic_id=topic_id))
        table.append([log_batch(0, [b"a"])], leader_epoch=0, now_ms=NOW_MS)
    storage.delete_topic("orders", topic_id="one")
    assert [path.name for path in (tmp_path / "topics/orders").iterdir()] == ["2"]
    assert led(storage.open_partition(TopicPartition("orders", 2), topic_id="two")).state.high_watermark == 1
    storage.delete_topic("orders", topic_id="two")
    assert not (tmp_path / "topics/orders").exists()
    storage.delete_topic("orders", topic_id="two")
    storage.delete_topic("never-there", topic_id="x")


def test_an_interrupted_deletion_can_be_finished(tmp_path: Path) -> None:
    storage = open_storage(str(tmp_path), exclusive=False)
    table = led(storage.create_partition(ORDERS, topic_id="one"))
    table.append([log_batch(0, [b"a"])], leader_epoch=0, now_ms=NOW_MS)
    (tmp_path / "topics/orders/0/_delta_log" / f"{1:020d}.json").unlink()
    storage.delete_topic("orders", topic_id="one")
    assert not (tmp_path / "topics/orders").exists()


@pytest.mark.parametrize("deletions_before", [0, 1, 3])
def test_a_deletion_that_stood_still_takes_nothing_from_the_next_table_of_that_name(
    tmp_path: Path, deletions_before: int
) -> None:
    store = ScriptedStore(LocalStore(str(tmp_path)))
    old, new = open_storage_on(store, exclusive=False), open_storage(str(tmp_path), exclusive=False)  # type: ignore[arg-type]
    table = led(old.create_partition(ORDERS, topic_id="one"))
    for offset in range(2):
        table.append([log_batch(offset, [b"a"])], leader_epoch=0, now_ms=NOW_MS)

    def replace_table() -> None:
        new.delete_topic("orders", topic_id="one")
        table = led(new.create_partition(ORDERS, topic_id="two"))
        for offset in range(3):
            table.append([log_batch(offset, [b"b"])], leader_epoch=0, now_ms=NOW_MS)

    for _ in range(deletions_before):
        store.before_next("delete", lambda: None)
    store.before_next("stamp" if deletions_before == 3 else "delete", replace_table)
    with pytest.raises(StorageFault):
        old.delete_topic("orders", topic_id="one")
    assert new.open_partition(ORDERS, topic_id="two").state.high_watermark == 3


def test_a_creation_that_stood_still_takes_nothing_from_a_topic_of_another_controller(tmp_path: Path) -> None:
    storage = open_storage(str(tmp_path), exclusive=False)
    led(storage.create_partition(ORDERS, topic_id="two")).append([log_batch(0, [b"b"])], leader_epoch=0, now_ms=NOW_MS)

    def refuse() -> None:
        raise StorageFault("another controller was elected")

    with pytest.raises(StorageFault, match="elected"):
        storage.create_partition(ORDERS, topic_id="one", check_removal=refuse)
    assert storage.open_partition(ORDERS, topic_id="two").state.high_watermark == 1


def test_files_of_an_unknown_owner_are_removed_by_nobody(tmp_path: Path) -> None:
    storage = open_storage(str(tmp_path), exclusive=False)
    table = led(storage.create_partition(ORDERS, topic_id="one"))
    table.append([log_batch(0, [b"a"])], leader_epoch=0, now_ms=NOW_MS)
    (tmp_path / "topics/orders/0/_delta_log" / f"{0:020d}.json").unlink()
    before = sorted(tmp_path.rglob("*"))
    for removes in (
        lambda: storage.delete_topic("orders", topic_id="one"),
        lambda: led(storage.create_partition(ORDERS, topic_id="two")),
    ):
        with pytest.raises(StorageDamaged, match="topic id"):
            removes()
    assert sorted(tmp_path.rglob("*")) == before


def test_metadata_belongs_to_the_cluster(tmp_path: Path) -> None:
    storage = open_storage(str(tmp_path))
    led(storage.open_metadata()).append([{"type": "t", "topic": "orders"}], leader_epoch=0, now_ms=NOW_MS)
    reader = open_reader(str(tmp_path))
    assert [row["topic"] for row in replay_values(reader.open_metadata())] == ["orders"]
    storage.close()
    marker = json.loads((tmp_path / "bus-root.json").read_text())
    (tmp_path / "bus-root.json").write_text(json.dumps({**marker, "cluster_id": "another"}))
    storage = open_storage(str(tmp_path))
    with pytest.raises(StorageDamaged, match="another"):
        led(storage.open_metadata())
    storage.close()


def test_readers_see_the_version_of_their_opening(tmp_path: Path) -> None:
    storage = open_storage(str(tmp_path))
    table = led(storage.create_partition(ORDERS, topic_id="one"))
    table.append([log_batch(0, [b"a"])], leader_epoch=0, now_ms=NOW_MS)
    reader = open_partition_readonly(str(tmp_path), "orders", 0)
    table.append([log_batch(1, [b"b"])], leader_epoch=0, now_ms=NOW_MS)
    assert reader.state.high_watermark == 1
    assert sum(batch.record_count for batch in reader.read(0, end_offset=99, max_bytes=1000)) == 1
    with pytest.raises(StorageDamaged, match="found no version"):
        open_reader(str(tmp_path)).open_partition(TopicPartition("absent", 0))
    with pytest.raises(StorageDamaged, match="columns"):
        open_reader(str(tmp_path)).open_partition(ORDERS, value_type=CLUSTER_METADATA_VALUE_TYPE)
    storage.close()


def test_a_root_in_memory_does_the_same() -> None:
    storage = memory_storage()
    log = led(storage.open_metadata())
    log.append([{"type": "t"}], leader_epoch=0, now_ms=NOW_MS)
    assert not log.table.cleanup.is_checkpoint_due
    table = led(storage.create_partition(ORDERS, topic_id="one"))
    table.append([log_batch(0, [b"a"])], leader_epoch=0, now_ms=NOW_MS)
    assert led(storage.open_partition(ORDERS, topic_id="one")).state == table.state
    storage.delete_topic("orders", topic_id="one")
    assert CLUSTER_METADATA_TOPIC == "__cluster_metadata"
    assert len(list(led(storage.open_metadata()).replay())) == 1


def test_deleting_a_topic_takes_its_partitions_and_nothing_else_from_its_folder(tmp_path: Path) -> None:
    """A table over all partitions would have its log beside them."""
    storage = open_storage(str(tmp_path), exclusive=False)
    led(storage.create_partition(ORDERS, topic_id="one"))
    others = ["_delta_log/00000000000000000000.json", "00/kept", "-1/kept", "1.old/_delta_log/kept"]
    for name in others:
        path = tmp_path / "topics/orders" / name
        path.parent.mkdir(parents=True)
        path.write_text("{}")
    storage.delete_topic("orders", topic_id="one")
    folder = tmp_path / "topics/orders"
    assert sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()) == sorted(others)


def test_a_folder_of_topics_without_a_partition_is_no_topic_that_was_lost(tmp_path: Path) -> None:
    storage = open_storage(str(tmp_path), exclusive=False)
    path = tmp_path / "topics/orders/_delta_log/00000000000000000000.json"
    path.parent.mkdir(parents=True)
    path.write_text("{}")
    led(storage.open_metadata())


class CaseBlindStore(MemoryStore):
    """A disk of macOS: a name is found in any case, and listed in the case in which it was made."""

    def _known(self, key: str) -> str:
        made = {part.casefold(): part for name in self._files for part in name.split("/")}
        return "/".join(made.get(part.casefold(), part) for part in key.split("/"))

    def get(self, key: str) -> bytes:
        return super().get(self._known(key))


def test_table_of_a_topic_is_kept_where_another_ones_name_is_the_same_folder() -> None:
    store = CaseBlindStore()
    storage = open_storage_on(store)
    assert storage.is_case_blind
    storage.create_partition(TopicPartition("Orders", 0), topic_id="id-1")
    with pytest.raises(StorageFault, match="expected a folder of its own, found that of topic Orders"):
        storage.create_partition(TopicPartition("orders", 0), topic_id="id-2")
    storage.create_partition(TopicPartition("Orders", 1), topic_id="id-1")
    assert not open_storage_on(MemoryStore()).is_case_blind


@pytest.mark.parametrize(
    ("call", "nth", "found"), [("write", 1, b""), ("fsync", 1, b""), ("link", 1, b""), ("fsync", 2, b"2 of broker 7")]
)
def test_lease_is_not_renewed_where_no_version_could_be_made(tmp_path: Path, call: str, nth: int, found: bytes) -> None:
    """It was written in place before, without a sync, and went on on a disk that took no commit."""
    file_system = FailingFileSystem()
    storage = open_storage_on(LocalStore(str(tmp_path / "root"), file_system), broker_id=7, holder="broker 7")
    with contextlib.closing(storage):
        storage.renew_lease(b"1 of broker 7")
        assert storage.read_lease(7) == b"1 of broker 7"
        file_system.fail(call, nth)
        with pytest.raises(StorageFault):
            storage.renew_lease(b"2 of broker 7")
        assert storage.read_lease(7) == found
        storage.renew_lease(b"3 of broker 7")
        assert storage.read_lease(7) == b"3 of broker 7"
    assert storage.read_lease(8) == b""


class KilledWhileItLinks(FailingFileSystem):
    """Keeps what the process would have left that was killed before its next link: `left`."""

    left: Path | None = None

    def _link(self, source: str, target: str) -> None:
        super()._link(source, target)
        self.left = Path(source)


def test_what_a_killed_broker_left_beside_its_lease_goes_when_it_starts_again(tmp_path: Path) -> None:
    root, file_system = tmp_path / "root", KilledWhileItLinks()
    with contextlib.closing(open_storage_on(LocalStore(str(root), file_system), broker_id=7)) as storage:
        storage.renew_lease(b"1")
    assert file_system.left is not None
    assert file_system.left.parent == root / "cluster"
    file_system.left.write_bytes(b"1")
    young = root / "cluster" / temporary_name("broker-70.lease")  # of one that may be at work
    old = [root / "cluster" / temporary_name("broker-8.lease"), root / temporary_name("bus-root.json")]
    for each in (young, *old):
        each.write_bytes(b"1")
    for each in old:
        os.utime(each, (0, 0))
    open_storage(str(root), broker_id=7).close()
    assert [path.name for path in root.rglob(".writing-*")] == [young.name]


def test_renewal_of_a_lock_is_seen_by_others_and_keeps_its_holder(tmp_path: Path) -> None:
    with (
        contextlib.closing(open_storage(str(tmp_path / "root"), broker_id=7, holder="broker 7")) as storage,
        contextlib.closing(open_storage(str(tmp_path / "root"), broker_id=8, holder="broker 8")) as other,
    ):
        found = []
        for _ in range(3):
            found.append(other.read_lock(7))
            storage.renew_lock()
        assert len(set(found)) == 3
        assert all(content.startswith(b"broker 7\n") for content in found)
        assert other.read_lock(8) == b"broker 8\n"
        assert other.read_lock(9) == b""
        with pytest.raises(RootInUse, match="in use by broker 7"):
            open_storage(str(tmp_path / "root"), broker_id=7)
