"""Committed, Conflicted, Unknown, and what is left when the disk fails at each step of a commit."""

from __future__ import annotations

import errno
from dataclasses import replace
from pathlib import Path

import pytest

from bus.errors import StorageFault, StorageFull
from bus.model import TopicPartition
from bus.ports import Committed, Conflicted, ProducerProgress, Unknown
from bus.storage_delta.files.data_reader import ReadCache
from bus.storage_delta.log.actions import decode_commit
from bus.storage_delta.log.listing import partition_folder, version_name
from bus.storage_delta.root import DeltaStorage, open_storage, open_storage_on
from bus.storage_delta.stores.local import LocalStore
from bus.storage_delta.stores.store import KeyExists, KeyNotFound, OutcomeUnknown
from bus.storage_delta.table import DeltaPartitionTable
from tests.support.memory_store import MemoryStore
from tests.support.stores import NOW_MS, FailingFileSystem, ScriptedStore, led, log_batch

PARTITION = TopicPartition("orders", 0)
FOLDER = partition_folder(PARTITION)
LOG = f"{FOLDER}/_delta_log"


def append(table: DeltaPartitionTable, *values: bytes, epoch: int = 0) -> Committed | Conflicted | Unknown:
    batch = log_batch(table.state.high_watermark, values, leader_epoch=epoch)
    return table.append([batch], leader_epoch=epoch, now_ms=NOW_MS)


def values_of(table: DeltaPartitionTable) -> list[bytes]:
    batches = table.log.read(0, end_offset=table.state.high_watermark, max_bytes=1 << 20)
    return [value for batch in batches for value in batch.columns.column("value").to_pylist()]


@pytest.fixture
def disk() -> FailingFileSystem:
    return FailingFileSystem()


@pytest.fixture
def local(tmp_path: Path, disk: FailingFileSystem) -> DeltaPartitionTable:
    storage = open_storage_on(LocalStore(str(tmp_path), disk))
    return led(storage.create_partition(PARTITION, topic_id="id"))


@pytest.fixture
def scripted() -> ScriptedStore:
    return ScriptedStore(MemoryStore())


@pytest.fixture
def table(scripted: ScriptedStore) -> DeltaPartitionTable:
    return led(open_storage_on(scripted).create_partition(PARTITION, topic_id="id"))  # type: ignore[arg-type]


def reopened(tmp_path: Path) -> DeltaPartitionTable:
    return led(open_storage(str(tmp_path), exclusive=False).open_partition(PARTITION, topic_id="id"))


def test_a_commit_is_one_version_behind_the_other(table: DeltaPartitionTable) -> None:
    assert append(table, b"a", b"b") == Committed(version=1, high_watermark=2)
    assert append(table, b"c") == Committed(version=2, high_watermark=3)
    assert values_of(table) == [b"a", b"b", b"c"]
    assert (table.state.log_start, table.state.high_watermark, table.state.file_count) == (0, 3, 2)


def test_a_commit_does_two_writes_and_nothing_else(table: DeltaPartitionTable, scripted: ScriptedStore) -> None:
    for _ in range(3):
        scripted.calls.clear()
        append(table, b"a")
        assert [call for call in scripted.calls if call != "table_url"] == ["write_unique", "create"]


def test_a_commit_syncs_data_then_version_then_makes_it_visible(
    local: DeltaPartitionTable, disk: FailingFileSystem
) -> None:
    disk.calls.clear()
    append(local, b"a")
    assert disk.calls == ["write", "fsync", "fsync", "write", "fsync", "link", "fsync"]


@pytest.mark.parametrize(("call", "nth"), [("write", 1), ("write", 3), ("fsync", 2), ("fsync", 4)])
def test_a_disk_that_fails_in_the_middle_of_a_large_file_leaves_nothing_of_it(
    local: DeltaPartitionTable, disk: FailingFileSystem, tmp_path: Path, call: str, nth: int
) -> None:
    batches = [log_batch(3 * at, [bytes([at]) * 1_000_000] * 3) for at in range(4)]
    disk.fail(call, nth)
    with pytest.raises(StorageFault):
        local.append(batches, leader_epoch=0, now_ms=NOW_MS)
    assert not list((tmp_path / FOLDER).glob("*.parquet"))
    assert local.append(batches, leader_epoch=0, now_ms=NOW_MS) == Committed(version=1, high_watermark=12)
    found = reopened(tmp_path).log.read(0, end_offset=12, max_bytes=1 << 30)
    values = [value for batch in found for value in batch.columns.column("value").to_pylist()]
    assert values == [bytes([at]) * 1_000_000 for at in range(4) for _ in range(3)]


