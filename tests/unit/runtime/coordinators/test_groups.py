"""The coordinator of all groups: what it says of them all, and what goes with time."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Mapping
from types import SimpleNamespace
from typing import Any, cast

import pytest

from bus.cluster_metadata.cluster_records import (
    BrokerFenced,
    BrokerRegistered,
    BrokerStarted,
    BrokerUnfenced,
    FeatureLevel,
    LeaderChanged,
    TopicCreated,
    TopicDeleted,
)
from bus.cluster_metadata.cluster_state import ClusterState, Leadership, Topic
from bus.consumer_groups import requests as rq
from bus.consumer_groups.bounds import Placement, coordinator_partition
from bus.errors import ErrorCode, Refused
from bus.model import CONSUMER_OFFSETS_TOPIC, BrokerEndpoint
from bus.runtime.cluster import Cluster
from bus.runtime.coordinators.group_coordinator import GroupCoordinator, group_rules
from bus.runtime.partitions.maintenance import MaintenanceClock
from bus.settings.broker import BrokerConfig
from tests.support.fake_table import FakeKeyedRows, ManualClock, wait_until
from tests.support.group_bench import PARTITION, commit_of, join_of
from tests.support.host_bench import HostBench, run_host
from tests.support.partition_bench import Bench

DAY_MS = 86_400_000
OFFSETS_ID = "id-of-offsets"
TAKEN = rq.OffsetsCommitted((None,))


class CoordinatorBench:
    """On a cluster whose `__consumer_offsets` has one partition, on a fake table."""

    def __init__(self, kept: Mapping[str, str], config: BrokerConfig, unopened: Refused | None = None) -> None:
        self.unopened = unopened  # why the partition does not serve yet
        self.clock = ManualClock()
        self.below = Bench(clock=self.clock)
        self.retention_clock = MaintenanceClock(self.clock)
        topic = Topic(CONSUMER_OFFSETS_TOPIC, "id-of-offsets", (Leadership(0, 0),), kept)
        state = ClusterState(topics={CONSUMER_OFFSETS_TOPIC: topic}, topic_names={"id": "t"})
        settled = self.below.tasks.start(asyncio.sleep(0), "settled")
        cluster = SimpleNamespace(
            state=state,
            metadata=SimpleNamespace(add_follower=lambda follow: follow(state)),
            storage=SimpleNamespace(keyed_rows=lambda _: FakeKeyedRows()),
            host=SimpleNamespace(
                find=lambda _: self.unopened or self.below.partition, wait_until_settled=lambda _: settled
            ),
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


class MovingBench:
    """Broker 0 of a cluster whose `__consumer_offsets` has two partitions; `commit` gives the metadata records."""

    def __init__(self, host: HostBench) -> None:
        self.host = host
        self._followers: list[Callable[[ClusterState], None]] = []
        cluster = SimpleNamespace(
            metadata=SimpleNamespace(add_follower=self._add_follower),
            storage=SimpleNamespace(keyed_rows=lambda _: FakeKeyedRows()),
            host=host.host,
            controller=SimpleNamespace(on_topic_deleted=lambda _: None),
            endpoint=BrokerEndpoint(0, "h", 1),
            retention_clock=MaintenanceClock(ManualClock()),
        )
        self._cluster = cluster
        self.coordinator = GroupCoordinator(
            cast(Cluster, cluster),
            BrokerConfig(group_initial_rebalance_delay_ms=0),
            clock=ManualClock(),
            calls=host.calls,
            tasks=host.tasks,
            new_uuid=map(str, itertools.count()).__next__,
        )
        self.commit(
            BrokerRegistered(1, "other", 2),
            TopicCreated(CONSUMER_OFFSETS_TOPIC, OFFSETS_ID, 2, 0),
        )
        self.coordinator.start()

    def _add_follower(self, follow: Callable[[ClusterState], None]) -> None:
        self._followers.append(follow)
        follow(self.host.cluster)

    def commit(self, *records: Any) -> None:
        self._cluster.state = self.host.follow(*records)
        for follow in self._followers:
            follow(self._cluster.state)

    def move(self, number: int, leader_id: int, leader_epoch: int) -> None:
        self.commit(LeaderChanged(CONSUMER_OFFSETS_TOPIC, OFFSETS_ID, number, leader_id, leader_epoch))

    async def settle(self) -> None:
        await self.host.settle()
        for _ in range(10):
            await asyncio.sleep(0)
        await wait_until(lambda: not any(shard.is_loading for shard in self.coordinator._serving()))

    async def call(self, command: Any) -> Any:
        return await self.coordinator.call(command)

    def listed(self) -> list[str]:
        return sorted(group.group_id for group in self.coordinator.list_groups()[0])


HERE, THERE = (
    next(name for name in ("a", "b", "c", "d") if coordinator_partition(name, 2, Placement.ABSOLUTE) == number)
    for number in (0, 1)
)


def run_moving(scenario: Callable[[MovingBench], Awaitable[None]]) -> None:
    async def main(host: HostBench) -> None:
        bench = MovingBench(host)
        await bench.settle()
        try:
            await scenario(bench)
        finally:
            bench.coordinator.close()

    run_host(main)


def test_groups_follow_the_leadership_of_their_partition_and_find_what_was_committed() -> None:
    async def scenario(bench: MovingBench) -> None:
        assert [await bench.call(commit_of(group, 5)) for group in (HERE, THERE)] == [TAKEN, TAKEN]
        bench.move(1, 1, 1)
        await bench.settle()
        assert bench.listed() == [HERE]
        assert code(await bench.call(commit_of(THERE, 6))) is ErrorCode.NOT_COORDINATOR
        assert code(bench.coordinator.heartbeat(rq.Heartbeat(THERE, 1, "m", None))) is ErrorCode.NOT_COORDINATOR
        assert await bench.call(commit_of(HERE, 6)) == TAKEN
        bench.move(1, 0, 2)
        await bench.settle()
        assert bench.listed() == sorted([HERE, THERE])
        (offset,) = (await bench.call(rq.OffsetFetch(THERE, (PARTITION,)))).offsets
        assert offset.offset == 5
        assert bench.coordinator._totals.offsets == 2

    run_moving(scenario)


def test_coordinator_of_a_group_is_the_leader_of_its_partition_as_far_as_it_is_there() -> None:
    async def scenario(bench: MovingBench) -> None:
        find = bench.coordinator.find
        assert await find(THERE) == BrokerEndpoint(0, "h", 1)
        bench.move(1, 1, 1)
        assert await find(THERE) == BrokerEndpoint(1, "other", 2)
        bench.commit(FeatureLevel("bus.version", 1), BrokerStarted(1, "new", 3, None, "life", 7, 1, 1))
        assert code(await find(THERE)) is ErrorCode.COORDINATOR_NOT_AVAILABLE
        bench.commit(BrokerUnfenced(1, 7))
        assert await find(THERE) == BrokerEndpoint(1, "new", 3)
        bench.commit(BrokerFenced(1, 7))
        assert code(await find(THERE)) is ErrorCode.COORDINATOR_NOT_AVAILABLE
        assert await find(HERE) == BrokerEndpoint(0, "h", 1)

    run_moving(scenario)


def test_members_of_a_shard_that_goes_are_sent_away_from_their_calls_and_by_a_notice() -> None:
    async def scenario(bench: MovingBench) -> None:
        told: dict[str, list[Refused]] = {HERE: [], THERE: []}
        joins = {}
        for group in (HERE, THERE):
            ids = [(await bench.call(join_of(group, None))).member_id for _ in range(2)]
            first = bench.coordinator.submit(join_of(group, None, ids[0]))
            await bench.settle()
            joined = cast(rq.Joined, await first)
            bench.coordinator.listen(group, joined.member_id, told[group].append)
            joins[group] = bench.coordinator.submit(join_of(group, None, ids[1]))
        await bench.settle()
        for group in (HERE, THERE):
            assert [refused.code for refused in told[group]] == [ErrorCode.REBALANCE_IN_PROGRESS]
        bench.move(1, 1, 1)
        assert code(await joins[THERE]) is ErrorCode.NOT_COORDINATOR
        assert [refused.code for refused in told[THERE][1:]] == [ErrorCode.NOT_COORDINATOR]
        assert (joins[HERE].done(), len(told[HERE])) == (False, 1)
        assert bench.coordinator._totals.members == 2

    run_moving(scenario)


def test_commit_in_flight_when_its_shard_goes_is_answered_as_it_ends_and_leaves_nothing_behind() -> None:
    async def scenario(bench: MovingBench) -> None:
        table = bench.host.storage.tables[OFFSETS_ID, 1]
        table.gate.clear()
        in_flight = bench.coordinator.submit(commit_of(THERE, 5))
        for _ in range(10):
            await asyncio.sleep(0)
        waiting = bench.coordinator.submit(commit_of(THERE, 6))
        bench.move(1, 1, 1)
        assert code(await waiting) is ErrorCode.NOT_COORDINATOR
        assert not in_flight.done()
        table.gate.set()
        assert await in_flight == TAKEN
        await bench.settle()
        assert bench.coordinator._totals.offsets == 0
        bench.move(1, 0, 2)
        await bench.settle()
        assert bench.coordinator._totals.offsets == 1

    run_moving(scenario)


def test_groups_whose_partition_is_being_opened_are_loading() -> None:
    async def scenario(bench: MovingBench) -> None:
        bench.move(1, 1, 1)
        await bench.settle()
        bench.host.calls.is_gated = True
        bench.move(1, 0, 2)
        await asyncio.sleep(0)
        assert code(await bench.call(commit_of(THERE, 1))) is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        assert bench.coordinator.heartbeat(rq.Heartbeat(THERE, 1, "m", None)) == rq.HeartbeatTaken()
        assert await bench.coordinator.find(THERE) == BrokerEndpoint(0, "h", 1)
        _, refused = bench.coordinator.list_groups()
        assert refused is not None
        assert refused.code is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        await bench.settle()
        assert len(list(bench.coordinator._serving())) == 2  # without a call that asks for it
        assert await bench.call(commit_of(THERE, 1)) == TAKEN

    run_moving(scenario)


def test_shards_go_with_their_topic() -> None:
    async def scenario(bench: MovingBench) -> None:
        assert await bench.call(commit_of(HERE, 5)) == TAKEN
        bench.commit(TopicDeleted(CONSUMER_OFFSETS_TOPIC, OFFSETS_ID))
        assert bench.listed() == []
        bench.commit(TopicCreated(CONSUMER_OFFSETS_TOPIC, "another id", 2, 0))
        await bench.settle()
        assert bench.listed() == []
        assert await bench.call(commit_of(HERE, 7)) == TAKEN

    run_moving(scenario)


# ---------------------------------------------------------------- commits in transactions

TRANSACTION = rq.TransactionKey(7, 3)


def txn_commit_of(group: str, sequence: int = 0) -> rq.TxnOffsetCommit:
    return rq.TxnOffsetCommit(group, TRANSACTION, sequence, -1, "", None, (rq.OffsetToCommit(PARTITION, "id", 5),))


async def has_pending(bench: MovingBench, group: str) -> bool:
    answer = await bench.call(rq.VoteOffsets(group, TRANSACTION))
    assert isinstance(answer, rq.OffsetsVoted)
    return answer.has_pending


def test_offsets_are_pending_once_their_group_is_in_the_transaction_and_not_before() -> None:
    async def scenario(bench: MovingBench) -> None:
        refused = Refused(ErrorCode.PRODUCER_FENCED, "another one has the id")
        asked: list[int] = []

        async def admit(number: int) -> Refused | None:
            assert not await has_pending(bench, THERE)
            asked.append(number)
            return refused if len(asked) == 1 else None

        commit = bench.coordinator.commit_in_transaction
        assert await commit(txn_commit_of(THERE), admit) == refused
        assert not await has_pending(bench, THERE)

        async def admit_at_once(number: int) -> Refused | None:
            asked.append(number)
            return None

        assert await commit(txn_commit_of(THERE), admit_at_once) == TAKEN
        assert asked == [1, 1]
        assert await has_pending(bench, THERE)

    run_moving(scenario)


@pytest.mark.parametrize("end", [rq.VoteOffsets, rq.ApplyOffsets, rq.DropOffsets])
def test_offsets_that_were_admitted_before_the_end_of_their_transaction_do_not_come_after_it(end: Any) -> None:
    async def scenario(bench: MovingBench) -> None:
        async def admit(_: int) -> Refused | None:
            await bench.call(end(HERE, TRANSACTION))
            return None

        answer = await bench.coordinator.commit_in_transaction(txn_commit_of(HERE), admit)
        assert code(answer) is ErrorCode.CONCURRENT_TRANSACTIONS
        assert not await has_pending(bench, HERE)

    run_moving(scenario)


def test_offsets_that_were_admitted_while_the_group_was_led_elsewhere_are_not_written() -> None:
    async def scenario(bench: MovingBench) -> None:
        assert await bench.call(commit_of(THERE, 5)) == TAKEN

        async def admit(_: int) -> Refused | None:
            for leader_id, leader_epoch in ((1, 1), (0, 2)):  # the transaction may end there
                bench.move(1, leader_id, leader_epoch)
                await bench.settle()
            return None

        answer = await bench.coordinator.commit_in_transaction(txn_commit_of(THERE), admit)
        assert code(answer) is ErrorCode.CONCURRENT_TRANSACTIONS
        assert not await has_pending(bench, THERE)

    run_moving(scenario)


def test_group_that_is_led_elsewhere_is_not_added_to_the_transaction_here() -> None:
    async def scenario(bench: MovingBench) -> None:
        async def admit(_: int) -> Refused | None:
            raise AssertionError("asked")

        bench.move(1, 1, 1)
        answer = await bench.coordinator.commit_in_transaction(txn_commit_of(THERE), admit)
        assert code(answer) is ErrorCode.NOT_COORDINATOR

    run_moving(scenario)


@pytest.mark.parametrize("end", [rq.ApplyOffsets, rq.DropOffsets])
def test_deposed_coordinator_that_knows_of_nothing_pending_does_not_say_that_it_is_done(end: Any) -> None:
    async def scenario(bench: MovingBench) -> None:
        assert await bench.call(commit_of(THERE, 5)) == TAKEN
        bench.host.storage.tables[OFFSETS_ID, 1].commit_foreign(1, leader_epoch=5)  # which may be pending offsets
        assert isinstance(await bench.call(end(THERE, TRANSACTION)), Refused)

    run_moving(scenario)


@pytest.mark.parametrize("step", [rq.VoteOffsets, rq.ApplyOffsets, rq.DropOffsets])
def test_broker_that_has_not_heard_of_the_groups_topic_says_nothing_of_pending_offsets(step: Any) -> None:
    async def scenario(bench: MovingBench) -> None:
        bench.commit(TopicDeleted(CONSUMER_OFFSETS_TOPIC, OFFSETS_ID))
        assert code(await bench.call(step(THERE, TRANSACTION))) is ErrorCode.NOT_COORDINATOR

    run_moving(scenario)


def test_end_of_another_transaction_or_group_is_none_of_this_one() -> None:
    async def scenario(bench: MovingBench) -> None:
        async def admit(_: int) -> Refused | None:
            await bench.call(rq.DropOffsets(HERE, rq.TransactionKey(7, 2)))
            await bench.call(rq.DropOffsets(THERE, TRANSACTION))
            return None

        assert await bench.coordinator.commit_in_transaction(txn_commit_of(HERE), admit) == TAKEN
        assert await has_pending(bench, HERE)
        assert bench.coordinator._admissions._waiting == {}

    run_moving(scenario)


def test_commit_in_a_transaction_that_can_be_of_no_group_is_not_admitted() -> None:
    async def scenario(bench: MovingBench) -> None:
        async def admit(_: int) -> Refused | None:
            raise AssertionError("asked")

        answer = await bench.coordinator.commit_in_transaction(txn_commit_of(""), admit)
        assert code(answer) is ErrorCode.INVALID_GROUP_ID

    run_moving(scenario)


@pytest.mark.parametrize(
    ("configured_ms", "broker_count", "expected_ms"), [(-1, 1, 0), (-1, 2, 3_000), (0, 3, 0), (700, 1, 700)]
)
def test_a_first_rebalance_waits_for_others_where_there_are_several_brokers_or_as_configured(
    configured_ms: int, broker_count: int, expected_ms: int
) -> None:
    config = BrokerConfig(group_initial_rebalance_delay_ms=configured_ms)
    assert group_rules(config, broker_count=broker_count).initial_rebalance_delay_ms == expected_ms
