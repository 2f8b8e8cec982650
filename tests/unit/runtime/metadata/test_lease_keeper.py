"""A broker renews its lease as long as it can write, and knows soon that it cannot, whatever its disk does."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, cast

from bus.cluster_metadata.broker_liveness import Lease, decode_lease
from bus.errors import StorageFault
from bus.runtime.metadata.lease_keeper import LeaseKeeper
from bus.runtime.tasks import TaskScope
from bus.settings.broker import BrokerConfig
from tests.support.virtual_time import run_virtually


class Disk:
    """Also the threads that call it."""

    def __init__(self) -> None:
        self.leases: dict[int, bytes] = {}
        self.locks: dict[int, bytes] = {0: b"", 1: b"broker 1"}
        self.alive = {0, 1}
        self.fault: Exception | None = None
        self.is_back = asyncio.Event()
        self.is_back.set()
        self.reads = 0

    def renew_lease(self, content: bytes) -> None:
        if self.fault is not None:
            raise self.fault
        self.leases[0] = content

    def read_lease(self, broker_id: int) -> bytes:
        self.reads += 1
        return self.leases.get(broker_id, b"")

    def renew_lock(self) -> None:
        self.locks[0] += b"."

    def read_lock(self, broker_id: int) -> bytes:
        return self.locks[broker_id]

    def is_alive(self, broker_id: int) -> bool:
        return broker_id in self.alive

    def renew(self, call: Callable[[], Any]) -> asyncio.Future[Any]:
        return asyncio.ensure_future(self._make(call))

    def control(self, call: Callable[[], Any]) -> asyncio.Future[Any]:
        return asyncio.ensure_future(self._make(call))

    async def _make(self, call: Callable[[], Any]) -> Any:
        await self.is_back.wait()
        return call()


class LoopClock:
    def now_ms(self) -> int:
        return 0

    def monotonic_ms(self) -> float:
        return asyncio.get_running_loop().time() * 1000


class Bench:
    def __init__(self) -> None:
        self.has_older = False
        self.disk = Disk()
        self.keeper = LeaseKeeper(
            0,
            cast(Any, self.disk),
            BrokerConfig(),
            has_older=lambda: self.has_older,
            clock=LoopClock(),
            calls=cast(Any, self.disk),
            tasks=TaskScope("test"),
        )
        self.keeper.start()

    def lease(self) -> Lease:
        return decode_lease(self.disk.leases[0])


def test_lease_is_renewed_in_each_heartbeat_interval_and_at_once_if_there_is_news() -> None:
    async def run() -> None:
        bench = Bench()
        await asyncio.sleep(2.1)
        assert bench.lease() == Lease(5)
        bench.keeper.tell("life-1")
        await asyncio.sleep(0.01)
        assert bench.lease() == Lease(6, "life-1")
        bench.keeper.tell("life-1")
        await asyncio.sleep(0.01)
        assert bench.lease() == Lease(6, "life-1")
        await bench.keeper.stop()

    run_virtually(run())


def test_disk_that_fails_is_noticed_after_a_session_and_so_is_that_it_is_back() -> None:
    async def run() -> None:
        bench = Bench()
        await asyncio.sleep(1.0)
        bench.disk.fault = StorageFault("read-only file system")
        await asyncio.sleep(1.4)
        assert not bench.keeper.writes.cannot_write
        await asyncio.sleep(0.9)
        assert bench.keeper.writes.cannot_write
        bench.disk.fault = None
        await asyncio.sleep(0.6)
        assert not bench.keeper.writes.cannot_write
        await bench.keeper.stop()

    run_virtually(run())


def test_disk_that_does_not_answer_is_noticed_as_soon() -> None:
    async def run() -> None:
        bench = Bench()
        await asyncio.sleep(1.0)
        bench.disk.is_back.clear()
        await asyncio.sleep(2.3)
        assert bench.keeper.writes.cannot_write
        bench.disk.is_back.set()
        await asyncio.sleep(0.6)
        assert not bench.keeper.writes.cannot_write
        await bench.keeper.stop()

    run_virtually(run())


def test_leases_are_read_ten_times_a_second_at_most_and_none_of_a_process_that_has_ended() -> None:
    async def run() -> None:
        bench = Bench()
        bench.disk.leases[1] = b"1 life-9"
        for _ in range(10):
            await bench.keeper.look([0, 1, 2])
        assert bench.disk.reads == 1
        assert bench.keeper.find_working().keys() == {0, 1}
        bench.disk.alive.remove(1)
        await asyncio.sleep(0.1)
        await bench.keeper.look([1])
        assert bench.keeper.find_working().keys() == {0}
        await bench.keeper.stop()

    run_virtually(run())


def test_lock_is_renewed_behind_the_lease_while_there_may_be_brokers_that_look_at_that_alone() -> None:
    async def run() -> None:
        bench = Bench()
        await asyncio.sleep(2.1)
        assert bench.disk.locks[0] == b""
        bench.has_older = True
        await asyncio.sleep(1.0)
        assert bench.disk.locks[0] == b".."
        bench.disk.fault = StorageFault("read-only file system")
        await asyncio.sleep(1.0)
        assert bench.disk.locks[0] == b"..", "older brokers see that it cannot write"
        await bench.keeper.stop()

    run_virtually(run())


def test_broker_that_renews_its_lock_alone_is_not_silent_until_it_stops() -> None:
    async def run() -> None:
        bench = Bench()
        bench.has_older = True
        bench.disk.leases[1] = b"7 of the release that it went back from"
        for second in range(10):
            await bench.keeper.look([1])
            assert not bench.keeper.watch.is_silent(1, second * 1_000)
            bench.disk.locks[1] += b"."
            await asyncio.sleep(1.0)
        await bench.keeper.look([1])
        assert bench.keeper.watch.was_seen_to_work(1, 10_000)
        assert bench.keeper.watch.is_silent(1, 12_001)
        await bench.keeper.stop()

    run_virtually(run())
