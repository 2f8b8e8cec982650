"""The transactions of one partition on its leader: their batches, which are staged beside the log until they are
committed.

Theory of operation. The batches of a transaction are staged one after another, of several transactions beside each
other: each is a file that is durable before its answer, or in memory alone (see below). With its first batch here the
coordinator is asked to add the partition, and only then is the batch staged: what the coordinator refuses must not lie
there when the transaction with that epoch begins. Memory knows what is staged, and what it does not know, the folder of
the transaction tells: a leader that takes over goes on, and a vote that memory cannot give is counted there. A commit
hands the rows to the writer, in whose place they become one version.

Batches are kept in memory alone, and answered, while their commit is likely to be that version and nothing else: the
coordinator says so (one phase), the producer will name the last sequence that it was answered for, and the transaction
is young. They are saved before a vote, once the transaction is older, and when the partition is closed. A leader that
loses them lacks rows that the producer names, so the transaction is aborted.

Staging needs no fence. A deposed leader may stage after its successor has looked: the file is durable, and a leader
that votes or applies looks again. What comes behind the sequence that the decision has pinned is never applied; it
stays as garbage until it is swept.
"""

from __future__ import annotations

import asyncio
import functools
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from bus.errors import ErrorCode, Refused, StorageFault
from bus.model import ProducerStamp, RecordBatch, TopicPartition
from bus.partition_log.staging import (
    NOTHING_STAGED,
    AlreadyStaged,
    LookForStaged,
    StageBatch,
    StagedState,
    decide_stage,
)
from bus.partition_log.state import check_leader_epoch
from bus.ports import AppliedTransaction, Clock, CommitOutcome, Committed, PartitionTable, Staged, StagingKey
from bus.runtime.blocking import BlockingCalls
from bus.runtime.partitions.partition_queue import Appended, AppendResult, ApplyResult, TransactionWritten
from bus.runtime.partitions.partition_writer import PartitionWriter, is_applied
from bus.runtime.tasks import TaskScope
from bus.transactions.requests import Added

_log = logging.getLogger(__name__)

# Of transactions that have ended memory keeps so many, to refuse their late batches without asking the coordinator.
_ENDED_MAX = 1_000

# A transaction that is no older may have its batches in memory alone.
_YOUNG_MS = 2_000
_SAVE_RETRY_S = 1.0

AddPartition = Callable[[], Awaitable[Added | Refused]]
VoteResult = int | Refused


@dataclass(frozen=True, slots=True)
class ResolvedTransactions:
    """The last transaction of an id that is in the log. `rows`: None if it is before the one that was asked for."""

    last_number: int
    rows: TransactionWritten | None


@dataclass(frozen=True, slots=True)
class Decided:
    """A transaction in one phase. `rows`: where all up to `last_sequence` is in the log; None: only that much was
    staged, so nothing of it is in the log, or ever will be."""

    last_sequence: int
    rows: TransactionWritten | None


@dataclass(slots=True)
class _Waiting:
    batch: RecordBatch
    transactional_id: str
    add: AddPartition
    may_be_in_memory: bool
    answer: asyncio.Future[AppendResult]
    on_settled: Callable[[AppendResult], None] | None

    def settle(self, result: AppendResult) -> None:
        if not self.answer.done():
            self.answer.set_result(result)
        if self.on_settled is not None:
            self.on_settled(self.answer.result())


@dataclass(slots=True)
class _Open:
    """A transaction with batches here. `staged` None: it is not known what is staged. `transactional_id`: whose it is,
    and the coordinator has said that this partition is in it, so that it ends here too; None: it has not yet.
    `is_unsaved`: all of its batches are in memory, and some are nowhere else; while `saving` makes those durable, no
    other joins them."""

    begin_ms: float
    staged: StagedState | None = None
    transactional_id: str | None = None
    may_be_one_phase: bool = False
    is_unsaved: bool = False
    is_voted_on: bool = False
    waiting: deque[_Waiting] = field(default_factory=deque)
    task: asyncio.Task[None] | None = None
    saving: asyncio.Task[Refused | None] | None = None

    @property
    def writing(self) -> Sequence[asyncio.Task[Any]]:
        """What may be writing files of it now."""
        return [each for each in (self.task, self.saving) if each is not None]


@dataclass(frozen=True, slots=True, eq=False)
class Idle:
    """A transaction, known here or not, of which no batch is under way."""

    transaction: _Open | None
    staged: StagedState | None


