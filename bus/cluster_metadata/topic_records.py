"""Records of topics, their partitions, leaders, replicas and configs.

Each record says what it changes, what people read of it, and what becomes of it in a log that contradicts itself; how a
snapshot states them is below. Guards these promises: a topic's partitions are never fewer than before, a leader epoch
never goes back, a topic id never stands for two topics, no two topics have names that collide.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from bus.cluster_metadata.cluster_draft import ClusterDraft, ClusterRecord, Mending
from bus.cluster_metadata.cluster_state import LEVEL_OF_CLUSTERS, ClusterState, Topic
from bus.cluster_metadata.configs import collision_key
from bus.errors import count_of


@dataclass(frozen=True, slots=True)
class TopicCreated(ClusterRecord):
    topic: str
    topic_id: str
    partitions: int  # 0 .. partitions - 1, each led by `leader_id` at epoch 0
    leader_id: int

    def apply(self, draft: ClusterDraft) -> None:
        name, topic_id = self.topic, self.topic_id
        holder = draft.collisions.now.get(collision_key(name))
        assert holder is None, f"expected no topic whose name collides with {name}, found {holder}"
        is_new_id = topic_id not in draft.topic_names.now and topic_id not in draft.deleted_topics.now
        assert is_new_id, f"expected a new topic id for {name}, found {topic_id}, which another topic has"
        assert self.partitions > 0, f"expected at least one partition of {name}, found {self.partitions}"
        draft.add_topic(name, topic_id, self.partitions, self.leader_id)

    def describe(self) -> str | None:
        return f"topic {self.topic} was created: {count_of(self.partitions, 'partition')}, id {self.topic_id}"

    def mend(self, mending: Mending) -> str:
        draft, name = mending.draft, self.topic
        mending.register(self.leader_id)
        if mending.take(self):
            return f"broker {self.leader_id} is registered, at an unknown address"
        before = draft.topics.now.get(name)
        if before is not None and before.topic_id == self.topic_id:
            return "given up: it says the same again"
        holder = draft.topics.now.get(draft.collisions.now.get(collision_key(name), ""))
        if holder is not None:
            owns_tables = mending.record_counts(name, self.topic_id) is not None
            is_empty = not any((mending.record_counts(holder.name, holder.topic_id) or {}).values())
            if owns_tables and is_empty and mending.take(TopicDeleted(holder.name, holder.topic_id), self):
                mending.gone_ids.add(holder.topic_id)
                return f"the topic {holder.name} of id {holder.topic_id} is given up: it has no records"
            return f"given up: the topic {holder.name} of id {holder.topic_id} stays"
        return "given up"


@dataclass(frozen=True, slots=True)
class PartitionsAdded(ClusterRecord):
    topic: str
    topic_id: str
    partitions: int  # the new total
    leader_id: int  # the leader of the new partitions

    def apply(self, draft: ClusterDraft) -> None:
        name = draft.live_topic(self.topic, self.topic_id).name
        draft.grow_topic(name, self.partitions, self.leader_id)

    def describe(self) -> str | None:
        return f"topic {self.topic} has {count_of(self.partitions, 'partition')} now"

    def mend(self, mending: Mending) -> str:
        return mending.take_with_leader(self.leader_id, self)


@dataclass(frozen=True, slots=True)
class LeaderChanged(ClusterRecord):
    topic: str
    topic_id: str
    partition: int
    leader_id: int  # may be the same broker, after its restart
    leader_epoch: int  # > every earlier one of the partition

    def apply(self, draft: ClusterDraft) -> None:
        self._as_neighbours().apply(draft)

    def mend(self, mending: Mending) -> str:
        return _mend_leaders(mending, self, self._as_neighbours())

    def _as_neighbours(self) -> LeadersChanged:
        return LeadersChanged(self.topic, self.topic_id, self.partition, 1, self.leader_id, self.leader_epoch)


@dataclass(frozen=True, slots=True)
class LeadersChanged(ClusterRecord):
    """`LeaderChanged` for neighbours: `partitions` of them, from `partition` on."""

    topic: str
    topic_id: str
    partition: int
    partitions: int
    leader_id: int
    leader_epoch: int  # > every earlier one of each of them

    def apply(self, draft: ClusterDraft) -> None:
        name = draft.live_topic(self.topic, self.topic_id).name
        draft.change_leaders(name, self.partition, self.partitions, self.leader_id, self.leader_epoch)

    def mend(self, mending: Mending) -> str:
        return _mend_leaders(mending, self, self)


@dataclass(frozen=True, slots=True)
class LeaderEpochsRaised(ClusterRecord):
    """The broker leads on whatever it leads, each partition at an epoch that is higher by one: it was restarted."""

    broker_id: int

    def apply(self, draft: ClusterDraft) -> None:
        draft.raise_leader_epochs(self.broker_id)

    def mend(self, mending: Mending) -> str:
        return mending.take_with_leader(self.broker_id, self)


@dataclass(frozen=True, slots=True)
class ReplicasAssigned(ClusterRecord):
    """The brokers that are to follow `partitions` partitions from `partition` on; leaders stay as they are.

    `replicas`: for each partition the broker ids with commas between them, the preferred leader first; semicolons
    between the partitions. One list: each partition has it.
    """

    since_level: ClassVar[int] = LEVEL_OF_CLUSTERS
    topic: str
    topic_id: str
    partition: int
    partitions: int
    replicas: str

    def apply(self, draft: ClusterDraft) -> None:
        name = draft.live_topic(self.topic, self.topic_id).name
        first, count = self.partition, self.partitions
        draft.check_partitions(name, first, count)
        try:
            lists = parse_replicas(self.replicas)
        except ValueError as error:
            raise AssertionError(f"replicas of {name}: {error}") from None
        for replicas in set(lists):
            unknown = [broker_id for broker_id in replicas if broker_id not in draft.brokers.now]
            assert not unknown, f"expected registered replicas of {name}, found broker {unknown[0]}"
            assert len(set(replicas)) == len(replicas), f"expected each replica of {name} once, found {replicas}"
        assert len(lists) in (1, count), f"expected replicas of {count} partitions of {name}, found {len(lists)}"
        draft.assign_replicas(name, first, lists if len(lists) == count else lists * count)


@dataclass(frozen=True, slots=True)
class TopicConfigChanged(ClusterRecord):
    topic: str
    topic_id: str
    name: str
    value: str | None  # None: the override is gone, the default holds

    def apply(self, draft: ClusterDraft) -> None:
        topic = draft.live_topic(self.topic, self.topic_id)
        configs = {key: kept for key, kept in topic.configs.items() if key != self.name}
        if self.value is not None:
            configs[self.name] = self.value
        draft.topics.put(self.topic, replace(topic, configs=configs))

    def describe(self) -> str | None:
        if self.value is None:
            return f"topic {self.topic}: {self.name} has its default again"
        return f"topic {self.topic}: {self.name}={self.value}"


@dataclass(frozen=True, slots=True)
class TopicDeleted(ClusterRecord):
    """The topic is gone for users; its files may still be there."""

    topic: str
    topic_id: str

    def apply(self, draft: ClusterDraft) -> None:
        name, topic_id = self.topic, self.topic_id
        draft.live_topic(name, topic_id)
        draft.remove_topic(name, topic_id)

    def describe(self) -> str | None:
        return f"topic {self.topic} was deleted, id {self.topic_id}"


@dataclass(frozen=True, slots=True)
class TopicFilesDeleted(ClusterRecord):
    topic_id: str

    def apply(self, draft: ClusterDraft) -> None:
        topic_id = self.topic_id
        assert topic_id in draft.deleted_topics.now, f"expected topic id {topic_id} among the deleted ones"
        draft.deleted_topics.remove(topic_id)


def _mend_leaders(mending: Mending, record: ClusterRecord, change: LeadersChanged) -> str:
    """`change` says the same as `record`. Partitions that the topic lacks and its tables have are added."""
    count = change.partition + change.partitions
    counts = mending.record_counts(change.topic, change.topic_id)
    if counts is not None and count <= len(counts):
        mending.register(change.leader_id)
        if mending.take(PartitionsAdded(change.topic, change.topic_id, count, change.leader_id), record):
            return f"the topic has {count_of(count, 'partition')}, as its tables say"
    return mending.take_with_leader(change.leader_id, record)


def assign_replicas(topic: str, topic_id: str, partition: int, lists: Sequence[Sequence[int]]) -> ReplicasAssigned:
    """One list of broker ids for each partition from `partition` on."""
    different = lists[:1] if len(set(map(tuple, lists))) == 1 else lists
    text = ";".join(",".join(map(str, replicas)) for replicas in different)
    return ReplicasAssigned(topic, topic_id, partition, len(lists), text)


def parse_replicas(text: str) -> list[tuple[int, ...]]:
    """Raises `ValueError` for anything but lists of numbers."""
    lists = []
    for part in text.split(";"):
        numbers = part.split(",")
        if not all(number.isascii() and number.isdecimal() for number in numbers):
            raise ValueError(f"expected broker ids with commas between them, found {part!r}")
        lists.append(tuple(map(int, numbers)))
    return lists


def snapshot_topics(state: ClusterState) -> Iterator[ClusterRecord]:
    for topic_id, name in state.deleted_topics.items():
        yield TopicCreated(name, topic_id, 1, next(iter(state.brokers)))
        yield TopicDeleted(name, topic_id)
    for topic in state.topics.values():
        yield from _leaders(topic)
        if topic.assignments:
            yield from _replicas(topic)
        for key, value in topic.configs.items():
            yield TopicConfigChanged(topic.name, topic.topic_id, key, value)


def _leaders(topic: Topic) -> Iterator[ClusterRecord]:
    """Yield a record for each run of neighbouring partitions with the same leader and epoch."""
    end = 0
    for leadership, run in itertools.groupby(topic.partitions):
        first, end = end, end + sum(1 for _ in run)
        leader_id = leadership.leader_id
        if first == 0:
            yield TopicCreated(topic.name, topic.topic_id, end, leader_id)
        else:
            yield PartitionsAdded(topic.name, topic.topic_id, end, leader_id)
        if leadership.leader_epoch > 0:
            yield LeadersChanged(topic.name, topic.topic_id, first, end - first, leader_id, leadership.leader_epoch)


def _replicas(topic: Topic) -> Iterator[ClusterRecord]:
    for is_assigned, run in itertools.groupby(enumerate(topic.assignments), key=lambda one: bool(one[1])):
        if is_assigned:
            numbers, lists = zip(*run, strict=True)
            yield assign_replicas(topic.name, topic.topic_id, numbers[0], lists)
