"""Requests to a group's coordinator, and its answers: as values for the machines of a group, and as messages.

Each call has the name of the service's. Subscriptions and assignments are those of protocol type "consumer". Bytes come
from other members, perhaps of another version: what cannot be read is a `BusError`, never a fault.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from google.protobuf.message import DecodeError, Message

from bus.client.assignors import Assignment, MemberSubscription
from bus.client.connection.metadata_cache import error_of
from bus.client.connection.retrying import portions
from bus.client.values import GroupMetadata, OffsetAndMetadata
from bus.errors import BusError, ErrorCode
from bus.grpc_api.v1 import bus_pb2 as pb
from bus.grpc_api.value_messages import BROKER_INFO, decode_partitions, encode_partitions
from bus.model import CONSUMER_PROTOCOL_TYPE, TopicPartition

# A text committed with an offset counts as another item for each so many characters.
_METADATA_LENGTH = 100

Offsets = Mapping[TopicPartition, OffsetAndMetadata]
FetchedOffsets = Mapping[TopicPartition, OffsetAndMetadata | BusError]


# ------------------------------------------------------------ calls


@dataclass(frozen=True, slots=True)
class FindCoordinator:
    """Answered by a `BrokerInfo`."""

    group_id: str


@dataclass(frozen=True, slots=True)
class JoinGroup:
    """Answered by `Joined` or `MemberIdRequired`. `subscriptions`: by assignor, in the order of preference."""

    member: GroupMetadata
    session_timeout_ms: int
    rebalance_timeout_ms: int
    subscriptions: Mapping[str, MemberSubscription]
    client_id: str
    reason: str


@dataclass(frozen=True, slots=True)
class SyncGroup:
    """Answered by the member's partitions, a frozenset. `assignment`: empty, unless the leader brings one."""

    member: GroupMetadata
    assignor: str
    assignment: Assignment


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """Answered by None."""

    member: GroupMetadata


@dataclass(frozen=True, slots=True)
class LeaveGroup:
    """Answered by None."""

    member: GroupMetadata
    reason: str


@dataclass(frozen=True, slots=True)
class OffsetCommit:
    """Answered by the error of each partition that was not committed: what the coordinator does not name was not."""

    member: GroupMetadata
    offsets: Offsets


@dataclass(frozen=True, slots=True)
class OffsetFetch:
    """Answered by the offset of each of these that has one. `require_stable`: in the place of one that an open
    transaction may replace is an error (UNSTABLE_OFFSET_COMMIT), which passes with the transaction."""

    group_id: str
    partitions: Sequence[TopicPartition]
    require_stable: bool = False


GroupCall = FindCoordinator | JoinGroup | SyncGroup | Heartbeat | LeaveGroup | OffsetCommit | OffsetFetch


# ------------------------------------------------------------ answers


@dataclass(frozen=True, slots=True)
class Joined:
    """`subscriptions`, by member, and `kept` are the leader's to see: `is_kept` if the assignment holds as it is, and
    `kept` is that of all members together. `unreadable`: why another member's subscription or assignment is none."""

    generation: int
    member_id: str
    leader_id: str
    assignor: str
    subscriptions: Mapping[str, MemberSubscription]
    is_kept: bool = False
    kept: frozenset[TopicPartition] = frozenset()
    unreadable: BusError | None = None


@dataclass(frozen=True, slots=True)
class MemberIdRequired:
    """The join is to come again, under this id."""

    member_id: str


# ------------------------------------------------------------ calls as messages


def encode_group_call(call: GroupCall) -> Message:
    match call:
        case FindCoordinator(group_id):
            return pb.FindCoordinatorRequest(key=group_id)
        case JoinGroup():
            return _encode_join(call)
        case SyncGroup(member, assignor, assignment):
            return pb.SyncGroupRequest(
                **_member(member),
                protocol_type=CONSUMER_PROTOCOL_TYPE,
                protocol=assignor,
                assignments=[
                    pb.MemberAssignment(member_id=member_id, assignment=encode_assignment(partitions))
                    for member_id, partitions in assignment.items()
                ],
            )
        case Heartbeat(member):
            return pb.HeartbeatRequest(**_member(member))
        case LeaveGroup(member, reason):
            leaving = pb.LeavingMember(member_id=member.member_id, reason=reason)
            return pb.LeaveGroupRequest(group_id=member.group_id, members=[leaving])
        case OffsetCommit(member, offsets):
            return pb.OffsetCommitRequest(**_member(member), partitions=commit_partitions(offsets))
        case OffsetFetch(group_id, partitions, require_stable):
            group = pb.OffsetFetchGroup(group_id=group_id, topics=encode_partitions(partitions))
            return pb.OffsetFetchRequest(groups=[group], require_stable=require_stable)


def _member(member: GroupMetadata) -> dict[str, Any]:
    return {
        "group_id": member.group_id,
        "generation": member.generation,
        "member_id": member.member_id,
        "group_instance_id": member.group_instance_id,
    }


def _encode_join(call: JoinGroup) -> pb.JoinGroupRequest:
    member = call.member
    return pb.JoinGroupRequest(
        group_id=member.group_id,
        member_id=member.member_id,
        group_instance_id=member.group_instance_id,
        session_timeout_ms=call.session_timeout_ms,
        rebalance_timeout_ms=call.rebalance_timeout_ms,
        protocol_type=CONSUMER_PROTOCOL_TYPE,
        protocols=[
            pb.GroupProtocol(name=assignor, metadata=encode_subscription(subscription))
            for assignor, subscription in call.subscriptions.items()
        ],
        client_id=call.client_id,
        reason=call.reason,
    )


