"""A cluster's state while records are applied to it.

Costs what the records cost, for a state of any size: a map is copied when it is first changed, a topic's leaders
become a list when one of them changes, and a start of a broker, which raises the epoch of every partition that it
leads, is one number until the state is asked for. A record that contradicts the state raises `AssertionError` and
changes nothing. One use: `apply` any number of times, then `finish`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any, Generic, TypeVar

from bus.authorization.index import AclIndexDraft
from bus.client_quotas.quotas import decode_entity, decode_quotas
from bus.cluster_metadata.cluster_records import (
    BUS_VERSION,
    LEVEL_MAX,
    AclAdded,
    AclRemoved,
    BrokerFenced,
    BrokerListeners,
    BrokerRegistered,
    BrokerStarted,
    BrokerUnfenced,
    BrokerUnregistered,
    ClientQuotaChanged,
    ClusterRecord,
    ControllerElected,
    FeatureLevel,
    LeaderChanged,
    LeaderEpochsRaised,
    LeadersChanged,
    PartitionsAdded,
    ProducerExpired,
    ProducerIdsAllocated,
    ProducerIdsRetired,
    ProducerNamed,
    ProducerUsed,
    ReplicasAssigned,
    SnapshotBegan,
    SnapshotEnded,
    TopicConfigChanged,
    TopicCreated,
    TopicDeleted,
    TopicFilesDeleted,
    ViewCreated,
    ViewDeleted,
    decode_record,
    level_of,
    parse_acl,
    parse_listeners,
    parse_replicas,
)
from bus.cluster_metadata.cluster_state import (
    EMPTY_CLUSTER,
    Broker,
    ClusterState,
    ElectedController,
    Leadership,
    Topic,
)
from bus.cluster_metadata.configs import collision_key
from bus.cluster_metadata.producer_ids import ProducerIdsDraft
from bus.errors import show_range
from bus.json_views import JsonView
from bus.model import BrokerEndpoint

KeyT = TypeVar("KeyT")
ValueT = TypeVar("ValueT")

_Led = tuple[int, int]  # leader id, and its epoch without what was raised for that leader


class _MapDraft(Generic[KeyT, ValueT]):
    """A mapping that is copied when it is first changed."""

    def __init__(self, base: Mapping[KeyT, ValueT]) -> None:
        self.base = base
        self.changed: set[KeyT] = set()
        self._own: dict[KeyT, ValueT] | None = None

    @property
    def now(self) -> Mapping[KeyT, ValueT]:
        return self.base if self._own is None else self._own

    def put(self, key: KeyT, value: ValueT) -> None:
        self.changed.add(key)
        self._changed()[key] = value

    def remove(self, key: KeyT) -> None:
        self.changed.add(key)
        del self._changed()[key]

    def _changed(self) -> dict[KeyT, ValueT]:
        if self._own is None:
            self._own = dict(self.base)
        return self._own


class ClusterDraft:
    def __init__(self, state: ClusterState) -> None:
        self._begin(state)
        self._snapshot_left: int | None = None  # records that a snapshot still has to have

    def _begin(self, state: ClusterState) -> None:
        self._topics = _MapDraft(state.topics)  # whose leaders are as in `_led`, if they are there
        self._topic_names = _MapDraft(state.topic_names)
        self._collisions = _MapDraft(state.collisions)
        self._brokers = _MapDraft(state.brokers)
        self._deleted_topics = _MapDraft(state.deleted_topics)
        self._views = _MapDraft(state.views)
        self._quotas = _MapDraft(state.quotas)
        self._producers = ProducerIdsDraft(state.producers)
        self._acls = AclIndexDraft(state.acls)
        self._led: dict[str, list[_Led]] = {}  # by name of a topic whose leaders have changed, or that is new
        self._raised: Counter[int] = Counter()  # by broker: added to the epoch of each partition that it leads
        self._assigned: dict[str, list[tuple[int, ...]]] = {}  # by name of a topic whose replicas have changed
        self._leader_counts = Counter(state.leader_counts)
        self._preferred_counts = Counter(state.preferred_counts)  # of the topics that `_topics` began with
        self._broker_epoch_max = state.broker_epoch_max
        self._controller = state.controller
        self._level = state.level

    def finish(self) -> ClusterState:
        assert self._snapshot_left is None, "expected the end of a snapshot, found the end of the log"
        touched = list(self._topics.now if any(self._raised.values()) else {**self._led, **self._assigned})
        known: dict[Leadership, Leadership] = {}  # one object for partitions that are led alike
        for name in touched:
            topic = self._topics.now[name]
            leaders = tuple(known.setdefault(led, led) for led in self._leaderships(name))
            assignments = tuple(self._assigned.get(name, topic.assignments))
            if assignments:
                assignments += ((),) * (len(leaders) - len(assignments))
            self._topics.put(name, replace(topic, partitions=leaders, assignments=assignments))
        return ClusterState(
            topics=self._topics.now,
            topic_names=self._topic_names.now,
            collisions=self._collisions.now,
            brokers=self._brokers.now,
            leader_counts={broker_id: count for broker_id, count in self._leader_counts.items() if count},
            preferred_counts=self._count_preferred(),
            broker_epoch_max=self._broker_epoch_max,
            controller=self._controller,
            level=self._level,
            deleted_topics=self._deleted_topics.now,
            producers=self._producers.finish(),
            views=self._views.now,
            quotas=self._quotas.now,
            acls=self._acls.finish(),
        )

    def _count_preferred(self) -> Mapping[int, int]:
        counts = self._preferred_counts.copy()
        for name in self._topics.changed:
            for topics, sign in ((self._topics.base, -1), (self._topics.now, 1)):
                for number in range(len(topics[name].partitions) if name in topics else 0):
                    counts[topics[name].replicas(number)[0]] += sign
        return {broker_id: count for broker_id, count in counts.items() if count}

    # ------------------------------------------------------------------ as it stands

    @property
    def topics(self) -> Mapping[str, Topic]:
        """Without their partitions, which `leaders` tells."""
        return self._topics.now

    @property
    def collisions(self) -> Mapping[str, str]:
        return self._collisions.now

    @property
    def brokers(self) -> Mapping[int, Broker]:
        return self._brokers.now

    @property
    def broker_epoch_max(self) -> int:
        return self._broker_epoch_max

    @property
    def level(self) -> int:
        return self._level

    @property
    def producers(self) -> ProducerIdsDraft:
        return self._producers

    def leaders(self, name: str) -> list[Leadership]:
        return list(self._leaderships(name))

    def assigned_replicas(self, name: str, partition: int) -> tuple[int, ...]:
        """() for a partition that has no assignment."""
        assigned = self._assigned.get(name, self._topics.now[name].assignments)
        return assigned[partition] if partition < len(assigned) else ()

    @property
    def controller(self) -> ElectedController | None:
        return self._controller

    @property
    def is_in_snapshot(self) -> bool:
        return self._snapshot_left is not None

    def end_snapshot(self) -> None:
        """Whether it is complete or not."""
        self._snapshot_left = None

    # ------------------------------------------------------------------ records

    def apply(self, record: ClusterRecord) -> None:
        self._apply(record)
        if self._snapshot_left is not None and not isinstance(record, SnapshotBegan):
            self._snapshot_left -= 1

    def _apply(self, record: ClusterRecord) -> None:
        level = level_of(record)
        assert self._level >= level, (
            f"expected {BUS_VERSION} {level} before a record {type(record).__name__}, found {self._level}"
        )
        match record:
            case BrokerRegistered(broker_id, host, port):
                self._brokers.put(broker_id, Broker(BrokerEndpoint(broker_id, host, port)))
            case BrokerUnregistered(broker_id):
                self._unregister(broker_id)
            case BrokerListeners(broker_id, broker_epoch, listeners):
                self._set_listeners(broker_id, broker_epoch, listeners)
            case BrokerStarted() | BrokerFenced() | BrokerUnfenced() | ControllerElected() | ReplicasAssigned():
                self._apply_of_clusters(record)
            case FeatureLevel(feature, level):
                assert feature == BUS_VERSION, f"expected the feature {BUS_VERSION}, found {feature!r}"
                assert self._level < level <= LEVEL_MAX, (
                    f"expected a level of {feature} {show_range(self._level + 1, LEVEL_MAX)}, found {level}: "
                    "written by a newer version?"
                )
                self._level = level
            case TopicCreated():
                self._create_topic(record)
            case PartitionsAdded():
                self._add_partitions(record)
            case LeaderChanged(topic, topic_id, partition, leader_id, leader_epoch):
                self._change_leaders(LeadersChanged(topic, topic_id, partition, 1, leader_id, leader_epoch))
            case LeadersChanged():
                self._change_leaders(record)
            case LeaderEpochsRaised(broker_id):
                self._check_leader(broker_id)
                self._raised[broker_id] += 1
            case TopicConfigChanged(_, _, name, value):
                topic_now = self._live_topic(record)
                configs = {key: kept for key, kept in topic_now.configs.items() if key != name}
                if value is not None:
                    configs[name] = value
                self._topics.put(record.topic, replace(topic_now, configs=configs))
            case TopicDeleted(name, topic_id):
                self._live_topic(record)
                self._leader_counts.subtract(Counter(led.leader_id for led in self._leaderships(name)))
                self._topics.remove(name)
                self._led.pop(name, None)
                self._assigned.pop(name, None)
                self._topic_names.remove(topic_id)
                self._collisions.remove(collision_key(name))
                self._deleted_topics.put(topic_id, name)
            case TopicFilesDeleted(topic_id):
                assert topic_id in self._deleted_topics.now, f"expected topic id {topic_id} among the deleted ones"
                self._deleted_topics.remove(topic_id)
            case ProducerIdsAllocated() | ProducerNamed() | ProducerUsed() | ProducerExpired() | ProducerIdsRetired():
                self._producers.apply(record)
            case ViewCreated(name, topic, schema, columns):
                view = JsonView(name, topic, schema, tuple(columns.split(",")) if columns else ())
                self._views.put(name.casefold(), view)
            case ViewDeleted(name):
                assert name.casefold() in self._views.now, f"expected a view {name}, found none"
                self._views.remove(name.casefold())
            case ClientQuotaChanged(entity, quotas):
                self._set_quotas(entity, quotas)
            case AclAdded() | AclRemoved():
                self._change_acls(record)
            case SnapshotBegan(record_count):
                self._begin(EMPTY_CLUSTER)
                self._snapshot_left = record_count
            case SnapshotEnded():
                left = self._snapshot_left
                assert not left, f"expected a snapshot of {left} more records, found its end"
                self._snapshot_left = None
            case _:
                raise AssertionError(f"expected a record of the cluster, found {record!r}")

    def _apply_of_clusters(
        self, record: BrokerStarted | BrokerFenced | BrokerUnfenced | ControllerElected | ReplicasAssigned
    ) -> None:
        match record:
            case BrokerStarted():
                self._start_broker(record)
            case BrokerFenced(broker_id, broker_epoch):
                self._fence(broker_id, broker_epoch, is_fenced=True)
            case BrokerUnfenced(broker_id, broker_epoch):
                self._fence(broker_id, broker_epoch, is_fenced=False)
            case ControllerElected(broker_id, incarnation):
                self._controller = ElectedController(broker_id, incarnation)
            case ReplicasAssigned():
                self._assign_replicas(record)

    # ------------------------------------------------------------------ brokers and leaders

    def _check_leader(self, broker_id: int) -> None:
        assert broker_id in self._brokers.now, f"expected a registered leader, found broker {broker_id}"

    def _unregister(self, broker_id: int) -> None:
        assert broker_id in self._brokers.now, f"expected broker {broker_id} to be registered"
        led = next(self._led_by(broker_id), None)
        assert led is None, f"expected broker {broker_id} to lead nothing, found that it leads {led}"
        followed = next(self._followed_by(broker_id), None)
        assert followed is None, f"expected broker {broker_id} to be no replica, found that it is one of {followed}"
        self._brokers.remove(broker_id)

    def _start_broker(self, record: BrokerStarted) -> None:
        before, epoch = self._brokers.now.get(record.broker_id), record.broker_epoch
        known = before if before is not None and before.life == (record.incarnation, epoch) else None
        assert known is not None or epoch > self._broker_epoch_max, (
            f"expected a broker epoch above {self._broker_epoch_max} for broker {record.broker_id}, found {epoch}"
        )
        broker = Broker(
            BrokerEndpoint(record.broker_id, record.host, record.port),
            record.rack,
            record.incarnation,
            epoch,
            is_fenced=known is None or known.is_fenced,
            level_min=record.level_min,
            level_max=record.level_max,
        )
        self._brokers.put(record.broker_id, broker)
        self._broker_epoch_max = max(self._broker_epoch_max, epoch)

    def _set_listeners(self, broker_id: int, broker_epoch: int, text: str) -> None:
        broker = self._known_life(broker_id, broker_epoch)
        try:
            listeners = parse_listeners(text)
        except ValueError as error:
            raise AssertionError(f"listeners of broker {broker_id}: {error}") from None
        self._brokers.put(broker_id, replace(broker, endpoint=replace(broker.endpoint, listeners=listeners)))

    def _set_quotas(self, entity_text: str, quotas_text: str | None) -> None:
        try:
            entity = decode_entity(entity_text)
            quotas = None if quotas_text is None else decode_quotas(quotas_text)
        except ValueError as error:
            raise AssertionError(f"quotas of {entity_text}: {error}") from None
        if quotas is not None:
            self._quotas.put(entity, quotas)
        else:
            assert entity in self._quotas.now, f"expected quotas of {entity}, found none"
            self._quotas.remove(entity)

    def _change_acls(self, record: AclAdded | AclRemoved) -> None:
        try:
            acl = parse_acl(record.acl)
        except ValueError as error:
            raise AssertionError(str(error)) from None
        if isinstance(record, AclAdded):
            self._acls.add(acl)
        else:
            self._acls.remove(acl)

    def _known_life(self, broker_id: int, broker_epoch: int) -> Broker:
        broker = self._brokers.now.get(broker_id)
        assert broker is not None, f"expected broker {broker_id} to be registered"
        assert broker.broker_epoch == broker_epoch, (
            f"expected epoch {broker.broker_epoch} of broker {broker_id}, found {broker_epoch}"
        )
        return broker

    def _fence(self, broker_id: int, broker_epoch: int, *, is_fenced: bool) -> None:
        self._brokers.put(broker_id, replace(self._known_life(broker_id, broker_epoch), is_fenced=is_fenced))

    def _assign_replicas(self, record: ReplicasAssigned) -> None:
        name = self._live_topic(record).name
        first, count = record.partition, record.partitions
        self._check_partitions(name, first, count)
        try:
            lists = parse_replicas(record.replicas)
        except ValueError as error:
            raise AssertionError(f"replicas of {name}: {error}") from None
        for replicas in set(lists):
            unknown = [broker_id for broker_id in replicas if broker_id not in self._brokers.now]
            assert not unknown, f"expected registered replicas of {name}, found broker {unknown[0]}"
            assert len(set(replicas)) == len(replicas), f"expected each replica of {name} once, found {replicas}"
        assert len(lists) in (1, count), f"expected replicas of {count} partitions of {name}, found {len(lists)}"
        assigned = self._assigned.get(name)
        if assigned is None:
            assigned = self._assigned[name] = list(self._topics.now[name].assignments)
        assigned += [()] * (first + count - len(assigned))
        assigned[first : first + count] = lists if len(lists) == count else lists * count

    def _followed_by(self, broker_id: int) -> Iterator[str]:
        for name, topic in self._topics.now.items():
            for number, replicas in enumerate(self._assigned.get(name, topic.assignments)):
                if broker_id in replicas:
                    yield f"{name}-{number}"

    def _led_by(self, broker_id: int) -> Iterator[str]:
        for name in self._topics.now:
            for number, leadership in enumerate(self._leaderships(name)):
                if leadership.leader_id == broker_id:
                    yield f"{name}-{number}"

    def _leaderships(self, name: str) -> Iterator[Leadership]:
        raised = self._raised
        led = self._led.get(name)
        if led is not None:
            return (Leadership(leader_id, epoch + raised[leader_id]) for leader_id, epoch in led)
        before = self._topics.now[name].partitions
        return (Leadership(one.leader_id, one.leader_epoch + raised[one.leader_id]) for one in before)

    def _led_list(self, name: str) -> list[_Led]:
        """To be changed. What was raised since is added when it is read, to the entries of before as to new ones."""
        led = self._led.get(name)
        if led is None:
            before = self._topics.now[name].partitions
            led = self._led[name] = [(one.leader_id, one.leader_epoch) for one in before]
        return led

    def _change_leaders(self, record: LeadersChanged) -> None:
        name = self._live_topic(record).name
        led = self._led_list(name)
        first, leader_id, epoch = record.partition, record.leader_id, record.leader_epoch
        past_last = first + record.partitions
        self._check_partitions(name, first, record.partitions)
        self._check_leader(leader_id)
        for number in range(first, past_last):
            before = led[number][1] + self._raised[led[number][0]]
            assert epoch > before, f"leader epoch of {name}-{number} went from {before} to {epoch}"
            self._leader_counts[led[number][0]] -= 1
        self._leader_counts[leader_id] += record.partitions
        led[first:past_last] = [(leader_id, epoch - self._raised[leader_id])] * record.partitions

    def _check_partitions(self, name: str, first: int, count: int) -> None:
        led = self._led.get(name)
        known = len(self._topics.now[name].partitions if led is None else led)
        assert count > 0, f"expected at least one partition of {name}, found {count}"
        assert first + count <= known, f"expected a partition of {name} below {known}, found {first + count - 1}"

    def _new_partitions(self, count: int, leader_id: int) -> list[_Led]:
        self._check_leader(leader_id)
        self._leader_counts[leader_id] += count
        return [(leader_id, -self._raised[leader_id])] * count

    # ------------------------------------------------------------------ topics

    def _create_topic(self, record: TopicCreated) -> None:
        name, topic_id = record.topic, record.topic_id
        holder = self._collisions.now.get(collision_key(name))
        assert holder is None, f"expected no topic whose name collides with {name}, found {holder}"
        is_new_id = topic_id not in self._topic_names.now and topic_id not in self._deleted_topics.now
        assert is_new_id, f"expected a new topic id for {name}, found {topic_id}, which another topic has"
        assert record.partitions > 0, f"expected at least one partition of {name}, found {record.partitions}"
        self._led[name] = self._new_partitions(record.partitions, record.leader_id)
        self._topics.put(name, Topic(name, topic_id, ()))
        self._topic_names.put(topic_id, name)
        self._collisions.put(collision_key(name), name)

    def _add_partitions(self, record: PartitionsAdded) -> None:
        name = self._live_topic(record).name
        led = self._led_list(name)
        count = len(led)
        assert record.partitions > count, (
            f"expected more than the {count} partitions of {name}, found {record.partitions}"
        )
        led += self._new_partitions(record.partitions - count, record.leader_id)

    def _live_topic(
        self,
        record: PartitionsAdded | LeadersChanged | LeaderChanged | ReplicasAssigned | TopicConfigChanged | TopicDeleted,
    ) -> Topic:
        topic = self._topics.now.get(record.topic)
        assert topic is not None, f"expected a topic {record.topic}, found none"
        assert topic.topic_id == record.topic_id, (
            f"expected topic id {topic.topic_id} for {topic.name}, found {record.topic_id}"
        )
        return topic


# How the cluster's knowledge of itself comes about: `__cluster_metadata` replayed.
#
# `apply_all` is the only way in which a `ClusterState` changes, live and while loading. Guards these promises: a
# topic's partitions are never fewer than before, a leader epoch never goes back, a topic id never stands for two
# topics, no two topics have names that collide; those of producers stand in producer_ids.py. Decides nothing
# (cluster_decisions.py and producer_decisions.py do), does no I/O.


def replay_cluster(
    rows: Iterable[Mapping[str, Any]], *, first_offset: int = 0, state: ClusterState = EMPTY_CLUSTER
) -> ClusterState:
    """The state after the rows of the metadata log, in offset order from `first_offset` on; `state` is that before
    them.

    Raises `ValueError` that names the offset for a row that cannot be read or that contradicts those before it.
    """
    draft = ClusterDraft(state)
    for offset, row in enumerate(rows, first_offset):
        try:
            draft.apply(decode_record(row))
        except (ValueError, AssertionError) as error:
            raise ValueError(f"record at offset {offset} of the cluster metadata: {error}") from error
    try:
        return draft.finish()
    except AssertionError as error:
        raise ValueError(f"the cluster metadata: {error}") from error


def apply(state: ClusterState, record: ClusterRecord) -> ClusterState:
    return apply_all(state, (record,))


def apply_all(state: ClusterState, records: Iterable[ClusterRecord]) -> ClusterState:
    """The state after all of `records`; each map of the state that they change is copied once."""
    draft = ClusterDraft(state)
    for record in records:
        draft.apply(record)
    return draft.finish()
