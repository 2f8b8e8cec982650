"""Placing: each waiting batch of a group gets its offsets for the next commit, or its answer at once.

Nothing that is placed is in the log, or known to anybody but those who asked for acks=1, until its commit succeeds.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from bus.errors import ErrorCode, Refused, StorageFault
from bus.model import LogBatch, RecordBatch
from bus.partition_log.appends import ACKS_LEADER, AppendDecision, AppendRules, NoTrace, TableAnswer, decide_append
from bus.partition_log.producers import (
    NONE_YET,
    AppendedBatch,
    AskTable,
    Found,
    ProducerStates,
    Question,
    Repeat,
    complete_offsets,
    decide_resume,
    log_append_time_ms,
)
from bus.partition_log.state import PartitionState, apply
from bus.ports import ProducerMatch, TableProducers
from bus.runtime.blocking import BlockingCalls
from bus.runtime.partitions.partition_queue import (
    Appended,
    ProducerResumed,
    ResumeResult,
    WaitingBatch,
    answer,
    answer_early,
)

# How often idle producers are looked for.
_FORGET_INTERVAL_MS = 60_000


class PartitionProducers:
    """The idempotent producers of one partition on its leader: memory, and the table behind it.

    Theory of operation. Memory (`ProducerStates`) decides about nearly every batch. The table decides about the others,
    in a thread, and only while no commit is in flight: so its answer is still true when the writer acts on it.
    Producers that were idle for `producer.id.expiration.ms` leave memory; their rows stay, and show their last sequence
    if they return.
    """

    def __init__(self, table: TableProducers, calls: BlockingCalls) -> None:
        self.states = ProducerStates()
        self._table = table
        self._calls = calls
        self._forgot_at_ms = 0

    def load(self, *, now_ms: int, expiration_ms: int) -> None:
        """Load the producers of the log, except those that are idle for too long."""
        forgotten_max = self._table.forget(updated_before_ms=now_ms - expiration_ms)
        self.states.reload(self._table.progress, forgotten_max=forgotten_max)
        self._forgot_at_ms = now_ms

    def forget_idle(self, *, now_ms: int, expiration_ms: int) -> None:
        """To be called as often as one likes, between two commits."""
        if 0 <= now_ms - self._forgot_at_ms < _FORGET_INTERVAL_MS:
            return
        self._forgot_at_ms = now_ms
        idle_since_ms = now_ms - expiration_ms
        self.states.forget(idle_since_ms=idle_since_ms)
        self._table.forget(updated_before_ms=idle_since_ms)

    async def ask(self, question: Question, batch: RecordBatch, *, now_ms: int) -> TableAnswer | None:
        """The table's answer about a stamped batch; None: memory knows the producer again. Raises `StorageFault`."""
        assert batch.producer is not None
        match question:
            case Question.MATCH_PRODUCER:
                return await self._calls.read(functools.partial(self._table.match, batch))
            case Question.FIND_LAST_SEQUENCE:
                is_known = await self._recall(batch.producer.producer_id, now_ms)
                return None if is_known else NoTrace()

    async def resume(self, producer_id: int, producer_epoch: int, *, version: int, now_ms: int) -> ResumeResult:
        """Fence lower epochs of the producer, and tell where it stands in `version`, the last one. Not beside a
        commit. Raises `StorageFault`."""
        if self.states.get(producer_id) is None and producer_id <= self.states.forgotten_max:
            await self._recall(producer_id, now_ms)
        state = decide_resume(
            self.states.get(producer_id),
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            fence=self.states.fence_of(producer_id),
        )
        if isinstance(state, Refused):
            return state
        self.states.fence(producer_id, producer_epoch=producer_epoch, now_ms=now_ms)
        has_records = state.last_sequence != NONE_YET
        return ProducerResumed(state.last_sequence, state.producer_epoch, version if has_records else -1)

    async def _recall(self, producer_id: int, now_ms: int) -> bool:
        progress = await self._calls.read(functools.partial(self._table.find_last_sequence, producer_id))
        if progress is not None:
            self.states.remember(progress, now_ms=now_ms)
        return progress is not None


@dataclass(slots=True)
class PlacedBatch:
    """Its answer waits for the commit. `batch` None: it repeats another one of the same commit."""

    waiting: WaitingBatch
    batch: LogBatch | None
    base_offset: int
    log_append_time_ms: int
    offsets: Sequence[int] | None = None

    def answer(self, *, version: int, log_start: int) -> None:
        answer(self.waiting, self._appended(version, log_start))

    def answer_early(self, *, log_start: int) -> None:
        """It is not committed yet."""
        answer_early(self.waiting, self._appended(-1, log_start))

    def _appended(self, version: int, log_start: int) -> Appended:
        return Appended(self.base_offset, version, self.log_append_time_ms, log_start, self.offsets)


