"""Old versions, the data files that only they had, and orphans: gone in time, never too early, whatever crashes."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import time
from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from bus.errors import StorageFault
from bus.model import CONSUMER_OFFSETS_TOPIC, LogBatch, TimestampType, TopicPartition
from bus.ports import Committed, Dropped, KeyedRow
from bus.storage_delta.log import checkpoints
from bus.storage_delta.log.reading import load_removed
from bus.storage_delta.root import DeltaStorage, open_storage_on
from bus.storage_delta.stores.local import LocalStore
from bus.storage_delta.stores.store import ObjectStore, OutcomeUnknown
from bus.storage_delta.table import DeltaPartitionTable
from bus.storage_delta.verify.verification import verify_partition
from tests.support.stores import ScriptedStore, led

NAME = TopicPartition(CONSUMER_OFFSETS_TOPIC, 0)
FOLDER = f"topics/{CONSUMER_OFFSETS_TOPIC}/0"
NOW_MS = time.time_ns() // 1_000_000  # what another library writes depends on its own clock
FAR_MS = 2**62


class Bench:
    def __init__(self, root: Path) -> None:
        self.folder = root / FOLDER
        self.store = ScriptedStore(LocalStore(str(root)))
        self.storage: DeltaStorage = open_storage_on(self.store, exclusive=False)
        self.table: DeltaPartitionTable = led(self.storage.create_partition(NAME, topic_id="id"))
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

    def drop(self, *, before_ms: int = FAR_MS, count_max: int = 10**9, removed_before_ms: int = FAR_MS) -> Dropped:
        return self.table.cleanup.drop_old_versions(
            committed_before_ms=before_ms, count_max=count_max, removed_before_ms=removed_before_ms
        )

    def compact(self) -> None:
        prepared = self.table.rewrites.prepare_key_compaction(now_ms=self.now_ms, tombstone_retention_ms=1)
        assert prepared is not None
        assert isinstance(self.table.rewrites.swap(prepared, leader_epoch=0, now_ms=self.now_ms), Committed)

    def reopen(self) -> None:
        self.table = led(self.storage.open_partition(NAME, topic_id="id"))

    def values(self) -> dict[bytes, int]:
        found: dict[bytes, int] = {}
        offset, end_offset = self.table.state.log_start, self.table.state.high_watermark
        while offset < end_offset:
            for batch in self.table.log.read(offset, end_offset=end_offset, max_bytes=1 << 20):
                found.update({row.key: (row.value or {})["committed_offset"] for row in self.rows.decode(batch)})
                offset = batch.next_offset
        return found

    def data_files(self) -> set[str]:
        return {path.name for path in self.folder.glob("*.parquet")}

    def versions(self) -> list[int]:
        return sorted(int(path.stem) for path in (self.folder / "_delta_log").glob("0*.json"))

    def checkpoints(self) -> list[int]:
        return sorted(int(path.name[:20]) for path in (self.folder / "_delta_log").glob("*.checkpoint.parquet"))

    def removed_in(self, checkpoint: int) -> set[str]:
        return set(load_removed(self.store, FOLDER, checkpoint))

    def judge(self, expected: dict[bytes, int]) -> None:
        """Ourselves, after opening anew, our verification, and another reader of every version that is kept."""
        self.reopen()
        assert self.values() == expected
        assert verify_partition(self.store, NAME, topic_id="id").breaches == []
        assert self.rows_at(None) == expected
        versions = self.versions()
        first = 0 if versions[0] == 0 else min(self.checkpoints())  # a crash may have left some of the dropped ones
        for version in versions:
            if version >= first:
                self.rows_at(version)

    def rows_at(self, version: int | None) -> dict[bytes, int]:
        """Rows as another reader sees them."""
        table = deltalake.DeltaTable(str(self.folder), version=version)
        rows = deltalake.QueryBuilder().register("t", table).execute("select * from t order by offset").read_all()
        return {row["key"]: row["value"]["committed_offset"] for row in pa.table(rows).to_pylist()}


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


LAST_OF_SIX = {b"k0": 3, b"k1": 4, b"k2": 5}

# ---------------------------------------------------------------- data files follow the versions that had them


def test_replaced_files_stay_as_long_as_a_version_that_has_them(bench: Bench) -> None:
    bench.append(*range(6))
    old = bench.data_files()
    bench.compact()
    assert bench.drop() == Dropped()  # no checkpoint allows anything
    bench.table.cleanup.write_checkpoint()
    assert bench.drop(before_ms=NOW_MS) == Dropped()  # no version is that old
    assert bench.data_files() > old
    bench.judge(LAST_OF_SIX)
    sizes = sum((bench.folder / name).stat().st_size for name in old)
    assert bench.drop(before_ms=NOW_MS + 1) == Dropped(versions=7, data_files=6, data_bytes=sizes)
    assert bench.data_files().isdisjoint(old)
    assert bench.drop() == Dropped()
    bench.judge(LAST_OF_SIX)
    assert bench.drop() == Dropped()


def test_the_delay_of_deletion_holds_back_versions_and_their_files_however_many_they_are(bench: Bench) -> None:
    bench.append(*range(6))
    bench.compact()
    bench.table.cleanup.write_checkpoint()
    assert bench.drop(before_ms=FAR_MS, count_max=1, removed_before_ms=NOW_MS) == Dropped()
    assert bench.drop(before_ms=0, count_max=1, removed_before_ms=NOW_MS + 1).data_files == 6


def test_a_file_that_was_removed_lately_stays_though_its_versions_are_gone(bench: Bench) -> None:
    bench.append(*range(3))
    bench.now_ms = NOW_MS + 10
    bench.compact()
    bench.table.cleanup.write_checkpoint()
    old = bench.data_files()
    assert bench.drop(removed_before_ms=NOW_MS + 10) == Dropped(versions=4)
    assert bench.data_files() == old
    assert bench.drop(removed_before_ms=NOW_MS + 11).data_files == 3


def test_only_files_of_dropped_versions_go_and_every_kept_version_is_read_by_everybody(bench: Bench) -> None:
    bench.append(*range(3))
    first = bench.data_files()
    bench.compact()  # version 4
    bench.table.cleanup.write_checkpoint()
    bench.now_ms = NOW_MS + 10
    bench.append(*range(3, 6))
    bench.compact()  # version 8
    bench.table.cleanup.write_checkpoint()
    before = bench.data_files()
    dropped = bench.drop(before_ms=NOW_MS + 10)
    assert (dropped.versions, dropped.data_files) == (4, 3)
    assert bench.data_files() == before - first
    assert bench.versions() == [4, 5, 6, 7, 8]
    bench.judge(LAST_OF_SIX)
    assert [len(bench.rows_at(version)) for version in bench.versions()] == [3, 3, 3, 3, 3]


def test_files_go_after_a_restart_too(bench: Bench) -> None:
    bench.append(*range(6))
    bench.compact()
    bench.table.cleanup.write_checkpoint()
    bench.reopen()
    assert bench.drop(before_ms=NOW_MS) == Dropped()
    bench.reopen()
    assert bench.drop().data_files == 6
    bench.judge(LAST_OF_SIX)


def test_a_file_that_a_read_under_way_holds_stays_until_it_has_ended(bench: Bench) -> None:
    bench.append(*range(6))
    with bench.table.log.reading() as view:
        bench.compact()
        bench.table.cleanup.write_checkpoint()
        assert bench.drop() == Dropped(versions=7)
        assert [file.path for file in view.live_files if file.path not in bench.data_files()] == []
    assert bench.drop().data_files == 6


def test_only_what_the_log_names_as_removed_goes(bench: Bench) -> None:
    bench.append(*range(3))
    stray = bench.folder / f"{0:020d}-stray.parquet"
    stray.write_bytes(b"who knows")
    bench.compact()
    bench.table.cleanup.write_checkpoint()
    assert bench.drop().data_files == 3
    assert stray.exists()


def test_a_file_that_was_put_back_stays(bench: Bench) -> None:
    """Put back by another engine's RESTORE, say; it stays as well when it is removed once more."""
    bench.append(*range(3))
    old = live_files(bench)
    bench.compact()
    bench.table.cleanup.write_checkpoint()
    compacted = live_files(bench)[0]
    foreign_commit(bench, 5, remove_of(compacted, NOW_MS + 5), *(add_of(bench, name) for name in old))
    bench.table.reload()
    assert bench.drop() == Dropped(versions=4)
    foreign_commit(bench, 6, add_of(bench, compacted), *(remove_of(name, NOW_MS + 6) for name in old))
    bench.table.reload()
    assert bench.drop() == Dropped()
    bench.table.cleanup.write_checkpoint()
    assert bench.drop(before_ms=0) == Dropped()
    bench.judge({b"k0": 0, b"k1": 1, b"k2": 2})


