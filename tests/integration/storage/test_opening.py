"""Opening a partition: every state that a crash or a disk can leave, and what becomes of it."""

from __future__ import annotations

import dataclasses
import json
import logging
import shutil
from dataclasses import replace
from pathlib import Path

import deltalake
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from bus.errors import StorageDamaged, StorageFault
from bus.model import TopicPartition
from bus.ports import ProducerProgress
from bus.records.arrow_batches import complete_columns
from bus.storage_delta.log.listing import checkpoint_name, partition_folder, version_name
from bus.storage_delta.root import (
    DeltaStorage,
    open_storage,
    open_storage_on,
)
from bus.storage_delta.stores.local import LocalStore
from bus.storage_delta.stores.store import Listing
from bus.storage_delta.table import DeltaPartitionTable
from tests.support.stores import NOW_MS, led, log_batch, open_partition_readonly
from tests.support.version_files import without_sum

PARTITION = TopicPartition("orders", 0)
FOREIGN = '{"commitInfo":{"operation":"%s","engineInfo":"Apache-Spark/4.2.0"}}\n'


@pytest.fixture
def storage(tmp_path: Path) -> DeltaStorage:
    return open_storage(str(tmp_path), exclusive=False)


@pytest.fixture
def table(storage: DeltaStorage) -> DeltaPartitionTable:
    table = led(storage.create_partition(PARTITION, topic_id="id"))
    fill(table, 5)
    return table


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / partition_folder(PARTITION)


@pytest.fixture
def log(folder: Path) -> Path:
    return folder / "_delta_log"


def fill(table: DeltaPartitionTable, commits: int) -> None:
    """Two records a commit; each says its own offset."""
    for _ in range(commits):
        base = table.state.high_watermark
        batch = log_batch(base, [b"%d" % base, b"%d" % (base + 1)], leader_epoch=3)
        table.append([batch], leader_epoch=3, now_ms=NOW_MS)


def open_again(storage: DeltaStorage) -> DeltaPartitionTable:
    return led(storage.open_partition(PARTITION, topic_id="id"))


def check_whole(table: DeltaPartitionTable, folder: Path, records: int) -> None:
    """All of it is there for us, goes on, and another Delta reader agrees."""
    assert table.state.high_watermark == records
    assert values_of(table) == [b"%d" % offset for offset in range(records)]
    fill(table, 1)
    assert deltalake.DeltaTable(str(folder)).to_pyarrow_table().num_rows == records + 2


def values_of(table: DeltaPartitionTable) -> list[bytes]:
    batches = table.log.read(0, end_offset=table.state.high_watermark, max_bytes=1 << 20)
    return [value for batch in batches for value in batch.columns.column("value").to_pylist()]


def check_damaged(storage: DeltaStorage, *parts: str) -> None:
    """The message names what is wrong; a second try says the same, since nothing was repaired away."""
    for _ in range(2):
        with pytest.raises(StorageDamaged) as damage:
            open_again(storage)
        for part in parts:
            assert part in str(damage.value)


def remove_action(name: str, *, data_change: bool) -> str:
    return json.dumps({"remove": {"path": name, "dataChange": data_change}}) + "\n"


def data_file(folder: Path, base_offset: int) -> Path:
    return next(folder.glob(f"{base_offset:020d}-*.parquet"))


# ---------------------------------------------------------------- what takes nothing away


def test_a_table_opens_where_it_ended(table: DeltaPartitionTable, storage: DeltaStorage, folder: Path) -> None:
    assert open_again(storage).state == table.state
    check_whole(open_again(storage), folder, 10)


def test_temporary_files_of_the_log_are_removed(
    table: DeltaPartitionTable, storage: DeltaStorage, folder: Path, log: Path
) -> None:
    left = [log / ".writing-1234", log / f"{checkpoint_name(3)}#1"]
    for path in left:
        path.write_bytes(b"half a fi")
    opened = open_again(storage)
    assert not any(path.exists() for path in left)
    check_whole(opened, folder, 10)


def test_data_files_that_no_version_names_are_left_and_found(
    table: DeltaPartitionTable, storage: DeltaStorage, folder: Path
) -> None:
    orphan = folder / f"{10:020d}-orphan.parquet"
    orphan.write_bytes(b"half a data file")
    opened = open_again(storage)
    assert opened.cleanup.find_orphans() == {orphan.name}
    assert orphan.exists()
    check_whole(opened, folder, 10)


