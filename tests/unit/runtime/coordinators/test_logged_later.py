"""Actions of a shard before their record is committed, because a load without the record reproduces them, or knows that
they may be lacking: the end of a transaction, whose decision is in the log, and that a partition takes part."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager

import pytest

from bus.errors import ErrorCode, Refused, StorageFault
from bus.ports import KeyedRow
from bus.runtime.coordinators import shard
from bus.runtime.coordinators.log import CoordinatorLog
from bus.runtime.coordinators.shard import CoordinatorShard
from bus.runtime.coordinators.transaction_coordinator import TransactionShard
from bus.transactions import decisions
from bus.transactions.bounds import TransactionBounds, TransactionTotals
from bus.transactions.changes import CollectVotes, Finish, Resolve, TransactionNotice, TransactionRules
from bus.transactions.decisions import TransactionMachine
from bus.transactions.loading import TransactionCodec
from bus.transactions.records import LoggedRecord, TransactionLogged, decode_record
from bus.transactions.requests import (
    Added,
    AddPartitions,
    EndTransaction,
    Finished,
    InitProducerId,
    Noted,
    ProducerInitialized,
    Resolved,
    TransactionAnswer,
    TransactionCommand,
    TransactionEnded,
    Voted,
)
from bus.transactions.state import Anchor, AppliedRows, TransactionState
from tests.support.fake_table import FakeKeyedRows, FakeTable, wait_until
from tests.support.partition_bench import Bench
from tests.support.transaction_bench import ID, ORDERS, TIMEOUT_MS

ROWS = {ORDERS: AppliedRows(3, 100)}


class ShardBench:
    """A shard of one transactional id on a fake table. `carry_out` does the driver's work."""

    def __init__(self, table: FakeTable | None = None) -> None:
        self.below = Bench(table=table)
        self.table = self.below.table
        self.notices: list[TransactionNotice] = []
        self.held = threading.Event()  # a commit is
        self.shard: TransactionShard = CoordinatorShard(
            TransactionMachine(TransactionRules()),
            CoordinatorLog(
                self.below.partition,
                FakeKeyedRows(),
                TransactionCodec(),
                clock=self.below.clock,
                calls=self.below.calls,
            ),
            TransactionTotals(TransactionBounds(ids_max=1_000, partitions_max=1_000)),
            clock=self.below.clock,
            tasks=self.below.tasks,
            commit_slots=asyncio.Semaphore(1),
            on_notice=self.notices.append,
        )

    async def reopened(self) -> ShardBench:
        """The next coordinator on the same table."""
        bench = ShardBench(self.table)
        await wait_until(lambda: not bench.shard.is_loading)
        return bench

    @property
    def state(self) -> TransactionState:
        return self.shard.states[ID].state

    async def ask(self, command: TransactionCommand) -> TransactionAnswer:
        return await self.shard.submit(command)

    async def begin(self, epoch: int) -> None:
        assert isinstance(await self.ask(AddPartitions(ID, 7, epoch, (ORDERS,))), Added)

    async def commit(self, epoch: int, *, allows_one_phase: bool = False) -> TransactionEnded:
        ending = self.shard.submit(EndTransaction(ID, 7, epoch, True, {ORDERS.name: 4}, allows_one_phase))
        while not ending.done():
            await self.carry_out()
        ended = await ending
        assert isinstance(ended, TransactionEnded), ended
        return ended

    async def carry_out(self) -> None:
        await wait_until(lambda: bool(self.notices))
        match self.notices.pop():
            case CollectVotes() as vote:
                rows = AppliedRows(3, 100) if vote.is_one_phase else None
                command: TransactionCommand = Voted(ID, vote.number, vote.vote_id, {ORDERS: 4}, rows=rows)
            case Finish() as finish:
                command = Finished(ID, finish.number, ROWS if finish.is_commit else {})
            case Resolve() as resolve:
                command = Resolved(ID, resolve.number, resolve.number)
        assert await self.ask(command) == Noted()

    def commits(self) -> list[int]:
        """Records of each."""
        return [sum(batch.record_count for batch in commit) for commit in self.table.commits]

    @contextmanager
    def held_commit(self) -> Iterator[None]:
        """The next commit waits for the end of the block."""
        may_go_on = threading.Event()

        def wait() -> None:
            self.held.set()
            may_go_on.wait()

        self.table.script.append(wait)
        try:
            yield
        finally:
            may_go_on.set()

    async def close(self) -> None:
        self.shard.close()
        await self.below.close()


def run(scenario: Callable[[ShardBench], Awaitable[None]]) -> None:
    async def main() -> None:
        bench = ShardBench()
        assert await bench.ask(InitProducerId(ID, TIMEOUT_MS, new_producer_id=7)) == ProducerInitialized(7, 0)
        try:
            await scenario(bench)
        finally:
            await bench.close()

    asyncio.run(main())


