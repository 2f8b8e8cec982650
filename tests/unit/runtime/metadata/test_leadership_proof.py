"""Answers of a leader rest on metadata that were the newest ones a moment ago."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, cast

import pytest

from bus.cluster_metadata.cluster_records import BrokerRegistered, apply_all
from bus.cluster_metadata.cluster_state import EMPTY_CLUSTER
from bus.errors import ErrorCode, StorageFault
from bus.runtime.metadata.metadata_log import PROOF_MS, LeadershipProof, MetadataLog, Moment
from bus.runtime.tasks import TaskScope
from tests.support.fake_table import ManualClock, wait_until

ALONE = apply_all(EMPTY_CLUSTER, [BrokerRegistered(0, "h", 1)])
TWO = apply_all(ALONE, [BrokerRegistered(1, "h", 2)])


class Metadata:
    """A look takes `look_ms`, and ends when `gate` is set."""

    def __init__(self, clock: ManualClock) -> None:
        self.cluster = TWO
        self.looks = 0
        self.fault: Exception | None = None
        self.look_ms = 0
        self.gate = asyncio.Event()
        self.gate.set()
        self._clock = clock
        self.confirmed = self._now()

    def _now(self) -> Moment:
        return Moment(self._clock.monotonic_ms(), self._clock.now_ms())

    async def confirm(self) -> None:
        self.looks += 1
        began = self._now()
        await self.gate.wait()
        self._clock.advance(self.look_ms)
        if self.fault is not None:
            raise self.fault
        self.confirmed = began


class Bench:
    def __init__(self) -> None:
        self.clock = ManualClock()
        self.metadata = Metadata(self.clock)
        self.tasks = TaskScope("test")
        self.proof = LeadershipProof(cast(MetadataLog, self.metadata), broker_id=0, clock=self.clock, tasks=self.tasks)


def run(scenario: Callable[[Bench], Awaitable[None]]) -> None:
    async def main() -> None:
        bench = Bench()
        await scenario(bench)
        await bench.tasks.join()

    asyncio.run(main())


def test_fresh_proof_costs_no_look_and_an_old_one_costs_one_for_all_who_wait() -> None:
    async def scenario(bench: Bench) -> None:
        bench.clock.advance(PROOF_MS - 1)
        assert await bench.proof.wait() is None
        assert bench.metadata.looks == 0
        bench.clock.advance(1)
        assert await asyncio.gather(*(bench.proof.wait() for _ in range(100))) == [None] * 100
        assert bench.metadata.looks == 1

    run(scenario)


@pytest.mark.parametrize("clock", ["wall", "wall that was set back", "monotonic"])
def test_proof_is_old_by_either_clock(clock: str) -> None:
    async def scenario(bench: Bench) -> None:
        if clock == "wall":
            bench.clock.time_ms += PROOF_MS
        elif clock == "wall that was set back":
            bench.clock.time_ms -= PROOF_MS
        else:
            bench.clock.passed_ms += PROOF_MS
        assert not bench.proof.is_fresh

    run(scenario)


def test_wall_clock_that_was_set_back_costs_one_look() -> None:
    async def scenario(bench: Bench) -> None:
        bench.clock.time_ms -= 3_600_000
        assert await bench.proof.wait() is None
        assert bench.proof.is_fresh
        assert bench.metadata.looks == 1

    run(scenario)


def test_look_that_began_before_the_broker_stood_still_proves_nothing_afterwards() -> None:
    async def scenario(bench: Bench) -> None:
        bench.clock.advance(PROOF_MS)
        bench.metadata.gate.clear()
        early = asyncio.ensure_future(bench.proof.wait())
        await wait_until(lambda: bench.metadata.looks == 1)
        bench.clock.advance(60_000)
        late = asyncio.ensure_future(bench.proof.wait())
        await asyncio.sleep(0)
        bench.metadata.gate.set()
        assert (await early, await late) == (None, None)
        assert bench.metadata.looks == 2

    run(scenario)


def test_proof_for_an_answer_that_may_not_be_old_is_a_look_that_begins_after_the_question() -> None:
    async def scenario(bench: Bench) -> None:
        bench.metadata.gate.clear()
        early = asyncio.ensure_future(bench.proof.wait(by_new_look=True))
        await wait_until(lambda: bench.metadata.looks == 1)
        bench.clock.advance(1)
        late = [asyncio.ensure_future(bench.proof.wait(by_new_look=True)) for _ in range(3)]
        await asyncio.sleep(0)
        bench.metadata.gate.set()
        assert await asyncio.gather(early, *late) == [None] * 4
        assert bench.metadata.looks == 2, "the one that was under way when the three asked may have missed a successor"

    run(scenario)


def test_fresh_proof_does_not_stand_for_an_answer_that_may_not_be_old() -> None:
    async def scenario(bench: Bench) -> None:
        bench.clock.advance(1)
        bench.metadata.fault = StorageFault("no disk")
        refused: Any = await bench.proof.wait(by_new_look=True)
        assert refused.code is ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert bench.proof.is_fresh
        assert await bench.proof.wait() is None

    run(scenario)


def test_slow_look_of_its_own_is_enough() -> None:
    async def scenario(bench: Bench) -> None:
        bench.clock.advance(PROOF_MS)
        bench.metadata.look_ms = 2 * PROOF_MS
        assert await bench.proof.wait() is None
        assert bench.metadata.looks == 1

    run(scenario)


def test_metadata_that_cannot_be_read_prove_nothing_unless_there_is_no_other_broker() -> None:
    async def scenario(bench: Bench) -> None:
        bench.clock.advance(PROOF_MS)
        bench.metadata.fault = StorageFault("no disk")
        refused: Any = await bench.proof.wait()
        assert refused.code is ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert "still leads its partitions: no disk" in refused.message
        bench.metadata.cluster = ALONE
        assert await bench.proof.wait() is None

    run(scenario)


def test_look_that_fails_unexpectedly_proves_nothing() -> None:
    async def scenario(bench: Bench) -> None:
        bench.clock.advance(PROOF_MS)
        bench.metadata.fault = ValueError("a state that cannot be followed")
        refused: Any = await bench.proof.wait()
        assert refused.code is ErrorCode.NOT_LEADER_OR_FOLLOWER

    run(scenario)
