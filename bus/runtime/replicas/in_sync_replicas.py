"""The in-sync replicas of the partitions that this broker leads.

Soft state, from what followers report: a new leader begins with all its replicas in sync, and those that do not keep up
fall out of it within replica.lag.time.max.ms, by Kafka's rule (`lastCaughtUpTimeMs`). No record is lost or found by it,
and no election depends on it, since the store has every version; a replica in sync is one that would serve a moment
after it is elected. Guards one promise: no fenced broker, and no earlier life of a broker, counts as in sync (KIP-841,
KIP-903).
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from bus.cluster_metadata.cluster_state import EMPTY_CLUSTER, ClusterState
from bus.errors import ErrorCode, Refused
from bus.model import TopicPartition
from bus.ports import Clock
from bus.runtime.replicas.followed_tables import CommittedVersion, CommittedVersions, FollowerReport
from bus.runtime.tasks import time_limit


@dataclass(slots=True)
class _Follower:
    """`leader_version`: the leader's last version when the follower reported, which was at `reported_ms`."""

    broker_epoch: int
    version: int
    caught_up_ms: float
    leader_version: int
    reported_ms: float


@dataclass(slots=True)
class _Led:
    began_ms: float
    followers: dict[int, _Follower] = field(default_factory=dict)  # keyed by broker id
    waiting: dict[asyncio.Event, None] = field(default_factory=dict)


class InSyncReplicas:
    def __init__(self, broker_id: int, committed: CommittedVersions, *, lag_ms_max: int, clock: Clock) -> None:
        """`lag_ms_max`: replica.lag.time.max.ms."""
        self._broker_id = broker_id
        self._committed = committed
        self._lag_ms_max = lag_ms_max
        self._clock = clock
        self._cluster = EMPTY_CLUSTER
        self._led: dict[TopicPartition, _Led] = {}

    def follow(self, cluster: ClusterState) -> None:
        if cluster.brokers is not self._cluster.brokers:
            for led in self._led.values():
                _wake(led)
        self._cluster = cluster

    def begin(self, name: TopicPartition) -> None:
        """This broker leads the partition from now on."""
        self._led[name] = _Led(self._clock.monotonic_ms())

    def forget(self, name: TopicPartition) -> None:
        led = self._led.pop(name, None)
        if led is not None:
            _wake(led)

    def take(self, report: FollowerReport) -> Refused | None:
        """Take a follower's report. STALE_BROKER_EPOCH: another incarnation of the broker is registered, as far as this
        one knows. Ignores partitions that this broker does not lead, other topic ids, and late reports."""
        broker = self._cluster.brokers.get(report.broker_id)
        if broker is None or broker.broker_epoch != report.broker_epoch:
            found = "no such broker" if broker is None else f"broker epoch {broker.broker_epoch}"
            return Refused(
                ErrorCode.STALE_BROKER_EPOCH,
                f"expected broker {report.broker_id} to be registered at broker epoch {report.broker_epoch}, "
                f"found {found}",
            )
        now_ms = self._clock.monotonic_ms()
        for applied in report.applied:
            led, last = self._led.get(applied.name), self._committed.last(applied.name)
            if led is not None and last is not None and last.topic_id == applied.topic_id:
                before = led.followers.get(report.broker_id)
                led.followers[report.broker_id] = _next_follower(led, before, report, applied.version, last, now_ms)
                _wake(led)
        return None

    def find(self, name: TopicPartition) -> tuple[int, ...]:
        """Return the in-sync replicas in the order of the assignment, always with the leader. Empty: this broker does
        not lead the partition."""
        led, topic = self._led.get(name), self._cluster.topics.get(name.topic)
        if led is None or topic is None or name.partition >= len(topic.partitions):
            return ()
        replicas = topic.replicas(name.partition)
        in_sync = tuple(one for one in replicas if one == self._broker_id or self._is_in_sync(led, name, one))
        return in_sync if self._broker_id in in_sync else (self._broker_id, *in_sync)

    def _is_in_sync(self, led: _Led, name: TopicPartition, broker_id: int) -> bool:
        broker = self._cluster.brokers.get(broker_id)
        if broker is None or broker.is_fenced:
            return False
        follower = led.followers.get(broker_id)
        if follower is not None and follower.broker_epoch == broker.broker_epoch:
            last = self._committed.last(name)
            if last is not None and follower.version >= last.version:
                return True
            caught_up_ms = follower.caught_up_ms
        else:
            caught_up_ms = led.began_ms
        return self._clock.monotonic_ms() - caught_up_ms <= self._lag_ms_max

    def lagging(self) -> dict[TopicPartition, tuple[int, ...]]:
        """The replicas that are not fenced and yet not in sync."""
        found: dict[TopicPartition, tuple[int, ...]] = {}
        for name in self._led:
            in_sync = self.find(name)
            replicas = self._cluster.topics[name.topic].replicas(name.partition) if in_sync else ()
            behind = tuple(one for one in replicas if one not in in_sync and not self._cluster.brokers[one].is_fenced)
            if behind:
                found[name] = behind
        return found

    def applied_versions(self, name: TopicPartition) -> dict[int, int]:
        """Return the applied version by follower, as last reported."""
        led = self._led.get(name)
        return {} if led is None else {broker_id: follower.version for broker_id, follower in led.followers.items()}

    def has_applied(self, name: TopicPartition, version: int) -> int:
        """How many replicas have that version: this broker, and the followers that have reported it."""
        led = self._led.get(name)
        if led is None:
            return 0
        return 1 + sum(
            follower.version >= version
            for broker_id, follower in led.followers.items()
            if broker_id != self._broker_id
            and (broker := self._cluster.brokers.get(broker_id)) is not None
            and not broker.is_fenced
            and broker.broker_epoch == follower.broker_epoch
        )

    async def wait(self, name: TopicPartition, version: int, *, count: int, timeout_s: float) -> bool:
        """Wait until `count` replicas have that version; False if they do not have it in time, or another broker
        leads."""
        with contextlib.suppress(asyncio.TimeoutError):
            async with time_limit(timeout_s):
                await self._wait(name, version, count)
        return self.has_applied(name, version) >= count

    async def _wait(self, name: TopicPartition, version: int, count: int) -> None:
        wake = asyncio.Event()
        while (led := self._led.get(name)) is not None and self.has_applied(name, version) < count:
            led.waiting[wake] = None
            try:
                await wake.wait()
                wake.clear()
            finally:
                del led.waiting[wake]


