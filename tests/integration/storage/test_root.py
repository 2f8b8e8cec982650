"""A root: what may become one, who may hold it, and whose files are removed."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from bus.errors import RootInUse, RootLost, RootNotUsable, StorageDamaged, StorageFault
from bus.model import CLUSTER_METADATA_TOPIC, TopicPartition
from bus.records.log_schema import CLUSTER_METADATA_VALUE_TYPE
from bus.storage_delta.root import memory_storage, open_partition_readonly, open_reader, open_storage
from bus.storage_delta.typed_log import replay_values
from tests.support.stores import NOW_MS, log_batch

ORDERS = TopicPartition("orders", 0)


@pytest.mark.parametrize("make", [False, True])
def test_an_absent_or_empty_folder_becomes_a_root(tmp_path: Path, make: bool) -> None:
    root = tmp_path / "deep" / "root"
    if make:
        root.mkdir(parents=True)
        (root / "lost+found").mkdir()
    storage = open_storage(str(root))
    cluster_id = storage.cluster_id
    assert json.loads((root / "bus-root.json").read_text()) == {"format_version": 1, "cluster_id": cluster_id}
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
        storage.open_metadata()
        table = storage.create_partition(ORDERS, topic_id="id")
        for value in (b"a", b"b"):
            batch = log_batch(table.state.high_watermark, [value], keys=[b"k"])
            table.append([batch], leader_epoch=0, now_ms=NOW_MS)
        prepared = table.prepare_key_compaction(now_ms=NOW_MS, tombstone_retention_ms=1)
        assert prepared is not None
        table.swap_files(prepared, leader_epoch=0, now_ms=NOW_MS)
        table.write_checkpoint()
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
        ('{"format_version":2,"cluster_id":"x"}', "newer bus"),
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


@pytest.mark.parametrize("remove", ["the folder", "what is in it"])
@pytest.mark.parametrize("is_made_again", [True, False])
def test_nothing_is_written_to_a_root_that_is_not_the_one_that_was_locked(
    tmp_path: Path, remove: str, is_made_again: bool
) -> None:
    root = tmp_path / "root"
    storage = open_storage(str(root), holder="old")
    table = storage.create_partition(ORDERS, topic_id="one")
    table.append([log_batch(0, [b"a"])], leader_epoch=0, now_ms=NOW_MS)
    storage.check_held()
    shutil.rmtree(root)
    if remove == "what is in it":
        root.mkdir()
    if is_made_again:
        heir = open_storage(str(root), holder="new")
        heir.create_partition(ORDERS, topic_id="two").append([log_batch(0, [b"b"])], leader_epoch=0, now_ms=NOW_MS)
    before = sorted(root.rglob("*"))
    writes: list[Callable[[], object]] = [
        storage.check_held,
        lambda: table.append([log_batch(1, [b"c"])], leader_epoch=0, now_ms=NOW_MS),
        lambda: storage.create_partition(TopicPartition("t", 0), topic_id="id"),
        lambda: storage.delete_topic("orders", topic_id="two"),
    ]
    for write in writes:
        with pytest.raises(RootLost, match="made again" if is_made_again else "removed"):
            write()
    with pytest.raises(StorageFault):  # the versions that it begins with are not there either
        table.write_checkpoint()
    assert sorted(root.rglob("*")) == before
    storage.close()


def test_creating_a_partition_again_opens_it(tmp_path: Path) -> None:
    storage = open_storage(str(tmp_path), exclusive=False)
    table = storage.create_partition(ORDERS, topic_id="one")
    table.append([log_batch(0, [b"a"])], leader_epoch=0, now_ms=NOW_MS)
    assert storage.create_partition(ORDERS, topic_id="one").state.high_watermark == 1


def test_creating_a_partition_removes_what_another_topic_id_left(tmp_path: Path) -> None:
    storage = open_storage(str(tmp_path), exclusive=False)
    old = storage.create_partition(ORDERS, topic_id="one")
    old.append([log_batch(0, [b"a"])], leader_epoch=0, now_ms=NOW_MS)
    old.write_checkpoint()
    new = storage.create_partition(ORDERS, topic_id="two")
    assert (new.state.version, new.state.high_watermark) == (0, 0)
    assert list((tmp_path / "topics/orders/0").glob("*.parquet")) == []
    assert [path.name for path in (tmp_path / "topics/orders/0/_delta_log").iterdir()] == [f"{0:020d}.json"]


def test_a_creation_that_was_never_finished_is_done_anew(tmp_path: Path) -> None:
    storage = open_storage(str(tmp_path), exclusive=False)
    (tmp_path / "topics/orders/0/_delta_log").mkdir(parents=True)
    (tmp_path / "topics/orders/0/_delta_log/.writing-1").touch()
    assert storage.create_partition(ORDERS, topic_id="one").state.version == 0


def test_deleting_a_topic_leaves_other_topic_ids_alone(tmp_path: Path) -> None:
    storage = open_storage(str(tmp_path), exclusive=False)
    for number, topic_id in enumerate(["one", "one", "two"]):
        table = storage.create_partition(TopicPartition("orders", number), topic_id=topic_id)
        table.append([log_batch(0, [b"a"])], leader_epoch=0, now_ms=NOW_MS)
    storage.delete_topic("orders", topic_id="one")
    assert [path.name for path in (tmp_path / "topics/orders").iterdir()] == ["2"]
    assert storage.open_partition(TopicPartition("orders", 2), topic_id="two").state.high_watermark == 1
    storage.delete_topic("orders", topic_id="two")
    assert not (tmp_path / "topics/orders").exists()
    storage.delete_topic("orders", topic_id="two")
    storage.delete_topic("never-there", topic_id="x")


def test_an_interrupted_deletion_can_be_finished(tmp_path: Path) -> None:
    storage = open_storage(str(tmp_path), exclusive=False)
    table = storage.create_partition(ORDERS, topic_id="one")
    table.append([log_batch(0, [b"a"])], leader_epoch=0, now_ms=NOW_MS)
    (tmp_path / "topics/orders/0/_delta_log" / f"{1:020d}.json").unlink()
    storage.delete_topic("orders", topic_id="one")
    assert not (tmp_path / "topics/orders").exists()


def test_files_of_an_unknown_owner_are_removed_by_nobody(tmp_path: Path) -> None:
    storage = open_storage(str(tmp_path), exclusive=False)
    table = storage.create_partition(ORDERS, topic_id="one")
    table.append([log_batch(0, [b"a"])], leader_epoch=0, now_ms=NOW_MS)
    (tmp_path / "topics/orders/0/_delta_log" / f"{0:020d}.json").unlink()
    before = sorted(tmp_path.rglob("*"))
    for removes in (
        lambda: storage.delete_topic("orders", topic_id="one"),
        lambda: storage.create_partition(ORDERS, topic_id="two"),
    ):
        with pytest.raises(StorageDamaged, match="topic id"):
            removes()
    assert sorted(tmp_path.rglob("*")) == before


def test_metadata_belongs_to_the_cluster(tmp_path: Path) -> None:
    storage = open_storage(str(tmp_path))
    storage.open_metadata().append([{"type": "t", "topic": "orders"}], leader_epoch=0, now_ms=NOW_MS)
    reader = open_reader(str(tmp_path))
    assert [row["topic"] for row in replay_values(reader.open_metadata())] == ["orders"]
    storage.close()
    marker = json.loads((tmp_path / "bus-root.json").read_text())
    (tmp_path / "bus-root.json").write_text(json.dumps({**marker, "cluster_id": "another"}))
    storage = open_storage(str(tmp_path))
    with pytest.raises(StorageDamaged, match="another"):
        storage.open_metadata()
    storage.close()


def test_readers_see_the_version_of_their_opening(tmp_path: Path) -> None:
    storage = open_storage(str(tmp_path))
    table = storage.create_partition(ORDERS, topic_id="one")
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
    log = storage.open_metadata()
    log.append([{"type": "t"}], leader_epoch=0, now_ms=NOW_MS)
    assert not log.is_checkpoint_due
    table = storage.create_partition(ORDERS, topic_id="one")
    table.append([log_batch(0, [b"a"])], leader_epoch=0, now_ms=NOW_MS)
    assert storage.open_partition(ORDERS, topic_id="one").state == table.state
    storage.delete_topic("orders", topic_id="one")
    assert CLUSTER_METADATA_TOPIC == "__cluster_metadata"
    assert len(list(storage.open_metadata().replay())) == 1
