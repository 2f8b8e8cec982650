"""Lines of the log at DEBUG about the time that a commit took."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar

import pytest

from tests.support.partition_bench import SETTINGS, Bench, InlineCalls
from tests.support.virtual_time import run_virtually

T = TypeVar("T")
WRITING_S = 0.002


class SlowCalls(InlineCalls):
    """Calls whose commits take some time."""

    def commit(self, call: Callable[[], T]) -> asyncio.Future[T]:
        async def run() -> T:
            await asyncio.sleep(WRITING_S)
            return call()

        return asyncio.ensure_future(run())


async def commit_twice(acks: int) -> None:
    """The second commit is queued at 5 ms, may begin at 20 ms by the pace of commits, and has its turn at 23 ms."""
    bench = Bench(settings=replace(SETTINGS, commit_interval_ms=20), calls=SlowCalls())
    bench.append(3)
    await asyncio.sleep(0.005)
    bench.append(2, acks=acks)
    await asyncio.sleep(0.005)
    bench.append(1)
    await asyncio.sleep(0.009)
    async with bench.calls.commit_turns.turn():
        await asyncio.sleep(0.004)
    await bench.close()


@pytest.mark.parametrize("acks", [-1, 0, 1])
def test_the_log_says_where_the_time_of_each_commit_went(caplog: pytest.LogCaptureFixture, acks: int) -> None:
    with caplog.at_level(logging.DEBUG, "bus.runtime.partitions.partition_writer"):
        run_virtually(commit_twice(acks))
    assert caplog.messages == [
        "committed 3 records up to offset 3 in 2.0 ms: 0.0 queued, 0.0 for a turn, 2.0 writing",
        "committed 3 records up to offset 6 in 20.0 ms: 15.0 queued, 3.0 for a turn, 2.0 writing",
    ]


def test_a_commit_whose_records_came_before_it_was_logged_has_no_times(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        bench = Bench(calls=SlowCalls())
        bench.append(3)
        caplog.set_level(logging.DEBUG, "bus.runtime.partitions.partition_writer")
        await bench.close()

    caplog.set_level(logging.INFO, "bus.runtime.partitions.partition_writer")
    run_virtually(scenario())
    assert caplog.messages == ["committed 3 records up to offset 3"]
