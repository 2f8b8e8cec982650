"""One partition on its leader, as the broker's calls see it: its writer, its transactions, its maintenance, and reads
beside all of them.

The writer alone commits, and owns what memory knows of the log. Maintenance is a client of the writer. Reads take the
writer's state as it is when they are decided, then the tail in memory, or files in a thread.
"""

from __future__ import annotations

import asyncio
import functools
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from bus.errors import ErrorCode, RecordsDamaged, Refused, StorageDamaged, StorageFault, show_way_out
from bus.model import LATEST_TIMESTAMP, LogBatch, RecordBatch, TopicPartition
from bus.partition_log.appends import AppendRules
from bus.partition_log.producers import ProducerState
from bus.partition_log.reads import (
    ListedOffset,
    NotYet,
    Readable,
    SearchTimestamp,
    decide_fetch,
    decide_list_offsets,
    refuse_offset,
)
from bus.partition_log.state import PartitionState
from bus.ports import Clock, PartitionTable, SwapKind
from bus.runtime.blocking import BlockingCalls
from bus.runtime.partitions.maintenance import (
    DeleteRecordsResult,
    MaintainResult,
    Maintenance,
    MaintenanceAction,
    SwapResult,
)
from bus.runtime.partitions.open_transactions import OpenTransactions
from bus.runtime.partitions.partition_maintenance import PartitionMaintenance
from bus.runtime.partitions.partition_queue import AppendResult, ResumeResult
from bus.runtime.partitions.partition_settings import PartitionSettings
from bus.runtime.partitions.partition_transactions import PartitionTransactions
from bus.runtime.partitions.partition_writer import PartitionWriter
from bus.runtime.partitions.tail_cache import TailCache
from bus.runtime.tasks import TaskScope, Wakeable

_log = logging.getLogger(__name__)


