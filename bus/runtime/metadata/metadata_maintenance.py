"""Maintenance of the metadata log: snapshots of the state, rolling, checkpoints, cleanup, the switch of its protocol.

Theory of operation. Rolling, checkpoints and the deletion of old versions are those of every partition
(partition_maintenance.py); the metadata log commits them between two changes. A snapshot is one append of the
whole state (cluster_metadata/cluster_records.py); when it is there, the log starts with it, and files and versions
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

from bus.cluster_metadata.cluster_decisions import check_managed_tables
from bus.cluster_metadata.cluster_records import encode_record, is_snapshot_due, replay_cluster, snapshot_of
from bus.cluster_metadata.cluster_state import ClusterState
from bus.errors import ErrorCode, Refused, StorageFault
from bus.model import CLUSTER_METADATA_TOPIC, TopicPartition
from bus.partition_log.log_life import MaintenanceRules
from bus.ports import CommitOutcome, Committed, PartitionTable, TypedLog
from bus.runtime.blocking import BlockingCalls
from bus.runtime.partitions.maintenance import MaintainResult, Maintenance, MaintenanceAction
from bus.runtime.partitions.maintenance_jobs import Writer
from bus.runtime.partitions.partition_maintenance import PartitionMaintenance
from bus.runtime.tasks import TaskScope, time_limit

_log = logging.getLogger(__name__)

# A moment suffices to read this many commits.
_ROLLED_FILES = 50
# The number of records after a failed snapshot before the next try.
_RETRY_RECORDS = 100
NAME = TopicPartition(CLUSTER_METADATA_TOPIC, 0)
# A stop waits this long for maintenance that is due; otherwise brokers that live briefly would never shrink their log.
_FINISH_S_MAX = 5.0


class Changes(Writer, Protocol):
    """The metadata log, as its maintenance sees it."""

    @property
    def cluster(self) -> ClusterState: ...


class MetadataMaintenance:
    def __init__(
        self,
        log: TypedLog,
        changes: Changes,
        *,
        rules: MaintenanceRules,
        calls: BlockingCalls,
        tasks: TaskScope,
        maintenance: Maintenance,
    ) -> None:
        self._log = log
        self._table: PartitionTable = log.table
        self._changes = changes
        self._tasks = tasks
        self._snapshot: asyncio.Task[None] | None = None
        self._upgrade: asyncio.Future[MaintainResult] | None = None
        self._no_snapshot_before = 0  # high watermark
        self._roll_at_files = _ROLLED_FILES
        self._is_stopped = False
        self._maintenance = PartitionMaintenance(
            NAME, self._table, rules=rules, calls=calls, tasks=tasks, maintenance=maintenance, writer=changes
        )

    @property
    def name(self) -> TopicPartition:
        return NAME

    def look_after(self) -> None:
        """To be called now and then; returns at once."""
        self._maintenance.look()
        self._begin_snapshot_if_due()
        self._upgrade_if_due()

    def look_after_commit(self) -> None:
        self._maintenance.look_after_commit()
        self._begin_snapshot_if_due()
        self._roll_if_due()
        self._upgrade_if_due()

    def _roll_if_due(self) -> None:
        """Sooner than other logs: every start reads all of this one, and most of its files have one record."""
        small = sum(1 for _ in itertools.takewhile(lambda file: file.level == 0, reversed(self._table.rewrites.files)))
        if small < _ROLLED_FILES:
            self._roll_at_files = _ROLLED_FILES
        elif small >= self._roll_at_files:
            self._roll_at_files = small + _ROLLED_FILES  # if it cannot be done
            self._maintenance.maintain(MaintenanceAction.ROLL)

    def _upgrade_if_due(self) -> None:
        """Keep other Delta engines from writing, as soon as every broker can open such a table. Of other topics an
        operator decides that; nobody but the controller has business in this log."""
        is_under_way = self._upgrade is not None and not self._upgrade.done()
        if self._is_stopped or self._table.is_managed or is_under_way:
            return
        if check_managed_tables(self._changes.cluster) is None:
            self._upgrade = self._maintenance.maintain(MaintenanceAction.UPGRADE)

    async def end(self) -> None:
        """Finish due maintenance if that takes seconds, and begin nothing more. No change comes any longer."""
        with contextlib.suppress(asyncio.TimeoutError):
            async with time_limit(_FINISH_S_MAX):
                await self._finish()
        self._is_stopped = True
        if snapshot := self._snapshot_under_way:
            await asyncio.wait(snapshot)
        self.stop(Refused(ErrorCode.NOT_CONTROLLER, "the broker is shutting down"))
        await self._maintenance.join()

    def stop(self, reason: Refused) -> None:
        """Begin nothing more."""
        self._is_stopped = True
        self._maintenance.stop(reason)

    async def _finish(self) -> None:
        while under_way := [*self._maintenance.under_way, *self._snapshot_under_way]:
            await asyncio.wait(under_way)

    @property
    def _snapshot_under_way(self) -> list[asyncio.Task[None]]:
        return [] if self._snapshot is None or self._snapshot.done() else [self._snapshot]

    async def write_last_checkpoint(self) -> None:
        """After `end`."""
        await self._maintenance.write_last_checkpoint()

    # ------------------------------------------------------------------ snapshots

    def _begin_snapshot_if_due(self) -> None:
        state = self._table.state
        if self._snapshot_under_way or self._is_stopped or state.high_watermark < self._no_snapshot_before:
            return
        if is_snapshot_due(state.high_watermark - state.log_start, self._changes.cluster):
            self._snapshot = self._tasks.start(self._write_snapshot(), "snapshot")

    async def _write_snapshot(self) -> None:
        try:
            outcome = await self._changes.commit_between_appends(self._decide_snapshot)
        finally:
            self._snapshot = None
        if isinstance(outcome, Committed):
            _log.info("the cluster metadata begins with a snapshot, at offset %d", self._table.state.log_start)
        else:
            reason = outcome.message if isinstance(outcome, Refused) else outcome
            _log.warning("no snapshot of the cluster metadata, to be tried again: %s", reason)
            self._no_snapshot_before = self._table.state.high_watermark + _RETRY_RECORDS

    def _decide_snapshot(self, *, leader_epoch: int, now_ms: int) -> Callable[[], CommitOutcome]:
        return functools.partial(self._commit_snapshot, self._changes.cluster, leader_epoch=leader_epoch, now_ms=now_ms)

    def _commit_snapshot(self, state: ClusterState, *, leader_epoch: int, now_ms: int) -> CommitOutcome:
        """Commit the snapshot together with the new start of the log: otherwise rolling might put rows before and
        behind it into one file."""
        rows = [encode_record(record) for record in snapshot_of(state)]
        if replay_cluster(rows) != state:
            raise StorageFault("expected a snapshot that replays to the cluster's state, found another")
        offset = self._table.state.high_watermark
        appended = self._log.append(rows, leader_epoch=leader_epoch, now_ms=now_ms)
        if not isinstance(appended, Committed):
            return appended
        return self._table.cleanup.advance_log_start(offset, leader_epoch=leader_epoch, now_ms=now_ms)
