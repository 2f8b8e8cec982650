"""The log start: nothing below it is shown, nothing above it goes, and it outlives restarts and checkpoints."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import deltalake
import hypothesis.strategies as st
import pyarrow as pa
import pytest
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from bus.errors import StorageFault
from bus.model import TopicPartition
from bus.ports import Committed, Conflicted, FoundOffset, ProducerProgress, Unknown
from bus.storage_delta.log.listing import version_name
from bus.storage_delta.root import DeltaStorage, open_storage_on
from bus.storage_delta.stores.local import LocalStore
from bus.storage_delta.stores.store import OutcomeUnknown
from bus.storage_delta.table import DeltaPartitionTable
from bus.storage_delta.verify.verification import verify_partition
from tests.support.memory_store import MemoryStore
from tests.support.stores import NOW_MS, ScriptedStore, led, log_batch, open_partition_readonly

NAME = TopicPartition("orders", 0)
FOLDER = "topics/orders/0"
FAR_MS = 2**62


class Bench:
    """Three records a commit; the record at offset n has the timestamp 10 * n and the value n."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.store = ScriptedStore(LocalStore(str(root)))
        self.storage: DeltaStorage = open_storage_on(self.store, exclusive=False)
        self.table: DeltaPartitionTable = led(self.storage.create_partition(NAME, topic_id="id"))

    def append(self, commits: int = 1, *, producer: int | None = None, stamps_ms: Sequence[int] = ()) -> None:
        for _ in range(commits):
            base = self.table.state.high_watermark
            stamps = [1000 * ms for ms in stamps_ms or (10 * base, 10 * base + 10, 10 * base + 20)]
            values = [b"%d" % (base + n) for n in range(3)]
            stamp = None if producer is None else (producer, 2, base)
            batch = log_batch(base, values, timestamps_us=stamps, leader_epoch=4, producer=stamp)
            progress = [] if producer is None else [ProducerProgress(producer, 2, base + 2)]
            outcome = self.table.append([batch], leader_epoch=4, now_ms=NOW_MS, producers=progress)
            assert isinstance(outcome, Committed)

    def start_at(self, offset: int) -> None:
        high_watermark = self.table.state.high_watermark
        expected = Committed(self.table.state.version + 1, high_watermark)
        assert self.table.cleanup.advance_log_start(offset, leader_epoch=4, now_ms=NOW_MS) == expected
        assert (self.table.state.log_start, self.table.state.high_watermark) == (offset, high_watermark)

    def reopen(self) -> DeltaPartitionTable:
        self.table = led(self.storage.open_partition(NAME, topic_id="id"))
        return self.table

    def offsets(self, start: int = 0) -> list[int]:
        """Offsets as a consumer reads them: each value is its offset."""
        found: list[int] = []
        offset, end = start, self.table.state.high_watermark
        while offset < end and (batches := self.table.log.read(offset, end_offset=end, max_bytes=50)):
            found += [int(value) for batch in batches for value in batch.columns.column("value").to_pylist()]
            offset = batches[-1].next_offset
        return found

    def forget_past(self) -> None:
        """A checkpoint, and nothing of what was before it."""
        self.table.cleanup.write_checkpoint()
        self.table.cleanup.drop_old_versions(committed_before_ms=FAR_MS, count_max=1, removed_before_ms=FAR_MS)

    def breaches(self) -> list[str]:
        return [str(breach) for breach in verify_partition(self.store, NAME, topic_id="id").breaches]


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


def go_on(bench: Bench) -> None:
    """Nothing happens in between."""


def reopen(bench: Bench) -> None:
    bench.reopen()


def reopen_from_a_checkpoint_alone(bench: Bench) -> None:
    bench.forget_past()
    bench.reopen()


THEN = pytest.mark.parametrize("then", [go_on, reopen, reopen_from_a_checkpoint_alone])
Then = Callable[[Bench], None]


@THEN
@pytest.mark.parametrize(("offset", "file_count"), [(1, 3), (2, 3), (3, 2), (4, 2), (6, 1), (8, 1), (9, 0)])
def test_nothing_below_it_is_shown_and_whole_files_below_it_are_gone(
    bench: Bench, then: Then, offset: int, file_count: int
) -> None:
    bench.append(3)
    bench.start_at(offset)
    then(bench)
    state = bench.table.state
    assert (state.log_start, state.high_watermark, state.leader_epoch) == (offset, 9, 4)
    assert state.file_count == len(bench.table.rewrites.files) == file_count
    for start in range(offset + 1):
        assert bench.offsets(start) == list(range(offset, 9))
    assert bench.breaches() == []
    bench.append()
    assert bench.offsets() == list(range(offset, 12))
    assert bench.reopen().state.log_start == offset


