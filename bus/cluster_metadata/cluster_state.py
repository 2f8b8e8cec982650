"""The state of the cluster as values: topics, partitions and leaders, configs, brokers, producers, views.

Immutable, so a reader may keep one as long as it likes. A state comes about by records (cluster_records.py).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from bus.cluster_metadata.producer_ids import ProducerIds
from bus.descriptions import QuotaEntity
from bus.json_views import JsonView
from bus.model import BrokerEndpoint, TopicPartition
from bus.security.acl_index import NO_ACLS, AclIndex
from bus.security.quotas import Quotas

BUS_VERSION = "bus.version"
# Levels of BUS_VERSION: which record types the log may have. 0: those up to ViewDeleted. 1: all but
# BrokerListeners and those of level 3.
LEVEL_MIN, LEVEL_MAX = 0, 6
LEVEL_OF_CLUSTERS = 1  # from which on a root may have several brokers
LEVEL_OF_LISTENERS = 2  # from which on a broker may have other listeners than PLAINTEXT
LEVEL_OF_SECURITY = 3  # from which on there are quotas and ACLs
LEVEL_OF_ONE_PHASE = 4  # from which on a version alone may decide a transaction; the records are those of 3
LEVEL_OF_RISING_NUMBERS = 5  # from which on a transactional id begins at its producer id; the records are those of 3
LEVEL_OF_LEASES = 5  # from which on every broker has a lease in a file of its own; the records are those of 3
LEVEL_OF_MANAGED_TABLES = 6  # from which on tables keep other Delta engines from writing; the records are those of 3


@dataclass(frozen=True, slots=True)
class Leadership:
    leader_id: int
    leader_epoch: int  # >= 0; 0 for a new partition


@dataclass(frozen=True, slots=True)
class Topic:
    name: str
    topic_id: str
    partitions: tuple[Leadership, ...]  # never empty; the place is the partition's number
    configs: Mapping[str, str] = field(default_factory=dict)  # overrides in canonical text
    # The replicas as assigned, () for a partition that has no assignment; empty if no partition has any, else one each.
    assignments: tuple[tuple[int, ...], ...] = ()

    def replicas(self, partition: int) -> tuple[int, ...]:
        """Never empty; the first one is the preferred leader. A partition without an assignment has its leader only."""
        assigned = self.assignments[partition] if self.assignments else ()
        return assigned or (self.partitions[partition].leader_id,)


@dataclass(frozen=True, slots=True)
class Broker:
    """A registered broker. Without more than an endpoint it was registered at level 0, where a root has one broker."""

    endpoint: BrokerEndpoint
    rack: str | None = None
    incarnation: str = ""
    broker_epoch: int = 0  # > 0 of a broker that registered at level 1
    is_fenced: bool = False
    level_min: int = 0  # levels of bus.version
    level_max: int = 0

    @property
    def broker_id(self) -> int:
        return self.endpoint.broker_id

    @property
    def life(self) -> tuple[str, int]:
        return self.incarnation, self.broker_epoch


@dataclass(frozen=True, slots=True)
class ElectedController:
    broker_id: int
    incarnation: str


@dataclass(frozen=True, slots=True)
class ClusterState:
    """Every look-up is one step. `topic_names`, `collisions` and the counts follow from `topics`.

    Invariants: every leader and every replica is in `brokers`, no partition has a replica twice; no id is both in
    `topic_names` and in `deleted_topics`.
    """

    topics: Mapping[str, Topic] = field(default_factory=dict)  # keyed by name
    topic_names: Mapping[str, str] = field(default_factory=dict)  # topic id -> name
    collisions: Mapping[str, str] = field(default_factory=dict)  # collision_key(name) -> name
    brokers: Mapping[int, Broker] = field(default_factory=dict)  # keyed by broker id
    # keyed by the id of a broker that leads any partition
    leader_counts: Mapping[int, int] = field(default_factory=dict)
    # keyed by the id of the first replica of any partition
    preferred_counts: Mapping[int, int] = field(default_factory=dict)
    broker_epoch_max: int = 0  # that was ever given
    controller: ElectedController | None = None  # None: none was elected since the cluster has level 1
    level: int = 0  # the level of bus.version
    deleted_topics: Mapping[str, str] = field(default_factory=dict)  # topic id -> name, while files may be there
    producers: ProducerIds = field(default_factory=ProducerIds)
    views: Mapping[str, JsonView] = field(default_factory=dict)  # keyed by the casefolded name; the topic may be gone
    quotas: Mapping[QuotaEntity, Quotas] = field(default_factory=dict)  # entities that have any
    acls: AclIndex = NO_ACLS

    def leadership(self, partition: TopicPartition) -> Leadership | None:
        """None if there is no such topic or partition."""
        topic = self.topics.get(partition.topic)
        if topic is None or not 0 <= partition.partition < len(topic.partitions):
            return None
        return topic.partitions[partition.partition]

    @property
    def unfenced_brokers(self) -> list[int]:
        """Ascending."""
        return sorted(broker_id for broker_id, broker in self.brokers.items() if not broker.is_fenced)

    def is_alone(self, broker_id: int) -> bool:
        """True if no other broker is registered, fenced or not: then no other can be at work."""
        return self.brokers.keys() <= {broker_id}


EMPTY_CLUSTER = ClusterState()


def find_nearby_brokers(state: ClusterState, *, leader_id: int, rack: str) -> frozenset[int]:
    """Return the unfenced brokers of that rack, to which the leader may send consumers for their reads (KIP-392). Empty
    if the leader is one of them, so that nobody is sent away from a leader in its own rack, or if no rack is named."""
    if not rack:
        return frozenset()
    nearby = frozenset(one.broker_id for one in state.brokers.values() if one.rack == rack and not one.is_fenced)
    return frozenset() if leader_id in nearby else nearby


def choose_read_replica(
    replicas: Sequence[int], nearby: Collection[int], applied_versions: Mapping[int, int]
) -> int | None:
    """The one of `replicas` that is nearby and has applied most of the log, of several the first; None: the leader.
    `replicas`: those in sync, in the order of the assignment. `applied_versions`: as far as the leader knows."""
    found = [broker_id for broker_id in replicas if broker_id in nearby]
    return max(found, key=lambda broker_id: applied_versions.get(broker_id, -1), default=None)


@dataclass(frozen=True, slots=True)
class ReplicaState:
    """The replicas of a partition and those in sync, in the order of the assignment, the preferred leader first. Every
    view of a partition's replicas uses this value."""

    replicas: tuple[int, ...]
    in_sync: tuple[int, ...]
    is_offline: bool  # its leader is fenced

    @property
    def is_under_replicated(self) -> bool:
        return len(self.in_sync) < len(self.replicas)


