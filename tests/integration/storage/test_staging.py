"""Batches of open transactions in the folder beside a table: durable, whole, and each sequence once."""

from __future__ import annotations

import errno
import io
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from bus.errors import ErrorCode, Refused, StorageFault
from bus.model import ProducerStamp, RecordBatch
from bus.ports import Staged, StagingKey
from bus.records.arrow_batches import check_records
from bus.records.log_schema import HEADERS_TYPE, TIMESTAMP_TYPE
from bus.storage_delta.staging import DeltaStagedTransactions, StagedCache
from bus.storage_delta.stores.local import LocalStore
from bus.storage_delta.stores.store import ObjectStore, OutcomeUnknown
from tests.support.memory_store import MemoryStore
from tests.support.stores import NOW_MS, FailingFileSystem, ScriptedStore
from tests.support.transactions import KEY, staged_batch

FOLDER = "topics/prices/0"


def numbers(first: int, last: int) -> RecordBatch:
    return staged_batch(first, *(b"%d" % number for number in range(first, last + 1)))


def values_of(batches: Sequence[RecordBatch]) -> list[bytes]:
    return [value for batch in batches for value in batch.columns.column("value").to_pylist()]


class Bench:
    def __init__(self, store: ObjectStore) -> None:
        self.store = store
        self.staged = DeltaStagedTransactions(store, FOLDER)

    def names(self, key: StagingKey = KEY) -> list[str]:
        folder, prefix = f"{FOLDER}/_staged/{key.coordinator_partition}", f"{key.producer_id}-{key.producer_epoch}-"
        return [f"{folder}/{entry.name}" for entry in self.store.list(folder, prefix=prefix).files]


@pytest.fixture(params=["memory", "local"])
def bench(request: pytest.FixtureRequest, tmp_path: Path) -> Bench:
    return Bench(MemoryStore() if request.param == "memory" else LocalStore(str(tmp_path)))


# ------------------------------------------------------------------ what is staged comes back


def test_batches_come_back_in_order_with_all_that_they_had(bench: Bench) -> None:
    headers = pa.array([[("a", b"1"), ("b", None)], None], HEADERS_TYPE)
    times = pa.array([NOW_MS * 1000 + 1, NOW_MS * 1000 - 5], pa.int64()).cast(TIMESTAMP_TYPE)
    columns = pa.record_batch({"key": pa.array([b"k", None]), "value": pa.array([b"v", None]), "headers": headers})
    columns = columns.append_column("timestamp", times)
    first = replace(check_records(columns, default_timestamp_ms=1), producer=ProducerStamp(41, 3, 0))
    second = staged_batch(2, b"x" * 5000, b"y")
    assert bench.staged.stage(KEY, second) is None
    assert bench.staged.stage(KEY, first) is None
    assert list(bench.staged.read(KEY, 3)) == [first, second]


def test_nothing_is_staged_of_a_transaction_that_is_not_known(bench: Bench) -> None:
    assert bench.staged.find(KEY) is None
    assert list(bench.staged.list()) == []
    bench.staged.drop(KEY)
    with pytest.raises(StorageFault, match="sequence 0"):
        bench.staged.read(KEY, 0)


def test_a_file_is_an_arrow_stream_named_by_its_sequences(bench: Bench) -> None:
    bench.staged.stage(KEY, numbers(4, 6))
    assert bench.names() == [f"{FOLDER}/_staged/7/41-3-4-6.arrow"]
    stream = pa.ipc.open_stream(io.BytesIO(bench.store.get(bench.names()[0])))
    assert stream.read_all().column("value").to_pylist() == [b"4", b"5", b"6"]


def test_find_tells_how_far_the_sequences_are_dense(bench: Bench) -> None:
    bench.staged.stage(KEY, numbers(3, 5))
    found = bench.staged.find(KEY)
    assert found is not None
    assert found.last_sequence == -1
    bench.staged.stage(KEY, numbers(0, 2))
    bench.staged.stage(KEY, numbers(7, 9))
    found = bench.staged.find(KEY)
    assert found is not None
    assert found.last_sequence == 5
    assert found.size_bytes == sum(bench.store.size(name) for name in bench.names())
    assert values_of(bench.staged.read(KEY, 4)) == [b"0", b"1", b"2", b"3", b"4"]
    with pytest.raises(StorageFault, match=r"7/41-3-\*\.arrow: expected sequence 6"):
        bench.staged.read(KEY, 9)


