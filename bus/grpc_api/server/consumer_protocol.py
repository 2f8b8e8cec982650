"""What members of protocol type "consumer" say in bytes of their own: topics they want, partitions they are given.

The coordinator hands those bytes on as they are. It reads them only to know whose offsets are in use, and to show who
has what; so bytes that are no such message are refused before they get into a group.
"""

from __future__ import annotations

from typing import TypeVar

from google.protobuf.message import DecodeError

from bus.consumer_groups.requests import CONSUMER_PROTOCOL_TYPE, Assignment, GroupProtocol
from bus.errors import ErrorCode, Refused
from bus.grpc_api.v1 import bus_pb2 as pb
from bus.model import TopicPartition

MessageT = TypeVar("MessageT", pb.ConsumerSubscription, pb.ConsumerAssignment)


def decode_protocol(protocol_type: str, name: str, metadata: bytes) -> GroupProtocol | Refused:
    """INVALID_REQUEST if the protocol type is consumer and `metadata` is no ConsumerSubscription."""
    if protocol_type != CONSUMER_PROTOCOL_TYPE:
        return GroupProtocol(name, metadata)
    subscription = _parse(pb.ConsumerSubscription(), metadata, f"the metadata of protocol {name!r}")
    if isinstance(subscription, Refused):
        return subscription
    return GroupProtocol(name, metadata, tuple(subscription.topics))


def decode_assignment(protocol_type: str | None, member_id: str, data: bytes) -> Assignment | Refused:
    """INVALID_REQUEST if the protocol type is consumer and `data` is no ConsumerAssignment."""
    if protocol_type != CONSUMER_PROTOCOL_TYPE:
        return Assignment(data)
    assignment = _parse(pb.ConsumerAssignment(), data, f"the assignment of member {member_id!r}")
    if isinstance(assignment, Refused):
        return assignment
    partitions = tuple(
        TopicPartition(item.topic, number) for item in assignment.partitions for number in item.partitions
    )
    return Assignment(data, partitions)


def _parse(message: MessageT, data: bytes, what: str) -> MessageT | Refused:
    try:
        message.ParseFromString(data)
    except DecodeError:
        expected = type(message).__name__
        return Refused(
            ErrorCode.INVALID_REQUEST, f"expected a {expected} as {what}, found {len(data)} bytes that are none"
        )
    return message
