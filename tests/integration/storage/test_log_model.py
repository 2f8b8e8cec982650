"""Random appends, reads and reopenings against a list: the log is that list, whatever is done to it."""

from __future__ import annotations

import shutil
import tempfile
from bisect import bisect_left
from dataclasses import replace
from pathlib import Path

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from bus.model import SEQUENCE_MODULUS, LogBatch, ProducerStamp, TimestampType, TopicPartition, sequence_after
from bus.ports import Committed
from bus.records.arrow_batches import complete_columns
from bus.storage_delta.root import DeltaStorage, open_storage, open_storage_on
from tests.support.memory_store import MemoryStore
from tests.support.stores import NOW_MS, led, log_batch

PARTITION = TopicPartition("orders", 0)
Stamp = tuple[int | None, int | None, int | None]  # producer id, epoch, sequence
Row = tuple[int, bytes | None, bytes | None, int, int, Stamp]  # timestamp µs, key, value, timestamp type, leader epoch
Drawn = tuple[list[tuple[bytes | None, bytes | None]], int | None, TimestampType, bool, ProducerStamp | None]

bytes_or_null = st.one_of(st.none(), st.binary(max_size=40))
batches = st.tuples(
    st.lists(st.tuples(bytes_or_null, bytes_or_null), min_size=1, max_size=20),
    st.one_of(st.none(), st.integers(-50_000, 50_000)),  # spread of the timestamps in µs, None: one for all
    st.sampled_from(TimestampType),
    st.booleans(),  # with keys
    st.one_of(
        st.none(),
        st.builds(
            ProducerStamp,
            st.integers(0, 2),
            st.integers(0, 1),
            st.one_of(st.integers(0, 50), st.integers(SEQUENCE_MODULUS - 10, SEQUENCE_MODULUS - 1)),
        ),
    ),
)