def encode_session_call(correlation_id: int, call: GroupCall) -> bytes:
    """A heartbeat or an offset commit, for a GroupSession."""
    field = "heartbeat" if isinstance(call, Heartbeat) else "offset_commit"
    message = pb.GroupSessionRequest(correlation_id=correlation_id, **{field: encode_group_call(call)})
    data: bytes = message.SerializeToString()
    return data


def encode_subscription(subscription: MemberSubscription) -> bytes:
    """But for the instance id, which the coordinator knows from the join."""
    message = pb.ConsumerSubscription(
        topics=sorted(subscription.topics),
        user_data=subscription.user_data,
        owned=encode_partitions(subscription.owned),
        generation=subscription.generation,
        rack=subscription.rack,
    )
    data: bytes = message.SerializeToString()
    return data


def encode_assignment(partitions: Iterable[TopicPartition]) -> bytes:
    data: bytes = pb.ConsumerAssignment(partitions=encode_partitions(partitions)).SerializeToString()
    return data


def commit_portions(offsets: Offsets) -> Iterator[dict[TopicPartition, OffsetAndMetadata]]:
    """Yield portions of as many offsets as one request may have, metadata included; one empty portion if there are
    none."""
    for portion in portions(offsets.items(), count_of=lambda item: 1 + len(item[1].metadata) // _METADATA_LENGTH):
        yield dict(portion)


def commit_partitions(offsets: Offsets) -> list[pb.OffsetCommitPartition]:
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


# ------------------------------------------------------------ answers as values


def decode_group_answer(call: GroupCall, response: Any) -> Any:
    """Return the answer to `call`, or a `BusError`."""
    match call:
        case JoinGroup() if response.error_code == ErrorCode.MEMBER_ID_REQUIRED:
            return MemberIdRequired(response.member_id)
        case OffsetCommit(_, offsets):
            return _commit_errors(offsets, response)
        case OffsetFetch():
            response = response.groups[0]
    if response.error_code:
        return error_of(response.error_code, response.error_message or type(call).__name__)
    match call:
        case FindCoordinator():
            return BROKER_INFO.decode(response.coordinator)
        case JoinGroup():
            return _joined(response)
        case SyncGroup():
            try:
                return decode_assignment(response.assignment)
            except BusError as error:
                return error
        case OffsetFetch():
            return {
                TopicPartition(found.topic, found.partition): _fetched(found)
                for found in response.offsets
                if found.offset >= 0 or found.error_code
            }
    return None


def _fetched(found: pb.CommittedOffset) -> OffsetAndMetadata | BusError:
    if found.error_code:
        return error_of(found.error_code, found.error_message or f"{found.topic}-{found.partition}")
    return OffsetAndMetadata(found.offset, found.metadata, found.leader_epoch)


def decode_session_answer(call: GroupCall, response: Any) -> Any:
    return decode_group_answer(call, response.heartbeat if isinstance(call, Heartbeat) else response.offset_commit)


def _joined(response: pb.JoinGroupResponse) -> Joined:
    subscriptions: dict[str, MemberSubscription] = {}
    kept: frozenset[TopicPartition] = frozenset()
    unreadable: BusError | None = None
    try:
        subscriptions = {member.member_id: decode_subscription(member) for member in response.members}
        kept = kept.union(*(decode_assignment(member.assignment) for member in response.members))
    except BusError as error:
        unreadable = error
    return Joined(
        response.generation,
        response.member_id,
        response.leader_id,
        response.protocol,
        subscriptions,
        response.skip_assignment,
        kept,
        unreadable,
    )


def decode_subscription(member: pb.JoinedMember) -> MemberSubscription:
    try:
        subscription = pb.ConsumerSubscription.FromString(member.metadata)
    except DecodeError as error:
        raise _unreadable(f"the subscription of member {member.member_id!r}", error) from None
    return MemberSubscription(
        topics=tuple(subscription.topics),
        user_data=subscription.user_data,
        owned=decode_partitions(subscription.owned),
        generation=subscription.generation,
        group_instance_id=member.group_instance_id if member.HasField("group_instance_id") else None,
        rack=subscription.rack or None,
    )


def decode_assignment(data: bytes) -> frozenset[TopicPartition]:
    """No bytes: nothing, as for a member that the leader left out."""
    try:
        return frozenset(decode_partitions(pb.ConsumerAssignment.FromString(data).partitions))
    except DecodeError as error:
        raise _unreadable("the assignment", error) from None


def _commit_errors(partitions: Collection[TopicPartition], response: Any) -> dict[TopicPartition, BusError]:
    missing = BusError(ErrorCode.UNKNOWN_SERVER_ERROR, "the coordinator's answer does not name every partition")
    errors = dict.fromkeys(partitions, missing)
    for share in response.partitions:
        partition = TopicPartition(share.topic, share.partition)
        errors.pop(partition, None)
        if share.error_code:
            errors[partition] = error_of(share.error_code, share.error_message or str(partition))
    return errors


def _unreadable(what: str, error: DecodeError) -> BusError:
    return BusError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, f"expected {what} to be of the consumer protocol: {error}")
