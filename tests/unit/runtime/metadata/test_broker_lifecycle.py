"""A broker's life in the cluster, as far as no simulation shows it."""

from __future__ import annotations

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
from bus.model import BrokerEndpoint
from bus.runtime.metadata.broker_lifecycle import BrokerLifecycle


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
