"""Messages of consumer groups as commands, and answers as messages. Counts are judged before any item is made.

The coordinator hands on as they are the bytes of their own that members of protocol type "consumer" send: topics they
want, partitions they are given. It reads them only to know whose offsets are in use, and to show who has what. The
members read them too: so what is no such message, or holds what no client of ours would take, is refused before it gets
into a group.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from itertools import chain
from typing import Any, TypeVar

from google.protobuf.message import DecodeError

from bus.broker_api.authorization import Access
from bus.broker_api.groups import (
    GroupApi,
    GroupMember,
    MemberCommand,
    PartitionOffset,
    require_count,
)
from bus.broker_api.requests import Caller
from bus.client_texts import shown
from bus.consumer_groups import requests as rq
from bus.consumer_groups.bounds import (
    ASSIGNED_PARTITIONS_MAX,
    GROUPS_MAX,
    LEAVING_MEMBERS_MAX,
    OWNED_PARTITIONS_MAX,
    PARTITIONS_MAX,
    PROTOCOLS_MAX,
    TOPICS_MAX,
    check_count,
    check_data,
    check_name,
    check_place,
)
from bus.consumer_groups.requests import Assignment, GroupAnswer, GroupProtocol
from bus.errors import ErrorCode, Refused
from bus.grpc_api.server.conversions import Converted, encode_broker, with_error
from bus.grpc_api.v1 import bus_pb2 as pb
from bus.grpc_api.value_messages import GROUP, GROUP_LISTING, OPERATIONS, decode_partitions
from bus.model import CONSUMER_PROTOCOL_TYPE, BrokerEndpoint, TopicPartition
from bus.runtime.blocking import BlockingCalls
from bus.runtime.tasks import LoopShares

MessageT = TypeVar("MessageT", pb.ConsumerSubscription, pb.ConsumerAssignment)
T = TypeVar("T")

# ---------------------------------------------------------------- membership


def decode_join(request: pb.JoinGroupRequest, caller: Caller) -> rq.JoinGroup | Refused:
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
        client_host=caller.host,
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
            return with_error(pb.JoinGroupResponse(generation=-1, member_id=member_id), refused)
        case Refused():
            return with_error(pb.JoinGroupResponse(generation=-1, member_id=request.member_id), answer)
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
    return with_error(pb.SyncGroupResponse(), answer)


def decode_heartbeat(request: pb.HeartbeatRequest) -> rq.Heartbeat:
    return rq.Heartbeat(request.group_id, request.generation, request.member_id, _instance_id(request))


def encode_heartbeat(answer: rq.HeartbeatTaken | Refused) -> pb.HeartbeatResponse:
    return with_error(pb.HeartbeatResponse(), answer) if isinstance(answer, Refused) else pb.HeartbeatResponse()


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
    if not isinstance(answer, rq.MembersRemoved):
        return with_error(pb.LeaveGroupResponse(), answer)
    response = pb.LeaveGroupResponse()
    for member, refused in zip(request.members, answer.members, strict=True):
        left = pb.LeftMember(member_id=member.member_id, group_instance_id=_instance_id(member))
        response.members.append(left if refused is None else with_error(left, refused))
    return response


# ---------------------------------------------------------------- offsets


def member_of(request: pb.OffsetCommitRequest | pb.TxnOffsetCommitRequest) -> GroupMember:
    return GroupMember(request.group_id, request.generation, request.member_id, _instance_id(request))


def offsets_of(
    request: pb.OffsetCommitRequest | pb.TxnOffsetCommitRequest,
) -> Converted[pb.OffsetCommitPartition, PartitionOffset]:
    return offsets_in(request.partitions)


def offsets_in(partitions: Sequence[pb.OffsetCommitPartition]) -> Converted[pb.OffsetCommitPartition, PartitionOffset]:
    return Converted(partitions, _partition_offset)


def _partition_offset(item: pb.OffsetCommitPartition) -> PartitionOffset:
    return PartitionOffset(TopicPartition(item.topic, item.partition), item.offset, item.leader_epoch, item.metadata)


def encode_commit(request: pb.OffsetCommitRequest, outcomes: Sequence[Refused | None]) -> pb.OffsetCommitResponse:
    return pb.OffsetCommitResponse(partitions=encode_outcomes(request.partitions, outcomes))


def encode_outcomes(
    partitions: Sequence[pb.OffsetCommitPartition], outcomes: Sequence[Refused | None]
) -> list[pb.OffsetCommitPartitionResponse]:
    return [
        _partition_response(TopicPartition(item.topic, item.partition), why)
        for item, why in zip(partitions, outcomes, strict=True)
    ]


def questions_of(request: pb.OffsetFetchRequest) -> Converted[pb.OffsetFetchGroup, rq.OffsetFetch]:
    """Raises `InvalidArgument` for more groups or partitions than a request may name."""
    require_count(len(request.groups), GROUPS_MAX, "groups")
    partition_count = count_partitions(chain.from_iterable(group.topics for group in request.groups))
    require_count(partition_count, PARTITIONS_MAX, "partitions")
    return Converted(request.groups, functools.partial(decode_offset_fetch, require_stable=request.require_stable))


def decode_offset_fetch(request: pb.OffsetFetchGroup, *, require_stable: bool = False) -> rq.OffsetFetch:
    has_member = bool(request.member_id)
    return rq.OffsetFetch(
        request.group_id,
        None if request.all_partitions else decode_partitions(request.topics),
        request.member_id,
        request.generation if has_member else rq.NO_GENERATION,
        require_stable,
    )


def encode_committed(committed: rq.CommittedOffset) -> pb.CommittedOffset:
    response = pb.CommittedOffset(
        topic=committed.partition.topic,
        partition=committed.partition.partition,
        offset=committed.offset,
        leader_epoch=committed.leader_epoch,
        metadata=committed.metadata,
        commit_ms=committed.commit_ms,
    )
    return response if committed.refused is None else with_error(response, committed.refused)


def encode_offset_delete(
    partitions: Iterable[TopicPartition], answer: Sequence[Refused | None] | Refused
) -> pb.OffsetDeleteResponse:
    if isinstance(answer, Refused):
        return with_error(pb.OffsetDeleteResponse(), answer)
    return pb.OffsetDeleteResponse(
        partitions=[_partition_response(partition, why) for partition, why in zip(partitions, answer, strict=True)]
    )


def count_partitions(topics: Iterable[pb.TopicPartitions]) -> int:
    """A topic of which no partition is named counts as one. Above `PARTITIONS_MAX` no more are counted."""
    count = 0
    for item in topics:
        count += max(1, len(item.partitions))
        if count > PARTITIONS_MAX:
            break
    return count


def _partition_response(partition: TopicPartition, why: Refused | None) -> pb.OffsetCommitPartitionResponse:
    response = pb.OffsetCommitPartitionResponse(topic=partition.topic, partition=partition.partition)
    return response if why is None else with_error(response, why)


# ---------------------------------------------------------------- administration


def encode_coordinator(answer: BrokerEndpoint | Refused, listener: str) -> pb.FindCoordinatorResponse:
    if isinstance(answer, Refused):
        return with_error(pb.FindCoordinatorResponse(), answer)
    coordinator = encode_broker(answer, listener)
    if coordinator is None:
        message = f"broker {answer.broker_id}, the coordinator, has no listener {listener}"
        return with_error(pb.FindCoordinatorResponse(), Refused(ErrorCode.COORDINATOR_NOT_AVAILABLE, message))
    return pb.FindCoordinatorResponse(coordinator=coordinator)


def encode_undescribed(group_id: str, refused: Refused) -> pb.DescribedGroup:
    """Encode why a group is not described."""
    state = "Dead" if refused.code is ErrorCode.GROUP_ID_NOT_FOUND else ""
    return with_error(pb.DescribedGroup(group_id=group_id, state=state), refused)


def encode_delete(group_id: str, why: Refused | None) -> pb.DeletedGroup:
    response = pb.DeletedGroup(group_id=group_id)
    return response if why is None else with_error(response, why)


def _instance_id(message: Any) -> str | None:
    return message.group_instance_id if message.HasField("group_instance_id") else None


# ---------------------------------------------------------------- protocol type "consumer"


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


# Requests above it are decoded in a thread.
_THREAD_BYTES_MIN = 64 << 10
# Of groups that are described in one answer, but for the first of them.
_ANSWER_BYTES_MAX = 16 << 20


class GroupHandler:
    """Consumer groups over gRPC: the calls that have one answer.

    A client that ends such a call withdraws its request; what the group has decided by then stays, and the session
    timeout ends a member that does not come back. No call holds the loop for long: what is large is decoded in a
    thread, and answers are made in slices.
    """

    def __init__(self, api: GroupApi, blocking: BlockingCalls, shares: LoopShares, listener: str) -> None:
        self._api = api
        self._blocking = blocking
        self._shares = shares
        self._listener = listener

    async def find_coordinator(self, access: Access, request: pb.FindCoordinatorRequest) -> pb.FindCoordinatorResponse:
        return encode_coordinator(await self._api.find_coordinator(access, request.key), self._listener)

    async def join(self, access: Access, request: pb.JoinGroupRequest) -> pb.JoinGroupResponse:
        def decode() -> rq.JoinGroup | Refused:
            return decode_join(request, access.caller)

        return encode_join(request, await self._call(access, request, decode))

    async def sync(self, access: Access, request: pb.SyncGroupRequest) -> pb.SyncGroupResponse:
        def decode() -> rq.SyncGroup | Refused:
            return decode_sync(request, self._api.protocol_type(request.group_id))

        return encode_sync(await self._call(access, request, decode))

    async def leave(self, access: Access, request: pb.LeaveGroupRequest) -> pb.LeaveGroupResponse:
        return encode_leave(request, await self._call(access, request, functools.partial(decode_leave, request)))

    async def _call(
        self,
        access: Access,
        request: pb.JoinGroupRequest | pb.SyncGroupRequest | pb.LeaveGroupRequest,
        decode: Callable[[], MemberCommand | Refused],
    ) -> GroupAnswer:
        async def decode_request() -> MemberCommand | Refused:
            return decode() if request.ByteSize() < _THREAD_BYTES_MIN else await self._blocking.compute(decode)

        return await self._api.call(access, request.group_id, decode_request)

    async def heartbeat(self, access: Access, request: pb.HeartbeatRequest) -> pb.HeartbeatResponse:
        return encode_heartbeat(await self._api.heartbeat(access, decode_heartbeat(request)))

    # ------------------------------------------------------------------ offsets

    async def commit(self, access: Access, request: pb.OffsetCommitRequest) -> pb.OffsetCommitResponse:
        return encode_commit(request, await self._api.commit(access, member_of(request), offsets_of(request)))

    async def fetch_offsets(self, access: Access, request: pb.OffsetFetchRequest) -> pb.OffsetFetchResponse:
        answers = await self._api.fetch_offsets(access, questions_of(request))
        response, share = pb.OffsetFetchResponse(), self._shares.begin()
        for group, answer in zip(request.groups, answers, strict=True):
            part = response.groups.add(group_id=group.group_id)
            if isinstance(answer, Refused):
                with_error(part, answer)
                continue
            await share.extend(part.offsets, map(encode_committed, answer))
        return response

    async def delete_offsets(self, access: Access, request: pb.OffsetDeleteRequest) -> pb.OffsetDeleteResponse:
        too_many = check_count(count_partitions(request.topics), PARTITIONS_MAX, "partitions")
        partitions = () if too_many is not None else decode_partitions(request.topics)
        answer = await self._api.delete_offsets(access, request.group_id, too_many or partitions)
        return encode_offset_delete(partitions, answer)

    # ------------------------------------------------------------------ administration

    async def list_groups(self, access: Access, request: pb.ListGroupsRequest) -> pb.ListGroupsResponse:
        listed, refused = await self._api.list_groups(access, request.states)
        response = pb.ListGroupsResponse()
        await self._shares.begin().extend(response.groups, map(GROUP_LISTING.encode, listed))
        return response if refused is None else with_error(response, refused)

    async def describe_groups(self, access: Access, request: pb.DescribeGroupsRequest) -> pb.DescribeGroupsResponse:
        answers = await self._api.describe_groups(
            access, request.group_ids, self._listener, with_operations=request.include_authorized_operations
        )
        response, share, size = pb.DescribeGroupsResponse(), self._shares.begin(), 0
        for group_id, answer in zip(request.group_ids, answers, strict=True):
            if share.is_used_up:
                await share.wait()
            if size >= _ANSWER_BYTES_MAX:
                answer = _too_large(group_id)
            if isinstance(answer, Refused):
                response.groups.append(encode_undescribed(group_id, answer))
                continue
            operations = map(OPERATIONS.number, answer.operations)
            described = await GROUP.encode_in_slices(
                response.groups.add, answer.group, share, authorized_operations=operations
            )
            size += described.ByteSize()
        return response

    async def delete_groups(self, access: Access, request: pb.DeleteGroupsRequest) -> pb.DeleteGroupsResponse:
        answers = await self._api.delete_groups(access, request.group_ids)
        return pb.DeleteGroupsResponse(groups=map(encode_delete, request.group_ids, answers))


def _too_large(group_id: str) -> Refused:
    return Refused(
        ErrorCode.INVALID_REQUEST,
        f"group {shown(group_id)}: expected groups of at most {_ANSWER_BYTES_MAX} bytes in one answer, found more; ask "
        "for fewer at a time",
    )
