"""A shard of groups on a fake table, and what its members call."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

from bus.consumer_groups import requests as rq
from bus.consumer_groups.bounds import GroupBounds, GroupTotals
from bus.consumer_groups.decisions import GroupMachine
from bus.consumer_groups.group import GroupRules, Notice
from bus.consumer_groups.loading import GroupCodec
from bus.consumer_groups.requests import GroupAnswer
from bus.errors import Refused
from bus.model import TopicPartition
from bus.runtime.coordinators.group_coordinator import GroupShard, heartbeat
from bus.runtime.coordinators.log import CoordinatorLog
from bus.runtime.coordinators.shard import CoordinatorShard
from tests.support.fake_table import FakeKeyedRows, FakeTable, wait_until
from tests.support.partition_bench import Bench

RULES = GroupRules(initial_rebalance_delay_ms=0)


class GroupBench:
    """`notices` are those that members were told, in order."""

    def __init__(
        self, table: FakeTable | None = None, rules: GroupRules = RULES, bounds: GroupBounds | None = None
    ) -> None:
        self.below = Bench(table=table)
        self.table = self.below.table
        self.partition = self.below.partition
        self.codec = GroupCodec()
        self.log = CoordinatorLog(
            self.partition, FakeKeyedRows(), self.codec, clock=self.below.clock, calls=self.below.calls
        )
        self.notices: list[Notice] = []
        self.totals = GroupTotals(bounds or GroupBounds())
        self.shard: GroupShard = CoordinatorShard(
            GroupMachine(rules),
            self.log,
            self.totals,
            clock=self.below.clock,
            tasks=self.below.tasks,
            commit_slots=asyncio.Semaphore(1),
            on_notice=self.notices.append,
        )

    def reopened(self) -> GroupBench:
        """The next coordinator on the same table."""
        return GroupBench(self.table)

    async def loaded(self) -> GroupBench:
        await wait_until(lambda: not self.shard.is_loading)
        return self

    def submit(self, command: Any, new_member_id: str = "") -> asyncio.Future[GroupAnswer]:
        return self.shard.submit(replace(command, new_member_id=new_member_id) if new_member_id else command)

    def heartbeat(self, command: rq.Heartbeat) -> rq.HeartbeatTaken | Refused:
        return heartbeat(self.shard, command)

    def commit(self, group: str, offset: int, **changed: Any) -> asyncio.Future[GroupAnswer]:
        return self.submit(commit_of(group, offset, **changed))

    async def offset(self, group: str) -> int:
        fetched = await self.submit(rq.OffsetFetch(group, (PARTITION,)))
        assert isinstance(fetched, rq.OffsetsFetched), fetched
        return fetched.offsets[0].offset

    async def member(self, group: str, instance: str) -> rq.Joined:
        """A static member that has joined and, if it leads, brought the assignment."""
        joined = await self.submit(join_of(group, instance), f"{instance}-1")
        assert isinstance(joined, rq.Joined), joined
        assignments = {one.member_id: rq.Assignment(b"a") for one in joined.members}
        synced = await self.submit(sync_of(group, joined, instance, assignments))
        assert isinstance(synced, rq.Synced), synced
        return joined

    async def close(self) -> None:
        self.shard.close()
        await self.below.close()


PARTITION = TopicPartition("t", 0)


def commit_of(group: str, offset: int, **changed: Any) -> rq.OffsetCommit:
    command = rq.OffsetCommit(group, -1, "", None, (rq.OffsetToCommit(PARTITION, "id", offset),))
    return replace(command, **changed)


def join_of(group: str, instance: str | None, member_id: str = "") -> rq.JoinGroup:
    return rq.JoinGroup(
        group_id=group,
        member_id=member_id,
        group_instance_id=instance,
        client_id="c",
        client_host="/h",
        session_timeout_ms=6_000,
        rebalance_timeout_ms=6_000,
        protocol_type="p",
        protocols=(rq.GroupProtocol("range", b"m"),),
    )


def sync_of(
    group: str, joined: rq.Joined, instance: str | None, assignments: dict[str, rq.Assignment] | None = None
) -> rq.SyncGroup:
    return rq.SyncGroup(group, joined.generation, joined.member_id, instance, None, None, assignments or {})


def run(scenario: Callable[[GroupBench], Awaitable[None]], **options: Any) -> None:
    async def main() -> None:
        bench = GroupBench(**options)
        try:
            await scenario(bench)
        finally:
            await bench.close()

    asyncio.run(main())
