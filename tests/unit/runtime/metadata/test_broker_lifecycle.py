"""A broker's life in the cluster, as far as no simulation shows it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from bus.cluster_metadata.broker_decisions import BrokerIdentity, RegisterBroker
from bus.cluster_metadata.broker_liveness import Lease
from bus.cluster_metadata.cluster_records import (
    BrokerFenced,
    BrokerStarted,
    BrokerUnfenced,
    ControllerElected,
    FeatureLevel,
    apply_all,
)
from bus.cluster_metadata.cluster_state import BUS_VERSION, EMPTY_CLUSTER, LEVEL_MAX
from bus.errors import ErrorCode, Refused
from bus.model import BrokerEndpoint
from bus.runtime.metadata.broker_lifecycle import BrokerLifecycle
from bus.runtime.metadata.peers import BrokerHeartbeat
from bus.runtime.tasks import TaskScope
from bus.settings.broker import BrokerConfig
from tests.support.virtual_time import run_virtually


class Peers:
    def __init__(self) -> None:
        self.suspected_count = 0
        self.given_up: list[int] = []

    def suspect_all(self) -> None:
        self.suspected_count += 1

    def give_up(self, broker_id: int) -> None:
        self.given_up.append(broker_id)


def test_connections_to_all_brokers_are_suspected_at_each_election_and_at_nothing_else() -> None:
    """The controller may have been lost with its connections, and the one to the next controller too, unnoticed."""
    peers, counts = Peers(), []
    lifecycle = new_follower(peers)
    state = EMPTY_CLUSTER
    for record in (
        FeatureLevel(BUS_VERSION, LEVEL_MAX),
        ControllerElected(0, "life-0"),
        BrokerStarted(1, "b", 1, None, "life-1", broker_epoch=1, level_min=0, level_max=1),
        ControllerElected(2, "life-2"),
        ControllerElected(1, "life-1"),
    ):
        state = apply_all(state, [record])
        lifecycle.follow(state)
        counts.append(peers.suspected_count)
    assert counts == [0, 1, 1, 2, 3]


def test_what_is_under_way_to_a_broker_is_given_up_when_it_is_fenced_and_at_nothing_else() -> None:
    peers, given_up = Peers(), []
    lifecycle = new_follower(peers)
    state = EMPTY_CLUSTER
    for record in (
        FeatureLevel(BUS_VERSION, LEVEL_MAX),
        BrokerStarted(2, "b", 1, None, "life-2", broker_epoch=1, level_min=0, level_max=1),
        BrokerUnfenced(2, 1),
        ControllerElected(0, "life-0"),
        BrokerFenced(2, 1),
        ControllerElected(1, "life-1"),
        BrokerUnfenced(2, 1),
        BrokerFenced(2, 1),
    ):
        state = apply_all(state, [record])
        lifecycle.follow(state)
        given_up.append(list(peers.given_up))
    assert given_up == [[], [], [], [], [2], [2], [2], [2, 2]]


def new_follower(peers: Peers) -> BrokerLifecycle:
    """The life of broker 1, which follows the metadata and does nothing else."""
    nothing = cast(Any, None)
    return BrokerLifecycle(
        RegisterBroker(BrokerEndpoint(1, "b", 1), "life-1"),
        nothing,
        nothing,
        nothing,
        cast(Any, peers),
        nothing,
        nothing,
        nothing,
        BrokerConfig(),
        clock=nothing,
        calls=nothing,
        tasks=nothing,
        on_replaced=nothing,
    )


class LoopClock:
    def monotonic_ms(self) -> float:
        return asyncio.get_running_loop().time() * 1000

    def now_ms(self) -> int:
        return int(self.monotonic_ms())


class LaidDown:
    """A controller that answers each heartbeat, and takes none."""

    def __init__(self) -> None:
        self.heartbeats: list[BrokerHeartbeat] = []

    async def heartbeat(self, controller: BrokerEndpoint, heartbeat: BrokerHeartbeat, *, timeout_s: float) -> Refused:
        self.heartbeats.append(heartbeat)
        return Refused(ErrorCode.KAFKA_STORAGE_ERROR, "the controller cannot write to the storage")


class Follower:
    """The metadata of a broker, and its lease, on a disk that is full for all."""

    controller = BrokerEndpoint(0, "a", 1)
    is_leading = False
    applied_offset = 1
    cluster = apply_all(EMPTY_CLUSTER, [FeatureLevel(BUS_VERSION, LEVEL_MAX), ControllerElected(0, "life-0")])
    writes = SimpleNamespace(has_failed=True, cannot_write=True)
    watch = SimpleNamespace(is_silent=lambda broker_id, now_ms: False)

    async def follow(self) -> None: ...
    async def look(self, broker_ids: object) -> None: ...
    async def control(self, function: Callable[[], Any]) -> Any:
        return function()


def new_lifecycle(follower: Follower, peers: object) -> BrokerLifecycle:
    """The life of broker 1, which serves; the process of every other broker is there."""
    anything = cast(Any, follower)
    lifecycle = BrokerLifecycle(
        RegisterBroker(BrokerEndpoint(1, "b", 1), "life-1"),
        anything,
        anything,
        cast(Any, SimpleNamespace(is_alive=lambda broker_id: True, cluster_id="c")),
        cast(Any, peers),
        cast(Any, SimpleNamespace(find_due=lambda controller, now_ms: ())),
        cast(Any, SimpleNamespace(own=dict)),
        anything,
        BrokerConfig(),
        clock=cast(Any, LoopClock()),
        calls=anything,
        tasks=TaskScope("test"),
        on_replaced=cast(Any, None),
    )
    lifecycle.serve()
    return lifecycle


async def live(lifecycle: BrokerLifecycle, seconds: float) -> None:
    living = asyncio.ensure_future(lifecycle._run())
    await asyncio.sleep(seconds)
    living.cancel()
    await asyncio.wait([living])


def test_broker_that_is_answered_by_a_controller_that_cannot_write_does_not_say_that_it_is_unanswered() -> None:
    """Else its session would end there, and it were fenced once the controller can write again."""

    async def run() -> None:
        peers = LaidDown()
        await live(new_lifecycle(Follower(), peers), 10)
        assert len(peers.heartbeats) >= 50
        assert not any(heartbeat.is_unanswered for heartbeat in peers.heartbeats)

    run_virtually(run())


class Unanswered(Follower):
    """The metadata of broker 1 of three, and the leases where no heartbeat reaches the controller, broker 0."""

    cluster = apply_all(
        Follower.cluster,
        [
            BrokerStarted(number, "b", number, None, f"life-{number}", broker_epoch=number, level_min=0, level_max=1)
            for number in (1, 2)
        ],
    )
    writes = SimpleNamespace(has_failed=False, cannot_write=False)

    def __init__(self) -> None:
        self.elections = 0

    def tell(self, unreached: str) -> None: ...

    def find_working(self) -> dict[int, Lease]:
        return {0: Lease(1), 1: Lease(1, "life-0"), 2: Lease(1, "life-0")}

    async def elect(self, decide: object, *, instead_of: object) -> Refused:
        self.elections += 1
        return Refused(ErrorCode.NOT_CONTROLLER, "another broker was elected meanwhile")


class Strangers:
    """The other brokers are there, and take no heartbeat of this one."""

    def __init__(self, *, is_logged_in: bool = True, cluster_id: str = "c", is_shifted: bool = False) -> None:
        """`is_shifted`: at the address of each broker another one answers."""
        self._is_logged_in = is_logged_in
        self._cluster_id = cluster_id
        self._is_shifted = is_shifted

    async def heartbeat(self, *_: object, timeout_s: float) -> Refused:
        return Refused(ErrorCode.NETWORK_EXCEPTION, "no answer")

    async def identify(
        self, endpoint: BrokerEndpoint, *, timeout_s: float, needs_login: bool
    ) -> BrokerIdentity | Refused:
        if needs_login and not self._is_logged_in:
            return Refused(ErrorCode.NETWORK_EXCEPTION, "no token could be obtained")
        broker_id = endpoint.broker_id + self._is_shifted
        return BrokerIdentity(self._cluster_id, broker_id, f"life-{broker_id}")


@pytest.mark.parametrize("is_logged_in", [True, False])
def test_broker_that_can_log_in_nowhere_takes_the_place_of_no_controller(is_logged_in: bool) -> None:
    """It would be left in turn: where the identity provider is gone, no heartbeat reaches any controller."""

    async def run() -> None:
        follower = Unanswered()
        await live(new_lifecycle(follower, Strangers(is_logged_in=is_logged_in)), 10)
        assert bool(follower.elections) == is_logged_in

    run_virtually(run())


SOMEBODY_ELSE = (Strangers(cluster_id="another"), Strangers(is_shifted=True))


@pytest.mark.parametrize("peers", SOMEBODY_ELSE)
def test_somebody_else_who_answers_at_the_address_of_a_broker_is_nobody_whom_a_candidate_reaches(
    peers: Strangers,
) -> None:
    async def run() -> None:
        follower = Unanswered()
        await live(new_lifecycle(follower, peers), 10)
        assert not follower.elections

    run_virtually(run())


class Unheard(Unanswered):
    """Broker 1 is the controller, and hears nobody. Broker 2 is at work, and says that it cannot reach it."""

    is_leading = True

    def __init__(self, *, hears_nobody: bool = True) -> None:
        super().__init__()
        self.hears_nobody = hears_nobody
        self.own = Lease(1)
        self.cluster = apply_all(self.cluster, [ControllerElected(1, "life-1")])

    def tell(self, unreached: str) -> None:
        self.own = Lease(1, unreached)

    def find_working(self) -> dict[int, Lease]:
        return {1: self.own, 2: Lease(1, "life-1")}

    def find_late(self) -> tuple[int, ...]:
        return ()

    async def check_leading(self) -> None: ...
    async def balance(self) -> None: ...

    async def look(self, broker_ids: object, working: object = ()) -> None: ...


@pytest.mark.parametrize(
    ("peers", "hears_nobody", "expected"),
    [
        (Strangers(), True, "life-1"),
        (Strangers(), False, ""),
        (Strangers(is_logged_in=False), True, ""),
        *((peers, True, "") for peers in SOMEBODY_ELSE),
    ],
)
def test_controller_resigns_only_if_it_hears_nobody_and_reaches_who_cannot_reach_it(
    peers: Strangers, hears_nobody: bool, expected: str
) -> None:
    async def run() -> None:
        unheard = Unheard(hears_nobody=hears_nobody)
        await live(new_lifecycle(unheard, peers), 5)
        assert unheard.own.unreached == expected

    run_virtually(run())
