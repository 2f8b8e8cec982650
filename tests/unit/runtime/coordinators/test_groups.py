"""The coordinator of all groups: what it says of them all, and what goes with time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from types import SimpleNamespace
from typing import Any, cast

from bus.config.broker import BrokerConfig
from bus.consumer_groups import requests as rq
from bus.errors import ErrorCode, Refused
from bus.model import CONSUMER_OFFSETS_TOPIC, BrokerEndpoint
from bus.runtime.cluster import Cluster
from bus.runtime.coordinators.groups import GroupCoordinator
from bus.runtime.partitions.maintenance import MaintenanceClock
from tests.support.fake_table import FakeKeyedRows, ManualClock
from tests.support.group_bench import commit_of
from tests.support.partition_bench import Bench

DAY_MS = 86_400_000
TAKEN = rq.OffsetsCommitted((None,))


class CoordinatorBench:
    """On a cluster whose `__consumer_offsets` has one partition, on a fake table."""

    def __init__(self, kept: Mapping[str, str], config: BrokerConfig, unopened: Refused | None = None) -> None:
        self.unopened = unopened  # why the partition does not serve yet
        self.clock = ManualClock()
        self.below = Bench(clock=self.clock)
        self.retention_clock = MaintenanceClock(self.clock)
        topic = SimpleNamespace(configs=kept, partitions=(None,))
        cluster = SimpleNamespace(
            state=SimpleNamespace(topics={CONSUMER_OFFSETS_TOPIC: topic}, topic_names={"id": "t"}),
            storage=SimpleNamespace(keyed_rows=lambda _: FakeKeyedRows()),
            host=SimpleNamespace(find=lambda _: self.unopened or self.below.partition),
            controller=SimpleNamespace(on_topic_deleted=lambda _: None),
            endpoint=BrokerEndpoint(0, "h", 1),
            retention_clock=self.retention_clock,
        )
        self.coordinator = GroupCoordinator(
            cast(Cluster, cluster),
            config,
            clock=self.clock,
            calls=self.below.calls,
            tasks=self.below.tasks,
            new_uuid=lambda: "uuid",
        )
        self.coordinator.start()

    async def expire(self) -> None:
        for shard in self.coordinator._serving():
            await self.coordinator._expire_offsets(shard)

    async def close(self) -> None:
        self.coordinator.close()
        await self.below.close()


def run(
    scenario: Callable[[CoordinatorBench], Awaitable[None]],
    kept: Mapping[str, str] | None = None,
    config: BrokerConfig | None = None,
    unopened: Refused | None = None,
) -> None:
    async def main() -> None:
        bench = CoordinatorBench(kept or {}, config or BrokerConfig(), unopened)
        try:
            await scenario(bench)
        finally:
            await bench.close()

    asyncio.run(main())


def code(answer: object) -> ErrorCode:
    refused = answer.refused if isinstance(answer, rq.JoinRefused) else answer
    assert isinstance(refused, Refused), answer
    return refused.code


def test_clock_that_jumps_ahead_expires_nothing_at_once() -> None:
    async def scenario(bench: CoordinatorBench) -> None:
        assert await bench.coordinator.call(commit_of("idle", 1)) == TAKEN
        bench.clock.time_ms += 30 * DAY_MS
        await bench.expire()
        bench.clock.advance(DAY_MS)
        await bench.expire()
        assert [group.group_id for group in bench.coordinator.list_groups()[0]] == ["idle"]

    run(scenario)


def test_offsets_of_an_idle_group_go_when_the_time_has_passed() -> None:
    async def scenario(bench: CoordinatorBench) -> None:
        assert await bench.coordinator.call(commit_of("idle", 1)) == TAKEN
        bench.clock.advance(7 * DAY_MS)
        await bench.expire()
        listed, refused = bench.coordinator.list_groups()
        assert (list(listed), refused) == ([], None)

    run(scenario)


def test_groups_of_a_partition_that_serves_later_are_served_then() -> None:
    async def scenario(bench: CoordinatorBench) -> None:
        assert code(await bench.coordinator.call(commit_of("g", 1))) is ErrorCode.COORDINATOR_NOT_AVAILABLE
        bench.unopened = None
        assert await bench.coordinator.call(commit_of("g", 1)) == TAKEN

    run(scenario, unopened=Refused(ErrorCode.KAFKA_STORAGE_ERROR, "the disk does not answer"))


def test_placement_of_a_newer_version_is_named_and_no_group_is_served() -> None:
    async def scenario(bench: CoordinatorBench) -> None:
        answer: Any = await bench.coordinator.call(commit_of("g", 1))
        assert code(answer) is ErrorCode.COORDINATOR_NOT_AVAILABLE
        assert "'of tomorrow'" in answer.message

    run(scenario, {"group.placement": "of tomorrow"})