@THEN
def test_a_log_without_records_goes_on_where_it_ended(bench: Bench, then: Then) -> None:
    bench.append(2, producer=7)
    bench.start_at(6)
    then(bench)
    assert bench.table.log.find_timestamp(0) is None
    assert bench.table.log.find_max_timestamp() is None
    assert bench.table.producers.progress == {7: ProducerProgress(7, 2, 5, updated_ms=NOW_MS)}
    assert bench.table.producers.find_last_sequence(7) == ProducerProgress(7, 2, 5, updated_ms=NOW_MS)
    bench.append()
    assert bench.offsets() == [6, 7, 8]
    assert bench.breaches() == []


@THEN
def test_timestamps_of_records_below_it_are_not_found(bench: Bench, then: Then) -> None:
    bench.append(stamps_ms=[10, 900, 20])
    bench.append(stamps_ms=[30, 40, 50])
    assert bench.table.log.find_max_timestamp() == FoundOffset(1, 900, 4)
    bench.start_at(2)
    then(bench)
    assert bench.table.log.find_max_timestamp() == FoundOffset(5, 50, 4)
    found = [bench.table.log.find_timestamp(time_ms) for time_ms in (0, 20, 21, 45, 51, 900)]
    assert [None if one is None else one.offset for one in found] == [2, 2, 3, 5, None, None]
    bench.start_at(5)
    assert bench.table.log.find_max_timestamp() == FoundOffset(5, 50, 4)
    assert bench.table.log.find_timestamp(0) == FoundOffset(5, 50, 4)


@THEN
def test_it_moves_on_and_on(bench: Bench, then: Then) -> None:
    bench.append(3)
    for offset in (1, 2, 4, 5, 7, 9):
        bench.start_at(offset)
        then(bench)
        assert bench.offsets() == list(range(offset, 9))
    assert bench.breaches() == []


@THEN
def test_a_producer_whose_records_are_gone_is_not_new(bench: Bench, then: Then) -> None:
    bench.append(producer=7)
    bench.append(producer=8)
    bench.append()
    bench.start_at(4)
    bench.table.producers.forget(updated_before_ms=FAR_MS)
    then(bench)
    bench.table.producers.forget(updated_before_ms=FAR_MS)
    assert bench.table.producers.find_last_sequence(7) == ProducerProgress(7, 2, 2, updated_ms=NOW_MS)
    assert bench.table.producers.find_last_sequence(8) == ProducerProgress(8, 2, 5)
    assert bench.table.producers.find_last_sequence(9) is None


def test_what_another_engine_appended_counts_though_it_brought_no_txn(bench: Bench) -> None:
    bench.append(producer=7)
    rows = log_batch(3, [b"3"], producer=(7, 3, 0))
    assert isinstance(bench.table.append([rows], leader_epoch=4, now_ms=NOW_MS), Committed)  # tells of no progress
    assert bench.table.producers.find_last_sequence(7) == ProducerProgress(7, 3, 0)
    bench.start_at(4)
    assert bench.table.producers.find_last_sequence(7) == ProducerProgress(7, 2, 2, updated_ms=NOW_MS)


@pytest.mark.parametrize("offset", [0, 2, 10])
def test_it_neither_stays_nor_goes_back_nor_beyond_the_high_watermark(bench: Bench, offset: int) -> None:
    bench.append(3)
    bench.start_at(2)
    with pytest.raises(AssertionError, match="expected a log start above 2 and up to 9"):
        bench.table.cleanup.advance_log_start(offset, leader_epoch=4, now_ms=NOW_MS)


def test_its_version_removes_and_adds_nothing_and_time_travel_goes_behind_it(bench: Bench) -> None:
    bench.append(3)
    bench.start_at(4)
    version = bench.root / FOLDER / "_delta_log" / version_name(4)
    actions = [line.split('"', 2)[1] for line in version.read_text().splitlines()]
    assert actions == ["commitInfo", "txn", "txn", "txn", "remove"]
    assert '"dataChange":true' in version.read_text()
    table = deltalake.DeltaTable(str(bench.root / FOLDER))
    assert rows_of(table) == [3, 4, 5, 6, 7, 8]  # 3 is in the file of 4
    table.load_as_version(3)
    assert rows_of(table) == list(range(9))
    assert open_partition_readonly(str(bench.root), "orders", 0).state.log_start == 4


def rows_of(table: deltalake.DeltaTable) -> list[int]:
    rows = deltalake.QueryBuilder().register("t", table).execute("select offset from t order by offset").read_all()
    return list(pa.table(rows).column("offset").to_pylist())


# ---------------------------------------------------------------- outcomes


def test_a_fault_changes_nothing(bench: Bench) -> None:
    bench.append(3)
    before = bench.table.state
    bench.store.fail_next("create", StorageFault("no space"))
    with pytest.raises(StorageFault):
        bench.table.cleanup.advance_log_start(5, leader_epoch=4, now_ms=NOW_MS)
    assert bench.table.state == bench.reopen().state == before
    bench.start_at(5)