@pytest.mark.parametrize("keep_bytes", [0, 1, 40, 300])
def test_a_torn_last_version_without_a_data_file_is_set_aside(
    table: DeltaPartitionTable,
    storage: DeltaStorage,
    folder: Path,
    log: Path,
    keep_bytes: int,
    caplog: pytest.LogCaptureFixture,
) -> None:
    torn = (log / version_name(5)).read_bytes()[:keep_bytes]
    (log / version_name(6)).write_bytes(torn)
    with caplog.at_level(logging.WARNING):
        opened = open_again(storage)
    assert version_name(6) in caplog.text
    assert (log / f".damaged-{version_name(6)}").read_bytes() == torn
    check_whole(opened, folder, 10)


def test_a_torn_last_version_with_a_data_file_is_damage(
    table: DeltaPartitionTable, storage: DeltaStorage, folder: Path, log: Path
) -> None:
    version = log / version_name(5)
    version.write_bytes(version.read_bytes()[:-20])
    check_damaged(storage, version_name(5), data_file(folder, 8).name, "high watermark before it: 8")
    assert version.exists()


def test_a_torn_version_in_the_middle_is_damage(table: DeltaPartitionTable, storage: DeltaStorage, log: Path) -> None:
    (log / version_name(3)).write_bytes(b"")
    check_damaged(storage, version_name(3), "found 0 bytes")


def test_a_torn_version_0_is_damage(table: DeltaPartitionTable, storage: DeltaStorage, log: Path) -> None:
    for version in range(1, 6):
        (log / version_name(version)).unlink()
    (log / version_name(0)).write_bytes(b'{"commitInfo"')
    check_damaged(storage, version_name(0))
    with pytest.raises(StorageDamaged, match="topic id"):
        led(storage.create_partition(PARTITION, topic_id="another"))


def test_a_reader_repairs_nothing(table: DeltaPartitionTable, tmp_path: Path, log: Path) -> None:
    (log / version_name(6)).write_bytes(b"")
    (log / ".writing-x").write_bytes(b"")
    before = sorted(path for path in tmp_path.rglob("*"))
    assert open_partition_readonly(str(tmp_path), "orders", 0).state == table.state
    assert sorted(path for path in tmp_path.rglob("*")) == before


# ---------------------------------------------------------------- checkpoints


def test_a_checkpoint_alone_is_enough_for_what_it_covers(
    table: DeltaPartitionTable, storage: DeltaStorage, folder: Path, log: Path
) -> None:
    table.cleanup.write_checkpoint()
    fill(table, 2)
    before = table.state
    for version in range(6):
        (log / version_name(version)).unlink()
    assert open_again(storage).state == before
    check_whole(open_again(storage), folder, 14)


def test_producers_survive_a_checkpoint(table: DeltaPartitionTable, storage: DeltaStorage, log: Path) -> None:
    progress = ProducerProgress(99, 1, 5)
    table.append([log_batch(10, [b"10"])], leader_epoch=7, now_ms=NOW_MS, producers=[progress])
    table.cleanup.write_checkpoint()
    for version in range(7):
        (log / version_name(version)).unlink()
    opened = open_again(storage)
    assert opened.producers.progress == {99: replace(progress, updated_ms=NOW_MS)}
    assert opened.state.leader_epoch == 7


@pytest.mark.parametrize("keep", [0, 4, 0.5])
def test_a_truncated_checkpoint_is_removed_if_the_versions_are_still_there(
    table: DeltaPartitionTable, storage: DeltaStorage, folder: Path, log: Path, keep: float
) -> None:
    table.cleanup.write_checkpoint()
    checkpoint = log / checkpoint_name(5)
    whole = checkpoint.read_bytes()
    checkpoint.write_bytes(whole[: int(keep * len(whole)) if keep < 1 else int(keep)])
    opened = open_again(storage)
    assert not checkpoint.exists()
    assert not (log / "_last_checkpoint").exists()
    check_whole(opened, folder, 10)


