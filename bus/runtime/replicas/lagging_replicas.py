"""The replicas of all partitions of the cluster that are not fenced and yet not in sync, as far as their leaders say.

Each leader tells the controller with its heartbeats, and the controller tells all brokers with the answers; so any
broker can say of any partition which replicas are in sync. A broker that is no leader any more, or is fenced, says
nothing. What is known is some seconds old.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from bus.cluster_metadata.cluster_state import ClusterState
from bus.model import TopicPartition
from bus.ports import Clock
from bus.runtime.replicas.in_sync_replicas import InSyncReplicas

Lagging = Mapping[TopicPartition, Sequence[int]]  # broker ids

_LOOK_MS = 2_000
# Of partitions and their replicas in one message: a heartbeat of more items than a request may have would be refused.
# More are behind only if a broker is overloaded, and then so many tell enough.
_ITEMS_MAX = 15_000


class LaggingReplicas:
    def __init__(self, broker_id: int, in_sync: InSyncReplicas, clock: Clock) -> None:
        self._broker_id = broker_id
        self._in_sync = in_sync
        self._clock = clock
        self._looked_ms: float | None = None
        self._own: Lagging = {}  # of the partitions that this broker leads
        self._by_leader: dict[int, Lagging] = {}  # what other brokers told this one as the controller
        self._all: Lagging = {}  # as the controller told

    def own(self) -> Lagging:
        """Of the partitions that this broker leads, as they were a moment ago."""
        now_ms = self._clock.monotonic_ms()
        if self._looked_ms is None or now_ms - self._looked_ms >= _LOOK_MS:
            self._own, self._looked_ms = _first_of(self._in_sync.lagging()), now_ms
        return self._own

    # ------------------------------------------------------------------ between the controller and the others

    def begin(self) -> None:
        """This broker is the controller from now on."""
        self._by_leader.clear()

    def take(self, leader_id: int, lagging: Lagging) -> None:
        """As the controller: what a broker says in its heartbeat."""
        self._by_leader[leader_id] = lagging

    def merge(self, cluster: ClusterState) -> Lagging:
        """As the controller: of the whole cluster, of partitions that those who say it lead."""
        found: dict[TopicPartition, Sequence[int]] = {}
        for leader_id, lagging in [(self._broker_id, self.own()), *self._by_leader.items()]:
            for name, broker_ids in lagging.items():
                leadership = cluster.leadership(name)
                if leadership is not None and leadership.leader_id == leader_id:
                    found[name] = broker_ids
        self._all = _first_of(found)
        return self._all

    def follow(self, lagging: Lagging) -> None:
        """What the controller answers."""
        self._all = lagging

    def of(self, name: TopicPartition) -> Sequence[int]:
        return self._all.get(name) or self._own.get(name, ())


def _first_of(lagging: Lagging) -> Lagging:
    """As many as one message may have."""
    first: dict[TopicPartition, Sequence[int]] = {}
    items = 0
    for name, broker_ids in lagging.items():
        items += 1 + len(broker_ids)
        if items > _ITEMS_MAX:
            break
        first[name] = broker_ids
    return first
