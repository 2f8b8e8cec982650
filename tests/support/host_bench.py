"""A host of partitions on fake tables, whose openings end when a test says so."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar, cast

from bus.cluster_metadata.cluster_draft import ClusterRecord
from bus.cluster_metadata.cluster_records import BrokerRegistered, apply_all
from bus.cluster_metadata.cluster_state import EMPTY_CLUSTER, ClusterState
from bus.errors import NotController
from bus.model import TopicPartition
from bus.ports import Storage
from bus.runtime.blocking import BlockingCalls
from bus.runtime.partitions.maintenance import IoThrottle, Maintenance, MaintenanceClock
from bus.runtime.partitions.partition import Partition
from bus.runtime.partitions.partition_host import PartitionHost
from bus.runtime.tasks import TaskScope
from bus.settings.broker import BrokerConfig
from tests.support.fake_table import FakeTable, ManualClock

T = TypeVar("T")
BROKERS = (0, 1)
NO_TOPICS = apply_all(EMPTY_CLUSTER, [BrokerRegistered(broker, "h", 1) for broker in BROKERS])


class GatedOpenings(BlockingCalls):
    """`gates` has one for each opening that waits."""

    def __init__(self) -> None:
        super().__init__(2, clock=ManualClock())
        self.gates: list[asyncio.Future[None]] = []
        self.is_gated = True

    async def open(self, call: Callable[[], T]) -> T:
        if self.is_gated:
            gate = asyncio.get_running_loop().create_future()
            self.gates.append(gate)
            await gate
        return call()

    def let_go(self, place: int = 0) -> None:
        self.gates.pop(place).set_result(None)

    def let_all_go(self) -> None:
        self.is_gated = False
        while self.gates:
            self.let_go()


class FakeTables:
    """A storage: each topic id has tables of its own."""

    incarnation = "this-life"

    def __init__(self) -> None:
        self.tables: dict[tuple[str, int], FakeTable] = {}
        self.opened: list[TopicPartition] = []
        self.faults: dict[TopicPartition, Exception] = {}

    def open_partition(self, partition: TopicPartition, *, topic_id: str) -> FakeTable:
        if partition in self.faults:
            raise self.faults[partition]
        self.opened.append(partition)
        return self.tables.setdefault((topic_id, partition.partition), FakeTable())


class HostBench:
    """Broker 0's. `raised` has the partitions whose log has a higher epoch than the metadata."""

    def __init__(self) -> None:
        self.storage = FakeTables()
        self.calls = GatedOpenings()
        self.tasks = TaskScope("test")
        self.raised: list[tuple[TopicPartition, int]] = []
        self.is_controller = True
        self.cluster = NO_TOPICS
        self.clock = clock = ManualClock()
        self.host = PartitionHost(
            0,
            cast(Storage, self.storage),
            BrokerConfig(),
            self._raise_leader_epoch,
            clock=clock,
            calls=self.calls,
            tasks=self.tasks,
            maintenance=Maintenance(MaintenanceClock(clock), IoThrottle(1e9, clock), backoff_s=60.0),
        )

    async def _raise_leader_epoch(self, name: TopicPartition, above: int) -> None:
        self.raised.append((name, above))
        if not self.is_controller:
            raise NotController("another broker is the controller")

    def follow(self, *records: ClusterRecord) -> ClusterState:
        """The next state, after `records`, whoever wrote them."""
        self.cluster = apply_all(self.cluster, records)
        self.host.follow(self.cluster)
        return self.cluster

    async def settle(self) -> None:
        self.calls.let_all_go()
        await self.host.wait_until_settled()

    def serving(self, name: TopicPartition) -> Partition:
        found = self.host.find(name)
        assert isinstance(found, Partition), found
        return found


def run_host(
    scenario: Callable[[HostBench], Awaitable[None]], run: Callable[[Coroutine[Any, Any, None]], None] = asyncio.run
) -> None:
    async def main() -> None:
        bench = HostBench()
        try:
            await scenario(bench)
        finally:
            await bench.settle()
            await bench.tasks.join()
            bench.calls.close()

    run(main())
