"""Subscriptions and assignments of protocol type "consumer": values for the assignors, bytes for the coordinator.

Bytes come from other members, perhaps of another version: what cannot be read is a `BusError`, never a fault.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping

from google.protobuf.message import DecodeError

from bus.client.assignors import MemberSubscription
from bus.client.connection.portions import portions
from bus.client.values import OffsetAndMetadata
from bus.errors import BusError, ErrorCode
from bus.grpc_api.v1 import bus_pb2 as pb
from bus.model import TopicPartition

PROTOCOL_TYPE = "consumer"
# A text committed with an offset counts as another item for each so many characters.
_METADATA_LENGTH = 100


def encode_subscription(
    topics: Collection[str],
    *,
    user_data: bytes,
    owned: Iterable[TopicPartition],
    generation: int,
    rack: str,
) -> bytes:
    subscription = pb.ConsumerSubscription(
        topics=sorted(topics),
        user_data=user_data,
        owned=topic_partitions(owned),
        generation=generation,
        rack=rack,
    )
    data: bytes = subscription.SerializeToString()
    return data


def decode_subscription(member: pb.JoinedMember) -> MemberSubscription:
    try:
        subscription = pb.ConsumerSubscription.FromString(member.metadata)
    except DecodeError as error:
        raise _unreadable(f"the subscription of member {member.member_id!r}", error) from None
    return MemberSubscription(
        topics=tuple(subscription.topics),
        user_data=subscription.user_data,
        owned=flat(subscription.owned),
        generation=subscription.generation,
        group_instance_id=member.group_instance_id if member.HasField("group_instance_id") else None,
        rack=subscription.rack or None,
    )


def encode_assignment(partitions: Iterable[TopicPartition]) -> bytes:
    data: bytes = pb.ConsumerAssignment(partitions=topic_partitions(partitions)).SerializeToString()
    return data


def decode_assignment(data: bytes) -> frozenset[TopicPartition]:
    """No bytes: nothing, as for a member that the leader left out."""
    try:
        return frozenset(flat(pb.ConsumerAssignment.FromString(data).partitions))
    except DecodeError as error:
        raise _unreadable("the assignment", error) from None


def topic_partitions(partitions: Iterable[TopicPartition]) -> list[pb.TopicPartitions]:
    by_topic: dict[str, list[int]] = {}
    for partition in sorted(partitions):
        by_topic.setdefault(partition.topic, []).append(partition.partition)
    return [pb.TopicPartitions(topic=topic, partitions=numbers) for topic, numbers in by_topic.items()]


def flat(topics: Iterable[pb.TopicPartitions]) -> tuple[TopicPartition, ...]:
    return tuple(TopicPartition(topic.topic, number) for topic in topics for number in topic.partitions)


def commit_portions(
    offsets: Mapping[TopicPartition, OffsetAndMetadata],
) -> Iterator[dict[TopicPartition, OffsetAndMetadata]]:
    """As many as one request takes, metadata included; one empty portion of nothing."""
    for portion in portions(offsets.items(), count_of=lambda item: 1 + len(item[1].metadata) // _METADATA_LENGTH):
        yield dict(portion)


def commit_partitions(offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> list[pb.OffsetCommitPartition]:
    return [
        pb.OffsetCommitPartition(
            topic=partition.topic,
            partition=partition.partition,
            offset=committed.offset,
            leader_epoch=committed.leader_epoch,
            metadata=committed.metadata,
        )
        for partition, committed in offsets.items()
    ]


def _unreadable(what: str, error: DecodeError) -> BusError:
    return BusError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, f"expected {what} to be of the consumer protocol: {error}")