def test_a_failure_in_between_is_tried_again(bench: Bench) -> None:
    bench.append(*range(3))
    bench.compact()
    bench.table.cleanup.write_checkpoint()
    bench.store.fail_next("delete", StorageFault("busy"))
    with pytest.raises(StorageFault):
        bench.drop()
    assert bench.drop().data_files == 3
    bench.judge({b"k0": 0, b"k1": 1, b"k2": 2})


def test_after_a_sync_that_failed_no_data_file_goes_before_the_names_are_written_anew_and_synced(
    bench: Bench,
) -> None:
    bench.append(*range(6))
    bench.compact()
    bench.table.cleanup.write_checkpoint()
    files = bench.data_files()
    bench.store.fail_next("sync", StorageFault("the disk does not answer"))
    bench.store.fail_next("sync", StorageFault("the disk does not answer"))
    for _ in range(2):
        with pytest.raises(StorageFault):
            bench.drop()
        assert bench.data_files() == files
    bench.store.calls.clear()
    assert bench.drop().data_files == 6
    changes = [call for call in bench.store.calls if call in ("put", "sync", "delete")]
    assert changes == ["put", "sync", *["delete"] * 6]
    bench.judge(LAST_OF_SIX)


def test_the_first_pass_after_a_restart_syncs_before_data_files_go(bench: Bench) -> None:
    """The one before may have been killed between the versions and the sync."""
    bench.append(*range(6))
    bench.compact()
    bench.table.cleanup.write_checkpoint()
    bench.store.fail_next("sync", StorageFault("killed here"))
    with pytest.raises(StorageFault):
        bench.drop()
    bench.reopen()
    bench.store.calls.clear()
    assert bench.drop().data_files == 6
    assert bench.store.calls.index("sync") < bench.store.calls.index("delete")