def test_a_read_over_many_small_files_gives_what_it_has_in_time(table: DeltaPartitionTable) -> None:
    for _ in range(300):
        append(table, b"v")
    first = table.log.read(0, end_offset=300, max_bytes=1 << 20)
    assert first[-1].next_offset == 256
    rest = table.log.read(256, end_offset=300, max_bytes=1 << 20)
    assert (rest[0].base_offset, rest[-1].next_offset) == (256, 300)


def test_producers_progress_is_kept(table: DeltaPartitionTable) -> None:
    first, second = ProducerProgress(7, 0, 10), ProducerProgress(7, 1, 0)
    other = ProducerProgress(8, 3, 2**31 - 1)
    for producers in ([first, other], [second]):
        batch = log_batch(table.state.high_watermark, [b"x"])
        table.append([batch], leader_epoch=0, now_ms=NOW_MS, producers=producers)
    expected = {7: replace(second, updated_ms=NOW_MS), 8: replace(other, updated_ms=NOW_MS)}
    assert table.producers.progress == expected
    table.reload()
    assert table.producers.progress == expected


def test_a_lost_answer_of_our_own_commit_is_committed(table: DeltaPartitionTable, scripted: ScriptedStore) -> None:
    scripted.fail_next("create", KeyExists("412"), after_doing_it=True)
    assert append(table, b"a") == Committed(version=1, high_watermark=1)
    assert append(table, b"b") == Committed(version=2, high_watermark=2)
    assert values_of(table) == [b"a", b"b"]


def test_the_loser_learns_who_won_and_leaves_nothing_behind(
    table: DeltaPartitionTable, scripted: ScriptedStore
) -> None:
    winner = led(DeltaPartitionTable(scripted, FOLDER, topic_id="id", cache=ReadCache()))  # type: ignore[arg-type]
    assert append(winner, b"winner", epoch=5) == Committed(1, 1)
    assert append(table, b"loser", epoch=4) == Conflicted(version=1, leader_epoch=5, operation="WRITE")
    assert len(scripted.list(FOLDER).files) == 1
    assert table.reload().leader_epoch == 5
    assert append(led(table, 6), b"rebased", epoch=6) == Committed(2, 2)
    assert values_of(table) == [b"winner", b"rebased"]


def test_a_foreign_winner_has_no_epoch(table: DeltaPartitionTable, scripted: ScriptedStore) -> None:
    scripted.put(f"{LOG}/{version_name(1)}", b'{"commitInfo":{"operation":"SET TBLPROPERTIES"}}\n')
    assert append(table, b"a") == Conflicted(version=1, leader_epoch=None, operation="SET TBLPROPERTIES")
    assert table.reload().version == 1


def test_a_winner_that_cannot_be_read_is_unknown(table: DeltaPartitionTable, scripted: ScriptedStore) -> None:
    scripted.fail_next("create", KeyExists("412"), after_doing_it=True)
    scripted.fail_next("get", StorageFault("timed out"))
    outcome = append(table, b"a")
    assert isinstance(outcome, Unknown)
    assert table.reload().high_watermark == 1


def test_append_before_a_reload_is_a_broken_invariant(table: DeltaPartitionTable, scripted: ScriptedStore) -> None:
    scripted.fail_next("create", OutcomeUnknown("timed out"))
    assert isinstance(append(table, b"a"), Unknown)
    with pytest.raises(AssertionError, match="reload"):
        append(table, b"b")


def test_rows_that_do_not_begin_at_the_high_watermark_are_a_broken_invariant(table: DeltaPartitionTable) -> None:
    with pytest.raises(AssertionError, match="expected offset 0, found 5"):
        table.append([log_batch(5, [b"a"])], leader_epoch=0, now_ms=NOW_MS)


