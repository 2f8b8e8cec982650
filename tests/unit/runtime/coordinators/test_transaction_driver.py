from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import pytest

from bus.cluster_metadata.cluster_state import LEVEL_OF_ONE_PHASE, Broker, ClusterState, Leadership, Topic
from bus.errors import ErrorCode, Refused
from bus.model import CONSUMER_OFFSETS_TOPIC, BrokerEndpoint
from bus.runtime.coordinators.transaction_driver import TransactionDriver
from bus.runtime.metadata.peers import StepAnswer, StepKind, Stepped, StepRequest
from bus.runtime.tasks import TaskScope
from bus.transactions.changes import CollectVotes, Finish, Resolve, TransactionNotice
from bus.transactions.requests import Finished, Noted, Resolved, TransactionCommand, Voted
from bus.transactions.state import AppliedRows, TransactionGroup, TransactionPartition, VoteId
from tests.support.virtual_time import run_virtually

BROKERS = {number: BrokerEndpoint(number, "h", number) for number in (0, 1)}
T0, T1 = (TransactionPartition("t", "id-t", number) for number in (0, 1))
GONE = TransactionPartition("gone", "id-gone", 0)
GROUP = TransactionGroup("g", 0)
VOTE = VoteId(2)
AWAY = Refused(ErrorCode.NETWORK_EXCEPTION, "no connection")
NOT_LEADER = Refused(ErrorCode.NOT_LEADER_OR_FOLLOWER, "its leader has changed")


def cluster(leaders: tuple[int, int] = (0, 1), *, is_fenced: bool = False) -> ClusterState:
    topics = {
        "t": Topic("t", "id-t", tuple(Leadership(leader, 0) for leader in leaders), {}),
        CONSUMER_OFFSETS_TOPIC: Topic(CONSUMER_OFFSETS_TOPIC, "id-o", (Leadership(0, 0),), {}),
    }
    brokers = {
        number: Broker(endpoint, None, f"life {number}", number, is_fenced=is_fenced and number == 1)
        for number, endpoint in BROKERS.items()
    }
    return ClusterState(topics=topics, topic_names={"id-t": "t", "id-o": "o"}, brokers=brokers)


class Bench:
    """`answers`: what a broker answers to its next calls; it does as it is asked otherwise."""

    def __init__(self) -> None:
        self.cluster = cluster()
        self.tasks = TaskScope("test")
        self.asked: list[tuple[int, StepKind, StepRequest]] = []
        self.answers: dict[int, list[Refused]] = {0: [], 1: []}
        self.refusing: dict[TransactionPartition, list[Refused]] = {}
        self.has_pending = True
        self.is_wanted = True
        self.taken: list[int | Refused] = []
        self.submitted: list[TransactionCommand] = []
        self.version = 5  # that has the rows
        self.last_number = 9  # of the transactions in the partition
        self.taken_numbers: dict[TransactionPartition, int] = {}
        self.failing = 0  # so many calls raise what nothing expects
        self.not_taken: list[Refused] = []  # what the coordinator says to the next answers
        self.driver = TransactionDriver(
            cluster=lambda: self.cluster, ask=self.ask, take_producer_id=self.take, tasks=self.tasks
        )

    async def ask(self, broker: BrokerEndpoint, kind: StepKind, request: StepRequest) -> StepAnswer | Refused:
        self.asked.append((broker.broker_id, kind, request))
        await asyncio.sleep(0.001)
        if self.failing:
            self.failing -= 1
            raise RuntimeError("what nothing expects")
        if self.answers[broker.broker_id]:
            return self.answers[broker.broker_id].pop(0)
        return StepAnswer(
            [self._step(kind, partition, last) for partition, last in request.partitions],
            [Stepped(has_pending=self.has_pending) for _ in request.groups],
        )

    def _step(self, kind: StepKind, partition: TransactionPartition, last: int) -> Stepped | Refused:
        refusals = self.refusing.get(partition)
        if refusals:
            return refusals.pop(0)
        if kind is StepKind.RESOLVE:
            return Stepped(version=5, base_offset=10, number=self.last_number)
        if kind is StepKind.VOTE:
            return Stepped(last_sequence=last, number=self.taken_numbers.get(partition, -1))
        return Stepped(version=self.version, base_offset=10)

    async def take(self) -> int | Refused:
        return self.taken.pop(0)

    async def submit(self, command: TransactionCommand) -> Refused | Noted:
        self.submitted.append(command)
        return self.not_taken.pop(0) if self.not_taken else Noted()

    def begin(self, notice: TransactionNotice) -> None:
        self.driver.begin(notice, coordinator_partition=4, is_wanted=lambda: self.is_wanted, submit=self.submit)


