from __future__ import annotations

import asyncio
from typing import Any, cast

from bus.errors import ErrorCode, Refused
from bus.model import ProducerStamp
from bus.ports import StagingKey
from bus.runtime.coordinators.staged_sweeper import StagedSweeper
from bus.transactions.state import ProducerIdentity
from tests.support.fake_table import records
from tests.support.partition_bench import Bench, run

OLD = StagingKey(4, 7, 3)
OTHER = StagingKey(5, 8, 0)
AGE_MS = 1_000


class Coordinators:
    """What they say is open; a refusal of all, if there is one."""

    def __init__(self) -> None:
        self.open: set[ProducerIdentity] = set()
        self.refused: Refused | None = None
        self.asked: list[int] = []

    async def find_open(self, number: int) -> frozenset[ProducerIdentity] | Refused:
        self.asked.append(number)
        return self.refused or frozenset(self.open)


def sweeper(bench: Bench, coordinators: Coordinators) -> StagedSweeper:
    return StagedSweeper(
        lambda: [bench.partition],
        coordinators.find_open,
        age_min_ms=AGE_MS,
        now_ms=lambda: 10_000,
        tasks=cast(Any, bench.tasks),
    )


def lay(bench: Bench, key: StagingKey, *, at_ms: int = 0) -> None:
    """As an earlier leader left it."""
    bench.table.staged.now_ms = at_ms
    stamp = ProducerStamp(key.producer_id, key.producer_epoch, 0)
    bench.table.staged.stage(key, records(1, producer=stamp))


def test_what_is_open_nowhere_and_old_is_deleted() -> None:
    async def scenario(bench: Bench) -> None:
        coordinators = Coordinators()
        lay(bench, OLD)
        lay(bench, OTHER)
        coordinators.open = {ProducerIdentity(8, 0)}
        assert await sweeper(bench, coordinators).sweep() == 1
        assert set(bench.table.staged.batches) == {OTHER}
        assert sorted(coordinators.asked) == [4, 5]

    run(scenario)


def test_nothing_is_deleted_while_a_coordinator_cannot_tell() -> None:
    async def scenario(bench: Bench) -> None:
        coordinators = Coordinators()
        lay(bench, OLD)
        coordinators.refused = Refused(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, "it is being read")
        assert await sweeper(bench, coordinators).sweep() == 0
        assert OLD in bench.table.staged.batches

    run(scenario)


def test_what_is_young_is_not_even_asked_about() -> None:
    async def scenario(bench: Bench) -> None:
        coordinators = Coordinators()
        lay(bench, OTHER, at_ms=9_500)
        assert await sweeper(bench, coordinators).sweep() == 0
        assert not coordinators.asked

    run(scenario)


def test_what_is_under_way_here_is_not_even_asked_about() -> None:
    async def scenario(bench: Bench) -> None:
        coordinators, gate = Coordinators(), asyncio.Event()

        async def add() -> Refused | None:
            await gate.wait()
            return None

        lay(bench, OLD)
        batch = records(1, producer=ProducerStamp(OLD.producer_id, OLD.producer_epoch, 1))
        staging = bench.partition.transactions.stage(batch, OLD, "payments", add)
        found = await sweeper(bench, coordinators).sweep()
        gate.set()
        await staging
        assert (found, coordinators.asked) == (0, [])

    run(scenario)


def test_batch_that_comes_while_the_coordinator_is_asked_is_kept() -> None:
    async def scenario(bench: Bench) -> None:
        async def add() -> Refused | None:
            return None

        async def find_open(number: int) -> frozenset[ProducerIdentity] | Refused:
            batch = records(1, producer=ProducerStamp(OLD.producer_id, OLD.producer_epoch, 0))
            await bench.partition.transactions.stage(batch, OLD, "payments", add)
            return frozenset()

        lay(bench, OLD)
        coordinators = Coordinators()
        coordinators.find_open = find_open  # type: ignore[method-assign]
        assert await sweeper(bench, coordinators).sweep() == 0
        assert OLD in bench.table.staged.batches

    run(scenario)
