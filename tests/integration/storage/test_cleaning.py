"""What compaction replaced and what versions a checkpoint covers: removed in time, never too much, across restarts."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa
import pytest

from bus.errors import StorageFault
from bus.model import CONSUMER_OFFSETS_TOPIC, LogBatch, TimestampType, TopicPartition
from bus.ports import Committed, KeyedRow
from bus.storage_delta.local_store import LocalStore
from bus.storage_delta.root import DeltaStorage, open_storage_on
from bus.storage_delta.store import ObjectStore
from bus.storage_delta.table import DeltaPartitionTable
from bus.storage_delta.verification import verify_partition
from tests.support.stores import ScriptedStore

NAME = TopicPartition(CONSUMER_OFFSETS_TOPIC, 0)
FOLDER = f"topics/{CONSUMER_OFFSETS_TOPIC}/0"
NOW_MS = 1_000_000


class Bench:
    def __init__(self, root: Path) -> None:
        self.folder = root / FOLDER
        self.store = ScriptedStore(LocalStore(str(root)))
        self.storage: DeltaStorage = open_storage_on(self.store, exclusive=False)
        self.table: DeltaPartitionTable = self.storage.create_partition(NAME, topic_id="id")
        self.rows = self.storage.keyed_rows(CONSUMER_OFFSETS_TOPIC)
        self.now_ms = NOW_MS

    def append(self, *values: int) -> None:
        for value in values:
            encoded = self.rows.encode(
                [KeyedRow(b"k%d" % (value % 3), {"committed_offset": value})], now_ms=self.now_ms
            )
            base = self.table.state.high_watermark
            batch = LogBatch(
                base, base + 1, 1, 1, 0, TimestampType.CREATE_TIME, self.now_ms, self.now_ms, encoded.columns
            )
            assert isinstance(self.table.append([batch], leader_epoch=0, now_ms=self.now_ms), Committed)

    def compact(self) -> None:
        prepared = self.table.prepare_key_compaction(now_ms=self.now_ms, tombstone_retention_ms=1)
        assert prepared is not None
        assert isinstance(self.table.swap_files(prepared, leader_epoch=0, now_ms=self.now_ms), Committed)

    def reopen(self) -> None:
        self.table = self.storage.open_partition(NAME, topic_id="id")

    def values(self) -> dict[bytes, int]:
        found: dict[bytes, int] = {}
        offset, end_offset = self.table.state.log_start, self.table.state.high_watermark
        while offset < end_offset:
            for batch in self.table.read(offset, end_offset=end_offset, max_bytes=1 << 20):
                found.update({row.key: (row.value or {})["committed_offset"] for row in self.rows.decode(batch)})
                offset = batch.next_offset
        return found

    def data_files(self) -> set[str]:
        return {path.name for path in self.folder.glob("*.parquet")}

    def versions(self) -> list[int]:
        return sorted(int(path.stem) for path in (self.folder / "_delta_log").glob("0*.json"))

    def checkpoints(self) -> list[int]:
        return sorted(int(path.name[:20]) for path in (self.folder / "_delta_log").glob("*.checkpoint.parquet"))

    def judge(self, expected: dict[bytes, int]) -> None:
        """Ourselves, after opening anew, our verification, and another reader."""
        self.reopen()
        assert self.values() == expected
        assert verify_partition(self.store, NAME, topic_id="id").breaches == []
        table = deltalake.DeltaTable(str(self.folder))
        rows = deltalake.QueryBuilder().register("t", table).execute("select * from t order by offset").read_all()
        found = {row["key"]: row["value"]["committed_offset"] for row in pa.table(rows).to_pylist()}
        assert found == expected


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


def test_replaced_files_go_after_their_delay_also_if_the_broker_was_restarted_in_between(bench: Bench) -> None:
    bench.append(*range(6))
    old = bench.data_files()
    bench.compact()
    assert bench.table.delete_removed_files(removed_before_ms=NOW_MS) == 0
    assert bench.data_files() > old
    bench.reopen()
    assert bench.table.delete_removed_files(removed_before_ms=NOW_MS) == 0
    assert bench.table.delete_removed_files(removed_before_ms=NOW_MS + 1) == 6
    assert bench.data_files().isdisjoint(old)
    assert bench.table.delete_removed_files(removed_before_ms=NOW_MS + 1) == 0
    bench.judge({b"k0": 3, b"k1": 4, b"k2": 5})
    assert bench.table.delete_removed_files(removed_before_ms=NOW_MS + 1) == 0
    assert bench.table.unreferenced_files == []


def test_a_file_that_a_read_under_way_holds_stays_until_it_has_ended(bench: Bench) -> None:
    bench.append(*range(6))
    with bench.table._reader.reading() as view:
        bench.compact()
        assert bench.table.delete_removed_files(removed_before_ms=NOW_MS + 1) == 0
        assert [file.path for file in view.live_files if file.path not in bench.data_files()] == []
    assert bench.table.delete_removed_files(removed_before_ms=NOW_MS + 1) == 6


def test_only_what_the_log_names_as_removed_goes(bench: Bench) -> None:
    bench.append(*range(3))
    stray = bench.folder / f"{0:020d}-stray.parquet"
    stray.write_bytes(b"who knows")
    bench.compact()
    assert bench.table.delete_removed_files(removed_before_ms=NOW_MS * 2) == 3
    assert stray.exists()
    bench.reopen()
    assert bench.table.unreferenced_files == [stray.name]


def test_a_file_that_cannot_be_deleted_is_tried_again(bench: Bench) -> None:
    bench.append(*range(3))
    bench.compact()
    bench.store.fail_next("delete", StorageFault("busy"))
    with pytest.raises(StorageFault):
        bench.table.delete_removed_files(removed_before_ms=NOW_MS + 1)
    assert bench.table.delete_removed_files(removed_before_ms=NOW_MS + 1) == 3


def test_a_checkpoint_names_what_was_removed_lately_and_forgets_it_later(bench: Bench) -> None:
    bench.now_ms = time.time_ns() // 1_000_000
    bench.append(*range(4))
    bench.compact()
    lately = bench.now_ms
    bench.now_ms -= 3_600_000
    bench.append(*range(4, 8))
    bench.compact()
    bench.table.write_checkpoint()
    for version in bench.versions()[:-1]:
        (bench.folder / "_delta_log" / f"{version:020d}.json").unlink()
    bench.reopen()
    # The four appended first, lately; of the five that went an hour ago nothing is said any more.
    assert bench.table.delete_removed_files(removed_before_ms=lately + 1) == 4
    assert len(bench.table.unreferenced_files) == 5
    assert bench.values() == {b"k0": 6, b"k1": 7, b"k2": 5}


def test_versions_behind_a_checkpoint_go_by_age_or_by_number_and_the_rest_stays_whole(bench: Bench) -> None:
    for round_number in range(6):  # versions 1 to 30, a checkpoint at each fifth
        bench.now_ms = NOW_MS + round_number
        bench.append(*range(5 * round_number, 5 * round_number + 5))
        bench.table.write_checkpoint()
    expected = {b"k0": 27, b"k1": 28, b"k2": 29}
    drop = bench.table.drop_old_versions
    assert drop(committed_before_ms=0, count_max=1000) == 0
    assert drop(committed_before_ms=NOW_MS, count_max=29) == 0  # version 1 may go, but no checkpoint allows it
    assert drop(committed_before_ms=NOW_MS + 1, count_max=1000) == 5
    assert (bench.versions()[0], bench.checkpoints()) == (5, [5, 25, 30])
    bench.judge(expected)
    drop = bench.table.drop_old_versions
    assert drop(committed_before_ms=NOW_MS, count_max=7) == 0  # the checkpoints that would allow more are gone
    assert drop(committed_before_ms=NOW_MS, count_max=6) == 20
    assert (bench.versions(), bench.checkpoints()) == (list(range(25, 31)), [25, 30])
    bench.append(30, 31)
    assert drop(committed_before_ms=NOW_MS * 2, count_max=1) == 5
    assert (bench.versions(), bench.checkpoints()) == ([30, 31, 32], [25, 30])
    bench.judge({b"k0": 30, b"k1": 31, b"k2": 29})
    assert bench.checkpoints() == [25, 30]
    assert bench.table.high_watermark_at(29) is None
    assert [bench.table.high_watermark_at(version) for version in (30, 31, 32)] == [30, 31, 32]


def test_versions_stay_behind_a_checkpoint_that_cannot_be_read(bench: Bench) -> None:
    bench.append(*range(3))
    bench.table.write_checkpoint()
    bench.append(*range(3, 6))
    bench.table.write_checkpoint()
    newest = bench.folder / "_delta_log" / f"{6:020d}.checkpoint.parquet"
    newest.write_bytes(newest.read_bytes()[:100])
    assert bench.table.drop_old_versions(committed_before_ms=NOW_MS * 2, count_max=1) == 3
    assert (bench.versions(), bench.checkpoints()) == ([3, 4, 5, 6], [3, 6])
    bench.judge({b"k0": 3, b"k1": 4, b"k2": 5})


def test_without_a_checkpoint_every_version_stays(bench: Bench) -> None:
    bench.append(*range(5))
    assert bench.table.drop_old_versions(committed_before_ms=NOW_MS * 2, count_max=1) == 0
    assert bench.versions() == list(range(6))


class Crashed(BaseException):
    """The process is gone: nothing tidies up."""


class CrashingStore:
    """Another store, until the broker's `count`-th call of `operation`."""

    def __init__(self, store: ObjectStore, operation: str, count: int) -> None:
        self._store = store
        self._operation = operation
        self._left = count

    def __getattr__(self, operation: str) -> Any:
        found = getattr(self._store, operation)

        def call(*args: Any, **kwargs: Any) -> Any:
            self._left -= operation == self._operation
            if self._left <= 0:
                raise Crashed
            return found(*args, **kwargs)

        return call if callable(found) else found


