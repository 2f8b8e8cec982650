"""Look-ups in a state of the cluster that only tests need."""

from __future__ import annotations

from collections.abc import Iterator

from bus.cluster_metadata.cluster_state import ClusterState, Topic
from bus.model import TopicPartition


def topic_by_id(state: ClusterState, topic_id: str) -> Topic | None:
    name = state.topic_names.get(topic_id)
    return None if name is None else state.topics[name]


def partitions_led_by(state: ClusterState, broker_id: int) -> Iterator[TopicPartition]:
    """The partitions in the order of topic creation and partition number."""
    for topic in state.topics.values():
        for number, leadership in enumerate(topic.partitions):
            if leadership.leader_id == broker_id:
                yield TopicPartition(topic.name, number)
