"""Proof that this broker still leads what it answers for.

A broker that stood still may have been fenced meanwhile, and others lead its partitions. It cannot commit, since their
fences are in the logs; but it could answer from memory, with an end of the log or a committed offset of yesterday.
Guards two promises. What a broker answers as a leader was decided on cluster metadata that were the last ones after it
was asked, or not longer than `PROOF_MS` before. The broker's life in the cluster looks at the log more often than that,
so a request waits for a look only behind a stall. And an answer that must not be older than the question, such as a
committed offset, which a successor may have replaced by now, rests on a look that began after the question.
"""

from __future__ import annotations

import asyncio

from bus.errors import ErrorCode, Refused, StorageFault
from bus.ports import Clock
from bus.runtime.metadata.metadata_log import MetadataLog
from bus.runtime.tasks import TaskScope

PROOF_MS = 1_000


class LeadershipProof:
    def __init__(self, metadata: MetadataLog, *, broker_id: int, clock: Clock, tasks: TaskScope) -> None:
        self._metadata = metadata
        self._broker_id = broker_id
        self._clock = clock
        self._tasks = tasks
        self._looking: asyncio.Task[None] | None = None
        self._fault: StorageFault | None = None  # of the last look

    @property
    def is_fresh(self) -> bool:
        """By both clocks: a virtual machine that is moved may stop the one that only goes forward. A wall clock
        that was set back tells nothing."""
        confirmed = self._metadata.confirmed
        return (
            self._clock.monotonic_ms() - confirmed.monotonic_ms < PROOF_MS
            and abs(self._clock.now_ms() - confirmed.wall_ms) < PROOF_MS
        )

    async def wait(self, *, by_new_look: bool = False) -> Refused | None:
        """Wait until there is a proof, with `by_new_look` one by a look that begins after this call: for an answer that
        must not be older than its question. What this broker does not lead any more is closed by then. Returns
        NOT_LEADER_OR_FOLLOWER if the cluster metadata cannot be read."""
        if not by_new_look and self.is_fresh:
            return None
        called_ms = self._clock.monotonic_ms()
        for _ in range(2):  # the first look may have begun long before this call
            looking = self._looking
            if looking is None:
                looking = self._looking = self._tasks.start(self._look(), "leadership proof")
            await asyncio.wait([looking])
            has_looked = self._metadata.confirmed.monotonic_ms >= called_ms  # however long the look took
            if has_looked or (not by_new_look and self.is_fresh):
                return None
        if self._metadata.cluster.is_alone(self._broker_id):
            return None
        why = self._fault or "its metadata could not be compared with the log"
        reason = f"this broker cannot tell whether it still leads its partitions: {why}"
        return Refused(ErrorCode.NOT_LEADER_OR_FOLLOWER, reason)

    async def _look(self) -> None:
        self._fault = None
        try:
            await self._metadata.confirm()
        except StorageFault as fault:
            self._fault = fault
        finally:
            self._looking = None
