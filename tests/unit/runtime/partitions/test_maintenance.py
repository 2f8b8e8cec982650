"""Resources that the maintenance of all partitions shares: bytes, time, and the timer that looks after them."""

from __future__ import annotations

import asyncio
import sys
import threading
from dataclasses import dataclass, field

import pytest

from bus.model import TopicPartition
from bus.ports import MaintenanceStopped
from bus.runtime.partitions.maintenance import IoThrottle, MaintenanceClock, MaintenancePace, MaintenanceTicker
from tests.support.fake_table import ManualClock
from tests.support.virtual_time import run_virtually


def test_what_all_use_together_keeps_to_the_bytes_of_a_second() -> None:
    clock = ManualClock()
    throttle = IoThrottle(1_000.0, clock)
    assert throttle.use(100) == 0
    assert throttle.use(500) == pytest.approx(0.5)
    assert throttle.use(500) == pytest.approx(1.0)
    clock.advance(1_000)
    assert throttle.use(0) == 0
    assert throttle.use(1) == pytest.approx(0.001)


def test_a_long_rest_is_no_leave_to_use_much_at_once() -> None:
    clock = ManualClock()
    throttle = IoThrottle(1_000.0, clock)
    clock.advance(3_600_000)
    assert throttle.use(1_000) == pytest.approx(0.9)


def test_without_a_bound_nobody_rests() -> None:
    throttle = IoThrottle(sys.float_info.max, ManualClock())
    assert all(throttle.use(2**40) == 0 for _ in range(100))


def test_whoever_rests_is_woken_to_be_told_that_the_partition_is_going_away() -> None:
    pace = MaintenancePace(IoThrottle(1.0, ManualClock()))
    told = threading.Event()

    def work() -> None:
        try:
            pace(10**9)
        except MaintenanceStopped:
            told.set()

    thread = threading.Thread(target=work)
    thread.start()
    pace.stop()
    assert told.wait(10)
    thread.join()
    with pytest.raises(MaintenanceStopped):
        pace(0)


def test_the_clock_of_maintenance_goes_at_most_twice_as_fast_as_time() -> None:
    wall = ManualClock(1_000_000)
    clock = MaintenanceClock(wall)
    wall.time_ms += 86_400_000
    wall.passed_ms += 10
    assert clock.now_ms() == 1_000_020
    wall.time_ms = 500_000
    assert clock.now_ms() == 500_000


@dataclass
class LookedAfter:
    name: TopicPartition
    at_s: list[float] = field(default_factory=list)

    def look_after(self) -> None:
        self.at_s.append(asyncio.get_running_loop().time())


def test_every_partition_is_looked_after_once_in_an_interval_and_not_all_at_once() -> None:
    async def main() -> None:
        partitions = [LookedAfter(TopicPartition("orders", number)) for number in range(200)]
        clock = ManualClock()
        ticker = MaintenanceTicker(300.0, MaintenanceClock(clock), lambda: partitions)
        ticker.start()
        await asyncio.sleep(29)
        assert {len(partition.at_s) for partition in partitions} == {0}, "a broker that has just started is left alone"
        await asyncio.sleep(298)
        assert {len(partition.at_s) for partition in partitions} == {1}
        moments = [partition.at_s[0] for partition in partitions]
        assert max(moments.count(moment) for moment in moments) < 20
        await asyncio.sleep(300)
        assert {len(partition.at_s) for partition in partitions} == {2}
        ticker.stop()
        await asyncio.sleep(1_000)
        assert {len(partition.at_s) for partition in partitions} == {2}

    run_virtually(main())


@pytest.mark.parametrize("interval_s", [0.001, 1.0, 2.5, 10.0])
def test_a_short_interval_is_kept(interval_s: float) -> None:
    async def main() -> None:
        partition = LookedAfter(TopicPartition("orders", 0))
        ticker = MaintenanceTicker(interval_s, MaintenanceClock(ManualClock()), lambda: [partition])
        ticker.start()
        await asyncio.sleep(interval_s * 10.5)
        ticker.stop()
        assert len(partition.at_s) in (10, 11)

    run_virtually(main())


def test_a_clock_that_jumps_between_two_looks_is_seen_in_the_slot_after() -> None:
    async def main() -> None:
        wall = ManualClock(1_000_000)
        clock = MaintenanceClock(wall)
        ticker = MaintenanceTicker(300.0, clock, list)
        ticker.start()
        for _ in range(59):
            await asyncio.sleep(5)
            wall.advance(5_000)
        wall.time_ms += 86_400_000
        await asyncio.sleep(5)
        wall.advance(5_000)
        assert clock.now_ms() <= 1_000_000 + 300_000 + 10_000
        ticker.stop()

    run_virtually(main())
