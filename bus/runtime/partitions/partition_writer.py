"""The writer of one partition on its leader: the only place where its log, and what memory knows of it, changes.

Theory of operation. Batches wait in a queue. The writer, a task that lives only while there are any, takes all that
have gathered, gives them offsets, commits them as one Delta version in a thread, and only then answers and wakes
readers. All of that is one slot (`LeaderLog.slot`), so one commit is in flight at a time, and an answer never precedes
its commit. A batch about which only the table can decide (a repeat that memory forgot) ends the commit before it, and
goes on in its place. The rows of committed transactions wait in the same queue; those that wait behind each other are
a version by themselves, in which each transaction is whole, with a proof of its own. What adds no record
(`commit_between_appends`) has slots of its own, before the batches that wait. If the table is not where memory thinks
it is (a conflict, an unknown outcome, a fault), memory is dropped and rebuilt from the log. What cannot be rebuilt
without losing or inventing a record stops this partition, and no other.

With acks=1 an answer precedes its commit, and does not wait for the pace of commits either: while that holds a commit
back, what has come is given its offsets, and what comes then joins it. If the commit fails, an idempotent producer's
sequences go back with the offsets: its next batch is OUT_OF_ORDER_SEQUENCE_NUMBER, so it learns of the loss that acks=1
allows, where another producer does not. It cannot send those records again, so it has to take a new epoch.
"""

from __future__ import annotations

import asyncio
import functools
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from bus.errors import ErrorCode, Refused, StorageFault, count_of, show_way_out
from bus.model import LogBatch, RecordBatch, TopicPartition
from bus.partition_log.appends import ACKS_LEADER, ACKS_NONE, Pacing, decide_delay_ms, refill, spend, start_pacing
from bus.partition_log.producers import ProducerState
from bus.partition_log.staging import Ending, has_older_records_only, judge, place_transaction, progress_of
from bus.partition_log.state import (
    CommitFailed,
    CommitSucceeded,
    LogReloaded,
    LogStartAdvanced,
    PartitionState,
    apply,
)
from bus.ports import AppliedTransaction, Clock, CommitOutcome, Committed, PartitionTable, ProducerProgress
from bus.runtime.blocking import BlockingCalls
from bus.runtime.partitions.leader_log import CONFLICTS_MAX, Change, ChangeOutcome, LeaderLog
from bus.runtime.partitions.partition_queue import (
    Appended,
    AppendResult,
    ApplyResult,
    PartitionQueue,
    ResumeResult,
    TransactionWritten,
    WaitingBatch,
    WaitingResume,
    WaitingTransaction,
    refuse,
)
from bus.runtime.partitions.partition_settings import PartitionSettings
from bus.runtime.partitions.placing import PartitionProducers, PlacedBatch, Placement, Placing
from bus.runtime.partitions.tail_cache import Tail, TailCache
from bus.runtime.tasks import TaskScope, Wakeable, time_limit

_log = logging.getLogger(__name__)
T = TypeVar("T")


@dataclass(slots=True)
class CommitTimes:
    """The times of the commit that is due, by a monotonic clock, for its DEBUG line in the log: `due_ms <= turn_ms <=
    write_ms`. All its batches were queued before its turn."""

    due_ms: float = 0.0  # the pace of commits lets it begin
    turn_ms: float = 0.0  # it is among the partitions that commit now
    write_ms: float = 0.0  # its records have their offsets, and the table is asked to append them

    def describe(self, waiting: Sequence[WaitingBatch | WaitingTransaction], done_ms: float) -> str:
        """Describe a commit of `waiting`, from its first entry on; empty if that was queued while DEBUG was off."""
        if not waiting or waiting[0].queued_ms is None:
            return ""
        queued_ms = waiting[0].queued_ms
        total, turn = done_ms - queued_ms, self.turn_ms - max(self.due_ms, queued_ms)
        write = done_ms - self.write_ms
        return f" in {total:.1f} ms: {total - turn - write:.1f} queued, {turn:.1f} for a turn, {write:.1f} writing"


