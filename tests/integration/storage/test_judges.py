"""The tables as another Delta implementation sees them, checkpoints, and the cost of the many-thousandth commit."""

from __future__ import annotations

import errno
import json
import threading
import time
from pathlib import Path

import deltalake
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from bus.errors import StorageFault
from bus.model import TopicPartition
from bus.ports import Committed, ProducerProgress
from bus.storage_delta.log import checkpoints
from bus.storage_delta.log.listing import checkpoint_name, partition_folder, version_name
from bus.storage_delta.root import open_storage, open_storage_on
from bus.storage_delta.stores.local import LocalStore
from bus.storage_delta.table import DeltaPartitionTable
from bus.storage_delta.verify.verification import verify_partition
from tests.support.memory_store import MemoryStore
from tests.support.stores import NOW_MS, FailingFileSystem, ScriptedStore, led, log_batch

PARTITION = TopicPartition("orders", 0)


@pytest.fixture
def disk() -> FailingFileSystem:
    return FailingFileSystem()


@pytest.fixture
def table(tmp_path: Path, disk: FailingFileSystem) -> DeltaPartitionTable:
    return led(open_storage_on(LocalStore(str(tmp_path), disk)).create_partition(PARTITION, topic_id="id"))


@pytest.fixture
def url(tmp_path: Path) -> str:
    return str(tmp_path / partition_folder(PARTITION))


def append(table: DeltaPartitionTable, count: int, *producers: ProducerProgress) -> Committed:
    batch = log_batch(table.state.high_watermark, [b"v"] * count)
    outcome = table.append([batch], leader_epoch=1, now_ms=NOW_MS, producers=producers)
    assert isinstance(outcome, Committed)
    return outcome


def test_the_count_at_every_version_is_the_high_watermark_at_that_version(table: DeltaPartitionTable, url: str) -> None:
    outcomes = [append(table, count, ProducerProgress(5, 1, count)) for count in (1, 3, 2, 10)]
    table.cleanup.write_checkpoint()
    outcomes.append(append(table, 4))
    for outcome in outcomes:
        judged = deltalake.DeltaTable(url, version=outcome.version)
        assert judged.to_pyarrow_table(columns=["offset"]).num_rows == outcome.high_watermark
        assert judged.transaction_version("bus/high_watermark") == outcome.high_watermark
        assert judged.transaction_version("bus/leader_epoch") == 1
    assert deltalake.DeltaTable(url).transaction_version("bus/5") == (1 << 32) | 10


def test_offsets_keys_and_types_are_those_of_the_log(table: DeltaPartitionTable, url: str) -> None:
    batch = log_batch(0, [b"a", None], keys=[b"k", None], producer=(7, 2, 5))
    table.append([batch], leader_epoch=4, now_ms=NOW_MS)
    rows = deltalake.DeltaTable(url).to_pyarrow_table().to_pylist()
    assert [row["offset"] for row in rows] == [0, 1]
    assert [(row["key"], row["value"]) for row in rows] == [(b"k", b"a"), (None, None)]
    assert rows[1]["producer_id"] == 7
    assert rows[1]["sequence"] == 6
    assert int(rows[0]["timestamp"].timestamp() * 1000) == NOW_MS


def test_statistics_let_a_reader_skip_files(table: DeltaPartitionTable, url: str) -> None:
    for count in (5, 5, 5):
        append(table, count)
    files = pa.table(deltalake.DeltaTable(url).get_add_actions(flatten=True)).to_pydict()
    assert sorted(zip(files["min.offset"], files["max.offset"], strict=True)) == [
        (0, 4),
        (5, 9),
        (10, 14),
    ]


def test_a_checkpoint_is_due_after_a_hundred_commits(table: DeltaPartitionTable, url: str) -> None:
    for _ in range(99):
        append(table, 1)
    assert not table.cleanup.is_checkpoint_due
    append(table, 1)
    assert table.cleanup.is_checkpoint_due
    table.cleanup.write_checkpoint()
    assert not table.cleanup.is_checkpoint_due
    assert json.loads(Path(url, "_delta_log", "_last_checkpoint").read_text())["version"] == 100
    append(table, 1)
    assert deltalake.DeltaTable(url).to_pyarrow_table(columns=["offset"]).num_rows == 101


