"""Turns to commit: bounded by what the processor can do at once, in order, and nobody waits forever."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from bus.runtime.blocking import CommitTurns
from tests.support.fake_table import ManualClock

PATIENT_S = 5.0


def run(scenario: Callable[[], Any]) -> None:
    asyncio.run(asyncio.wait_for(scenario(), 10))


class Holder:
    """Somebody who takes a turn and keeps it until he is told."""

    def __init__(self, turns: CommitTurns) -> None:
        self.has_turn = asyncio.Event()
        self.may_end = asyncio.Event()
        self.task = asyncio.ensure_future(self._hold(turns))

    async def _hold(self, turns: CommitTurns) -> None:
        async with turns.turn():
            self.has_turn.set()
            await self.may_end.wait()


async def let_others_run() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def measured(turns: CommitTurns, clock: ManualClock, *, elapsed_ms: int, processor_s: float) -> None:
    """One commit that took so long."""

    async def commit() -> None:
        clock.advance(elapsed_ms)

    async with turns.turn():
        await turns.measure(commit, lambda: processor_s)


def test_turns_go_round_in_the_order_of_coming() -> None:
    async def scenario() -> None:
        turns = CommitTurns(8, ManualClock(), PATIENT_S)
        first, second, third = Holder(turns), Holder(turns), Holder(turns)
        await first.has_turn.wait()
        await let_others_run()
        assert not second.has_turn.is_set()
        first.may_end.set()
        await second.has_turn.wait()
        await let_others_run()
        assert not third.has_turn.is_set()
        second.may_end.set()
        third.may_end.set()
        await asyncio.gather(first.task, second.task, third.task)

    run(scenario)


@pytest.mark.parametrize(
    ("elapsed_ms", "processor_s", "turns_max", "expected"),
    [(2, 0.0015, 8, 1), (10, 0.002, 8, 5), (100, 0.001, 8, 8), (1, 0.001, 8, 1)],
)
def test_as_many_commits_at_once_as_keep_a_core_busy(
    elapsed_ms: int, processor_s: float, turns_max: int, expected: int
) -> None:
    async def scenario() -> None:
        clock = ManualClock()
        turns = CommitTurns(turns_max, clock, PATIENT_S)
        await measured(turns, clock, elapsed_ms=elapsed_ms, processor_s=processor_s)
        holders = [Holder(turns) for _ in range(turns_max + 1)]
        await let_others_run()
        assert [holder.has_turn.is_set() for holder in holders].count(True) == expected
        for holder in holders:
            holder.may_end.set()
        await asyncio.gather(*(holder.task for holder in holders))

    run(scenario)


def test_commit_beside_another_is_no_measure() -> None:
    async def scenario() -> None:
        clock = ManualClock()
        turns = CommitTurns(8, clock, PATIENT_S)
        await measured(turns, clock, elapsed_ms=10, processor_s=0.002)
        beside = Holder(turns)
        await beside.has_turn.wait()
        for _ in range(100):
            await measured(turns, clock, elapsed_ms=9_000, processor_s=0.001)
        assert turns.at_once == 5
        beside.may_end.set()
        await beside.task

    run(scenario)


def test_commit_that_hangs_holds_up_nobody_for_long() -> None:
    async def scenario() -> None:
        turns = CommitTurns(8, ManualClock(), wait_max_s=0.001)
        hanging, other = Holder(turns), Holder(turns)
        await other.has_turn.wait()
        assert not hanging.task.done()
        for holder in (hanging, other):
            holder.may_end.set()
            await holder.task
        third = Holder(turns)
        await third.has_turn.wait()
        third.may_end.set()
        await third.task

    run(scenario)


def test_cancelled_waiter_leaves_its_turn_to_the_next() -> None:
    async def scenario() -> None:
        turns = CommitTurns(8, ManualClock(), PATIENT_S)
        first, cancelled, last = Holder(turns), Holder(turns), Holder(turns)
        await first.has_turn.wait()
        await let_others_run()
        cancelled.task.cancel()
        first.may_end.set()
        await last.has_turn.wait()
        last.may_end.set()
        await asyncio.gather(first.task, last.task)
        assert cancelled.task.cancelled()

    run(scenario)


def test_waiter_that_is_cancelled_just_as_it_is_called_gives_its_turn_back() -> None:
    async def scenario() -> None:
        turns = CommitTurns(8, ManualClock(), PATIENT_S)
        first, cancelled, last = Holder(turns), Holder(turns), Holder(turns)
        await first.has_turn.wait()
        await let_others_run()
        first.task.add_done_callback(lambda _: cancelled.task.cancel())  # runs before the one who was called
        first.may_end.set()
        await last.has_turn.wait()
        last.may_end.set()
        await asyncio.gather(first.task, last.task)
        assert not cancelled.has_turn.is_set()

    run(scenario)