class LogMachine(RuleBasedStateMachine):
    """The same table opened by its writer; `rows` is what it has to hold."""

    folder: Path | None = None

    @initialize(local=st.booleans())
    def open(self, local: bool) -> None:
        self.rows: list[Row] = []
        self.epoch = 0
        if local:
            self.folder = Path(tempfile.mkdtemp())
            self.storage: DeltaStorage = open_storage(str(self.folder), exclusive=False)
        else:
            self.storage = open_storage_on(MemoryStore(), exclusive=False)
        self.table = led(self.storage.create_partition(PARTITION, topic_id="id"))

    def teardown(self) -> None:
        if self.folder is not None:
            shutil.rmtree(self.folder)

    def place(self, drawn: Drawn) -> LogBatch:
        records, spread, timestamp_type, has_keys, stamp = drawn
        base = len(self.rows)
        micros = [NOW_MS * 1000 + (spread or 0) * (index % 3) for index in range(len(records))]
        batch = log_batch(
            base,
            [value for _, value in records],
            keys=[key for key, _ in records] if has_keys else None,
            timestamps_us=None if spread is None else micros,
            timestamp_type=timestamp_type,
            leader_epoch=self.epoch,
        )
        for at, ((key, value), us) in enumerate(zip(records, micros, strict=True)):
            producer: Stamp = (None, None, None)
            if stamp is not None:
                producer = (stamp.producer_id, stamp.producer_epoch, sequence_after(stamp.base_sequence, at))
            self.rows.append((us, key if has_keys else None, value, int(timestamp_type), self.epoch, producer))
        return replace(batch, producer=stamp)

    @rule(drawn=st.lists(batches, min_size=1, max_size=4), compression=st.sampled_from(["none", "zstd"]))
    def append(
        self,
        drawn: list[Drawn],
        compression: str,
    ) -> None:
        version = self.table.state.version + 1
        placed = [self.place(one) for one in drawn]
        outcome = self.table.append(placed, leader_epoch=self.epoch, now_ms=NOW_MS, compression=compression)
        assert outcome == Committed(version, len(self.rows))

    @rule()
    def reopen(self) -> None:
        before = self.table.state
        self.epoch += 1
        self.table = led(self.storage.open_partition(PARTITION, topic_id="id"))
        assert self.table.state == before

    @rule()
    def reload(self) -> None:
        before = self.table.state
        assert self.table.reload() == before

    @precondition(lambda self: self.folder is not None)
    @rule()
    def checkpoint(self) -> None:
        self.table.cleanup.write_checkpoint()

    @rule(data=st.data(), max_bytes=st.integers(0, 2000))
    def read(self, data: st.DataObject, max_bytes: int) -> None:
        end = data.draw(st.integers(0, len(self.rows)))
        start = data.draw(st.integers(0, end))
        batches = self.table.log.read(start, end_offset=end, max_bytes=max_bytes)
        assert bool(batches) == (start < end)
        offset = start
        for batch in batches:
            columns = complete_columns(batch).to_pydict()
            for row in zip(*(columns[name] for name in columns), strict=True):
                found = dict(zip(columns, row, strict=True))
                if found["offset"] < start:
                    continue
                assert found["offset"] == offset < end
                us, key, value, timestamp_type, epoch, producer = self.rows[offset]
                assert (found["producer_id"], found["producer_epoch"], found["sequence"]) == producer
                assert (found["key"], found["value"]) == (key, value)
                assert (found["timestamp_type"], found["leader_epoch"]) == (timestamp_type, epoch)
                assert round(found["timestamp"].timestamp() * 1_000_000) == us
                offset += 1
        assert sum(batch.size_bytes for batch in batches[1:]) <= max_bytes

    @rule(delta_ms=st.integers(-120, 120))
    def find_timestamp(self, delta_ms: int) -> None:
        wanted = NOW_MS + delta_ms
        expected = next((offset for offset, row in enumerate(self.rows) if row[0] >= wanted * 1000), None)
        found = self.table.log.find_timestamp(wanted)
        assert (None if found is None else found.offset) == expected
        if found is not None:
            us, _, _, _, epoch, _ = self.rows[found.offset]
            assert (found.timestamp_ms, found.leader_epoch) == (us // 1000, epoch)

    @rule()
    def find_max_timestamp(self) -> None:
        found = self.table.log.find_max_timestamp()
        stamps = [row[0] // 1000 for row in self.rows]
        assert (None if found is None else found.offset) == (stamps.index(max(stamps)) if stamps else None)

    @invariant()
    def state_is_that_of_the_list(self) -> None:
        if hasattr(self, "rows"):
            state = self.table.state
            assert (state.log_start, state.high_watermark) == (0, len(self.rows))


TestLogMachine = LogMachine.TestCase
TestLogMachine.settings = settings(
    max_examples=25, stateful_step_count=20, deadline=None, suppress_health_check=list(HealthCheck)
)


@pytest.mark.parametrize("is_reopened", [False, True])
def test_timestamps_that_fall_are_found_where_they_first_were_reached(is_reopened: bool) -> None:
    storage = open_storage_on(MemoryStore())
    table = led(storage.create_partition(PARTITION, topic_id="id"))
    for offset, stamp in enumerate([10, 50, 20, 50, 30, 60]):
        table.append([log_batch(offset, [b"v"], timestamp_ms=stamp)], leader_epoch=0, now_ms=NOW_MS)
    if is_reopened:
        table = led(storage.open_partition(PARTITION, topic_id="id"))
    found = [table.log.find_timestamp(stamp) for stamp in (0, 10, 11, 30, 50, 51, 60, 61)]
    assert [None if one is None else one.offset for one in found] == [0, 0, 1, 1, 1, 5, 5, None]
    newest = table.log.find_max_timestamp()
    assert newest is not None
    assert (newest.offset, newest.timestamp_ms) == (5, 60)


def test_a_view_does_not_see_what_was_committed_behind_it() -> None:
    table = led(open_storage_on(MemoryStore()).create_partition(PARTITION, topic_id="id"))
    table.append([log_batch(0, [b"v"], timestamp_ms=10)], leader_epoch=0, now_ms=NOW_MS)
    reader = table.log
    view = reader.view
    for offset in (1, 2):
        table.append([log_batch(offset, [b"v"], timestamp_ms=offset * 20)], leader_epoch=0, now_ms=NOW_MS)
    reader.view = view
    assert len(view.files) == 3
    assert reader.find_timestamp(20) is reader.find_timestamp(40) is None
    assert [batch.next_offset for batch in reader.read(0, end_offset=3, max_bytes=100)] == [1]
    assert list(view.files_from(1)) == view.files[:1]


def test_a_long_log_is_found_by_every_offset() -> None:
    """Bisection over many files, without the cost of a machine run."""
    table = led(open_storage_on(MemoryStore()).create_partition(PARTITION, topic_id="id"))
    bases: list[int] = []
    for number in range(60):
        bases.append(table.state.high_watermark)
        table.append([log_batch(bases[-1], [b"v"] * (1 + number % 4))], leader_epoch=0, now_ms=NOW_MS)
    for offset in range(table.state.high_watermark):
        (batch,) = table.log.read(offset, end_offset=offset + 1, max_bytes=1)
        assert batch.base_offset == offset
        assert bases[bisect_left(bases, offset + 1) - 1] <= offset