@pytest.mark.parametrize("is_there", [True, False])
def test_an_unknown_outcome_is_settled_by_reading_the_log(bench: Bench, is_there: bool) -> None:
    bench.append(3)
    bench.store.fail_next("create", OutcomeUnknown("sync failed"), after_doing_it=is_there)
    assert isinstance(bench.table.cleanup.advance_log_start(5, leader_epoch=4, now_ms=NOW_MS), Unknown)
    expected = 5 if is_there else 0
    assert bench.table.reload().log_start == expected
    assert bench.offsets() == list(range(expected, 9))
    assert bench.breaches() == []


def test_a_conflict_leaves_what_the_winner_made(bench: Bench) -> None:
    bench.append(3)
    other = led(bench.storage.open_partition(NAME, topic_id="id"))
    other.append([log_batch(9, [b"9"], leader_epoch=5)], leader_epoch=5, now_ms=NOW_MS)
    assert bench.table.cleanup.advance_log_start(9, leader_epoch=4, now_ms=NOW_MS) == Conflicted(4, 5, "WRITE")
    state = bench.table.reload()
    assert (state.log_start, state.high_watermark, state.leader_epoch) == (0, 10, 5)


# ---------------------------------------------------------------- any order of things


@settings(max_examples=20, stateful_step_count=25, deadline=None)
class LogWithAStart(RuleBasedStateMachine):
    """Beside a naive list: whatever is appended, rolled, retired, checkpointed, cleaned and opened again."""

    @initialize()
    def begin(self) -> None:
        self.storage = open_storage_on(MemoryStore(), exclusive=False)
        self.table = led(self.storage.create_partition(NAME, topic_id="id"))
        self.log_start = 0
        self.stamps: list[int] = []

    @rule(stamps=st.lists(st.integers(0, 30), min_size=1, max_size=4))
    def append(self, stamps: list[int]) -> None:
        base = len(self.stamps)
        values = [b"%d" % (base + n) for n in range(len(stamps))]
        batch = log_batch(base, values, timestamps_us=[1000 * stamp for stamp in stamps])
        assert isinstance(self.table.append([batch], leader_epoch=0, now_ms=NOW_MS), Committed)
        self.stamps += stamps

    @precondition(lambda self: self.log_start < len(self.stamps))
    @rule(share=st.floats(0, 1))
    def advance(self, share: float) -> None:
        self.log_start += 1 + int(share * (len(self.stamps) - self.log_start - 1))
        assert isinstance(
            self.table.cleanup.advance_log_start(self.log_start, leader_epoch=0, now_ms=NOW_MS), Committed
        )

    @precondition(lambda self: len(self.table.rewrites.files) > 1)
    @rule(first=st.integers(0, 5), count=st.integers(2, 5))
    def roll(self, first: int, count: int) -> None:
        files = self.table.rewrites.files[min(first, len(self.table.rewrites.files) - 2) :][:count]
        prepared = self.table.rewrites.prepare_roll(files, compression="none", now_ms=NOW_MS, tombstone_retention_ms=1)
        assert isinstance(self.table.rewrites.swap(prepared, leader_epoch=0, now_ms=NOW_MS), Committed)

    @rule(count_max=st.integers(1, 5))
    def clean(self, count_max: int) -> None:
        self.table.cleanup.write_checkpoint()
        self.table.cleanup.drop_old_versions(committed_before_ms=0, count_max=count_max, removed_before_ms=FAR_MS)
        self.table.cleanup.delete_orphans(self.table.cleanup.find_orphans())

    @rule()
    def open_again(self) -> None:
        self.table = led(self.storage.open_partition(NAME, topic_id="id"))

    @invariant()
    def is_the_list(self) -> None:
        end = len(self.stamps)
        assert (self.table.state.log_start, self.table.state.high_watermark) == (self.log_start, end)
        batches = self.table.log.read(0, end_offset=end, max_bytes=1 << 20)
        found = [int(value) for batch in batches for value in batch.columns.column("value").to_pylist()]
        assert found == list(range(self.log_start, end))
        visible = list(enumerate(self.stamps))[self.log_start :]
        latest = max(visible, key=lambda one: (one[1], -one[0]), default=None)
        assert found_pair(self.table.log.find_max_timestamp()) == latest
        for time_ms in (0, 10, 20, 30):
            expected = next(((offset, stamp) for offset, stamp in visible if stamp >= time_ms), None)
            assert found_pair(self.table.log.find_timestamp(time_ms)) == expected

    def teardown(self) -> None:
        if hasattr(self, "storage"):
            assert verify_partition(self.storage._store, NAME, topic_id="id").breaches == []


def found_pair(found: FoundOffset | None) -> tuple[int, int] | None:
    return None if found is None else (found.offset, found.timestamp_ms)


TestLogWithAStart = LogWithAStart.TestCase
