"""The controller registers a broker if that answers where it says that it is, and does not wait for long."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest

from bus.cluster_metadata.broker_decisions import BrokerIdentity, RegisterBroker
from bus.cluster_metadata.broker_liveness import WriteSession
from bus.cluster_metadata.cluster_draft import ClusterRecord
from bus.cluster_metadata.cluster_records import (
    BrokerFenced,
    BrokerStarted,
    BrokerUnfenced,
    FeatureLevel,
    LeaderChanged,
    ProducerIdsAllocated,
    ProducerNamed,
    ReplicasAssigned,
    TopicCreated,
    apply_all,
)
from bus.cluster_metadata.cluster_state import EMPTY_CLUSTER
from bus.errors import ErrorCode, Refused
from bus.model import BrokerEndpoint
from bus.runtime.metadata.broker_heartbeats import BrokerHeartbeats
from bus.runtime.metadata.metadata_log import Decide
from bus.runtime.metadata.peers import BrokerHeartbeat, HeartbeatAnswer, Registered
from bus.runtime.metadata.producers import ProducerUses
from bus.runtime.tasks import TaskScope
from bus.settings.broker import BrokerConfig
from tests.support.virtual_time import run_virtually

NOT_THERE = Refused(ErrorCode.NETWORK_EXCEPTION, "connection refused")
NEW = RegisterBroker(BrokerEndpoint(1, "far", 9094), "life-1")


class LoopClock:
    def now_ms(self) -> int:
        return int(self.monotonic_ms())

    def monotonic_ms(self) -> float:
        return asyncio.get_running_loop().time() * 1000


class Metadata:
    """The metadata of the controller, broker 0."""

    is_leading = True

    def __init__(self) -> None:
        self.cluster = apply_all(
            EMPTY_CLUSTER,
            [
                FeatureLevel("bus.version", 1),
                BrokerStarted(0, "near", 9094, None, "life-0", 1, 0, 1),
                BrokerUnfenced(0, 1),
                ProducerIdsAllocated(0, 1_000),
                ProducerNamed("p", 7, 0, -1),
            ],
        )
        self.applied_offset = 5
        self.waits: list[int] = []
        self.failures = 0  # of the next changes

    async def wait_until_applied(self, offset: int) -> None:
        self.waits.append(offset)

    async def change(self, decisions: Sequence[Decide[Any]]) -> list[Any]:
        (decide,) = decisions
        step = decide(self.cluster)
        if self.failures:
            self.failures -= 1
            return [Refused(ErrorCode.KAFKA_STORAGE_ERROR, "the disk is full")]
        self.cluster = apply_all(self.cluster, step.records)
        self.applied_offset += len(step.records)
        return [step.response]


class Peers:
    def __init__(self, answers: list[BrokerIdentity | Refused], metadata: Metadata) -> None:
        """Without `answers` each broker answers, but those that are cut off."""
        self.answers = answers  # the last one again and again
        self.asked: list[BrokerEndpoint] = []
        self.found: dict[int, BrokerIdentity] = {}  # who is where a broker was, by its id
        self.cut: set[int] = set()  # ids
        self._metadata = metadata

    async def identify(
        self, endpoint: BrokerEndpoint, *, timeout_s: float, needs_login: bool
    ) -> BrokerIdentity | Refused:
        assert 0 < timeout_s <= 2.0
        assert not needs_login, "a broker that is there must not be fenced for want of a login"
        self.asked.append(endpoint)
        if self.answers:
            return self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        broker_id = endpoint.broker_id
        if broker_id in self.cut:
            await asyncio.sleep(timeout_s)
            return Refused(ErrorCode.REQUEST_TIMED_OUT, "no answer in time")
        broker = self._metadata.cluster.brokers[broker_id]
        return self.found.get(broker_id) or BrokerIdentity("root", broker_id, broker.incarnation)


class Bench:
    def __init__(self, *answers: BrokerIdentity | Refused) -> None:
        self.metadata, self.uses, self.tasks = Metadata(), ProducerUses(0), TaskScope("test")
        self.peers = Peers(list(answers), self.metadata)
        self.writes = WriteSession(2_000, tick_ms=200, now_ms=-10_000)
        self.heartbeats = BrokerHeartbeats(
            cast(Any, self.metadata),
            cast(Any, self.peers),
            self.uses,
            cast(Any, SimpleNamespace(begin=lambda: None, take=lambda *_: None, merge=lambda _: {})),
            BrokerConfig(),
            writes=self.writes,
            broker_id=0,
            cluster_id="root",
            clock=LoopClock(),
            tasks=self.tasks,
        )
        self.heartbeats.begin([])

    async def register(self, command: RegisterBroker = NEW) -> Registered | Refused:
        return await self.heartbeats.register(command, cluster_id="root")

    async def live(self, seconds: float, heard: Sequence[int]) -> None:
        """Those brokers send heartbeats meanwhile, and the controller looks, as it does."""
        until_s = asyncio.get_running_loop().time() + seconds
        while asyncio.get_running_loop().time() < until_s:
            for broker_id in heard:
                offset, life = self.metadata.applied_offset, self.metadata.cluster.brokers[broker_id].life
                await self.heartbeats.take(BrokerHeartbeat(broker_id, life[1], life[0], offset, False, 0))
            await self.heartbeats.look([])
            await asyncio.sleep(0.1)


def test_broker_whose_address_is_reached_a_moment_later_is_taken_in() -> None:
    async def run() -> None:
        bench = Bench(NOT_THERE, NOT_THERE, NOT_THERE, BrokerIdentity("root", 1, "life-1"))
        assert await bench.register() == Registered(broker_epoch=2, metadata_offset=6)
        assert bench.peers.asked == [NEW.endpoint] * 4
        assert bench.metadata.cluster.brokers.keys() == {0, 1}

    run_virtually(run())


def test_broker_that_is_not_reached_is_refused_within_two_seconds_and_nothing_is_committed() -> None:
    async def run() -> None:
        bench = Bench(NOT_THERE)
        answer = await bench.register()
        assert isinstance(answer, Refused)
        assert answer.code is ErrorCode.BROKER_NOT_AVAILABLE
        assert "far:9094" in answer.message
        assert asyncio.get_running_loop().time() <= 2.0
        assert bench.metadata.cluster.brokers.keys() == {0}

    run_virtually(run())


def test_broker_that_is_refused_anyway_is_not_asked_for() -> None:
    async def run() -> None:
        bench = Bench(NOT_THERE)
        answer = await bench.register(RegisterBroker(BrokerEndpoint(1, "far away", 9094), "life-1"))
        assert isinstance(answer, Refused)
        assert answer.code is ErrorCode.INVALID_REGISTRATION
        assert bench.peers.asked == []

    run_virtually(run())


def test_controller_that_is_deposed_while_it_asks_commits_nothing() -> None:
    async def run() -> None:
        bench = Bench(NOT_THERE, BrokerIdentity("root", 1, "life-1"))
        registering = asyncio.ensure_future(bench.register())
        await asyncio.sleep(0.05)
        bench.metadata.is_leading = False
        bench.heartbeats.follow(bench.metadata.cluster)
        answer = await registering
        assert isinstance(answer, Refused)
        assert answer.code is ErrorCode.NOT_CONTROLLER
        assert bench.metadata.cluster.brokers.keys() == {0}

    run_virtually(run())


@pytest.mark.parametrize("claimed", [6, 7, 2**62])
def test_heartbeat_of_a_broker_that_is_ahead_waits_for_the_next_record_as_others_do(claimed: int) -> None:
    """It has read a version whose commit has not ended here; or it has a bug."""

    async def run() -> None:
        bench = Bench(BrokerIdentity("root", 1, "life-1"))
        await bench.register()
        answer = await bench.heartbeats.take(BrokerHeartbeat(1, 2, "life-1", claimed, False, 100))
        assert isinstance(answer, HeartbeatAnswer)
        assert (answer.metadata_offset, bench.metadata.waits) == (6, [7])

    run_virtually(run())


def test_heartbeat_tells_of_names_in_use_unless_it_is_refused() -> None:
    async def run() -> None:
        bench = Bench(BrokerIdentity("root", 1, "life-1"))
        await bench.register()
        heartbeat = BrokerHeartbeat(1, 2, "life-1", 0, False, 0, used_producer_ids=[7, 8])
        assert isinstance(await bench.heartbeats.take(heartbeat), HeartbeatAnswer)
        assert bench.uses.take_all() == {7}, "no name has the id 8"
        stale = BrokerHeartbeat(1, 1, "life-1", 0, False, 0, used_producer_ids=[7])
        assert isinstance(await bench.heartbeats.take(stale), Refused)
        assert bench.uses.take_all() == set()

    run_virtually(run())


def follower(broker_id: int, broker_epoch: int) -> list[ClusterRecord]:
    return [
        BrokerStarted(broker_id, f"far-{broker_id}", 9094, None, f"life-{broker_id}", broker_epoch, 0, 1),
        BrokerUnfenced(broker_id, broker_epoch),
    ]


def test_leaders_of_a_broker_that_wants_to_stop_move_in_portions_and_then_it_is_fenced() -> None:
    """A partition is without service while the leaders of its portion are opened, and not longer."""

    async def run() -> None:
        bench = Bench()
        bench.metadata.cluster = apply_all(
            bench.metadata.cluster, [*follower(1, 2), *follower(2, 3), TopicCreated("t", "id-1", 50, 1)]
        )
        bench.heartbeats.begin([])
        bench.metadata.applied_offset = 9
        heartbeat = BrokerHeartbeat(1, 2, "life-1", 0, True, 100, (), {})
        assert not isinstance(await bench.heartbeats.take(heartbeat), Refused)
        left = []
        while 1 in bench.metadata.cluster.unfenced_brokers:
            await bench.heartbeats.look([])
            left.append(bench.metadata.cluster.leader_counts.get(1, 0))
        assert left == [34, 18, 2, 0]

    run_virtually(run())


def test_controller_that_stops_waits_for_a_log_that_fails_until_others_lead() -> None:
    async def run() -> None:
        bench = Bench()
        bench.metadata.cluster = apply_all(bench.metadata.cluster, [*follower(1, 2), TopicCreated("t", "id-1", 1, 0)])
        bench.heartbeats.begin([])
        bench.metadata.failures = 2
        leaving = asyncio.ensure_future(bench.heartbeats.hand_over())
        await asyncio.sleep(1.0)
        assert bench.metadata.failures == 0
        assert bench.metadata.cluster.unfenced_brokers == [1]
        assert bench.metadata.cluster.leader_counts == {1: 1}
        heartbeat = BrokerHeartbeat(1, 2, "life-1", bench.metadata.applied_offset, False, 0)
        await bench.heartbeats.take(heartbeat)
        await leaving

    run_virtually(run())


def test_broker_that_is_elected_while_it_stops_gives_away_what_the_election_has_given_it() -> None:
    async def run() -> None:
        bench = Bench()
        before = [*follower(1, 2), TopicCreated("t", "id-1", 1, 1), BrokerFenced(0, 1)]
        bench.metadata.is_leading = False
        bench.metadata.cluster = apply_all(bench.metadata.cluster, before)
        bench.heartbeats.follow(bench.metadata.cluster)
        bench.metadata.is_leading = True
        leaving = asyncio.ensure_future(bench.heartbeats.hand_over())
        await asyncio.sleep(1.0)
        elected = [BrokerUnfenced(0, 1), LeaderChanged("t", "id-1", 0, 0, 1)]
        bench.metadata.cluster = apply_all(bench.metadata.cluster, elected)
        bench.heartbeats.begin([])
        await asyncio.sleep(1.0)
        assert bench.metadata.cluster.unfenced_brokers == [1]
        assert bench.metadata.cluster.leader_counts == {1: 1}
        await bench.heartbeats.take(BrokerHeartbeat(1, 2, "life-1", bench.metadata.applied_offset, False, 0))
        await leaving

    run_virtually(run())


def test_leaders_go_back_to_a_preferred_broker_in_portions() -> None:
    async def run() -> None:
        bench = Bench()
        away = [TopicCreated("t", "id-1", 40, 0), ReplicasAssigned("t", "id-1", 0, 40, "1,0")]
        bench.metadata.cluster = apply_all(bench.metadata.cluster, [*follower(1, 2), *away])
        bench.heartbeats.begin([])
        await bench.live(1.0, heard=[1])
        await asyncio.sleep(BrokerConfig().leader_imbalance_check_interval_seconds)
        back = []
        for _ in range(3):
            await bench.heartbeats.balance()
            back.append(bench.metadata.cluster.leader_counts.get(1, 0))
        assert back == [16, 32, 40]

    run_virtually(run())


def test_controller_that_cannot_write_takes_no_heartbeat() -> None:
    """The others go on to elect one who can."""

    async def run() -> None:
        bench = Bench(BrokerIdentity("root", 1, "life-1"))
        await bench.register()
        bench.writes.cannot_write = True
        answer = await bench.heartbeats.take(BrokerHeartbeat(1, 2, "life-1", 0, False, 0))
        assert isinstance(answer, Refused)
        assert answer.code is ErrorCode.KAFKA_STORAGE_ERROR
        bench.writes.note_success(0)
        assert isinstance(await bench.heartbeats.take(BrokerHeartbeat(1, 2, "life-1", 0, False, 0)), HeartbeatAnswer)

    run_virtually(run())


def test_controller_that_can_write_again_has_heard_the_brokers_all_that_time() -> None:
    """A disk that was full for all is no reason to fence any of them."""

    async def run() -> None:
        bench = Bench()
        three_brokers(bench)
        bench.writes.cannot_write = True
        for _ in range(20):
            for broker_id in (1, 2):
                life = BrokerHeartbeat(broker_id, broker_id + 1, f"life-{broker_id}", 0, False, 0)
                assert isinstance(await bench.heartbeats.take(life), Refused)
            await bench.heartbeats.look([])
            await asyncio.sleep(0.5)
        bench.writes.note_success(0)
        await bench.heartbeats.look([])
        assert bench.metadata.cluster.unfenced_brokers == [0, 1, 2]

    run_virtually(run())


def test_broker_that_cannot_write_is_fenced_only_by_a_controller_that_can() -> None:
    async def run() -> None:
        bench = Bench()
        bench.metadata.cluster = apply_all(bench.metadata.cluster, [*follower(1, 2), TopicCreated("t", "id-1", 1, 1)])
        bench.heartbeats.begin([])
        failing = BrokerHeartbeat(1, 2, "life-1", 0, False, 0, wants_fence=True)
        bench.writes.note_failure(0)
        await bench.heartbeats.take(failing)
        await bench.heartbeats.look([])
        assert bench.metadata.cluster.unfenced_brokers == [0, 1], "the disk of all may be full"
        await asyncio.sleep(2.1)
        await bench.heartbeats.take(failing)
        await bench.heartbeats.look([])
        assert bench.metadata.cluster.unfenced_brokers == [0]
        assert bench.metadata.cluster.leader_counts == {0: 1}

    run_virtually(run())


def three_brokers(bench: Bench) -> None:
    led = [TopicCreated("t", "id-1", 1, 1), ReplicasAssigned("t", "id-1", 0, 1, "1,2")]
    bench.metadata.cluster = apply_all(bench.metadata.cluster, [*follower(1, 2), *follower(2, 3), *led])
    bench.heartbeats.begin([])


def test_broker_that_is_heard_and_not_reached_is_fenced_and_comes_back_once_it_is_reached(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def run() -> None:
        bench = Bench()
        three_brokers(bench)
        await bench.live(5.0, heard=[1, 2])
        bench.peers.cut.add(1)
        await bench.live(3.3, heard=[1, 2])
        assert bench.metadata.cluster.unfenced_brokers == [0, 2]
        assert bench.metadata.cluster.leader_counts == {2: 1}
        assert "broker 1 advertises far-1:9094, where the controller does not reach it" in caplog.text
        await bench.live(20.0, heard=[1, 2])
        assert bench.metadata.cluster.unfenced_brokers == [0, 2], "its heartbeats do not bring it back"
        bench.peers.cut.clear()
        await bench.live(2.0, heard=[1, 2])
        assert bench.metadata.cluster.unfenced_brokers == [0, 1, 2]

    run_virtually(run())


@pytest.mark.parametrize(
    "found",
    [
        BrokerIdentity("root", 2, "life-2"),
        BrokerIdentity("root", 1, "another life"),
        BrokerIdentity("another root", 1, "life-1"),
    ],
)
def test_broker_at_whose_address_somebody_else_answers_is_not_reached(found: BrokerIdentity) -> None:
    async def run() -> None:
        bench = Bench()
        three_brokers(bench)
        bench.peers.found[1] = found
        await bench.live(3.3, heard=[1, 2])
        assert bench.metadata.cluster.unfenced_brokers == [0, 2]

    run_virtually(run())


def test_controller_that_refuses_all_heartbeats_and_registrations_hears_who_sends_them() -> None:
    """Else it would take itself for one that nobody reaches."""

    async def run() -> None:
        bench = Bench(NOT_THERE)
        for ask in (
            lambda: bench.heartbeats.take(BrokerHeartbeat(7, 1, "life-7", 0, False, 0)),
            lambda: bench.register(),
        ):
            for _ in range(6):
                assert isinstance(await ask(), Refused)
                await bench.live(0.5, [])
                assert not bench.heartbeats.hears_nobody
        await bench.live(2.5, [])
        assert bench.heartbeats.hears_nobody

    run_virtually(run())


def test_controller_that_reaches_nobody_fences_nobody_that_it_hears() -> None:
    async def run() -> None:
        bench = Bench()
        three_brokers(bench)
        bench.peers.cut.update((1, 2))
        await bench.live(60.0, heard=[1, 2])
        assert bench.metadata.cluster.unfenced_brokers == [0, 1, 2]

    run_virtually(run())


def test_new_controller_unfences_no_broker_before_it_has_reached_it() -> None:
    async def run() -> None:
        bench = Bench()
        three_brokers(bench)
        bench.metadata.cluster = apply_all(bench.metadata.cluster, [BrokerFenced(1, 2)])
        bench.peers.cut.add(1)
        bench.heartbeats.begin([])
        await bench.live(10.0, heard=[1, 2])
        assert bench.metadata.cluster.unfenced_brokers == [0, 2]

    run_virtually(run())


def test_leaders_do_not_go_back_to_a_preferred_broker_that_was_not_reached_the_last_time() -> None:
    async def run() -> None:
        bench = Bench()
        three_brokers(bench)
        bench.metadata.cluster = apply_all(bench.metadata.cluster, [LeaderChanged("t", "id-1", 0, 2, 1)])
        bench.peers.cut.add(1)
        await bench.live(1.8, heard=[1, 2])
        bench.heartbeats._balanced_ms = -1e9
        await bench.heartbeats.balance()
        assert bench.metadata.cluster.leader_counts == {2: 1}
        bench.peers.cut.clear()
        await bench.live(2.0, heard=[1, 2])
        bench.heartbeats._balanced_ms = -1e9
        await bench.heartbeats.balance()
        assert bench.metadata.cluster.leader_counts == {1: 1}

    run_virtually(run())


def test_questions_that_are_under_way_end_with_the_broker() -> None:
    async def run() -> None:
        bench = Bench()
        three_brokers(bench)
        bench.peers.cut.add(1)
        await bench.heartbeats.look([])
        await asyncio.sleep(0.1)
        began_s = asyncio.get_running_loop().time()
        bench.heartbeats.stop()
        await bench.tasks.join()
        assert asyncio.get_running_loop().time() == began_s

    run_virtually(run())
