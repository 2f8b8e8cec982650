"""Promises of a whole broker about transactions, through everything that its disk, its threads, its process and a
network may do to it, and to several producers of one transactional id. See test_broker.py."""

from __future__ import annotations

import asyncio
import contextlib
import functools
from collections.abc import Callable, Coroutine
from dataclasses import replace
from random import Random
from typing import Any

import pytest

from bus.errors import StorageFault
from bus.model import RecordBatch
from bus.partition_log.staging import Ending
from bus.ports import StagingKey
from bus.runtime.coordinators import staged_sweeper
from bus.runtime.coordinators import transaction_coordinator as transactions
from bus.runtime.coordinators.transaction_driver import TransactionParticipants
from bus.runtime.coordinators.transaction_link import CoordinatorLink
from bus.runtime.metadata.peers import StepKind, Stepped, StepRequest, Traces
from bus.runtime.partitions import partition_transactions, partition_writer
from bus.runtime.partitions.open_transactions import Idle
from bus.runtime.partitions.partition_queue import PartitionQueue, TransactionWritten
from bus.runtime.partitions.partition_transactions import PartitionTransactions
from bus.runtime.partitions.partition_writer import PartitionWriter
from bus.storage_delta.staging import DeltaStagedTransactions
from bus.transactions import changes, decisions, epochs
from bus.transactions.state import first_number
from tests.simulation.broker_faults import NO_FAULTS, some_faults
from tests.simulation.broker_programs import Consumer, Producer, create_topic
from tests.simulation.broker_world import BrokerWorld, simulate
from tests.simulation.coordinator_journal import journal_of
from tests.simulation.interrupted_transactions import Interrupted, InterruptedAlone, InterruptedSave, slow_saves
from tests.simulation.test_broker import SEEDS, disturb_if_any
from tests.simulation.transaction_bugs import broken_commit, broken_rows, broken_settling
from tests.simulation.transaction_disturbances import ClockSetter, Mover, Thief, TopicChanger, late_epochs
from tests.simulation.transaction_invariants import RowsFollowDecisions, TransactionsAreWhole, judge_transactions
from tests.simulation.transaction_log_invariants import DecisionsAreFinal
from tests.simulation.transaction_programs import Attempt, Outcome, Transactor, fetch_stable_offset, transactors_of

pytestmark = pytest.mark.timeout(300)


Scenario = Callable[[BrokerWorld], Coroutine[Any, Any, None]]
OPEN = (["Ongoing"], ["PrepareCommit"], ["PrepareAbort"])  # the last state of a transaction that has not ended