def without_txn(data: bytes, app_id: str) -> bytes:
    table = pq.read_table(pa.BufferReader(data))
    names = [None if txn is None else txn["appId"] for txn in table.column("txn").to_pylist()]
    sink = pa.BufferOutputStream()
    pq.write_table(table.filter(pa.array([name != app_id for name in names])), sink)
    return bytes(sink.getvalue())


def test_a_checkpoint_that_lacks_a_txn_is_not_kept(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    bench.append(*range(3))
    made = checkpoints.encode_checkpoint
    monkeypatch.setattr(
        checkpoints, "encode_checkpoint", lambda **actions: without_txn(made(**actions), "bus/high_watermark")
    )
    with pytest.raises(StorageFault, match="bus/high_watermark at Txn"):
        bench.table.cleanup.write_checkpoint()
    assert list(bench.folder.glob("_delta_log/*checkpoint*")) == []


def test_versions_stay_behind_a_checkpoint_of_an_earlier_process_that_lacks_a_txn(bench: Bench) -> None:
    bench.append(*range(6))
    bench.table.cleanup.write_checkpoint()
    bench.append(6)
    bench.table.cleanup.write_checkpoint()
    path = bench.folder / f"_delta_log/{7:020d}.checkpoint.parquet"
    path.write_bytes(without_txn(path.read_bytes(), "bus/leader_epoch"))
    (bench.folder / "_delta_log/_last_checkpoint").unlink()
    bench.reopen()
    bench.drop(count_max=1)
    assert bench.versions()[0] == 6


def test_a_checkpoint_names_removed_files_as_long_as_they_are_there(bench: Bench) -> None:
    bench.append(*range(4))
    bench.compact()
    bench.table.cleanup.write_checkpoint()
    assert len(bench.removed_in(5)) == 4
    bench.append(4)
    bench.compact()
    bench.table.cleanup.write_checkpoint()
    assert len(bench.removed_in(7)) == 6
    assert bench.drop(count_max=3, before_ms=0).data_files == 4
    bench.append(5)
    bench.table.cleanup.write_checkpoint()
    assert bench.removed_in(8) == bench.removed_in(7) - bench.removed_in(5)
    bench.judge(LAST_OF_SIX)


def test_a_checkpoint_is_needed_once_a_removal_is_old_enough_and_none_covers_it(bench: Bench) -> None:
    def is_needed(before_ms: int) -> bool:
        return bench.table.cleanup.is_checkpoint_needed_to_drop(committed_before_ms=before_ms)

    bench.append(*range(3))
    assert not is_needed(FAR_MS)
    bench.compact()
    for _ in range(2):
        assert [is_needed(NOW_MS), is_needed(NOW_MS + 1)] == [False, True]
        bench.reopen()
    bench.table.cleanup.write_checkpoint()
    assert not is_needed(FAR_MS)
    bench.append(3)
    bench.compact()
    assert is_needed(NOW_MS + 1)


# ---------------------------------------------------------------- versions and checkpoints


def test_versions_behind_a_checkpoint_go_by_age_or_by_number_and_the_rest_stays_whole(bench: Bench) -> None:
    for round_number in range(6):  # versions 1 to 30, a checkpoint at each fifth
        bench.now_ms = NOW_MS + round_number
        bench.append(*range(5 * round_number, 5 * round_number + 5))
        bench.table.cleanup.write_checkpoint()
    expected = {b"k0": 27, b"k1": 28, b"k2": 29}
    assert bench.drop(before_ms=0, count_max=1000) == Dropped()
    assert bench.drop(before_ms=NOW_MS, count_max=27) == Dropped()  # versions up to 3 may go; no checkpoint allows it
    assert bench.drop(before_ms=NOW_MS + 1, count_max=1000) == Dropped(versions=5)
    assert (bench.versions()[0], bench.checkpoints()) == (5, [5, 10, 15, 20, 25, 30])
    bench.judge(expected)
    assert bench.drop(before_ms=NOW_MS, count_max=22) == Dropped()
    assert bench.drop(before_ms=NOW_MS, count_max=21) == Dropped(versions=5)
    assert bench.drop(before_ms=NOW_MS + 4, count_max=1000) == Dropped(versions=10)
    assert (bench.versions(), bench.checkpoints()) == (list(range(20, 31)), [20, 25, 30])
    bench.append(30, 31)
    assert bench.drop(count_max=1) == Dropped(versions=10)
    assert (bench.versions(), bench.checkpoints()) == ([30, 31, 32], [30])
    bench.judge({b"k0": 30, b"k1": 31, b"k2": 29})
    assert bench.table.log.high_watermark_at(29) is None
    assert [bench.table.log.high_watermark_at(version) for version in (30, 31, 32)] == [30, 31, 32]


def test_of_many_checkpoints_some_stay_spread_over_the_kept_versions(bench: Bench) -> None:
    for value in range(120):
        bench.append(value)
        bench.table.cleanup.write_checkpoint()
        assert bench.drop(before_ms=0) == Dropped()
    found = bench.checkpoints()
    assert 16 <= len(found) <= 34
    assert found[-2:] == [119, 120]
    assert max(later - earlier for earlier, later in itertools.pairwise(found)) <= 8
    assert bench.drop(before_ms=0, count_max=60).versions == next(at for at in reversed(found) if at <= 61)


def test_a_pass_with_nothing_to_do_looks_at_nothing(bench: Bench) -> None:
    bench.append(*range(6))
    bench.compact()
    bench.table.cleanup.write_checkpoint()
    bench.append(6)
    bench.drop(before_ms=NOW_MS)
    bench.store.calls.clear()
    assert bench.drop(before_ms=NOW_MS) == Dropped()
    assert bench.store.calls == []


def test_versions_stay_behind_a_checkpoint_that_cannot_be_read(bench: Bench) -> None:
    bench.append(*range(3))
    bench.table.cleanup.write_checkpoint()
    bench.append(*range(3, 6))
    bench.table.cleanup.write_checkpoint()
    newest = bench.folder / "_delta_log" / f"{6:020d}.checkpoint.parquet"
    newest.write_bytes(newest.read_bytes()[:100])
    with contextlib.suppress(StorageFault):
        bench.drop(count_max=1)
    assert (bench.versions(), bench.checkpoints()) == ([3, 4, 5, 6], [3, 6])
    bench.judge(LAST_OF_SIX)


def test_the_checkpoint_that_stands_for_versions_which_are_gone_stays(bench: Bench) -> None:
    bench.append(*range(3))
    bench.table.cleanup.write_checkpoint()
    bench.append(*range(3, 6))
    bench.table.cleanup.write_checkpoint()
    for version in range(4):
        (bench.folder / "_delta_log" / f"{version:020d}.json").unlink()
    older = bench.folder / "_delta_log" / f"{3:020d}.checkpoint.parquet"
    whole = older.read_bytes()
    older.write_bytes(whole[:100])
    assert bench.drop(before_ms=0) == Dropped()
    assert bench.checkpoints() == [3, 6]
    older.write_bytes(whole)
    bench.reopen()
    assert bench.drop(before_ms=0) == Dropped()
    assert (bench.versions(), bench.checkpoints()) == ([4, 5, 6], [3, 6])
    bench.judge(LAST_OF_SIX)


def test_without_a_checkpoint_every_version_stays(bench: Bench) -> None:
    bench.append(*range(5))
    assert bench.drop(count_max=1) == Dropped()
    assert bench.versions() == list(range(6))


def test_a_checkpoint_that_cannot_be_made_leaves_no_trace(bench: Bench) -> None:
    bench.append(*range(5))
    bench.table.cleanup.write_checkpoint()
    before = sorted(bench.folder.rglob("*"))
    bench.append(5)
    bench.store.fail_next("put", StorageFault("busy"))
    with pytest.raises(StorageFault, match="busy"):
        bench.table.cleanup.write_checkpoint()
    assert bench.checkpoints() == [5]
    assert len(sorted(bench.folder.rglob("*"))) == len(before) + 2
    bench.judge(LAST_OF_SIX)


# ---------------------------------------------------------------- orphans


def test_orphans_are_data_files_of_ours_that_no_kept_version_names(bench: Bench) -> None:
    bench.append(*range(6))
    bench.compact()
    bench.table.cleanup.write_checkpoint()
    bench.append(6)
    bench.compact()
    strays = [bench.folder / f"{0:020d}-stray.parquet", bench.folder / "part-00000-of-spark.parquet"]
    for stray in strays:
        stray.write_bytes(b"who knows")
    for _ in range(2):
        orphans = bench.table.cleanup.find_orphans()
        assert orphans == {strays[0].name}
        bench.reopen()
    before = bench.data_files()
    assert bench.table.cleanup.delete_orphans(orphans) == 1
    assert bench.data_files() == before - orphans
    assert bench.table.cleanup.delete_orphans(orphans) == 0
    bench.judge({b"k0": 6, b"k1": 4, b"k2": 5})


def test_what_has_become_part_of_the_table_meanwhile_is_no_orphan(bench: Bench) -> None:
    bench.append(*range(3))
    stray = f"{3:020d}-of-somebody.parquet"
    (bench.folder / stray).write_bytes((bench.folder / live_files(bench)[2]).read_bytes())
    orphans = bench.table.cleanup.find_orphans()
    assert orphans == {stray}
    foreign_commit(
        bench, 4, remove_of(live_files(bench)[2], 4), add_of(bench, live_files(bench)[2], path=stray, tags={})
    )
    bench.table.reload()
    assert bench.table.cleanup.delete_orphans(orphans) == 0
    bench.judge({b"k0": 0, b"k1": 1, b"k2": 2})


def test_files_under_way_are_no_orphans(bench: Bench) -> None:
    bench.append(*range(6))
    prepared = bench.table.rewrites.prepare_key_compaction(now_ms=NOW_MS, tombstone_retention_ms=1)
    assert prepared is not None
    assert bench.table.cleanup.find_orphans() == frozenset()
    found: list[frozenset[str]] = []
    bench.store.before_next("create", lambda: found.append(bench.table.cleanup.find_orphans()))
    bench.append(6)
    bench.store.before_next("create", lambda: found.append(bench.table.cleanup.find_orphans()))
    assert isinstance(bench.table.rewrites.swap(prepared, leader_epoch=0, now_ms=NOW_MS), Committed)
    assert found == [frozenset(), frozenset()]
    assert bench.table.cleanup.find_orphans() == frozenset()


def test_while_a_version_is_in_doubt_nothing_is_called_an_orphan(bench: Bench) -> None:
    bench.append(*range(2))
    stray = bench.folder / f"{0:020d}-stray.parquet"
    stray.write_bytes(b"")
    bench.store.fail_next("create", OutcomeUnknown("sync failed"), after_doing_it=True)
    with pytest.raises(AssertionError):
        bench.append(2)
    assert bench.table.cleanup.find_orphans() == frozenset()
    assert bench.table.cleanup.delete_orphans(frozenset({stray.name})) == 0
    bench.table.reload()
    assert bench.table.cleanup.find_orphans() == {stray.name}


# ---------------------------------------------------------------- crashes


class Crashed(BaseException):
    """The process is gone: nothing tidies up."""


class CrashingStore:
    """Another store, until the broker's `count`-th call of `operation` once it is armed."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self._operation = ""
        self._left = 1

    def arm(self, operation: str, count: int) -> None:
        self._operation, self._left = operation, count

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
    bench.table.cleanup.write_checkpoint()
    bench.drop()
    bench.table.cleanup.delete_orphans(bench.table.cleanup.find_orphans())


@pytest.mark.parametrize(
    ("operation", "count"),
    [
        pytest.param("write_parts", 1, id="before the compacted file"),
        pytest.param("create", 1, id="between the file and its version"),
        pytest.param("put", 1, id="before the checkpoint"),
        pytest.param("put", 2, id="between the checkpoint and what names it"),
        pytest.param("delete", 2, id="before the first version is dropped"),
        pytest.param("delete", 5, id="between dropped versions"),
        pytest.param("sync", 1, id="between the versions and the data files that only they had"),
        pytest.param("delete", 9, id="before the first data file is deleted"),
        pytest.param("delete", 12, id="between deleted data files"),
    ],
)
def test_a_crash_at_any_step_leaves_a_table_that_opens_clean(bench: Bench, operation: str, count: int) -> None:
    bench.append(*range(6))
    crashing = CrashingStore(bench.store)
    bench.storage = open_storage_on(crashing, exclusive=False)  # type: ignore[arg-type]
    bench.reopen()
    crashing.arm(operation, count)
    with pytest.raises(Crashed):
        clean(bench)
    bench.storage = open_storage_on(bench.store, exclusive=False)
    bench.judge(LAST_OF_SIX)
    bench.append(6)
    clean(bench)
    bench.judge({**LAST_OF_SIX, b"k0": 6})
    assert bench.table.state.file_count == 1
    is_fenced = operation == "create"  # an orphan was left, so a version was committed before it went
    assert len(bench.versions()) == 1 + is_fenced
    assert bench.data_files() == {file.path for file in bench.table.rewrites.files}


@pytest.mark.parametrize("count", range(1, 10))
def test_a_crash_between_deletions_leaves_no_checkpoint_with_a_gap_behind_it(bench: Bench, count: int) -> None:
    for number in range(3):
        bench.append(2 * number, 2 * number + 1)
        bench.table.cleanup.write_checkpoint()
    crashing = CrashingStore(bench.store)
    bench.storage = open_storage_on(crashing, exclusive=False)  # type: ignore[arg-type]
    bench.reopen()
    crashing.arm("delete", count)
    with contextlib.suppress(Crashed):
        bench.drop()
    last = bench.versions()[-1]
    for path in bench.folder.glob("_delta_log/*.checkpoint.parquet"):
        checkpoint = int(path.name[:20])
        assert [version for version in bench.versions() if version > checkpoint] == [*range(checkpoint + 1, last + 1)]


# ---------------------------------------------------------------- other engines


def live_files(bench: Bench) -> list[str]:
    return [file.path for file in bench.table.rewrites.files]


def add_of(bench: Bench, name: str, **changes: Any) -> str:
    lines = [line for path in bench.folder.glob("_delta_log/0*.json") for line in path.read_text().splitlines()]
    adds = [json.loads(line)["add"] for line in lines if '{"add"' in line]
    add = next(add for add in adds if add["path"] == name)
    return json.dumps({"add": {**add, "dataChange": False, **changes}})


def remove_of(name: str, removed_ms: int) -> str:
    return json.dumps({"remove": {"path": name, "dataChange": False, "deletionTimestamp": removed_ms}})


def foreign_commit(bench: Bench, version: int, *actions: str) -> None:
    info = {"commitInfo": {"operation": "OPTIMIZE", "engineInfo": "Apache-Spark/4.2.0", "timestamp": NOW_MS}}
    (bench.folder / "_delta_log" / f"{version:020d}.json").write_text("\n".join([json.dumps(info), *actions, ""]))


def test_a_vacuum_of_another_engine_leaves_every_kept_version_readable(bench: Bench) -> None:
    bench.append(*range(6))
    bench.compact()
    bench.table.cleanup.write_checkpoint()
    bench.append(6)
    bench.compact()
    before = bench.data_files()
    old = time.time() - 30 * 86_400
    for name in before:
        os.utime(bench.folder / name, (old, old))
    for full in (False, True):
        deltalake.DeltaTable(str(bench.folder)).vacuum(dry_run=False, full=full)
        bench.reopen()
    assert bench.data_files() == before
    bench.judge({b"k0": 6, b"k1": 4, b"k2": 5})