@pytest.fixture
def long_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shard, "_LOG_LATER_S", 3600.0)


@pytest.fixture
def no_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shard, "_LOG_LATER_S", 0.0)
    monkeypatch.setattr(shard, "_LOG_AGAIN_S", 0.005)


@pytest.mark.usefixtures("long_wait")
def test_the_end_goes_into_the_log_with_the_next_decision() -> None:
    async def scenario(bench: ShardBench) -> None:
        await bench.begin(0)
        assert await bench.commit(0) == TransactionEnded(7, 1, ROWS)
        assert bench.state is TransactionState.COMPLETE_COMMIT
        assert bench.commits() == [1, 2], "initialised; begun and decided"
        await bench.begin(1)
        assert await bench.commit(1) == TransactionEnded(7, 2, ROWS)
        assert bench.commits() == [1, 2, 3], "ended, begun and decided"

    run(scenario)


def test_the_end_goes_into_the_log_by_itself_if_nothing_else_does(no_wait: None) -> None:
    async def scenario(bench: ShardBench) -> None:
        await bench.begin(0)
        await bench.commit(0)
        await wait_until(lambda: bench.commits() == [1, 2, 1])
        assert (await bench.reopened()).state is TransactionState.COMPLETE_COMMIT

    run(scenario)


def test_a_transaction_that_takes_long_goes_into_the_log_by_itself(
    no_wait: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So it outlives its coordinator; one that is young is left out."""

    async def scenario(bench: ShardBench) -> None:
        await bench.begin(0)
        await asyncio.sleep(0.02)
        assert bench.commits() == [1]
        monkeypatch.setattr(decisions, "YOUNG_MS", 0)
        await wait_until(lambda: bench.commits() == [1, 1])
        following = await bench.reopened()
        assert following.state is TransactionState.ONGOING
        await following.close()

    run(scenario)


def test_ends_that_are_logged_do_not_take_along_the_transaction_behind_them(no_wait: None) -> None:
    """The last record stays a commit of the partition, so that the next commit needs none before it."""

    async def scenario(bench: ShardBench) -> None:
        await bench.begin(0)
        await bench.commit(0)
        await bench.begin(1)
        await wait_until(lambda: bench.commits() == [1, 2, 1])
        await bench.commit(1, allows_one_phase=True)
        assert bench.shard.states[ID].anchor == Anchor(ORDERS, bench.shard.states[ID].number - 1)
        await wait_until(lambda: bench.commits() == [1, 2, 1, 3])

    run(scenario)


def test_a_busy_shard_logs_ends_by_themselves_no_more_often_than_in_the_longer_time(
    no_wait: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario(bench: ShardBench) -> None:
        monkeypatch.setattr(shard, "_LOG_AGAIN_S", 3600.0)
        bench.shard._logged_s = -3600.0
        await bench.begin(0)
        await bench.commit(0)
        await wait_until(lambda: bench.commits() == [1, 2, 1])
        await bench.begin(1)
        await bench.commit(1, allows_one_phase=True)
        await asyncio.sleep(0.02)
        assert bench.commits() == [1, 2, 1]
        bench.shard.close()
        await wait_until(lambda: bench.commits() == [1, 2, 1, 3])

    run(scenario)


@pytest.mark.usefixtures("long_wait")
def test_a_shard_that_closes_logs_a_young_transaction_as_well() -> None:
    async def scenario(bench: ShardBench) -> None:
        await bench.begin(0)
        bench.shard.close()
        await wait_until(lambda: bench.commits() == [1, 1])

    run(scenario)


@pytest.mark.usefixtures("long_wait")
def test_a_shard_that_another_broker_is_to_lead_logs_what_happens_at_once() -> None:
    """Its own log takes nothing any more once that broker leads."""

    async def scenario(bench: ShardBench) -> None:
        await bench.begin(0)
        await bench.shard.log_all()
        assert bench.commits() == [1, 1]
        await bench.commit(0)
        await wait_until(lambda: sum(bench.commits()) == 4)
        await bench.begin(1)
        await wait_until(lambda: sum(bench.commits()) == 5)

    run(scenario)


@pytest.mark.usefixtures("long_wait")
def test_a_shard_that_another_broker_is_to_lead_logs_what_a_commit_has_kept_back() -> None:
    async def scenario(bench: ShardBench) -> None:
        await bench.begin(0)
        with bench.held_commit():
            answer = bench.shard.submit(InitProducerId("another", TIMEOUT_MS, new_producer_id=8))
            await wait_until(bench.held.is_set)
            logging = asyncio.ensure_future(bench.shard.log_all())
            await asyncio.sleep(0)
        await logging
        assert isinstance(await answer, ProducerInitialized)
        assert bench.commits() == [1, 1, 1]

    run(scenario)


@pytest.mark.usefixtures("long_wait")
def test_a_shard_that_closes_during_a_commit_logs_what_that_commit_kept_back() -> None:
    async def scenario(bench: ShardBench) -> None:
        await bench.begin(0)
        with bench.held_commit():
            answer = bench.shard.submit(InitProducerId("another", TIMEOUT_MS, new_producer_id=8))
            await wait_until(bench.held.is_set)
            bench.shard.close()
        assert isinstance(await answer, ProducerInitialized)
        await wait_until(lambda: bench.commits() == [1, 1, 1])

    run(scenario)


def test_a_transaction_that_grows_old_during_a_commit_is_logged_behind_it(
    no_wait: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario(bench: ShardBench) -> None:
        await bench.begin(0)
        with bench.held_commit():
            answer = bench.shard.submit(InitProducerId("another", TIMEOUT_MS, new_producer_id=8))
            await wait_until(bench.held.is_set)
            monkeypatch.setattr(decisions, "YOUNG_MS", 0)
            await asyncio.sleep(0.02)  # the time of the record comes meanwhile
        assert isinstance(await answer, ProducerInitialized)
        await wait_until(lambda: bench.commits() == [1, 1, 1])

    run(scenario)


@pytest.mark.usefixtures("long_wait")
def test_the_next_coordinator_finds_out_again_what_was_not_logged() -> None:
    async def scenario(bench: ShardBench) -> None:
        await bench.begin(0)
        ended = await bench.commit(0)
        following = await bench.reopened()
        assert following.state is TransactionState.PREPARE_COMMIT
        refused = await following.ask(AddPartitions(ID, 7, 1, (ORDERS,)))
        assert isinstance(refused, Refused)
        assert refused.code is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        await following.carry_out()
        await following.carry_out()
        assert await following.ask(EndTransaction(ID, 7, 0, True, {ORDERS.name: 4})) == ended
        await following.begin(1)
        await following.close()

    run(scenario)


@pytest.mark.usefixtures("long_wait")
def test_a_commit_that_fails_takes_the_end_along() -> None:
    async def scenario(bench: ShardBench) -> None:
        await bench.begin(0)
        await bench.commit(0)
        bench.table.script = [StorageFault("broken")]
        assert isinstance(await bench.ask(InitProducerId(ID, TIMEOUT_MS)), Refused)
        await wait_until(lambda: not bench.shard.is_loading)
        assert bench.state is TransactionState.PREPARE_COMMIT
        await bench.carry_out()
        await bench.carry_out()
        assert await bench.ask(InitProducerId(ID, TIMEOUT_MS)) == ProducerInitialized(7, 2)
        assert bench.commits() == [1, 2, 2]

    run(scenario)


@pytest.mark.usefixtures("long_wait")
def test_a_shard_that_closes_logs_what_has_happened() -> None:
    async def scenario(bench: ShardBench) -> None:
        await bench.begin(0)
        await bench.commit(0)
        bench.shard.close()
        await wait_until(lambda: bench.commits() == [1, 2, 1])

    run(scenario)


@pytest.mark.usefixtures("long_wait")
def test_an_end_that_cannot_be_written_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """The next one of its id has all of it; and the others of the commit go on."""

    async def scenario(bench: ShardBench) -> None:
        await bench.begin(0)
        await bench.commit(0)
        monkeypatch.setattr(TransactionCodec, "decode", staticmethod(_refuse_ends))
        assert await bench.ask(InitProducerId(ID, TIMEOUT_MS)) == ProducerInitialized(7, 2)
        assert bench.commits() == [1, 2, 1]

    run(scenario)


@pytest.mark.usefixtures("long_wait")
def test_the_next_coordinator_commits_nothing_without_a_partition_that_was_not_logged() -> None:
    async def scenario(bench: ShardBench) -> None:
        await bench.begin(0)
        following = await bench.reopened()
        refused = await following.ask(EndTransaction(ID, 7, 0, True, {ORDERS.name: 4}))
        assert isinstance(refused, Refused)
        assert refused.code is ErrorCode.TRANSACTION_ABORTABLE
        await following.carry_out()
        assert await following.ask(EndTransaction(ID, 7, 0, False)) == TransactionEnded(7, 1)
        await following.close()

    run(scenario)


def _refuse_ends(row: KeyedRow) -> LoggedRecord:
    record = decode_record(row)
    if isinstance(record, TransactionLogged) and record.state is TransactionState.COMPLETE_COMMIT:
        raise ValueError("refused by the test")
    return record