class ReadResult(NamedTuple):  # a tuple: one is made for each partition of each fetch
    """The result of a fetch of one partition, and the position of the log at that time."""

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
        on_committed: Callable[[TopicPartition, int], None] = lambda name, version: None,
    ) -> None:
        """`on_committed` is told each new version."""
        self.name = name
        self._tell_committed = on_committed
        self._table = table
        self._calls = calls
        self.writer = PartitionWriter(
            name,
            table,
            leader_epoch=leader_epoch,
            settings=settings,
            queue_bytes_max=queue_bytes_max,
            clock=clock,
            calls=calls,
            cache=cache,
            tasks=tasks,
        )
        self.open_transactions = OpenTransactions(
            name,
            table,
            self.writer,
            waiting_bytes_max=queue_bytes_max,
            clock=clock,
            calls=calls,
            tasks=tasks,
        )
        self.transactions = PartitionTransactions(
            name, table, self.writer, self.open_transactions, calls=calls, tasks=tasks
        )
        self.maintenance = PartitionMaintenance(
            name,
            table,
            rules=settings.maintenance,
            calls=calls,
            tasks=tasks,
            maintenance=maintenance,
            writer=self.writer,
        )
        self.writer.watch(committed=self._follow_commit, stopped=self._follow_stop)

    def _follow_commit(self) -> None:
        self._tell_committed(self.name, self.state.version)
        self.maintenance.look_after_commit()

    def _follow_stop(self, reason: Refused) -> None:
        self.open_transactions.stop()
        self.maintenance.stop(reason)

    def configure(self, settings: PartitionSettings) -> None:
        """Take new topic configs; they count from the next batch on."""
        self.writer.configure(settings)
        self.maintenance.configure(settings.maintenance)

    @property
    def state(self) -> PartitionState:
        return self.writer.state

    @property
    def live_bytes(self) -> int:
        """The size of the data files that the last version has."""
        return self._table.state.size_bytes

    @property
    def stopped(self) -> Refused | None:
        """Why this partition does not serve; None while it serves."""
        return self.writer.stopped

    @property
    def producers(self) -> Mapping[int, ProducerState]:
        """The idempotent producers that memory knows, by id."""
        return self.writer.producers

    @property
    def append_rules(self) -> AppendRules:
        """The rules for `append`."""
        return self.writer.settings.append_rules

    @property
    def min_insync_replicas(self) -> int:
        """The number of replicas, this broker included, that must have a commit before `append` with acks=all is
        answered."""
        return self.writer.settings.min_insync_replicas

    @property
    def record_bytes_max(self) -> int:
        """The size limit of a single record for `append`: max.message.bytes."""
        return self.append_rules.record_bytes_max

    def stop(self, code: ErrorCode, reason: str) -> None:
        """Stop serving from now on; every request gets `code` and the reason."""
        self.writer.stop(code, reason)

    async def close(self, reason: Refused) -> None:
        """Refuse every new and every waiting call, and return when nothing writes to the table or beside it."""
        await self.writer.close(reason)
        await self.open_transactions.join()
        await self.transactions.join()
        await self.maintenance.join()

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
        """Queue a batch behind those that came before it. The future never fails: a refusal is its result. `on_settled`
        is called with the result when the batch is committed or dropped: with acks 0 and 1 that is after the answer."""
        return self.writer.append(
            batch,
            acks=acks,
            current_leader_epoch=current_leader_epoch,
            request_id=request_id,
            on_settled=on_settled,
        )

    def resume_producer(self, producer_id: int, producer_epoch: int) -> asyncio.Future[ResumeResult]:
        """Return the last committed position of the producer, once everything that was queued before is in the log or
        has failed. From then on lower epochs of it are refused. Safe to repeat. The future never fails: a refusal is
        its result."""
        return self.writer.resume_producer(producer_id, producer_epoch)

    async def catch_up(self) -> Refused | None:
        """Return None once memory equals the log: after an append of unknown outcome the log is read again. Refused if
        that cannot be done for now."""
        return await self.writer.catch_up()

    async def end_pace(self) -> None:
        """End the pacing before the broker stops: commit what waits for the pace, and let nothing wait for it from now
        on. Returns when everything that has an offset by now is committed."""
        await self.writer.end_pace()

    # ------------------------------------------------------------------ maintenance

    def delete_records(self, offset: int) -> asyncio.Future[DeleteRecordsResult]:
        """Delete all records below `offset`; -1: below the high watermark. An offset below the log start changes
        nothing. Refused: OFFSET_OUT_OF_RANGE, POLICY_VIOLATION. Committed when it is answered; the future never
        fails."""
        return self.maintenance.delete_records(offset)

    def maintain(self, action: MaintenanceAction) -> asyncio.Future[MaintainResult]:
        """Do now what otherwise waits until it is due, behind the job that runs. Refused: POLICY_VIOLATION (COMPACT of
        a log that is not compacted). The future never fails."""
        return self.maintenance.maintain(action)

    def swap_files(self, removes: Sequence[str], adds: Sequence[str], kind: SwapKind) -> asyncio.Future[SwapResult]:
        """Put files that another program wrote into the table's folder in place of live ones, once they were checked.
        Refused: INVALID_REQUEST, POLICY_VIOLATION. The future never fails."""
        return self.maintenance.swap_files(removes, adds, kind)

    def look_after(self) -> None:
        """Begin maintenance that the partition's age has made due. To be called now and then; returns at once."""
        self.maintenance.look()

    async def finish_maintenance(self) -> None:
        """Wait for running maintenance. May be cancelled."""
        await self.maintenance.finish()

    async def end_maintenance(self) -> None:
        """End maintenance before the broker stops, when no batch comes any longer: begin nothing more, and give up what
        is being prepared."""
        if self.stopped is None:
            await self.open_transactions.save_all()
        self.maintenance.stop(Refused(ErrorCode.NOT_LEADER_OR_FOLLOWER, f"{self.name}: the broker is shutting down"))
        await self.maintenance.join()

    async def write_last_checkpoint(self) -> None:
        """Write a checkpoint after `end_maintenance`, when no commit comes any longer, so that the log opens
        quickly."""
        if self.stopped is None:
            await self.maintenance.write_last_checkpoint()

    # ------------------------------------------------------------------ reading

    def decide_fetch(
        self, offset: int, current_leader_epoch: int | None, seen_version: int | None = None
    ) -> Readable | NotYet | Refused:
        return self.stopped or decide_fetch(self.state, offset, current_leader_epoch, seen_version)

    def bytes_available(self, readable: Readable, enough: int) -> int:
        """How much a fetch would find, counted up to `enough`. What lies in files only counts as enough."""
        if readable.offset >= readable.end_offset:
            return 0
        start = self.writer.tail.start_offset
        if start is None or readable.offset < start:
            return enough
        return self.writer.tail.bytes_from(readable.offset, enough)

    async def read(self, readable: Readable, max_bytes: int) -> ReadResult | Refused:
        """Read records from `readable.offset` on. If records are missing there, return those from the next existing
        one, or none if none exists before the end that was readable when the fetch was decided. Refused if the records
        were deleted meanwhile. Raises `StorageFault` if a file cannot be read."""
        state = self.state
        batches: Sequence[LogBatch] = ()
        if readable.offset < readable.end_offset:
            batches = self.writer.tail.read(readable.offset, max_bytes)
            if not batches:
                call = functools.partial(
                    self._table.log.read, readable.offset, end_offset=readable.end_offset, max_bytes=max_bytes
                )
                batches = await self._calls.read(call)
                if readable.offset < self.state.log_start:
                    return refuse_offset(self.state, readable.offset)
        return ReadResult(batches, state.high_watermark, state.log_start, state.version)

    def refuse_read(self, fault: StorageFault) -> Refused:
        """The answer to a `read` that failed."""
        return refuse_read(self.name, fault, self.stop)

    async def list_offset(self, timestamp_ms: int, current_leader_epoch: int | None) -> ListedOffset | Refused:
        if self.stopped is not None:
            return self.stopped
        decision = decide_list_offsets(self.state, timestamp_ms, current_leader_epoch)
        if not isinstance(decision, SearchTimestamp):
            return decision
        search = self._table.log.find_max_timestamp
        if decision.timestamp_ms is not None:
            search = functools.partial(self._table.log.find_timestamp, decision.timestamp_ms)
        try:
            found = await self._calls.read(search)
        except StorageFault as fault:
            return refuse_read(self.name, fault, self.stop)
        if found is None:
            return ListedOffset(-1, -1, self.state.leader_epoch)
        return ListedOffset(found.offset, found.timestamp_ms, found.leader_epoch)

    async def list_offset_at(self, version: int, current_leader_epoch: int | None) -> ListedOffset | Refused:
        """Return the high watermark after `version`; offset -1 if that version does not exist, or no longer."""
        bound = await self.list_offset(LATEST_TIMESTAMP, current_leader_epoch)
        if isinstance(bound, Refused):
            return bound
        try:
            found = await self._calls.read(functools.partial(self._table.log.high_watermark_at, version))
        except RecordsDamaged as damage:
            return refuse_read(self.name, damage, self.stop)
        return ListedOffset(-1 if found is None else found, -1, bound.leader_epoch)

    def add_reader(self, event: Wakeable) -> None:
        """Have `event` set at every commit, until `remove_reader`."""
        self.writer.add_reader(event)

    def remove_reader(self, event: Wakeable) -> None:
        self.writer.remove_reader(event)


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