def test_a_truncated_checkpoint_falls_back_to_an_older_one(
    table: DeltaPartitionTable, storage: DeltaStorage, folder: Path, log: Path
) -> None:
    table.cleanup.write_checkpoint()
    fill(table, 3)
    table.cleanup.write_checkpoint()
    (log / checkpoint_name(8)).write_bytes(b"PAR1")
    for version in range(6):
        (log / version_name(version)).unlink()
    opened = open_again(storage)
    assert json.loads((log / "_last_checkpoint").read_text())["version"] == 5
    check_whole(opened, folder, 16)


def test_a_truncated_checkpoint_without_the_versions_is_damage(
    table: DeltaPartitionTable, storage: DeltaStorage, log: Path
) -> None:
    table.cleanup.write_checkpoint()
    fill(table, 1)
    (log / checkpoint_name(5)).write_bytes(b"PAR1")
    (log / version_name(2)).unlink()
    check_damaged(storage, version_name(2), checkpoint_name(5), "cannot be read")
    assert (log / checkpoint_name(5)).exists()


def test_a_missing_checkpoint_falls_back_to_the_versions(
    table: DeltaPartitionTable, storage: DeltaStorage, folder: Path, log: Path
) -> None:
    table.cleanup.write_checkpoint()
    (log / checkpoint_name(5)).unlink()
    opened = open_again(storage)
    assert not (log / "_last_checkpoint").exists()  # other readers fail on a hint that leads nowhere
    check_whole(opened, folder, 10)


@pytest.mark.parametrize("hint", ['{"version":3,"size":7}', "{", "[]", '{"version":99}', ""])
def test_a_wrong_hint_is_put_right(
    table: DeltaPartitionTable, storage: DeltaStorage, folder: Path, log: Path, hint: str
) -> None:
    table.cleanup.write_checkpoint()
    (log / "_last_checkpoint").write_text(hint)
    (log / "._last_checkpoint.crc").write_bytes(b"crc\x00")
    opened = open_again(storage)
    assert json.loads((log / "_last_checkpoint").read_text())["version"] == 5
    assert not (log / "._last_checkpoint.crc").exists()
    check_whole(opened, folder, 10)


def test_a_missing_hint_is_written_again(table: DeltaPartitionTable, storage: DeltaStorage, log: Path) -> None:
    table.cleanup.write_checkpoint()
    (log / "_last_checkpoint").unlink()
    open_again(storage)
    assert json.loads((log / "_last_checkpoint").read_text())["version"] == 5


def test_a_right_hint_is_left_alone(table: DeltaPartitionTable, storage: DeltaStorage, log: Path) -> None:
    table.cleanup.write_checkpoint()
    inode = (log / "_last_checkpoint").stat().st_ino
    open_again(storage)
    assert (log / "_last_checkpoint").stat().st_ino == inode


class NotedListings(LocalStore):
    def __init__(self, folder: str) -> None:
        super().__init__(folder)
        self.listings: list[tuple[str, int]] = []

    def list(self, folder: str, *, with_sizes: bool = True, start_at: str = "", prefix: str = "") -> Listing:
        found = super().list(folder, with_sizes=with_sizes, start_at=start_at, prefix=prefix)
        self.listings.append((folder, len(found.files)))
        return found


def test_opening_lists_neither_data_files_nor_what_is_before_the_checkpoint(
    table: DeltaPartitionTable, tmp_path: Path
) -> None:
    table.cleanup.write_checkpoint()
    fill(table, 2)
    store = NotedListings(str(tmp_path))
    opened = led(open_storage_on(store, exclusive=False).open_partition(PARTITION, topic_id="id"))
    assert opened.state == table.state
    # The checkpoint, its own version, two more and what names the checkpoint.
    assert store.listings == [(f"{partition_folder(PARTITION)}/_delta_log", 5)]


def test_without_a_hint_that_leads_anywhere_the_whole_log_is_listed(
    table: DeltaPartitionTable, tmp_path: Path, log: Path
) -> None:
    table.cleanup.write_checkpoint()
    fill(table, 3)
    table.cleanup.write_checkpoint()
    (log / checkpoint_name(8)).write_bytes(b"PAR1")
    store = NotedListings(str(tmp_path))
    opened = led(open_storage_on(store, exclusive=False).open_partition(PARTITION, topic_id="id"))
    assert opened.state == table.state
    assert [count for _, count in store.listings] == [3, 12]
    assert json.loads((log / "_last_checkpoint").read_text())["version"] == 5


