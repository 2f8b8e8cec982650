"""One partition on its leader: the writer loop, the tail in memory, and those who wait for the next commit.

Theory of operation. Batches wait in a queue; the writer, a task that lives only while there are any, takes all that
have gathered, gives them offsets, commits them as one Delta version in a thread, and only then answers and wakes
readers. So one commit is in flight at a time, and an answer never precedes its commit. If the table is not where
memory thinks it is (a conflict, an outcome that nobody knows, a fault), memory is dropped and rebuilt from the log.
What cannot be rebuilt without losing or inventing a record stops this partition, and no other.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from bus.errors import ErrorCode, Refused, StorageDamaged, StorageFault
from bus.model import LogBatch, RecordBatch, TopicPartition
from bus.partition_log.appends import ACKS_LEADER, ACKS_NONE, AppendRules, decide_append
from bus.partition_log.pacing import Pacing, decide_delay_ms, refill, spend, start_pacing
from bus.partition_log.reads import ListedOffset, Readable, SearchTimestamp, decide_fetch, decide_list_offsets
from bus.partition_log.state import (
    CommitFailed,
    CommitSucceeded,
    LogReloaded,
    PartitionState,
    apply,
)
from bus.ports import Clock, CommitOutcome, Committed, Conflicted, PartitionTable, Unknown
from bus.runtime.blocking import BlockingCalls
from bus.runtime.tail_cache import Tail, TailCache
from bus.runtime.tasks import TaskScope

_log = logging.getLogger(__name__)

# One commit takes so much of what waits: bounds memory while it is encoded, and the time the next one waits.
COMMIT_BYTES_MAX = 32 * 1024 * 1024
# A leader that loses so many races in a row against writers without a higher epoch gives the records back.
CONFLICTS_MAX = 10
_NOT_REBUILT = "{}: the log could not be read again after a fault; retry later"


@dataclass(frozen=True, slots=True)
class PartitionSettings:
    """A topic's configs as its partitions use them."""

    append_rules: AppendRules
    compression: str
    commit_interval_ms: int
    commit_burst: int


@dataclass(frozen=True, slots=True)
class Appended:
    """`version` is -1 while the records are not committed (acks=1), `base_offset` too if nobody wants to know (0)."""

    base_offset: int
    version: int
    log_append_time_ms: int
    log_start: int


AppendResult = Appended | Refused


@dataclass(slots=True)
class _Waiting:
    batch: RecordBatch
    acks: int
    current_leader_epoch: int | None
    request_id: str
    answer: asyncio.Future[AppendResult]


