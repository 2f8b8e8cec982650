"""A cluster's state while records are applied to it, what a record is, and what a repair gives a record.

A draft costs what the records cost, for a state of any size: a map is copied when it is first changed, a topic's
leaders become a list when one of them changes, and a start of a broker, which raises the epoch of every partition that
it leads, is one number until the state is asked for. A record that contradicts the state raises `AssertionError` and
changes nothing. One use: `apply` any number of times, then `finish`. Decides nothing (cluster_decisions.py and
producer_decisions.py do), does no I/O.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import ClassVar, Generic, Protocol, TypeVar

from bus.cluster_metadata.cluster_state import BUS_VERSION, EMPTY_CLUSTER, Broker, ClusterState, Leadership, Topic
from bus.cluster_metadata.configs import collision_key
from bus.cluster_metadata.producer_ids import ProducerIdsDraft
from bus.security.acl_index import AclIndexDraft

KeyT = TypeVar("KeyT")
ValueT = TypeVar("ValueT")

_Led = tuple[int, int]  # leader id, and its epoch without the raises of that leader


class ClusterRecord:
    """A record of the cluster metadata: a frozen dataclass whose fields are columns of its row.

    It is no Protocol, since `isinstance` and `match` on a child of one take several times as long.
    """

    __slots__ = ()

    since_level: ClassVar[int] = 0  # the level of BUS_VERSION from which on the log may have the record

    def apply(self, draft: ClusterDraft) -> None:
        """Raises `AssertionError`, and changes nothing, if it contradicts the state."""
        raise NotImplementedError

    def describe(self) -> str | None:
        """Return a line for the broker's log; None if nobody would look for one.

        Each change that a client asks for by name has one, and so has each change of the controller, of the brokers
        that may lead and of the level. What a broker does by itself with every batch or producer has none.
        """
        return None

    def mend(self, mending: Mending) -> str:
        """Apply what can be applied of a record that contradicts the state. Return what became of it."""
        return "given up: what was known before stays"


class Mending(Protocol):
    """The facts by which a record is reconciled with the state."""

    draft: ClusterDraft
    gone_ids: set[str]  # ids of deleted topics

    def take(self, *records: ClusterRecord) -> bool:
        """Apply the records; True if all of them could be applied."""
        ...

    def take_with_leader(self, leader_id: int, record: ClusterRecord) -> str: ...

    def register(self, broker_id: int) -> bool:
        """Register the broker, so that its next start takes over what it leads. False: it is registered already."""
        ...

    def allocate_to(self, producer_id: int) -> None: ...

    def record_counts(self, topic: str, topic_id: str) -> Mapping[int, int] | None:
        """Return the number of records in each table of the topic, by partition; None if the storage has no table of
        it."""
        ...


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
        self._own_copy()[key] = value

    def remove(self, key: KeyT) -> None:
        self.changed.add(key)
        del self._own_copy()[key]

    def _own_copy(self) -> dict[KeyT, ValueT]:
        if self._own is None:
            self._own = dict(self.base)
        return self._own


class ClusterDraft:
    """The state of the cluster while records are applied. A record changes the maps by `put` and `remove`, sets
    `broker_epoch_max`, `controller` and `level`, and changes partitions, topics and snapshots by the methods below: how
    a draft keeps leaders, replicas and their counts is its own."""

    def __init__(self, state: ClusterState) -> None:
        self._begin(state)
        self._snapshot_remaining: int | None = None  # records that a snapshot still has to have

    def _begin(self, state: ClusterState) -> None:
        self.topics = _MapDraft(state.topics)  # their leaders are in `_led`, if they are there
        self.topic_names = _MapDraft(state.topic_names)
        self.collisions = _MapDraft(state.collisions)
        self.brokers = _MapDraft(state.brokers)
        self.deleted_topics = _MapDraft(state.deleted_topics)
        self.views = _MapDraft(state.views)
        self.quotas = _MapDraft(state.quotas)
        self.producers = ProducerIdsDraft(state.producers)
        self.acls = AclIndexDraft(state.acls)
        # leaders by the name of a topic that is new, or whose leaders have changed
        self._led: dict[str, list[_Led]] = {}
        # broker id -> the amount added to the epoch of each partition that it leads
        self._raised: Counter[int] = Counter()
        # replicas by the name of a topic whose replicas have changed
        self._assigned: dict[str, list[tuple[int, ...]]] = {}
        self._leader_counts = Counter(state.leader_counts)
        self._preferred_counts = Counter(state.preferred_counts)  # counts of the topics that `topics` began with
        self.broker_epoch_max = state.broker_epoch_max
        self.controller = state.controller
        self.level = state.level

    def finish(self) -> ClusterState:
        assert self._snapshot_remaining is None, "expected the end of a snapshot, found the end of the log"
        touched = list(self.topics.now if any(self._raised.values()) else {**self._led, **self._assigned})
        known: dict[Leadership, Leadership] = {}  # one object for partitions that are led alike
        for name in touched:
            topic = self.topics.now[name]
            leaders = tuple(known.setdefault(led, led) for led in self.leaders(name))
            assignments = tuple(self._assigned.get(name, topic.assignments))
            if assignments:
                assignments += ((),) * (len(leaders) - len(assignments))
            self.topics.put(name, replace(topic, partitions=leaders, assignments=assignments))
        return ClusterState(
            topics=self.topics.now,
            topic_names=self.topic_names.now,
            collisions=self.collisions.now,
            brokers=self.brokers.now,
            leader_counts={broker_id: count for broker_id, count in self._leader_counts.items() if count},
            preferred_counts=self._count_preferred(),
            broker_epoch_max=self.broker_epoch_max,
            controller=self.controller,
            level=self.level,
            deleted_topics=self.deleted_topics.now,
            producers=self.producers.finish(),
            views=self.views.now,
            quotas=self.quotas.now,
            acls=self.acls.finish(),
        )

    def _count_preferred(self) -> Mapping[int, int]:
        counts = self._preferred_counts.copy()
        for name in self.topics.changed:
            for topics, sign in ((self.topics.base, -1), (self.topics.now, 1)):
                for number in range(len(topics[name].partitions) if name in topics else 0):
                    counts[topics[name].replicas(number)[0]] += sign
        return {broker_id: count for broker_id, count in counts.items() if count}

    def apply(self, record: ClusterRecord) -> None:
        assert self.level >= record.since_level, (
            f"expected {BUS_VERSION} {record.since_level} before a record {type(record).__name__}, found {self.level}"
        )
        record.apply(self)
        if self._snapshot_remaining is not None:
            self._snapshot_remaining -= 1

    # ------------------------------------------------------------------ what records share

    def live_topic(self, name: str, topic_id: str) -> Topic:
        topic = self.topics.now.get(name)
        assert topic is not None, f"expected a topic {name}, found none"
        assert topic.topic_id == topic_id, f"expected topic id {topic.topic_id} for {name}, found {topic_id}"
        return topic

    def known_life(self, broker_id: int, broker_epoch: int) -> Broker:
        broker = self.brokers.now.get(broker_id)
        assert broker is not None, f"expected broker {broker_id} to be registered"
        assert broker.broker_epoch == broker_epoch, (
            f"expected epoch {broker.broker_epoch} of broker {broker_id}, found {broker_epoch}"
        )
        return broker

    def set_fenced(self, broker_id: int, broker_epoch: int, *, is_fenced: bool) -> None:
        self.brokers.put(broker_id, replace(self.known_life(broker_id, broker_epoch), is_fenced=is_fenced))

    def check_leader(self, broker_id: int) -> None:
        assert broker_id in self.brokers.now, f"expected a registered leader, found broker {broker_id}"

    def check_partitions(self, name: str, first: int, count: int) -> None:
        led = self._led.get(name)
        known = len(self.topics.now[name].partitions if led is None else led)
        assert count > 0, f"expected at least one partition of {name}, found {count}"
        assert first + count <= known, f"expected a partition of {name} below {known}, found {first + count - 1}"

    def leaders(self, name: str) -> Iterator[Leadership]:
        """Return the leaders of a topic, by partition."""
        raised = self._raised
        led = self._led.get(name)
        if led is not None:
            return (Leadership(leader_id, epoch + raised[leader_id]) for leader_id, epoch in led)
        before = self.topics.now[name].partitions
        return (Leadership(one.leader_id, one.leader_epoch + raised[one.leader_id]) for one in before)

    def led_by(self, broker_id: int) -> Iterator[str]:
        for name in self.topics.now:
            for number, leadership in enumerate(self.leaders(name)):
                if leadership.leader_id == broker_id:
                    yield f"{name}-{number}"

    def followed_by(self, broker_id: int) -> Iterator[str]:
        for name, topic in self.topics.now.items():
            for number, replicas in enumerate(self._assigned.get(name, topic.assignments)):
                if broker_id in replicas:
                    yield f"{name}-{number}"

    def assigned_replicas(self, name: str, partition: int) -> tuple[int, ...]:
        """() for a partition that has no assignment."""
        assigned = self._assigned.get(name, self.topics.now[name].assignments)
        return assigned[partition] if partition < len(assigned) else ()

    # ------------------------------------------------------------------ topics and their partitions

    def add_topic(self, name: str, topic_id: str, partitions: int, leader_id: int) -> None:
        self._led[name] = self._new_partitions(partitions, leader_id)
        self.topics.put(name, Topic(name, topic_id, ()))
        self.topic_names.put(topic_id, name)
        self.collisions.put(collision_key(name), name)

    def remove_topic(self, name: str, topic_id: str) -> None:
        """Remove the topic; its id is among the deleted ones until its files are gone."""
        self._leader_counts.subtract(Counter(led.leader_id for led in self.leaders(name)))
        self.topics.remove(name)
        self._led.pop(name, None)
        self._assigned.pop(name, None)
        self.topic_names.remove(topic_id)
        self.collisions.remove(collision_key(name))
        self.deleted_topics.put(topic_id, name)

    def grow_topic(self, name: str, partitions: int, leader_id: int) -> None:
        """Add partitions up to the new total."""
        led = self._own_leaders(name)
        count = len(led)
        assert partitions > count, f"expected more than the {count} partitions of {name}, found {partitions}"
        led += self._new_partitions(partitions - count, leader_id)

    def change_leaders(self, name: str, first: int, count: int, leader_id: int, leader_epoch: int) -> None:
        led, past_last = self._own_leaders(name), first + count
        self.check_partitions(name, first, count)
        self.check_leader(leader_id)
        for number in range(first, past_last):
            before = led[number][1] + self._raised[led[number][0]]
            assert leader_epoch > before, f"leader epoch of {name}-{number} went from {before} to {leader_epoch}"
        for former_leader_id, _ in led[first:past_last]:
            self._leader_counts[former_leader_id] -= 1
        self._leader_counts[leader_id] += count
        led[first:past_last] = [(leader_id, leader_epoch - self._raised[leader_id])] * count

    def raise_leader_epochs(self, broker_id: int) -> None:
        """Raise the epoch of each partition that the broker leads by one."""
        self.check_leader(broker_id)
        self._raised[broker_id] += 1

    def assign_replicas(self, name: str, first: int, replicas: Sequence[tuple[int, ...]]) -> None:
        """Assign the replicas of the partitions from `first` on."""
        assigned = self._assigned.get(name)
        if assigned is None:
            assigned = self._assigned[name] = list(self.topics.now[name].assignments)
        past_last = first + len(replicas)
        assigned += [()] * (past_last - len(assigned))
        assigned[first:past_last] = replicas

    def _new_partitions(self, count: int, leader_id: int) -> list[_Led]:
        self.check_leader(leader_id)
        self._leader_counts[leader_id] += count
        return [(leader_id, -self._raised[leader_id])] * count

    def _own_leaders(self, name: str) -> list[_Led]:
        """Return the list of a topic's leaders to be changed. `_raised` is added when an entry is read."""
        led = self._led.get(name)
        if led is None:
            before = self.topics.now[name].partitions
            led = self._led[name] = [(one.leader_id, one.leader_epoch) for one in before]
        return led

    # ------------------------------------------------------------------ snapshots

    def begin_snapshot(self, record_count: int) -> None:
        """Forget everything: a snapshot of `record_count` records follows the record that is being applied."""
        self._begin(EMPTY_CLUSTER)
        self._snapshot_remaining = record_count + 1  # counts the present record too

    def end_snapshot(self) -> None:
        remaining = self._snapshot_remaining
        assert not remaining, f"expected a snapshot of {remaining} more records, found its end"
        self._snapshot_remaining = None

    def accept_snapshot(self) -> bool:
        """End the snapshot as it is; True if one was being read."""
        was_begun, self._snapshot_remaining = self._snapshot_remaining is not None, None
        return was_begun
