"""Consumer groups over gRPC: the calls that have one answer. Joins and syncs wait for it, as long as the group needs.

A client that ends such a call withdraws its request; what the group has decided by then stays, and the session timeout
ends a member that does not come back. Several groups in one request are asked in slices and answered in order. Guards
one bound: no call holds the loop for long, of any size. Counts are judged before any item is looked at, a group
counts once in a request, what is large is decoded in a thread, and answers are made in slices.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Iterable, Sequence
from itertools import chain
from typing import TypeVar

from bus.consumer_groups import requests as rq
from bus.consumer_groups.request_bounds import GROUPS_MAX, PARTITIONS_MAX, STATES_MAX, check_count, shown
from bus.consumer_groups.requests import GroupAnswer, GroupCommand
from bus.errors import ErrorCode, Refused
from bus.grpc_api.server import group_calls as calls
from bus.grpc_api.v1 import bus_pb2 as pb
from bus.runtime.blocking import BlockingCalls
from bus.runtime.cluster import Cluster
from bus.runtime.coordinators.groups import GroupCoordinator
from bus.runtime.loop_shares import LoopShares

T = TypeVar("T")

# Requests above it are decoded in a thread.
_THREAD_BYTES_MIN = 64 << 10
# Of groups that are described in one answer, but for the first of them.
_ANSWER_BYTES_MAX = 16 << 20


class GroupHandler:
    def __init__(
        self, cluster: Cluster, coordinator: GroupCoordinator, blocking: BlockingCalls, shares: LoopShares
    ) -> None:
        self._cluster = cluster
        self._coordinator = coordinator
        self._blocking = blocking
        self._shares = shares

    async def find_coordinator(self, request: pb.FindCoordinatorRequest) -> pb.FindCoordinatorResponse:
        return calls.encode_coordinator(await self._coordinator.find(request.group_id))

    async def join(self, request: pb.JoinGroupRequest, peer: str) -> pb.JoinGroupResponse:
        command = await self._decode(request, functools.partial(calls.decode_join, request, peer))
        answer = command if isinstance(command, Refused) else await self._coordinator.call(command)
        return calls.encode_join(request, answer)

    async def sync(self, request: pb.SyncGroupRequest) -> pb.SyncGroupResponse:
        protocol_type = self._coordinator.protocol_type(request.group_id)
        command = await self._decode(request, functools.partial(calls.decode_sync, request, protocol_type))
        answer = command if isinstance(command, Refused) else await self._coordinator.call(command)
        return calls.encode_sync(answer)

    async def _decode(self, request: pb.JoinGroupRequest | pb.SyncGroupRequest, decode: Callable[[], T]) -> T:
        return decode() if request.ByteSize() < _THREAD_BYTES_MIN else await self._blocking.compute(decode)

    async def heartbeat(self, request: pb.HeartbeatRequest) -> pb.HeartbeatResponse:
        return calls.encode_heartbeat(self._coordinator.heartbeat(calls.decode_heartbeat(request)))

    async def leave(self, request: pb.LeaveGroupRequest) -> pb.LeaveGroupResponse:
        command = calls.decode_leave(request)
        answer = command if isinstance(command, Refused) else await self._coordinator.call(command)
        return calls.encode_leave(request, answer)

    # ------------------------------------------------------------------ offsets

    async def commit(self, request: pb.OffsetCommitRequest) -> pb.OffsetCommitResponse:
        decoded = await calls.decode_commit_in_slices(request, self._cluster.state, self._shares.begin())
        answer = await self._coordinator.call(decoded.command) if decoded.command.offsets else None
        return calls.encode_commit(request, decoded, answer)

    async def fetch_offsets(self, request: pb.OffsetFetchRequest) -> pb.OffsetFetchResponse:
        calls.require_count(len(request.groups), GROUPS_MAX, "groups")
        topics = chain.from_iterable(group.topics for group in request.groups)
        calls.require_count(calls.count_partitions(topics), PARTITIONS_MAX, "partitions")
        group_ids = [group.group_id for group in request.groups]
        commands = map(calls.decode_offset_fetch, request.groups)
        answers = await self._ask(group_ids, commands)
        response = pb.OffsetFetchResponse()
        share = self._shares.begin()
        for group, answer in zip(request.groups, answers, strict=True):
            if not isinstance(answer, rq.OffsetsFetched):
                response.groups.append(calls.encode_offset_fetch(group, answer, self._cluster.state))
                continue
            part = response.groups.add(group_id=group.group_id)
            for committed in answer.offsets:
                if share.is_used_up:
                    await share.wait()
                encoded = calls.encode_offset(group, committed, self._cluster.state)
                if encoded is not None:
                    part.offsets.append(encoded)
        return response

    async def delete_offsets(self, request: pb.OffsetDeleteRequest) -> pb.OffsetDeleteResponse:
        refused = check_count(calls.count_partitions(request.topics), PARTITIONS_MAX, "partitions")
        partitions = [] if refused is not None else calls.partitions_of(request.topics)
        command = rq.OffsetDelete(request.group_id, tuple(partitions))
        answer = refused or await self._coordinator.call(command)
        return calls.encode_offset_delete(partitions, answer)

    # ------------------------------------------------------------------ administration

    async def list_groups(self, request: pb.ListGroupsRequest) -> pb.ListGroupsResponse:
        """Names of states count in any case of letters, as in Kafka."""
        too_many = check_count(len(request.states), STATES_MAX, "states")
        if too_many is not None:
            return calls.encode_list((), too_many)
        wanted = {state.lower() for state in request.states}
        listed, refused = self._coordinator.list_groups()
        response = calls.encode_list((), refused)
        share = self._shares.begin()
        for group in listed:
            if share.is_used_up:
                await share.wait()
            if not wanted or group.state.lower() in wanted:
                response.groups.append(calls.encode_listed(group))
        return response

    async def describe_groups(self, request: pb.DescribeGroupsRequest) -> pb.DescribeGroupsResponse:
        calls.require_count(len(request.group_ids), GROUPS_MAX, "groups")
        group_ids = list(request.group_ids)
        response = pb.DescribeGroupsResponse()
        size = 0
        for group_id, answer in zip(
            group_ids, await self._ask(group_ids, map(rq.DescribeGroup, group_ids)), strict=True
        ):
            is_full = size >= _ANSWER_BYTES_MAX
            described = calls.encode_describe(
                group_id, _too_large(group_id) if is_full else answer, self._cluster.endpoint
            )
            response.groups.append(described)
            if described.members and not is_full:
                size += described.ByteSize()
                await asyncio.sleep(0)
        return response

    async def delete_groups(self, request: pb.DeleteGroupsRequest) -> pb.DeleteGroupsResponse:
        calls.require_count(len(request.group_ids), GROUPS_MAX, "groups")
        group_ids = list(request.group_ids)
        answers = await self._ask(group_ids, map(rq.DeleteGroup, group_ids))
        return pb.DeleteGroupsResponse(
            groups=[calls.encode_delete(group_id, answer) for group_id, answer in zip(group_ids, answers, strict=True)]
        )

    async def _ask(self, group_ids: Sequence[str], commands: Iterable[GroupCommand]) -> list[GroupAnswer]:
        """Each group is asked once: what names it again is refused."""
        asked: set[str] = set()
        answers: list[asyncio.Future[GroupAnswer] | Refused] = []
        share = self._shares.begin()
        for group_id, command in zip(group_ids, commands, strict=True):
            if share.is_used_up:
                await share.wait()
            answers.append(_named_twice(group_id) if group_id in asked else self._coordinator.submit(command))
            asked.add(group_id)
        return [answer if isinstance(answer, Refused) else await answer for answer in answers]


def _named_twice(group_id: str) -> Refused:
    return Refused(
        ErrorCode.INVALID_REQUEST, f"expected each group once in a request, found {shown(group_id)!r} more than once"
    )


def _too_large(group_id: str) -> Refused:
    return Refused(
        ErrorCode.INVALID_REQUEST,
        f"group {shown(group_id)}: expected groups of at most {_ANSWER_BYTES_MAX} bytes in one answer, found more; ask "
        "for fewer at a time",
    )
