"""Files that other programs wrote are on the disk before anything that is acknowledged builds on it: they need not
sync."""

from __future__ import annotations

import json
import os
from pathlib import Path

import deltalake
import pytest

from bus.model import TopicPartition
from bus.ports import Committed, Conflicted, PreparedFiles, SwapKind
from bus.storage_delta.log.listing import partition_folder
from bus.storage_delta.root import open_storage_on
from bus.storage_delta.stores.local import FileSystem, LocalStore
from bus.storage_delta.table import DeltaPartitionTable
from tests.support.stores import NOW_MS, led, log_batch

PARTITION = TopicPartition("orders", 0)


class SyncedFiles(FileSystem):
    """Notes what was synced, by its inode."""

    def __init__(self) -> None:
        self.inodes: set[int] = set()
        self.fsync = self._fsync  # type: ignore[method-assign]

    def _fsync(self, fd: int) -> None:
        self.inodes.add(os.fstat(fd).st_ino)
        os.fsync(fd)

    def has(self, path: Path) -> bool:
        return path.stat().st_ino in self.inodes


@pytest.fixture
def disk() -> SyncedFiles:
    return SyncedFiles()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / partition_folder(PARTITION)


@pytest.fixture
def table(tmp_path: Path, disk: SyncedFiles) -> DeltaPartitionTable:
    storage = open_storage_on(LocalStore(str(tmp_path), disk))
    table = led(storage.create_partition(PARTITION, topic_id="id"))
    for value in (b"a", b"b"):
        append(table, value)
    return table


def append(table: DeltaPartitionTable, value: bytes) -> object:
    return table.append([log_batch(table.state.high_watermark, [value])], leader_epoch=0, now_ms=NOW_MS)


def optimize(folder: Path) -> Path:
    """Let another engine, which syncs nothing, optimize the table. Returns its data file."""
    before = set(folder.glob("*.parquet"))
    deltalake.DeltaTable(folder).optimize.compact()
    (written,) = set(folder.glob("*.parquet")) - before
    return written


def test_an_adopted_version_and_its_files_are_synced_before_the_next_commit(
    table: DeltaPartitionTable, folder: Path, disk: SyncedFiles
) -> None:
    written = optimize(folder)
    assert isinstance(append(table, b"c"), Conflicted)
    table.reload()
    assert disk.has(folder / f"_delta_log/{3:020d}.json")
    assert disk.has(written)
    assert disk.has(folder)
    assert append(table, b"c") == Committed(4, 3)


def test_the_same_when_the_table_is_opened_behind_it(table: DeltaPartitionTable, folder: Path, tmp_path: Path) -> None:
    written = optimize(folder)
    disk = SyncedFiles()
    led(open_storage_on(LocalStore(str(tmp_path), disk), exclusive=False).open_partition(PARTITION, topic_id="id"))
    assert disk.has(folder / f"_delta_log/{3:020d}.json")
    assert disk.has(written)


def test_files_of_a_job_are_synced_before_a_version_names_them(
    table: DeltaPartitionTable, folder: Path, disk: SyncedFiles
) -> None:
    rolled = table.rewrites.prepare_roll(
        table.rewrites.files, compression="none", now_ms=NOW_MS, tombstone_retention_ms=1
    )
    (source,) = set(folder.glob("*.parquet")) - {folder / file.path for file in table.rewrites.files}
    job = folder / f"{0:020d}-job.parquet"
    job.write_bytes(source.read_bytes())
    assert rolled.added_count == 1
    disk.inodes.clear()
    checked = table.rewrites.check_swap([file.path for file in table.rewrites.files], [job.name], SwapKind.SAME_ROWS)
    assert isinstance(checked, PreparedFiles)
    assert disk.has(job)
    assert disk.has(folder)
    swapped = table.rewrites.swap(checked, leader_epoch=0, now_ms=NOW_MS)
    assert isinstance(swapped, Committed)
    actions = (folder / f"_delta_log/{swapped.version:020d}.json").read_text().splitlines()
    assert [json.loads(line)["add"]["path"] for line in actions if "add" in json.loads(line)] == [job.name]
