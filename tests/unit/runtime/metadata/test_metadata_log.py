"""The metadata log on one broker: what it says while it is read on, and when an election fails half-way."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar, cast

import pytest

from bus.cluster_metadata.cluster_draft import ClusterRecord
from bus.cluster_metadata.cluster_records import BrokerRegistered, encode_record
from bus.cluster_metadata.cluster_state import ClusterState
from bus.errors import NotController, StorageFault
from bus.model import Step
from bus.ports import CommitOutcome, Committed, LogState, PartitionTable, Storage, Unknown
from bus.runtime.blocking import BlockingCalls
from bus.runtime.metadata.metadata_log import MetadataLog
from bus.runtime.partitions.maintenance import IoThrottle, Maintenance, MaintenanceClock
from bus.runtime.partitions.partition_settings import metadata_maintenance
from bus.settings.broker import BrokerConfig
from tests.support.fake_table import FakeTable, ManualClock, wait_until

T = TypeVar("T")
FIRST, SECOND = BrokerRegistered(0, "h", 1), BrokerRegistered(1, "h", 2)


class Log:
    """Implements `TypedLog`. `disk` is what all brokers have written; memory knows it up to `state.high_watermark`."""

    def __init__(self) -> None:
        self.disk: list[Mapping[str, Any]] = [encode_record(FIRST)]
        self.state = LogState(0, 0, 0, 0, 0, 0)
        self.table = cast(PartitionTable, FakeTable())
        self.is_checkpoint_due = False
        self.syncing = 0  # records that others see, of an own commit that has not ended
        self.replay_fault: StorageFault | None = None

    def write(self, record: ClusterRecord) -> None:
        self.disk.append(encode_record(record))

    def is_last(self) -> bool:
        return self.state.high_watermark == len(self.disk) - self.syncing

    def is_at_end(self) -> bool:
        return self.state.high_watermark == len(self.disk)

    def append_slowly(self, rows: Sequence[Mapping[str, Any]], **_: Any) -> CommitOutcome:
        """Append, and be busy with it until `end_sync`."""
        self.disk.extend(rows)
        self.syncing = len(rows)
        return Committed(len(self.disk), len(self.disk))

    def end_sync(self) -> None:
        self.syncing = 0
        self.follow()

    def follow(self) -> LogState:
        self.state = replace(self.state, version=len(self.disk), high_watermark=len(self.disk))
        return self.state

    def reload(self) -> LogState:
        return self.follow()

    def lead(self, leader_epoch: int, now_ms: int, *, fence: bool) -> CommitOutcome:
        self.follow()
        self.state = replace(self.state, leader_epoch=leader_epoch)
        return self._committed()

    def append(self, rows: Sequence[Mapping[str, Any]], *, leader_epoch: int, now_ms: int) -> CommitOutcome:
        self.disk.extend(rows)
        self.follow()
        return self._committed()

    def replay(self, offset: int = 0) -> Iterator[Any]:
        if self.replay_fault is not None:
            raise self.replay_fault
        return iter(self.disk[offset : self.state.high_watermark])

    def _committed(self) -> Committed:
        return Committed(self.state.version, self.state.high_watermark)


class Calls:
    """Made at once; what is called in the pool `control` comes back when `gate` is set."""

    def __init__(self) -> None:
        self.gate = asyncio.Event()
        self.gate.set()

    async def control(self, call: Callable[[], T]) -> T:
        result = call()
        await self.gate.wait()
        return result

    async def read(self, call: Callable[[], T]) -> T:
        return call()

    housekeep = read


class Bench:
    def __init__(self) -> None:
        self.log, self.calls, self.clock = Log(), Calls(), ManualClock()
        self.metadata = MetadataLog(
            cast(Storage, self),
            broker_id=0,
            rules=metadata_maintenance(BrokerConfig()),
            clock=self.clock,
            calls=cast(BlockingCalls, self.calls),
            maintenance=Maintenance(MaintenanceClock(self.clock), IoThrottle(1 << 30, self.clock), backoff_s=1.0),
        )

    def open_metadata(self) -> Log:
        self.log.follow()
        return self.log


def run(scenario: Callable[[Bench], Awaitable[None]]) -> None:
    async def main() -> None:
        bench = Bench()
        await bench.metadata.open()
        await asyncio.wait_for(scenario(bench), 10)
        await bench.metadata.end()

    asyncio.run(main())


def add_second(state: ClusterState) -> Step[ClusterRecord, str]:
    return Step("added", (SECOND,))


def add_third(state: ClusterState) -> Step[ClusterRecord, str]:
    return Step("added", (BrokerRegistered(2, "h", 3),))


def test_look_at_a_log_that_is_being_read_on_confirms_nothing_that_memory_does_not_have() -> None:
    async def scenario(bench: Bench) -> None:
        bench.log.write(SECOND)
        bench.clock.advance(10_000)
        bench.calls.gate.clear()
        following = asyncio.ensure_future(bench.metadata.follow())
        await wait_until(bench.log.is_last)
        assert bench.metadata.applied_offset == 1, "read, and not in memory yet"
        confirming = asyncio.ensure_future(bench.metadata.confirm())
        for _ in range(5):
            await asyncio.sleep(0)
        assert bench.metadata.confirmed.monotonic_ms < 10_000
        bench.calls.gate.set()
        await asyncio.gather(following, confirming)
        assert bench.metadata.confirmed.monotonic_ms == 10_000
        assert bench.metadata.cluster.brokers.keys() == {0, 1}

    run(scenario)


@pytest.mark.parametrize("is_alone", [False, True])
def test_what_a_change_says_that_others_see_already_is_not_taken_for_unsaid(is_alone: bool) -> None:
    """The sync of its commit is slow. Another broker may lead by it what this one answers for; if there is one."""

    async def scenario(bench: Bench) -> None:
        if not is_alone:
            bench.log.write(SECOND)
        await bench.metadata.follow()
        await bench.metadata.elect(lambda _: Step("elected"), instead_of=None)
        bench.log.append = bench.log.append_slowly  # type: ignore[method-assign]
        bench.calls.gate.clear()
        changing = asyncio.ensure_future(bench.metadata.change([add_third]))
        await wait_until(lambda: bench.log.syncing == 1)
        bench.clock.advance(10_000)
        confirming = asyncio.ensure_future(bench.metadata.confirm())
        for _ in range(5):
            await asyncio.sleep(0)
        assert (bench.metadata.confirmed.monotonic_ms == 10_000) == is_alone
        bench.log.end_sync()
        bench.calls.gate.set()
        await asyncio.gather(changing, confirming)
        assert bench.metadata.confirmed.monotonic_ms == 10_000
        assert 2 in bench.metadata.cluster.brokers

    run(scenario)


def test_own_version_that_appears_late_is_read_at_the_next_look() -> None:
    """The commit was given up; a network file system tries a lost call again."""

    async def scenario(bench: Bench) -> None:
        bench.log.write(SECOND)
        await bench.metadata.follow()
        await bench.metadata.elect(lambda _: Step("elected"), instead_of=None)
        bench.log.append_slowly([encode_record(BrokerRegistered(2, "h", 3))])
        await bench.metadata.check_leading()
        assert 2 in bench.metadata.cluster.brokers

    run(scenario)


def test_broker_whose_election_fails_behind_the_fence_decides_nothing() -> None:
    async def scenario(bench: Bench) -> None:
        before = bench.metadata.cluster.controller
        bench.log.write(SECOND)
        await bench.metadata.follow()
        bench.log.lead = lambda *_, **__: _fail_next_replay(bench.log)  # type: ignore[method-assign]
        with pytest.raises(StorageFault, match="no disk"):
            await bench.metadata.elect(add_second, instead_of=before)
        assert not bench.metadata.is_leading
        with pytest.raises(NotController):
            await bench.metadata.change([add_second])
        assert len(bench.log.disk) == 3

    run(scenario)


def test_look_that_fails_when_its_caller_has_gone_is_no_failure_of_the_broker(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def scenario(bench: Bench) -> None:
        await bench.metadata.elect(lambda _: Step("elected"), instead_of=None)
        bench.log.is_at_end = _fail_look  # type: ignore[method-assign]
        looking = asyncio.ensure_future(bench.metadata.check_leading())
        await asyncio.sleep(0)
        looking.cancel()
        await asyncio.wait([looking])
        with pytest.raises(StorageFault, match="no disk"):
            await bench.metadata.check_leading()
        assert not [record for record in caplog.records if "failed" in record.getMessage()]

    run(scenario)


def _fail_look() -> bool:
    raise StorageFault("no disk")


def test_log_that_could_not_be_read_after_a_fault_is_read_at_the_next_look() -> None:
    async def scenario(bench: Bench) -> None:
        assert await bench.metadata.elect(lambda _: Step("elected"), instead_of=None) == "elected"
        bench.log.append = lambda *_, **__: Unknown(2, "no answer")  # type: ignore[method-assign]
        bench.log.replay_fault = StorageFault("no disk")
        await bench.metadata.change([add_second])
        bench.clock.advance(10_000)
        with pytest.raises(StorageFault, match="could not be read again"):
            await bench.metadata.check_leading()
        bench.log.write(SECOND)
        bench.log.replay_fault = None
        await bench.metadata.check_leading()
        assert bench.metadata.cluster.brokers.keys() == {0, 1}
        assert bench.metadata.confirmed.monotonic_ms == 10_000

    run(scenario)


def test_controller_that_learns_of_its_successor_has_confirmed_nothing_any_more() -> None:
    async def scenario(bench: Bench) -> None:
        bench.log.write(SECOND)
        await bench.metadata.elect(lambda _: Step("elected"), instead_of=None)
        await bench.metadata.confirm()
        assert bench.metadata.confirmed.monotonic_ms == bench.clock.monotonic_ms()
        bench.log.lead(bench.log.state.leader_epoch + 1, 0, fence=True)  # by another broker
        bench.log.write(BrokerRegistered(2, "h", 3))
        await bench.metadata.check_leading()
        assert not bench.metadata.is_leading
        assert bench.metadata.confirmed.monotonic_ms == -math.inf

    run(scenario)


def _fail_next_replay(log: Log) -> CommitOutcome:
    """Another broker has written meanwhile."""
    log.write(BrokerRegistered(2, "h", 3))
    log.replay_fault = StorageFault("no disk")
    return Log.lead(log, 1, 0, fence=True)
