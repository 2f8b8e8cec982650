"""The idempotent producers of one partition on its leader: what memory knows of them, and the table behind it.

Theory of operation. Memory (`ProducerStates`) decides about nearly every batch. What it cannot decide the table does,
in a thread, and only while no commit is in flight: so its answer is still true when the writer acts on it. Producers
that were idle for `producer.id.expiration.ms` leave memory; their rows stay, and tell where they stood if they return.
"""

from __future__ import annotations

import functools

from bus.errors import Refused
from bus.model import RecordBatch
from bus.partition_log.appends import NoTrace, TableAnswer
from bus.partition_log.producer_states import ProducerStates
from bus.partition_log.producers import NONE_YET, Question, decide_resume
from bus.ports import ProducerIndex
from bus.runtime.blocking import BlockingCalls
from bus.runtime.partitions.partition_queue import ProducerResumed, ResumeResult

# How often idle producers are looked for.
_FORGET_INTERVAL_MS = 60_000


class PartitionProducers:
    def __init__(self, table: ProducerIndex, calls: BlockingCalls) -> None:
        self.states = ProducerStates()
        self._table = table
        self._calls = calls
        self._forgot_at_ms = 0

    def load(self, *, now_ms: int, expiration_ms: int) -> None:
        """Take what the log says, but for those that are idle for too long."""
        forgotten_max = self._table.forget_producers(updated_before_ms=now_ms - expiration_ms)
        self.states.reload(self._table.producer_progress, forgotten_max=forgotten_max)
        self._forgot_at_ms = now_ms

    def forget_idle(self, *, now_ms: int, expiration_ms: int) -> None:
        """To be called as often as one likes, between two commits."""
        if 0 <= now_ms - self._forgot_at_ms < _FORGET_INTERVAL_MS:
            return
        self._forgot_at_ms = now_ms
        idle_since_ms = now_ms - expiration_ms
        self.states.forget(idle_since_ms=idle_since_ms)
        self._table.forget_producers(updated_before_ms=idle_since_ms)

    async def ask(self, question: Question, batch: RecordBatch, *, now_ms: int) -> TableAnswer | None:
        """The table's answer about a stamped batch; None: memory knows the producer again. Raises `StorageFault`."""
        assert batch.producer is not None
        match question:
            case Question.MATCH_PRODUCER:
                return await self._calls.read(functools.partial(self._table.match_producer, batch))
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
