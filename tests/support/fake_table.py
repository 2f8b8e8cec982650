"""A partition's table in memory, whose commits go as a test scripts them."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import TypeVar

from bus.errors import ErrorCode, Refused, StorageFault
from bus.model import LogBatch, ProducerStamp, RecordBatch, TimestampType, sequence_after
from bus.ports import (
    OFFSET_MAX,
    AppliedTransaction,
    CommitOutcome,
    Committed,
    Conflicted,
    Dropped,
    FoundOffset,
    KeyedRow,
    LogFile,
    LogState,
    Pace,
    PreparedFiles,
    ProducerMatch,
    ProducerProgress,
    Staged,
    StagingKey,
    SwapKind,
    TransactionRows,
    Unknown,
    no_pace,
)

T = TypeVar("T")


class Scripted(Enum):
    """`LOST_REPLY`: the commit succeeds, and its outcome is unknown."""

    LOST_REPLY = "lost reply"


@dataclass(frozen=True, slots=True)
class ProducerRow:
    """The row that a table keeps for a record of an idempotent producer."""

    offset: int
    producer_id: int
    producer_epoch: int
    sequence: int


@dataclass(frozen=True, slots=True)
class FakeFile:
    """A live data file. One that was made in a test need not be of any table."""

    path: str
    size_bytes: int
    base_offset: int
    next_offset: int
    record_count: int
    timestamp_max_ms: int
    appended_ms: int
    level: int = 0


@dataclass(frozen=True, slots=True)
class _Prepared(PreparedFiles):
    file: FakeFile
    compacted_to: int | None


class FakeStaged:
    """Staged batches in memory. `faults` has what the next calls raise, or `Scripted.LOST_REPLY`: the batch is staged,
    and then the call fails. When cleared, `gate` holds `stage` back. `find_fault` is raised by `find`."""

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.gate.set()
        self.find_fault: Exception | None = None
        self.batches: dict[StagingKey, dict[tuple[int, int], RecordBatch]] = {}
        self.faults: list[Exception | Scripted | None] = []
        self.drop_faults: dict[StagingKey, Exception] = {}
        self.recalled: dict[StagingKey, Sequence[RecordBatch]] = {}
        self.held: dict[StagingKey, list[RecordBatch]] = {}  # in memory alone
        self.holds = True  # there is room for that
        self.saves = 0
        self.finds = 0
        self.now_ms = 0

    def stage(self, key: StagingKey, batch: RecordBatch) -> Refused | None:
        self.gate.wait()
        step = self.faults.pop(0) if self.faults else None
        if isinstance(step, Exception):
            raise step
        stamp = batch.producer
        assert stamp is not None, "a batch of no producer"
        assert (stamp.producer_id, stamp.producer_epoch) == (key.producer_id, key.producer_epoch), f"{stamp}, {key}"
        name = stamp.base_sequence, stamp.base_sequence + batch.record_count - 1
        found = self.batches.setdefault(key, {}).setdefault(name, batch)
        if step is Scripted.LOST_REPLY:
            raise StorageFault("the reply was lost")
        return None if found.columns == batch.columns else Refused(ErrorCode.INVALID_RECORD, "other records")

    def hold(self, key: StagingKey, batch: RecordBatch) -> bool:
        if not self.holds:
            return False
        self.held.setdefault(key, []).append(batch)
        return True

    def save(self, key: StagingKey) -> Refused | None:
        self.saves += 1
        refused = [self.stage(key, batch) for batch in self.held.get(key, ())]
        self.held.pop(key, None)
        return next((each for each in refused if each is not None), None)

    def forget(self, key: StagingKey) -> bool:
        return self.held.pop(key, None) is not None and key not in self.batches

    def release(self, key: StagingKey) -> None:
        self.held.pop(key, None)

    def find(self, key: StagingKey) -> Staged | None:
        self.finds += 1
        if self.find_fault is not None:
            raise self.find_fault
        held = self.batches.get(key)
        if not held:
            return None
        last = -1
        for first, end in sorted(held):
            last = max(last, end) if first <= last + 1 else last
        return Staged(last, sum(batch.size_bytes for batch in held.values()), self.now_ms)

    def read(self, key: StagingKey, last_sequence: int) -> Sequence[RecordBatch]:
        """Read batches that do not overlap."""
        batches, sequence = list[RecordBatch](), 0
        for (first, last), batch in sorted(self.batches.get(key, {}).items()):
            if first == sequence <= last_sequence:
                batches.append(batch)
                sequence = last + 1
        if sequence <= last_sequence:
            raise StorageFault(f"{key}: expected sequence {sequence} in a staged file, found none")
        return batches

    def recall(self, key: StagingKey, last_sequence: int) -> Sequence[RecordBatch] | None:
        found, count = list[RecordBatch](), 0
        for batch in self.held.get(key, ()):
            if count <= last_sequence:
                found.append(batch)
                count += batch.record_count
        return found if count == last_sequence + 1 else self.recalled.get(key)

    def drop(self, key: StagingKey) -> None:
        self.held.pop(key, None)
        if key in self.drop_faults:
            raise self.drop_faults[key]
        self.batches.pop(key, None)

    def list(self) -> Sequence[tuple[StagingKey, Staged]]:
        return [(key, staged) for key in self.batches if (staged := self.find(key)) is not None]


class FakeTable:
    """Commits at once, unless `script` holds something else to do for the next append: an outcome to return (nothing
    is committed), a fault to raise, `Scripted`, or a function to call first; `change_script` is the same for swaps and
    new log starts. When cleared, `gate` holds every append back."""

    def __init__(self) -> None:
        self.commits: list[list[LogBatch]] = []
        self.script: list[CommitOutcome | Exception | Scripted | Callable[[], None]] = []
        self.change_script: list[CommitOutcome | Exception | Scripted | None] = []
        self.gate = threading.Event()
        self.gate.set()
        self.reload_fault: Exception | None = None
        self.leads: list[tuple[int, bool]] = []  # leader epoch, and whether with a fence
        self.follows = 0
        self.rows: list[ProducerRow] = []
        self.is_appending = False
        self.is_managed = False
        self.high_watermarks = {0: 0}
        self.state = LogState(version=0, log_start=0, high_watermark=0, leader_epoch=-1, file_count=0, size_bytes=0)
        self.log = FakeLog(self)
        self.producers = FakeProducers(self)
        self.transactions = FakeTransactions(self)
        self.rewrites = FakeRewrites(self)
        self.cleanup = FakeCleanup(self)

    def append(
        self,
        batches: Sequence[LogBatch],
        *,
        leader_epoch: int,
        now_ms: int,
        compression: str = "none",
        producers: Sequence[ProducerProgress] = (),
        transactions: Sequence[AppliedTransaction] = (),
    ) -> CommitOutcome:
        def commit() -> Committed:
            committed = self.commit(list(batches), producers, now_ms)
            self.transactions.versions |= {each.transactional_id: each.applied_version for each in transactions}
            for each in transactions:
                offset = next(batch.base_offset for batch in batches if _is_of(batch, each))
                self.transactions.rows[each] = TransactionRows(committed.version, offset)
            return committed

        ids = [each.transactional_id for each in transactions]
        assert len(set(ids)) == len(ids), f"expected one transaction of each id, found {ids}"
        for each in transactions:
            assert self.transactions.version_of(each.transactional_id) < each.aborted_version, f"{each} has ended"
        self.is_appending = True
        try:
            self.gate.wait()
            return self.as_scripted(commit)
        finally:
            self.is_appending = False

    def as_scripted(self, commit: Callable[[], Committed]) -> CommitOutcome:
        step = self.script.pop(0) if self.script else None
        if isinstance(step, Exception):
            raise step
        if isinstance(step, Scripted):
            return Unknown(commit().version, "the reply was lost")
        if callable(step):
            step()
        elif step is not None:
            return step
        return commit()

    def commit(self, batches: list[LogBatch], producers: Sequence[ProducerProgress] = (), now_ms: int = 0) -> Committed:
        assert batches, "a commit of nothing"
        expected = self.state.high_watermark
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
        self.producers.note(producers, now_ms)
        self.rewrites.add(batches, now_ms)
        self.state = replace(self.state, high_watermark=expected)
        return self.next_version()

    def next_version(self) -> Committed:
        version, high_watermark = self.state.version + 1, self.state.high_watermark
        live = self.rewrites.live
        size_bytes = sum(file.size_bytes for file in live)
        self.state = replace(self.state, version=version, file_count=len(live), size_bytes=size_bytes)
        self.high_watermarks[version] = high_watermark
        return Committed(version, high_watermark)

    def change(self, change: Callable[[], None]) -> CommitOutcome:
        step = self.change_script.pop(0) if self.change_script else None
        if isinstance(step, Exception):
            raise step
        if step is not None and not isinstance(step, Scripted):
            return step
        change()
        committed = self.next_version()
        return committed if step is None else Unknown(committed.version, "the reply was lost")

    def set_managed(self, wanted: bool, *, leader_epoch: int, now_ms: int) -> CommitOutcome:
        def change() -> None:
            self.is_managed = wanted

        return self.change(change)

    def commit_foreign(self, count: int, *, leader_epoch: int = -1) -> None:
        """Commit `count` records as another writer that this one does not know of."""
        self.state = replace(
            self.state,
            version=self.state.version + 1,
            high_watermark=self.state.high_watermark + count,
            leader_epoch=max(self.state.leader_epoch, leader_epoch),
        )

    def commit_stamped(self, stamp: ProducerStamp, count: int, *, now_ms: int = 0) -> None:
        """Commit a batch as an earlier leader."""
        batch = log_batch(self.state.high_watermark, count, stamp)
        last = sequence_after(stamp.base_sequence, count - 1)
        self.commit([batch], [ProducerProgress(stamp.producer_id, stamp.producer_epoch, last)], now_ms)

    def retire(self, offset: int) -> None:
        """Records below `offset` are gone."""
        self.rows = [row for row in self.rows if row.offset >= offset]
        self.state = replace(self.state, version=self.state.version + 1, log_start=offset)

    def follow(self) -> LogState:
        self.follows += 1
        return self.state

    def lead(self, leader_epoch: int, now_ms: int, *, fence: bool) -> CommitOutcome:
        if self.state.leader_epoch > leader_epoch:
            return Conflicted(self.state.version, self.state.leader_epoch, "WRITE", is_rival=True)
        self.leads.append((leader_epoch, fence))
        return Committed(self.state.version, self.state.high_watermark)

    def reload(self) -> LogState:
        if self.reload_fault is not None:
            raise self.reload_fault
        self.producers.forgotten.clear()
        return self.state


class FakeLog:
    """A table's records; `fault` is raised by searches for a timestamp."""

    def __init__(self, table: FakeTable) -> None:
        self._table = table
        self.fault: Exception | None = None

    def read(self, offset: int, *, end_offset: int, max_bytes: int) -> list[LogBatch]:
        batches = [batch for commit in self._table.commits for batch in commit if batch.next_offset > offset]
        return [batch for batch in batches if batch.next_offset <= end_offset][:1]

    def find_timestamp(self, timestamp_ms: int) -> FoundOffset | None:
        if self.fault is not None:
            raise self.fault
        return None

    def find_max_timestamp(self) -> FoundOffset | None:
        return self.find_timestamp(0)

    def high_watermark_at(self, version: int) -> int | None:
        """Return the high watermark at that version, as if nobody but `commit` had moved it."""
        if not 0 <= version <= self._table.state.version:
            return None
        marks = self._table.high_watermarks
        return marks[max(done for done in marks if done <= version)]