def run(scenario: Callable[[Bench], Awaitable[Any]]) -> None:
    async def main() -> None:
        bench = Bench()
        await scenario(bench)
        bench.driver.stop()
        await bench.tasks.join()

    run_virtually(main())


def finish(*, is_commit: bool = True, **changed: Any) -> Finish:
    notice = Finish("x", 7, 3, 9, is_commit, {T0: 1, T1: 2}, (GROUP,), needs_producer_id=False)
    return replace(notice, **changed)


def collect(*partitions: TransactionPartition) -> CollectVotes:
    return CollectVotes("x", 7, 3, 9, partitions, (GROUP,), {T0.name: 1}, VOTE)


def test_decision_is_sent_to_each_leader_once_and_answered_with_where_the_rows_are() -> None:
    async def scenario(bench: Bench) -> None:
        bench.begin(finish())
        await asyncio.sleep(1)
        rows = AppliedRows(5, 10)
        assert bench.submitted == [Finished("x", 7, {T0: rows, T1: rows}, None)]
        assert [(broker, kind) for broker, kind, _ in bench.asked] == [(0, StepKind.APPLY), (1, StepKind.APPLY)]
        assert bench.asked[0][2] == StepRequest("x", 7, 3, 9, 4, [(T0, 1)], [GROUP])

    run(scenario)


def resolve(partition: TransactionPartition = T1) -> Resolve:
    return Resolve("x", 7, 3, 9, partition)


def test_partition_is_asked_what_came_behind_the_log() -> None:
    async def scenario(bench: Bench) -> None:
        bench.cluster = replace(bench.cluster, level=LEVEL_OF_ONE_PHASE)
        bench.answers[1] = [AWAY] * 3
        bench.begin(resolve())
        await asyncio.sleep(10)
        assert bench.submitted == [Resolved("x", 7, 9, AppliedRows(5, 10))]
        assert bench.asked[0] == (1, StepKind.RESOLVE, StepRequest("x", 8, 3, 9, 4, [(T1, -1)], []))
        assert bench.asked[-1] == (1, StepKind.RESOLVE, StepRequest("x", 10, 3, 11, 4, [(T1, -1)], []))
        assert len(bench.asked) == 5

    run(scenario)


def test_partition_that_has_nothing_behind_the_log_is_asked_once() -> None:
    async def scenario(bench: Bench) -> None:
        bench.cluster = replace(bench.cluster, level=LEVEL_OF_ONE_PHASE)
        bench.last_number = 7
        bench.begin(resolve())
        await asyncio.sleep(1)
        assert bench.submitted == [Resolved("x", 7, 7)]
        assert len(bench.asked) == 1

    run(scenario)


def test_partition_whose_topic_is_deleted_tells_nothing() -> None:
    async def scenario(bench: Bench) -> None:
        bench.cluster = replace(bench.cluster, level=LEVEL_OF_ONE_PHASE)
        bench.begin(resolve(GONE))
        await asyncio.sleep(1)
        assert bench.submitted == [Resolved("x", 7, None)]

    run(scenario)


@pytest.mark.parametrize("is_known", [True, False])
def test_earlier_level_asks_no_partition(is_known: bool) -> None:
    async def scenario(bench: Bench) -> None:
        bench.cluster = replace(bench.cluster, level=LEVEL_OF_ONE_PHASE - (not is_known))
        bench.begin(resolve())
        await asyncio.sleep(1)
        asked = [kind for _, kind, _ in bench.asked if kind is StepKind.RESOLVE]
        assert bool(asked) is is_known
        assert is_known or bench.submitted == [Resolved("x", 7, 7)]

    run(scenario)


