"""Looks and reports of a session of fetches, and their order; tests/properties show that it reports everything."""

from __future__ import annotations

import asyncio

import pytest

from bus.errors import ErrorCode, Refused, StorageFault
from bus.model import TopicPartition
from bus.runtime.partitions.fetch_session import FetchPosition, FetchSession, FetchSessions
from bus.runtime.partitions.fetches import FetchResult, FetchWish, Stopping, fetch
from bus.runtime.partitions.partition import ReadResult
from bus.runtime.tasks import LoopShares
from tests.support.model_partition import ModelPartition
from tests.support.proofs import proved
from tests.support.virtual_time import run_virtually


class Bench:
    def __init__(self, partitions: int, *, records: int = 0) -> None:
        self.logs = [ModelPartition(end=records) for _ in range(partitions)]
        self.session = FetchSession()
        self.put(*range(partitions))

    def put(self, *numbers: int, offset: int = 0) -> None:
        for number in numbers:
            self.session.put(FetchPosition(TopicPartition("t", number), "", offset, 1_000, None))

    async def ask(self, *, wait_ms: int = 0, bytes_max: int = 1_000) -> dict[int, FetchResult]:
        wish = FetchWish([], wait_ms, 1, lambda: bytes_max, session=self.session)
        found = await fetch(wish, lambda name, _: self.logs[name.partition], proved, Stopping())
        return {position.partition.partition: result for position, result in found}

    def looked_at(self) -> list[int]:
        """Since the last time that this was asked."""
        found = [number for number, log in enumerate(self.logs) if log.looks]
        for log in self.logs:
            log.looks = 0
        return found


def records_of(result: FetchResult) -> int:
    assert isinstance(result, ReadResult), f"{result}"
    return sum(batch.record_count for batch in result.batches)


def test_only_what_has_changed_is_looked_at_and_told() -> None:
    async def scenario() -> None:
        bench = Bench(50)
        assert len(await bench.ask()) == 50
        assert await bench.ask() == {}, "all is told"
        bench.looked_at()
        bench.logs[7].change(records=2)
        found = await bench.ask()
        assert (list(found), bench.looked_at()) == ([7], [7])
        bench.put(7, offset=2)
        assert await bench.ask() == {}
        assert bench.looked_at() == [7]
        assert await bench.ask() == {}
        assert bench.looked_at() == []

    asyncio.run(scenario())


def test_fetch_that_waits_is_woken_by_a_partition_that_was_not_due() -> None:
    async def scenario() -> None:
        bench = Bench(3)
        await bench.ask()
        asyncio.get_running_loop().call_later(1.0, lambda: bench.logs[2].change(records=1))
        began_s = asyncio.get_running_loop().time()
        assert list(await bench.ask(wait_ms=60_000)) == [2]
        assert asyncio.get_running_loop().time() - began_s == pytest.approx(1.0)

    run_virtually(scenario())


def test_records_that_the_reader_does_not_go_on_behind_are_given_again() -> None:
    async def scenario() -> None:
        bench = Bench(2)
        await bench.ask()
        bench.logs[0].change(records=3)
        for _ in range(3):
            assert [records_of(result) for result in (await bench.ask()).values()] == [3]

    asyncio.run(scenario())


def test_partition_that_was_given_records_comes_last_when_there_is_no_room_for_all() -> None:
    async def scenario() -> None:
        bench = Bench(3, records=1)
        served: list[int] = []
        for _ in range(6):
            found = await bench.ask(bytes_max=1)
            served += [number for number, result in found.items() if records_of(result)]
        assert served == [0, 1, 2, 0, 1, 2]

    asyncio.run(scenario())


def test_partition_whose_records_could_not_be_read_is_told_of_when_they_are_passed_over() -> None:
    async def scenario() -> None:
        bench = Bench(1, records=5)
        bench.logs[0].fault = StorageFault("no disk")
        (refused,) = (await bench.ask()).values()
        assert isinstance(refused, Refused)
        assert refused.code is ErrorCode.KAFKA_STORAGE_ERROR
        bench.put(0, offset=5)
        assert await bench.ask() == {0: ReadResult([], 5, 0, 0)}

    asyncio.run(scenario())


def test_sessions_of_a_broker_are_counted_until_they_are_closed() -> None:
    async def scenario() -> None:
        sessions = FetchSessions(positions_max=3)
        both = [FetchSession(sessions), FetchSession(sessions)]
        for session in both:
            positions = [FetchPosition(TopicPartition("t", number), "", 0, 1_000, None) for number in (0, 1)]
            await session.put_all([*positions, positions[0]], LoopShares().begin())
        assert (sessions.positions, sessions.has_room) == (4, False)
        both[0].forget(TopicPartition("t", 0))
        both[0].forget(TopicPartition("t", 9))
        assert (sessions.positions, sessions.has_room, both[0].bytes_max) == (3, True, 1_000)
        for session in both:
            session.close()
        assert sessions.positions == 0

    asyncio.run(scenario())
