"""Whom a broker asks for the versions that it follows."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

from bus.cluster_metadata.cluster import EMPTY_CLUSTER, ClusterState, apply_all
from bus.cluster_metadata.cluster_records import BrokerRegistered
from bus.model import BrokerEndpoint
from bus.runtime.replicas.committed_versions import VersionsRequest
from bus.runtime.replicas.leader_watch import LeaderWatch
from bus.runtime.tasks import TaskScope

_NOTHING_TO_REPORT = SimpleNamespace(count=1, is_reading=False, take_report=lambda leader_id, is_whole: [])


class _Leaders:
    def __init__(self) -> None:
        self.asked: list[int] = []

    async def committed_versions(self, leader: BrokerEndpoint, request: VersionsRequest, *, timeout_s: float) -> Any:
        self.asked.append(leader.broker_id)
        await asyncio.Event().wait()


def cluster_of(*broker_ids: int) -> ClusterState:
    return apply_all(EMPTY_CLUSTER, [BrokerRegistered(broker_id, "h", 1 + broker_id) for broker_id in broker_ids])


def test_a_broker_that_stops_watches_no_leader_of_a_state_that_comes_late() -> None:
    """A change of the metadata may be under way when the broker stops."""

    async def scenario() -> None:
        leaders, tasks = _Leaders(), TaskScope("test")
        watch = LeaderWatch(0, leaders, cast(Any, _NOTHING_TO_REPORT), tasks)
        watch.follow(cluster_of(0, 1))
        await asyncio.sleep(0)
        assert leaders.asked == [1]
        watch.stop()
        watch.follow(cluster_of(0, 1, 2))
        await asyncio.wait_for(tasks.join(), 5.0)
        assert leaders.asked == [1]

    asyncio.run(scenario())