@pytest.mark.parametrize("version", [5, -1])
def test_partition_that_decides_is_asked_to_commit_in_place_of_a_vote(version: int) -> None:
    async def scenario(bench: Bench) -> None:
        bench.version = version
        bench.begin(replace(collect(T0), groups=(), is_one_phase=True))
        await asyncio.sleep(1)
        assert [kind for _, kind, _ in bench.asked] == [StepKind.COMMIT]
        (voted,) = bench.submitted
        assert isinstance(voted, Voted)
        assert voted.rows == (AppliedRows(5, 10) if version == 5 else None)

    run(scenario)


def test_partition_of_which_nothing_is_committed_is_dropped() -> None:
    async def scenario(bench: Bench) -> None:
        bench.begin(finish(partitions={T0: 1, T1: -1}))
        await asyncio.sleep(1)
        assert [(broker, kind) for broker, kind, _ in bench.asked] == [(0, StepKind.APPLY), (1, StepKind.DROP)]
        assert bench.submitted == [Finished("x", 7, {T0: AppliedRows(5, 10)}, None)]

    run(scenario)


def test_who_has_done_it_is_not_asked_again_and_who_has_not_until_it_has() -> None:
    async def scenario(bench: Bench) -> None:
        bench.refusing[T0] = [NOT_LEADER] * 20
        bench.answers[1] = [AWAY] * 3
        bench.begin(finish(is_commit=False))
        await asyncio.sleep(100)
        assert bench.submitted == [Finished("x", 7, {}, None)]
        counts = [sum(broker == number for broker, _, _ in bench.asked) for number in (0, 1)]
        assert counts == [21, 4]

    run(scenario)


def test_answer_that_a_busy_coordinator_does_not_take_is_given_again() -> None:
    async def scenario(bench: Bench) -> None:
        bench.not_taken = [Refused(ErrorCode.COORDINATOR_NOT_AVAILABLE, "too many calls wait")] * 3
        bench.begin(finish())
        await asyncio.sleep(10)
        rows = AppliedRows(5, 10)
        assert bench.submitted == [Finished("x", 7, {T0: rows, T1: rows}, None)] * 4

    run(scenario)


def test_answer_that_a_coordinator_that_has_moved_does_not_take_is_not_given_again() -> None:
    async def scenario(bench: Bench) -> None:
        bench.not_taken = [Refused(ErrorCode.NOT_COORDINATOR, "its leader has changed")]
        bench.begin(finish())
        await asyncio.sleep(0)
        bench.is_wanted = False
        await asyncio.sleep(10)
        assert len(bench.submitted) == 1

    run(scenario)


@pytest.mark.parametrize("notice", [finish(), collect(T0, T1)])
def test_error_that_nothing_expects_does_not_end_the_carrying_out(notice: CollectVotes | Finish) -> None:
    async def scenario(bench: Bench) -> None:
        bench.failing = 3
        bench.begin(notice)
        await asyncio.sleep(10)
        assert len(bench.submitted) == 1

    run(scenario)


def test_new_leader_is_asked_when_there_is_one() -> None:
    async def scenario(bench: Bench) -> None:
        bench.cluster = cluster(is_fenced=True)
        bench.begin(finish())
        await asyncio.sleep(10)
        assert not bench.submitted
        bench.cluster = cluster((0, 0))
        await asyncio.sleep(10)
        assert len(bench.submitted) == 1
        assert {broker for broker, _, _ in bench.asked} == {0}

    run(scenario)


def test_deleted_topic_has_done_everything() -> None:
    async def scenario(bench: Bench) -> None:
        bench.begin(collect(T0, GONE))
        bench.begin(finish(partitions={GONE: 4}, groups=()))
        await asyncio.sleep(1)
        assert bench.submitted == [
            Finished("x", 7, {}, None),
            Voted("x", 7, VOTE, {T0: 1}, frozenset({GONE}), None),
        ]

    run(scenario)


def test_group_without_the_offsets_votes_against_the_commit() -> None:
    async def scenario(bench: Bench) -> None:
        bench.has_pending = False
        bench.begin(collect(T0))
        await asyncio.sleep(1)
        (voted,) = bench.submitted
        assert isinstance(voted, Voted)
        assert voted.refused is not None
        assert voted.refused.code is ErrorCode.TRANSACTION_ABORTABLE

    run(scenario)