# ---------------------------------------------------------------- what would lose or invent a record


@pytest.mark.parametrize("version", [0, 2, 4])
def test_a_gap_in_the_versions_is_damage(
    table: DeltaPartitionTable, storage: DeltaStorage, log: Path, version: int
) -> None:
    (log / version_name(version)).unlink()
    check_damaged(storage, version_name(version), "is missing", version_name(5))


def test_a_missing_data_file_is_damage(table: DeltaPartitionTable, storage: DeltaStorage, folder: Path) -> None:
    lost = data_file(folder, 4)
    lost.unlink()
    check_damaged(storage, lost.name, "offsets 4 to 5", "no such file")


@pytest.mark.parametrize("change", [-1, 1])
def test_a_data_file_of_another_size_is_damage(
    table: DeltaPartitionTable, storage: DeltaStorage, folder: Path, change: int
) -> None:
    path = data_file(folder, 4)
    whole = path.read_bytes()
    path.write_bytes(whole[:-1] if change < 0 else whole + b"x")
    check_damaged(storage, path.name, f"expects {len(whole)} bytes", f"found {len(whole) + change} bytes")


def test_a_file_that_changes_after_opening_is_damage_when_it_is_read(
    table: DeltaPartitionTable, storage: DeltaStorage, folder: Path
) -> None:
    opened = open_again(storage)
    path = data_file(folder, 0)
    whole = path.read_bytes()
    path.write_bytes(whole[:100])
    storage2 = open_storage(storage.root_url, exclusive=False)
    assert storage2.cluster_id == storage.cluster_id
    with pytest.raises(StorageDamaged, match=f"{path.name}.*expected {len(whole)} bytes.*found 100 bytes"):
        opened.log.read(0, end_offset=10, max_bytes=1 << 20)
    assert opened.log.read(2, end_offset=10, max_bytes=1 << 20)


def test_an_absent_table_is_damage(table: DeltaPartitionTable, storage: DeltaStorage, folder: Path) -> None:
    shutil.rmtree(folder)
    check_damaged(storage, "_delta_log", "found no version and no checkpoint")
    assert not folder.exists()


def test_another_topic_id_is_damage(table: DeltaPartitionTable, storage: DeltaStorage) -> None:
    with pytest.raises(StorageDamaged, match="expected the table of topic id another, found id"):
        led(storage.open_partition(PARTITION, topic_id="another"))


def rewrite(log: Path, version: int, old: str, new: str) -> None:
    path = log / version_name(version)
    text = without_sum(path.read_bytes()).decode()
    assert old in text
    path.write_text(text.replace(old, new))


@pytest.mark.parametrize(
    ("old", "new"), [('"minWriterVersion":2', '"minWriterVersion":7'), ('"minReaderVersion":1', '"minReaderVersion":3')]
)
def test_a_newer_protocol_is_damage(
    table: DeltaPartitionTable, storage: DeltaStorage, log: Path, old: str, new: str
) -> None:
    rewrite(log, 0, old, new)
    check_damaged(storage, "newer", "(1, 2)")


def test_a_version_that_was_changed_is_damage_and_never_set_aside(
    table: DeltaPartitionTable, storage: DeltaStorage, log: Path
) -> None:
    """The last one, which has no records, is no torn one: it was written whole."""
    table.cleanup.advance_log_start(2, leader_epoch=3, now_ms=NOW_MS)
    path = log / version_name(table.state.version)
    path.write_bytes(path.read_bytes().replace(b'"bus/log_start","version":2', b'"bus/log_start","version":1'))
    check_damaged(storage, path.name, "has changed since it was written")


def test_a_version_that_changes_while_it_is_served_goes_into_no_checkpoint(
    table: DeltaPartitionTable, log: Path
) -> None:
    table.append(
        [log_batch(table.state.high_watermark, [b"x"], producer=(7, 0, 5))],
        leader_epoch=3,
        now_ms=NOW_MS,
        producers=[ProducerProgress(7, 0, 5)],
    )
    path = log / version_name(table.state.version)
    fill(table, 1)
    data = path.read_bytes()
    path.write_bytes(data.replace(b'"bus/7","version":5', b'"bus/7","version":4'))
    with pytest.raises(StorageFault, match="has changed since it was written"):
        table.cleanup.write_checkpoint()
    assert not list(log.glob("*.checkpoint.parquet"))
    fill(table, 1)  # the partition serves on
    path.write_bytes(data)
    table.cleanup.write_checkpoint()