@pytest.mark.parametrize(
    ("commits", "file_count", "elapsed_ms", "is_due"),
    [
        (99, 10, 1_000_000, False),
        (100, 10, 20_000, True),
        (100, 10, 19_999, False),
        (999, 10, 19_999, False),
        (1_000, 10, 19_999, True),
        (1_000, 100_000, 19_999, False),
        (25_000, 100_000, 0, True),
    ],
)
def test_checkpoints_have_a_tenth_of_the_time_unless_the_tail_grows_long(
    commits: int, file_count: int, elapsed_ms: int, is_due: bool
) -> None:
    found = checkpoints.is_due(commits=commits, file_count=file_count, elapsed_ms=elapsed_ms, last_duration_ms=2_000)
    assert found == is_due


def test_a_checkpoint_of_an_older_version_is_that_of_its_time(table: DeltaPartitionTable, url: str) -> None:
    """A commit that lands while a checkpoint is written is not in it."""
    for _ in range(3):
        append(table, 1)
    stop = threading.Event()

    def write_on() -> None:
        while not stop.is_set():
            append(table, 1)

    writer = threading.Thread(target=write_on)
    writer.start()
    try:
        for _ in range(5):
            table.cleanup.write_checkpoint()
    finally:
        stop.set()
        writer.join()
    high_watermark = table.state.high_watermark
    assert deltalake.DeltaTable(url).to_pyarrow_table(columns=["offset"]).num_rows == high_watermark
    assert table.reload().high_watermark == high_watermark


def test_a_checkpoint_goes_on_from_one_that_another_engine_wrote(tmp_path: Path, url: str) -> None:
    """Its columns differ, and it names files that were removed."""
    table = led(open_storage(str(tmp_path), exclusive=False).create_partition(PARTITION, topic_id="id"))
    for count in (1, 3, 2):
        append(table, count)
    rolled = table.rewrites.prepare_roll(
        table.rewrites.files[:2], compression="none", now_ms=NOW_MS, tombstone_retention_ms=0
    )
    table.rewrites.swap(rolled, leader_epoch=1, now_ms=NOW_MS)
    deltalake.DeltaTable(url).create_checkpoint()
    table = led(open_storage(str(tmp_path), exclusive=False).open_partition(PARTITION, topic_id="id"))
    append(table, 4)
    table.cleanup.write_checkpoint()
    append(table, 1)
    table.cleanup.write_checkpoint()
    assert verify_partition(LocalStore(str(tmp_path)), PARTITION, topic_id="id").breaches == []
    removed = pq.read_table(f"{url}/_delta_log/{checkpoint_name(6)}").column("remove").drop_null().to_pylist()
    assert sorted(one["path"] for one in removed) == sorted(rolled.removes)
    judged = deltalake.DeltaTable(url)
    assert judged.to_pyarrow_table(columns=["offset"]).num_rows == 11
    assert judged.transaction_version("bus/high_watermark") == 11
    assert (
        led(open_storage(str(tmp_path), exclusive=False).open_partition(PARTITION, topic_id="id")).state == table.state
    )


@pytest.mark.parametrize(("operation", "nth"), [("get", 1), ("get", 2), ("get", 6), ("list", 1), ("put", 1)])
def test_a_checkpoint_that_cannot_be_made_leaves_the_table_as_another_engine_has_checkpointed_it(
    tmp_path: Path, url: str, operation: str, nth: int
) -> None:
    def fail() -> None:
        raise StorageFault("the disk")

    store = ScriptedStore(LocalStore(str(tmp_path)))
    storage = open_storage_on(store, exclusive=False)  # type: ignore[arg-type]
    table = led(storage.create_partition(PARTITION, topic_id="id"))
    for count in (1, 3, 2):
        append(table, count)
    rolled = table.rewrites.prepare_roll(
        table.rewrites.files[:2], compression="none", now_ms=NOW_MS, tombstone_retention_ms=0
    )
    table.rewrites.swap(rolled, leader_epoch=1, now_ms=NOW_MS)
    deltalake.DeltaTable(url).create_checkpoint()
    for _ in range(nth - 1):
        store.before_next(operation, lambda: None)
    store.before_next(operation, fail)
    with pytest.raises(StorageFault, match="the disk"):
        table.cleanup.write_checkpoint()
    assert deltalake.DeltaTable(url).to_pyarrow_table(columns=["offset"]).num_rows == 6
    assert led(storage.open_partition(PARTITION, topic_id="id")).state == table.state


