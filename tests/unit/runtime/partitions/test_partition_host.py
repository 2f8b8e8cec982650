"""The partitions of a broker, as it follows the cluster metadata."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from bus.cluster_metadata.cluster_records import (
    BrokerUnregistered,
    LeaderChanged,
    TopicConfigChanged,
    TopicCreated,
    TopicDeleted,
)
from bus.errors import ErrorCode, Refused, StorageDamaged, StorageFault
from bus.model import TopicPartition
from tests.support.fake_table import FakeTable, records
from tests.support.host_bench import HostBench, run_host
from tests.support.partition_bench import base_offset, code
from tests.support.virtual_time import run_virtually

ORDERS = TopicCreated("orders", "id-1", 2, 0)
P0, P1 = TopicPartition("orders", 0), TopicPartition("orders", 1)


def append(bench: HostBench, name: TopicPartition) -> asyncio.Future[object]:
    return bench.serving(name).append(records(1), acks=-1, current_leader_epoch=None, request_id="r")  # type: ignore[return-value]


def test_partition_that_is_being_opened_is_refused_until_it_serves() -> None:
    async def scenario(bench: HostBench) -> None:
        bench.follow(ORDERS)
        await asyncio.sleep(0)
        assert code(bench.host.find(P0)) is ErrorCode.NOT_LEADER_OR_FOLLOWER
        await bench.settle()
        assert base_offset(await append(bench, P0)) == 0  # type: ignore[arg-type]
        assert bench.storage.opened == [P0, P1]

    run_host(scenario)


def test_opening_that_has_just_begun_is_waited_for_a_moment() -> None:
    async def scenario(bench: HostBench) -> None:
        assert not await bench.host.wait_for_openings([P0])
        bench.follow(ORDERS)
        waiting = asyncio.ensure_future(bench.host.wait_for_openings([P0, TopicPartition("others", 0)]))
        await asyncio.sleep(0.001)
        assert not waiting.done()
        bench.calls.let_all_go()
        assert await waiting
        assert bench.serving(P0)

    run_host(scenario)


def test_opening_that_takes_long_is_waited_for_by_nobody() -> None:
    async def scenario(bench: HostBench) -> None:
        bench.follow(ORDERS)
        assert await bench.host.wait_for_openings([P0])
        assert code(bench.host.find(P0)) is ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert not await bench.host.wait_for_openings([P0])

    run_host(scenario)


def test_opening_that_a_newer_state_has_overtaken_opens_nothing() -> None:
    async def scenario(bench: HostBench) -> None:
        bench.follow(ORDERS)
        await asyncio.sleep(0)
        bench.follow(TopicDeleted("orders", "id-1"))
        bench.follow(TopicCreated("orders", "id-2", 1, 0))
        await bench.settle()
        assert bench.serving(P0)._table is bench.storage.tables["id-2", 0]
        assert [partition.name for partition in bench.host.partitions] == [P0]
        assert code(bench.host.find(P0, "id-1")) is ErrorCode.INCONSISTENT_TOPIC_ID

    run_host(scenario)


def test_partition_that_another_broker_leads_is_closed_and_comes_back_at_a_higher_epoch() -> None:
    async def scenario(bench: HostBench) -> None:
        bench.follow(ORDERS)
        await bench.settle()
        before = bench.serving(P0)
        bench.storage.tables["id-1", 0].gate.clear()
        in_flight = append(bench, P0)
        await asyncio.sleep(0)
        bench.follow(LeaderChanged("orders", "id-1", 0, 1, 1))
        found = bench.host.find(P0)
        assert isinstance(found, Refused)
        assert (found.code, found.message) == (ErrorCode.NOT_LEADER_OR_FOLLOWER, "orders-0 is led by broker 1")
        bench.follow(LeaderChanged("orders", "id-1", 0, 0, 2))
        bench.storage.tables["id-1", 0].gate.set()
        await bench.settle()
        assert base_offset(await in_flight) == 0  # type: ignore[arg-type]
        assert before.stopped is not None
        assert bench.serving(P0) is not before
        assert (bench.serving(P0).state.leader_epoch, bench.serving(P0).state.high_watermark) == (2, 1)
        assert bench.storage.opened == [P0, P1, P0]

    run_host(scenario)


def test_damaged_table_is_refused_by_name_and_the_others_serve() -> None:
    async def scenario(bench: HostBench) -> None:
        bench.storage.faults[P0] = StorageDamaged("a version is missing")
        bench.storage.faults[TopicPartition("other", 0)] = ValueError("what nothing foresaw")
        bench.follow(ORDERS, TopicCreated("other", "id-2", 1, 0))
        await bench.settle()
        refused = bench.host.find_error(P0)
        assert refused is not None
        assert refused.code is ErrorCode.KAFKA_STORAGE_ERROR
        assert refused.message.startswith("orders-0: a version is missing; ")
        assert code(bench.host.find(TopicPartition("other", 0))) is ErrorCode.KAFKA_STORAGE_ERROR
        assert bench.host.find_error(P1) is None

    run_host(scenario)


def test_partition_that_could_not_be_opened_is_opened_once_the_fault_has_passed() -> None:
    async def scenario(bench: HostBench) -> None:
        bench.storage.faults[P0] = StorageFault("the disk does not answer")
        bench.follow(ORDERS)
        await bench.settle()
        await asyncio.sleep(100)
        assert code(bench.host.find(P0)) is ErrorCode.KAFKA_STORAGE_ERROR
        del bench.storage.faults[P0]
        await asyncio.sleep(100)
        assert bench.host.find_error(P0) is None
        assert bench.storage.opened == [P1, P0]

    run_host(scenario, run_virtually)


def test_partition_that_could_not_be_opened_is_not_opened_again_for_another_leader_or_a_broker_that_stops() -> None:
    async def scenario(bench: HostBench) -> None:
        bench.storage.faults = {P0: StorageFault("the disk does not answer"), P1: StorageFault("the same")}
        bench.follow(ORDERS)
        await bench.settle()
        bench.storage.faults.clear()
        bench.follow(LeaderChanged("orders", "id-1", 0, 1, 1))
        await asyncio.sleep(0.5)
        bench.host.end_openings()
        await asyncio.sleep(100)
        assert bench.storage.opened == []

    run_host(scenario, run_virtually)


def test_created_table_is_served_and_not_opened_again() -> None:
    async def scenario(bench: HostBench) -> None:
        table = FakeTable()
        with bench.host.handing_over({("id-1", 0): table}):  # type: ignore[dict-item]
            bench.follow(ORDERS)
        await bench.settle()
        assert bench.serving(P0)._table is table
        assert bench.storage.opened == [P1]
        with bench.host.handing_over({("id-2", 0): FakeTable()}):  # type: ignore[dict-item]
            pass  # the record could not be committed
        bench.follow(TopicCreated("late", "id-2", 1, 0))
        await bench.settle()
        assert bench.storage.opened == [P1, TopicPartition("late", 0)]

    run_host(scenario)


def test_log_with_a_higher_epoch_than_the_metadata_is_told_before_it_serves() -> None:
    async def scenario(bench: HostBench) -> None:
        table = bench.storage.tables["id-1", 0] = FakeTable()
        table.state = replace(table.state, leader_epoch=7)
        bench.follow(ORDERS)
        await bench.settle()
        assert bench.raised == [(P0, 7)]
        refused = bench.host.find_error(P0)
        assert refused is not None
        assert refused.code is ErrorCode.NOT_LEADER_OR_FOLLOWER
        bench.follow(LeaderChanged("orders", "id-1", 0, 0, 8))
        await bench.settle()
        assert bench.serving(P0).stopped is None

    run_host(scenario)


def test_log_that_a_later_leader_has_fenced_is_refused_and_looked_at_again() -> None:
    """The broker has not followed the metadata to where the partition has another leader."""

    async def scenario(bench: HostBench) -> None:
        table = bench.storage.tables["id-1", 0] = FakeTable()
        table.state = replace(table.state, leader_epoch=7)
        bench.is_controller = False
        bench.follow(ORDERS)
        await bench.settle()
        await asyncio.sleep(10)
        refused = bench.host.find_error(P0)
        assert refused is not None
        assert refused.code is ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert len(bench.raised) > 1
        bench.follow(LeaderChanged("orders", "id-1", 0, 1, 7), LeaderChanged("orders", "id-1", 0, 0, 8))
        await bench.settle()
        assert bench.serving(P0).stopped is None

    run_host(scenario, run_virtually)


def test_step_down_stops_what_is_open_and_what_is_being_opened() -> None:
    async def scenario(bench: HostBench) -> None:
        bench.follow(TopicCreated("first", "id-0", 1, 0))
        bench.calls.is_gated = False
        await bench.host.wait_until_settled()
        bench.calls.is_gated = True
        bench.follow(ORDERS)
        await asyncio.sleep(0)
        bench.host.step_down(Refused(ErrorCode.NOT_CONTROLLER, "another controller"))
        await bench.settle()
        for name in (TopicPartition("first", 0), P0, P1):
            refused = bench.host.find_error(name)
            assert refused is not None
            assert (refused.code, refused.message) == (ErrorCode.NOT_LEADER_OR_FOLLOWER, f"{name}: another controller")

    run_host(scenario)


def test_altered_config_reaches_partitions_that_are_open() -> None:
    async def scenario(bench: HostBench) -> None:
        bench.follow(ORDERS)
        await bench.settle()
        bench.follow(TopicConfigChanged("orders", "id-1", "max.message.bytes", "777"))
        assert [bench.serving(name).record_bytes_max for name in (P0, P1)] == [777, 777]
        assert bench.storage.opened == [P0, P1]

    run_host(scenario)


@pytest.mark.parametrize("is_alone", [True, False])
def test_no_young_version_is_deleted_where_another_broker_may_have_led(is_alone: bool) -> None:
    async def scenario(bench: HostBench) -> None:
        if is_alone:
            bench.follow(BrokerUnregistered(1))
        bench.follow(ORDERS, TopicConfigChanged("orders", "id-1", "file.delete.delay.ms", "1"))
        await bench.settle()
        partition, table = bench.serving(P0), bench.storage.tables["id-1", 0]
        await append(bench, P0)
        partition.look_after()
        while not table.cleanup.dropping:  # noqa: ASYNC110  # what is to come runs in a thread
            await asyncio.sleep(0)
        _, _, removed_before_ms = table.cleanup.dropping[0]
        assert bench.clock.now_ms() - removed_before_ms == (1 if is_alone else 60_000)

    run_host(scenario)


def test_commit_that_ends_after_another_broker_leads_is_not_told_as_a_leaders() -> None:
    async def scenario(bench: HostBench) -> None:
        bench.follow(ORDERS)
        await bench.settle()
        bench.storage.tables["id-1", 0].gate.clear()
        in_flight = append(bench, P0)
        await asyncio.sleep(0)
        bench.follow(TopicDeleted("orders", "id-1"))
        bench.storage.tables["id-1", 0].gate.set()
        await bench.settle()
        assert base_offset(await in_flight) == 0  # type: ignore[arg-type]
        assert bench.host.committed_versions.last(P0) is None

    run_host(scenario)
