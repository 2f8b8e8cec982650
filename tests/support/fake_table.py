"""A partition's table in memory, whose commits go as a test scripts them."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import TypeVar

from bus.model import LogBatch, ProducerStamp, RecordBatch, TimestampType, sequence_after
from bus.ports import (
    CommitOutcome,
    Committed,
    FoundOffset,
    KeyedRow,
    LogState,
    PreparedFiles,
    ProducerMatch,
    ProducerProgress,
    Unknown,
)

T = TypeVar("T")


class Scripted(Enum):
    """`LOST_REPLY`: the commit succeeds, and its outcome is unknown."""

    LOST_REPLY = "lost reply"


@dataclass(frozen=True, slots=True)
class ProducerRow:
    """What a table keeps of a record of an idempotent producer."""

    offset: int
    producer_id: int
    producer_epoch: int
    sequence: int


class FakeTable:
    """Commits at once, unless `script` holds something else to do for the next append: an outcome to return (nothing
    is committed), a fault to raise, `Scripted`, or a function to call first. `gate`, when cleared, holds every append
    back. Questions about producers are answered from its rows; `asked` counts them, `ask_fault` is raised by them."""

    def __init__(self) -> None:
        self.commits: list[list[LogBatch]] = []
        self.script: list[CommitOutcome | Exception | Scripted | Callable[[], None]] = []
        self.gate = threading.Event()
        self.gate.set()
        self.reload_fault: Exception | None = None
        self.ask_fault: Exception | None = None
        self.asked: list[str] = []
        self.is_checkpoint_due = False
        self._is_appending = False
        self.rows: list[ProducerRow] = []
        self.key_compaction_backlog = 0
        self.key_compaction_backlog_bytes = 0
        self.swap_script: list[CommitOutcome | Exception] = []
        self.swaps: list[PreparedFiles] = []
        self.cleaned: list[tuple[str, int]] = []
        self.prepare_count = 0
        self.prepare_fault: Exception | None = None
        self._prepared_backlog = 0
        self._high_watermarks = {0: 0}
        self._txns: dict[int, ProducerProgress] = {}
        self._forgotten: set[int] = set()
        self._state = LogState(version=0, log_start=0, high_watermark=0, leader_epoch=-1, file_count=0, size_bytes=0)

    @property
    def state(self) -> LogState:
        return self._state

    def append(
        self,
        batches: Sequence[LogBatch],
        *,
        leader_epoch: int,
        now_ms: int,
        compression: str = "none",
        producers: Sequence[ProducerProgress] = (),
    ) -> CommitOutcome:
        self._is_appending = True
        try:
            self.gate.wait()
            return self._append(list(batches), producers, now_ms)
        finally:
            self._is_appending = False

    def _append(self, batches: list[LogBatch], producers: Sequence[ProducerProgress], now_ms: int) -> CommitOutcome:
        step = self.script.pop(0) if self.script else None
        if isinstance(step, Exception):
            raise step
        if isinstance(step, Scripted):
            committed = self.commit(batches, producers, now_ms)
            return Unknown(committed.version, "the reply was lost")
        if callable(step):
            step()
        elif step is not None:
            return step
        return self.commit(batches, producers, now_ms)

    def commit(self, batches: list[LogBatch], producers: Sequence[ProducerProgress] = (), now_ms: int = 0) -> Committed:
        assert batches, "a commit of nothing"
        expected = self._state.high_watermark
        rows: list[ProducerRow] = []
        for batch in batches:
            assert batch.base_offset == expected, f"expected offset {expected}, found {batch.base_offset}"
            expected = batch.next_offset
            rows.extend(_rows_of(batch))
        ends = {row.producer_id: (row.producer_epoch, row.sequence) for row in rows}
        found = {each.producer_id: (each.producer_epoch, each.last_sequence) for each in producers}
        assert found == ends, f"expected the progress {ends}, found {found}"
        self.commits.append(batches)
        self.rows.extend(rows)
        for progress in producers:
            self._txns[progress.producer_id] = replace(progress, updated_ms=now_ms)
            self._forgotten.discard(progress.producer_id)
        self._state = replace(self._state, version=self._state.version + 1, high_watermark=expected)
        self._high_watermarks[self._state.version] = expected
        return Committed(self._state.version, expected)

    def commit_foreign(self, count: int) -> None:
        """What another writer does to the table: `count` records that this one does not know of."""
        self._state = replace(
            self._state, version=self._state.version + 1, high_watermark=self._state.high_watermark + count
        )

    def commit_stamped(self, stamp: ProducerStamp, count: int, *, now_ms: int = 0) -> None:
        """What an earlier leader did to the table."""
        batch = log_batch(self._state.high_watermark, count, stamp)
        last = sequence_after(stamp.base_sequence, count - 1)
        self.commit([batch], [ProducerProgress(stamp.producer_id, stamp.producer_epoch, last)], now_ms)

    def retire(self, offset: int) -> None:
        """Records below `offset` are gone."""
        self.rows = [row for row in self.rows if row.offset >= offset]
        self._state = replace(self._state, version=self._state.version + 1, log_start=offset)

    def reload(self) -> LogState:
        if self.reload_fault is not None:
            raise self.reload_fault
        self._forgotten.clear()
        return self._state

    def read(self, offset: int, *, end_offset: int, max_bytes: int) -> list[LogBatch]:
        batches = [batch for commit in self.commits for batch in commit if batch.next_offset > offset]
        return [batch for batch in batches if batch.next_offset <= end_offset][:1]

    def find_timestamp(self, timestamp_ms: int) -> FoundOffset | None:
        return None

    def find_max_timestamp(self) -> FoundOffset | None:
        return None

    def write_checkpoint(self) -> None:
        self.is_checkpoint_due = False

    @property
    def producer_progress(self) -> Mapping[int, ProducerProgress]:
        return {key: progress for key, progress in self._txns.items() if key not in self._forgotten}

    def forget_producers(self, *, updated_before_ms: int) -> int:
        self._forgotten |= {key for key, each in self._txns.items() if each.updated_ms < updated_before_ms}
        return max(self._forgotten, default=-1)

    def match_producer(self, batch: RecordBatch) -> ProducerMatch:
        self._ask("match_producer")
        stamp = batch.producer
        assert stamp is not None
        stored = {(row.producer_id, row.producer_epoch, row.sequence): row.offset for row in self.rows}
        sequences = [sequence_after(stamp.base_sequence, position) for position in range(batch.record_count)]
        offsets = [stored.get((stamp.producer_id, stamp.producer_epoch, sequence), -1) for sequence in sequences]
        missing = [sequence for sequence, offset in zip(sequences, offsets, strict=True) if offset < 0]
        if not missing:
            return ProducerMatch(offsets, None)
        if len(missing) == len(sequences):
            return ProducerMatch(offsets, batch)
        return ProducerMatch(offsets, replace(batch, record_count=len(missing), columns={"sequence": missing}))

    def high_watermark_at(self, version: int) -> int | None:
        """As if nobody but `commit` had moved it."""
        if not 0 <= version <= self._state.version:
            return None
        return self._high_watermarks[max(done for done in self._high_watermarks if done <= version)]

    def prepare_key_compaction(self, *, now_ms: int, tombstone_retention_ms: int) -> PreparedFiles | None:
        """There is something to gain if there is a backlog."""
        self.prepare_count += 1
        if self.prepare_fault is not None:
            raise self.prepare_fault
        backlog, self._prepared_backlog = self.key_compaction_backlog, self.key_compaction_backlog
        return PreparedFiles(["old"] * backlog, 1, 100, None) if backlog else None

    def swap_files(self, prepared: PreparedFiles, *, leader_epoch: int, now_ms: int) -> CommitOutcome:
        self.swaps.append(prepared)
        step = self.swap_script.pop(0) if self.swap_script else None
        if isinstance(step, Exception):
            raise step
        if step is not None:
            return step
        self.key_compaction_backlog -= self._prepared_backlog
        self._state = replace(self._state, version=self._state.version + 1)
        return Committed(self._state.version, self._state.high_watermark)

    def delete_removed_files(self, *, removed_before_ms: int) -> int:
        self.cleaned.append(("files", removed_before_ms))
        return 0

    def drop_old_versions(self, *, committed_before_ms: int, count_max: int) -> int:
        self.cleaned.append(("versions", committed_before_ms))
        return 0

    def find_last_sequence(self, producer_id: int) -> ProducerProgress | None:
        self._ask("find_last_sequence")
        rows = [row for row in self.rows if row.producer_id == producer_id]
        if not rows:
            return None
        last = max(rows, key=lambda row: (row.producer_epoch, row.offset))
        return ProducerProgress(producer_id, last.producer_epoch, last.sequence)

    def _ask(self, question: str) -> None:
        assert not self._is_appending, f"{question} beside an append"
        self.asked.append(question)
        if self.ask_fault is not None:
            raise self.ask_fault


def _rows_of(batch: LogBatch) -> Iterator[ProducerRow]:
    """The column `sequence`, a list here, beats the stamp."""
    stamp = batch.producer
    if stamp is None:
        return
    dense = [sequence_after(stamp.base_sequence, position) for position in range(batch.record_count)]
    sequences = batch.columns["sequence"] if batch.columns else dense
    assert len(sequences) == batch.record_count
    for position, sequence in enumerate(sequences):
        yield ProducerRow(batch.base_offset + position, stamp.producer_id, stamp.producer_epoch, sequence)


class FakeKeyedRows:
    """Rows as they are in place of columns: what it encodes, a `FakeTable` gives back, and this decodes."""

    def encode(self, rows: Sequence[KeyedRow], *, now_ms: int) -> RecordBatch:
        assert rows, "a batch of nothing"
        return replace(records(len(rows)), columns=list(rows), timestamp_min_ms=now_ms, timestamp_max_ms=now_ms)

    def decode(self, batch: LogBatch) -> Iterator[KeyedRow]:
        return iter(batch.columns)


class ManualClock:
    def __init__(self, now_ms: int = 1_000_000) -> None:
        self.time_ms = now_ms

    def now_ms(self) -> int:
        return self.time_ms


def records(count: int = 1, size_bytes: int = 100, producer: ProducerStamp | None = None) -> RecordBatch:
    return RecordBatch(
        record_count=count,
        size_bytes=size_bytes,
        record_bytes_max=size_bytes,
        timestamp_min_ms=1_000_000,
        timestamp_max_ms=1_000_000,
        has_timestamps=False,
        columns=None,
        producer=producer,
    )


def log_batch(base_offset: int, count: int, producer: ProducerStamp | None = None) -> LogBatch:
    return LogBatch(
        base_offset=base_offset,
        next_offset=base_offset + count,
        record_count=count,
        size_bytes=100,
        leader_epoch=0,
        timestamp_type=TimestampType.CREATE_TIME,
        timestamp_ms=1_000_000,
        timestamp_max_ms=1_000_000,
        columns=None,
        producer=producer,
    )


async def wait_until(condition: Callable[[], bool]) -> None:
    """Let the loop run until `condition` holds; the test's timeout ends it if it never does."""
    while not condition():  # noqa: ASYNC110  # the condition is nobody's event
        await asyncio.sleep(0)
