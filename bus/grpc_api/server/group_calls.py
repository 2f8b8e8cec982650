"""Messages of consumer groups as commands, and answers as messages.

What a client says is checked here as far as a group is not needed for it: bytes of the consumer protocol, the
partitions of an offset commit. Guards one promise: an offset is committed for a partition that exists, under the id of
its topic, and what was committed for another topic of the same name is never shown.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar
from urllib.parse import unquote

from bus.cluster_metadata.cluster import ClusterState
from bus.consumer_groups import requests as rq
from bus.consumer_groups.request_bounds import (
    ASSIGNED_PARTITIONS_MAX,
    LEAVING_MEMBERS_MAX,
    PARTITIONS_MAX,
    PROTOCOLS_MAX,
    check_count,
    shown,
)
from bus.consumer_groups.requests import GroupAnswer
from bus.errors import ErrorCode, Refused
from bus.grpc_api.server.consumer_protocol import decode_assignment, decode_protocol
from bus.grpc_api.server.requests import InvalidArgument
from bus.grpc_api.v1 import bus_pb2 as pb
from bus.model import BrokerEndpoint, TopicPartition
from bus.runtime.loop_shares import LoopShare

MessageT = TypeVar("MessageT")


def client_host(peer: str) -> str:
    """As Kafka prints it, "/127.0.0.1", of what gRPC says: "ipv4:127.0.0.1:5000", "ipv6:%5B::1%5D:5000"."""
    family, _, address = unquote(peer).partition(":")
    if family not in ("ipv4", "ipv6"):
        return f"/{address}"
    return "/" + address.rpartition(":")[0].strip("[]")


# ---------------------------------------------------------------- membership


def decode_join(request: pb.JoinGroupRequest, peer: str) -> rq.JoinGroup | Refused:
    refused = check_count(len(request.protocols), PROTOCOLS_MAX, "protocols")
    if refused is not None:
        return refused
    protocols = []
    for offered in request.protocols:
        protocol = decode_protocol(request.protocol_type, offered.name, offered.metadata)
        if isinstance(protocol, Refused):
            return protocol
        protocols.append(protocol)
    return rq.JoinGroup(
        group_id=request.group_id,
        member_id=request.member_id,
        group_instance_id=_instance_id(request),
        client_id=request.client_id,
        client_host=client_host(peer),
        session_timeout_ms=request.session_timeout_ms,
        rebalance_timeout_ms=request.rebalance_timeout_ms or request.session_timeout_ms,
        protocol_type=request.protocol_type,
        protocols=tuple(protocols),
        reason=shown(request.reason),
    )


def encode_join(request: pb.JoinGroupRequest, answer: GroupAnswer) -> pb.JoinGroupResponse:
    match answer:
        case rq.Joined():
            return pb.JoinGroupResponse(
                generation=answer.generation,
                protocol_type=answer.protocol_type,
                protocol=answer.protocol,
                leader_id=answer.leader_id,
                member_id=answer.member_id,
                members=[
                    pb.JoinedMember(
                        member_id=member.member_id,
                        group_instance_id=member.group_instance_id,
                        metadata=member.metadata,
                        assignment=member.assignment,
                    )
                    for member in answer.members
                ],
                skip_assignment=answer.skip_assignment,
            )
        case rq.JoinRefused(refused, member_id):
            return _refused(pb.JoinGroupResponse(generation=-1, member_id=member_id), refused)
        case Refused():
            return _refused(pb.JoinGroupResponse(generation=-1, member_id=request.member_id), answer)
        case _:
            raise AssertionError(f"expected the answer to a join, found {answer}")


def decode_sync(request: pb.SyncGroupRequest, group_protocol_type: str | None) -> rq.SyncGroup | Refused:
    """`group_protocol_type`: the group's, for a request that does not name it."""
    protocol_type = request.protocol_type or group_protocol_type
    assignments: dict[str, rq.Assignment] = {}
    partition_count = 0
    for item in request.assignments:
        assignment = decode_assignment(protocol_type, item.member_id, item.assignment)
        if isinstance(assignment, Refused):
            return assignment
        assignments[item.member_id] = assignment
        partition_count += len(assignment.partitions)
        refused = check_count(partition_count, ASSIGNED_PARTITIONS_MAX, "assigned partitions")
        if refused is not None:
            return refused
    return rq.SyncGroup(
        group_id=request.group_id,
        generation=request.generation,
        member_id=request.member_id,
        group_instance_id=_instance_id(request),
        protocol_type=protocol_type or None,
        protocol=request.protocol or None,
        assignments=assignments,
    )


def encode_sync(answer: Any) -> pb.SyncGroupResponse:
    if isinstance(answer, rq.Synced):
        return pb.SyncGroupResponse(
            protocol_type=answer.protocol_type, protocol=answer.protocol, assignment=answer.assignment
        )
    return _refused(pb.SyncGroupResponse(), answer)