class PartitionTransactions:
    """`waiting_bytes_max` bounds the batches that wait to be staged, `staged_bytes_max` what is staged of one
    transaction."""

    def __init__(
        self,
        name: TopicPartition,
        table: PartitionTable,
        writer: PartitionWriter,
        *,
        waiting_bytes_max: int,
        clock: Clock,
        calls: BlockingCalls,
        tasks: TaskScope,
    ) -> None:
        self._name = name
        self._table = table
        self._writer = writer
        self._waiting_bytes_max = waiting_bytes_max
        self._clock = clock
        self._calls = calls
        self._tasks = tasks
        self._open: dict[StagingKey, _Open] = {}
        self._waiting_bytes = 0
        self._stopping: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._ended: dict[int, int] = {}  # producer id -> highest epoch that has ended here, the latest last
        self._written: dict[str, tuple[int, TransactionWritten]] = {}  # by transactional id, with the number
        # They have ended here; what is staged of them is to be deleted.
        self._applied: list[tuple[StagingKey, _Open | None]] = []
        self._dropping: asyncio.Task[None] | None = None
        self._saving_old: asyncio.Task[None] | None = None

    # ------------------------------------------------------------------ staging

    def stage(
        self,
        batch: RecordBatch,
        key: StagingKey,
        transactional_id: str,
        add: AddPartition,
        *,
        may_be_in_memory: bool = False,
        current_leader_epoch: int | None = None,
        on_settled: Callable[[AppendResult], None] | None = None,
    ) -> asyncio.Future[AppendResult]:
        """Behind the batches of the same transaction that came before. When it is answered, the batch is durable, or
        may be in memory alone, and the partition is in the transaction; the batch has no offsets yet. `add` asks the
        coordinator whether this is the open transaction of `transactional_id`. `may_be_in_memory`: the batch need not
        be durable, for the producer will name the last sequence that it was answered for. The future never fails."""
        answer = asyncio.get_running_loop().create_future()
        waiting = _Waiting(batch, transactional_id, add, may_be_in_memory, answer, on_settled)
        refusal = (
            self._writer.stopped
            or check_leader_epoch(self._writer.state, current_leader_epoch)
            or self._refuse_ended(key)
            or self._refuse_for_room(batch.size_bytes)
        )
        if refusal is not None:
            waiting.settle(refusal)
            return waiting.answer
        transaction = self._open.get(key)
        if transaction is None:
            transaction = self._open[key] = _Open(self._clock.monotonic_ms())
        if self._stage_at_once(key, transaction, waiting):
            return waiting.answer
        transaction.waiting.append(waiting)
        self._waiting_bytes += batch.size_bytes
        if transaction.task is None:
            transaction.task = self._tasks.start(self._stage_all(key, transaction), f"{self._name}/stage")
        return waiting.answer

    def check_outside(self, stamp: ProducerStamp) -> Refused | None:
        """Of a batch that is in no transaction. INVALID_TXN_STATE, as in Kafka, if its producer id is that of a
        transaction here, open or one of the last that have ended: its rows would not be told from theirs."""
        producer_id = stamp.producer_id
        if producer_id not in self._ended and all(key.producer_id != producer_id for key in self._open):
            return None
        return Refused(
            ErrorCode.INVALID_TXN_STATE,
            f"{self._name}: expected a batch in a transaction, since producer {producer_id} has a transactional id, "
            "found one in none",
        )

    def _stage_at_once(self, key: StagingKey, transaction: _Open, waiting: _Waiting) -> bool:
        """In memory, behind others that are there; False: the coordinator or the disk has to be asked."""
        if not transaction.is_unsaved or transaction.task is not None:
            return False
        if transaction.transactional_id != waiting.transactional_id:
            return False
        is_next = isinstance(self._decide(transaction, waiting.batch), StageBatch)
        if not is_next or not self._hold(key, transaction, waiting):
            return False
        waiting.settle(self._staged())
        return True

    def _hold(self, key: StagingKey, transaction: _Open, waiting: _Waiting) -> bool:
        """Keep the batch, which is the next one, in memory alone, if it may be there and there is room."""
        is_first = transaction.staged is None or transaction.staged.last_sequence == NOTHING_STAGED
        if not (is_first or transaction.is_unsaved) or transaction.saving is not None:
            return False
        if transaction.is_voted_on or not self._is_young(transaction):
            return False
        if not (waiting.may_be_in_memory and transaction.may_be_one_phase):
            return False
        if self._writer.stopped is not None or not self._table.staged.hold(key, waiting.batch):
            return False
        _follow(transaction, waiting.batch)
        transaction.is_unsaved = True
        if self._saving_old is None:
            self._saving_old = self._tasks.start(self._save_old(), f"{self._name}/save")
        return True

    def _is_young(self, transaction: _Open) -> bool:
        return self._clock.monotonic_ms() - transaction.begin_ms < _YOUNG_MS

    async def _save_old(self) -> None:
        """Transactions that take longer outlive this leader. Ends when nothing is in memory alone."""
        try:
            while unsaved := [(key, each) for key, each in self._open.items() if each.is_unsaved]:
                oldest_ms = min(each.begin_ms for _, each in unsaved)
                due_s = (oldest_ms + _YOUNG_MS - self._clock.monotonic_ms()) / 1000
                await asyncio.wait([self._stopping], timeout=max(due_s, 0.001))
                if self._stopping.done():
                    return
                for key, each in unsaved:
                    is_open = self._open.get(key) is each and each.is_unsaved
                    refused = await self._save(key, each) if is_open and not self._is_young(each) else None
                    if refused is not None:
                        _log.warning("%s", refused.message)
                        await asyncio.wait([self._stopping], timeout=_SAVE_RETRY_S)
        finally:
            self._saving_old = None

    async def _save(self, key: StagingKey, transaction: _Open) -> Refused | None:
        """Make durable what is in memory alone: None once it is, also for callers that come while it is written. Goes
        on if the caller is cancelled."""
        if transaction.saving is None:
            transaction.saving = self._tasks.start(self._save_once(key, transaction), f"{self._name}/save")
        saving = transaction.saving
        await asyncio.wait([saving])
        return saving.result()

    async def _save_once(self, key: StagingKey, transaction: _Open) -> Refused | None:
        try:
            refused = await self._calls.commit(functools.partial(self._table.staged.save, key))
            transaction.is_unsaved = refused is not None
            return refused
        except StorageFault as fault:
            return self._refuse(f"a transaction cannot be staged: {fault}")
        finally:
            transaction.saving = None

    def _refuse_ended(self, key: StagingKey) -> Refused | None:
        ended = self._ended.get(key.producer_id, -1)
        if key.producer_epoch > ended:
            return None
        return Refused(
            ErrorCode.INVALID_PRODUCER_EPOCH,
            f"{self._name}: the transaction of producer {key.producer_id} has ended, expected an epoch above {ended}, "
            f"found {key.producer_epoch}",
        )

    def _refuse_for_room(self, size_bytes: int) -> Refused | None:
        if not self._waiting_bytes or self._waiting_bytes + size_bytes <= self._waiting_bytes_max:
            return None
        return Refused(
            ErrorCode.THROTTLING_QUOTA_EXCEEDED,
            f"{self._name} has {self._waiting_bytes} bytes waiting to be staged, {size_bytes} more would exceed "
            f"queued.max.bytes={self._waiting_bytes_max}; retry later",
        )

    async def _stage_all(self, key: StagingKey, transaction: _Open) -> None:
        """Ends when nothing waits."""
        try:
            while transaction.waiting:
                waiting = transaction.waiting[0]
                result: AppendResult = self._refuse("staging was interrupted", ErrorCode.UNKNOWN_SERVER_ERROR)
                try:
                    result = await self._stage(key, transaction, waiting) or self._staged()
                except StorageFault as fault:
                    result = self._refuse(str(fault))
                finally:
                    transaction.waiting.popleft()
                    self._waiting_bytes -= waiting.batch.size_bytes
                    waiting.settle(result)
        finally:
            transaction.task = None
            if transaction.waiting:
                transaction.task = self._tasks.start(self._stage_all(key, transaction), f"{self._name}/stage")
            elif transaction.transactional_id is None and self._open.get(key) is transaction:
                del self._open[key]  # the next batch asks again

    async def _stage(self, key: StagingKey, transaction: _Open, waiting: _Waiting) -> Refused | None:
        decision = self._decide(transaction, waiting.batch)
        if isinstance(decision, LookForStaged):
            transaction.staged = _state_of(await self._find(key))
            decision = self._decide(transaction, waiting.batch)
        refusal = self._writer.stopped or self._refuse_ended(key)
        if refusal is not None:
            return refusal
        if isinstance(decision, Refused):
            return Refused(decision.code, f"{self._name}: {decision.message}")
        refusal = await self._add(transaction, waiting) or self._refuse_ended(key)
        if refusal is None and isinstance(decision, StageBatch) and not self._hold(key, transaction, waiting):
            refusal = self._refuse_voted_on(transaction, key)
            if refusal is None and transaction.is_unsaved:
                refusal = await self._save(key, transaction)
            refusal = refusal or await self._calls.commit(
                functools.partial(self._table.staged.stage, key, waiting.batch)
            )
            if refusal is None:
                _follow(transaction, waiting.batch)
        return refusal

    def _refuse_voted_on(self, transaction: _Open, key: StagingKey) -> Refused | None:
        """What is counted does not grow afterwards: it would be acknowledged, and not be committed."""
        if not transaction.is_voted_on:
            return None
        return Refused(
            ErrorCode.CONCURRENT_TRANSACTIONS,
            f"{self._name}: the transaction of producer {key.producer_id}, epoch {key.producer_epoch}, is being ended",
        )

    async def _add(self, transaction: _Open, waiting: _Waiting) -> Refused | None:
        """Ask the coordinator, unless it has said so of this id. A partition that stops does not wait for it."""
        if transaction.transactional_id == waiting.transactional_id:
            return None
        added = await self._wait_until_added(self._tasks.start(_await(waiting.add), f"{self._name}/add"))
        if not isinstance(added, Added):
            return added
        transaction.transactional_id = waiting.transactional_id
        transaction.may_be_one_phase = added.may_be_one_phase
        return None

    async def _wait_until_added(self, adding: asyncio.Task[Added | Refused]) -> Added | Refused | None:
        either: list[asyncio.Future[Any]] = [adding, self._stopping]
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        if adding.done():
            return adding.result()
        adding.cancel()
        return self._writer.stopped

    def _decide(self, transaction: _Open, batch: RecordBatch) -> StageBatch | AlreadyStaged | LookForStaged | Refused:
        settings = self._writer.settings
        return decide_stage(
            transaction.staged,
            batch,
            settings.append_rules,
            now_ms=self._clock.now_ms(),
            bytes_max=settings.staged_bytes_max,
        )

    def _staged(self) -> Appended:
        return Appended(-1, -1, -1, self._writer.state.log_start)

    # ------------------------------------------------------------------ the end of a transaction

    async def vote(self, key: StagingKey, last_sequence: int) -> VoteResult:
        """The last sequence that is staged, all before it included; -1: nothing is. `last_sequence`: the one that the
        producer was answered for, -1 if that is not known. The producer has called the end: what is being staged is
        waited for, and no more is staged afterwards. Refused if less is there than this leader has staged, and the
        producer cannot tell."""
        if self._writer.stopped is not None:
            return self._writer.stopped
        known = await self._end_staging(key)
        refused = await self._save(key, known) if known is not None and known.is_unsaved else None
        return refused or await self._count(key, last_sequence, known)

    async def _end_staging(self, key: StagingKey) -> _Open | None:
        """Nothing more of the transaction is staged, and nothing is being staged."""
        known = self._open.get(key)
        if known is not None:
            known.is_voted_on = True
            await self._wait_until_staged(known)
        return known

    async def _count(self, key: StagingKey, last_sequence: int, known: _Open | None) -> VoteResult:
        if known is not None and known.staged is not None and last_sequence >= 0:
            has_all = known.is_unsaved and known.staged.last_sequence >= last_sequence  # no listing would tell
            if has_all or known.staged.last_sequence == last_sequence:
                return last_sequence
        try:
            found = await self._find(key)
        except StorageFault as fault:
            return self._refuse(str(fault))
        last = NOTHING_STAGED if found is None else found.last_sequence
        if last_sequence < 0 and known is not None and known.staged is not None and known.staged.last_sequence > last:
            # The producer does not say what it was acknowledged, so only this leader knows that some of it is lost.
            reason = f"expected staged batches of {key} up to sequence {known.staged.last_sequence}, found {last}"
            _log.error("%s: %s: its transaction cannot be committed", self._name, reason)
            return self._refuse(reason)
        return last

    async def commit(self, key: StagingKey, applied: AppliedTransaction, last_sequence: int) -> Decided | Refused:
        """Vote and decide (one phase): put the rows up to `last_sequence`, the one that the producer was answered for,
        in the log, as one version. If less is there, the transaction is given up by a version without rows, so that
        nothing of it comes later, however often the call is repeated. TRANSACTION_COORDINATOR_FENCED: another
        coordinator has done so, or gone on."""
        if self._writer.stopped is not None:
            return self._writer.stopped
        staged, outcome = last_sequence, None
        if not is_applied(self._table, applied):
            counted = await self._count(key, last_sequence, await self._end_staging(key))
            if isinstance(counted, Refused):
                return counted
            staged, outcome = await self._write_or_give_up(key, applied, last_sequence, counted)
            if isinstance(outcome, Refused) and outcome.code is not ErrorCode.TRANSACTION_COORDINATOR_FENCED:
                return outcome
        # The mark tells what has become of it, by this call or another one.
        mark = self._table.transaction_of(applied.transactional_id)
        if mark == applied.applied_version:
            here = TransactionWritten(self._writer.state.version, -1)
            written = outcome if isinstance(outcome, TransactionWritten) else here
            return Decided(last_sequence, await self._take_written(key, applied, written))
        if mark == applied.aborted_version:
            return Decided(min(staged, last_sequence - 1), None)
        return self._refuse(f"{applied} has ended: the mark is {mark}", ErrorCode.TRANSACTION_COORDINATOR_FENCED)

    async def _write_or_give_up(
        self, key: StagingKey, applied: AppliedTransaction, last_sequence: int, staged: int
    ) -> tuple[int, ApplyResult | Committed]:
        """Also the last sequence that is staged, as it turned out: `staged`, or less if the files cannot be read."""
        if staged >= last_sequence:
            outcome = await self._write(key, applied, last_sequence, is_one_phase=True)
            if not isinstance(outcome, Refused) or outcome.code is not ErrorCode.KAFKA_STORAGE_ERROR:
                return staged, outcome
            staged = await self._count_again(key, last_sequence)
            if staged >= last_sequence:
                return staged, outcome
        return staged, await self._give_up(applied)

    async def _count_again(self, key: StagingKey, last_sequence: int) -> int:
        """Staged files may be lost that memory knew of. A listing that fails tells nothing."""
        if self._table.staged.recall(key, last_sequence) is not None:
            return last_sequence
        try:
            found = await self._find(key)
        except StorageFault:
            return last_sequence
        return NOTHING_STAGED if found is None else found.last_sequence

    async def _give_up(self, unknown: AppliedTransaction) -> Committed | Refused:
        """By a version without rows, unless the log has the transaction or a later one. An application of it is refused
        from then on."""

        def give_up(*, leader_epoch: int, now_ms: int) -> Callable[[], CommitOutcome] | Committed:
            if is_applied(self._table, unknown):
                return Committed(self._writer.state.version, self._writer.state.high_watermark)
            return functools.partial(self._table.abort_transaction, unknown, leader_epoch=leader_epoch, now_ms=now_ms)

        outcome = await self._writer.commit_between_appends(give_up)
        if isinstance(outcome, (Committed, Refused)):
            return outcome
        return self._refuse("another writer has committed a version meanwhile; retry later")

    async def apply(self, key: StagingKey, applied: AppliedTransaction, last_sequence: int) -> ApplyResult:
        """Put the rows up to `last_sequence` in the log, as one version; only after the commit is decided, for that is
        not taken back. Safe to repeat."""
        if self._writer.stopped is not None:
            return self._writer.stopped
        written = await self._write(key, applied, last_sequence, is_one_phase=False)
        return written if isinstance(written, Refused) else await self._take_written(key, applied, written)

    async def _take_written(
        self, key: StagingKey, applied: AppliedTransaction, written: TransactionWritten
    ) -> TransactionWritten:
        """The answer. What is staged of the transaction is deleted behind it."""
        self._drop_later(key)
        written = self._recall(applied, written)
        if written.base_offset < 0:
            written = await self._find_rows(applied, written)
        return self._remember(applied, written)

    async def _find_rows(self, applied: AppliedTransaction, written: TransactionWritten) -> TransactionWritten:
        """What an earlier leader answered, or would have: the answer names a cut of all partitions. `written` if no row
        is left, or they cannot be looked for now."""
        try:
            found = await self._calls.read(functools.partial(self._table.find_rows, applied))
        except StorageFault as fault:
            _log.warning("%s: the rows of %s cannot be looked for: %s", self._name, applied, fault)
            return written
        return written if found is None else TransactionWritten(found.version, found.base_offset)

    async def _write(
        self, key: StagingKey, applied: AppliedTransaction, last_sequence: int, *, is_one_phase: bool
    ) -> ApplyResult:
        batches: Sequence[RecordBatch] = ()
        if not is_applied(self._table, applied):
            try:
                batches = await self._read_staged(key, last_sequence)
            except StorageFault as fault:
                if not is_applied(self._table, applied):  # else the call that it repeats has ended meanwhile
                    _log.error("%s: %s cannot be applied: %s", self._name, applied, fault)
                    return self._refuse(str(fault))
        return await self._writer.apply_transaction(applied, batches, is_one_phase=is_one_phase)

    async def resolve(self, unknown: AppliedTransaction) -> ResolvedTransactions | Refused:
        """The last transaction of the id whose rows are in the log, if that is `unknown` or a later one. Otherwise
        `unknown` is given up by a version without rows, and an application of it is refused from then on. Safe to
        repeat, also late: an answer stays true. The epochs of the rows rise by one with each number."""
        outcome = await self._give_up(unknown)
        if isinstance(outcome, Refused):
            return outcome
        # Behind what was given up come those that are decided by records.
        last_number = (self._table.transaction_of(unknown.transactional_id) - 1) // 2
        if last_number < unknown.number:
            return ResolvedTransactions(unknown.number - 1, None)
        last = AppliedTransaction(
            unknown.transactional_id,
            last_number,
            unknown.producer_id,
            unknown.producer_epoch + last_number - unknown.number,
        )
        return ResolvedTransactions(last_number, await self._find_rows(last, TransactionWritten(outcome.version, -1)))

    async def _read_staged(self, key: StagingKey, last_sequence: int) -> Sequence[RecordBatch]:
        """As a rule this leader has staged them itself, and a thread would cost more than it does."""
        recalled = self._table.staged.recall(key, last_sequence)
        if recalled is not None:
            return recalled
        return await self._calls.read(functools.partial(self._table.staged.read, key, last_sequence))

    def _recall(self, applied: AppliedTransaction, written: TransactionWritten) -> TransactionWritten:
        """What a repeat is answered, as far as memory goes."""
        number, before = self._written.get(applied.transactional_id, (-1, written))
        return before if number == applied.number else written

    def _remember(self, applied: AppliedTransaction, written: TransactionWritten) -> TransactionWritten:
        self._written.pop(applied.transactional_id, None)
        self._written[applied.transactional_id] = applied.number, written
        if len(self._written) > _ENDED_MAX:
            del self._written[next(iter(self._written))]
        return written

    async def drop(self, key: StagingKey) -> Refused | None:
        """Forget the transaction and delete what is staged of it. Safe to repeat."""
        if self._writer.stopped is not None:
            return self._writer.stopped
        try:
            await self._drop(key)
        except StorageFault as fault:
            return self._refuse(str(fault))
        return None

    def look_at(self, key: StagingKey) -> Idle | None:
        """What is known of a transaction before its coordinator is asked about it; None while a batch of it is under
        way."""
        known = self._open.get(key)
        if known is None:
            return Idle(None, None)
        return Idle(known, known.staged) if known.task is None else None

    async def discard(self, key: StagingKey, idle: Idle) -> bool:
        """Forget and delete what is staged of a transaction that is not open, as its coordinator says. False if batches
        of it have come since `look_at`. Raises `StorageFault`."""
        now = self.look_at(key)
        if self._writer.stopped is not None or now is None:
            return False
        if now.transaction is not idle.transaction or now.staged != idle.staged:
            return False
        await self._drop(key)
        return True

    def _drop_later(self, key: StagingKey) -> None:
        """Of a transaction that is applied. Those of one version come at once, and share a thread."""
        known = self._end(key)
        if (known is None or not known.writing) and self._table.staged.forget(key):
            return
        self._applied.append((key, known))
        if self._dropping is None:
            self._dropping = self._tasks.start(self._drop_applied(), f"{self._name}/staged")

    async def _drop_applied(self) -> None:
        """Ends when nothing is left."""
        try:
            while self._applied:
                applied, self._applied = self._applied, []
                for _, known in applied:
                    await self._wait_until_staged(known)
                await self._calls.housekeep(functools.partial(self._drop_quietly, [key for key, _ in applied]))
        finally:
            self._dropping = None

    def _drop_quietly(self, keys: Sequence[StagingKey]) -> None:
        for key in keys:
            try:
                self._table.staged.drop(key)
            except StorageFault as fault:
                _log.warning("%s: what is left of %s is swept later: %s", self._name, key, fault)

    async def _drop(self, key: StagingKey) -> None:
        await self._wait_until_staged(self._end(key))
        await self._calls.housekeep(functools.partial(self._table.staged.drop, key))

    def _end(self, key: StagingKey) -> _Open | None:
        """From here on batches of this transaction are refused. Returns what was known of it: batches may be on their
        way, and have to be waited for."""
        ended = self._ended.pop(key.producer_id, -1)
        self._ended[key.producer_id] = max(ended, key.producer_epoch)
        if len(self._ended) > _ENDED_MAX:
            del self._ended[next(iter(self._ended))]
        return self._open.pop(key, None)

    async def _wait_until_staged(self, transaction: _Open | None) -> None:
        while transaction is not None and transaction.writing:
            await asyncio.wait(transaction.writing)

    # ------------------------------------------------------------------ what is known

    async def list_staged(self) -> Sequence[tuple[StagingKey, Staged]]:
        """All that lies beside the table, or is in memory alone. Raises `StorageFault`."""
        found = dict(await self._calls.housekeep(self._table.staged.list))
        for key, known in self._open.items():
            if known.is_unsaved and known.staged is not None:
                found[key] = Staged(known.staged.last_sequence, known.staged.size_bytes, self._clock.now_ms())
        return list(found.items())

    async def find_old_proofs(self, *, updated_before_ms: int) -> Mapping[str, int] | Refused:
        """See `TransactionIndex.old_transactions`."""
        find = functools.partial(self._table.old_transactions, updated_before_ms=updated_before_ms)
        return await self._writer.call_between_appends(find)

    async def forget_proofs(self, ended: Mapping[str, int]) -> Refused | None:
        """See `TransactionIndex.forget_transactions`."""
        return await self._writer.call_between_appends(functools.partial(self._table.forget_transactions, ended))

    def stop(self) -> None:
        """The partition has stopped."""
        if not self._stopping.done():
            self._stopping.set_result(None)

    async def join(self) -> None:
        """After `stop`: batches that wait are refused as they come up. Returns when none is being staged. What is in
        memory alone is saved for the next leader, and else forgotten: nothing more is asked of this one."""
        while writing := [task for known in self._open.values() for task in known.writing]:
            await asyncio.wait(writing)
        if self._saving_old is not None:
            await asyncio.wait([self._saving_old])
        stopped = self._writer.stopped  # by another code the table is gone, or cannot be written to
        if stopped is not None and stopped.code is ErrorCode.NOT_LEADER_OR_FOLLOWER:
            await self._save_open()
        for key in [key for key, known in self._open.items() if known.is_unsaved]:
            self._table.staged.release(key)

    async def end_saving(self) -> None:
        """Before the broker stops, when no batch comes any more: what is in memory alone is saved now, and not when it
        is due."""
        if self._saving_old is not None:
            self._saving_old.cancel()
        await self._save_open()

    async def _save_open(self) -> None:
        for key, known in [each for each in self._open.items() if each[1].is_unsaved]:
            refused = await self._save(key, known)
            if refused is not None:
                _log.warning("%s: a transaction that is open has to be aborted: %s", self._name, refused.message)

    async def _find(self, key: StagingKey) -> Staged | None:
        return await self._calls.read(functools.partial(self._table.staged.find, key))

    def _refuse(self, reason: str, code: ErrorCode = ErrorCode.KAFKA_STORAGE_ERROR) -> Refused:
        return Refused(code, f"{self._name}: {reason}")


async def _await(call: AddPartition) -> Added | Refused:
    return await call()


def _state_of(found: Staged | None) -> StagedState:
    return StagedState() if found is None else StagedState(found.last_sequence, found.size_bytes)


def _follow(transaction: _Open, batch: RecordBatch) -> None:
    """The batch is staged now, in a file or in memory alone."""
    before = transaction.staged or StagedState()
    transaction.staged = StagedState(before.last_sequence + batch.record_count, before.size_bytes + batch.size_bytes)