def clean(bench: Bench) -> None:
    bench.compact()
    bench.table.delete_removed_files(removed_before_ms=NOW_MS + 1)
    bench.table.write_checkpoint()
    bench.table.drop_old_versions(committed_before_ms=NOW_MS * 2, count_max=1)


@pytest.mark.parametrize(
    ("operation", "count"),
    [
        pytest.param("write_unique", 1, id="before the compacted file"),
        pytest.param("create", 1, id="between the file and its version"),
        pytest.param("delete", 1, id="before the first file is deleted"),
        pytest.param("delete", 4, id="between deleted files"),
        pytest.param("put", 1, id="between the checkpoint and what names it"),
        pytest.param("delete", 8, id="before the first version is dropped"),
        pytest.param("delete", 11, id="between dropped versions"),
    ],
)
def test_a_crash_at_any_step_leaves_a_table_that_opens_clean(bench: Bench, operation: str, count: int) -> None:
    bench.append(*range(6))
    expected = {b"k0": 3, b"k1": 4, b"k2": 5}
    whole = bench.table._store
    bench.table._store = bench.table._compaction._store = CrashingStore(whole, operation, count)  # type: ignore[assignment]
    with pytest.raises(Crashed):
        clean(bench)
    bench.judge(expected)
    bench.append(6)
    clean(bench)
    bench.judge({**expected, b"k0": 6})
    assert bench.table.state.file_count == 1
    assert len(bench.versions()) == 1