def replica_state(
    topic: Topic, partition: int, unfenced_brokers: Collection[int], lagging: Collection[int] = ()
) -> ReplicaState:
    """`lagging`: replicas that do not keep up, as the leader says. The leader need not be a replica: where all replicas
    are fenced, another broker leads."""
    replicas = topic.replicas(partition)
    return ReplicaState(
        replicas,
        tuple(one for one in replicas if one in unfenced_brokers and one not in lagging),
        is_offline=topic.partitions[partition].leader_id not in unfenced_brokers,
    )


@dataclass(frozen=True, slots=True)
class Lead:
    """The topic id and leader epoch that a broker needs to lead a partition."""

    topic_id: str
    leader_epoch: int


class Hosted(Protocol):
    """A partition that is open, or is being opened."""

    @property
    def lead(self) -> Lead: ...


@dataclass(frozen=True, slots=True)
class HostingPlan:
    """The partitions that a broker has to open and close. Carried out in the order of the fields; a partition may be in
    `closes` or `retires` and in `opens`."""

    retires: Sequence[TopicPartition]  # their topic was deleted
    closes: Sequence[TopicPartition]  # another broker leads them, or this one at another leader epoch
    opens: Mapping[TopicPartition, Lead]  # ordered by topic creation and partition number
    configures: Sequence[Topic]  # those with partitions that stay open and may have other configs now


def plan_hosting(
    old: ClusterState, new: ClusterState, hosted: Mapping[str, Mapping[int, Hosted]], *, broker_id: int
) -> HostingPlan:
    """`hosted`: by topic and partition number. `old`: the state whose plan was carried out as a whole, EMPTY_CLUSTER if
    the last one was interrupted. Looks at the topics that are another object in `new` than in `old`, and no others."""
    retires, closes, configures = [], [], []
    opens: dict[TopicPartition, Lead] = {}
    if old.topics is new.topics:
        return HostingPlan((), (), {}, ())
    for name, partitions in hosted.items():
        topic, before = new.topics.get(name), old.topics.get(name)
        if topic is None:
            retires += [TopicPartition(name, number) for number in partitions]
        elif topic is not before:
            leads = _leads(topic, broker_id)
            for number, found in partitions.items():
                if found.lead.topic_id != topic.topic_id:
                    retires.append(TopicPartition(name, number))
                elif found.lead != leads.get(number):
                    closes.append(TopicPartition(name, number))
            if before is None or topic.configs != before.configs:
                configures.append(topic)
    for name, topic in new.topics.items():
        if topic is not old.topics.get(name):
            there = hosted.get(name, {})
            for number, lead in _leads(topic, broker_id).items():
                if number not in there or there[number].lead != lead:
                    opens[TopicPartition(name, number)] = lead
    return HostingPlan(retires, closes, opens, configures)


def _leads(topic: Topic, broker_id: int) -> dict[int, Lead]:
    return {
        number: Lead(topic.topic_id, leadership.leader_epoch)
        for number, leadership in enumerate(topic.partitions)
        if leadership.leader_id == broker_id
    }


class Followed(Protocol):
    """A partition that is followed."""

    @property
    def topic_id(self) -> str: ...


@dataclass(frozen=True, slots=True)
class FollowingPlan:
    drops: Sequence[TopicPartition]
    follows: Mapping[TopicPartition, str]  # topic ids; in the order of topic creation and partition number


def plan_following(
    old: ClusterState, new: ClusterState, followed: Mapping[str, Mapping[int, Followed]], *, broker_id: int
) -> FollowingPlan:
    """A broker follows the partitions of which it is a replica and not the leader. Parameters as of `plan_hosting`."""
    drops: list[TopicPartition] = []
    follows: dict[TopicPartition, str] = {}
    if old.topics is new.topics:
        return FollowingPlan((), {})
    for name, partitions in followed.items():
        topic = new.topics.get(name)
        if topic is None or topic is not old.topics.get(name):
            wanted = set() if topic is None else set(_follows(topic, broker_id))
            for number, found in partitions.items():
                if number not in wanted or topic is None or found.topic_id != topic.topic_id:
                    drops.append(TopicPartition(name, number))
    for name, topic in new.topics.items():
        if topic is not old.topics.get(name):
            there = followed.get(name, {})
            for number in _follows(topic, broker_id):
                if number not in there or there[number].topic_id != topic.topic_id:
                    follows[TopicPartition(name, number)] = topic.topic_id
    return FollowingPlan(drops, follows)


def _follows(topic: Topic, broker_id: int) -> list[int]:
    return [
        number
        for number, leadership in enumerate(topic.partitions)
        if leadership.leader_id != broker_id and broker_id in topic.replicas(number)
    ]
