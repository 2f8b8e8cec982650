"""Transactions while the store fails, the process dies, or the power does: what was acknowledged is there, a
transaction is in the table as a whole or not at all, and nothing half-written is taken for a batch."""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import pytest

from bus.errors import StorageFault
from bus.model import RecordBatch, TopicPartition
from bus.ports import AppliedTransaction, CommitOutcome, Committed, StagingKey
from bus.storage_delta.root import open_storage_on
from bus.storage_delta.stores.local import LocalStore
from bus.storage_delta.stores.store import ObjectStore
from bus.storage_delta.table import DeltaPartitionTable
from bus.storage_delta.verify.verification import verify_partition
from tests.support.faulty_store import CHANGES, Crashed, Fault, FaultyStore
from tests.support.killed_jobs import NAME, TOPIC_ID, QuickFileSystem, Run, job_runner, open_table, transact
from tests.support.memory_store import MemoryStore
from tests.support.power_failure import RememberingFileSystem
from tests.support.stores import NOW_MS, led
from tests.support.transactions import KEY, PRODUCER, apply_staged, staged_batch

PARTITION = TopicPartition("orders", 0)
ID = "orders"
TRIES = 4
T = TypeVar("T")


def values_in(table: DeltaPartitionTable) -> list[bytes]:
    values: list[bytes] = []
    offset, end = table.state.log_start, table.state.high_watermark
    while offset < end:
        for batch in table.log.read(offset, end_offset=end, max_bytes=1 << 20):
            values += batch.columns.column("value").to_pylist()
            offset = batch.next_offset
    return values


class Life:
    """A leader that takes transactions, one after the other; after each fault it is asked again."""

    def __init__(self, at: int | None, fault: Fault) -> None:
        self.files = MemoryStore()
        self.store = FaultyStore(self.files, at, fault)
        self.committed: list[bytes] = []
        open_storage_on(self.store, exclusive=False).create_partition(PARTITION, topic_id="id")  # type: ignore[arg-type]
        self.table = self.open()

    def open(self) -> DeltaPartitionTable:
        return led(open_storage_on(self.store, exclusive=False).open_partition(PARTITION, topic_id="id"))  # type: ignore[arg-type]

    def live(self) -> None:
        self.store.is_armed = True
        self.commit(0, [b"a0", b"a1"], [b"a2"])
        self.commit(1, [b"b0"])
        self.abort(2, [b"c0", b"c1"])
        self.do(self.table_of(lambda table: table.cleanup.write_checkpoint()))
        self.commit(3, [b"d0"], [b"d1"])
        self.sweep()
        self.store.is_armed = False

    def table_of(self, call: Callable[[DeltaPartitionTable], T]) -> Callable[[], T]:
        """The table may be another one at the next try."""
        return lambda: call(self.table)

    def do(self, call: Callable[[], T]) -> T:
        """At most one call of the store fails, so a few tries succeed."""
        for _ in range(TRIES):
            try:
                result = call()
            except (StorageFault, RuntimeError):
                self.follow()
            except Crashed:
                self.table = self.open()
            else:
                if isinstance(result, Committed) or result is None or isinstance(result, int | list):
                    return result
                self.follow()
        raise AssertionError("a call failed again and again")

    def follow(self) -> None:
        for _ in range(TRIES):
            try:
                self.table.reload()
            except (StorageFault, RuntimeError):
                continue
            except Crashed:
                self.table = self.open()
            return

    def stage(self, key: StagingKey, batches: tuple[list[bytes], ...]) -> int:
        first = 0
        for values in batches:
            batch = staged_batch(first, *values, key=key)
            self.do(self.table_of(lambda table, batch=batch: table.transactions.staged.stage(key, batch)))  # type: ignore[misc]
            first += len(values)

        def vote() -> int:
            staged = self.table.transactions.staged.find(key)
            return -1 if staged is None else staged.last_sequence

        assert self.do(vote) == first - 1, "an acknowledged batch is not found"
        return first - 1

    def commit(self, number: int, *batches: list[bytes]) -> None:
        key = StagingKey(7, PRODUCER, number)
        last = self.stage(key, batches)
        proof = AppliedTransaction(ID, number, PRODUCER, number)

        def apply() -> CommitOutcome | None:
            is_done = self.table.transactions.version_of(ID) >= proof.aborted_version
            return None if is_done else apply_staged(self.table, key, proof, last)

        self.do(apply)
        assert self.table.transactions.version_of(ID) == proof.applied_version
        self.committed += itertools.chain(*batches)
        self.do(self.table_of(lambda table: table.transactions.staged.drop(key)))

    def abort(self, number: int, *batches: list[bytes]) -> None:
        key = StagingKey(7, PRODUCER, number)
        self.stage(key, batches)
        proof = AppliedTransaction(ID, number, PRODUCER, number)

        def abort() -> CommitOutcome | None:
            is_done = self.table.transactions.version_of(ID) >= proof.aborted_version
            return None if is_done else self.table.transactions.abort(proof, leader_epoch=0, now_ms=NOW_MS)

        self.do(abort)
        assert self.table.transactions.version_of(ID) == proof.aborted_version
        self.do(self.table_of(lambda table: table.transactions.staged.drop(key)))

    def sweep(self) -> None:
        for key, _ in self.do(lambda: [*self.table.transactions.staged.list()]):
            self.do(self.table_of(lambda table, key=key: table.transactions.staged.drop(key)))  # type: ignore[misc]

    def judge(self) -> None:
        table = led(open_storage_on(self.files, exclusive=False).open_partition(PARTITION, topic_id="id"))
        assert values_in(table) == self.committed == [b"a0", b"a1", b"a2", b"b0", b"d0", b"d1"]
        assert table.transactions.version_of(ID) == 7
        assert verify_partition(self.files, PARTITION, topic_id="id").breaches == []
        assert list(table.transactions.staged.list()) == []