def _next_follower(
    led: _Led, before: _Follower | None, report: FollowerReport, version: int, last: CommittedVersion, now_ms: float
) -> _Follower:
    """It has caught up if it has the leader's last version, or had the one that was the last at its report before."""
    if before is not None and before.broker_epoch != report.broker_epoch:
        before = None
    if before is not None:
        version = max(version, before.version)
    caught_up_ms = led.began_ms if before is None else before.caught_up_ms
    if version >= last.version:
        caught_up_ms = now_ms
    elif before is not None and version >= before.leader_version:
        caught_up_ms = max(caught_up_ms, before.reported_ms)
    return _Follower(report.broker_epoch, version, caught_up_ms, last.version, now_ms)


def _wake(led: _Led) -> None:
    for event in led.waiting:
        event.set()


def find_unreplicated(in_sync: Sequence[int], count: int) -> str | None:
    """Why a batch with acks=all may not be written; None if it may."""
    if len(in_sync) >= count:
        return None
    return (
        f"expected {count} replicas in sync (min.insync.replicas), found {len(in_sync)}: {', '.join(map(str, in_sync))}"
    )


Lagging = Mapping[TopicPartition, Sequence[int]]  # broker ids

_LOOK_MS = 2_000
# The number of partitions and their replicas in one message: a heartbeat with more items than a request may have would
# be refused. More replicas lag only if a broker is overloaded, and then this many are enough to show it.
_ITEMS_MAX = 15_000


class LaggingReplicas:
    """The replicas of all partitions of the cluster that are not fenced and yet not in sync, according to their
    leaders.

    Each leader reports to the controller with its heartbeats, and the controller to all brokers with the answers; so
    any broker can say of any partition which replicas are in sync. A broker that is no leader, or is fenced, reports
    nothing. The reports are some seconds old.
    """

    def __init__(self, broker_id: int, in_sync: InSyncReplicas, clock: Clock) -> None:
        self._broker_id = broker_id
        self._in_sync = in_sync
        self._clock = clock
        self._looked_ms: float | None = None
        self._own: Lagging = {}  # of partitions that this broker leads
        self._by_leader: dict[int, Lagging] = {}  # reports that other brokers sent to this one as the controller
        self._all: Lagging = {}  # the controller's last report

    def own(self) -> Lagging:
        """The lagging replicas of partitions that this broker leads, as they were a moment ago."""
        now_ms = self._clock.monotonic_ms()
        if self._looked_ms is None or now_ms - self._looked_ms >= _LOOK_MS:
            self._own, self._looked_ms = _first_of(self._in_sync.lagging()), now_ms
        return self._own

    # ------------------------------------------------------------------ between the controller and the others

    def begin(self) -> None:
        """This broker is the controller from now on."""
        self._by_leader.clear()

    def take(self, leader_id: int, lagging: Lagging) -> None:
        """Take the report of a broker's heartbeat, as the controller."""
        self._by_leader[leader_id] = lagging

    def merge(self, cluster: ClusterState) -> Lagging:
        """Merge the reports for the whole cluster, as the controller; each report counts for the partitions that its
        sender leads."""
        found: dict[TopicPartition, Sequence[int]] = {}
        for leader_id, lagging in [(self._broker_id, self.own()), *self._by_leader.items()]:
            for name, broker_ids in lagging.items():
                leadership = cluster.leadership(name)
                if leadership is not None and leadership.leader_id == leader_id:
                    found[name] = broker_ids
        self._all = _first_of(found)
        return self._all

    def follow(self, lagging: Lagging) -> None:
        """Take the controller's report."""
        self._all = lagging

    def of(self, name: TopicPartition) -> Sequence[int]:
        return self._all.get(name) or self._own.get(name, ())


def _first_of(lagging: Lagging) -> Lagging:
    """Return as many entries as one message may have."""
    first: dict[TopicPartition, Sequence[int]] = {}
    items = 0
    for name, broker_ids in lagging.items():
        items += 1 + len(broker_ids)
        if items > _ITEMS_MAX:
            break
        first[name] = broker_ids
    return first
