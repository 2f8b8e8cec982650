"""The open transactions of one partition on its leader: their batches, which are staged beside the log.

Theory of operation. The batches of a transaction are staged one after another, of several transactions beside each
other: each is a file that is durable before its answer, or in memory alone (see below). With its first batch here the
coordinator is asked to add the partition, and only then is the batch staged: what the coordinator refuses must not lie
there when the transaction with that epoch begins. Memory knows what is staged; what it does not know, the folder of the
transaction tells, so a leader that takes over goes on.

Batches are kept in memory alone, and answered, while their commit is likely to be one version and nothing else: the
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
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

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
from bus.ports import Clock, PartitionTable, Staged, StagingKey
from bus.runtime.blocking import BlockingCalls
from bus.runtime.partitions.partition_queue import Appended, AppendResult
from bus.runtime.partitions.partition_writer import PartitionWriter
from bus.runtime.tasks import TaskScope
from bus.transactions.requests import Added

_log = logging.getLogger(__name__)

# The number of ended transactions whose producers memory remembers, to refuse late batches without asking the
# coordinator.
_ENDED_MAX = 1_000

# A transaction that is no older may have its batches in memory alone.
_YOUNG_MS = 2_000
_SAVE_RETRY_MS = 1_000


class TransactionMembership(Protocol):
    """Adds this partition to one transaction, if its coordinator agrees."""

    def add_at_once(self) -> Added | None:
        """None if the coordinator cannot say so without waiting, or refuses: await `add`."""
        ...

    async def add(self) -> Added | Refused: ...


@dataclass(slots=True)
class _Waiting:
    batch: RecordBatch
    transactional_id: str
    membership: TransactionMembership
    may_be_in_memory: bool
    answer: asyncio.Future[AppendResult]
    on_settled: Callable[[AppendResult], None] | None

    def settle(self, result: AppendResult) -> None:
        if not self.answer.done():
            self.answer.set_result(result)
        if self.on_settled is not None:
            self.on_settled(result)


@dataclass(slots=True)
class OpenTransaction:
    """A transaction with batches here. `staged` None: it is not known what is staged. `transactional_id`: whose it is,
    and the coordinator has said that this partition is in it, so that it ends here too; None: it has not yet.
    `is_unsaved`: all of its batches are in memory, and some are nowhere else; while `saving` makes those durable, no
    other joins them."""

    begin_ms: float  # monotonic clock
    save_at_ms: float  # when its next save is due, by the same
    staged: StagedState | None = None
    newest_ms: int = 0  # when the last batch was staged, by the wall clock
    transactional_id: str | None = None
    may_be_one_phase: bool = False
    is_unsaved: bool = False
    is_voted_on: bool = False
    waiting: deque[_Waiting] = field(default_factory=deque)
    task: asyncio.Task[None] | None = None
    adding: asyncio.Task[Added | Refused] | None = None
    saving: asyncio.Task[Refused | None] | None = None
    save_refusal: str = ""  # why the last save has failed

    @property
    def is_empty(self) -> bool:
        """True if memory knows of no staged batch here."""
        return self.staged is None or self.staged.last_sequence == NOTHING_STAGED

    def is_counted(self, last_sequence: int) -> bool:
        """True if memory proves that everything up to `last_sequence` is staged; otherwise the files have to be listed.
        -1: the producer named no sequence."""
        if self.staged is None or last_sequence < 0:
            return False
        if self.is_unsaved:
            return self.staged.last_sequence >= last_sequence
        return self.staged.last_sequence == last_sequence

    @property
    def writing(self) -> Sequence[asyncio.Task[Any]]:
        """The tasks that may be writing files of this transaction now."""
        return [each for each in (self.task, self.saving) if each is not None]


@dataclass(frozen=True, slots=True, eq=False)
class Idle:
    """A transaction, known here or not, of which no batch is under way."""

    transaction: OpenTransaction | None
    staged: StagedState | None


class OpenTransactions:
    """The batches staged in this partition for transactions that have not ended. `waiting_bytes_max` bounds the batches
    that wait for the coordinator or the disk; more get THROTTLING_QUOTA_EXCEEDED."""

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
        self._known: dict[StagingKey, OpenTransaction] = {}
        self._producers = Counter[int]()  # the number of its known transactions by producer id
        self._ended_epochs: dict[int, int] = {}  # producer id -> highest epoch that has ended here, the latest last
        self._waiting_bytes = 0
        self._stopping: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._saving_old: asyncio.Task[None] | None = None

    # ------------------------------------------------------------------ batches

    def stage(
        self,
        batch: RecordBatch,
        key: StagingKey,
        transactional_id: str,
        membership: TransactionMembership,
        *,
        may_be_in_memory: bool = False,
        current_leader_epoch: int | None = None,
        on_settled: Callable[[AppendResult], None] | None = None,
    ) -> asyncio.Future[AppendResult]:
        """Behind the batches of the same transaction that came before. When it is answered, the batch is durable, or
        may be in memory alone, and the partition is in the transaction, which is the open one of `transactional_id`;
        the batch has no offsets yet. `may_be_in_memory`: the batch need not be durable, for the producer will name the
        last sequence that it was answered for.

        The future never fails. Refused: INVALID_PRODUCER_EPOCH (the transaction has ended), CONCURRENT_TRANSACTIONS (it
        is being ended), OUT_OF_ORDER_SEQUENCE_NUMBER, TRANSACTION_ABORTABLE (it has become too large),
        THROTTLING_QUOTA_EXCEEDED, KAFKA_STORAGE_ERROR, what `append` refuses of a batch, and what the coordinator
        answers."""
        answer = asyncio.get_running_loop().create_future()
        waiting = _Waiting(batch, transactional_id, membership, may_be_in_memory, answer, on_settled)
        refusal = (
            self._writer.stopped
            or check_leader_epoch(self._writer.state, current_leader_epoch)
            or self._refuse_ended(key)
            or self._refuse_for_room(batch.size_bytes)
        )
        if refusal is not None:
            waiting.settle(refusal)
            return waiting.answer
        transaction = self._known.get(key) or self._begin()
        is_staged = self._stage_at_once(key, transaction, waiting)
        self._know(key, transaction)
        if is_staged:
            return waiting.answer
        transaction.waiting.append(waiting)
        self._waiting_bytes += batch.size_bytes
        if transaction.task is None:
            transaction.task = self._tasks.start(self._stage_all(key, transaction), f"{self._name}/stage")
        return waiting.answer

    def _begin(self) -> OpenTransaction:
        now_ms = self._clock.monotonic_ms()
        return OpenTransaction(now_ms, now_ms + _YOUNG_MS)

    def _know(self, key: StagingKey, transaction: OpenTransaction) -> None:
        if key not in self._known:
            self._known[key] = transaction
            self._producers[key.producer_id] += 1

    def _forget(self, key: StagingKey) -> OpenTransaction | None:
        transaction = self._known.pop(key, None)
        if transaction is not None:
            self._producers[key.producer_id] -= 1
            if not self._producers[key.producer_id]:
                del self._producers[key.producer_id]
        return transaction

    def check_outside(self, stamp: ProducerStamp) -> Refused | None:
        """Check a batch that is in no transaction. INVALID_TXN_STATE, as in Kafka, if its producer id belongs to a
        transaction here, open or recently ended: its rows could not be told from those of the transaction."""
        producer_id = stamp.producer_id
        if producer_id not in self._ended_epochs and producer_id not in self._producers:
            return None
        return Refused(
            ErrorCode.INVALID_TXN_STATE,
            f"{self._name}: expected a batch in a transaction, since producer {producer_id} has a transactional id, "
            "found one in none",
        )

    def _stage_at_once(self, key: StagingKey, transaction: OpenTransaction, waiting: _Waiting) -> bool:
        """Stage the batch in memory, without waiting. False: it is not staged, and has to wait for the coordinator or
        the disk; the partition may have been added."""
        if transaction.task is not None or not isinstance(self._decide(transaction, waiting.batch), StageBatch):
            return False
        if transaction.transactional_id is None:
            added = waiting.membership.add_at_once() if waiting.may_be_in_memory else None
            if added is None:
                return False
            transaction.transactional_id = waiting.transactional_id
            transaction.may_be_one_phase = added.may_be_one_phase
        if transaction.transactional_id != waiting.transactional_id or not self._hold(key, transaction, waiting):
            return False
        waiting.settle(self._staged())
        return True

    def _hold(self, key: StagingKey, transaction: OpenTransaction, waiting: _Waiting) -> bool:
        """Keep the batch, which is the next one, in memory alone, if it may be there and there is room."""
        if not (transaction.is_empty or transaction.is_unsaved) or transaction.saving is not None:
            return False
        if transaction.is_voted_on or not self._is_young(transaction):
            return False
        if not (waiting.may_be_in_memory and transaction.may_be_one_phase):
            return False
        if self._writer.stopped is not None or not self._table.transactions.staged.hold(key, waiting.batch):
            return False
        self._follow(transaction, waiting.batch)
        transaction.is_unsaved = True
        if self._saving_old is None:
            self._saving_old = self._tasks.start(self._save_old(), f"{self._name}/save")
        return True

    def _is_young(self, transaction: OpenTransaction) -> bool:
        return self._clock.monotonic_ms() - transaction.begin_ms < _YOUNG_MS

    async def _save_old(self) -> None:
        """Transactions that take longer outlive this leader. Ends when nothing is in memory alone."""
        try:
            while unsaved := [(key, each) for key, each in self._known.items() if each.is_unsaved]:
                due_s = (min(each.save_at_ms for _, each in unsaved) - self._clock.monotonic_ms()) / 1000
                await asyncio.wait([self._stopping], timeout=max(due_s, 0.001))
                if self._stopping.done():
                    return
                for key, each in unsaved:
                    if self._known.get(key) is each and each.is_unsaved:
                        await self._save_if_due(key, each)
        finally:
            if self._saving_old is asyncio.current_task():
                self._saving_old = None

    async def _save_if_due(self, key: StagingKey, transaction: OpenTransaction) -> None:
        if self._clock.monotonic_ms() < transaction.save_at_ms:
            return
        refused = await self.save(key, transaction)
        if refused is None:
            return
        transaction.save_at_ms = self._clock.monotonic_ms() + _SAVE_RETRY_MS
        if refused.message != transaction.save_refusal:
            _log.warning("%s; trying again until its transaction ends", refused.message)
        transaction.save_refusal = refused.message

    async def save(self, key: StagingKey, transaction: OpenTransaction) -> Refused | None:
        """Make durable what is in memory alone: None once it is, also for callers that come while it is written.
        Continues if the caller is cancelled."""
        if transaction.saving is None:
            transaction.saving = self._tasks.start(self._save_once(key, transaction), f"{self._name}/save")
        saving = transaction.saving
        await asyncio.wait([saving])
        return saving.result()

    async def _save_once(self, key: StagingKey, transaction: OpenTransaction) -> Refused | None:
        try:
            refused = await self._calls.commit(functools.partial(self._table.transactions.staged.save, key))
            transaction.is_unsaved = refused is not None
            return refused
        except StorageFault as fault:
            return self._refuse(f"a transaction cannot be staged: {fault}")
        except Exception as error:
            _log.exception("%s: a transaction cannot be staged", self._name)
            return self._refuse(f"a transaction cannot be staged: {error!r}", ErrorCode.UNKNOWN_SERVER_ERROR)
        finally:
            transaction.saving = None

    def _refuse_ended(self, key: StagingKey) -> Refused | None:
        ended = self._ended_epochs.get(key.producer_id, -1)
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

    async def _stage_all(self, key: StagingKey, transaction: OpenTransaction) -> None:
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
            elif (transaction.is_empty or transaction.transactional_id is None) and self._known.get(key) is transaction:
                self._forget(key)  # nothing here tells when it ends, and the next batch asks again

    async def _stage(self, key: StagingKey, transaction: OpenTransaction, waiting: _Waiting) -> Refused | None:
        decision = self._decide(transaction, waiting.batch)
        if isinstance(decision, LookForStaged):
            transaction.staged = _state_of(await self.find_in_files(key))
            decision = self._decide(transaction, waiting.batch)
        refusal = self._writer.stopped or self._refuse_ended(key)
        if refusal is not None:
            return refusal
        if isinstance(decision, Refused):
            return Refused(decision.code, f"{self._name}: {decision.message}")
        refusal = await self._add(key, transaction, waiting) or self._refuse_ended(key)
        if refusal is None and isinstance(decision, StageBatch) and not self._hold(key, transaction, waiting):
            refusal = self._refuse_voted_on(transaction, key)
            if refusal is None and transaction.is_unsaved:
                refusal = await self.save(key, transaction)
            refusal = refusal or await self._calls.commit(
                functools.partial(self._table.transactions.staged.stage, key, waiting.batch)
            )
            if refusal is None:
                self._follow(transaction, waiting.batch)
        return refusal

    def _follow(self, transaction: OpenTransaction, batch: RecordBatch) -> None:
        """The batch is staged now, in a file or in memory alone."""
        before = transaction.staged or StagedState()
        transaction.staged = StagedState(
            before.last_sequence + batch.record_count, before.size_bytes + batch.size_bytes
        )
        transaction.newest_ms = self._clock.now_ms()

    def _refuse_voted_on(self, transaction: OpenTransaction, key: StagingKey) -> Refused | None:
        """Refuse a batch after the vote: it would be acknowledged and not be committed, because the vote counted the
        batches before it."""
        if not transaction.is_voted_on:
            return None
        return Refused(
            ErrorCode.CONCURRENT_TRANSACTIONS,
            f"{self._name}: the transaction of producer {key.producer_id}, epoch {key.producer_epoch}, is being ended",
        )

    async def _add(self, key: StagingKey, transaction: OpenTransaction, waiting: _Waiting) -> Refused | None:
        """Ask the coordinator, unless it has said so of this id. A partition that stops and a transaction that ends do
        not wait for it."""
        if transaction.transactional_id == waiting.transactional_id:
            return None
        transaction.adding = self._tasks.start(waiting.membership.add(), f"{self._name}/add")
        try:
            added = await self._wait_until_added(key, transaction.adding)
        finally:
            transaction.adding = None
        if not isinstance(added, Added):
            return added
        transaction.transactional_id = waiting.transactional_id
        transaction.may_be_one_phase = added.may_be_one_phase
        return None

    async def _wait_until_added(self, key: StagingKey, adding: asyncio.Task[Added | Refused]) -> Added | Refused:
        either: list[asyncio.Future[Any]] = [adding, self._stopping]
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        if adding.done() and not adding.cancelled():
            return adding.result()
        adding.cancel()
        refusal = self._writer.stopped or self._refuse_ended(key)
        return refusal or self._refuse("the coordinator's answer was interrupted", ErrorCode.UNKNOWN_SERVER_ERROR)

    def _decide(
        self, transaction: OpenTransaction, batch: RecordBatch
    ) -> StageBatch | AlreadyStaged | LookForStaged | Refused:
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

    # ------------------------------------------------------------------ what is known

    async def find_in_files(self, key: StagingKey) -> Staged | None:
        """Return what is staged of the transaction in files, without batches in memory alone. Raises `StorageFault`."""
        return await self._calls.read(functools.partial(self._table.transactions.staged.find, key))

    def list_unsaved(self) -> Mapping[StagingKey, Staged]:
        """Those whose batches are in memory alone."""
        return {
            key: Staged(known.staged.last_sequence, known.staged.size_bytes, known.newest_ms)
            for key, known in self._known.items()
            if known.is_unsaved and known.staged is not None
        }

    def look_at(self, key: StagingKey) -> Idle | None:
        """Return the knowledge about a transaction before its coordinator is asked about it; None while one of its
        batches is being written."""
        known = self._known.get(key)
        if known is None:
            return Idle(None, None)
        return Idle(known, known.staged) if known.task is None else None

    # ------------------------------------------------------------------ the end of a transaction

    async def stop_staging(self, key: StagingKey) -> OpenTransaction | None:
        """Stage nothing more of the transaction, and return what is known of it once nothing is being staged or saved.
        Later batches get CONCURRENT_TRANSACTIONS; of a transaction that is not known here the coordinator refuses
        them."""
        known = self._known.get(key)
        if known is not None:
            known.is_voted_on = True
            await self.wait_until_written(known)
        return known

    def end(self, key: StagingKey) -> OpenTransaction | None:
        """Refuse later batches of this transaction. Returns the knowledge about it: batches may be on their way, and
        have to be waited for."""
        ended = self._ended_epochs.pop(key.producer_id, -1)
        self._ended_epochs[key.producer_id] = max(ended, key.producer_epoch)
        if len(self._ended_epochs) > _ENDED_MAX:
            del self._ended_epochs[next(iter(self._ended_epochs))]
        transaction = self._forget(key)
        if transaction is not None and transaction.adding is not None:
            transaction.adding.cancel()
        return transaction

    async def wait_until_written(self, transaction: OpenTransaction | None) -> None:
        """Returns when no file of the transaction is being written."""
        while transaction is not None and transaction.writing:
            await asyncio.wait(transaction.writing)

    # ------------------------------------------------------------------ the end of the partition

    def stop(self) -> None:
        """The partition has stopped."""
        if not self._stopping.done():
            self._stopping.set_result(None)

    async def join(self) -> None:
        """After `stop`: batches that wait are refused as they come up. Returns when no file of an open transaction is
        being written. What is in memory alone is saved for the next leader, or forgotten if the table is gone or
        cannot be written to: nothing more is asked of this one."""
        while writing := [task for known in self._known.values() for task in known.writing]:
            await asyncio.wait(writing)
        if self._saving_old is not None:
            await asyncio.wait([self._saving_old])
        stopped = self._writer.stopped  # with any other code the table is gone, or cannot be written to
        if stopped is not None and stopped.code is ErrorCode.NOT_LEADER_OR_FOLLOWER:
            await self._save_open()
        for key in [key for key, known in self._known.items() if known.is_unsaved]:
            self._table.transactions.staged.release(key)

    async def save_all(self) -> None:
        """Save what is in memory alone now, and not when it is due. Before the broker stops, when no batch comes any
        more."""
        if self._saving_old is not None:
            self._saving_old.cancel()
            self._saving_old = None
        await self._save_open()

    async def _save_open(self) -> None:
        for key, known in [each for each in self._known.items() if each[1].is_unsaved]:
            is_open = self._known.get(key) is known and known.is_unsaved
            refused = await self.save(key, known) if is_open else None
            if refused is not None:
                _log.warning("%s: a transaction that is open has to be aborted: %s", self._name, refused.message)

    def _refuse(self, reason: str, code: ErrorCode = ErrorCode.KAFKA_STORAGE_ERROR) -> Refused:
        return Refused(code, f"{self._name}: {reason}")


def _state_of(found: Staged | None) -> StagedState:
    return StagedState() if found is None else StagedState(found.last_sequence, found.size_bytes)
