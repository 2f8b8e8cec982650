"""Tables that this broker keeps warm, beside those that it leads."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

from bus.cluster_metadata.cluster_draft import ClusterRecord
from bus.cluster_metadata.cluster_records import (
    FeatureLevel,
    LeaderChanged,
    LeadersChanged,
    ReplicasAssigned,
    TopicCreated,
    TopicDeleted,
)
from bus.cluster_metadata.cluster_state import BUS_VERSION
from bus.errors import StorageFault
from bus.grpc_api.server.peer_messages import topics_of
from bus.grpc_api.server.request_limits import control_reader
from bus.grpc_api.v1 import bus_pb2 as pb
from bus.model import TopicPartition
from bus.runtime.replicas.followed_tables import REPORT_PARTITIONS_MAX, CommittedVersion
from tests.support.host_bench import HostBench, run_host
from tests.support.virtual_time import run_virtually

T = TypeVar("T")

P0, P1 = TopicPartition("orders", 0), TopicPartition("orders", 1)
LED_ELSEWHERE = (
    FeatureLevel(BUS_VERSION, 1),
    TopicCreated("orders", "id-1", 2, 1),
    ReplicasAssigned("orders", "id-1", 0, 2, "1,0"),
)


async def until(is_so: Callable[[], bool]) -> None:
    for _ in range(1000):
        if is_so():
            return
        await asyncio.sleep(0.001)
    raise AssertionError("expected it to become so")


def test_tables_of_other_leaders_are_opened_and_read_on_when_they_say_so() -> None:
    async def scenario(bench: HostBench) -> None:
        bench.follow(*LED_ELSEWHERE)
        await until(lambda: bench.storage.opened == [P0, P1])
        await until(lambda: not bench.host.followed.is_reading)
        table = bench.storage.tables["id-1", 0]
        bench.host.followed.note([CommittedVersion(P0, "id-1", 5), CommittedVersion(P1, "another-id", 5)])
        await until(lambda: table.follows > 0)
        assert bench.storage.tables["id-1", 1].follows == 0

    run_host(scenario)


def test_leadership_that_comes_here_finds_its_table_open_and_one_that_goes_leaves_it_open() -> None:
    async def scenario(bench: HostBench) -> None:
        bench.follow(*LED_ELSEWHERE)
        await until(lambda: bench.storage.opened == [P0, P1] and not bench.host.followed.is_reading)
        bench.follow(LeaderChanged("orders", "id-1", 0, 0, 1))
        await bench.settle()
        table = bench.storage.tables["id-1", 0]
        assert bench.serving(P0)._table is table
        assert table.leads == [(1, True)]
        bench.follow(LeaderChanged("orders", "id-1", 0, 1, 2))
        await bench.settle()
        await until(lambda: table.follows > 0)
        bench.follow(LeaderChanged("orders", "id-1", 0, 0, 3))
        await bench.settle()
        assert table.leads == [(1, True), (3, True)]
        assert bench.storage.opened == [P0, P1]

    run_host(scenario)


def test_table_that_is_being_read_is_led_only_after_that() -> None:
    async def scenario(bench: HostBench) -> None:
        events: list[str] = []
        gate = asyncio.Event()

        async def follow(call: Callable[[], T]) -> tuple[T, float]:
            events.append("reads")
            await gate.wait()
            found = call()
            events.append("has read")
            return found, 0.0

        bench.calls.follow = follow  # type: ignore[method-assign]
        bench.follow(*LED_ELSEWHERE)
        await until(lambda: events == ["reads"])
        bench.follow(LeadersChanged("orders", "id-1", 0, 2, 0, 1))
        bench.calls.let_all_go()
        for _ in range(5):
            await asyncio.sleep(0)
        assert not bench.host.partitions
        gate.set()
        await bench.host.wait_until_settled()
        assert events == ["reads", "has read"]
        assert len(bench.host.partitions) == 2
        assert bench.storage.opened == [P0, P1]

    run_host(scenario)


def test_following_stands_back_while_partitions_are_opened_to_be_led() -> None:
    async def scenario(bench: HostBench) -> None:
        bench.follow(TopicCreated("own", "id-2", 1, 0))
        await asyncio.sleep(0)
        bench.follow(*LED_ELSEWHERE)
        for _ in range(20):
            await asyncio.sleep(0.001)
        assert bench.storage.opened == []
        await bench.settle()
        await until(lambda: len(bench.storage.opened) == 3)
        assert bench.storage.opened[0].topic == "own"

    run_host(scenario)


def test_table_that_cannot_be_followed_is_opened_again_when_its_leader_commits() -> None:
    async def scenario(bench: HostBench) -> None:
        bench.storage.faults[P0] = StorageFault("no disk")
        bench.follow(*LED_ELSEWHERE)
        await until(lambda: bench.storage.opened == [P1] and not bench.host.followed.is_reading)
        del bench.storage.faults[P0]
        bench.host.followed.note([CommittedVersion(P0, "id-1", 1)])
        await until(lambda: bench.storage.opened == [P1, P0])

    run_host(scenario)


def test_deleted_topic_is_not_followed_any_more() -> None:
    async def scenario(bench: HostBench) -> None:
        bench.follow(*LED_ELSEWHERE)
        await until(lambda: bench.storage.opened == [P0, P1])
        bench.follow(TopicDeleted("orders", "id-1"))
        assert bench.host.followed.count == 0

    run_host(scenario)


def test_what_was_read_is_reported_to_its_leader_once_or_as_a_whole() -> None:
    async def scenario(bench: HostBench) -> None:
        bench.follow(*LED_ELSEWHERE)
        followed = bench.host.followed
        await until(lambda: bench.storage.opened == [P0, P1])
        await followed.wait_until_read(10)
        assert followed.take_report(7, is_whole=False) == []
        both = [CommittedVersion(P0, "id-1", 0), CommittedVersion(P1, "id-1", 0)]
        assert followed.take_report(1, is_whole=False) == both
        assert followed.take_report(1, is_whole=False) == []
        assert followed.take_report(1, is_whole=True) == both

    run_host(scenario)


def test_version_that_was_read_before_its_leader_told_of_it_is_reported_once_more() -> None:
    """The first report may have come before the leader led, and was worth nothing then."""

    async def scenario(bench: HostBench) -> None:
        bench.follow(*LED_ELSEWHERE)
        followed = bench.host.followed
        await until(lambda: bench.storage.opened == [P0, P1] and not followed.is_reading)
        assert len(followed.take_report(1, is_whole=True)) == 2
        told = CommittedVersion(P0, "id-1", 0)
        followed.note([told])
        assert followed.take_report(1, is_whole=False) == [told]

    run_host(scenario)


def test_table_that_cannot_be_followed_is_opened_again_though_its_leader_commits_nothing() -> None:
    """A leader that lacks replicas in sync (min.insync.replicas) commits nothing until they have followed."""

    async def scenario(bench: HostBench) -> None:
        bench.calls.follow = _follow_at_once  # type: ignore[method-assign]
        bench.storage.faults[P0] = StorageFault("no disk")
        bench.follow(*LED_ELSEWHERE)
        await asyncio.sleep(1)
        assert bench.storage.opened == [P1]
        del bench.storage.faults[P0]
        await asyncio.sleep(60)
        assert bench.storage.opened == [P1, P0]
        assert len(bench.host.followed.take_report(1, is_whole=False)) == 2

    run_host(scenario, run_virtually)


def test_table_that_fails_in_an_unforeseen_way_does_not_keep_others_from_being_read() -> None:
    async def scenario(bench: HostBench) -> None:
        bench.storage.faults[P0] = ValueError("a bug")
        bench.follow(*LED_ELSEWHERE)
        await until(lambda: bench.storage.opened == [P1])
        await until(lambda: not bench.host.followed.is_reading)
        assert len(bench.host.followed.take_report(1, is_whole=False)) == 1

    run_host(scenario)


def test_table_that_is_read_while_the_broker_stops_is_led_only_after_that() -> None:
    async def scenario(bench: HostBench) -> None:
        gate = asyncio.Event()
        is_reading = False

        async def follow(call: Callable[[], T]) -> tuple[T, float]:
            nonlocal is_reading
            is_reading = True
            await gate.wait()
            is_reading = False
            return call(), 0.0

        bench.calls.follow = follow  # type: ignore[method-assign]
        bench.follow(*LED_ELSEWHERE)
        await until(lambda: is_reading)
        taken = bench.host.followed.take(P0, "id-1")
        assert taken is not None
        table = asyncio.ensure_future(bench.host.followed.table_of(taken))
        bench.host.followed.stop()
        await asyncio.sleep(0.01)
        assert not table.done()
        gate.set()
        assert await table is bench.storage.tables["id-1", 0]

    run_host(scenario)


def test_whoever_waits_is_cancelled_also_in_the_moment_in_which_all_is_read() -> None:
    """A watch of a leader that forgot it would go on for good, and the stop of the broker would wait for it."""

    async def scenario(bench: HostBench) -> None:
        bench.follow(*LED_ELSEWHERE)
        followed = bench.host.followed
        for moments in range(6):
            await until(lambda: not followed.is_reading)
            followed.note([CommittedVersion(P0, "id-1", 5 + moments)])
            waiting = asyncio.ensure_future(followed.wait_until_read(10.0))
            await followed._all_read.wait()
            for _ in range(moments):
                await asyncio.sleep(0)
            is_late = waiting.done()
            waiting.cancel()
            await asyncio.wait([waiting])
            assert is_late or waiting.cancelled(), f"{moments} moments after all was read"

    run_host(scenario)


def test_report_of_many_partitions_comes_in_parts_that_the_leader_reads() -> None:
    async def scenario(bench: HostBench) -> None:
        bench.calls.follow = _follow_at_once  # type: ignore[method-assign]
        count = REPORT_PARTITIONS_MAX + 1
        created: list[ClusterRecord] = [FeatureLevel(BUS_VERSION, 1)]
        for topic in map(str, range(count)):
            created += [TopicCreated(topic, f"id-{topic}", 1, 1), ReplicasAssigned(topic, f"id-{topic}", 0, 1, "1,0")]
        bench.follow(*created)
        followed = bench.host.followed
        await until(lambda: not followed.is_reading)
        report = followed.take_report(1, is_whole=True)
        message = pb.CommittedVersionsRequest(applied=topics_of(report)).SerializeToString()
        assert isinstance(control_reader(pb.CommittedVersionsRequest)(message), pb.CommittedVersionsRequest)
        rest = followed.take_report(1, is_whole=False)
        assert len({one.name for one in (*report, *rest)}) == len(report) + len(rest) == count

    run_host(scenario)


async def _follow_at_once(call: Callable[[], T]) -> tuple[T, float]:
    return call(), 0.0