def test_a_checkpoint_that_cannot_be_made_leaves_the_only_one_that_there_is(tmp_path: Path, url: str) -> None:
    """Another engine has checkpointed the last version, and deleted what came before it."""
    storage = open_storage(str(tmp_path), exclusive=False)
    table = led(storage.create_partition(PARTITION, topic_id="id"))
    append(table, 1)
    table.cleanup.write_checkpoint()
    append(table, 3)
    deltalake.DeltaTable(url).create_checkpoint()
    for name in (version_name(0), version_name(1), checkpoint_name(1)):
        Path(url, "_delta_log", name).unlink()
    with pytest.raises(StorageFault, match="does not exist"):
        table.cleanup.write_checkpoint()
    assert deltalake.DeltaTable(url).to_pyarrow_table(columns=["offset"]).num_rows == 4
    assert led(storage.open_partition(PARTITION, topic_id="id")).state == table.state


def test_a_checkpoint_that_cannot_be_synced_is_a_fault_and_the_table_goes_on(
    table: DeltaPartitionTable, disk: FailingFileSystem, url: str
) -> None:
    for _ in range(100):
        append(table, 1)
    disk.fail("fsync", 1, errno.EIO)
    assert table.cleanup.is_checkpoint_due
    with pytest.raises(StorageFault):
        table.cleanup.write_checkpoint()
    assert not table.cleanup.is_checkpoint_due  # not at every commit again
    append(table, 1)
    assert table.reload().high_watermark == 101
    table.cleanup.write_checkpoint()
    assert Path(url, "_delta_log", checkpoint_name(101)).exists()


def test_a_checkpoint_is_on_the_disk_before_it_is_named(table: DeltaPartitionTable, disk: FailingFileSystem) -> None:
    append(table, 1)
    disk.calls.clear()
    table.cleanup.write_checkpoint()
    assert disk.calls == ["write", "fsync", "fsync"] * 2  # the checkpoint, its folder; then the hint, its folder


def test_a_checkpoint_of_a_table_that_is_gone_is_a_fault(table: DeltaPartitionTable, tmp_path: Path) -> None:
    append(table, 1)
    LocalStore(str(tmp_path)).delete_folder(partition_folder(PARTITION))
    with pytest.raises(StorageFault, match="no checkpoint of version 1"):
        table.cleanup.write_checkpoint()


def test_readers_beside_the_writer_see_whole_versions(tmp_path: Path) -> None:
    storage = open_storage(str(tmp_path))
    table = led(storage.create_partition(PARTITION, topic_id="id"))
    failures: list[str] = []
    stop = threading.Event()

    def read_on() -> None:
        while not stop.is_set():
            end_offset = table.state.high_watermark
            found = sum(batch.record_count for batch in table.log.read(0, end_offset=end_offset, max_bytes=1 << 20))
            if found != end_offset or end_offset % 3:
                failures.append(f"{found} of {end_offset}")

    readers = [threading.Thread(target=read_on) for _ in range(2)]
    for reader in readers:
        reader.start()
    for _ in range(60):
        append(table, 3)
    stop.set()
    for reader in readers:
        reader.join()
    assert failures == []
    storage.close()


def test_the_thousandth_commit_costs_what_the_first_did() -> None:
    storage = open_storage_on(MemoryStore())
    old, young = (led(storage.create_partition(TopicPartition("costs", number), topic_id="id")) for number in range(2))

    def cost_of_commit(table: DeltaPartitionTable) -> int:
        batch = log_batch(table.state.high_watermark, [b"v"])
        started = time.process_time_ns()
        table.append([batch], leader_epoch=1, now_ms=NOW_MS)
        return time.process_time_ns() - started

    for _ in range(800):
        cost_of_commit(old)
    # In turns, so that the machine is the same to both; the cheapest of many is what the code costs.
    costs = [(cost_of_commit(old), cost_of_commit(young)) for _ in range(200)]
    assert min(late for late, _ in costs) < 1.5 * min(early for _, early in costs)