def decode_heartbeat(request: pb.HeartbeatRequest) -> rq.Heartbeat:
    return rq.Heartbeat(request.group_id, request.generation, request.member_id, _instance_id(request))


def encode_heartbeat(answer: rq.HeartbeatTaken | Refused) -> pb.HeartbeatResponse:
    return _refused(pb.HeartbeatResponse(), answer) if isinstance(answer, Refused) else pb.HeartbeatResponse()


def decode_leave(request: pb.LeaveGroupRequest) -> rq.LeaveGroup | Refused:
    refused = check_count(len(request.members), LEAVING_MEMBERS_MAX, "members")
    if refused is not None:
        return refused
    return rq.LeaveGroup(
        request.group_id,
        tuple(
            rq.LeavingMember(member.member_id, _instance_id(member), shown(member.reason)) for member in request.members
        ),
    )


def encode_leave(request: pb.LeaveGroupRequest, answer: Any) -> pb.LeaveGroupResponse:
    if not isinstance(answer, rq.Left):
        return _refused(pb.LeaveGroupResponse(), answer)
    response = pb.LeaveGroupResponse()
    for member, refused in zip(request.members, answer.members, strict=True):
        left = pb.LeftMember(member_id=member.member_id, group_instance_id=_instance_id(member))
        response.members.append(left if refused is None else _refused(left, refused))
    return response


# ---------------------------------------------------------------- offsets


@dataclass(frozen=True, slots=True)
class DecodedCommit:
    """`refused` has, for each partition of the request, why it is not part of `command`; None if it is."""

    command: rq.OffsetCommit
    refused: Sequence[Refused | None]


def decode_commit(request: pb.OffsetCommitRequest, state: ClusterState) -> DecodedCommit:
    """Raises `InvalidArgument` for more partitions than a request may name."""
    require_count(len(request.partitions), PARTITIONS_MAX, "partitions")
    return _commit_of(request, [_offset_to_commit(item, state) for item in request.partitions])


async def decode_commit_in_slices(
    request: pb.OffsetCommitRequest, state: ClusterState, share: LoopShare
) -> DecodedCommit:
    """As `decode_commit`; one of many partitions does not hold the loop."""
    require_count(len(request.partitions), PARTITIONS_MAX, "partitions")
    decoded: list[rq.OffsetToCommit | Refused] = []
    for item in request.partitions:
        if share.is_used_up:
            await share.wait()
        decoded.append(_offset_to_commit(item, state))
    return _commit_of(request, decoded)


def _commit_of(request: pb.OffsetCommitRequest, decoded: Sequence[rq.OffsetToCommit | Refused]) -> DecodedCommit:
    offsets = tuple(item for item in decoded if not isinstance(item, Refused))
    command = rq.OffsetCommit(request.group_id, request.generation, request.member_id, _instance_id(request), offsets)
    return DecodedCommit(command, [item if isinstance(item, Refused) else None for item in decoded])


def _offset_to_commit(item: pb.OffsetCommitPartition, state: ClusterState) -> rq.OffsetToCommit | Refused:
    partition = TopicPartition(item.topic, item.partition)
    if state.leadership(partition) is None:
        found = f"{shown(item.topic)}-{item.partition}"
        return Refused(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"expected an existing partition, found {found}")
    topic_id = state.topics[item.topic].topic_id
    return rq.OffsetToCommit(partition, topic_id, item.offset, item.leader_epoch, item.metadata)


def encode_commit(request: pb.OffsetCommitRequest, decoded: DecodedCommit, answer: Any) -> pb.OffsetCommitResponse:
    """`answer` is that of the command; of no matter if the command is about no partition."""
    taken = iter(answer.partitions if isinstance(answer, rq.OffsetsCommitted) else ())
    response = pb.OffsetCommitResponse()
    for item, refused in zip(request.partitions, decoded.refused, strict=True):
        why = refused
        if why is None:
            why = answer if isinstance(answer, Refused) else next(taken)
        response.partitions.append(_partition_response(TopicPartition(item.topic, item.partition), why))
    return response


def require_count(count: int, count_max: int, what: str) -> None:
    """Raises `InvalidArgument`, for a request whose answer has no place for a refusal of the whole."""
    refused = check_count(count, count_max, what)
    if refused is not None:
        raise InvalidArgument(refused.message)


def decode_offset_fetch(request: pb.OffsetFetchGroup) -> rq.OffsetFetch:
    has_member = bool(request.member_id)
    return rq.OffsetFetch(
        request.group_id,
        None if request.all_partitions else tuple(partitions_of(request.topics)),
        request.member_id,
        request.generation if has_member else rq.NO_GENERATION,
    )


