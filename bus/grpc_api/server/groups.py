"""Consumer groups over gRPC: the calls that have one answer. Joins and syncs wait for it, as long as the group needs.

A client that ends such a call withdraws its request; what the group has decided by then stays, and the session timeout
ends a member that does not come back. Several groups in one request are asked at once and answered in order.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from bus.consumer_groups import requests as rq
from bus.consumer_groups.steps import GroupAnswer, GroupCommand
from bus.errors import Refused
from bus.grpc_api.server import group_calls as calls
from bus.grpc_api.v1 import bus_pb2 as pb
from bus.runtime.cluster import Cluster
from bus.runtime.group_coordinator import GroupCoordinator


class GroupHandler:
    def __init__(self, cluster: Cluster, coordinator: GroupCoordinator) -> None:
        self._cluster = cluster
        self._coordinator = coordinator

    async def find_coordinator(self, request: pb.FindCoordinatorRequest) -> pb.FindCoordinatorResponse:
        return calls.encode_coordinator(await self._coordinator.find(request.group_id))

    async def join(self, request: pb.JoinGroupRequest, peer: str) -> pb.JoinGroupResponse:
        command = calls.decode_join(request, peer)
        answer = command if isinstance(command, Refused) else await self._coordinator.call(command)
        return calls.encode_join(request, answer)

    async def sync(self, request: pb.SyncGroupRequest) -> pb.SyncGroupResponse:
        command = calls.decode_sync(request, self._coordinator.protocol_type(request.group_id))
        answer = command if isinstance(command, Refused) else await self._coordinator.call(command)
        return calls.encode_sync(answer)

    async def heartbeat(self, request: pb.HeartbeatRequest) -> pb.HeartbeatResponse:
        return calls.encode_heartbeat(self._coordinator.heartbeat(calls.decode_heartbeat(request)))

    async def leave(self, request: pb.LeaveGroupRequest) -> pb.LeaveGroupResponse:
        command = calls.decode_leave(request)
        answer = command if isinstance(command, Refused) else await self._coordinator.call(command)
        return calls.encode_leave(request, answer)

    # ------------------------------------------------------------------ offsets

    async def commit(self, request: pb.OffsetCommitRequest) -> pb.OffsetCommitResponse:
        decoded = calls.decode_commit(request, self._cluster.state)
        answer = await self._coordinator.call(decoded.command) if decoded.command.offsets else None
        return calls.encode_commit(request, decoded, answer)

    async def fetch_offsets(self, request: pb.OffsetFetchRequest) -> pb.OffsetFetchResponse:
        answers = await self._ask(calls.decode_offset_fetch(group) for group in request.groups)
        state = self._cluster.state
        return pb.OffsetFetchResponse(
            groups=[
                calls.encode_offset_fetch(group, answer, state)
                for group, answer in zip(request.groups, answers, strict=True)
            ]
        )

    async def delete_offsets(self, request: pb.OffsetDeleteRequest) -> pb.OffsetDeleteResponse:
        partitions = calls.partitions_of(request.topics)
        answer = await self._coordinator.call(rq.OffsetDelete(request.group_id, tuple(partitions)))
        return calls.encode_offset_delete(partitions, answer)

    # ------------------------------------------------------------------ administration

    async def list_groups(self, request: pb.ListGroupsRequest) -> pb.ListGroupsResponse:
        listed, refused = self._coordinator.list_groups()
        return calls.encode_list(listed, refused, request.states)

    async def describe_groups(self, request: pb.DescribeGroupsRequest) -> pb.DescribeGroupsResponse:
        answers = await self._ask(rq.DescribeGroup(group_id) for group_id in request.group_ids)
        return pb.DescribeGroupsResponse(
            groups=[
                calls.encode_describe(group_id, answer, self._cluster.endpoint)
                for group_id, answer in zip(request.group_ids, answers, strict=True)
            ]
        )

    async def delete_groups(self, request: pb.DeleteGroupsRequest) -> pb.DeleteGroupsResponse:
        answers = await self._ask(rq.DeleteGroup(group_id) for group_id in request.group_ids)
        return pb.DeleteGroupsResponse(
            groups=[
                calls.encode_delete(group_id, answer)
                for group_id, answer in zip(request.group_ids, answers, strict=True)
            ]
        )

    async def _ask(self, commands: Iterable[GroupCommand]) -> list[GroupAnswer]:
        return await asyncio.gather(*[self._coordinator.submit(command) for command in commands])
