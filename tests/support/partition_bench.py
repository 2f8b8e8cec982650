"""A partition on a fake table, and the calls that a servicer makes."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import TypeVar

from bus.errors import ErrorCode, Refused
from bus.model import ProducerStamp, TimestampType, TopicPartition
from bus.partition_log.appends import AppendRules
from bus.partition_log.log_life import MaintenanceRules, VersionRules
from bus.partition_log.staging import StagedState
from bus.ports import PartitionTable, StagingKey
from bus.runtime.blocking import BlockingCalls
from bus.runtime.partitions.maintenance import IoThrottle, Maintenance, MaintenanceClock
from bus.runtime.partitions.partition import Partition
from bus.runtime.partitions.partition_queue import Appended, AppendResult, ResumeResult
from bus.runtime.partitions.partition_settings import PartitionSettings
from bus.runtime.partitions.tail_cache import TailCache
from bus.runtime.tasks import TaskScope
from bus.transactions.requests import Added
from tests.support.fake_table import FakeTable, ManualClock, records
from tests.support.stores import log_batch

T = TypeVar("T")

NAME = TopicPartition("orders", 0)
DELETED = Refused(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "topic orders was deleted")
SETTINGS = PartitionSettings(
    append_rules=AppendRules(
        record_bytes_max=1_000_000,
        timestamp_type=TimestampType.CREATE_TIME,
        timestamp_before_max_ms=1_000_000_000,
        timestamp_after_max_ms=1_000_000_000,
    ),
    compression="none",
    commit_interval_ms=0,
    commit_burst=1,
    maintenance=MaintenanceRules(
        versions=VersionRules(retention_ms=86_400_000, count_max=50_000, file_delete_delay_ms=60_000),
        tombstone_retention_ms=10_000,
        compression="none",
    ),
    producer_expiration_ms=86_400_000,
)


class LoopClock(ManualClock):
    """Its monotonic time is the event loop's, and what the test adds."""

    def __init__(self) -> None:
        super().__init__()
        self._loop = asyncio.get_running_loop()

    def monotonic_ms(self) -> float:
        return self.passed_ms + self._loop.time() * 1000


class InlineCalls(BlockingCalls):
    """Blocking calls are made at once, on the loop: no threads, so the order of everything is the same every time."""

    def __init__(self) -> None:
        super().__init__(1, clock=ManualClock())

    def commit(self, call: Callable[[], T]) -> asyncio.Future[T]:
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        try:
            future.set_result(call())
        except Exception as error:
            future.set_exception(error)
        return future

    read = maintain = housekeep = commit


class Bench:
    def __init__(
        self,
        queue_bytes_max: int = 1_000_000,
        *,
        table: FakeTable | None = None,
        clock: ManualClock | None = None,
        calls: BlockingCalls | None = None,
        settings: PartitionSettings = SETTINGS,
        backoff_s: float = 60.0,
        leader_epoch: int = 3,
    ) -> None:
        self.table = FakeTable() if table is None else table
        self.clock = LoopClock() if clock is None else clock
        self.tasks = TaskScope("test")
        self.throttle = IoThrottle(sys.float_info.max, self.clock)
        self.calls = BlockingCalls(2, clock=self.clock) if calls is None else calls
        self.partition = Partition(
            NAME,
            self.table,
            leader_epoch=leader_epoch,
            settings=settings,
            queue_bytes_max=queue_bytes_max,
            clock=self.clock,
            calls=self.calls,
            cache=TailCache(1_000_000),
            tasks=self.tasks,
            maintenance=Maintenance(MaintenanceClock(self.clock), self.throttle, backoff_s=backoff_s),
        )

    def append(self, count: int = 1, *, acks: int = -1, size_bytes: int = 100) -> asyncio.Future[AppendResult]:
        return self.partition.append(
            records(count, size_bytes), acks=acks, current_leader_epoch=None, request_id="request"
        )

    def send(
        self, producer_id: int, base_sequence: int, count: int = 1, *, epoch: int = 0, acks: int = -1
    ) -> asyncio.Future[AppendResult]:
        """A batch of an idempotent producer."""
        batch = records(count, producer=ProducerStamp(producer_id, epoch, base_sequence))
        return self.partition.append(batch, acks=acks, current_leader_epoch=None, request_id="request")

    def resume(self, producer_id: int, epoch: int) -> asyncio.Future[ResumeResult]:
        return self.partition.resume_producer(producer_id, epoch)

    def reopened(self) -> Bench:
        """The next leader on the same table."""
        return Bench(table=self.table, clock=self.clock, calls=self.calls)

    def configure(self, **rules: int) -> None:
        self.partition.configure(replace(SETTINGS, append_rules=replace(SETTINGS.append_rules, **rules)))

    async def close(self) -> None:
        self.table.gate.set()
        await self.tasks.join()
        self.calls.close()


def run(scenario: Callable[[Bench], Awaitable[None]], queue_bytes_max: int = 1_000_000) -> None:
    async def main() -> None:
        bench = Bench(queue_bytes_max)
        try:
            await scenario(bench)
        finally:
            await bench.close()

    asyncio.run(main())


def send(bench: Bench, value: bytes = b"own") -> asyncio.Future[AppendResult]:
    """Send a record to a table that stores what it is given."""
    batch = replace(records(1), columns=log_batch(0, [value]).columns)
    return bench.partition.append(batch, acks=-1, current_leader_epoch=None, request_id="request")


def with_partition(table: PartitionTable, epoch: int, scenario: Callable[[Bench], Awaitable[None]]) -> None:
    """Run the scenario like `run`, on a real table."""

    async def main() -> None:
        bench = Bench(table=table, leader_epoch=epoch, calls=InlineCalls())  # type: ignore[arg-type]
        await scenario(bench)
        await bench.tasks.join()

    asyncio.run(main())


def base_offset(result: AppendResult) -> int:
    assert isinstance(result, Appended), result
    return result.base_offset


def code(result: object) -> ErrorCode:
    assert isinstance(result, Refused), result
    return result.code


class AddingCoordinator:
    """Adds every partition, unless `refused`; at once what `at_once` has. Holds the calls back while `gate` is not
    set."""

    def __init__(self, *, may_be_one_phase: bool = False, at_once: Added | None = None) -> None:
        self.calls = 0
        self.at_once = at_once
        self.calls_at_once = 0
        self.added = Added(may_be_one_phase)
        self.refused: Refused | None = None
        self.gate = asyncio.Event()
        self.gate.set()

    def add_at_once(self) -> Added | None:
        self.calls_at_once += 1
        return self.at_once

    async def add(self) -> Added | Refused:
        self.calls += 1
        await self.gate.wait()
        return self.refused or self.added


def staged_of(partition: Partition) -> dict[StagingKey, StagedState]:
    """Return a leader's memory of the transactions that it knows to be open."""
    return {key: known.staged for key, known in partition.open_transactions._known.items() if known.staged is not None}
