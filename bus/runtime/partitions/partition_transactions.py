"""How the transactions of one partition end on its leader: votes, commits, what is left of them.

Theory of operation. What is staged of a transaction is known to `OpenTransactions`; a vote that memory cannot give is
counted in the folder of the transaction. A commit hands the rows to the writer, which commits them as one version, in
turn with appends; that version proves the commit. Then what is staged is deleted.
"""

from __future__ import annotations

import asyncio
import functools
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from bus.errors import ErrorCode, Refused, StorageFault
from bus.model import RecordBatch, TopicPartition
from bus.partition_log.staging import NOTHING_STAGED, Ending, number_of
from bus.ports import AppliedTransaction, CommitOutcome, Committed, PartitionTable, Staged, StagingKey
from bus.runtime.blocking import BlockingCalls
from bus.runtime.partitions.open_transactions import Idle, OpenTransaction, OpenTransactions
from bus.runtime.partitions.partition_queue import ApplyResult, TransactionWritten
from bus.runtime.partitions.partition_writer import PartitionWriter, ending_of
from bus.runtime.tasks import TaskScope, answered

_log = logging.getLogger(__name__)

# The outcome of the last transaction is remembered for this many ids, to answer repeated calls.
_WRITTEN_MAX = 1_000


VoteResult = int | Refused


@dataclass(frozen=True, slots=True)
class ResolvedTransactions:
    """The last transaction of an id that is in the log. `rows`: None if it is before the one that was asked for."""

    last_number: int
    rows: TransactionWritten | None


@dataclass(frozen=True, slots=True)
class Decided:
    """A transaction in one phase. `rows`: where all up to `last_sequence` is in the log; None: only that much was
    staged, so nothing of it is in the log, or ever will be. `taken_number`: see `find_taken_number`."""

    last_sequence: int
    rows: TransactionWritten | None
    taken_number: int = -1


@dataclass(frozen=True, slots=True, eq=False)
class _ToDrop:
    """A transaction that has ended. `dropped` is done when its staged batches are deleted, and has the fault that
    prevented it. `keeps_files`: the partition has stopped, so that a later leader sweeps them."""

    key: StagingKey
    transaction: OpenTransaction | None
    keeps_files: bool
    dropped: asyncio.Future[StorageFault | None]