class FakeProducers:
    """Questions about producers are answered from the table's rows; `asked` counts them, `fault` is raised by them."""

    def __init__(self, table: FakeTable) -> None:
        self._table = table
        self._txns: dict[int, ProducerProgress] = {}
        self.forgotten: set[int] = set()
        self.asked: list[str] = []
        self.fault: Exception | None = None

    @property
    def progress(self) -> Mapping[int, ProducerProgress]:
        return {key: progress for key, progress in self._txns.items() if key not in self.forgotten}

    def note(self, producers: Sequence[ProducerProgress], now_ms: int) -> None:
        for progress in producers:
            self._txns[progress.producer_id] = replace(progress, updated_ms=now_ms)
            self.forgotten.discard(progress.producer_id)

    def forget(self, *, updated_before_ms: int) -> int:
        self.forgotten |= {key for key, each in self._txns.items() if each.updated_ms < updated_before_ms}
        return max(self.forgotten, default=-1)

    def match(self, batch: RecordBatch) -> ProducerMatch:
        self.ask("match_producer")
        stamp = batch.producer
        assert stamp is not None
        stored = {(row.producer_id, row.producer_epoch, row.sequence): row.offset for row in self._table.rows}
        sequences = [sequence_after(stamp.base_sequence, position) for position in range(batch.record_count)]
        offsets = [stored.get((stamp.producer_id, stamp.producer_epoch, sequence), -1) for sequence in sequences]
        missing = [sequence for sequence, offset in zip(sequences, offsets, strict=True) if offset < 0]
        has_holes = self._table.rewrites.compacted_to > 0
        if not missing:
            return ProducerMatch(offsets, None, has_holes)
        if len(missing) == len(sequences):
            return ProducerMatch(offsets, batch, has_holes)
        rest = replace(batch, record_count=len(missing), columns={"sequence": missing})
        return ProducerMatch(offsets, rest, has_holes)

    def find_last_sequence(self, producer_id: int) -> ProducerProgress | None:
        self.ask("find_last_sequence")
        rows = [row for row in self._table.rows if row.producer_id == producer_id]
        if not rows:
            return self._txns.get(producer_id)  # the log remembers it longer than the records
        last = max(rows, key=lambda row: (row.producer_epoch, row.offset))
        return ProducerProgress(producer_id, last.producer_epoch, last.sequence)

    def ask(self, question: str) -> None:
        assert not self._table.is_appending, f"{question} beside an append"
        self.asked.append(question)
        if self.fault is not None:
            raise self.fault