CHANGES_MAX = 1000


class PartitionWriter:
    def __init__(
        self,
        name: TopicPartition,
        table: PartitionTable,
        *,
        leader_epoch: int,
        settings: PartitionSettings,
        queue_bytes_max: int,
        clock: Clock,
        calls: BlockingCalls,
        cache: TailCache,
        tasks: TaskScope,
    ) -> None:
        self._name = name
        self._table = table
        self._clock = clock
        self._calls = calls
        self._cache = cache
        self._tasks = tasks
        log = table.state
        self._state = PartitionState(
            log.log_start, log.high_watermark, log.high_watermark, leader_epoch=leader_epoch, version=log.version
        )
        self.tail = Tail()
        self._producers = PartitionProducers(table.producers, calls)
        self._queue = PartitionQueue(str(name), queue_bytes_max)
        self._task: asyncio.Task[None] | None = None
        self._wake = asyncio.Event()
        self._readers: dict[Wakeable, None] = {}  # woken in the order in which they came
        self._on_committed: Callable[[], None] = lambda: None
        self._on_stopped: Callable[[Refused], None] = lambda _: None
        self._changes_waiting = 0
        self._times = CommitTimes()
        self._early: Placement | None = None  # the batches that have their offsets while the pace delays their commit
        self._leader = LeaderLog(
            name,
            table,
            title=str(name),
            way_out=show_way_out(name.topic, name.partition),
            leader_epoch=leader_epoch,
            fenced=ErrorCode.NOT_LEADER_OR_FOLLOWER,
            reload_in=calls.commit,
            housekeep_in=calls.housekeep,
            on_stopped=self._end,
        )
        self.configure(settings)
        self._producers.load(now_ms=clock.now_ms(), expiration_ms=settings.producer_expiration_ms)
        self._leader.may_follow(log)

    def configure(self, settings: PartitionSettings) -> None:
        """Take new topic configs; they count from the next batch on."""
        self.settings = settings
        self._pacing: Pacing = start_pacing(
            settings.commit_interval_ms, settings.commit_burst, self._clock.monotonic_ms()
        )

    async def end_pace(self) -> None:
        """Commit without pacing from now on, before the broker stops. Returns when everything that has an offset by now
        is committed, or when nothing can be committed; a commit that fails may let it wait for the next one."""
        self.configure(replace(self.settings, commit_interval_ms=0))
        self._wake.set()
        placed, committed = self._state.log_end, asyncio.Event()
        self.add_reader(committed)
        try:
            while self._state.high_watermark < placed and self.stopped is None:
                await committed.wait()
                committed.clear()
        finally:
            self.remove_reader(committed)

    def watch(self, *, committed: Callable[[], None], stopped: Callable[[Refused], None]) -> None:
        """Have `committed` called after each commit, and `stopped` when commits have ended. Both are called on the
        event loop and return at once."""
        self._on_committed, self._on_stopped = committed, stopped

    @property
    def state(self) -> PartitionState:
        return self._state

    @property
    def producers(self) -> Mapping[int, ProducerState]:
        """The idempotent producers that memory knows, by id, as the log has them."""
        return self._producers.states.committed

    @property
    def stopped(self) -> Refused | None:
        """Why this partition does not serve; None while it serves."""
        return self._leader.stopped

    # ------------------------------------------------------------------ what waits

    def append(
        self,
        batch: RecordBatch,
        *,
        acks: int,
        current_leader_epoch: int | None,
        request_id: str,
        on_settled: Callable[[AppendResult], None] | None = None,
    ) -> asyncio.Future[AppendResult]:
        waiting = WaitingBatch(
            batch, acks, current_leader_epoch, request_id, _new_future(), on_settled, self._queued_ms()
        )
        refusal = self.stopped or self._queue.put(waiting)
        if refusal is not None:
            refuse([waiting], refusal)
            return waiting.answer
        if acks == ACKS_NONE:
            waiting.answer.set_result(Appended(-1, -1, -1, self._state.log_start))
        self._wake_writer()
        if acks == ACKS_LEADER:
            self._wake.set()
        return waiting.answer

    def resume_producer(self, producer_id: int, producer_epoch: int) -> asyncio.Future[ResumeResult]:
        waiting = WaitingResume(producer_id, producer_epoch, _new_future())
        refusal = self.stopped or self._queue.put(waiting)
        if refusal is not None:
            waiting.answer.set_result(refusal)
        else:
            self._wake_writer()
        return waiting.answer

    def apply_transaction(
        self, applied: AppliedTransaction, batches: Sequence[RecordBatch], *, is_one_phase: bool = False
    ) -> asyncio.Future[ApplyResult]:
        """Commit all rows of a transaction with one version, which has the mark that it is applied. Of no effect if
        the log has that mark, or a later one of the same transactional id; without `batches`, only to learn so.
        `is_one_phase`: the version decides, so a later mark says nothing about this transaction, and it is refused.
        The future never fails."""
        waiting = WaitingTransaction(applied, batches, _new_future(), self._queued_ms(), is_one_phase=is_one_phase)
        refusal = self.stopped or self._queue.put(waiting)
        if refusal is not None:
            waiting.answer.set_result(refusal)
        else:
            self._wake_writer()
        return waiting.answer

    async def commit_between_appends(self, change: Change) -> ChangeOutcome:
        """Commit a change behind the commit in flight and earlier changes, ahead of the waiting batches; pacing does
        not delay it. Memory equals the log when `change` decides. Runs to its end even if the caller is cancelled."""
        return await self._tasks.finish(self._wait_and_change(change), f"{self._name}/change")

    async def _wait_and_change(self, change: Change) -> ChangeOutcome:
        if self.stopped is not None:
            return self.stopped
        if self._changes_waiting >= CHANGES_MAX:
            return Refused(
                ErrorCode.THROTTLING_QUOTA_EXCEEDED,
                f"{self._name} has {self._changes_waiting} changes waiting for a commit, expected no more; retry later",
            )
        # Counted only while it is in line for the slot: the writer lets go of the slot for each change that is counted.
        self._changes_waiting += 1
        self._wake.set()
        try:
            await self._leader.slot.acquire()
        finally:
            self._changes_waiting -= 1
        try:
            return await self._change(change)
        except Exception:
            await self._recover()
            return self._leader.refuse("the change was interrupted", ErrorCode.UNKNOWN_SERVER_ERROR)
        finally:
            self._leader.slot.release()

    async def catch_up(self) -> Refused | None:
        """Return None once memory equals the log, also after an append of unknown outcome."""

        def change_nothing(*, leader_epoch: int, now_ms: int) -> Committed:
            return Committed(self._state.version, self._state.high_watermark)

        outcome = await self.commit_between_appends(change_nothing)
        return outcome if isinstance(outcome, Refused) else None

    async def call_between_appends(self, call: Callable[[], T]) -> T | Refused:
        """Run `call` in a thread, while nothing is committed; `call` must not commit either. Memory then equals the
        log."""
        found: list[T] = []

        def change(*, leader_epoch: int, now_ms: int) -> Callable[[], Committed]:
            state = self._state

            def run() -> Committed:
                found.append(call())
                return Committed(state.version, state.high_watermark)

            return run

        outcome = await self.commit_between_appends(change)
        if isinstance(outcome, Refused):
            return outcome
        assert found, f"{self._name}: a call between appends ended as {outcome}"
        return found[0]

    async def housekeep(self, call: Callable[[], T]) -> T:
        """See `LeaderLog.housekeep`."""
        return await self._leader.housekeep(call)

    # ------------------------------------------------------------------ the writer task

    def _wake_writer(self) -> None:
        if self._task is None:
            self._task = self._tasks.start(self._write(), str(self._name))
        elif decide_delay_ms(self._pacing, self._queue.size_bytes) == 0:
            self._wake.set()

    async def _write(self) -> None:
        """Ends when nothing waits."""
        try:
            while self._queue and self.stopped is None:
                async with self._leader.slot:
                    await self._write_next()
        finally:
            self._task = None
            if self.stopped is not None:
                self._queue.refuse_all(self.stopped)
            elif self._queue:
                self._task = self._tasks.start(self._write(), str(self._name))

    async def _write_next(self) -> None:
        try:
            resume = self._queue.take_resume()
            if resume is not None:
                await self._resume(resume)
            elif await self._wait_for_pace() or self._early is not None:
                self._times.due_ms = self._clock.monotonic_ms()
                async with self._calls.commit_turns.turn():
                    self._times.turn_ms = self._clock.monotonic_ms()
                    transactions = self._queue.take_transactions() if self._early is None else []
                    if transactions:
                        await self._write_transactions(transactions)
                    else:
                        await self._write_group()
        except Exception:
            self._refuse_early(self._interrupted())
            await self._recover()

    async def _recover(self) -> None:
        """From an error that nothing expects."""
        _log.exception("writer of %s failed, rebuilding from the log", self._name, extra=self._fields())
        await self.rebuild()

    async def _wait_for_pace(self) -> bool:
        """False if a change waits, for which there is no pace."""
        while self._delay_ms() > 0:
            if self._changes_waiting or self.stopped is not None:
                return False
            self._wake.clear()
            await self._place_early()
            try:
                async with time_limit(self._delay_ms() / 1000):
                    await self._wake.wait()
            except asyncio.TimeoutError:
                break
        self._pacing = spend(refill(self._pacing, self._clock.monotonic_ms()))
        return True

    def _delay_ms(self) -> float:
        self._pacing = refill(self._pacing, self._clock.monotonic_ms())
        return decide_delay_ms(self._pacing, self._queue.size_bytes)

    async def _place_early(self) -> None:
        """Answer those who asked for acks=1. What only the table can decide waits for the commit, and so does what
        comes behind it."""
        if self._leader.is_reload_due or (self._early is not None and self._early.rest):
            return
        group = self._queue.take_for_offsets()
        if not group:
            return
        try:
            self._early = await self._place(group, () if self._early is None else self._early.placed)
        except BaseException:
            refuse(group, self._interrupted())
            raise

    def _queued_ms(self) -> float | None:
        """Now, if the log is to say how long a commit took: batches are too many to ask the clock for each."""
        return self._clock.monotonic_ms() if _log.isEnabledFor(logging.DEBUG) else None

    def _refuse_early(self, refusal: Refused) -> None:
        early, self._early = self._early, None
        if early is not None:
            refuse([*early.waiting, *early.rest], refusal)

    def _interrupted(self) -> Refused:
        return self._leader.refuse("the commit was interrupted", ErrorCode.UNKNOWN_SERVER_ERROR)

    async def _write_group(self) -> None:
        """Answer every batch that waits, as far as one commit takes them: as a rule after that commit."""
        early, self._early = self._early, None
        rest: Sequence[WaitingBatch] = self._queue.take_batches()
        placed: Sequence[PlacedBatch] = ()
        if early is not None:
            rest, placed = [*early.rest, *rest], early.placed
        group = [*(item.waiting for item in placed), *rest]
        try:
            while rest or placed:
                rest, placed = await self._commit(rest, placed), ()
        except BaseException:
            refuse(group, self._interrupted())
            raise

    async def _commit(
        self, group: Sequence[WaitingBatch], placed: Sequence[PlacedBatch] = ()
    ) -> Sequence[WaitingBatch]:
        """Commit `placed`, which has its offsets, and `group` behind it. Returns those that had to wait for this
        commit; all others have their answer."""
        for _ in range(CONFLICTS_MAX):
            if self._leader.is_reload_due:
                group, placed = [*(item.waiting for item in placed), *group], ()
            refusal = await self._check_ready()
            if refusal is not None:
                refuse([*(item.waiting for item in placed), *group], refusal)
                return ()
            placement = await self._place(group, placed)
            if not placement.placed:
                return placement.rest
            outcome = await self._append(placement.batches)
            match outcome:
                case Committed():
                    self._succeed(placement, outcome)
                    return placement.rest
                case Refused():
                    await self._fail(placement, outcome)
                    return placement.rest
            group, placed = [*placement.waiting, *placement.rest], ()
        refuse(group, self._leader.refuse(f"lost {CONFLICTS_MAX} races for a version"))
        return ()

    async def _place(self, group: Sequence[WaitingBatch], placed: Sequence[PlacedBatch] = ()) -> Placement:
        placing = Placing(
            str(self._name),
            self._state,
            self.settings.append_rules,
            self._producers,
            now_ms=self._clock.now_ms(),
            placed=placed,
        )
        placement = await placing.place(group, is_stopped=lambda: self.stopped is not None)
        self._state = placement.state
        return placement

    async def _write_transactions(self, group: Sequence[WaitingTransaction]) -> None:
        try:
            refusal = await self._apply_transactions(group)
        except BaseException:
            refuse(group, self._interrupted())
            raise
        if refusal is not None:
            refuse(group, refusal)

    async def _apply_transactions(self, group: Sequence[WaitingTransaction]) -> Refused | None:
        """Apply the transactions. Nothing is in flight here, so the table's answer about them is still true when they
        are committed. Returns the refusal for those without an answer."""
        for _ in range(CONFLICTS_MAX):
            refusal = await self._check_ready()
            if refusal is not None:
                return refusal
            group = [waiting for waiting in group if not self._answer_known(waiting)]
            if not group:
                return None
            placed = [self._place_transaction(waiting.batches) for waiting in group]
            batches = [batch for of_one in placed for batch in of_one]
            applied = [waiting.applied for waiting in group]
            outcome = await self._append(batches, applied)
            match outcome:
                case Committed():
                    self._take(batches, outcome, group, functools.partial(_names_of, applied))
                    for waiting, of_one in zip(group, placed, strict=True):
                        _settle(waiting, TransactionWritten(outcome.version, of_one[0].base_offset))
                    return None
                case Refused():
                    self._roll_back(outcome)
                    if self._leader.is_reload_due:
                        await self.rebuild()
                    return outcome
        return self._leader.refuse(f"lost {CONFLICTS_MAX} races for a version")

    def _answer_known(self, waiting: WaitingTransaction) -> bool:
        """A transaction that the log has already, or of which there is nothing to write."""
        ending = ending_of(self._table, waiting.applied)
        if ending is Ending.APPLIED or (ending is Ending.LATER and not waiting.is_one_phase):
            _settle(waiting, TransactionWritten(self._state.version, -1))
        elif ending is not Ending.OPEN:
            _settle(waiting, self._refuse_ended(waiting, ending))
        elif not waiting.batches:
            _settle(waiting, self._leader.refuse("the transaction is not in the log after all; retry later"))
        else:
            return False
        return True

    def _refuse_ended(self, waiting: WaitingTransaction, ending: Ending) -> Refused:
        applied, mark = waiting.applied, self._table.transactions.version_of(waiting.applied.transactional_id)
        reason = f"{applied} was given up, or later ones came: the mark is {mark}"
        if ending is Ending.OVERTAKEN:
            reason = (
                f"{applied} cannot be applied: expected a mark of the id below {applied.aborted_version}, or rows of "
                f"producer {applied.producer_id} with epoch {applied.producer_epoch} or a later one, found the mark "
                f"{mark} of an earlier life of the id and no such rows; to give its rows up: bus transactions fence"
            )
            if not waiting.is_one_phase:  # its commit is decided
                _log.error("%s", reason, extra=self._fields())
        return self._leader.refuse(reason, ErrorCode.TRANSACTION_COORDINATOR_FENCED)

    def _place_transaction(self, batches: Sequence[RecordBatch]) -> list[LogBatch]:
        now_ms = self._clock.now_ms()
        step = place_transaction(self._state, batches, self.settings.append_rules, now_ms=now_ms)
        for batch in step.response:
            if has_older_records_only(self._producers.states, batch):
                self._producers.states.place(batch, version=self._state.version + 1, now_ms=now_ms)
        for event in step.records:
            self._state = apply(self._state, event)
        return step.response

    async def _append(
        self, batches: Sequence[LogBatch], transactions: Sequence[AppliedTransaction] = ()
    ) -> ChangeOutcome:
        self._times.write_ms = self._clock.monotonic_ms()
        return await self._leader.commit(self._append_call(batches, transactions), self._calls.append)

    def _append_call(
        self, batches: Sequence[LogBatch], transactions: Sequence[AppliedTransaction] = ()
    ) -> Callable[[], CommitOutcome]:
        return functools.partial(
            self._table.append,
            batches,
            leader_epoch=self._state.leader_epoch,
            now_ms=self._clock.now_ms(),
            compression=self.settings.compression,
            producers=self._progress(transactions, batches),
            transactions=transactions,
        )

    def _progress(
        self, transactions: Sequence[AppliedTransaction], batches: Sequence[LogBatch]
    ) -> Sequence[ProducerProgress]:
        placed = self._producers.states.placed_progress()
        known = {progress.producer_id for progress in placed}
        last = {batch.producer.producer_id: batch for batch in batches if batch.producer is not None}
        ends = (progress_of(last[each.producer_id]) for each in transactions if each.producer_id not in known)
        return [*placed, *ends]

    def _succeed(self, placement: Placement, outcome: Committed) -> None:
        waiting = placement.waiting
        self._take(placement.batches, outcome, waiting, lambda: ",".join(each.request_id for each in waiting))
        for item in placement.placed:
            item.answer(version=outcome.version, log_start=self._state.log_start)

    def _take(
        self,
        batches: Sequence[LogBatch],
        outcome: Committed,
        waiting: Sequence[WaitingBatch | WaitingTransaction],
        requests: Callable[[], str],
    ) -> None:
        """Note that `batches`, everything that was placed, is in the log."""
        self._state = apply(self._state, CommitSucceeded(outcome.version, outcome.high_watermark))
        assert self._state.high_watermark == self._state.log_end, f"{self._name} has records past its commit"
        self._producers.states.commit(outcome.version)
        self._cache.extend(self.tail, batches)
        self._wake_readers()
        if _log.isEnabledFor(logging.DEBUG):
            _log.debug(
                "committed %s up to offset %d%s",
                count_of(sum(batch.record_count for batch in batches), "record"),
                outcome.high_watermark,
                self._times.describe(waiting, self._clock.monotonic_ms()),
                extra=self._fields(requests=requests()),
            )
        self._producers.forget_idle(now_ms=self._clock.now_ms(), expiration_ms=self.settings.producer_expiration_ms)
        self._on_committed()

    async def _fail(self, placement: Placement, refusal: Refused) -> None:
        self._roll_back(refusal)
        refuse(placement.waiting, refusal)
        if self._leader.is_reload_due:
            await self.rebuild()

    def _roll_back(self, refusal: Refused) -> None:
        """Undo the placing: nothing of it is in the log, unless the log has to be read again."""
        if not self._leader.is_reload_due:
            _log.error("commit failed: %s", refusal.message, extra=self._fields())
            self._state = apply(self._state, CommitFailed())
            self._producers.states.roll_back()
            self._wake_readers()

    async def _change(self, change: Change) -> ChangeOutcome:
        refusal = await self._check_ready()
        if refusal is not None:
            return refusal
        decided = change(leader_epoch=self._state.leader_epoch, now_ms=self._clock.now_ms())
        outcome = await self._leader.commit(decided, self._calls.commit) if callable(decided) else decided
        if isinstance(outcome, Committed):
            self._follow(outcome)
        elif self._leader.is_reload_due and self.stopped is None:
            await self.rebuild()
        return outcome

    def _follow(self, outcome: Committed) -> None:
        if outcome.version == self._state.version:
            return
        log_start = self._table.state.log_start
        if log_start > self._state.log_start:
            self._state = apply(self._state, LogStartAdvanced(outcome.version, log_start))
        else:
            self._state = apply(self._state, CommitSucceeded(outcome.version, outcome.high_watermark))
        # Deleted and compacted records must not be read from memory either.
        self._cache.cut(self.tail, max(log_start, self._table.rewrites.compacted_to))
        self._wake_readers()
        self._on_committed()

    async def _resume(self, waiting: WaitingResume) -> None:
        """Resume a producer. Nothing is in flight here: everything queued before is in the log or has failed."""
        result: ResumeResult = self._leader.refuse("resuming was interrupted", ErrorCode.UNKNOWN_SERVER_ERROR)
        try:
            result = await self._check_ready() or await self._producers.resume(
                waiting.producer_id,
                waiting.producer_epoch,
                version=self._state.version,
                now_ms=self._clock.now_ms(),
            )
        except StorageFault as fault:
            result = self._leader.refuse(str(fault))
        finally:
            if not waiting.answer.done():
                waiting.answer.set_result(result)

    # ------------------------------------------------------------------ memory and log

    async def _check_ready(self) -> Refused | None:
        """Return why nothing can be committed now; if it returns None, memory equals the log."""
        if self._leader.is_reload_due and self.stopped is None:
            await self.rebuild()
        return self._leader.refuse_until_reloaded()

    async def rebuild(self) -> None:
        """Drop what memory knows and read the log again."""
        self._cache.clear(self.tail)
        log = await self._leader.reload()
        if log is None:
            return
        try:
            self._state = apply(self._state, LogReloaded(log.log_start, log.high_watermark, log.version))
            self._producers.load(now_ms=self._clock.now_ms(), expiration_ms=self.settings.producer_expiration_ms)
        except AssertionError as broken:
            self.stop(ErrorCode.KAFKA_STORAGE_ERROR, f"the log contradicts what was acknowledged: {broken}")
            return
        self._leader.is_reload_due = False
        self._wake_readers()
        self._on_committed()

    def stop(self, code: ErrorCode, reason: str) -> None:
        """Stop serving from now on; every request gets `code` and the reason."""
        self._leader.stop(code, reason)

    async def close(self, reason: Refused) -> None:
        """Refuse every new and every waiting call, and return when nothing is being committed."""
        self._leader.end(reason)
        if self._task is not None:
            await asyncio.wait([self._task])
        async with self._leader.slot:
            self._cache.clear(self.tail)

    def _end(self, reason: Refused) -> None:
        if self._task is None:
            self._queue.refuse_all(reason)
        self._wake.set()
        self._cache.clear(self.tail)
        self._wake_readers()
        self._on_stopped(reason)

    # ------------------------------------------------------------------ readers

    def add_reader(self, event: Wakeable) -> None:
        self._readers[event] = None

    def remove_reader(self, event: Wakeable) -> None:
        self._readers.pop(event, None)

    def _wake_readers(self) -> None:
        for event in self._readers:
            event.set()

    def _fields(self, **more: object) -> dict[str, object]:
        return self._leader.fields(**more)


def ending_of(table: PartitionTable, applied: AppliedTransaction) -> Ending:
    """Return the end of the transaction according to the log. In one phase `LATER` is the mark of a later coordinator,
    which has moved on without this transaction; for a commit that a record has decided it says that the transaction was
    applied before."""
    mark = table.transactions.version_of(applied.transactional_id)
    if mark < applied.aborted_version:
        return Ending.OPEN
    return judge(applied, mark, table.transactions.has_written(applied))


def _names_of(transactions: Sequence[AppliedTransaction]) -> str:
    return ",".join(f"{each.transactional_id}/{each.number}" for each in transactions)


def _settle(waiting: WaitingTransaction, result: ApplyResult) -> None:
    if not waiting.answer.done():
        waiting.answer.set_result(result)


def _new_future() -> asyncio.Future[T]:
    return asyncio.get_running_loop().create_future()