@dataclass(frozen=True, slots=True)
class _Placed:
    waiting: _Waiting
    batch: LogBatch


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
    ) -> None:
        self.name = name
        self._table = table
        self._queue_bytes_max = queue_bytes_max
        self._clock = clock
        self._calls = calls
        self._cache = cache
        self._tasks = tasks
        log = table.state
        self._state = PartitionState(
            log.log_start, log.high_watermark, log.high_watermark, leader_epoch=leader_epoch, version=log.version
        )
        self._tail = Tail()
        self._queue: deque[_Waiting] = deque()
        self._queue_bytes = 0
        self._writer: asyncio.Task[None] | None = None
        self._full_commit = asyncio.Event()
        self._readers: set[asyncio.Event] = set()
        self._stopped: Refused | None = None
        self._is_rebuild_due = False  # memory may be wrong, and the log could not be read yet
        self._checkpoint: asyncio.Task[None] | None = None
        self.configure(settings)

    def configure(self, settings: PartitionSettings) -> None:
        """Take new topic configs; they count from the next batch on."""
        self._settings = settings
        self._pacing: Pacing = start_pacing(settings.commit_interval_ms, settings.commit_burst, _monotonic_ms())

    @property
    def state(self) -> PartitionState:
        return self._state

    @property
    def stopped(self) -> Refused | None:
        """Why this partition serves nobody; None while it serves."""
        return self._stopped

    # ------------------------------------------------------------------ writing

    def append(
        self, batch: RecordBatch, *, acks: int, current_leader_epoch: int | None, request_id: str
    ) -> asyncio.Future[AppendResult]:
        """Queue a batch behind all that came before it. The future never fails: a refusal is its result."""
        answer: asyncio.Future[AppendResult] = asyncio.get_running_loop().create_future()
        if self._stopped is not None:
            answer.set_result(self._stopped)
            return answer
        if self._queue and self._queue_bytes + batch.size_bytes > self._queue_bytes_max:
            answer.set_result(
                Refused(
                    ErrorCode.THROTTLING_QUOTA_EXCEEDED,
                    f"{self.name} has {self._queue_bytes} bytes waiting for a commit, "
                    f"{batch.size_bytes} more would exceed queued.max.bytes={self._queue_bytes_max}; retry later",
                )
            )
            return answer
        self._queue.append(_Waiting(batch, acks, current_leader_epoch, request_id, answer))
        self._queue_bytes += batch.size_bytes
        if acks == ACKS_NONE:
            answer.set_result(Appended(-1, -1, -1, self._state.log_start))
        if self._writer is None:
            self._writer = self._tasks.start(self._write(), str(self.name))
        elif decide_delay_ms(self._pacing, self._queue_bytes) == 0:
            self._full_commit.set()
        return answer

    async def _write(self) -> None:
        """The writer loop; ends when nothing waits."""
        try:
            while self._queue and self._stopped is None:
                await self._wait_for_pacing()
                await self._commit(self._take_group())
        except Exception:
            _log.exception("writer of %s failed, rebuilding from the log", self.name, extra=self._fields())
            await self._rebuild()
        finally:
            self._writer = None
            if self._stopped is not None:
                self._refuse_queue(self._stopped)
            elif self._queue:
                self._writer = self._tasks.start(self._write(), str(self.name))

    async def _wait_for_pacing(self) -> None:
        self._pacing = refill(self._pacing, _monotonic_ms())
        delay_ms = decide_delay_ms(self._pacing, self._queue_bytes)
        if delay_ms > 0:
            self._full_commit.clear()
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._full_commit.wait(), delay_ms / 1000)
            self._pacing = refill(self._pacing, _monotonic_ms())
        self._pacing = spend(self._pacing)

    def _take_group(self) -> list[_Waiting]:
        group: list[_Waiting] = []
        size = 0
        while self._queue and (not group or size + self._queue[0].batch.size_bytes <= COMMIT_BYTES_MAX):
            waiting = self._queue.popleft()
            size += waiting.batch.size_bytes
            group.append(waiting)
        self._queue_bytes -= size
        return group

    async def _commit(self, group: list[_Waiting]) -> None:
        if self._is_rebuild_due:
            await self._rebuild()
        for _ in range(CONFLICTS_MAX):
            if self._is_rebuild_due or self._stopped is not None:
                _answer(group, self._stopped or Refused(ErrorCode.KAFKA_STORAGE_ERROR, _NOT_REBUILT.format(self.name)))
                return
            placed = self._place(group)
            if not placed:
                return
            group = [item.waiting for item in placed]
            try:
                outcome = await self._append_to_table(placed)
            except StorageFault as fault:
                self._state = apply(self._state, CommitFailed())
                _log.error("commit failed: %s", fault, extra=self._fields())
                _answer(group, Refused(ErrorCode.KAFKA_STORAGE_ERROR, f"{self.name}: {fault}"))
                return
            except BaseException:
                _answer(group, Refused(ErrorCode.UNKNOWN_SERVER_ERROR, f"{self.name}: the commit was interrupted"))
                raise
            match outcome:
                case Committed():
                    self._succeed(placed, outcome)
                    return
                case Unknown(version, reason):
                    message = f"{self.name}: nobody knows whether version {version} was committed: {reason}"
                    _log.error(message, extra=self._fields())
                    _answer(group, Refused(ErrorCode.KAFKA_STORAGE_ERROR, message))
                    await self._rebuild()
                    return
                case Conflicted(version, leader_epoch, operation):
                    _log.warning(
                        "version %d was committed by another writer (%s, leader epoch %s)",
                        version,
                        operation,
                        leader_epoch,
                        extra=self._fields(),
                    )
                    if leader_epoch is not None and leader_epoch > self._state.leader_epoch:
                        self._step_down(leader_epoch)
                    else:
                        await self._rebuild()
        _answer(group, Refused(ErrorCode.KAFKA_STORAGE_ERROR, f"{self.name}: lost {CONFLICTS_MAX} races for a version"))

    def _place(self, group: list[_Waiting]) -> list[_Placed]:
        """Give offsets to all that may have them; the others are answered here."""
        now_ms = self._clock.now_ms()
        placed: list[_Placed] = []
        for waiting in group:
            step = decide_append(
                self._state,
                waiting.batch,
                self._settings.append_rules,
                now_ms=now_ms,
                current_leader_epoch=waiting.current_leader_epoch,
            )
            for event in step.records:
                self._state = apply(self._state, event)
            if isinstance(step.response, Refused):
                _answer([waiting], step.response)
                continue
            placed.append(_Placed(waiting, step.response))
            if waiting.acks == ACKS_LEADER:
                _answer([waiting], self._appended(step.response, version=-1))
        return placed

    async def _append_to_table(self, placed: list[_Placed]) -> CommitOutcome:
        call = functools.partial(
            self._table.append,
            [item.batch for item in placed],
            leader_epoch=self._state.leader_epoch,
            now_ms=self._clock.now_ms(),
            compression=self._settings.compression,
        )
        return await self._calls.commit(call)

    def _succeed(self, placed: list[_Placed], outcome: Committed) -> None:
        self._state = apply(self._state, CommitSucceeded(outcome.version, outcome.high_watermark))
        assert self._state.high_watermark == self._state.log_end, f"{self.name} has records past its commit"
        for item in placed:
            _answer([item.waiting], self._appended(item.batch, version=outcome.version))
        self._cache.extend(self._tail, [item.batch for item in placed])
        self.wake_readers()
        if _log.isEnabledFor(logging.DEBUG):
            _log.debug(
                "committed %d records up to offset %d",
                sum(item.batch.record_count for item in placed),
                outcome.high_watermark,
                extra=self._fields(requests=",".join(item.waiting.request_id for item in placed)),
            )
        if self._table.is_checkpoint_due and self._checkpoint is None:
            self._checkpoint = self._tasks.start(self._write_checkpoint(), f"{self.name}/checkpoint")

    def _appended(self, batch: LogBatch, *, version: int) -> Appended:
        is_append_time = batch.timestamp_type.value == 1
        time_ms = batch.timestamp_ms if is_append_time and batch.timestamp_ms is not None else -1
        return Appended(batch.base_offset, version, time_ms, self._state.log_start)

    async def _write_checkpoint(self) -> None:
        started = time.monotonic()
        try:
            await self._calls.maintain(self._table.write_checkpoint)
            _log.debug("checkpoint written in %.0f ms", (time.monotonic() - started) * 1000, extra=self._fields())
        except StorageFault as fault:
            # The log is whole without it; the next commit makes it due again.
            _log.warning("checkpoint failed: %s", fault, extra=self._fields())
        finally:
            self._checkpoint = None

    async def _rebuild(self) -> None:
        """Drop what memory knows and read the log again. A damaged log stops the partition; one that cannot be read
        for now is tried again before the next commit."""
        self._cache.clear(self._tail)
        self._is_rebuild_due = True
        if self._checkpoint is not None:
            await asyncio.wait([self._checkpoint])  # the table does not reload beside it
        try:
            log = await self._calls.commit(self._table.reload)
            self._state = apply(self._state, LogReloaded(log.log_start, log.high_watermark, log.version))
            self._is_rebuild_due = False
            self.wake_readers()
        except StorageDamaged as damage:
            self.stop(ErrorCode.KAFKA_STORAGE_ERROR, str(damage))
        except StorageFault as fault:
            _log.error("the log cannot be read again for now: %s", fault, extra=self._fields())
        except AssertionError as broken:
            self.stop(ErrorCode.KAFKA_STORAGE_ERROR, f"the log contradicts what was acknowledged: {broken}")

    def _step_down(self, leader_epoch: int) -> None:
        self.stop(
            ErrorCode.NOT_LEADER_OR_FOLLOWER,
            f"leader epoch {self._state.leader_epoch} was fenced by a leader of epoch {leader_epoch}",
        )

    def stop(self, code: ErrorCode, reason: str) -> None:
        """Serve nobody from now on; every request gets `code` and the reason."""
        self._stopped = Refused(code, f"{self.name}: {reason}")
        _log.error("partition stopped: %s", reason, extra=self._fields())
        self._cache.clear(self._tail)
        if self._writer is None:
            self._refuse_queue(self._stopped)
        self.wake_readers()

    def _refuse_queue(self, refusal: Refused) -> None:
        _answer(self._queue, refusal)
        self._queue.clear()
        self._queue_bytes = 0

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

    async def read(self, readable: Readable, max_bytes: int) -> ReadResult:
        """At least one batch, if there is a record. Raises `StorageFault` if a file cannot be read."""
        state = self._state
        batches: Sequence[LogBatch] = ()
        if readable.offset < readable.end_offset:
            batches = self._tail.read(readable.offset, max_bytes)
            if not batches:
                call = functools.partial(
                    self._table.read, readable.offset, end_offset=readable.end_offset, max_bytes=max_bytes
                )
                batches = await self._calls.read(call)
            assert batches, f"{self.name}: nothing at {readable.offset}, though readable to {readable.end_offset}"
            found = batches[0].base_offset
            assert found <= readable.offset, f"{self.name}: asked for offset {readable.offset}, found {found}"
        return ReadResult(batches, state.high_watermark, state.log_start, state.version)

    async def list_offset(self, timestamp_ms: int, current_leader_epoch: int | None) -> ListedOffset | Refused:
        if self._stopped is not None:
            return self._stopped
        decision = decide_list_offsets(self._state, timestamp_ms, current_leader_epoch)
        if not isinstance(decision, SearchTimestamp):
            return decision
        if decision.timestamp_ms is None:
            found = await self._calls.read(self._table.find_max_timestamp)
        else:
            found = await self._calls.read(functools.partial(self._table.find_timestamp, decision.timestamp_ms))
        if found is None:
            return ListedOffset(-1, -1, self._state.leader_epoch)
        return ListedOffset(found.offset, found.timestamp_ms, found.leader_epoch)

    def add_reader(self, event: asyncio.Event) -> None:
        """Have `event` set at every commit, until `remove_reader`."""
        self._readers.add(event)

    def remove_reader(self, event: asyncio.Event) -> None:
        self._readers.discard(event)

    def wake_readers(self) -> None:
        for event in self._readers:
            event.set()

    async def retire(self) -> None:
        """The topic is deleted: refuse all that comes and all that waits, and return when no commit is in flight."""
        self._stopped = Refused(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"topic {self.name.topic} was deleted")
        if self._writer is None:
            self._refuse_queue(self._stopped)
        else:
            await asyncio.wait([self._writer])
        self._cache.clear(self._tail)
        self.wake_readers()

    def _fields(self, **more: object) -> dict[str, object]:
        return {"topic": self.name.topic, "partition": self.name.partition, "version": self._state.version, **more}


def _answer(group: Sequence[_Waiting] | deque[_Waiting], result: AppendResult) -> None:
    """Those who have an answer already (acks 0 and 1), or have gone, are passed over."""
    for waiting in group:
        if not waiting.answer.done():
            waiting.answer.set_result(result)


def _monotonic_ms() -> float:
    return time.monotonic() * 1000
