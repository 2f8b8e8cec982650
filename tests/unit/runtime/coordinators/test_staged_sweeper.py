from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, cast

import pytest

from bus.errors import ErrorCode, Refused
from bus.model import ProducerStamp
from bus.ports import AppliedTransaction, StagingKey
from bus.runtime.coordinators.staged_sweeper import StagedSweeper
from bus.runtime.metadata.peers import Traces
from bus.runtime.partitions.partition import Partition
from bus.runtime.partitions.partition_queue import TransactionWritten
from bus.transactions.state import ProducerIdentity
from tests.support.fake_table import records
from tests.support.partition_bench import AddingCoordinator, Bench, InlineCalls, run, staged_of
from tests.support.virtual_time import run_virtually

OLD = StagingKey(4, 7, 3)
OTHER = StagingKey(5, 8, 0)
AGE_MS = 1_000
ID_AGE_MS = 5_000


class Coordinators:
    """Coordinators that answer which transactions are open and which ids they know; or refuse everything, if there is a
    refusal."""

    def __init__(self) -> None:
        self.open: set[ProducerIdentity] = set()
        self.ended: set[ProducerIdentity] = set()
        self.known: set[str] = set()
        self.refused: Refused | None = None
        self.asked: list[int] = []

    def partition_of(self, transactional_id: str) -> int | Refused:
        return len(transactional_id)

    async def find_needed(self, number: int, traces: Traces) -> Traces | Refused:
        self.asked.append(number)
        return self.refused or Traces(
            traces.rows & self.open, traces.transactional_ids & self.known, traces.rows & self.ended
        )


def sweeper(
    bench: Bench, coordinators: Coordinators, partitions: Callable[[], list[Partition]] | None = None
) -> StagedSweeper:
    return StagedSweeper(
        partitions or (lambda: [bench.partition]),
        coordinators,
        age_min_ms=AGE_MS,
        id_age_min_ms=ID_AGE_MS,
        now_ms=lambda: 10_000,
        tasks=cast(Any, bench.tasks),
    )


def lay(bench: Bench, key: StagingKey, *, at_ms: int = 0) -> None:
    """Stage a batch as an earlier leader left it."""
    bench.table.transactions.staged.now_ms = at_ms
    stamp = ProducerStamp(key.producer_id, key.producer_epoch, 0)
    bench.table.transactions.staged.stage(key, records(1, producer=stamp))


def test_what_is_open_nowhere_and_old_is_deleted() -> None:
    async def scenario(bench: Bench) -> None:
        coordinators = Coordinators()
        lay(bench, OLD)
        lay(bench, OTHER)
        coordinators.open = {ProducerIdentity(8, 0)}
        assert await sweeper(bench, coordinators).sweep() == 1
        assert set(bench.table.transactions.staged.batches) == {OTHER}
        assert sorted(coordinators.asked) == [4, 5]

    run(scenario)


def test_nothing_is_deleted_while_a_coordinator_cannot_tell() -> None:
    async def scenario(bench: Bench) -> None:
        coordinators = Coordinators()
        lay(bench, OLD)
        coordinators.refused = Refused(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, "it is being read")
        assert await sweeper(bench, coordinators).sweep() == 0
        assert OLD in bench.table.transactions.staged.batches

    run(scenario)


def test_what_is_young_is_kept_unless_its_transaction_is_known_to_have_ended() -> None:
    async def scenario(bench: Bench) -> None:
        coordinators = Coordinators()
        lay(bench, OLD, at_ms=9_500)
        lay(bench, OTHER, at_ms=9_500)
        assert await sweeper(bench, coordinators).sweep() == 0
        coordinators.ended = {ProducerIdentity(OLD.producer_id, OLD.producer_epoch)}
        assert await sweeper(bench, coordinators).sweep() == 1
        assert set(bench.table.transactions.staged.batches) == {OTHER}

    run(scenario)


class TakeOver:
    """A sweeper under a clock of its own, on a broker that leads nothing until a test says so; what an earlier leader
    left there is young, and its transaction has ended."""

    def __init__(self, bench: Bench) -> None:
        self.bench = bench
        self.coordinators = Coordinators()
        self.coordinators.ended = {ProducerIdentity(OLD.producer_id, OLD.producer_epoch)}
        self.led: list[Partition] = []
        self.sweeper = sweeper(bench, self.coordinators, lambda: self.led)
        lay(bench, OLD, at_ms=9_500)

    @property
    def is_swept(self) -> bool:
        return OLD not in self.bench.table.transactions.staged.batches