def test_overlapping_offsets_are_damage(table: DeltaPartitionTable, storage: DeltaStorage, log: Path) -> None:
    rewrite(log, 4, '"bus.file":"6 8', '"bus.file":"5 8')
    check_damaged(storage, version_name(4), "offsets 5 to 7", "expected them from 6")


def test_a_hole_in_the_offsets_is_damage(table: DeltaPartitionTable, storage: DeltaStorage, log: Path) -> None:
    (log / version_name(6)).write_text(
        FOREIGN % "VACUUM" + remove_action(data_file(log.parent, 4).name, data_change=False)
    )
    check_damaged(storage, "expected offset 4 after", "found 6")


def test_a_lost_end_of_the_log_is_damage(table: DeltaPartitionTable, storage: DeltaStorage, log: Path) -> None:
    (log / version_name(6)).write_text(FOREIGN % "X" + remove_action(data_file(log.parent, 8).name, data_change=False))
    check_damaged(storage, "up to offset 9", "7")


def test_a_lost_beginning_of_the_log_is_damage(table: DeltaPartitionTable, storage: DeltaStorage, log: Path) -> None:
    (log / version_name(6)).write_text(FOREIGN % "X" + remove_action(data_file(log.parent, 0).name, data_change=False))
    check_damaged(storage, "expected offset 0, where the log starts", "found 2", data_file(log.parent, 2).name)


def test_a_log_that_lost_all_its_files_is_damage(
    table: DeltaPartitionTable, storage: DeltaStorage, folder: Path, log: Path
) -> None:
    removes = "".join(remove_action(path.name, data_change=False) for path in sorted(folder.glob("*.parquet")))
    (log / version_name(6)).write_text(FOREIGN % "X" + removes)
    check_damaged(storage, "expected offset 0, where the log starts", "no data file below 10")


# ---------------------------------------------------------------- other engines


def foreign_file(folder: Path, rows: pa.Table) -> tuple[str, int]:
    path = folder / "part-00000-of-another-engine.snappy.parquet"
    pq.write_table(rows, path)
    return path.name, path.stat().st_size


def rows_of(*batches: tuple[int, int]) -> pa.Table:
    return pa.Table.from_batches(
        [
            complete_columns(log_batch(base, [b"%d" % offset for offset in range(base, end)], leader_epoch=3))
            for base, end in batches
        ]
    )


def add_action(name: str, size: int, *, data_change: bool) -> str:
    add = {"path": name, "partitionValues": {}, "size": size, "modificationTime": 1, "dataChange": data_change}
    return json.dumps({"add": add}) + "\n"


def test_a_rewrite_that_keeps_the_offsets_is_adopted(
    table: DeltaPartitionTable, storage: DeltaStorage, folder: Path, log: Path
) -> None:
    name, size = foreign_file(folder, rows_of((4, 6), (0, 2), (2, 4)))  # in whatever order it read them
    removes = "".join(remove_action(data_file(folder, base).name, data_change=False) for base in (0, 2, 4))
    (log / version_name(6)).write_text(FOREIGN % "OPTIMIZE" + removes + add_action(name, size, data_change=False))
    opened = open_again(storage)
    assert opened.state.file_count == 3
    assert opened.state.leader_epoch == 3
    check_whole(opened, folder, 10)
    opened.cleanup.write_checkpoint()
    check_whole(open_again(storage), folder, 12)


def test_an_append_that_continues_the_offsets_is_adopted(
    table: DeltaPartitionTable, storage: DeltaStorage, folder: Path, log: Path
) -> None:
    name, size = foreign_file(folder, rows_of((10, 14)))
    (log / version_name(6)).write_text(FOREIGN % "MERGE" + add_action(name, size, data_change=True))
    open_again(storage).cleanup.write_checkpoint()
    check_whole(open_again(storage), folder, 14)


