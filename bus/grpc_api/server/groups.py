"""Consumer groups over gRPC: the calls that have one answer.

A client that ends such a call withdraws its request; what the group has decided by then stays, and the session timeout
ends a member that does not come back. No call holds the loop for long: what is large is decoded in a thread, and
answers are made in slices.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable
from typing import TypeVar

import grpc

from bus.broker_api.groups import GroupApi
from bus.client_texts import shown
from bus.consumer_groups import requests as rq
from bus.consumer_groups.request_bounds import PARTITIONS_MAX, check_count
from bus.errors import ErrorCode, Refused
from bus.grpc_api.server import group_calls as calls
from bus.grpc_api.server.conversions import caller_of, partitions_of, with_error
from bus.grpc_api.v1 import bus_pb2 as pb
from bus.model import BrokerEndpoint
from bus.runtime.blocking import BlockingCalls
from bus.runtime.loop_shares import LoopShares

T = TypeVar("T")

# Requests above it are decoded in a thread.
_THREAD_BYTES_MIN = 64 << 10
# Of groups that are described in one answer, but for the first of them.
_ANSWER_BYTES_MAX = 16 << 20


class GroupHandler:
    def __init__(
        self, api: GroupApi, own: BrokerEndpoint, blocking: BlockingCalls, shares: LoopShares, listener: str
    ) -> None:
        self._api = api
        self._own = own
        self._blocking = blocking
        self._shares = shares
        self._listener = listener

    async def find_coordinator(self, request: pb.FindCoordinatorRequest) -> pb.FindCoordinatorResponse:
        return calls.encode_coordinator(await self._api.find_coordinator(request.key), self._listener)

    async def join(self, request: pb.JoinGroupRequest, context: grpc.aio.ServicerContext) -> pb.JoinGroupResponse:
        command = await self._decode(
            request, functools.partial(calls.decode_join, request, caller_of(context, self._listener))
        )
        answer = command if isinstance(command, Refused) else await self._api.call(command)
        return calls.encode_join(request, answer)

    async def sync(self, request: pb.SyncGroupRequest) -> pb.SyncGroupResponse:
        protocol_type = self._api.protocol_type(request.group_id)
        command = await self._decode(request, functools.partial(calls.decode_sync, request, protocol_type))
        answer = command if isinstance(command, Refused) else await self._api.call(command)
        return calls.encode_sync(answer)

    async def _decode(self, request: pb.JoinGroupRequest | pb.SyncGroupRequest, decode: Callable[[], T]) -> T:
        return decode() if request.ByteSize() < _THREAD_BYTES_MIN else await self._blocking.compute(decode)

    async def heartbeat(self, request: pb.HeartbeatRequest) -> pb.HeartbeatResponse:
        return calls.encode_heartbeat(self._api.heartbeat(calls.decode_heartbeat(request)))

    async def leave(self, request: pb.LeaveGroupRequest) -> pb.LeaveGroupResponse:
        command = calls.decode_leave(request)
        answer = command if isinstance(command, Refused) else await self._api.call(command)
        return calls.encode_leave(request, answer)

    # ------------------------------------------------------------------ offsets

    async def commit(self, request: pb.OffsetCommitRequest) -> pb.OffsetCommitResponse:
        return calls.encode_commit(request, await self._api.commit(calls.member_of(request), calls.offsets_of(request)))

    async def fetch_offsets(self, request: pb.OffsetFetchRequest) -> pb.OffsetFetchResponse:
        answers = await self._api.fetch_offsets(calls.questions_of(request))
        response, share = pb.OffsetFetchResponse(), self._shares.begin()
        for group, answer in zip(request.groups, answers, strict=True):
            part = response.groups.add(group_id=group.group_id)
            if isinstance(answer, Refused):
                with_error(part, answer)
                continue
            await share.extend(part.offsets, map(calls.encode_committed, answer))
        return response

    async def delete_offsets(self, request: pb.OffsetDeleteRequest) -> pb.OffsetDeleteResponse:
        refused = check_count(calls.count_partitions(request.topics), PARTITIONS_MAX, "partitions")
        if refused is not None:
            return calls.encode_offset_delete((), refused)
        partitions = partitions_of(request.topics)
        answer = await self._api.delete_offsets(rq.OffsetDelete(request.group_id, tuple(partitions)))
        return calls.encode_offset_delete(partitions, answer)

    # ------------------------------------------------------------------ administration

    async def list_groups(self, request: pb.ListGroupsRequest) -> pb.ListGroupsResponse:
        listed, refused = await self._api.list_groups(request.states)
        response = pb.ListGroupsResponse()
        await self._shares.begin().extend(response.groups, map(calls.encode_listed, listed))
        return response if refused is None else with_error(response, refused)

    async def describe_groups(self, request: pb.DescribeGroupsRequest) -> pb.DescribeGroupsResponse:
        answers = await self._api.describe_groups(request.group_ids)
        response = pb.DescribeGroupsResponse()
        size = 0
        for group_id, answer in zip(request.group_ids, answers, strict=True):
            is_full = size >= _ANSWER_BYTES_MAX
            shown = _too_large(group_id) if is_full else answer
            described = calls.encode_describe(group_id, shown, self._own, self._listener)
            response.groups.append(described)
            if described.members and not is_full:
                size += described.ByteSize()
                await asyncio.sleep(0)
        return response

    async def delete_groups(self, request: pb.DeleteGroupsRequest) -> pb.DeleteGroupsResponse:
        answers = await self._api.delete_groups(request.group_ids)
        return pb.DeleteGroupsResponse(groups=map(calls.encode_delete, request.group_ids, answers))


def _too_large(group_id: str) -> Refused:
    return Refused(
        ErrorCode.INVALID_REQUEST,
        f"group {shown(group_id)}: expected groups of at most {_ANSWER_BYTES_MAX} bytes in one answer, found more; ask "
        "for fewer at a time",
    )
