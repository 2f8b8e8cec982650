"""Each call of the store fails once, before its effect, after it, or with the process: nothing that was acknowledged is
lost, nothing that was refused for good is there, and the log goes on."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from bus.errors import StorageFault
from bus.model import TopicPartition
from bus.ports import CommitOutcome, Committed, Conflicted, PreparedFiles, Unknown
from bus.storage_delta.log.listing import LOG_FOLDER, partition_folder
from bus.storage_delta.root import open_storage_on
from bus.storage_delta.stores.store import Entry
from bus.storage_delta.verify.verification import verify_partition
from tests.support.faulty_store import CHANGES, Crashed, Fault, FaultyStore
from tests.support.memory_store import MemoryStore
from tests.support.stores import NOW_MS, led, log_batch

PARTITION = TopicPartition("orders", 0)
FOLDER = partition_folder(PARTITION)
FAR_MS = 2**62


class Life:
    """A leader that does a bit of all, and follows the log after whatever happens, as the partition's writer does."""

    def __init__(self, at: int | None, fault: Fault) -> None:
        self.files = MemoryStore()
        self.store = FaultyStore(self.files, at, fault)
        self.acknowledged: list[bytes] = []
        self.refused: list[bytes] = []
        self._count = 0
        self.table = led(open_storage_on(self.store, exclusive=False).create_partition(PARTITION, topic_id="id"))  # type: ignore[arg-type]

    def live(self) -> None:
        self.store.is_armed = True
        for step in (
            self.append, self.append, self.roll, self.append, self.checkpoint, self.leave_orphan, self.append,
            self.compact, self.checkpoint, self.drop, self.orphans, self.append, self.manage, self.retain, self.manage,
            self.append,
        ):  # fmt: skip
            self.do(step)
        self.store.is_armed = False

    def do(self, step: Callable[[], CommitOutcome | None]) -> None:
        try:
            outcome = step()
        except (StorageFault, RuntimeError):
            self.follow()
        except Crashed:
            self.store.is_armed = False
            self.table = led(open_storage_on(self.store, exclusive=False).open_partition(PARTITION, topic_id="id"))  # type: ignore[arg-type]
        else:
            if isinstance(outcome, Unknown | Conflicted):
                self.follow()

    def follow(self) -> None:
        for _ in range(3):  # the fault may be in the reading; it is tried again
            try:
                self.table.reload()
            except (StorageFault, RuntimeError):
                continue
            return

    def append(self) -> CommitOutcome:
        value = b"%d" % self._count
        self._count += 1
        batch = log_batch(self.table.state.high_watermark, [value], keys=[b"k%d" % (self._count % 2)])
        try:
            outcome = self.table.append([batch], leader_epoch=0, now_ms=NOW_MS)
        except StorageFault:
            self.refused.append(value)  # nothing was committed, it says
            raise
        if isinstance(outcome, Committed):
            self.acknowledged.append(value)
        elif isinstance(outcome, Conflicted):
            self.refused.append(value)
        return outcome

    def _swap(self, prepared: PreparedFiles | None) -> CommitOutcome | None:
        return None if prepared is None else self.table.rewrites.swap(prepared, leader_epoch=0, now_ms=NOW_MS)

    def roll(self) -> CommitOutcome | None:
        files = self.table.rewrites.files[:2]
        return self._swap(
            self.table.rewrites.prepare_roll(files, compression="none", now_ms=NOW_MS, tombstone_retention_ms=FAR_MS)
        )

    def compact(self) -> CommitOutcome | None:
        """Values of the same key go; here they are told apart by their offsets."""
        return self._swap(self.table.rewrites.prepare_key_compaction(now_ms=NOW_MS, tombstone_retention_ms=FAR_MS))

    def checkpoint(self) -> None:
        self.table.cleanup.write_checkpoint()

    def drop(self) -> None:
        self.table.cleanup.drop_old_versions(committed_before_ms=FAR_MS, count_max=1, removed_before_ms=FAR_MS)

    def leave_orphan(self) -> None:
        self.files.put(f"{FOLDER}/{0:020d}-left.parquet", b"of a crash")

    def orphans(self) -> None:
        self.table.cleanup.delete_orphans(self.table.cleanup.find_orphans())

    def retain(self) -> CommitOutcome | None:
        state = self.table.state
        if state.high_watermark <= state.log_start + 1:
            return None
        return self.table.cleanup.advance_log_start(state.log_start + 1, leader_epoch=0, now_ms=NOW_MS)

    def manage(self) -> CommitOutcome | None:
        """Switch the table as `bus log upgrade` does: not a second time, and once more after a fault."""
        if self.table.is_managed:
            return None
        return self.table.set_managed(True, leader_epoch=0, now_ms=NOW_MS)

    def judge(self) -> None:
        table = led(open_storage_on(self.files, exclusive=False).open_partition(PARTITION, topic_id="id"))
        rows = {}
        offset, end_offset = table.state.log_start, table.state.high_watermark
        while offset < end_offset and (found := table.log.read(offset, end_offset=end_offset, max_bytes=1 << 20)):
            for batch in found:
                values = batch.columns.column("value").to_pylist()
                offsets = range(batch.base_offset, batch.next_offset)
                if "offset" in batch.columns.schema.names:
                    offsets = batch.columns.column("offset").to_pylist()
                rows.update(zip(values, offsets, strict=True))
                offset = batch.next_offset
        assert set(rows).isdisjoint(self.refused)
        newest = {int(value) % 2: value for value in self.acknowledged}  # of each key; older ones may be compacted
        for value in newest.values():
            assert value in rows or table.state.log_start > 0
        assert self.acknowledged[-1] in rows
        assert len(self.acknowledged) <= end_offset <= self._count
        assert verify_partition(self.files, PARTITION, topic_id="id").breaches == []  # type: ignore[arg-type]
        assert table.is_managed
        versions = [self.files.get(f"{FOLDER}/{LOG_FOLDER}/{entry.name}") for entry in self._versions()]
        assert sum(b"UPGRADE PROTOCOL" in version for version in versions) == 1
        batch = log_batch(end_offset, [b"next"])
        assert isinstance(table.append([batch], leader_epoch=1, now_ms=NOW_MS), Committed)

    def _versions(self) -> Sequence[Entry]:
        return [entry for entry in self.files.list(f"{FOLDER}/{LOG_FOLDER}").files if entry.name.endswith(".json")]


@pytest.mark.parametrize("fault", Fault)
@pytest.mark.timeout(120)  # a life for each call
def test_no_call_of_the_store_can_fail_in_a_way_that_breaks_a_promise(fault: Fault) -> None:
    counted = Life(None, fault)
    counted.live()
    counted.judge()
    assert len(counted.acknowledged) == 6
    assert {"create", "write_unique", "write_parts", "put", "delete", "sync", "list", "get"} <= set(counted.store.calls)
    for at, call in enumerate(counted.store.calls):
        if call not in CHANGES and fault is not Fault.BEFORE:
            continue  # a read has no effect that an error could come after
        life = Life(at, fault)
        life.live()
        try:
            life.judge()
        except BaseException as broken:
            raise AssertionError(f"call {at}, {call}, {fault.value}") from broken
