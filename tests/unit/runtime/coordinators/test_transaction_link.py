from __future__ import annotations

from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from bus.cluster_metadata.cluster_state import LEVEL_OF_ONE_PHASE, ClusterState
from bus.errors import ErrorCode, Refused
from bus.model import BrokerEndpoint
from bus.runtime.coordinators.transaction_coordinator import TransactionCoordinator
from bus.runtime.coordinators.transaction_link import CoordinatorLink
from bus.runtime.metadata.peers import TransactionAddition
from bus.runtime.tasks import TaskScope
from bus.settings.broker import BrokerConfig
from bus.transactions.requests import Added, AddPartitions
from bus.transactions.state import TransactionPartition
from tests.support.fake_table import ManualClock
from tests.support.virtual_time import run_virtually

OWN, OTHER = BrokerEndpoint(0, "h", 1), BrokerEndpoint(1, "h", 2)
ADDITION = AddPartitions("x", 7, 3, (TransactionPartition("t", "id-t", 0),))


class Bench:
    """`answers`: of the broker that coordinates, one after another, the last one again and again."""

    def __init__(self) -> None:
        self.coordinator: BrokerEndpoint | Refused = OWN
        self.partition: int | Refused = 0
        self.answers: list[Added | Refused] = [Added()]
        self.asked: list[int] = []
        own: Any = SimpleNamespace(
            partition_of=lambda _: self.partition, find_known=lambda _: self.coordinator, add=self._add_here
        )
        peers: Any = SimpleNamespace(add_to_transaction=self._add_there)
        self.link = CoordinatorLink(OWN, own, peers, timeout_ms=1_000)

    async def _add_here(self, _: TransactionAddition) -> Added | Refused:
        return self._answer(OWN)

    async def _add_there(
        self, coordinator: BrokerEndpoint, _: TransactionAddition, *, timeout_s: float
    ) -> Added | Refused:
        assert 0 < timeout_s <= 1
        return self._answer(coordinator)

    def _answer(self, broker: BrokerEndpoint) -> Added | Refused:
        self.asked.append(broker.broker_id)
        return self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]


def run(scenario: Callable[[Bench], Awaitable[None]]) -> None:
    async def main() -> None:
        await scenario(Bench())

    run_virtually(main())


def test_coordinator_is_asked_where_it_is() -> None:
    async def scenario(bench: Bench) -> None:
        assert await bench.link.add(ADDITION) == Added()
        bench.coordinator = OTHER
        assert await bench.link.add(ADDITION) == Added()
        assert bench.asked == [0, 1]

    run(scenario)


def test_coordinator_that_moves_or_loads_is_waited_for() -> None:
    async def scenario(bench: Bench) -> None:
        codes = (ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.NETWORK_EXCEPTION)
        bench.answers = [*(Refused(code, "wait") for code in codes), Added()]
        assert await bench.link.add(ADDITION) == Added()
        assert len(bench.asked) == 4

    run(scenario)


def test_refusal_that_does_not_pass_is_the_answer_at_once() -> None:
    async def scenario(bench: Bench) -> None:
        bench.answers = [Refused(ErrorCode.PRODUCER_FENCED, "another instance came")]
        assert await bench.link.add(ADDITION) == bench.answers[0]
        assert len(bench.asked) == 1

    run(scenario)


def test_coordinator_that_stays_away_is_a_time_out_and_no_end_of_the_producer() -> None:
    async def scenario(bench: Bench) -> None:
        bench.coordinator = Refused(ErrorCode.COORDINATOR_NOT_AVAILABLE, "its broker is gone")
        refused = await bench.link.add(ADDITION)
        assert refused is not None
        assert refused.code is ErrorCode.REQUEST_TIMED_OUT
        bench.link.close()
        assert isinstance(await bench.link.add(ADDITION), Refused)

    run(scenario)


def test_id_in_a_cluster_without_transactions_is_refused_at_once() -> None:
    async def scenario(bench: Bench) -> None:
        bench.partition = Refused(ErrorCode.NOT_COORDINATOR, "no transactional id was ever initialised")
        refused = await bench.link.add(ADDITION)
        assert refused == Refused(ErrorCode.COORDINATOR_NOT_AVAILABLE, bench.partition.message)
        assert not bench.asked

    run(scenario)


def coordinator_that(proof: Refused | None, level: int = 0) -> TransactionCoordinator:
    async def prove_leadership() -> Refused | None:
        return proof

    cluster: Any = SimpleNamespace(
        state=ClusterState(level=level),
        endpoint=OWN,
        prove_leadership=prove_leadership,
        has_proved_leadership=proof is None,
    )
    nothing = cast(Any, None)
    return TransactionCoordinator(
        cluster, BrokerConfig(), nothing, nothing, clock=ManualClock(), calls=nothing, tasks=TaskScope("test")
    )


def test_topic_that_the_coordinator_has_not_heard_of_is_not_added() -> None:
    """Later it would count as deleted, and its rows would be left out of the commit."""

    async def main() -> None:
        refused = await coordinator_that(None).add(ADDITION)
        assert isinstance(refused, Refused)
        assert refused.code is ErrorCode.COORDINATOR_NOT_AVAILABLE
        assert "t-0 is not known" in refused.message

    run_virtually(main())


def test_broker_that_may_have_been_deposed_adds_nothing() -> None:
    """Its successor may have ended the transaction, and would not hear of what is added here."""

    async def main() -> None:
        unproved = Refused(ErrorCode.NOT_LEADER_OR_FOLLOWER, "the metadata cannot be read")
        assert await coordinator_that(unproved).add(ADDITION) == Refused(ErrorCode.NOT_COORDINATOR, unproved.message)

    run_virtually(main())


@pytest.mark.parametrize("why", ["is elsewhere", "has not proved that it leads", "does not know the topic"])
def test_coordinator_that_cannot_say_so_at_once_adds_nothing_at_once(why: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        proof = Refused(ErrorCode.NOT_LEADER_OR_FOLLOWER, "not read lately") if why.endswith("leads") else None
        coordinator, asked = coordinator_that(proof), list[AddPartitions]()
        shard: Any = SimpleNamespace(answer_at_once=lambda addition: asked.append(addition) or Added())
        elsewhere = Refused(ErrorCode.NOT_COORDINATOR, "not here")
        monkeypatch.setattr(coordinator, "_shard_of", lambda _: elsewhere if why == "is elsewhere" else shard)
        if not why.endswith("topic"):
            monkeypatch.setattr(coordinator, "_find_unknown", lambda _: None)
        assert coordinator.add_at_once(ADDITION) is None
        assert not asked

    run_virtually(main())


@pytest.mark.parametrize(
    "answer", [Added(may_be_one_phase=True), Refused(ErrorCode.CONCURRENT_TRANSACTIONS, "a vote is under way"), None]
)
@pytest.mark.parametrize("level", [LEVEL_OF_ONE_PHASE - 1, LEVEL_OF_ONE_PHASE])
def test_coordinator_that_leads_adds_at_once(
    answer: Added | Refused | None, level: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        coordinator, asked = coordinator_that(None, level), list[AddPartitions]()
        shard: Any = SimpleNamespace(answer_at_once=lambda addition: asked.append(addition) or answer)
        monkeypatch.setattr(coordinator, "_shard_of", lambda _: shard)
        monkeypatch.setattr(coordinator, "_find_unknown", lambda _: None)
        assert coordinator.add_at_once(ADDITION) == (answer if isinstance(answer, Added) else None)
        assert [each.allows_one_phase for each in asked] == [level >= LEVEL_OF_ONE_PHASE]

    run_virtually(main())
