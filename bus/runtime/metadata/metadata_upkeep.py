"""What keeps the metadata log small: a snapshot of the state now and then, rolling, checkpoints and cleaning.

Theory of operation. Rolling, checkpoints and the deletion of old versions are those of every partition
(partition_upkeep.py); what they commit is committed here, in the place of a change. A snapshot is one append of the
whole state (cluster_metadata/cluster_snapshot.py); when it is there, the log starts with it, and files and versions
before it go. A crash between the two leaves a snapshot that is not used. Guards one promise: a snapshot is written only
if it replays to what memory has.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import itertools
import logging
from collections.abc import Callable
from typing import Protocol

from bus.cluster_metadata.cluster import ClusterState, replay_cluster
from bus.cluster_metadata.cluster_records import encode_record
from bus.cluster_metadata.cluster_snapshot import is_snapshot_due, snapshot_of
from bus.errors import ErrorCode, Refused, StorageFault
from bus.model import CLUSTER_METADATA_TOPIC, TopicPartition
from bus.partition_log.maintenance import MaintenanceRules
from bus.ports import Clock, CommitOutcome, Committed, PartitionTable, PreparedFiles, TypedLog
from bus.runtime.blocking import BlockingCalls
from bus.runtime.partitions.maintenance import (
    DeleteRecordsResult,
    FilesSwapped,
    Maintenance,
    MaintenanceAction,
    RecordsDeleted,
    SwapResult,
)
from bus.runtime.partitions.orphan_deletion import OrphanDeletion
from bus.runtime.partitions.partition_upkeep import PartitionUpkeep
from bus.runtime.tasks import TaskScope

_log = logging.getLogger(__name__)

# So many commits are read in a moment.
_ROLLED_FILES = 50
# After a snapshot that failed.
_RETRY_RECORDS = 100
NAME = TopicPartition(CLUSTER_METADATA_TOPIC, 0)
# A stop waits so long for what is due: else brokers that live for moments would never make their log smaller.
_FINISH_S_MAX = 5.0


class Changes(Protocol):
    """The metadata log, as its upkeep sees it."""

    @property
    def cluster(self) -> ClusterState: ...

    @property
    def leader_epoch(self) -> int: ...

    async def commit_between_changes(self, *commits: Callable[[], CommitOutcome]) -> Committed | Refused:
        """One after the other in the place of a change, up to the first that fails: they say nothing of the cluster,
        and memory is what the log says."""
        ...

    def stop(self, code: ErrorCode, reason: str) -> None:
        """The log is not what was committed: change nothing more."""
        ...


class MetadataUpkeep:
    def __init__(
        self,
        log: TypedLog,
        changes: Changes,
        *,
        rules: MaintenanceRules,
        clock: Clock,
        calls: BlockingCalls,
        tasks: TaskScope,
        maintenance: Maintenance,
    ) -> None:
        self._log = log
        self._table: PartitionTable = log.table
        self._changes = changes
        self._clock = clock
        self._tasks = tasks
        self._snapshot: asyncio.Task[None] | None = None
        self._no_snapshot_before = 0  # high watermark
        self._roll_at_files = _ROLLED_FILES
        self._is_stopped = False
        self._upkeep = PartitionUpkeep(
            NAME, self._table, rules=rules, calls=calls, tasks=tasks, maintenance=maintenance, writer=self
        )

    @property
    def name(self) -> TopicPartition:
        return NAME

    @property
    def housekeeping(self) -> asyncio.Lock:
        """To be held while the log is read again."""
        return self._upkeep.housekeeping

    def look_after(self) -> None:
        """To be called now and then; returns at once."""
        self._upkeep.look()
        self._begin_snapshot_if_due()

    def look_after_commit(self) -> None:
        self._upkeep.look_after_commit()
        self._begin_snapshot_if_due()
        self._roll_if_due()

    def _roll_if_due(self) -> None:
        """Sooner than other logs: every start reads all of this one, and most of its files have one record."""
        small = sum(1 for _ in itertools.takewhile(lambda file: file.level == 0, reversed(self._table.files)))
        if small < _ROLLED_FILES:
            self._roll_at_files = _ROLLED_FILES
        elif small >= self._roll_at_files:
            self._roll_at_files = small + _ROLLED_FILES  # if it cannot be done
            self._upkeep.maintain(MaintenanceAction.ROLL)

    async def end(self) -> None:
        """Finish what is due if that takes seconds, and begin nothing more. No change comes any more."""
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._finish(), _FINISH_S_MAX)
        self._is_stopped = True
        if self._snapshot is not None:
            await asyncio.wait([self._snapshot])
        self._upkeep.stop(Refused(ErrorCode.NOT_CONTROLLER, "the broker is shutting down"))
        await self._upkeep.join()

    async def _finish(self) -> None:
        while under_way := [*self._upkeep.under_way, *filter(None, [self._snapshot])]:
            await asyncio.wait(under_way)

    async def write_last_checkpoint(self) -> None:
        """After `end`."""
        await self._upkeep.write_last_checkpoint()

    # ------------------------------------------------------------------ what maintenance commits

    def swap(self, prepared: PreparedFiles, *, is_ours: bool) -> asyncio.Future[SwapResult]:
        return self._tasks.start(self._swap(prepared), "swap")

    async def _swap(self, prepared: PreparedFiles) -> SwapResult:
        committed = await self._commit(functools.partial(self._table.swap_files, prepared))
        return committed if isinstance(committed, Refused) else FilesSwapped(committed.version)

    def delete_below(self, offset: int) -> asyncio.Future[DeleteRecordsResult]:
        return self._tasks.start(self._delete_below(offset), "delete")

    async def _delete_below(self, offset: int) -> DeleteRecordsResult:
        if offset <= self._table.state.log_start:
            return RecordsDeleted(self._table.state.log_start, self._table.state.version)
        committed = await self._commit(functools.partial(self._table.advance_log_start, offset))
        return committed if isinstance(committed, Refused) else RecordsDeleted(offset, committed.version)

    def delete_orphans(self, orphans: frozenset[str]) -> asyncio.Future[int | Refused]:
        return self._tasks.start(self._delete_orphans(orphans), "orphans")

    async def _delete_orphans(self, orphans: frozenset[str]) -> int | Refused:
        deletion = OrphanDeletion(self._table, orphans)
        committed = await self._changes.commit_between_changes(deletion)
        return committed if isinstance(committed, Refused) else deletion.count

    def stop(self, code: ErrorCode, reason: str) -> None:
        self._is_stopped = True
        self._upkeep.stop(Refused(code, reason))
        self._changes.stop(code, reason)

    async def _commit(self, call: Callable[..., CommitOutcome]) -> Committed | Refused:
        def commit() -> CommitOutcome:
            return call(leader_epoch=self._changes.leader_epoch, now_ms=self._clock.now_ms())

        return await self._changes.commit_between_changes(commit)

    # ------------------------------------------------------------------ snapshots

    def _begin_snapshot_if_due(self) -> None:
        state = self._table.state
        if self._snapshot is not None or self._is_stopped or state.high_watermark < self._no_snapshot_before:
            return
        if is_snapshot_due(state.high_watermark - state.log_start, self._changes.cluster):
            self._snapshot = self._tasks.start(self._write_snapshot(), "snapshot")

    async def _write_snapshot(self) -> None:
        """As one with the new start of the log: else rolling might put rows before and behind it into one file."""
        try:
            committed = await self._changes.commit_between_changes(self._append_snapshot, self._start_log_there)
        finally:
            self._snapshot = None
        if isinstance(committed, Refused):
            _log.warning("no snapshot of the cluster metadata, to be tried again: %s", committed.message)
            self._no_snapshot_before = self._table.state.high_watermark + _RETRY_RECORDS
        else:
            state = self._table.state
            _log.info("the cluster metadata begins with a snapshot, at offset %d", state.log_start)

    def _append_snapshot(self) -> CommitOutcome:
        state = self._changes.cluster
        rows = [encode_record(record) for record in snapshot_of(state)]
        if replay_cluster(rows) != state:
            raise StorageFault("expected a snapshot that replays to the cluster's state, found another")
        self._snapshot_offset = self._table.state.high_watermark
        return self._log.append(rows, leader_epoch=self._changes.leader_epoch, now_ms=self._clock.now_ms())

    def _start_log_there(self) -> CommitOutcome:
        return self._table.advance_log_start(
            self._snapshot_offset, leader_epoch=self._changes.leader_epoch, now_ms=self._clock.now_ms()
        )
