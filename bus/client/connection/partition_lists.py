"""Partitions by their topics, as most messages name them."""

from __future__ import annotations

from collections.abc import Iterable

from bus.grpc_api.v1 import bus_pb2 as pb
from bus.model import TopicPartition


def encode_partitions(partitions: Iterable[TopicPartition]) -> list[pb.TopicPartitions]:
    """In the order of their names and numbers."""
    by_topic: dict[str, list[int]] = {}
    for partition in sorted(partitions):
        by_topic.setdefault(partition.topic, []).append(partition.partition)
    return [pb.TopicPartitions(topic=topic, partitions=numbers) for topic, numbers in by_topic.items()]


def decode_partitions(topics: Iterable[pb.TopicPartitions]) -> tuple[TopicPartition, ...]:
    """In the order in which they came."""
    return tuple(TopicPartition(topic.topic, number) for topic in topics for number in topic.partitions)
