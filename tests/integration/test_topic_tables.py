"""A table that is followed shows at every version what one that is opened afresh shows, and nothing of another log."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

import bus.tables.snapshots
from bus.cluster_metadata.cluster_records import TopicCreated, TopicDeleted
from bus.errors import StorageDamaged, StorageFault
from bus.ports import Committed
from bus.storage_delta.log.reading import LogReading, read_whole_log
from bus.storage_delta.stores.local import LocalStore
from bus.tables.snapshots import TableSnapshot, check_plain
from bus.tables.topics import TopicTables
from tests.support.hand_written_root import HandWrittenRoot, HandWrittenTable
from tests.support.log_root import COUNT, PARTITION, LogRoot
from tests.support.stores import NOW_MS

DELETION_VECTORS = {
    "protocol": {
        "minReaderVersion": 3,
        "minWriterVersion": 7,
        "readerFeatures": ["deletionVectors"],
        "writerFeatures": ["deletionVectors", "appendOnly", "invariants"],
    }
}


@pytest.fixture
def log(tmp_path: Path) -> LogRoot:
    log = LogRoot(tmp_path / "bus data = é [1]")
    log.append(2)
    return log


@pytest.fixture
def tables(log: LogRoot) -> TopicTables:
    tables = TopicTables(str(log.root))
    tables.snapshot(PARTITION)
    return tables


def check(log: LogRoot, tables: TopicTables) -> TableSnapshot:
    """Check that what is followed is what is there, and that the one who has the table open agrees."""
    found = tables.snapshot(PARTITION)
    assert found == TopicTables(str(log.root)).snapshot(PARTITION)
    assert found.version == log.table.state.version
    assert list(found.files) == [str(log.folder / file.path) for file in log.table.rewrites.files]
    judged = DeltaTable(str(log.folder)).file_uris()
    assert sorted(Path(file).name for file in found.files) == sorted(Path(file).name for file in judged)
    return found


def write_version(log: LogRoot, *actions: Mapping[str, Any], by: str = "Another-Engine/1") -> None:
    info = {"commitInfo": {"operation": "X", "engineInfo": by, "actionCount": 1 + len(actions)}}
    text = "\n".join(json.dumps(action) for action in (info, *actions))
    (log.log / f"{last_version(log) + 1:020}.json").write_text(text, encoding="utf-8")


def last_version(log: LogRoot) -> int:
    return max(int(file.stem) for file in log.log.glob("0*.json"))


def last_add(log: LogRoot) -> dict[str, Any]:
    lines = (log.log / f"{last_version(log):020}.json").read_text(encoding="utf-8").splitlines()
    found: dict[str, Any] = next(json.loads(line) for line in lines if "add" in json.loads(line))
    return found["add"]  # type: ignore[no-any-return]


def drop_versions(log: LogRoot, below: int) -> None:
    for version in range(below):
        (log.log / f"{version:020}.json").unlink(missing_ok=True)


def test_appends_are_followed_one_and_many(log: LogRoot, tables: TopicTables) -> None:
    for commits in (1, 0, 5):
        log.append(commits)
        check(log, tables)


def test_an_append_opens_no_table(log: LogRoot, tables: TopicTables, monkeypatch: pytest.MonkeyPatch) -> None:
    log.append(3)
    monkeypatch.setattr(bus.tables.snapshots, "read_whole_log", lambda *_, **__: pytest.fail("opened"))
    assert tables.snapshot(PARTITION).first_offsets == tuple(range(0, 5 * COUNT, COUNT))


def test_an_empty_table_is_followed_from_its_beginning(tmp_path: Path) -> None:
    log = LogRoot(tmp_path)
    tables = TopicTables(str(tmp_path))
    assert tables.snapshot(PARTITION).files == ()
    log.append()
    check(log, tables)


def test_a_table_that_is_far_behind_is_opened_afresh(
    log: LogRoot, tables: TopicTables, monkeypatch: pytest.MonkeyPatch
) -> None:
    log.append(130)
    opened = []
    with monkeypatch.context() as patch:

        def read(store: LocalStore, folder: str, **options: Any) -> LogReading:
            opened.append(folder)
            return read_whole_log(store, folder, **options)

        patch.setattr(bus.tables.snapshots, "read_whole_log", read)
        found = tables.snapshot(PARTITION)
    assert opened == [log.folder.name]
    assert found == check(log, tables)


def test_a_snapshot_that_was_given_out_stays_what_it_was(log: LogRoot, tables: TopicTables) -> None:
    before = tables.snapshot(PARTITION)
    count = len(before.files)
    log.append(3)
    check(log, tables)
    assert len(before.files) == count


def test_rolled_files_are_followed_also_behind_an_append(log: LogRoot, tables: TopicTables) -> None:
    log.append()
    prepared = log.table.rewrites.prepare_roll(
        log.table.rewrites.files[:2], compression="none", now_ms=NOW_MS, tombstone_retention_ms=1
    )
    assert isinstance(log.table.rewrites.swap(prepared, leader_epoch=0, now_ms=NOW_MS), Committed)
    log.append()
    assert check(log, tables).first_offsets == (0, 2 * COUNT, 3 * COUNT)


@pytest.mark.parametrize("log_start", [3, COUNT, COUNT + 3, 2 * COUNT])
def test_a_log_start_that_moves_is_followed(log: LogRoot, tables: TopicTables, log_start: int) -> None:
    assert isinstance(log.table.cleanup.advance_log_start(log_start, leader_epoch=0, now_ms=NOW_MS), Committed)
    found = check(log, tables)
    assert found.log_start == log_start
    assert found.begin_offset == (log_start if log_start % COUNT != 0 else None)
    log.append()
    check(log, tables)


def test_versions_that_were_dropped_before_they_were_read_are_passed(log: LogRoot, tables: TopicTables) -> None:
    log.append(4)
    log.table.cleanup.write_checkpoint()
    log.append()
    drop_versions(log, below=last_version(log) - 1)
    check(log, tables)


def test_the_version_that_was_last_read_may_be_dropped_with_its_next(log: LogRoot, tables: TopicTables) -> None:
    seen = tables.snapshot(PARTITION).version
    log.append(4)
    log.table.cleanup.write_checkpoint()
    drop_versions(log, below=seen + 2)
    check(log, tables)


def test_a_log_that_was_put_back_is_no_continuation(log: LogRoot, tmp_path: Path) -> None:
    other = LogRoot.copy_of(log, tmp_path / "other")
    other.open()
    log.append(2)
    tables = TopicTables(str(log.root))
    check(log, tables)
    other.append(3)
    shutil.rmtree(log.root)
    shutil.copytree(other.root, log.root)
    log.open()
    assert last_version(log) == 5
    check(log, tables)


def test_a_topic_that_was_made_again_is_another_table(tmp_path: Path) -> None:
    root = HandWrittenRoot(tmp_path)
    root.create_topic("orders")
    root.append("orders", 0, (b"k", b"v"))
    tables = TopicTables(str(tmp_path))
    before = tables.snapshot(PARTITION)
    root.record(TopicDeleted("orders", tables.cluster().topics["orders"].topic_id))
    shutil.rmtree(root.tables["orders"][0].folder)
    root.create_topic("orders")
    root.append("orders", 0, (b"k", b"v"), (b"k", b"v"))
    after = tables.snapshot(PARTITION)
    assert after == TopicTables(str(tmp_path)).snapshot(PARTITION)
    assert set(after.files).isdisjoint(before.files)


def test_a_table_of_another_topic_id_is_refused_though_its_versions_go_on(tmp_path: Path) -> None:
    root = HandWrittenRoot(tmp_path)
    root.create_topic("orders")
    tables = TopicTables(str(tmp_path))
    tables.snapshot(PARTITION)
    shutil.rmtree(root.tables["orders"][0].folder)
    table = HandWrittenTable(root.tables["orders"][0].folder, "another")
    table.append([b"k"], [b"v"])
    with pytest.raises(StorageDamaged, match=r"expected a table of topic id .* found another"):
        tables.snapshot(PARTITION)
    root.record(TopicDeleted("orders", tables.cluster().topics["orders"].topic_id))
    root.record(TopicCreated("orders", "another", 1, 0))
    assert len(tables.snapshot(PARTITION).files) == 1


def test_an_older_version_is_the_same_before_and_after_appends(log: LogRoot, tables: TopicTables) -> None:
    before = tables.snapshot(PARTITION)
    log.append(2)
    check(log, tables)
    assert tables.snapshot(PARTITION, before.version) == before
    log.table.cleanup.write_checkpoint()
    drop_versions(log, below=last_version(log))
    with pytest.raises(StorageFault, match=f"expected one of the versions .* found {before.version}"):
        tables.snapshot(PARTITION, before.version)
    check(log, tables)


def test_a_commit_of_another_engine_is_judged_by_opening(log: LogRoot, tables: TopicTables) -> None:
    """Its file is named and tagged by nobody."""
    log.append()
    check(log, tables)
    added = last_add(log)
    renamed = {**added, "path": "part-0.parquet", "dataChange": False, "tags": {}}
    shutil.copy(log.folder / added["path"], log.folder / "part-0.parquet")
    write_version(log, {"remove": {"path": added["path"], "dataChange": False}}, {"add": renamed})
    found = tables.snapshot(PARTITION)
    assert found == TopicTables(str(log.root)).snapshot(PARTITION)
    assert found.files[-1] == str(log.folder / "part-0.parquet")


def test_a_file_that_another_engine_removed_is_gone(log: LogRoot, tables: TopicTables) -> None:
    write_version(log, {"remove": {"path": last_add(log)["path"], "dataChange": True}})
    found = tables.snapshot(PARTITION)
    assert found == TopicTables(str(log.root)).snapshot(PARTITION)
    assert found.first_offsets == (0,)


def test_a_file_that_is_added_again_is_there_once(log: LogRoot, tables: TopicTables) -> None:
    """It may come with other statistics, for example."""
    write_version(log, {"add": {**last_add(log), "dataChange": False}})
    found = tables.snapshot(PARTITION)
    assert found == TopicTables(str(log.root)).snapshot(PARTITION)
    assert found.first_offsets == (0, COUNT)


def test_a_change_of_the_columns_is_seen(log: LogRoot, tables: TopicTables) -> None:
    before = tables.snapshot(PARTITION)
    schema = json.loads(before.delta_schema)
    schema["fields"].append({"name": "extra", "type": "string", "nullable": True, "metadata": {}})
    first = (log.log / f"{0:020}.json").read_text(encoding="utf-8").splitlines()
    metadata = next(json.loads(line)["metaData"] for line in first if "metaData" in line)
    write_version(log, {"metaData": {**metadata, "schemaString": json.dumps(schema)}}, by="delta-bus/1")
    assert tables.snapshot(PARTITION).schema.names == [*before.schema.names, "extra"]


def test_an_append_without_the_tag_of_the_bus_is_judged_by_opening(log: LogRoot, tables: TopicTables) -> None:
    added = {**last_add(log), "path": "copy.parquet", "tags": {}}
    shutil.copy(log.folder / last_add(log)["path"], log.folder / "copy.parquet")
    write_version(log, {"add": added}, by="delta-bus/1")
    found = tables.snapshot(PARTITION)
    assert found == TopicTables(str(log.root)).snapshot(PARTITION)
    assert len(found.files) == 3


def test_a_version_that_cannot_be_read_is_damage_each_time(log: LogRoot, tables: TopicTables) -> None:
    (log.log / f"{last_version(log) + 1:020}.json").write_text("{", encoding="utf-8")
    for _ in range(2):
        with pytest.raises(StorageDamaged, match="orders-0"):
            tables.snapshot(PARTITION)


def test_a_table_that_is_gone_is_damage(log: LogRoot, tables: TopicTables) -> None:
    shutil.rmtree(log.folder)
    with pytest.raises(StorageDamaged, match="found none"):
        tables.snapshot(PARTITION)


def test_who_reads_files_alone_refuses_a_table_whose_files_do_not_tell_all(log: LogRoot, tables: TopicTables) -> None:
    assert check_plain(tables.snapshot(PARTITION)).is_plain
    write_version(log, DELETION_VECTORS)
    assert DeltaTable(str(log.folder)).protocol().min_reader_version == 3
    with pytest.raises(StorageDamaged, match=r"orders-0: expected at version 3 .*deletion vectors"):
        check_plain(tables.snapshot(PARTITION))