class FakeTransactions:
    """The transactions of a table: `versions` by transactional id, all as old as `updated_ms`."""

    def __init__(self, table: FakeTable) -> None:
        self._table = table
        self.staged = FakeStaged()
        self.versions: dict[str, int] = {}
        self.updated_ms = 0
        self.rows: dict[AppliedTransaction, TransactionRows] = {}

    def version_of(self, transactional_id: str) -> int:
        return self.versions.get(transactional_id, -1)

    def has_written(self, transaction: AppliedTransaction) -> bool | None:
        known = self._table.producers.progress.get(transaction.producer_id)
        if known is not None:
            return known.producer_epoch >= transaction.producer_epoch
        return None if transaction.producer_id <= max(self._table.producers.forgotten, default=-1) else False

    def find_rows(self, transaction: AppliedTransaction) -> TransactionRows | None:
        self._table.producers.ask("find_rows")
        if transaction in self.rows:
            return self.rows[transaction]
        identity = transaction.producer_id, transaction.producer_epoch
        rows = (row for row in self._table.rows if (row.producer_id, row.producer_epoch) == identity)
        return next((TransactionRows(self._table.state.version, row.offset - row.sequence) for row in rows), None)

    def abort(self, transaction: AppliedTransaction, *, leader_epoch: int, now_ms: int) -> CommitOutcome:
        def commit() -> Committed:
            self.versions[transaction.transactional_id] = transaction.aborted_version
            return self._table.next_version()

        assert self.version_of(transaction.transactional_id) < transaction.aborted_version, "it has ended"
        return self._table.as_scripted(commit)

    def find_old(self, *, updated_before_ms: int) -> Mapping[str, int]:
        return dict(self.versions) if self.updated_ms < updated_before_ms else {}

    def forget(self, ended: Mapping[str, int]) -> None:
        for transactional_id, version in ended.items():
            if self.version_of(transactional_id) == version:
                del self.versions[transactional_id]


