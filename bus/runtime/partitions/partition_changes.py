"""The writer's commits that add no record: files swapped for others, and records that go.

Guards one promise: memory follows the log, whatever becomes of such a commit. What it commits was prepared beside the
writer, or is decided here, between two appends; no records wait for anything but the commit itself.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from typing import Protocol

from bus.errors import ErrorCode, Refused, StorageFault, VersionReplaced
from bus.model import TopicPartition
from bus.partition_log.retention import decide_delete_records
from bus.partition_log.state import CommitSucceeded, LogEvent, LogStartAdvanced, PartitionState
from bus.ports import Clock, CommitOutcome, Committed, Conflicted, PreparedFiles, TableChanges, Unknown
from bus.runtime.blocking import BlockingCalls
from bus.runtime.partitions.maintenance import DeleteRecordsResult, FilesSwapped, RecordsDeleted, SwapResult
from bus.runtime.partitions.orphan_deletion import OrphanDeletion
from bus.runtime.partitions.partition_queue import (
    WaitingCatchUp,
    WaitingChange,
    WaitingDelete,
    WaitingOrphans,
    WaitingSwap,
    refuse,
)

_log = logging.getLogger(__name__)

# So many races lost in a row against writers without a higher epoch are enough.
CONFLICTS_MAX = 10


class Leader(Protocol):
    """The partition, as its changes see it. All of it in the writer's place."""

    @property
    def state(self) -> PartitionState: ...

    async def check_ready(self) -> Refused | None:
        """Why nothing can be committed now; memory is what the log says if it returns None."""
        ...

    async def rebuild(self) -> None:
        """Read the log again."""
        ...

    async def lose(self, conflict: Conflicted) -> None:
        """Another writer has the version."""
        ...

    def stop(self, code: ErrorCode, reason: str) -> None:
        """The log is not what was committed: serve no more."""
        ...

    def follow(self, event: LogEvent) -> None:
        """Committed: it counts, and who waits is told."""
        ...


class PartitionChanges:
    def __init__(
        self, name: TopicPartition, table: TableChanges, leader: Leader, *, clock: Clock, calls: BlockingCalls
    ) -> None:
        self._name = name
        self._table = table
        self._leader = leader
        self._clock = clock
        self._calls = calls

    async def make(self, waiting: WaitingChange) -> None:
        """Whatever happens, it gets its answer."""
        try:
            match waiting:
                case WaitingDelete(offset, may_delete, answer):
                    deleted = await self._delete_below(offset, may_delete=may_delete)
                    if not answer.done():
                        answer.set_result(deleted)
                case WaitingSwap(prepared, is_ours, answer):
                    swapped = await self._swap(prepared, is_ours=is_ours)
                    if not answer.done():
                        answer.set_result(swapped)
                case WaitingOrphans(orphans, answer):
                    deleted_count = await self._delete_orphans(orphans)
                    if not answer.done():
                        answer.set_result(deleted_count)
                case WaitingCatchUp(answer):
                    refusal = await self._leader.check_ready()
                    if not answer.done():
                        answer.set_result(refusal)
        finally:
            refuse([waiting], self._refuse(ErrorCode.UNKNOWN_SERVER_ERROR, "the change was interrupted"))

    async def _delete_below(self, offset: int, *, may_delete: bool) -> DeleteRecordsResult:
        """A foreign commit that comes between changes nothing about what is wanted."""
        for _ in range(CONFLICTS_MAX):
            refusal = await self._leader.check_ready()
            if refusal is not None:
                return refusal
            state = self._leader.state
            log_start = decide_delete_records(state, offset, may_delete=may_delete)
            if isinstance(log_start, Refused):
                return self._refuse(log_start.code, log_start.message)
            if log_start == state.log_start:
                return RecordsDeleted(log_start, state.version)
            outcome = await self._commit(
                functools.partial(
                    self._table.advance_log_start,
                    log_start,
                    leader_epoch=state.leader_epoch,
                    now_ms=self._clock.now_ms(),
                )
            )
            if isinstance(outcome, Committed):
                self._leader.follow(LogStartAdvanced(outcome.version, log_start))
                return RecordsDeleted(log_start, outcome.version)
            if isinstance(outcome, Refused):
                return outcome
        return self._refuse(ErrorCode.KAFKA_STORAGE_ERROR, f"lost {CONFLICTS_MAX} races for a version")

    async def _swap(self, prepared: PreparedFiles, *, is_ours: bool) -> SwapResult:
        refusal = await self._leader.check_ready()
        if refusal is not None:
            return refusal
        state = self._leader.state
        moved = self._refuse(ErrorCode.INVALID_REQUEST, "expected live files to replace, found some gone")
        if not is_ours and not {file.path for file in self._table.files}.issuperset(prepared.removes):
            return moved  # the table would remove what is to replace them
        outcome = await self._commit(
            functools.partial(
                self._table.swap_files, prepared, leader_epoch=state.leader_epoch, now_ms=self._clock.now_ms()
            )
        )
        match outcome:
            case Committed(version, high_watermark):
                self._leader.follow(CommitSucceeded(version, high_watermark))
                return FilesSwapped(version)
            case Conflicted(version, _, operation) if version > state.version:
                reason = f"version {version} was committed by another writer ({operation})"
                return self._refuse(ErrorCode.KAFKA_STORAGE_ERROR, reason)
            case Conflicted():
                return moved
            case Refused():
                return outcome

    async def _delete_orphans(self, orphans: frozenset[str]) -> int | Refused:
        """In the writer's place, since the table may commit a version that keeps other leaders out."""
        refusal = await self._leader.check_ready()
        if refusal is not None:
            return refusal
        deletion = OrphanDeletion(self._table, orphans)
        outcome = await self._commit(deletion)
        match outcome:
            case Committed(version, high_watermark):
                if version > self._leader.state.version:
                    self._leader.follow(CommitSucceeded(version, high_watermark))
                return deletion.count
            case Conflicted(version, _, operation):
                reason = f"version {version} was committed by another writer ({operation}); no orphan was deleted"
                return self._refuse(ErrorCode.KAFKA_STORAGE_ERROR, reason)
            case Refused():
                return outcome

    async def _commit(self, call: Callable[[], CommitOutcome]) -> Committed | Conflicted | Refused:
        """What the commit means is the caller's to apply; after any other outcome memory follows the log. A conflict
        with a version that is known is none with another writer: the table itself has refused."""
        try:
            outcome = await self._calls.commit(call)
        except VersionReplaced as damage:
            self._leader.stop(ErrorCode.KAFKA_STORAGE_ERROR, str(damage))
            return self._refuse(ErrorCode.KAFKA_STORAGE_ERROR, str(damage))
        except StorageFault as fault:
            return self._refuse(ErrorCode.KAFKA_STORAGE_ERROR, str(fault))
        match outcome:
            case Unknown(version, reason):
                message = f"nobody knows whether version {version} was committed: {reason}"
                _log.error(message, extra=self._fields())
                await self._leader.rebuild()
                return self._refuse(ErrorCode.KAFKA_STORAGE_ERROR, message)
            case Conflicted(version, _, operation) if version > self._leader.state.version:
                _log.warning(
                    "version %d was committed by another writer (%s)", version, operation, extra=self._fields()
                )
                await self._leader.lose(outcome)
        return outcome

    def _refuse(self, code: ErrorCode, message: str) -> Refused:
        return Refused(code, f"{self._name}: {message}")

    def _fields(self) -> dict[str, object]:
        return {"topic": self._name.topic, "partition": self._name.partition, "version": self._leader.state.version}