def take_over(scenario: Callable[[TakeOver], Awaitable[None]]) -> None:
    async def main() -> None:
        bench = Bench(calls=InlineCalls())
        found = TakeOver(bench)
        found.sweeper.start()
        try:
            await scenario(found)
        finally:
            found.sweeper.stop()
            await bench.close()

    run_virtually(main())


def test_partition_is_swept_seconds_after_it_was_taken_over_and_not_at_once() -> None:
    async def scenario(broker: TakeOver) -> None:
        await asyncio.sleep(100)
        broker.led = [broker.bench.partition]
        await asyncio.sleep(9)
        assert not broker.is_swept
        assert not broker.coordinators.asked
        await asyncio.sleep(11)
        assert broker.is_swept
        await asyncio.sleep(300)
        assert len(broker.coordinators.asked) == 1, "the next time is that of all partitions"

    take_over(scenario)


def test_partition_that_was_taken_over_is_swept_when_its_coordinator_has_come_back() -> None:
    async def scenario(broker: TakeOver) -> None:
        broker.coordinators.refused = Refused(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, "it is being read")
        await asyncio.sleep(100)
        broker.led = [broker.bench.partition]
        await asyncio.sleep(30)
        assert not broker.is_swept
        broker.coordinators.refused = None
        await asyncio.sleep(6)
        assert broker.is_swept

    take_over(scenario)


def test_coordinator_that_stays_away_is_not_asked_for_ever() -> None:
    async def scenario(broker: TakeOver) -> None:
        broker.coordinators.refused = Refused(ErrorCode.COORDINATOR_NOT_AVAILABLE, "it has no leader")
        await asyncio.sleep(61)
        broker.led = [broker.bench.partition]
        await asyncio.sleep(100)
        asked = len(broker.coordinators.asked)
        assert 5 <= asked <= 15
        await asyncio.sleep(300)
        assert len(broker.coordinators.asked) == asked

    take_over(scenario)


