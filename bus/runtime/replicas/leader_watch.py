"""Watch the leaders of followed partitions: this broker asks every other broker for its commits, keeps its own tables
warm, and reports how far it has read them.

One long poll runs at each broker that is not fenced and leads a partition that this broker follows. After an answer the
poll rests for a moment, in which more versions gather, so the cost of asking does not grow with the number of commits.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass

from bus.cluster_metadata.cluster_state import EMPTY_CLUSTER, ClusterState
from bus.errors import Refused
from bus.model import BrokerEndpoint
from bus.runtime.replicas.followed_tables import (
    REPORT_PARTITIONS_MAX,
    FollowedTables,
    FollowerReport,
    Leaders,
    VersionsRequest,
)
from bus.runtime.tasks import TaskScope

_log = logging.getLogger(__name__)

_WAIT_MS_MAX = 10_000
_WAIT_WHILE_READING_MS = 500  # more may have been applied by then, to be reported
_READING_S = 1.0
_ANSWER_S = 2.0  # beyond the wait
_REST_S = 0.02
_RETRY_S = 0.5


@dataclass(slots=True)
class _Place:
    """Up to where the versions of that life of a leader are known, and under which epoch of this broker it knows what
    was read; None: under none."""

    incarnation: str = ""
    after: int = 0
    known_epoch: int | None = None


class LeaderWatch:
    def __init__(
        self,
        broker_id: int,
        leaders: Leaders,
        tables: FollowedTables,
        tasks: TaskScope,
        on_answer: Callable[[int], None] = lambda leader_id: None,
    ) -> None:
        """`on_answer` is called with each broker that has answered, after `tables`."""
        self._broker_id = broker_id
        self._leaders = leaders
        self._tables = tables
        self._tasks = tasks
        self._on_answer = on_answer
        self._cluster = EMPTY_CLUSTER
        self._watching: dict[BrokerEndpoint, asyncio.Task[None]] = {}
        self._is_stopped = False

    def follow(self, cluster: ClusterState) -> None:
        """After `FollowedTables.follow`."""
        is_known = cluster.topics is self._cluster.topics and cluster.brokers is self._cluster.brokers
        if self._is_stopped or is_known:
            return
        self._cluster = cluster
        wanted = self._find_leaders(cluster)
        for endpoint in [endpoint for endpoint in self._watching if endpoint not in wanted]:
            self._watching.pop(endpoint).cancel()
        for endpoint in [endpoint for endpoint in wanted if endpoint not in self._watching]:
            self._watching[endpoint] = self._tasks.start(self._watch(endpoint), f"watch/{endpoint.broker_id}")

    def stop(self) -> None:
        """Stop for good: later states are not followed."""
        self._is_stopped = True
        for task in self._watching.values():
            task.cancel()
        self._watching.clear()

    def _find_leaders(self, cluster: ClusterState) -> list[BrokerEndpoint]:
        if not self._tables.count:
            return []
        others = (broker for broker in cluster.brokers.values() if broker.broker_id != self._broker_id)
        return [broker.endpoint for broker in others if not broker.is_fenced]

    async def _watch(self, leader: BrokerEndpoint) -> None:
        place = _Place()
        while True:
            try:
                is_awaited = await self._ask(leader, place)
            except Exception:
                _log.exception("asking broker %d for its versions failed; the next question follows", leader.broker_id)
                is_awaited = None
            if is_awaited is None:
                place.known_epoch = None
            if not is_awaited:
                await asyncio.sleep(_RETRY_S if is_awaited is None else _REST_S)

    async def _ask(self, leader: BrokerEndpoint, place: _Place) -> bool | None:
        """Ask for new versions and apply them; True if the leader awaits our report. None: there is no answer."""
        wait_ms = _WAIT_WHILE_READING_MS if self._tables.is_reading else _WAIT_MS_MAX
        epoch = self._epoch()
        is_whole = place.known_epoch != epoch
        report = self._tables.take_report(leader.broker_id, is_whole=is_whole)
        if len(report) == REPORT_PARTITIONS_MAX:
            wait_ms = 0  # there may be more to report
        follower = FollowerReport(self._broker_id, epoch, report)
        answer = await self._leaders.committed_versions(
            leader,
            VersionsRequest(place.incarnation, place.after, wait_ms, follower),
            timeout_s=wait_ms / 1000 + _ANSWER_S,
        )
        if isinstance(answer, Refused):
            return None
        place.known_epoch = epoch if is_whole or answer.incarnation == place.incarnation else None
        place.incarnation, place.after = answer.incarnation, answer.end
        self._tables.note(answer.versions, is_awaited=answer.is_awaited)
        self._on_answer(leader.broker_id)
        await self._tables.wait_until_read(_READING_S)
        return answer.is_awaited

    def _epoch(self) -> int:
        broker = self._cluster.brokers.get(self._broker_id)
        return -1 if broker is None else broker.broker_epoch
