"""A broker's life in the cluster, as far as no simulation shows it."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

from bus.cluster_metadata.broker_decisions import RegisterBroker
from bus.cluster_metadata.cluster import EMPTY_CLUSTER, apply_all
from bus.cluster_metadata.cluster_records import (
    BUS_VERSION,
    LEVEL_MAX,
    BrokerStarted,
    ControllerElected,
    FeatureLevel,
)
from bus.config.broker import BrokerConfig
from bus.errors import ErrorCode, Refused
from bus.model import BrokerEndpoint
from bus.runtime.metadata.broker_lifecycle import BrokerLifecycle
from bus.runtime.metadata.peers import BrokerHeartbeat
from bus.runtime.tasks import TaskScope
from tests.support.virtual_time import run_virtually


class Peers:
    def __init__(self) -> None:
        self.suspected_count = 0

    def suspect_all(self) -> None:
        self.suspected_count += 1


def test_connections_to_all_brokers_are_suspected_at_each_election_and_at_nothing_else() -> None:
    """The controller may have been lost with its connections, and the one to the next controller too, unnoticed."""
    peers, nothing = Peers(), cast(Any, None)
    lifecycle = BrokerLifecycle(
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
    counts = []
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
    async def control(self, function: object) -> bool:
        return True  # the controller's process is alive


def test_broker_that_is_answered_by_a_controller_that_cannot_write_does_not_say_that_it_is_unanswered() -> None:
    """Else its session would end there, and it were fenced once the controller can write again."""

    async def run() -> None:
        peers, follower = LaidDown(), cast(Any, Follower())
        lifecycle = BrokerLifecycle(
            RegisterBroker(BrokerEndpoint(1, "b", 1), "life-1"),
            follower,
            cast(Any, None),
            cast(Any, SimpleNamespace(is_alive=bool)),
            cast(Any, peers),
            cast(Any, SimpleNamespace(find_due=lambda controller, now_ms: ())),
            cast(Any, SimpleNamespace(own=dict)),
            follower,
            BrokerConfig(),
            clock=cast(Any, LoopClock()),
            calls=follower,
            tasks=TaskScope("test"),
            on_replaced=cast(Any, None),
        )
        lifecycle.serve()
        living = asyncio.ensure_future(lifecycle._run())
        await asyncio.sleep(10)
        living.cancel()
        await asyncio.wait([living])
        assert len(peers.heartbeats) >= 50
        assert not any(heartbeat.is_unanswered for heartbeat in peers.heartbeats)

    run_virtually(run())