def test_partition_whose_sweep_fails_after_the_take_over_is_left_to_the_sweep_of_all(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It must not fail again at each look, and hold up what comes behind it."""

    async def scenario(broker: TakeOver) -> None:
        await asyncio.sleep(61)
        looks = []

        def fail() -> None:
            looks.append(asyncio.get_running_loop().time())
            raise RuntimeError("a fault of the program")

        broker.led = [broker.bench.partition]
        with monkeypatch.context() as patch:
            patch.setattr(broker.bench.table.transactions.staged, "list", fail)
            await asyncio.sleep(100)
        assert len(looks) == 1
        await asyncio.sleep(600)
        assert broker.is_swept

    take_over(scenario)


def test_what_is_under_way_here_is_not_even_asked_about() -> None:
    async def scenario(bench: Bench) -> None:
        coordinators, adding = Coordinators(), AddingCoordinator()
        adding.gate.clear()

        lay(bench, OLD)
        batch = records(1, producer=ProducerStamp(OLD.producer_id, OLD.producer_epoch, 1))
        staging = bench.partition.open_transactions.stage(batch, OLD, "payments", adding)
        found = await sweeper(bench, coordinators).sweep()
        adding.gate.set()
        await staging
        assert (found, coordinators.asked) == (0, [])

    run(scenario)


def test_what_this_leader_staged_itself_goes_once_its_coordinator_has_forgotten_it() -> None:
    """A coordinator that was given up, or that died before its log had the partition, tells nobody of the end."""

    async def scenario(bench: Bench) -> None:
        coordinators = Coordinators()
        batch = records(1, producer=ProducerStamp(OLD.producer_id, OLD.producer_epoch, 0))
        await bench.partition.open_transactions.stage(batch, OLD, "payments", AddingCoordinator())
        coordinators.open = {ProducerIdentity(OLD.producer_id, OLD.producer_epoch)}
        assert await sweeper(bench, coordinators).sweep() == 0
        assert staged_of(bench.partition).keys() == {OLD}
        coordinators.open.clear()
        assert await sweeper(bench, coordinators).sweep() == 1
        assert (bench.table.transactions.staged.batches, staged_of(bench.partition)) == ({}, {})

    run(scenario)


def test_batch_that_comes_while_the_coordinator_is_asked_is_kept() -> None:
    async def scenario(bench: Bench) -> None:
        async def find_needed(number: int, traces: Traces) -> Traces | Refused:
            batch = records(1, producer=ProducerStamp(OLD.producer_id, OLD.producer_epoch, 0))
            await bench.partition.open_transactions.stage(batch, OLD, "payments", AddingCoordinator())
            return Traces()

        lay(bench, OLD)
        coordinators = Coordinators()
        coordinators.find_needed = find_needed  # type: ignore[method-assign]
        assert await sweeper(bench, coordinators).sweep() == 0
        assert OLD in bench.table.transactions.staged.batches

    run(scenario)


# ------------------------------------------------------------------ proofs of ids that have expired


async def apply(bench: Bench, transactional_id: str, number: int) -> None:
    applied = AppliedTransaction(transactional_id, number, OLD.producer_id, number)
    key = StagingKey(4, OLD.producer_id, number)
    bench.table.transactions.staged.now_ms = 10_000
    bench.table.transactions.staged.stage(key, records(1, producer=ProducerStamp(OLD.producer_id, number, 0)))
    written = await bench.partition.transactions.apply(key, applied, 0)
    assert isinstance(written, TransactionWritten)


def test_proofs_of_ids_that_no_coordinator_knows_are_given_up() -> None:
    async def scenario(bench: Bench) -> None:
        coordinators = Coordinators()
        coordinators.known = {"known"}
        for number, transactional_id in enumerate(("known", "expired", "too")):
            await apply(bench, transactional_id, number)
        assert await sweeper(bench, coordinators).forget_expired() == 2
        assert set(bench.table.transactions.versions) == {"known"}
        assert sorted(coordinators.asked) == [3, 5, 7]

    run(scenario)


def test_proofs_stay_while_a_coordinator_cannot_tell() -> None:
    async def scenario(bench: Bench) -> None:
        coordinators = Coordinators()
        await apply(bench, "expired", 1)
        coordinators.refused = Refused(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, "it is being read")
        assert await sweeper(bench, coordinators).forget_expired() == 0
        assert set(bench.table.transactions.versions) == {"expired"}

    run(scenario)


def test_proofs_stay_while_older_batches_are_there() -> None:
    """A coordinator that stands still may have them applied later, and the proof refuses that."""

    async def scenario(bench: Bench) -> None:
        coordinators = Coordinators()
        await apply(bench, "expired", 1)
        lay(bench, OLD, at_ms=10_000 - ID_AGE_MS - 1)
        assert await sweeper(bench, coordinators).forget_expired() == 0
        bench.table.transactions.staged.now_ms = 10_000 - ID_AGE_MS
        assert await sweeper(bench, coordinators).forget_expired() == 1

    run(scenario)


def test_young_proofs_are_not_even_asked_about() -> None:
    async def scenario(bench: Bench) -> None:
        coordinators = Coordinators()
        await apply(bench, "young", 1)
        bench.table.transactions.updated_ms = 10_000 - ID_AGE_MS
        assert await sweeper(bench, coordinators).forget_expired() == 0
        assert not coordinators.asked

    run(scenario)


def test_an_id_that_comes_back_while_the_coordinator_is_asked_keeps_its_proof() -> None:
    """Else a repeat of the application would write the rows of its new transaction again."""

    async def scenario(bench: Bench) -> None:
        coordinators = Coordinators()

        async def find_needed(number: int, traces: Traces) -> Traces | Refused:
            await apply(bench, "back", 90)
            return Traces()

        coordinators.find_needed = find_needed  # type: ignore[method-assign]
        await apply(bench, "back", 1)
        await sweeper(bench, coordinators).forget_expired()
        assert bench.table.transactions.version_of("back") == 181

    run(scenario)


def test_an_id_that_is_made_again_after_its_expiry_is_not_taken_for_done() -> None:
    async def scenario(bench: Bench) -> None:
        for number in (1, 90):
            await apply(bench, "again", number)
            await sweeper(bench, Coordinators()).forget_expired()
        assert [row.producer_epoch for row in bench.table.rows] == [1, 90]

    run(scenario)


def test_a_coordinator_is_asked_about_many_ids_in_several_calls() -> None:
    async def scenario(bench: Bench) -> None:
        coordinators = Coordinators()
        bench.table.transactions.versions = {f"{number:05}": 1 for number in range(2_500)}
        assert await sweeper(bench, coordinators).forget_expired() == 2_500
        assert coordinators.asked == [5, 5, 5]

    run(scenario)
