"""Another program renames a version of its own over an acknowledged one, as Delta's log stores for local files may: the
partition stops before anything is built on that, and what was acknowledged comes back."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from bus.errors import ErrorCode, StorageDamaged, VersionReplaced
from bus.model import TopicPartition
from bus.ports import Committed, Unknown
from bus.storage_delta.log.listing import partition_folder
from bus.storage_delta.root import open_storage_on
from bus.storage_delta.stores.local import FileSystem, LocalStore
from bus.storage_delta.table import DeltaPartitionTable
from tests.support.partition_bench import Bench, code, send, with_partition
from tests.support.stores import NOW_MS, led, log_batch

PARTITION = TopicPartition("orders", 0)
FAR_MS = 2**62


class Linking(FileSystem):
    """Does something just before the next link, or just behind it."""

    def __init__(self) -> None:
        self.before: list[Callable[[], object]] = []
        self.behind: list[Callable[[], object]] = []
        self.link = self._link  # type: ignore[method-assign]

    def _link(self, source: str, target: str) -> None:
        while self.before:
            self.before.pop()()
        os.link(source, target)
        while self.behind:
            self.behind.pop()()


class Log:
    def __init__(self, root: Path) -> None:
        self.disk = Linking()
        self.store = LocalStore(str(root), self.disk)
        self.folder = root / partition_folder(PARTITION)
        self.table = self.open(create=True)
        for value in (b"a", b"b"):
            self.append(value)

    def open(self, *, create: bool = False) -> DeltaPartitionTable:
        storage = open_storage_on(self.store, exclusive=False)
        self.table = led((storage.create_partition if create else storage.open_partition)(PARTITION, topic_id="id"))
        return self.table

    def append(self, value: bytes) -> object:
        batch = log_batch(self.table.state.high_watermark, [value])
        return self.table.append([batch], leader_epoch=0, now_ms=NOW_MS)

    def values(self) -> list[bytes]:
        batches = self.table.log.read(0, end_offset=self.table.state.high_watermark, max_bytes=1 << 20)
        return [value for batch in batches for value in batch.columns.column("value").to_pylist()]

    def version_file(self, version: int) -> Path:
        return self.folder / f"_delta_log/{version:020d}.json"

    def replace_version(self, version: int) -> None:
        """Replace it by an OPTIMIZE that did not see it: of the first file, into itself."""
        actions = [json.loads(line) for line in self.version_file(1).read_text().splitlines()]
        (add,) = [action["add"] for action in actions if "add" in action]
        lines = [
            {"commitInfo": {"operation": "OPTIMIZE", "engineInfo": "Apache-Spark/4.2.0 Delta-Lake/4.4.0"}},
            {"add": {**add, "dataChange": False}},
        ]
        other = self.folder / ".optimize"
        other.write_text("".join(json.dumps(line) + "\n" for line in lines))
        os.rename(other, self.version_file(version))


@pytest.fixture
def log(tmp_path: Path) -> Log:
    return Log(tmp_path)


def test_nothing_is_committed_behind_a_version_that_was_replaced(log: Log) -> None:
    log.replace_version(2)
    with pytest.raises(VersionReplaced, match=r"0002\.json: .*found OPTIMIZE of Apache-Spark.* a restart") as raised:
        log.append(b"c")
    assert "Stop the program that writes" in str(raised.value)
    assert not log.version_file(3).exists()
    assert len(list(log.folder.glob("*.parquet"))) == 2


def test_a_replacement_between_the_check_and_the_link_is_found_before_the_answer(log: Log) -> None:
    log.disk.before.append(lambda: log.replace_version(2))
    assert isinstance(log.append(b"c"), Unknown)
    with pytest.raises(VersionReplaced):
        log.table.reload()


def test_a_partition_stops_by_name_and_the_next_opening_commits_what_was_acknowledged(log: Log) -> None:
    log.replace_version(2)

    async def scenario(bench: Bench) -> None:
        assert code(await send(bench)) is ErrorCode.KAFKA_STORAGE_ERROR
        assert bench.partition.stopped is not None
        assert "another program has put in its place" in bench.partition.stopped.message

    with_partition(log.table, 3, scenario)
    log.open()
    assert log.values() == [b"a", b"b"]
    assert log.append(b"c") == Committed(4, 3)
    log.open()
    assert log.values() == [b"a", b"b", b"c"]
    assert list(log.folder.glob("_delta_log/_replaced*")) == []


def test_what_no_longer_fits_is_damage_and_stays(log: Log) -> None:
    log.replace_version(2)
    with pytest.raises(VersionReplaced):
        log.append(b"c")
    for path in log.folder.glob(f"{1:020d}-*.parquet"):
        path.unlink()
    with pytest.raises(StorageDamaged, match="expected to commit WRITE once more"):
        log.open()
    assert len(list(log.folder.glob("_delta_log/_replaced*"))) == 1


def test_a_last_version_is_looked_at_by_the_next_cleaning(log: Log) -> None:
    log.replace_version(2)
    with pytest.raises(VersionReplaced):
        log.table.cleanup.drop_old_versions(committed_before_ms=0, count_max=10**9, removed_before_ms=FAR_MS)


def test_a_version_further_back_is_found_by_the_next_checkpoint(log: Log) -> None:
    log.append(b"c")
    log.replace_version(2)
    log.append(b"d")
    with pytest.raises(VersionReplaced, match=r"0002\.json"):
        log.table.cleanup.write_checkpoint()


def test_the_same_bytes_under_another_inode_are_no_replacement(log: Log) -> None:
    """A copy that was put back, for example."""
    copy = log.folder / "copy"
    copy.write_bytes(log.version_file(2).read_bytes())
    os.rename(copy, log.version_file(2))
    assert isinstance(log.append(b"c"), Unknown)
    log.table.reload()
    assert isinstance(log.append(b"c"), Committed)


def test_a_number_that_another_leader_has_used_and_cleaned_up_is_not_ours(log: Log) -> None:
    """This one slept before its link, while the other committed that version, and dropped it behind a checkpoint."""
    other = open_storage_on(LocalStore(str(log.folder.parents[2])), exclusive=False)

    def meanwhile() -> None:
        table = led(other.open_partition(PARTITION, topic_id="id"))
        for value in (b"x", b"y", b"z"):
            batch = log_batch(table.state.high_watermark, [value], leader_epoch=1)
            assert isinstance(table.append([batch], leader_epoch=1, now_ms=NOW_MS), Committed)
        table.cleanup.write_checkpoint()
        assert table.cleanup.drop_old_versions(
            committed_before_ms=FAR_MS, count_max=1, removed_before_ms=FAR_MS
        ).versions

    log.disk.before.append(meanwhile)
    assert isinstance(log.append(b"late"), Unknown)
    assert log.table.reload().is_overtaken
    log.open()
    assert log.values() == [b"a", b"b", b"x", b"y", b"z"]