class FakeRewrites:
    """When cleared, `gate` holds every preparation of files; `script` has faults to raise in one. A compacted file has
    half the bytes, unless not `gains`: then there is nothing to gain."""

    def __init__(self, table: FakeTable) -> None:
        self._table = table
        self.live: list[FakeFile] = []
        self.compacted_to = 0
        self.gains = True
        self.prepared: list[str] = []
        self.script: list[Exception | None] = []
        self.gate = threading.Event()
        self.gate.set()
        self.swaps: list[PreparedFiles] = []
        self.discarded: list[str] = []
        self.swap_refusal: Refused | None = None
        self._seen_to = 0
        self._file_count = 0

    @property
    def files(self) -> Sequence[LogFile]:
        return tuple(self.live)

    def add(self, batches: Sequence[LogBatch], now_ms: int) -> None:
        file = FakeFile(
            path=self._new_path(),
            size_bytes=sum(batch.size_bytes for batch in batches),
            base_offset=batches[0].base_offset,
            next_offset=batches[-1].next_offset,
            record_count=sum(batch.record_count for batch in batches),
            timestamp_max_ms=max(batch.timestamp_max_ms for batch in batches),
            appended_ms=now_ms,
        )
        self.live.append(file)

    def _new_path(self) -> str:
        self._file_count += 1
        return f"file-{self._file_count}"

    def find_backlog(self) -> Sequence[LogFile]:
        return [file for file in self.live if file.base_offset >= max(self.compacted_to, self._seen_to)]

    def prepare_key_compaction(
        self, *, now_ms: int, tombstone_retention_ms: int, end_offset: int = OFFSET_MAX, pace: Pace = no_pace
    ) -> PreparedFiles | None:
        files = [file for file in self.live if file.next_offset <= end_offset]
        self._prepare("compact", files, pace)
        if not files or not self.gains:
            self._seen_to = files[-1].next_offset if files else self._seen_to
            return None
        merged = self._merged(files)
        return self._prepared(files, replace(merged, size_bytes=merged.size_bytes // 2), merged.next_offset)

    def prepare_roll(
        self,
        files: Sequence[LogFile],
        *,
        compression: str,
        now_ms: int,
        tombstone_retention_ms: int,
        pace: Pace = no_pace,
    ) -> PreparedFiles:
        chosen = [file for file in self.live if file.path in {wanted.path for wanted in files}]
        assert len(chosen) == len(files) > 1, f"expected live files to roll, found {len(chosen)} of {len(files)}"
        self._prepare("roll", chosen, pace)
        return self._prepared(chosen, self._merged(chosen), None)

    def _prepare(self, kind: str, files: Sequence[FakeFile], pace: Pace) -> None:
        self.prepared.append(kind)
        self.gate.wait()
        fault = self.script.pop(0) if self.script else None
        if fault is not None:
            raise fault
        pace(sum(file.size_bytes for file in files))

    def _merged(self, files: Sequence[FakeFile]) -> FakeFile:
        return FakeFile(
            path=self._new_path(),
            size_bytes=sum(file.size_bytes for file in files),
            base_offset=files[0].base_offset,
            next_offset=files[-1].next_offset,
            record_count=sum(file.record_count for file in files),
            timestamp_max_ms=max(file.timestamp_max_ms for file in files),
            appended_ms=max(file.appended_ms for file in files),
            level=max(file.level for file in files) + 1,
        )

    def _prepared(self, files: Sequence[FakeFile], file: FakeFile, compacted_to: int | None) -> PreparedFiles:
        return _Prepared([old.path for old in files], 1, file.size_bytes, file, compacted_to)

    def check_swap(self, removes: Sequence[str], adds: Sequence[str], kind: SwapKind) -> PreparedFiles | Refused:
        self.prepared.append("check")
        if self.swap_refusal is not None:
            return self.swap_refusal
        files = [file for file in self.live if file.path in removes]
        if not files:
            return Refused(ErrorCode.INVALID_REQUEST, f"expected live files, found {removes}")
        compacted_to = files[-1].next_offset if kind is SwapKind.LAST_OF_KEYS else None
        return self._prepared(files, replace(self._merged(files), path=adds[0]), compacted_to)

    def swap(self, prepared: PreparedFiles, *, leader_epoch: int, now_ms: int) -> CommitOutcome:
        self.swaps.append(prepared)
        assert isinstance(prepared, _Prepared)
        paths = [file.path for file in self.live]
        if not set(prepared.removes) <= set(paths):
            self.discarded.append(prepared.file.path)
            version = self._table.state.version
            return Conflicted(version, None, "the files have changed since others were prepared for them")
        first = paths.index(prepared.removes[0])

        def swap() -> None:
            self.live[first : first + len(prepared.removes)] = [prepared.file]
            self.compacted_to = max(self.compacted_to, prepared.compacted_to or 0)

        return self._table.change(swap)


class FakeCleanup:
    """When cleared, `gate` holds every dropping of old versions, which `fault` fails."""

    def __init__(self, table: FakeTable) -> None:
        self._table = table
        self.removals: list[int] = []
        self.gate = threading.Event()
        self.gate.set()
        self.fault: Exception | None = None
        self.dropping: list[tuple[int, int, int]] = []
        self.drop_result = Dropped()
        self.is_checkpoint_due = False
        self.is_checkpoint_needed = False
        self.checkpoints: list[int] = []
        self.orphans: frozenset[str] = frozenset()
        self.deleted_orphans: list[frozenset[str]] = []

    def advance_log_start(self, offset: int, *, leader_epoch: int, now_ms: int) -> CommitOutcome:
        table = self._table
        assert table.state.log_start < offset <= table.state.high_watermark, f"log start {offset}, {table.state}"
        self.removals.append(offset)

        def remove() -> None:
            table.rewrites.live = [file for file in table.rewrites.live if file.next_offset > offset]
            table.rows = [row for row in table.rows if row.offset >= offset]
            table.state = replace(table.state, log_start=offset)

        return table.change(remove)

    def write_checkpoint(self) -> None:
        self.is_checkpoint_due = self.is_checkpoint_needed = False
        self.checkpoints.append(self._table.state.version)

    def is_checkpoint_needed_to_drop(self, *, committed_before_ms: int) -> bool:
        return self.is_checkpoint_needed

    def drop_old_versions(self, *, committed_before_ms: int, count_max: int, removed_before_ms: int) -> Dropped:
        self.dropping.append((committed_before_ms, count_max, removed_before_ms))
        self.gate.wait()
        if self.fault is not None:
            raise self.fault
        dropped, self.drop_result = self.drop_result, Dropped()
        return dropped

    def find_orphans(self) -> frozenset[str]:
        return self.orphans

    def delete_orphans(self, orphans: frozenset[str]) -> int:
        self.deleted_orphans.append(orphans)
        return len(orphans)


def _is_of(batch: LogBatch, transaction: AppliedTransaction) -> bool:
    assert batch.producer is not None, "rows of a transaction have a producer"
    identity = batch.producer.producer_id, batch.producer.producer_epoch
    return identity == (transaction.producer_id, transaction.producer_epoch)


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
        sizes = [row.size_bytes for row in rows]
        return replace(
            records(len(rows), sum(sizes)),
            record_bytes_max=max(sizes),
            columns=list(rows),
            timestamp_min_ms=now_ms,
            timestamp_max_ms=now_ms,
        )

    def decode_again(self, batch: RecordBatch) -> Iterator[KeyedRow]:
        return iter(batch.columns)

    def decode(self, batch: LogBatch) -> Iterator[KeyedRow]:
        return iter(batch.columns)


class ManualClock:
    """Time passes by `advance`; who sets `time_ms` sets the wall clock alone."""

    def __init__(self, now_ms: int = 1_000_000) -> None:
        self.time_ms = now_ms
        self.passed_ms = 0

    def advance(self, by_ms: int) -> None:
        self.time_ms += by_ms
        self.passed_ms += by_ms

    def now_ms(self) -> int:
        return self.time_ms

    def monotonic_ms(self) -> int:
        return self.passed_ms


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