@pytest.mark.parametrize("offsets", [(9, 12), (11, 13)])
def test_an_append_with_other_offsets_is_damage(
    table: DeltaPartitionTable, storage: DeltaStorage, folder: Path, log: Path, offsets: tuple[int, int]
) -> None:
    name, size = foreign_file(folder, rows_of(offsets))
    (log / version_name(6)).write_text(FOREIGN % "WRITE" + add_action(name, size, data_change=True))
    check_damaged(storage, version_name(6), "WRITE of Apache-Spark/4.2.0", name, "from 10 on")


def test_an_append_without_offsets_is_damage(
    table: DeltaPartitionTable, storage: DeltaStorage, folder: Path, log: Path
) -> None:
    name, size = foreign_file(folder, rows_of((10, 12)).select(["key", "value"]))
    (log / version_name(6)).write_text(FOREIGN % "WRITE" + add_action(name, size, data_change=True))
    check_damaged(storage, version_name(6), "WRITE of Apache-Spark/4.2.0", name, "offset")


def test_a_delete_by_another_engine_is_damage(
    table: DeltaPartitionTable, storage: DeltaStorage, folder: Path, log: Path
) -> None:
    name = data_file(folder, 0).name
    (log / version_name(6)).write_text(FOREIGN % "DELETE" + remove_action(name, data_change=True))
    check_damaged(storage, version_name(6), "DELETE of Apache-Spark/4.2.0", name, "bus log repair", "to version 5")


@pytest.mark.parametrize("has_checkpoint", [False, True])
def test_what_another_engine_did_and_undid_is_no_damage(
    table: DeltaPartitionTable, storage: DeltaStorage, folder: Path, has_checkpoint: bool
) -> None:
    if has_checkpoint:
        table.cleanup.write_checkpoint()
    before = table.state
    foreign = deltalake.DeltaTable(str(folder))
    foreign.delete("offset >= 3 and offset < 8")  # whole files, and a file in part
    foreign.update({"leader_epoch": "9"}, predicate="offset = 9")
    check_damaged(storage, version_name(6), "DELETE of delta-rs", "to version 5")
    with pytest.raises(StorageDamaged, match="bus log repair"):
        table.reload()
    foreign.restore(5)
    assert table.reload() == dataclasses.replace(before, version=8)
    check_whole(open_again(storage), folder, 10)
    opened = open_again(storage)
    opened.cleanup.write_checkpoint()
    check_whole(open_again(storage), folder, 12)


def test_what_was_undone_in_part_is_damage(
    table: DeltaPartitionTable, storage: DeltaStorage, folder: Path, log: Path
) -> None:
    foreign = deltalake.DeltaTable(str(folder))
    foreign.delete("offset < 4")
    (log / version_name(7)).write_text(FOREIGN % "RESTORE" + add_line(log, data_file(folder, 0).name))
    check_damaged(storage, version_name(6), "DELETE of delta-rs", data_file(folder, 2).name)


def add_line(log: Path, name: str) -> str:
    lines = (line for path in sorted(log.glob("0*.json")) for line in path.read_text().splitlines())
    return next(line for line in lines if line.startswith('{"add"') and name in line) + "\n"


def test_metadata_changes_are_adopted_if_it_stays_the_same_topic(
    table: DeltaPartitionTable, storage: DeltaStorage, folder: Path, log: Path
) -> None:
    metadata = next(line for line in (log / version_name(0)).read_text().splitlines() if "metaData" in line)
    (log / version_name(6)).write_text(
        FOREIGN % "SET TBLPROPERTIES" + metadata.replace('"bus.topic"', '"x.topic"') + "\n"
    )
    check_whole(open_again(storage), folder, 10)
    (log / version_name(8)).write_text(FOREIGN % "REPLACE" + metadata.replace('"bus.topic_id":"id"', '"y":"z"') + "\n")
    check_damaged(storage, version_name(8), "changed the topic id from id to None")


def test_a_changed_column_is_damage(table: DeltaPartitionTable, storage: DeltaStorage, log: Path) -> None:
    metadata = next(line for line in (log / version_name(0)).read_text().splitlines() if "metaData" in line)
    changed = metadata.replace(
        '\\"name\\":\\"sequence\\",\\"type\\":\\"integer\\"', '\\"name\\":\\"sequence\\",\\"type\\":\\"long\\"'
    )
    assert changed != metadata
    (log / version_name(6)).write_text(FOREIGN % "ALTER TABLE" + changed + "\n")
    check_damaged(storage, "expected the columns of the log")
