"""The brokers of the cluster for administrators: which there are, which partitions they lead and follow, and changes of
that."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from bus.cluster_metadata.cluster_records import BUS_VERSION, LEVEL_MAX, LEVEL_MIN
from bus.cluster_metadata.cluster_state import Broker
from bus.cluster_metadata.replica_states import replica_state
from bus.errors import ErrorCode, Refused, show_names
from bus.model import TopicPartition
from bus.runtime.cluster import Cluster
from bus.runtime.loop_shares import LoopShares

# Of one call that names no partition: each is a record, and the others are asked for again.
_ELECTIONS_MAX = 1_000


@dataclass(frozen=True, slots=True)
class DescribedBroker:
    broker: Broker
    leader_count: int
    replica_count: int


@dataclass(frozen=True, slots=True)
class FeatureLevels:
    """level_min <= level <= level_max: what this broker can work at, and what the cluster works at."""

    name: str
    level: int
    level_min: int
    level_max: int


@dataclass(frozen=True, slots=True)
class ClusterOverview:
    """`controller_id` is this broker's at level 0, where a root has one broker."""

    cluster_id: str
    root_url: str
    controller_id: int
    controller_epoch: int
    feature_level: int
    brokers: Sequence[DescribedBroker]
    under_replicated_count: int  # of partitions
    offline_count: int


Reassignments = Sequence[tuple[TopicPartition, Sequence[int] | None]]  # None: cancel


class ClusterAdminApi:
    def __init__(self, cluster: Cluster, shares: LoopShares) -> None:
        self._cluster = cluster
        self._shares = shares

    def features(self) -> Sequence[FeatureLevels]:
        """Return what the brokers of the cluster have agreed on, as far as this one has followed it."""
        return (FeatureLevels(BUS_VERSION, self._cluster.state.level, LEVEL_MIN, LEVEL_MAX),)

    async def describe(self, *, is_fenced_included: bool) -> ClusterOverview:
        state = self._cluster.state
        replica_counts: Counter[int] = Counter()
        under_replicated_count = offline_count = 0
        unfenced = frozenset(state.unfenced_brokers)
        share = self._shares.begin()
        for topic in state.topics.values():
            for number in range(len(topic.partitions)):
                if share.is_used_up:
                    await share.wait()
                lagging = self._cluster.lagging.of(TopicPartition(topic.name, number))
                found = replica_state(topic, number, unfenced, lagging)
                replica_counts.update(found.replicas)
                under_replicated_count += found.is_under_replicated
                offline_count += found.is_offline
        shown = (one for one in state.brokers.values() if is_fenced_included or not one.is_fenced)
        controller = state.controller
        return ClusterOverview(
            self._cluster.storage.cluster_id,
            self._cluster.storage.root_url,
            self._cluster.endpoint.broker_id if controller is None else controller.broker_id,
            self._cluster.metadata.state.leader_epoch,
            state.level,
            [
                DescribedBroker(one, state.leader_counts.get(one.broker_id, 0), replica_counts[one.broker_id])
                for one in sorted(shown, key=lambda one: one.broker_id)
            ],
            under_replicated_count,
            offline_count,
        )

    async def elect_leaders(self, partitions: Sequence[TopicPartition]) -> Mapping[TopicPartition, int | Refused]:
        """None named: all that are led by another broker than the preferred one, a thousand at most. The answer has the
        leaders of those that were named, or else of those that have changed. A partition that is named twice counts
        once."""
        named = dict.fromkeys(partitions)
        answers = await self._cluster.controller.elect_leaders(
            tuple(named) or None, changes_max=None if named else _ELECTIONS_MAX
        )
        return dict.fromkeys(named, answers) if isinstance(answers, Refused) else answers

    async def reassign_partitions(self, reassignments: Reassignments) -> list[Refused | None]:
        """An answer for each, in order. A partition that is named again is refused."""
        wanted: dict[TopicPartition, Sequence[int] | None] = {}
        again: dict[int, Refused] = {}
        for place, (partition, replicas) in enumerate(reassignments):
            if partition in wanted:
                message = f"expected each partition once, found {show_names([str(partition)])} again"
                again[place] = Refused(ErrorCode.INVALID_REQUEST, message)
            else:
                wanted[partition] = replicas
        answers = await self._cluster.controller.reassign_partitions(wanted) if wanted else {}
        found: list[Refused | None] = []
        for place, (partition, _) in enumerate(reassignments):
            answer = again.get(place) or (answers if isinstance(answers, Refused) else answers[partition])
            found.append(answer if isinstance(answer, Refused) else None)
        return found

    async def unregister_broker(self, broker_id: int) -> Refused | None:
        return await self._cluster.controller.unregister_broker(broker_id)

    async def update_feature(self, feature: str, level: int, *, validate_only: bool) -> Refused | None:
        if feature != BUS_VERSION:
            message = f"expected the feature {BUS_VERSION}, found {show_names([feature])!r}"
            return Refused(ErrorCode.INVALID_UPDATE_VERSION, message)
        answer = await self._cluster.controller.upgrade_features(level, validate_only=validate_only)
        return answer if isinstance(answer, Refused) else None
