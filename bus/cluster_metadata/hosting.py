"""Which partitions a broker opens and closes as the cluster metadata change.

Pure, and knows states only: who wrote a record does not matter. Guards one promise: whatever states a broker follows,
and wherever a plan is interrupted, the plan for the last state leaves exactly those partitions open that this state has
the broker lead, with the state's topic ids and leader epochs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from bus.cluster_metadata.cluster_state import ClusterState, Topic
from bus.model import TopicPartition


@dataclass(frozen=True, slots=True)
class Lead:
    """What a broker needs to lead a partition."""

    topic_id: str
    leader_epoch: int


class Hosted(Protocol):
    """A partition that is open, or is being opened."""

    @property
    def lead(self) -> Lead: ...


@dataclass(frozen=True, slots=True)
class HostingPlan:
    """To be carried out in the order of the fields; a partition may be in `closes` or `retires` and in `opens`."""

    retires: Sequence[TopicPartition]  # their topic was deleted
    closes: Sequence[TopicPartition]  # another broker leads them, or this one at another leader epoch
    opens: Mapping[TopicPartition, Lead]  # in the order of topic creation and partition number
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