@dataclass(frozen=True, slots=True)
class Placement:
    """The outcome of placing. `rest` waits for the commit of `placed`: it begins with a batch about which the table has
    to decide. If nothing is placed, `rest` is what a partition that stopped meanwhile did not reach."""

    state: PartitionState
    placed: Sequence[PlacedBatch]
    rest: Sequence[WaitingBatch]

    @property
    def waiting(self) -> list[WaitingBatch]:
        return [item.waiting for item in self.placed]

    @property
    def batches(self) -> list[LogBatch]:
        return [item.batch for item in self.placed if item.batch is not None]


class Placing:
    """One pass over a group. `state` is the partition's, advanced by each batch. `placed`: batches that got their
    offsets before, for the same commit."""

    def __init__(
        self,
        name: str,
        state: PartitionState,
        rules: AppendRules,
        producers: PartitionProducers,
        *,
        now_ms: int,
        placed: Sequence[PlacedBatch] = (),
    ) -> None:
        self._name = name
        self._state = state
        self._rules = rules
        self._producers = producers
        self._now_ms = now_ms
        self._placed = list(placed)

    async def place(self, group: Sequence[WaitingBatch], *, is_stopped: Callable[[], bool]) -> Placement:
        """Not while a commit is in flight."""
        for position, waiting in enumerate(group):
            table_answer: TableAnswer | Refused | None = None
            decision = self._decide(waiting)
            while isinstance(decision, AskTable):
                if self._placed:
                    return self._placement(group[position:])
                table_answer = await self._ask(decision, waiting)
                if is_stopped():
                    return self._placement(group[position:])
                decision = table_answer if isinstance(table_answer, Refused) else self._decide(waiting, table_answer)
            self._act(waiting, decision, table_answer)
        return self._placement(())

    def _placement(self, rest: Sequence[WaitingBatch]) -> Placement:
        return Placement(self._state, self._placed, rest)

    def _decide(self, waiting: WaitingBatch, table_answer: TableAnswer | None = None) -> AppendDecision:
        step = decide_append(
            self._state,
            waiting.batch,
            self._rules,
            now_ms=self._now_ms,
            current_leader_epoch=waiting.current_leader_epoch,
            producers=self._producers.states,
            answer=table_answer,
        )
        for event in step.records:
            self._state = apply(self._state, event)
        return step.response

    async def _ask(self, question: AskTable, waiting: WaitingBatch) -> TableAnswer | Refused | None:
        try:
            return await self._producers.ask(question.question, waiting.batch, now_ms=self._now_ms)
        except StorageFault as fault:
            return Refused(ErrorCode.KAFKA_STORAGE_ERROR, f"{self._name}: {fault}")

    def _act(
        self,
        waiting: WaitingBatch,
        decision: LogBatch | Repeat | Found | Refused,
        table_answer: TableAnswer | Refused | None,
    ) -> None:
        match decision:
            case LogBatch():
                self._wait_for_commit(self._place(waiting, decision, table_answer))
            case Repeat(original) if original.base_offset >= self._state.high_watermark:
                self._wait_for_commit(PlacedBatch(waiting, None, original.base_offset, original.log_append_time_ms))
            case Repeat(original):
                answer(waiting, self._repeated(original))
            case Found(offsets):
                answer(waiting, self._found(offsets))
            case Refused():
                answer(waiting, decision)

    def _wait_for_commit(self, placed: PlacedBatch) -> None:
        self._placed.append(placed)
        if placed.waiting.acks == ACKS_LEADER:
            placed.answer_early(log_start=self._state.log_start)

    def _place(self, waiting: WaitingBatch, batch: LogBatch, table_answer: TableAnswer | Refused | None) -> PlacedBatch:
        if batch.producer is not None:
            self._producers.states.place(batch, version=self._state.version + 1, now_ms=self._now_ms)
        offsets = None
        if isinstance(table_answer, ProducerMatch):
            offsets = complete_offsets(table_answer.offsets, base_offset=batch.base_offset)
        base_offset = offsets[0] if offsets else batch.base_offset
        return PlacedBatch(waiting, batch, base_offset, log_append_time_ms(batch), offsets)

    def _repeated(self, original: AppendedBatch) -> Appended:
        return Appended(original.base_offset, original.version, original.log_append_time_ms, self._state.log_start)

    def _found(self, offsets: Sequence[int]) -> Appended:
        """The table has these records, so every version from now on does."""
        base = offsets[0]
        is_dense = base >= 0 and all(offset == base + position for position, offset in enumerate(offsets))
        return Appended(base, self._state.version, -1, self._state.log_start, None if is_dense else offsets)