def test_the_newest_file_tells_since_when_nothing_came() -> None:
    times = iter([100, 300, 200])
    bench = Bench(MemoryStore(now_ms=lambda: next(times)))
    for sequence in range(3):
        bench.staged.stage(KEY, numbers(sequence, sequence))
    found = bench.staged.find(KEY)
    assert found is not None
    assert found.newest_ms == 300


def test_a_local_file_tells_when_it_was_written(tmp_path: Path) -> None:
    bench = Bench(LocalStore(str(tmp_path)))
    bench.staged.stage(KEY, numbers(0, 0))
    found = bench.staged.find(KEY)
    assert found is not None
    assert found.newest_ms == int(Path(tmp_path, bench.names()[0]).stat().st_mtime_ns // 1_000_000)


def test_transactions_are_apart_and_listed_each(bench: Bench) -> None:
    other = replace(KEY, producer_epoch=4)
    bench.staged.stage(KEY, numbers(0, 1))
    bench.staged.stage(other, staged_batch(0, b"other", key=other))
    assert {key: staged.last_sequence for key, staged in bench.staged.list()} == {KEY: 1, other: 0}
    bench.staged.drop(KEY)
    bench.staged.drop(KEY)
    assert [key for key, _ in bench.staged.list()] == [other]
    assert values_of(bench.staged.read(other, 0)) == [b"other"]


def test_names_that_are_not_ours_are_passed_over(bench: Bench) -> None:
    bench.staged.stage(KEY, numbers(0, 1))
    folder = f"{FOLDER}/_staged/7"
    for name in ("2-3.arrow.tmp", "02-3.arrow", "3-2.arrow", "2-9999999999.arrow", "2-3", "x.arrow"):
        bench.store.put(f"{folder}/41-3-{name}", b"no batch")
    for name in (".41-3", "041-3", "41-03", "41-40000", "x-3", f"{1 << 63}-3", "41"):
        bench.store.put(f"{folder}/{name}-2-3.arrow", b"no batch")
    for name in ("7-41-3", "07", "x", "-7"):
        bench.store.put(f"{FOLDER}/_staged/{name}/41-3-0-0.arrow", b"no batch")
    assert [(key, staged.last_sequence) for key, staged in bench.staged.list()] == [(KEY, 1)]
    assert values_of(bench.staged.read(KEY, 1)) == [b"0", b"1"]


# ------------------------------------------------------------------ the same again, and overlaps


def test_the_same_batch_again_is_staged_already(bench: Bench) -> None:
    assert bench.staged.stage(KEY, numbers(0, 2)) is None
    before = bench.store.get(bench.names()[0])
    later = staged_batch(0, b"0", b"1", b"2", now_ms=NOW_MS + 1)
    assert bench.staged.stage(KEY, later) is None
    assert bench.store.get(bench.names()[0]) == before


def test_other_records_under_the_same_sequences_are_refused(bench: Bench) -> None:
    bench.staged.stage(KEY, numbers(0, 2))
    refused = bench.staged.stage(KEY, staged_batch(0, b"0", b"1", b"other"))
    assert isinstance(refused, Refused)
    assert refused.code == ErrorCode.INVALID_RECORD
    assert "sequences 0 to 2" in refused.message
    assert values_of(bench.staged.read(KEY, 2)) == [b"0", b"1", b"2"]


@pytest.mark.parametrize(
    "spans",
    [
        [(0, 4), (0, 9)],
        [(0, 4), (3, 7), (5, 9)],
        [(0, 9), (2, 3), (4, 6)],
        [(0, 0), (0, 1), (0, 2), (1, 9), (9, 9)],
    ],
)
def test_overlapping_files_give_each_sequence_once(bench: Bench, spans: list[tuple[int, int]]) -> None:
    for first, last in reversed(spans):
        bench.staged.stage(KEY, numbers(first, last))
    found = bench.staged.find(KEY)
    assert found is not None
    assert found.last_sequence == 9
    for last_sequence in range(10):
        batches = bench.staged.read(KEY, last_sequence)
        assert values_of(batches) == [b"%d" % number for number in range(last_sequence + 1)]
        ends = [batch.producer.base_sequence + batch.record_count for batch in batches if batch.producer]
        assert [0, *ends[:-1]] == [batch.producer.base_sequence for batch in batches if batch.producer]


def test_a_damaged_file_is_not_needed_where_others_have_its_sequences(bench: Bench) -> None:
    for first, last in [(0, 4), (5, 9), (0, 9)]:
        bench.staged.stage(KEY, numbers(first, last))
    bench.store.put(f"{FOLDER}/_staged/7/41-3-0-9.arrow", b"torn")
    assert values_of(bench.staged.read(KEY, 9)) == [b"%d" % number for number in range(10)]


# ------------------------------------------------------------------ damage


def test_any_flipped_byte_is_a_fault_that_names_the_file() -> None:
    bench = Bench(MemoryStore())
    bench.staged.stage(KEY, staged_batch(0, b"one", b"two"))
    name = bench.names()[0]
    whole = bench.store.get(name)
    for at in range(len(whole)):
        bench.store.put(name, whole[:at] + bytes([whole[at] ^ 0x41]) + whole[at + 1 :])
        with pytest.raises(StorageFault, match=r"_staged/7/41-3-0-1\.arrow"):
            bench.staged.read(KEY, 1)


def test_any_torn_file_is_a_fault_that_names_the_file() -> None:
    bench = Bench(MemoryStore())
    bench.staged.stage(KEY, staged_batch(0, b"one", b"two"))
    name = bench.names()[0]
    whole = bench.store.get(name)
    for size in range(len(whole)):
        bench.store.put(name, whole[:size])
        with pytest.raises(StorageFault, match=r"_staged/7/41-3-0-1\.arrow"):
            bench.staged.read(KEY, 1)
        with pytest.raises(StorageFault, match=r"_staged/7/41-3-0-1\.arrow"):
            bench.staged.stage(KEY, staged_batch(0, b"one", b"two"))


@pytest.mark.parametrize(
    "other",
    [
        staged_batch(1, b"one", b"two"),
        staged_batch(0, b"one"),
        staged_batch(0, b"a", b"b", key=replace(KEY, producer_id=4)),
    ],
)
def test_a_sound_file_of_another_batch_is_a_fault(other: RecordBatch) -> None:
    bench, elsewhere = Bench(MemoryStore()), Bench(MemoryStore())
    assert other.producer is not None
    key = replace(KEY, producer_id=other.producer.producer_id)
    bench.staged.stage(KEY, staged_batch(0, b"one", b"two"))
    elsewhere.staged.stage(key, other)
    bench.store.put(bench.names()[0], elsewhere.store.get(elsewhere.names(key)[0]))
    with pytest.raises(StorageFault, match=r"_staged/7/41-3-0-1\.arrow: expected"):
        bench.staged.read(KEY, 1)


# ------------------------------------------------------------------ faults of the store


def test_a_lost_reply_is_read_back_and_made_durable() -> None:
    store = ScriptedStore(MemoryStore())
    bench = Bench(store)  # type: ignore[arg-type]
    store.fail_next("create", OutcomeUnknown("the answer was lost"), after_doing_it=True)
    assert bench.staged.stage(KEY, numbers(0, 2)) is None
    assert "confirm" in store.calls


def test_what_may_come_later_is_not_acknowledged() -> None:
    store = ScriptedStore(MemoryStore())
    bench = Bench(store)  # type: ignore[arg-type]
    store.fail_next("create", OutcomeUnknown("the answer was lost"))
    with pytest.raises(StorageFault, match="the answer was lost"):
        bench.staged.stage(KEY, numbers(0, 2))


def test_a_batch_that_another_broker_staged_is_made_durable_before_it_is_acknowledged() -> None:
    """The other one may have been killed between the name and its sync."""
    files = MemoryStore()
    Bench(files).staged.stage(KEY, numbers(0, 2))
    store = ScriptedStore(files)
    store.fail_next("confirm", StorageFault("no space"))
    bench = Bench(store)  # type: ignore[arg-type]
    with pytest.raises(StorageFault, match="no space"):
        bench.staged.stage(KEY, numbers(0, 2))
    assert bench.staged.stage(KEY, numbers(0, 2)) is None


@pytest.mark.parametrize("call", ["write", "fsync", "link"])
def test_a_failing_disk_leaves_nothing_that_is_taken_for_a_batch(tmp_path: Path, call: str) -> None:
    """Each call of the first batch fails once; the batch is acknowledged only by a later try."""
    probe = FailingFileSystem()
    Bench(LocalStore(str(tmp_path / "probe"), probe)).staged.stage(KEY, numbers(0, 2))
    for nth in range(1, probe.calls.count(call) + 1):
        file_system = FailingFileSystem()
        bench = Bench(LocalStore(str(tmp_path / f"{call}-{nth}"), file_system))
        file_system.fail(call, nth, errno.EIO)
        try:
            assert bench.staged.stage(KEY, numbers(0, 2)) is None
        except StorageFault:
            assert bench.staged.stage(KEY, numbers(0, 2)) is None
        assert values_of(bench.staged.read(KEY, 2)) == [b"0", b"1", b"2"]
        assert bench.staged.find(KEY) == Staged(2, bench.store.size(bench.names()[0]), bench.staged.find(KEY).newest_ms)  # type: ignore[union-attr]


def test_a_folder_that_another_process_made_is_synced_before_anything_in_it_counts(tmp_path: Path) -> None:
    """That process may have been killed right after it made the folder."""
    Bench(LocalStore(str(tmp_path))).staged.stage(KEY, numbers(0, 2))
    file_system = FailingFileSystem()
    bench = Bench(LocalStore(str(tmp_path), file_system))
    bench.staged.stage(KEY, numbers(3, 3))
    assert file_system.calls == ["fsync", "write", "fsync", "link", "fsync"]
    bench.staged.stage(KEY, numbers(4, 4))
    assert file_system.calls[5:] == ["write", "fsync", "link", "fsync"]


def test_a_batch_costs_two_syncs(tmp_path: Path) -> None:
    """One sync is of its file, one of the folder, which stays when the transaction ends."""
    file_system = FailingFileSystem()
    bench = Bench(LocalStore(str(tmp_path), file_system))
    bench.staged.stage(KEY, numbers(0, 2))
    for epoch in range(4, 7):
        key = replace(KEY, producer_epoch=epoch)
        bench.staged.drop(replace(KEY, producer_epoch=epoch - 1))
        del file_system.calls[:]
        bench.staged.stage(key, staged_batch(0, b"next", key=key))
        assert file_system.calls == ["write", "fsync", "link", "fsync"]


def test_a_batch_goes_to_the_next_topic_of_that_name_too(tmp_path: Path) -> None:
    """Another broker has deleted the first one, with the folder that this one knows."""
    bench = Bench(LocalStore(str(tmp_path)))
    bench.staged.stage(KEY, numbers(0, 2))
    LocalStore(str(tmp_path)).delete_folder(FOLDER)
    assert bench.staged.stage(KEY, numbers(3, 3)) is None
    assert len(bench.names()) == 1


def test_what_this_process_has_staged_is_dropped_without_a_listing() -> None:
    store = ScriptedStore(MemoryStore())
    staged = DeltaStagedTransactions(store, FOLDER, cache=StagedCache())  # type: ignore[arg-type]
    staged.stage(KEY, numbers(0, 2))
    staged.stage(KEY, numbers(3, 3))
    del store.calls[:]
    staged.drop(KEY)
    assert store.calls == ["delete", "delete"]
    assert list(staged.list()) == []


def test_what_another_leader_has_begun_is_dropped_with_the_rest() -> None:
    store = MemoryStore()
    DeltaStagedTransactions(store, FOLDER).stage(KEY, numbers(0, 2))
    staged = DeltaStagedTransactions(store, FOLDER, cache=StagedCache())
    staged.stage(KEY, numbers(3, 3))
    staged.drop(KEY)
    assert list(staged.list()) == []


def test_what_an_interrupted_write_left_goes_with_the_first_of_the_next_leader(tmp_path: Path) -> None:
    folder = tmp_path / FOLDER / "_staged" / "7"
    folder.mkdir(parents=True)
    (folder / ".writing-0").write_bytes(b"half")
    bench = Bench(LocalStore(str(tmp_path)))
    bench.staged.stage(KEY, numbers(0, 2))
    assert [path.name for path in folder.iterdir()] == ["41-3-0-2.arrow"]
    (folder / ".writing-1").write_bytes(b"another one that is under way")
    bench.staged.stage(KEY, numbers(3, 3))
    assert (folder / ".writing-1").exists()