def test_task_whose_answer_is_not_wanted_any_more_ends() -> None:
    async def scenario(bench: Bench) -> None:
        bench.answers[0] = [AWAY] * 1_000
        bench.begin(collect(T0))
        await asyncio.sleep(5)
        bench.is_wanted = False
        await asyncio.sleep(5)
        count = len(bench.asked)
        await asyncio.sleep(50)
        assert (len(bench.asked), bench.submitted) == (count, [])

    run(scenario)


def test_transaction_that_is_loaded_again_has_one_task_and_is_not_forgotten() -> None:
    async def scenario(bench: Bench) -> None:
        bench.begin(finish())
        bench.begin(finish())
        await asyncio.sleep(0.0005)
        assert len(bench.asked) == 2
        await asyncio.sleep(1)
        # The second notice came while the first was carried out: it is carried out again, as the answer may be lost.
        assert len(bench.submitted) == 2

    run(scenario)


def test_new_producer_id_is_asked_for_until_there_is_one() -> None:
    async def scenario(bench: Bench) -> None:
        bench.taken = [Refused(ErrorCode.NOT_CONTROLLER, "there is none"), 77]
        bench.begin(finish(needs_producer_id=True))
        await asyncio.sleep(5)
        (finished,) = bench.submitted
        assert isinstance(finished, Finished)
        assert finished.new_producer_id == 77

    run(scenario)


def test_vote_tells_of_the_highest_mark_that_a_partition_has() -> None:
    async def scenario(bench: Bench) -> None:
        bench.taken_numbers = {T0: 12, T1: 40}
        bench.begin(collect(T0, T1))
        await asyncio.sleep(1)
        (voted,) = bench.submitted
        assert isinstance(voted, Voted)
        assert voted.taken_number == 40

    run(scenario)


def test_mark_far_above_the_log_is_of_an_earlier_life_of_the_id_and_not_taken_up() -> None:
    """At most 1,000 transactions are decided behind a record; the partition of an older broker tells of any mark."""

    async def scenario(bench: Bench) -> None:
        bench.cluster = replace(bench.cluster, level=LEVEL_OF_ONE_PHASE)
        bench.last_number = 7 + 86_400_000
        bench.begin(resolve())
        await asyncio.sleep(1)
        assert bench.submitted == [Resolved("x", 7, 7)]

    run(scenario)


def test_what_a_partition_refuses_for_ever_is_asked_for_until_an_operator_gives_it_up() -> None:
    async def scenario(bench: Bench) -> None:
        overtaken = Refused(ErrorCode.TRANSACTION_COORDINATOR_FENCED, "the mark is 99")
        bench.refusing[T0] = [overtaken] * 1_000
        bench.begin(finish())
        await asyncio.sleep(60)
        assert bench.submitted == []
        bench.begin(finish(may_give_up=True))
        await asyncio.sleep(5)
        rows = AppliedRows(5, 10)
        assert bench.submitted == [Finished("x", 7, {T1: rows}, None, frozenset({T0}))]

    run(scenario)


def test_operator_gives_up_nothing_that_may_still_be_done() -> None:
    async def scenario(bench: Bench) -> None:
        bench.refusing[T0] = [NOT_LEADER] * 5
        bench.begin(finish(may_give_up=True))
        await asyncio.sleep(10)
        rows = AppliedRows(5, 10)
        assert bench.submitted == [Finished("x", 7, {T0: rows, T1: rows}, None)]

    run(scenario)


def test_giving_up_that_comes_too_late_for_one_run_is_taken_up_by_the_next() -> None:
    async def scenario(bench: Bench) -> None:
        async def submit(command: TransactionCommand) -> Noted:
            """Take the answer of the first run, while the shard is loaded again and an operator acts."""
            bench.begin(finish())
            bench.begin(finish(may_give_up=True))
            bench.refusing[T0] = [Refused(ErrorCode.TRANSACTION_COORDINATOR_FENCED, "the mark is 99")] * 1_000
            return Noted()

        bench.driver.begin(finish(), coordinator_partition=4, is_wanted=lambda: True, submit=submit)
        await asyncio.sleep(60)
        assert bench.submitted == [Finished("x", 7, {T1: AppliedRows(5, 10)}, None, frozenset({T0}))]

    run(scenario)
