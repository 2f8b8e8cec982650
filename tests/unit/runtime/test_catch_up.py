"""Callers that ask a broker that is a moment behind wait for that moment."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

from bus.cluster_metadata.cluster_records import BrokerRegistered, LeaderChanged, TopicCreated, apply_all
from bus.cluster_metadata.cluster_state import EMPTY_CLUSTER
from bus.model import TopicPartition
from bus.runtime.cluster import Cluster
from tests.support.virtual_time import run_virtually

T0 = TopicPartition("t", 0)
BEFORE = apply_all(
    EMPTY_CLUSTER, [BrokerRegistered(0, "h", 1), BrokerRegistered(1, "h", 2), TopicCreated("t", "id-t", 1, 0)]
)
AFTER = apply_all(BEFORE, [LeaderChanged("t", "id-t", 0, 1, 1)])


class Metadata:
    """Applies the next state after `delay_s`."""

    def __init__(self, delay_s: float) -> None:
        self.cluster, self.applied_offset = BEFORE, 3
        self._delay_s = delay_s

    async def wait_until_applied(self, offset: int) -> None:
        assert offset == self.applied_offset + 1
        await asyncio.sleep(self._delay_s)
        self.cluster, self.applied_offset = AFTER, offset


def cluster_behind(delay_s: float) -> Cluster:
    async def wait_for_openings(asked: Mapping[TopicPartition, int | None]) -> bool:
        return False

    cluster: Any = object.__new__(Cluster)
    cluster.metadata, cluster.host = Metadata(delay_s), SimpleNamespace(wait_for_openings=wait_for_openings)
    found: Cluster = cluster
    return found


def test_epoch_that_is_not_known_yet_is_waited_for() -> None:
    async def scenario() -> None:
        cluster = cluster_behind(0.01)
        assert await cluster.catch_up({T0: 1, TopicPartition("gone", 0): 9})
        assert cluster.state is AFTER
        assert not await cluster.catch_up({T0: 1})
        assert not await cluster.catch_up({T0: None})

    run_virtually(scenario())


def test_epoch_that_does_not_come_is_waited_for_no_longer_than_a_moment() -> None:
    async def scenario() -> None:
        cluster = cluster_behind(10.0)
        began_s = asyncio.get_running_loop().time()
        assert await cluster.catch_up({T0: 2**31 - 1})
        assert asyncio.get_running_loop().time() - began_s < 0.1
        assert cluster.state is BEFORE

    run_virtually(scenario())