@pytest.mark.parametrize("fault", Fault)
@pytest.mark.timeout(120)  # a life for each call
def test_no_call_of_the_store_can_fail_in_a_way_that_tears_a_transaction(fault: Fault) -> None:
    counted = Life(None, fault)
    counted.live()
    counted.judge()
    assert {"create", "delete", "list", "get", "write_unique"} <= set(counted.store.calls)
    for at, call in enumerate(counted.store.calls):
        if call not in CHANGES and fault is not Fault.BEFORE:
            continue  # a read has no effect that an error could come after
        life = Life(at, fault)
        try:
            life.live()
            life.judge()
        except BaseException as broken:
            raise AssertionError(f"call {at}, {call}, {fault.value}") from broken


# ------------------------------------------------------------------ the power fails


class PoweredLife:
    """Looks, after each sync and each acknowledgement, at what would be left if the power failed now and nothing had
    reached the disk that was not synced."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.disk = RememberingFileSystem(folder / "root", self.judge)
        self.staged: dict[StagingKey, list[RecordBatch]] = {}
        self.ended = -1  # by what was acknowledged
        self.values: list[bytes] = []  # of what was
        self.unsure: list[bytes] = []
        self.images = 0
        store = LocalStore(str(folder / "root"), self.disk)
        storage = open_storage_on(store, exclusive=False)
        self.table = led(storage.create_partition(PARTITION, topic_id="id"))
        self.disk.begin()

    def judge(self) -> None:
        root = self.folder / "image"
        self.disk.write_image(root)
        self.images += 1
        store: ObjectStore = LocalStore(str(root))
        table = led(open_storage_on(store, exclusive=False).open_partition(PARTITION, topic_id="id"))
        assert values_in(table) in (self.values, [*self.values, *self.unsure])
        assert table.transactions.version_of(ID) >= self.ended
        for key, batches in self.staged.items():
            last = sum(batch.record_count for batch in batches) - 1
            found = table.transactions.staged.find(key)
            assert (-1 if found is None else found.last_sequence) >= last, "an acknowledged batch is gone"
            if last >= 0:
                assert [batch.columns for batch in table.transactions.staged.read(key, last)] == [
                    one.columns for one in batches
                ]
        for key, found in table.transactions.staged.list():
            table.transactions.staged.read(key, found.last_sequence)
        assert verify_partition(store, PARTITION, topic_id="id").breaches == []
        shutil.rmtree(root)

    def stage(self, key: StagingKey, first: int, *values: bytes) -> None:
        batch = staged_batch(first, *values, key=key)
        assert self.table.transactions.staged.stage(key, batch) is None
        self.staged.setdefault(key, []).append(batch)
        self.judge()

    def commit(self, key: StagingKey, number: int, *values: bytes) -> None:
        proof = AppliedTransaction(ID, number, key.producer_id, key.producer_epoch)
        self.unsure = [*values]
        assert isinstance(apply_staged(self.table, key, proof, len(values) - 1), Committed)
        self.values, self.unsure, self.ended = [*self.values, *values], [], proof.applied_version
        self.judge()

    def drop(self, key: StagingKey) -> None:
        del self.staged[key]
        self.table.transactions.staged.drop(key)
        self.judge()


def test_a_power_failure_at_any_moment_loses_nothing_that_was_acknowledged(tmp_path: Path) -> None:
    life = PoweredLife(tmp_path)
    other = StagingKey(7, PRODUCER, KEY.producer_epoch + 1)
    life.stage(KEY, 0, b"a0", b"a1")
    life.stage(other, 0, b"late")
    life.stage(KEY, 2, b"a2")
    life.commit(KEY, 3, b"a0", b"a1", b"a2")
    life.drop(KEY)
    life.table.cleanup.write_checkpoint()
    proof = AppliedTransaction(ID, 4, PRODUCER, other.producer_epoch)
    assert isinstance(life.table.transactions.abort(proof, leader_epoch=0, now_ms=NOW_MS), Committed)
    life.ended = proof.aborted_version
    life.drop(other)
    life.stage(other, 0, b"of a zombie")
    assert life.images > 25
    life.disk.close()


def test_the_model_of_a_power_failure_loses_what_was_not_synced(tmp_path: Path) -> None:
    """Else the test above would prove nothing."""
    disk = RememberingFileSystem(tmp_path / "root", lambda: None)
    store = LocalStore(str(tmp_path / "root"), disk)
    store.create("a/kept", b"kept")
    disk.begin()
    store.create("a/synced", b"synced")
    (tmp_path / "root" / "a" / "not synced").write_bytes(b"x")
    (tmp_path / "root" / "a" / "kept").unlink()
    disk.write_image(tmp_path / "image")
    assert sorted(path.name for path in (tmp_path / "image" / "a").iterdir()) == ["kept", "synced"]
    assert (tmp_path / "image" / "a" / "kept").read_bytes() == b"kept"
    disk.close()


# ------------------------------------------------------------------ the process is killed


@pytest.mark.timeout(240)  # tens of processes, killed one after the other
def test_killed_before_any_step_a_transaction_is_whole_or_can_be_tried_again(tmp_path: Path) -> None:
    expected = [b"a0", b"a1", b"a2"]
    run: Run
    with job_runner() as run:
        for step in itertools.count():
            root = tmp_path / str(step)
            open_table(str(root), QuickFileSystem())
            is_ended = run(root, "transact", step)
            table = open_table(str(root), QuickFileSystem())
            acknowledged = len(list(root.glob("acknowledged-*")))
            applied = table.transactions.version_of(ID)
            assert values_in(table) == (expected if applied == 1 else [])
            assert applied == 1 or acknowledged < 3
            found = table.transactions.staged.find(KEY)
            last = -1 if found is None else found.last_sequence
            if applied < 0:
                assert last >= [-1, 1, 2][acknowledged]
                read = [*table.transactions.staged.read(KEY, last)] if last >= 0 else []
                assert sum(batch.record_count for batch in read) == last + 1
            transact(table)  # once more, as the client and the coordinator do
            assert values_in(table) == expected
            assert table.transactions.staged.find(KEY) is None
            report = verify_partition(LocalStore(str(root)), NAME, topic_id=TOPIC_ID)
            assert report.breaches == []
            shutil.rmtree(root)
            if is_ended:
                break
    assert step >= 15