def some_seeds() -> range:
    """Half of them: a run with transactions takes twice as long as another one."""
    return SEEDS[: (len(SEEDS) + 1) // 2]


def new_world(seed: int, broker_count: int = 1, *, is_well: bool = False, **configs: Any) -> BrokerWorld:
    random = Random(seed)  # where faults are rare, more transactions come to their end
    rarer = random.choice((4, 12) if broker_count > 1 else (1, 4, 12))
    faults = NO_FAULTS if is_well else some_faults(random, rarer=rarer)
    world = BrokerWorld(
        seed,
        faults,
        broker_count=broker_count,
        transaction_state_log_num_partitions=2,
        transaction_max_timeout_ms=20_000,
        **configs,
    )
    judge_transactions(world)
    return world


def new_cluster(seed: int) -> BrokerWorld:
    return new_world(seed, 3)


async def transact(world: BrokerWorld) -> None:
    """Two instances of one transactional id and one of another, beside a producer without transactions."""
    await begin(world)
    await disturb_and_judge(world)


async def begin(world: BrokerWorld, ids: tuple[str, ...] = ("a", "a", "b")) -> None:
    world.start()
    topics = []
    for name in ("t", "u"):
        topic = await create_topic(world, name, 2, {})
        world.live_topics.add(topic.topic_id)
        topics.append(topic)
    for number, transactional_id in enumerate(ids):
        world.spawn(Transactor(world, f"x{number}", transactional_id, list(topics)).run())
    world.spawn(Producer(world, "p", topics[0]).send_bursts(20))
    world.spawn(Consumer(world, "c", topics[0]).run())


async def disturb_and_judge(world: BrokerWorld) -> None:
    await disturb_if_any(world)
    if world.faults == NO_FAULTS:
        await asyncio.sleep(20.0)
    await world.settle()
    world.tell("check_end")  # of what was asked in the end, too
    await check_offsets(world)


async def check_offsets(world: BrokerWorld) -> None:
    judge = next(invariant for invariant in world.invariants if isinstance(invariant, TransactionsAreWhole))
    stopped = {program.transactional_id for program in transactors_of(world) if program.is_stopped}
    for name in {"a", "b"} - stopped:
        offset, possible = await fetch_stable_offset(world, "t", name), judge.possible_offsets(name)
        assert offset in possible, f"OffsetsMoveWithTheRows: {name} has {offset}, expected one of {possible}"


async def change_topics(world: BrokerWorld) -> None:
    """A topic is deleted and made again, time after time, while transactions write to it."""
    await begin(world)
    world.spawn(TopicChanger(world, "d", "u", 2).run())
    await disturb_and_judge(world)


async def move_leaders(world: BrokerWorld) -> None:
    """Leaders of partitions, of transactions and of groups move one by one."""
    await begin(world)
    world.spawn(Mover(world, "m").run())
    await disturb_and_judge(world)


async def use_up_epochs(world: BrokerWorld) -> None:
    """The producer ids of all transactional ids are used up, and followed by others."""
    with late_epochs():
        await begin(world, ("a", "a", "b", "c", "d"))
        await disturb_and_judge(world)


async def lose_staged_files(world: BrokerWorld) -> None:
    """Lose staged files: the loss ends the transaction, or stops it loudly; it is never answered as committed, or
    aborted, in part."""
    thief = Thief(world, "thief")
    await begin(world)
    for transactor in transactors_of(world):
        transactor.may_stop = thief.has_stopped
        transactor.always_names_ends = True
    world.spawn(thief.run())
    await disturb_and_judge(world)


async def crash_and_wait(world: BrokerWorld) -> None:
    """Brokers die beneath transactions; later nothing of these is left."""
    world.start()
    topic = await create_topic(world, "t", 2, {})
    world.live_topics.add(topic.topic_id)
    for number, transactional_id in enumerate(("a", "a")):
        world.spawn(Transactor(world, f"x{number}", transactional_id, [topic]).run())
    for _ in range(6):
        await asyncio.sleep(world.random.uniform(0, 5.0))
        world.any_broker().crash()
    await world.settle()
    await asyncio.sleep(60.0)
    left = [world.disk.files.list(f"topics/t/{partition}/_staged").folders for partition in (0, 1)]
    assert not any(left), f"NothingStagedIsLeft: {left}"
    journal = journal_of(world)
    pending = [(group_id, who) for group_id, who in journal.pending if journal.states_of(who)[-1:] not in OPEN]
    assert not pending, f"NothingStagedIsLeft: offsets are pending of {pending}"


async def expire_while_clocks_jump(world: BrokerWorld) -> None:
    """Ids expire and come back under clocks that jump: each life of an id is above the marks of those before."""
    world.start()
    topics = []
    for name in ("t", "u"):
        topic = await create_topic(world, name, 2, {})
        world.live_topics.add(topic.topic_id)
        topics.append(topic)
    for number, transactional_id in enumerate(("a", "a", "b", "b")):
        kind = Alone if number % 2 else Transactor
        world.spawn(kind(world, f"x{number}", transactional_id, list(topics)).run())
    for number in range(2):
        world.spawn(ClockSetter(world, f"clocks{number}").run())
    await disturb_if_any(world)
    if world.faults == NO_FAULTS:
        await asyncio.sleep(20.0)
    await world.settle()
    world.tell("check_end")


def new_forgetful_world(seed: int, broker_count: int = 1, *, is_well: bool = False) -> BrokerWorld:
    expiration_ms = Random(seed).choice((300, 1_000, 3_000))
    return new_world(seed, broker_count, is_well=is_well, transactional_id_expiration_ms=expiration_ms)


def new_forgetful_cluster(seed: int) -> BrokerWorld:
    return new_forgetful_world(seed, 3)


def new_well_forgetful_world(seed: int) -> BrokerWorld:
    return new_forgetful_world(seed, is_well=True)


class Alone(Transactor):
    """Most of its transactions are of one partition and nothing else, so that their versions may decide them."""

    async def _fill(self, attempt: Attempt) -> bool:
        random = self.world.random
        if random.randrange(8) == 0:
            return await super()._fill(attempt)
        topic = self._topics[0 if self.transactional_id == "a" else 1]
        return await self._send(attempt, topic, 0, self._new_values())

    async def _end(self, attempt: Attempt, *, is_commit: bool) -> None:
        """End the transaction like a client: it may abort what cannot be committed, and continue without an
        initialisation."""
        await super()._end(attempt, is_commit=is_commit)
        if is_commit and attempt.outcome is Outcome.ABORTED and self.world.random.randrange(4):
            await super()._end(attempt, is_commit=False)


async def commit_alone(world: BrokerWorld) -> None:
    """Two instances of one id and one of another write to one partition each, and seldom to more. Coordinators die, and
    move, between the versions that decide and the records of them."""
    await gather_alone(world)
    if len(world.brokers) > 1:
        world.spawn(Mover(world, "m").run())
    for _ in range(4 if world.faults != NO_FAULTS else 0):
        await asyncio.sleep(world.random.uniform(0, 4.0))
        world.any_broker().crash()
    await disturb_and_judge(world)


async def gather_alone(world: BrokerWorld) -> None:
    world.start()
    topics = []
    for name in ("t", "u"):
        topic = await create_topic(world, name, 2, {})
        world.live_topics.add(topic.topic_id)
        topics.append(topic)
    for number, transactional_id in enumerate(("a", "a", "b")):
        world.spawn(Alone(world, f"x{number}", transactional_id, list(topics)).run())


async def commit_alone_and_delete(world: BrokerWorld) -> None:
    """The partitions that would tell what was committed are deleted and made again, and coordinators die."""
    await gather_alone(world)
    world.spawn(TopicChanger(world, "d", "u", 2, crashes=True).run())
    for _ in range(2 if world.faults != NO_FAULTS else 0):
        await asyncio.sleep(world.random.uniform(0, 4.0))
        world.any_broker().crash()
    await disturb_and_judge(world)


async def crowd(world: BrokerWorld) -> None:
    """Many ids write to one partition, whose pace lets several transactions wait for one version."""
    await gather_crowd(world)
    await disturb_and_judge(world)


async def gather_crowd(world: BrokerWorld) -> None:
    world.start()
    topic = await create_topic(world, "t", 1, {"commit.interval.ms": "500", "commit.burst": "1"})
    world.live_topics.add(topic.topic_id)
    for transactional_id in ("a", "b", "c", "d"):
        world.spawn(Transactor(world, f"x-{transactional_id}", transactional_id, [topic]).run())


async def crowd_for_a_moment(world: BrokerWorld) -> None:
    await gather_crowd(world)
    await asyncio.sleep(5.0)
    await world.settle()
    world.tell("check_end")


def new_well_world(seed: int) -> BrokerWorld:
    return new_world(seed, is_well=True)


def new_well_cluster(seed: int) -> BrokerWorld:
    return new_world(seed, 3, is_well=True)


async def forget_partitions(world: BrokerWorld) -> None:
    """Coordinators die before their logs have which partitions take part."""
    await interrupt(world, Interrupted)


async def forget_partitions_behind_an_anchor(world: BrokerWorld) -> None:
    """The same after commits that are not in their logs either: the partition tells its next coordinator of them."""
    await interrupt(world, InterruptedAlone)


async def lose_what_is_in_memory(world: BrokerWorld) -> None:
    """Leaders die while they make durable what they have in memory alone, and a record decides the commit."""
    with slow_saves(world):
        await interrupt(world, InterruptedSave)


async def interrupt(world: BrokerWorld, program: type[Interrupted]) -> None:
    world.start()
    topic = await create_topic(world, "t", 2, {})
    world.live_topics.add(topic.topic_id)
    world.spawn(program(world, "x", "a", [topic]).run())
    await asyncio.sleep(20.0)
    await world.settle()
    world.tell("check_end")


@pytest.mark.parametrize("scenario", [forget_partitions, forget_partitions_behind_an_anchor])
@pytest.mark.parametrize("broker_count", [1, 3])
def test_no_commit_leaves_out_a_partition_that_a_coordinator_forgot(broker_count: int, scenario: Scenario) -> None:
    for seed in some_seeds():
        simulate(seed, new_well_world if broker_count == 1 else new_well_cluster, scenario)


@pytest.mark.parametrize("broker_count", [1, 3])
def test_no_commit_is_decided_by_a_record_before_its_rows_are_durable(broker_count: int) -> None:
    for seed in some_seeds():
        simulate(seed, new_well_world if broker_count == 1 else new_well_cluster, lose_what_is_in_memory)


def test_nothing_staged_outlives_its_transaction_for_long() -> None:
    for seed in SEEDS:
        simulate(seed, new_world, crash_and_wait)


def test_staged_batches_that_stay_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(staged_sweeper.StagedSweeper, "start", lambda self: None)
    fails_in(new_world, "NothingStagedIsLeft", crash_and_wait)


def test_offsets_that_stay_pending_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    step = TransactionParticipants._step_group

    async def forget(self: TransactionParticipants, kind: StepKind, request: StepRequest, group: Any) -> Any:
        return Stepped() if kind is StepKind.DROP else await step(self, kind, request, group)

    monkeypatch.setattr(TransactionParticipants, "_step_group", forget)
    fails_in(new_world, "offsets are pending", crash_and_wait)


def test_sweeper_that_asks_no_coordinator_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """It deletes what is staged of transactions that are open; those that were acknowledged cannot be committed."""

    async def find_idle(self: staged_sweeper.StagedSweeper, partition: Any) -> list[staged_sweeper._IdleBatches]:
        with contextlib.suppress(StorageFault):
            staged = await partition.transactions.list_staged()
            return [staged_sweeper._IdleBatches(partition, key, Idle(None, None), True) for key, _ in staged]
        return []

    async def find_none(self: Any, number: int, traces: Traces) -> Traces:
        return Traces()

    async def discard(self: PartitionTransactions, key: StagingKey, idle: Idle) -> bool:
        self._table.transactions.staged.drop(key)
        return True

    monkeypatch.setattr(staged_sweeper, "_INTERVAL_S", 0.05)
    monkeypatch.setattr(staged_sweeper.StagedSweeper, "_find_idle", find_idle)
    monkeypatch.setattr(PartitionTransactions, "discard", discard)
    monkeypatch.setattr(CoordinatorLink, "find_needed", find_none)
    fails_in(new_world, "StagedIsKept|TransactionsAreWhole|EverythingEnds|commits no transaction")


@pytest.mark.parametrize(
    "scenario",
    [transact, crowd, change_topics, use_up_epochs, lose_staged_files, commit_alone, commit_alone_and_delete],
)
def test_transactions_are_whole_whatever_fails(scenario: Scenario) -> None:
    for seed in some_seeds():
        simulate(seed, new_world, scenario)


def test_transactions_are_whole_where_nothing_fails() -> None:
    simulate(1, new_well_world, transact)


def test_commits_of_one_partition_are_decided_by_their_versions() -> None:
    world = simulate(1, new_well_world, commit_alone)
    rows = next(invariant for invariant in world.invariants if isinstance(invariant, RowsFollowDecisions))
    assert len(rows.alone) > 10


def test_producers_whose_last_topic_is_deleted_abort_and_go_on() -> None:
    worlds = [simulate(seed, new_well_world, commit_alone_and_delete) for seed in range(12, 15)]
    judges = [each for world in worlds for each in world.invariants if isinstance(each, DecisionsAreFinal)]
    assert any(judge.left_behind for judge in judges)


def test_transactions_that_share_versions_are_whole() -> None:
    world = simulate(1, new_well_world, crowd_for_a_moment)
    rows = next(invariant for invariant in world.invariants if isinstance(invariant, RowsFollowDecisions))
    assert rows.count_in_one_version("topics/t/0") > 1


@pytest.mark.parametrize(
    "scenario", [transact, crowd, change_topics, move_leaders, commit_alone, commit_alone_and_delete]
)
def test_transactions_are_whole_on_three_brokers(scenario: Scenario) -> None:
    for seed in some_seeds():
        simulate(seed, new_cluster, scenario)


def test_ids_that_expire_while_clocks_jump_commit_all_that_they_are_answered() -> None:
    for seed in some_seeds():
        simulate(seed, new_forgetful_world, expire_while_clocks_jump)


def test_ids_that_expire_while_the_clocks_of_three_brokers_differ_commit_all_that_they_are_answered() -> None:
    for seed in some_seeds()[:2]:
        simulate(seed, new_forgetful_cluster, expire_while_clocks_jump)


def test_marks_of_lives_that_began_at_a_clock_never_cost_a_row(monkeypatch: pytest.MonkeyPatch) -> None:
    """Numbers go back, as on a root of an older version, and partitions have higher ones."""
    monkeypatch.setattr(transactions, "LEVEL_OF_RISING_NUMBERS", 99)
    for seed in some_seeds()[1:]:
        simulate(seed, new_forgetful_world, expire_while_clocks_jump)


# ---------------------------------------------------------------------- broken promises are seen


def test_numbers_that_begin_again_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(epochs, "first_number", lambda producer_id: first_number(0))
    fails_in(new_well_forgetful_world, "before it expired", expire_while_clocks_jump)


def fails_in(new: Callable[[int], BrokerWorld], match: str, scenario: Scenario = transact) -> None:
    """Some seed sees it."""

    def play() -> None:
        for seed in range(60):
            simulate(seed, new, scenario)

    with pytest.raises(AssertionError, match=match):
        play()


def test_commit_that_leaves_a_partition_out_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    broken_commit(monkeypatch)
    fails_in(new_world, "TransactionsAreWhole|RowsFollowDecisions|expected . of them")


def test_rows_of_an_aborted_transaction_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    broken_rows(monkeypatch)
    fails_in(new_world, "RowsFollowDecisions|was aborted, found|no commit was asked for")


def test_acknowledged_batch_that_is_not_durable_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """The vote believes the producer; then what it commits is not there, and it never ends, or it ends without it where
    the producer does not say what it was acknowledged."""

    async def believe(self: PartitionTransactions, key: StagingKey, last_sequence: int) -> int:
        return last_sequence

    stage = DeltaStagedTransactions.stage

    def lose_second(self: DeltaStagedTransactions, key: StagingKey, batch: RecordBatch) -> Any:
        assert batch.producer is not None
        return None if batch.producer.base_sequence > 0 else stage(self, key, batch)

    monkeypatch.setattr(PartitionTransactions, "vote", believe)
    monkeypatch.setattr(DeltaStagedTransactions, "stage", lose_second)
    fails_in(new_world, "EverythingEnds|TransactionsAreWhole")


def test_decision_that_a_new_coordinator_does_not_carry_out_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decisions, "resume_timers", lambda transaction: ())
    fails_in(new_world, "EverythingEnds")