@pytest.mark.parametrize("arrived", [True, False])
def test_reload_tells_what_became_of_an_unknown_commit(
    table: DeltaPartitionTable, scripted: ScriptedStore, arrived: bool
) -> None:
    scripted.fail_next("create", OutcomeUnknown("timed out"), after_doing_it=arrived)
    assert isinstance(append(table, b"a"), Unknown)
    assert table.reload().high_watermark == (1 if arrived else 0)
    append(table, b"b")
    assert values_of(table) == ([b"a", b"b"] if arrived else [b"b"])


def test_a_folder_that_could_not_be_synced_leaves_the_outcome_unknown(
    local: DeltaPartitionTable, disk: FailingFileSystem, tmp_path: Path
) -> None:
    disk.fail("fsync", 4)
    outcome = append(local, b"a")
    assert isinstance(outcome, Unknown)
    assert outcome.version == 1
    assert (tmp_path / LOG / version_name(1)).exists()


def test_a_doubtful_version_is_written_anew_before_it_counts(
    local: DeltaPartitionTable, disk: FailingFileSystem, tmp_path: Path
) -> None:
    version = tmp_path / LOG / version_name(1)
    disk.fail("fsync", 4)
    append(local, b"a")
    inode, content = version.stat().st_ino, version.read_bytes()
    disk.fail("fsync", 1)
    with pytest.raises(StorageFault):
        local.reload()  # and if the disk fails again, nobody may go on
    assert local.reload().high_watermark == 1
    assert version.stat().st_ino != inode
    assert version.read_bytes() == content
    assert append(local, b"b") == Committed(2, 2)


# The calls of one commit, in order: data file written, synced, its folder synced; version written, synced.
STEPS = [("write", 1), ("fsync", 1), ("fsync", 2), ("write", 2), ("fsync", 3)]


@pytest.mark.parametrize(("call", "nth"), STEPS)
@pytest.mark.parametrize(
    ("number", "fault"),
    [(errno.ENOSPC, StorageFull), (errno.EDQUOT, StorageFull), (errno.EFBIG, StorageFull), (errno.EIO, StorageFault)],
)
def test_a_disk_that_fails_before_the_link_leaves_nothing_behind(
    local: DeltaPartitionTable,
    disk: FailingFileSystem,
    tmp_path: Path,
    call: str,
    nth: int,
    number: int,
    fault: type[StorageFault],
) -> None:
    append(local, b"before")
    before = sorted(path.relative_to(tmp_path) for path in tmp_path.rglob("*"))
    disk.fail(call, nth, number)
    with pytest.raises(fault):
        append(local, b"lost")
    assert sorted(path.relative_to(tmp_path) for path in tmp_path.rglob("*")) == before
    assert values_of(local) == [b"before"]
    assert append(local, b"after") == Committed(2, 2)  # there is room again
    assert values_of(reopened(tmp_path)) == [b"before", b"after"]


@pytest.mark.parametrize("number", [errno.EIO, errno.ENOSPC, errno.ENOENT, errno.EPERM, errno.ESTALE])
@pytest.mark.parametrize("is_made", [True, False])
def test_a_link_that_reports_an_error_is_unknown_and_the_log_decides(
    local: DeltaPartitionTable, disk: FailingFileSystem, tmp_path: Path, number: int, is_made: bool
) -> None:
    append(local, b"before")
    disk.fail("link", 1, number, after_doing_it=is_made)
    outcome = append(local, b"doubtful")
    assert isinstance(outcome, Unknown)
    assert len(list((tmp_path / FOLDER).glob("*.parquet"))) == 2  # the version may name it
    local.reload()
    append(local, b"after")
    expected = [b"before", b"doubtful", b"after"] if is_made else [b"before", b"after"]
    assert values_of(local) == values_of(reopened(tmp_path)) == expected
    assert len(list((tmp_path / FOLDER).glob("*.parquet"))) == len(expected)


@pytest.mark.parametrize("fault", [StorageFault("reset"), StorageFull("full"), RuntimeError("a bug")])
def test_a_commit_that_fails_after_its_effect_keeps_its_data_file(
    table: DeltaPartitionTable, scripted: ScriptedStore, fault: Exception
) -> None:
    scripted.fail_next("create", fault, after_doing_it=True)
    if isinstance(fault, StorageFault):
        assert isinstance(append(table, b"a"), Unknown)
    else:
        with pytest.raises(RuntimeError):
            append(table, b"a")
    assert table.cleanup.find_orphans() == frozenset()
    assert table.reload().high_watermark == 1
    append(table, b"b")
    assert values_of(table) == [b"a", b"b"]