def encode_offset_fetch(request: pb.OffsetFetchGroup, answer: Any, state: ClusterState) -> pb.OffsetFetchGroupResponse:
    response = pb.OffsetFetchGroupResponse(group_id=request.group_id)
    if not isinstance(answer, rq.OffsetsFetched):
        return _refused(response, answer)
    encoded = (encode_offset(request, committed, state) for committed in answer.offsets)
    response.offsets.extend(offset for offset in encoded if offset is not None)
    return response


def encode_offset(
    request: pb.OffsetFetchGroup, committed: rq.CommittedOffset, state: ClusterState
) -> pb.CommittedOffset | None:
    """None: it is of a topic that is gone, and was not asked for by name."""
    topic = state.topics.get(committed.partition.topic)
    if committed.offset >= 0 and topic is not None and topic.topic_id == committed.topic_id:
        return _committed(committed)
    if request.all_partitions:
        return None
    return _committed(rq.CommittedOffset(committed.partition, "", rq.NO_OFFSET))


def _committed(committed: rq.CommittedOffset) -> pb.CommittedOffset:
    return pb.CommittedOffset(
        topic=committed.partition.topic,
        partition=committed.partition.partition,
        offset=committed.offset,
        leader_epoch=committed.leader_epoch,
        metadata=committed.metadata,
        commit_ms=committed.commit_ms,
    )


def encode_offset_delete(partitions: Iterable[TopicPartition], answer: Any) -> pb.OffsetDeleteResponse:
    if not isinstance(answer, rq.OffsetsDeleted):
        return _refused(pb.OffsetDeleteResponse(), answer)
    return pb.OffsetDeleteResponse(
        partitions=[
            _partition_response(partition, refused)
            for partition, refused in zip(partitions, answer.partitions, strict=True)
        ]
    )


def count_partitions(topics: Iterable[pb.TopicPartitions]) -> int:
    """A topic of which no partition is named counts as one. Above `PARTITIONS_MAX` no more are counted."""
    count = 0
    for item in topics:
        count += max(1, len(item.partitions))
        if count > PARTITIONS_MAX:
            break
    return count


def partitions_of(topics: Iterable[pb.TopicPartitions]) -> list[TopicPartition]:
    return [TopicPartition(item.topic, number) for item in topics for number in item.partitions]


def _partition_response(partition: TopicPartition, refused: Refused | None) -> pb.OffsetCommitPartitionResponse:
    response = pb.OffsetCommitPartitionResponse(topic=partition.topic, partition=partition.partition)
    return response if refused is None else _refused(response, refused)


# ---------------------------------------------------------------- administration


def encode_coordinator(answer: BrokerEndpoint | Refused) -> pb.FindCoordinatorResponse:
    if isinstance(answer, Refused):
        return _refused(pb.FindCoordinatorResponse(), answer)
    return pb.FindCoordinatorResponse(coordinator=encode_broker(answer))


def encode_broker(broker: BrokerEndpoint) -> pb.Broker:
    return pb.Broker(broker_id=broker.broker_id, host=broker.host, port=broker.port)


def encode_list(listed: Iterable[rq.ListedGroup], refused: Refused | None) -> pb.ListGroupsResponse:
    response = pb.ListGroupsResponse(groups=map(encode_listed, listed))
    return response if refused is None else _refused(response, refused)


def encode_listed(group: rq.ListedGroup) -> pb.ListedGroup:
    return pb.ListedGroup(group_id=group.group_id, protocol_type=group.protocol_type, state=group.state)


def encode_describe(group_id: str, answer: Any, coordinator: BrokerEndpoint) -> pb.DescribedGroup:
    if not isinstance(answer, rq.DescribedGroup):
        is_unknown = answer.code is ErrorCode.GROUP_ID_NOT_FOUND
        return _refused(pb.DescribedGroup(group_id=group_id, state="Dead" if is_unknown else ""), answer)
    return pb.DescribedGroup(
        group_id=group_id,
        state=answer.state,
        protocol_type=answer.protocol_type,
        protocol=answer.protocol,
        generation=answer.generation,
        leader_id=answer.leader_id,
        coordinator=encode_broker(coordinator),
        members=[
            pb.DescribedMember(
                member_id=member.member_id,
                group_instance_id=member.group_instance_id,
                client_id=member.client_id,
                client_host=member.client_host,
                metadata=member.metadata,
                assignment=member.assignment,
                session_timeout_ms=member.session_timeout_ms,
                rebalance_timeout_ms=member.rebalance_timeout_ms,
            )
            for member in answer.members
        ],
    )


def encode_delete(group_id: str, answer: Any) -> pb.DeletedGroup:
    response = pb.DeletedGroup(group_id=group_id)
    return _refused(response, answer) if isinstance(answer, Refused) else response


def _instance_id(message: Any) -> str | None:
    return message.group_instance_id if message.HasField("group_instance_id") else None


def _refused(response: MessageT, refusal: Refused) -> MessageT:
    """Every answer has the two fields."""
    answer: Any = response
    answer.error_code, answer.error_message = int(refusal.code), refusal.message
    return response