class PartitionTransactions:
    """`open_transactions` knows the transactions that have not ended."""

    def __init__(
        self,
        name: TopicPartition,
        table: PartitionTable,
        writer: PartitionWriter,
        open_transactions: OpenTransactions,
        *,
        calls: BlockingCalls,
        tasks: TaskScope,
    ) -> None:
        self._name = name
        self._table = table
        self._writer = writer
        self._calls = calls
        self._tasks = tasks
        self._open = open_transactions
        self._written: dict[str, tuple[int, TransactionWritten]] = {}  # transactional id -> (number, result)
        self._to_drop: list[_ToDrop] = []
        self._dropping: asyncio.Task[None] | None = None

    # ------------------------------------------------------------------ the end of a transaction

    def find_taken_number(self, applied: AppliedTransaction) -> int:
        """The number of a mark that an earlier life of the id has left, at or above that of the transaction: it is not
        decided, and cannot be committed here. -1 if there is none."""
        mark = self._table.transactions.version_of(applied.transactional_id)
        if mark < applied.aborted_version:
            return -1
        if ending_of(self._table, applied) is Ending.OVERTAKEN:  # else the question comes late
            _log.error("%s: %s cannot be committed: %s", self._name, applied, _overtaken_by(mark))
        return number_of(mark)

    async def vote(self, key: StagingKey, last_sequence: int) -> VoteResult:
        """The last sequence that is staged, all before it included; -1: nothing is. `last_sequence`: the one that the
        producer was answered for, -1 if that is not known. The producer has called the end: what is being staged is
        waited for, and no more is staged afterwards. Refused if less is there than this leader has staged, and the
        producer cannot tell."""
        if self._writer.stopped is not None:
            return self._writer.stopped
        known = await self._open.stop_staging(key)
        if self._writer.stopped is not None:
            return self._writer.stopped
        refused = await self._open.save(key, known) if known is not None and known.is_unsaved else None
        return refused or await self._count(key, last_sequence, known)

    async def _count(self, key: StagingKey, last_sequence: int, known: OpenTransaction | None) -> VoteResult:
        if known is not None and known.is_counted(last_sequence):
            return last_sequence
        try:
            found = await self._open.find_in_files(key)
        except StorageFault as fault:
            return self._refuse(str(fault))
        last = NOTHING_STAGED if found is None else found.last_sequence
        if known is not None and known.is_unsaved and known.staged is not None:
            last = max(last, known.staged.last_sequence)
        if last_sequence < 0 and known is not None and known.staged is not None and known.staged.last_sequence > last:
            # The producer does not name what was acknowledged, so only this leader knows that some of it is lost.
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
        if ending_of(self._table, applied) is Ending.OPEN:
            counted = await self._count(key, last_sequence, await self._open.stop_staging(key))
            if isinstance(counted, Refused):
                return counted
            staged, outcome = await self._write_or_give_up(key, applied, last_sequence, counted)
            if isinstance(outcome, Refused) and outcome.code is not ErrorCode.TRANSACTION_COORDINATOR_FENCED:
                return outcome
        # The mark tells what has become of it, by this call or another one.
        ending, mark = ending_of(self._table, applied), self._table.transactions.version_of(applied.transactional_id)
        if ending is Ending.APPLIED:
            here = TransactionWritten(self._writer.state.version, -1)
            written = outcome if isinstance(outcome, TransactionWritten) else here
            return Decided(last_sequence, await self._take_written(key, applied, written))
        if ending is Ending.GIVEN_UP:
            return Decided(min(staged, last_sequence - 1), None)
        if ending is Ending.OVERTAKEN:
            _log.error("%s: %s cannot be committed: %s", self._name, applied, _overtaken_by(mark))
            return Decided(NOTHING_STAGED, None, number_of(mark))
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
        if self._table.transactions.staged.recall(key, last_sequence) is not None:
            return last_sequence
        try:
            found = await self._open.find_in_files(key)
        except StorageFault:
            return last_sequence
        return NOTHING_STAGED if found is None else found.last_sequence

    async def _give_up(self, unknown: AppliedTransaction) -> Committed | Refused:
        """Refuse the transaction forever by a version without rows, unless the log has the transaction or a later
        one."""

        def give_up(*, leader_epoch: int, now_ms: int) -> Callable[[], CommitOutcome] | Committed:
            if ending_of(self._table, unknown) is not Ending.OPEN:
                return Committed(self._writer.state.version, self._writer.state.high_watermark)
            return functools.partial(self._table.transactions.abort, unknown, leader_epoch=leader_epoch, now_ms=now_ms)

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
        """Return the answer. What is staged of the transaction is deleted afterwards."""
        self._start_end(key).add_done_callback(functools.partial(self._warn, key))
        written = self._recall(applied, written)
        if written.base_offset < 0:
            written = await self._find_rows(applied, written)
        return self._remember(applied, written)

    async def _find_rows(self, applied: AppliedTransaction, written: TransactionWritten) -> TransactionWritten:
        """Return the answer of the leader that applied the transaction, which names a cut of all partitions. Returns
        `written` if no row remains, or if the rows cannot be looked for now."""
        try:
            found = await self._calls.read(functools.partial(self._table.transactions.find_rows, applied))
        except StorageFault as fault:
            _log.warning("%s: the rows of %s cannot be looked for: %s", self._name, applied, fault)
            return written
        return written if found is None else TransactionWritten(found.version, found.base_offset)

    async def _write(
        self, key: StagingKey, applied: AppliedTransaction, last_sequence: int, *, is_one_phase: bool
    ) -> ApplyResult:
        batches: Sequence[RecordBatch] = ()
        if ending_of(self._table, applied) is Ending.OPEN:
            try:
                batches = await self._read_staged(key, last_sequence)
            except StorageFault as fault:
                if ending_of(self._table, applied) is Ending.OPEN:  # else the call that it repeats has ended meanwhile
                    _log.error("%s: %s cannot be applied: %s", self._name, applied, fault)
                    return self._refuse(str(fault))
        return await self._writer.apply_transaction(applied, batches, is_one_phase=is_one_phase)

    async def resolve(self, unknown: AppliedTransaction) -> ResolvedTransactions | Refused:
        """The last transaction of the id whose rows are in the log, if that is `unknown` or a later one. Otherwise
        `unknown` is given up by a version without rows, and an application of it is refused from then on. Safe to
        repeat, also late: an answer stays true. The epochs of the rows rise by one with each number. If the log has no
        rows of the producer with such an epoch, the mark is of an earlier life of the id, and does not count."""
        outcome = await self._give_up(unknown)
        if isinstance(outcome, Refused):
            return outcome
        # Behind what was given up come those that are decided by records.
        last_number = (self._table.transactions.version_of(unknown.transactional_id) - 1) // 2
        if last_number < unknown.number or self._table.transactions.has_written(unknown) is False:
            return ResolvedTransactions(unknown.number - 1, None)
        last = AppliedTransaction(
            unknown.transactional_id,
            last_number,
            unknown.producer_id,
            unknown.producer_epoch + last_number - unknown.number,
        )
        return ResolvedTransactions(last_number, await self._find_rows(last, TransactionWritten(outcome.version, -1)))

    async def _read_staged(self, key: StagingKey, last_sequence: int) -> Sequence[RecordBatch]:
        """Read the staged batches. This leader has usually staged them itself, and reading them from memory costs less
        than a thread."""
        recalled = self._table.transactions.staged.recall(key, last_sequence)
        if recalled is not None:
            return recalled
        return await self._calls.read(functools.partial(self._table.transactions.staged.read, key, last_sequence))

    def _recall(self, applied: AppliedTransaction, written: TransactionWritten) -> TransactionWritten:
        """Return the answer to a repeated call, as far as memory has it."""
        number, before = self._written.get(applied.transactional_id, (-1, written))
        return before if number == applied.number else written

    def _remember(self, applied: AppliedTransaction, written: TransactionWritten) -> TransactionWritten:
        self._written.pop(applied.transactional_id, None)
        self._written[applied.transactional_id] = applied.number, written
        if len(self._written) > _WRITTEN_MAX:
            del self._written[next(iter(self._written))]
        return written

    async def drop(self, key: StagingKey) -> Refused | None:
        """Forget the transaction and delete its staged batches. Safe to repeat. Continues if the caller is
        cancelled."""
        if self._writer.stopped is not None:
            return self._writer.stopped
        fault = await self._end(key)
        return None if fault is None else self._refuse(str(fault))

    async def discard(self, key: StagingKey, idle: Idle) -> bool:
        """Forget and delete what is staged of a transaction that is not open, as its coordinator says. False if batches
        of it have come since `OpenTransactions.look_at`. Raises `StorageFault`."""
        now = self._open.look_at(key)
        if self._writer.stopped is not None or now is None:
            return False
        if now.transaction is not idle.transaction or now.staged != idle.staged:
            return False
        fault = await self._end(key)
        if fault is not None:
            raise fault
        return True

    async def _end(self, key: StagingKey) -> StorageFault | None:
        ended = self._start_end(key)
        await asyncio.wait([ended])  # a caller that is cancelled does not cancel it
        return ended.result()

    def _start_end(self, key: StagingKey) -> asyncio.Future[StorageFault | None]:
        """Refuse later batches of the transaction. Done when none of it is staged; files that remain when the partition
        has stopped are swept by a later leader."""
        transaction, has_stopped = self._open.end(key), self._writer.stopped is not None
        is_written = transaction is not None and bool(transaction.writing)
        if not is_written and (self._table.transactions.staged.forget(key) or has_stopped):
            return answered(None)
        ended = _ToDrop(key, transaction, has_stopped, asyncio.get_running_loop().create_future())
        self._to_drop.append(ended)
        if self._dropping is None:
            self._dropping = self._tasks.start(self._drop_ended(), f"{self._name}/staged")
        return ended.dropped

    async def _drop_ended(self) -> None:
        """Those of one version come at once, and share a thread. Ends when nothing is left."""
        try:
            while self._to_drop:
                ended, self._to_drop = self._to_drop, []
                try:
                    for each in ended:
                        await self._open.wait_until_written(each.transaction)
                    faults = await self._calls.housekeep(functools.partial(self._drop_all, ended))
                    for each, fault in zip(ended, faults, strict=True):
                        each.dropped.set_result(fault)
                finally:
                    for each in ended:
                        if not each.dropped.done():
                            each.dropped.set_result(StorageFault(f"the deletion of {each.key} was interrupted"))
        finally:
            self._dropping = self._tasks.start(self._drop_ended(), f"{self._name}/staged") if self._to_drop else None

    def _drop_all(self, ended: Sequence[_ToDrop]) -> list[StorageFault | None]:
        return [self._drop(each.key, keeps_files=each.keeps_files) for each in ended]

    def _drop(self, key: StagingKey, *, keeps_files: bool) -> StorageFault | None:
        try:
            if keeps_files:
                self._table.transactions.staged.release(key)
            else:
                self._table.transactions.staged.drop(key)
            return None
        except StorageFault as fault:
            return fault
        except Exception as error:
            _log.exception("%s: %s cannot be deleted", self._name, key)
            return StorageFault(f"{key} cannot be deleted: {error!r}")

    def _warn(self, key: StagingKey, ended: asyncio.Future[StorageFault | None]) -> None:
        fault = ended.result()
        if fault is not None:
            _log.warning("%s: what is left of %s is swept later: %s", self._name, key, fault)

    async def join(self) -> None:
        """After the partition has stopped: returns when nothing that is staged is being deleted."""
        while self._dropping is not None:
            await asyncio.wait([self._dropping])

    # ------------------------------------------------------------------ what is known

    async def list_staged(self) -> Sequence[tuple[StagingKey, Staged]]:
        """List everything that lies beside the table, or is in memory alone. Raises `StorageFault`."""
        found = await self._calls.housekeep(self._table.transactions.staged.list)
        return list({**dict(found), **self._open.list_unsaved()}.items())

    async def find_old_proofs(self, *, updated_before_ms: int) -> Mapping[str, int] | Refused:
        """See `TableTransactions.find_old`."""
        find = functools.partial(self._table.transactions.find_old, updated_before_ms=updated_before_ms)
        return await self._writer.call_between_appends(find)

    async def forget_proofs(self, ended: Mapping[str, int]) -> Refused | None:
        """See `TableTransactions.forget`."""
        return await self._writer.call_between_appends(functools.partial(self._table.transactions.forget, ended))

    def _refuse(self, reason: str, code: ErrorCode = ErrorCode.KAFKA_STORAGE_ERROR) -> Refused:
        return Refused(code, f"{self._name}: {reason}")


def _overtaken_by(mark: int) -> str:
    return f"the mark is {mark}, of transaction {number_of(mark)} of an earlier life of the id; the next is above it"