def test_a_doubtful_version_that_appears_late_has_its_data_file(
    table: DeltaPartitionTable, scripted: ScriptedStore
) -> None:
    scripted.fail_next("create", OutcomeUnknown("timed out"), after_doing_it=True)
    assert isinstance(append(table, b"late"), Unknown)
    key = f"{LOG}/{version_name(1)}"
    request = scripted.get(key)
    scripted.delete(key)  # it is still on its way
    assert table.reload().high_watermark == 0
    scripted.put(key, request)
    assert isinstance(append(table, b"next"), Conflicted)
    assert table.reload().high_watermark == 1
    append(table, b"next")
    assert values_of(table) == [b"late", b"next"]


def test_only_a_full_disk_is_called_full(local: DeltaPartitionTable, disk: FailingFileSystem) -> None:
    disk.fail("fsync", 1, errno.EIO)
    with pytest.raises(StorageFault) as raised:
        append(local, b"a")
    assert not isinstance(raised.value, StorageFull)


def test_two_storages_without_a_lock_still_write_one_log(tmp_path: Path) -> None:
    first = open_storage(str(tmp_path), exclusive=False)
    second = open_storage(str(tmp_path), exclusive=False)
    tables = [
        led(first.create_partition(PARTITION, topic_id="id")),
        led(second.create_partition(PARTITION, topic_id="id")),
    ]
    acknowledged: dict[int, bytes] = {}
    conflicts = epoch = 0
    for round_number in range(10):
        for number, table in enumerate(tables):
            value = b"%d of %d" % (round_number, number)
            outcome = append(table, value, epoch=max(epoch, number))
            if isinstance(outcome, Conflicted):
                conflicts += 1
                assert outcome.leader_epoch == epoch
                epoch += 1
                outcome = append(led(table, epoch), value, epoch=epoch)
            assert isinstance(outcome, Committed)
            acknowledged[outcome.high_watermark - 1] = value
    assert values_of(reopened(tmp_path)) == [acknowledged[offset] for offset in range(len(acknowledged))]
    assert len(acknowledged) == 20
    assert conflicts == 19  # each but the first had the other one before it


def test_the_version_file_says_who_wrote_it(table: DeltaPartitionTable, scripted: ScriptedStore) -> None:
    append(table, b"a", epoch=9)
    commit = decode_commit(1, scripted.get(f"{LOG}/{version_name(1)}"))
    assert (commit.is_ours, commit.leader_epoch, commit.operation) == (True, 9, "WRITE")


def test_a_typed_row_that_does_not_fit_is_refused_before_anything_is_written() -> None:
    store = ScriptedStore(MemoryStore())
    log = led(open_storage_on(store).open_metadata())  # type: ignore[arg-type]
    store.calls.clear()
    for row in ({"type": "x", "nonsense": 1}, {"partition": "no number"}):
        with pytest.raises(ValueError, match=r"."):
            log.append([row], leader_epoch=0, now_ms=NOW_MS)
    assert not {"create", "write_unique", "put"} & set(store.calls)


def test_a_typed_log_replays_what_was_appended(tmp_path: Path) -> None:
    storage: DeltaStorage = open_storage(str(tmp_path))
    log = led(storage.open_metadata())
    assert list(log.replay()) == []
    log.append([{"type": "a", "partition": 1}, {"type": "b"}], leader_epoch=0, now_ms=NOW_MS)
    log.append([{"type": "c", "config_value": None}], leader_epoch=0, now_ms=NOW_MS)
    storage.close()
    storage = open_storage(str(tmp_path))
    rows = [
        {name: value for name, value in row.items() if value is not None} for row in storage.open_metadata().replay()
    ]
    assert rows == [{"type": "a", "partition": 1}, {"type": "b"}, {"type": "c"}]
    storage.close()


def test_a_deleted_folder_is_a_fault_and_not_a_new_table(local: DeltaPartitionTable, tmp_path: Path) -> None:
    append(local, b"a")
    LocalStore(str(tmp_path)).delete_folder(FOLDER)
    with pytest.raises(KeyNotFound):
        append(local, b"b")
    assert not (tmp_path / FOLDER).exists()
