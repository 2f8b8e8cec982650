"""What members of protocol type "consumer" say in bytes of their own: topics they want, partitions they are given.

The coordinator hands those bytes on as they are. It reads them only to know whose offsets are in use, and to show who
has what. The members read them too: so what is no such message, or holds what no client of ours would take, is refused
before it gets into a group. Counts are judged before any item is looked at.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from google.protobuf.message import DecodeError

from bus.consumer_groups.request_bounds import (
    ASSIGNED_PARTITIONS_MAX,
    OWNED_PARTITIONS_MAX,
    TOPICS_MAX,
    check_count,
    check_data,
    check_name,
    check_place,
    shown,
)
from bus.consumer_groups.requests import CONSUMER_PROTOCOL_TYPE, Assignment, GroupProtocol
from bus.errors import ErrorCode, Refused
from bus.grpc_api.v1 import bus_pb2 as pb
from bus.model import TopicPartition

MessageT = TypeVar("MessageT", pb.ConsumerSubscription, pb.ConsumerAssignment)


def decode_protocol(protocol_type: str, name: str, metadata: bytes) -> GroupProtocol | Refused:
    """INVALID_REQUEST if the protocol type is consumer and `metadata` is no ConsumerSubscription."""
    if protocol_type != CONSUMER_PROTOCOL_TYPE:
        return GroupProtocol(name, metadata)
    what = f"the metadata of protocol {shown(name)!r}"
    subscription = check_data(what, len(metadata)) or _parse(pb.ConsumerSubscription(), metadata, what)
    if isinstance(subscription, Refused):
        return subscription
    return _check_subscription(subscription) or GroupProtocol(name, metadata, tuple(subscription.topics))


def _check_subscription(subscription: pb.ConsumerSubscription) -> Refused | None:
    return (
        check_count(len(subscription.topics), TOPICS_MAX, "topics of a member")
        or _check_partitions(subscription.owned, OWNED_PARTITIONS_MAX, "partitions that a member has")
        or check_name("a rack", subscription.rack)
    )


def decode_assignment(protocol_type: str | None, member_id: str, data: bytes) -> Assignment | Refused:
    """INVALID_REQUEST if the protocol type is consumer and `data` is no ConsumerAssignment. A partition that is named
    twice is given once."""
    if protocol_type != CONSUMER_PROTOCOL_TYPE:
        return Assignment(data)
    what = f"the assignment of member {shown(member_id)!r}"
    assignment = check_data(what, len(data)) or _parse(pb.ConsumerAssignment(), data, what)
    if isinstance(assignment, Refused):
        return assignment
    refused = _check_partitions(assignment.partitions, ASSIGNED_PARTITIONS_MAX, "assigned partitions")
    if refused is not None:
        return refused
    partitions = dict.fromkeys(
        TopicPartition(item.topic, number) for item in assignment.partitions for number in item.partitions
    )
    return Assignment(data, tuple(partitions))


def _check_partitions(topics: Sequence[pb.TopicPartitions], count_max: int, what: str) -> Refused | None:
    refused = check_count(len(topics), TOPICS_MAX, f"topics of {what}") or check_count(
        sum(len(item.partitions) for item in topics), count_max, what
    )
    if refused is not None:
        return refused
    lowest = (check_place(TopicPartition(item.topic, min(item.partitions, default=0))) for item in topics)
    return next((refused for refused in lowest if refused is not None), None)


def _parse(message: MessageT, data: bytes, what: str) -> MessageT | Refused:
    try:
        message.ParseFromString(data)
    except DecodeError:
        expected = type(message).__name__
        return Refused(
            ErrorCode.INVALID_REQUEST, f"expected a {expected} as {what}, found {len(data)} bytes that are none"
        )
    return message
