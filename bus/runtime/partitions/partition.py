"""One partition on its leader: the writer loop, the tail in memory, and those who wait for the next commit.

Theory of operation. Batches wait in a queue; the writer, a task that lives only while there are any, takes all that
have gathered, gives them offsets, commits them as one Delta version in a thread, and only then answers and wakes
readers. So one commit is in flight at a time, and an answer never precedes its commit. A batch about which only the
table can decide (a repeat that memory forgot) ends the commit before it, and goes on in its place. What adds no record,
files swapped for others or records deleted, is committed between two appends (`partition_changes.py`). If the table is
not where memory thinks it is (a conflict, an unknown outcome, a fault), memory is dropped and rebuilt from
the log. What cannot be rebuilt without losing or inventing a record stops this partition, and no other.

With acks=1 an answer precedes its commit, and does not wait for the pace of commits either: while that holds a commit
back, what has come is given its offsets, and what comes then joins it. If the commit fails, an idempotent producer's
sequences go back with the offsets: its next batch is OUT_OF_ORDER_SEQUENCE_NUMBER, so it learns of the loss that acks=1
allows, where another producer does not. It cannot send those records again, so it has to take a new epoch.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from bus.errors import (
    ErrorCode,
    RecordsDamaged,
    Refused,
    StorageDamaged,
    StorageFault,
    VersionReplaced,
    count_of,
    show_way_out,
)
from bus.model import LATEST_TIMESTAMP, LogBatch, RecordBatch, TopicPartition
from bus.partition_log.appends import ACKS_LEADER, ACKS_NONE
from bus.partition_log.pacing import Pacing, decide_delay_ms, refill, spend, start_pacing
from bus.partition_log.reads import (
    ListedOffset,
    Readable,
    SearchTimestamp,
    decide_fetch,
    decide_list_offsets,
    refuse_offset,
)
from bus.partition_log.state import (
    CommitFailed,
    CommitSucceeded,
    LogEvent,
    LogReloaded,
    PartitionState,
    apply,
)
from bus.ports import (
    Clock,
    CommitOutcome,
    Committed,
    Conflicted,
    LogState,
    PartitionTable,
    PreparedFiles,
    SwapKind,
    Unknown,
)
from bus.runtime.blocking import BlockingCalls
from bus.runtime.partitions.maintenance import (
    DeleteRecordsResult,
    MaintainResult,
    Maintenance,
    MaintenanceAction,
    SwapResult,
)
from bus.runtime.partitions.partition_changes import CONFLICTS_MAX, PartitionChanges
from bus.runtime.partitions.partition_producers import PartitionProducers
from bus.runtime.partitions.partition_queue import (
    Appended,
    AppendResult,
    PartitionQueue,
    ResumeResult,
    WaitingBatch,
    WaitingCatchUp,
    WaitingChange,
    WaitingDelete,
    WaitingOrphans,
    WaitingResume,
    WaitingSwap,
    refuse,
)
from bus.runtime.partitions.partition_settings import PartitionSettings
from bus.runtime.partitions.partition_upkeep import PartitionUpkeep
from bus.runtime.partitions.placing import PlacedBatch, Placement, Placing
from bus.runtime.partitions.tail_cache import Tail, TailCache
from bus.runtime.tasks import TaskScope

_log = logging.getLogger(__name__)

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class ReadResult:
    """What a fetch of one partition found, and where the log stood then."""

    batches: Sequence[LogBatch]
    high_watermark: int
    log_start: int
    version: int


class Partition:
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
        maintenance: Maintenance,
    ) -> None:
        self.name = name
        self._table = table
        self._clock = clock
        self._calls = calls
        self._cache = cache
        self._tasks = tasks
        log = table.state
        self._state = PartitionState(
            log.log_start, log.high_watermark, log.high_watermark, leader_epoch=leader_epoch, version=log.version
        )
        self._tail = Tail()
        self._producers = PartitionProducers(table, calls)
        self._queue = PartitionQueue(str(name), queue_bytes_max)
        self._writer: asyncio.Task[None] | None = None
        self._wake = asyncio.Event()
        self._readers: set[asyncio.Event] = set()
        self._stopped: Refused | None = None
        self._is_rebuild_due = False  # memory may be wrong, and the log could not be read yet
        self._early: Placement | None = None  # what has its offsets while its commit is paced
        self._upkeep = PartitionUpkeep(
            name,
            table,
            rules=settings.maintenance,
            calls=calls,
            tasks=tasks,
            maintenance=maintenance,
            writer=self,
        )
        self._changes = PartitionChanges(name, table, self, clock=clock, calls=calls)
        self.configure(settings)
        self._producers.load(now_ms=clock.now_ms(), expiration_ms=settings.producer_expiration_ms)
        if self._is_deposed_by(log):
            self._step_down(log.leader_epoch)

    def configure(self, settings: PartitionSettings) -> None:
        """Take new topic configs; they count from the next batch on."""
        self._settings = settings
        self._pacing: Pacing = start_pacing(settings.commit_interval_ms, settings.commit_burst, _loop_ms())
        self._upkeep.configure(settings.maintenance)

    @property
    def state(self) -> PartitionState:
        return self._state

    @property
    def stopped(self) -> Refused | None:
        """Why this partition does not serve; None while it serves."""
        return self._stopped

    @property
    def record_bytes_max(self) -> int:
        """Of a single record that `append` takes: max.message.bytes."""
        return self._settings.append_rules.record_bytes_max

    # ------------------------------------------------------------------ writing

    def append(
        self,
        batch: RecordBatch,
        *,
        acks: int,
        current_leader_epoch: int | None,
        request_id: str,
        on_settled: Callable[[AppendResult], None] | None = None,
    ) -> asyncio.Future[AppendResult]:
        """Queue a batch behind all that came before it. The future never fails: a refusal is its result. `on_settled`
        is called with it when the batch is committed or dropped: with acks 0 and 1 that is after the answer."""
        waiting = WaitingBatch(batch, acks, current_leader_epoch, request_id, _new_future(), on_settled)
        refusal = self._stopped or self._queue.put(waiting)
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
        """Where the producer's records end, once all that was queued before is in the log or failed. From then on lower
        epochs of it are refused. Safe to repeat. The future never fails: a refusal is its result."""
        waiting = WaitingResume(producer_id, producer_epoch, _new_future())
        refusal = self._stopped or self._queue.put(waiting)
        if refusal is not None:
            waiting.answer.set_result(refusal)
        else:
            self._wake_writer()
        return waiting.answer

    def delete_records(self, offset: int) -> asyncio.Future[DeleteRecordsResult]:
        """Let go of all records below `offset`; -1: below the high watermark. One below the log start changes nothing.
        Refused: OFFSET_OUT_OF_RANGE, POLICY_VIOLATION. Committed when it is answered; the future never fails."""
        may_delete = self._settings.maintenance.may_delete_records
        return self._put_change(WaitingDelete(offset, may_delete, _new_future()))

    def maintain(self, action: MaintenanceAction) -> asyncio.Future[MaintainResult]:
        """Do now what otherwise waits until it is due, behind the job that runs. Refused: POLICY_VIOLATION (COMPACT of
        a log that is not compacted). The future never fails."""
        return self._upkeep.maintain(action)

    def swap_files(self, removes: Sequence[str], adds: Sequence[str], kind: SwapKind) -> asyncio.Future[SwapResult]:
        """Put files that another program wrote into the table's folder in place of live ones, once they were checked.
        Refused: INVALID_REQUEST, POLICY_VIOLATION. The future never fails."""
        return self._upkeep.swap_files(removes, adds, kind)

    def swap(self, prepared: PreparedFiles, *, is_ours: bool) -> asyncio.Future[SwapResult]:
        """For maintenance: files that it has prepared, or checked."""
        return self._put_change(WaitingSwap(prepared, is_ours, _new_future()))

    def delete_orphans(self, orphans: frozenset[str]) -> asyncio.Future[int | Refused]:
        """For maintenance: data files that no version named when it looked."""
        return self._put_change(WaitingOrphans(orphans, _new_future()))

    def delete_below(self, offset: int) -> asyncio.Future[DeleteRecordsResult]:
        """For retention: what it has found due."""
        return self._put_change(WaitingDelete(offset, True, _new_future()))

    def catch_up(self) -> asyncio.Future[Refused | None]:
        """None once memory is what the log says: an append of unknown outcome is answered before the log is read again.
        Refused if that cannot be done for now. The future never fails."""
        return self._put_change(WaitingCatchUp(_new_future()))

    def look_after(self) -> None:
        """Begin what the partition's age has made due. To be called now and then; returns at once."""
        self._upkeep.look()

    async def finish_maintenance(self) -> None:
        """Wait for what is under way. May be cancelled."""
        await self._upkeep.finish()

    async def end_maintenance(self) -> None:
        """Before the broker stops: begin nothing more, and give up what is being prepared."""
        self._upkeep.stop(Refused(ErrorCode.NOT_LEADER_OR_FOLLOWER, f"{self.name}: the broker is shutting down"))
        await self._upkeep.join()

    async def write_last_checkpoint(self) -> None:
        """After `end_maintenance`, when no commit comes any more: leave a log that is opened quickly."""
        if self._stopped is None:
            await self._upkeep.write_last_checkpoint()

    def _put_change(self, waiting: WaitingChange) -> asyncio.Future[Any]:
        refusal = self._stopped or self._queue.put_change(waiting)
        if refusal is not None:
            waiting.answer.set_result(refusal)
        else:
            self._wake_writer()
            self._wake.set()
        return waiting.answer

    def _wake_writer(self) -> None:
        if self._writer is None:
            self._writer = self._tasks.start(self._write(), str(self.name))
        elif decide_delay_ms(self._pacing, self._queue.size_bytes) == 0:
            self._wake.set()

    async def _write(self) -> None:
        """The writer loop; ends when nothing waits."""
        try:
            while (self._queue or self._early) and self._stopped is None:
                if self._early is None:
                    change = self._queue.take_change()
                    if change is not None:
                        await self._changes.make(change)
                        continue
                    resume = self._queue.take_resume()
                    if resume is not None:
                        await self._resume(resume)
                        continue
                if await self._wait_for_pacing() or self._early is not None:
                    async with self._calls.commit_turns.turn():
                        await self._write_group()
        except Exception:
            _log.exception("writer of %s failed, rebuilding from the log", self.name, extra=self._fields())
            self._refuse_early(self._interrupted())
            await self.rebuild()
        finally:
            self._writer = None
            if self._stopped is not None:
                self._refuse_early(self._stopped)
                self._queue.refuse_all(self._stopped)
            elif self._queue:
                self._writer = self._tasks.start(self._write(), str(self.name))

    async def _wait_for_pacing(self) -> bool:
        """False if a change came meanwhile: it does not wait for the pace."""
        self._pacing = refill(self._pacing, _loop_ms())
        loop = asyncio.get_running_loop()
        due_s = loop.time() + decide_delay_ms(self._pacing, self._queue.size_bytes) / 1000
        while due_s > loop.time() and decide_delay_ms(self._pacing, self._queue.size_bytes) > 0:
            self._wake.clear()
            await self._place_early()
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._wake.wait(), due_s - loop.time())
            if self._queue.has_changes or self._stopped is not None:
                return False
        self._pacing = spend(refill(self._pacing, _loop_ms()))
        return True

    async def _place_early(self) -> None:
        """Answer those who asked for acks=1. What only the table can decide waits for the commit, and so does what
        comes behind it."""
        if self._is_rebuild_due or (self._early is not None and self._early.rest):
            return
        group = self._queue.take_for_offsets()
        if not group:
            return
        try:
            self._early = await self._place(group, () if self._early is None else self._early.placed)
        except BaseException:
            refuse(group, self._interrupted())
            raise

    def _refuse_early(self, refusal: Refused) -> None:
        early, self._early = self._early, None
        if early is not None:
            refuse([*early.waiting, *early.rest], refusal)

    def _interrupted(self) -> Refused:
        return Refused(ErrorCode.UNKNOWN_SERVER_ERROR, f"{self.name}: the commit was interrupted")

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
        if self._is_rebuild_due:
            await self.rebuild()
            group, placed = [*(item.waiting for item in placed), *group], ()
        for _ in range(CONFLICTS_MAX):
            if self._is_rebuild_due or self._stopped is not None:
                refuse([*(item.waiting for item in placed), *group], self._stopped or self._not_rebuilt())
                return ()
            placement = await self._place(group, placed)
            placed = ()
            if not placement.placed:
                return placement.rest
            try:
                outcome = await self._append_to_table(placement.batches)
            except StorageFault as fault:
                self._state = apply(self._state, CommitFailed())
                self._producers.states.roll_back()
                _log.error("commit failed: %s", fault, extra=self._fields())
                if isinstance(fault, VersionReplaced):
                    self.stop(ErrorCode.KAFKA_STORAGE_ERROR, str(fault))
                refuse(placement.waiting, Refused(ErrorCode.KAFKA_STORAGE_ERROR, f"{self.name}: {fault}"))
                return placement.rest
            match outcome:
                case Committed():
                    self._succeed(placement, outcome)
                    return placement.rest
                case Unknown(version, reason):
                    message = f"{self.name}: nobody knows whether version {version} was committed: {reason}"
                    _log.error(message, extra=self._fields())
                    refuse(placement.waiting, Refused(ErrorCode.KAFKA_STORAGE_ERROR, message))
                    await self.rebuild()
                    return placement.rest
                case Conflicted(version, leader_epoch, operation) as conflict:
                    _log.warning(
                        "version %d was committed by another writer (%s, leader epoch %s)",
                        version,
                        operation,
                        leader_epoch,
                        extra=self._fields(),
                    )
                    group = [*placement.waiting, *placement.rest]
                    await self.lose(conflict)
        refuse(group, Refused(ErrorCode.KAFKA_STORAGE_ERROR, f"{self.name}: lost {CONFLICTS_MAX} races for a version"))
        return ()

    async def _place(self, group: Sequence[WaitingBatch], placed: Sequence[PlacedBatch] = ()) -> Placement:
        placing = Placing(
            str(self.name),
            self._state,
            self._settings.append_rules,
            self._producers,
            now_ms=self._clock.now_ms(),
            placed=placed,
        )
        placement = await placing.place(group, is_stopped=lambda: self._stopped is not None)
        self._state = placement.state
        return placement

    async def _append_to_table(self, batches: Sequence[LogBatch]) -> CommitOutcome:
        call = functools.partial(
            self._table.append,
            batches,
            leader_epoch=self._state.leader_epoch,
            now_ms=self._clock.now_ms(),
            compression=self._settings.compression,
            producers=self._producers.states.placed_progress(),
        )
        return await self._calls.append(call)

    def _succeed(self, placement: Placement, outcome: Committed) -> None:
        self._state = apply(self._state, CommitSucceeded(outcome.version, outcome.high_watermark))
        assert self._state.high_watermark == self._state.log_end, f"{self.name} has records past its commit"
        self._producers.states.commit(outcome.version)
        for item in placement.placed:
            item.answer(version=outcome.version, log_start=self._state.log_start)
        batches = placement.batches
        self._cache.extend(self._tail, batches)
        self.wake_readers()
        if _log.isEnabledFor(logging.DEBUG):
            _log.debug(
                "committed %s up to offset %d",
                count_of(sum(batch.record_count for batch in batches), "record"),
                outcome.high_watermark,
                extra=self._fields(requests=",".join(waiting.request_id for waiting in placement.waiting)),
            )
        self._producers.forget_idle(now_ms=self._clock.now_ms(), expiration_ms=self._settings.producer_expiration_ms)
        self._upkeep.look_after_commit()

    # ------------------------------------------------------------------ for changes that add no record

    async def check_ready(self) -> Refused | None:
        if self._is_rebuild_due:
            await self.rebuild()
        if self._is_rebuild_due or self._stopped is not None:
            return self._stopped or self._not_rebuilt()
        return None

    def follow(self, event: LogEvent) -> None:
        self._state = apply(self._state, event)
        # What was deleted or compacted is not to be read from memory either.
        self._cache.cut(self._tail, max(self._state.log_start, self._table.compacted_to))
        self.wake_readers()
        self._upkeep.look_after_commit()

    async def lose(self, conflict: Conflicted) -> None:
        """Another writer has the version: a leader of a higher epoch ends this one, and so does another leader of the
        same. Any other writer is read and followed."""
        epoch, own_epoch = conflict.leader_epoch, self._state.leader_epoch
        if epoch is not None and (epoch > own_epoch or (epoch == own_epoch and conflict.is_rival)):
            self._step_down(epoch)
        else:
            await self.rebuild()

    async def _resume(self, waiting: WaitingResume) -> None:
        """Nothing is in flight here: what was queued before is in the log or failed."""
        result: ResumeResult = Refused(ErrorCode.UNKNOWN_SERVER_ERROR, f"{self.name}: resuming was interrupted")
        try:
            if self._is_rebuild_due:
                await self.rebuild()
            if self._is_rebuild_due or self._stopped is not None:
                result = self._stopped or self._not_rebuilt()
            else:
                result = await self._producers.resume(
                    waiting.producer_id,
                    waiting.producer_epoch,
                    version=self._state.version,
                    now_ms=self._clock.now_ms(),
                )
        except StorageFault as fault:
            result = Refused(ErrorCode.KAFKA_STORAGE_ERROR, f"{self.name}: {fault}")
        finally:
            if not waiting.answer.done():
                waiting.answer.set_result(result)

    async def rebuild(self) -> None:
        """Drop what memory knows and read the log again. A damaged log stops the partition, and so does one in which
        another leader came behind this one; a log that cannot be read for now is tried again before the next commit."""
        self._cache.clear(self._tail)
        self._is_rebuild_due = True
        try:
            async with self._upkeep.housekeeping:
                log = await self._calls.commit(self._table.reload)
            if self._is_deposed_by(log):
                self._step_down(log.leader_epoch)
                return
            self._state = apply(self._state, LogReloaded(log.log_start, log.high_watermark, log.version))
            self._producers.load(now_ms=self._clock.now_ms(), expiration_ms=self._settings.producer_expiration_ms)
            self._is_rebuild_due = False
            self.wake_readers()
        except StorageDamaged as damage:
            self.stop(ErrorCode.KAFKA_STORAGE_ERROR, f"{damage}; {show_way_out(self.name.topic, self.name.partition)}")
        except StorageFault as fault:
            _log.error("the log cannot be read again for now: %s", fault, extra=self._fields())
        except AssertionError as broken:
            self.stop(ErrorCode.KAFKA_STORAGE_ERROR, f"the log contradicts what was acknowledged: {broken}")

    def _is_deposed_by(self, log: LogState) -> bool:
        """Nothing may be appended behind a leader of a higher epoch, or behind another one of the same."""
        return log.leader_epoch > self._state.leader_epoch or log.is_overtaken

    def _not_rebuilt(self) -> Refused:
        return Refused(
            ErrorCode.KAFKA_STORAGE_ERROR, f"{self.name}: the log could not be read again after a fault; retry later"
        )

    def _step_down(self, leader_epoch: int) -> None:
        self.stop(
            ErrorCode.NOT_LEADER_OR_FOLLOWER,
            f"leader epoch {self._state.leader_epoch} was fenced by a leader of epoch {leader_epoch}",
        )

    def stop(self, code: ErrorCode, reason: str) -> None:
        """Stop serving from now on; every request gets `code` and the reason."""
        _log.error("partition stopped: %s", reason, extra=self._fields())
        self._refuse_from_now_on(Refused(code, f"{self.name}: {reason}"))

    async def close(self, reason: Refused) -> None:
        """Refuse all that comes and all that waits, and return when nothing touches the table."""
        self._refuse_from_now_on(reason)
        if self._writer is not None:
            await asyncio.wait([self._writer])
        await self._upkeep.join()
        self._cache.clear(self._tail)

    def _refuse_from_now_on(self, reason: Refused) -> None:
        self._stopped = reason
        self._upkeep.stop(reason)
        if self._writer is None:
            self._queue.refuse_all(reason)
        self._cache.clear(self._tail)
        self.wake_readers()

    # ------------------------------------------------------------------ reading

    def decide_fetch(self, offset: int, current_leader_epoch: int | None) -> Readable | Refused:
        return self._stopped or decide_fetch(self._state, offset, current_leader_epoch)

    def bytes_available(self, readable: Readable, enough: int) -> int:
        """How much a fetch would find, counted up to `enough`. What lies in files only counts as enough."""
        if readable.offset >= readable.end_offset:
            return 0
        start = self._tail.start_offset
        if start is None or readable.offset < start:
            return enough
        return self._tail.bytes_from(readable.offset, enough)

    async def read(self, readable: Readable, max_bytes: int) -> ReadResult | Refused:
        """Where records are missing, those of the next one that is left, or none if none is left before the end that
        was readable when the fetch was decided. Refused if the records were deleted meanwhile. Raises `StorageFault` if
        a file cannot be read."""
        state = self._state
        batches: Sequence[LogBatch] = ()
        if readable.offset < readable.end_offset:
            batches = self._tail.read(readable.offset, max_bytes)
            if not batches:
                call = functools.partial(
                    self._table.read, readable.offset, end_offset=readable.end_offset, max_bytes=max_bytes
                )
                batches = await self._calls.read(call)
                if readable.offset < self._state.log_start:
                    return refuse_offset(self._state, readable.offset)
        return ReadResult(batches, state.high_watermark, state.log_start, state.version)

    async def list_offset(self, timestamp_ms: int, current_leader_epoch: int | None) -> ListedOffset | Refused:
        if self._stopped is not None:
            return self._stopped
        decision = decide_list_offsets(self._state, timestamp_ms, current_leader_epoch)
        if not isinstance(decision, SearchTimestamp):
            return decision
        search = self._table.find_max_timestamp
        if decision.timestamp_ms is not None:
            search = functools.partial(self._table.find_timestamp, decision.timestamp_ms)
        try:
            found = await self._calls.read(search)
        except StorageFault as fault:
            return refuse_read(self.name, fault, self.stop)
        if found is None:
            return ListedOffset(-1, -1, self._state.leader_epoch)
        return ListedOffset(found.offset, found.timestamp_ms, found.leader_epoch)

    async def list_offset_at(self, version: int, current_leader_epoch: int | None) -> ListedOffset | Refused:
        """The high watermark that `version` left; offset -1 if it is not there, or not there any more."""
        bound = await self.list_offset(LATEST_TIMESTAMP, current_leader_epoch)
        if isinstance(bound, Refused):
            return bound
        try:
            found = await self._calls.read(functools.partial(self._table.high_watermark_at, version))
        except RecordsDamaged as damage:
            return refuse_read(self.name, damage, self.stop)
        return ListedOffset(-1 if found is None else found, -1, bound.leader_epoch)

    def add_reader(self, event: asyncio.Event) -> None:
        """Have `event` set at every commit, until `remove_reader`."""
        self._readers.add(event)

    def remove_reader(self, event: asyncio.Event) -> None:
        self._readers.discard(event)

    def wake_readers(self) -> None:
        for event in self._readers:
            event.set()

    def _fields(self, **more: object) -> dict[str, object]:
        return {"topic": self.name.topic, "partition": self.name.partition, "version": self._state.version, **more}


def refuse_read(name: TopicPartition, fault: StorageFault, stop: Callable[[ErrorCode, str], None]) -> Refused:
    """The answer to a read that failed. Damaged records are CORRUPT_MESSAGE, as in Kafka: a client does not wait for
    them to come back, but tells its user. A damaged log stops the partition; any other fault may pass."""
    if isinstance(fault, RecordsDamaged):
        _log.error("records cannot be read: %s", fault, extra={"topic": name.topic, "partition": name.partition})
        return Refused(ErrorCode.CORRUPT_MESSAGE, f"{name}: {fault}; {show_way_out(name.topic, name.partition)}")
    if isinstance(fault, StorageDamaged):
        stop(ErrorCode.KAFKA_STORAGE_ERROR, str(fault))
    else:
        _log.error("read failed: %s", fault, extra={"topic": name.topic, "partition": name.partition})
    return Refused(ErrorCode.KAFKA_STORAGE_ERROR, f"{name}: {fault}")


def _new_future() -> asyncio.Future[T]:
    return asyncio.get_running_loop().create_future()


def _loop_ms() -> float:
    return asyncio.get_running_loop().time() * 1000