def test_commit_without_a_partition_that_a_coordinator_forgot_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """It had let the partition take part, and was gone before that was in its log."""
    decide_end = decisions.decide_end

    def as_if_all_were_known(step: Any, command: Any, *, request_id: int) -> None:
        step._state = replace(step.transaction, may_lack_partitions=False)
        decide_end(step, command, request_id=request_id)

    monkeypatch.setattr(decisions, "decide_end", as_if_all_were_known)
    fails_in(new_well_world, "expected . of them", forget_partitions)


def test_commit_without_a_partition_behind_a_later_commit_that_is_taken_up_is_seen(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The next coordinator takes the epoch that the partition's last commit has given for one of its own."""
    monkeypatch.setattr(changes, "_is_taken_up", lambda before, after: False)
    fails_in(new_well_world, "expected . of them", forget_partitions_behind_an_anchor)


def test_vote_that_believes_the_memory_of_a_new_leader_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """It has not staged what the leader before has."""

    async def count_own(self: PartitionTransactions, key: StagingKey, last_sequence: int) -> int:
        known = self._open._known.get(key)
        return -1 if known is None or known.staged is None else known.staged.last_sequence

    monkeypatch.setattr(PartitionTransactions, "vote", count_own)
    fails_in(new_well_cluster, "expected . of them", forget_partitions)


def test_transaction_that_is_applied_twice_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(partition_writer, "ending_of", lambda table, applied: Ending.OPEN)
    monkeypatch.setattr(partition_transactions, "ending_of", lambda table, applied: Ending.OPEN)
    monkeypatch.setattr(partition_transactions.PartitionTransactions, "_drop", lambda *_, **__: None)
    fails_in(new_world, "found|NoUnforeseenError|TablesAreSound")


def test_vote_for_what_is_in_memory_alone_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its leader dies before it is durable."""

    async def vote(self: PartitionTransactions, key: StagingKey, last_sequence: int) -> Any:
        known = self._open._known.get(key)
        if known is not None and known.is_unsaved and known.staged is not None:
            known.is_voted_on = True
            return known.staged.last_sequence
        return await vote_when_durable(self, key, last_sequence)

    vote_when_durable = PartitionTransactions.vote
    monkeypatch.setattr(PartitionTransactions, "vote", vote)
    fails_in(new_well_cluster, "EverythingEnds", lose_what_is_in_memory)


def test_transactions_of_which_only_the_first_is_in_their_common_version_are_seen(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    take = PartitionQueue.take_transactions

    def take_and_answer_others(self: PartitionQueue) -> Any:
        first, *others = take(self) or [None]
        for each in others:
            partition_writer._settle(each, TransactionWritten(0, -1))
        return [] if first is None else [first]

    monkeypatch.setattr(PartitionQueue, "take_transactions", take_and_answer_others)
    fails_in(new_well_world, "StagedIsKept|has rows of it|expected . of them", crowd_for_a_moment)


def test_version_with_one_proof_for_several_transactions_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    append_call = PartitionWriter._append_call

    def prove_first(self: PartitionWriter, batches: Any, transactions: Any = ()) -> Any:
        call: Any = append_call(self, batches, transactions)
        return functools.partial(call.func, *call.args, **{**call.keywords, "transactions": transactions[:1]})

    monkeypatch.setattr(PartitionWriter, "_append_call", prove_first)
    fails_in(new_well_world, "with proofs", crowd_for_a_moment)


def test_transactions_that_share_a_version_and_are_told_one_offset_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    settle = partition_writer._settle
    first: dict[tuple[Any, int], int] = {}

    def tell_first(waiting: Any, result: Any) -> None:
        if isinstance(result, TransactionWritten):
            key = asyncio.get_running_loop(), result.version
            result = replace(result, base_offset=first.setdefault(key, result.base_offset))
        settle(waiting, result)

    monkeypatch.setattr(partition_writer, "_settle", tell_first)
    fails_in(new_well_world, "has them from", crowd_for_a_moment)


def test_offsets_that_do_not_move_with_the_rows_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    broken_settling(monkeypatch)
    fails_in(new_world, "OffsetsFollowDecisions|OffsetsMoveWithTheRows")
