"""The life of the log over gRPC: messages to values, and answers back."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, Callable

from bus.broker_api.authorization import Access
from bus.broker_api.maintenance import MaintenanceApi
from bus.broker_api.requests import InvalidArgument
from bus.errors import Refused
from bus.grpc_api.server.conversions import Converted, with_error
from bus.grpc_api.v1 import bus_pb2 as pb
from bus.grpc_api.value_messages import DELETED_RECORDS, LOG_DIR, MAINTAINED_LOG
from bus.model import TopicPartition
from bus.ports import SwapKind
from bus.runtime.partitions.maintenance import MaintenanceAction
from bus.runtime.tasks import LoopShares

_ACTIONS = {
    pb.MAINTENANCE_ACTION_ROLL: MaintenanceAction.ROLL,
    pb.MAINTENANCE_ACTION_COMPACT: MaintenanceAction.COMPACT,
    pb.MAINTENANCE_ACTION_CLEAN: MaintenanceAction.CLEAN,
    pb.MAINTENANCE_ACTION_UPGRADE: MaintenanceAction.UPGRADE,
}
_KINDS = {pb.SWAP_KIND_SAME_ROWS: SwapKind.SAME_ROWS, pb.SWAP_KIND_LAST_OF_KEYS: SwapKind.LAST_OF_KEYS}


class MaintenanceHandler:
    def __init__(self, api: MaintenanceApi, shares: LoopShares) -> None:
        self._api = api
        self._shares = shares

    async def delete_records(self, access: Access, request: pb.DeleteRecordsRequest) -> pb.DeleteRecordsResponse:
        results = await self._api.delete_records(access, Converted(request.partitions, _deleted_to))
        response = pb.DeleteRecordsResponse()
        deleted = (
            DELETED_RECORDS.encode_answer(result, topic=asked.topic, partition=asked.partition)
            for asked, result in zip(request.partitions, results, strict=True)
        )
        await self._shares.begin().extend(response.partitions, deleted)
        return response

    async def maintain(
        self, access: Access, request: pb.MaintainLogRequest, note_count: Callable[[int], object] = lambda _: None
    ) -> AsyncGenerator[pb.MaintainLogResponse, None]:
        """Each partition's answer as it is finished; `note_count` gets their number first. Raises `BrokerStopping`."""
        action = _ACTIONS.get(request.action)
        if action is None:
            raise InvalidArgument(f"expected a maintenance action from 0 to {max(_ACTIONS)}, found {request.action}")
        maintained = self._api.maintain(access, request.topic, request.partitions, action, note_count)
        async with contextlib.aclosing(maintained) as answers:
            async for number, result in answers:
                yield MAINTAINED_LOG.encode_answer(result, partition=number)

    async def swap_files(self, access: Access, request: pb.SwapFilesRequest) -> pb.SwapFilesResponse:
        kind = _KINDS.get(request.kind)
        if kind is None:
            raise InvalidArgument(f"expected a kind of swap from 0 to {max(_KINDS)}, found {request.kind}")
        name = TopicPartition(request.topic, request.partition)
        result = await self._api.swap_files(access, name, list(request.removes), list(request.adds), kind)
        if isinstance(result, Refused):
            return with_error(pb.SwapFilesResponse(version=-1), result)
        return pb.SwapFilesResponse(version=result.version)

    async def describe_log_dirs(self, access: Access, request: pb.DescribeLogDirsRequest) -> pb.DescribeLogDirsResponse:
        found = await self._api.describe_log_dirs(access, request.topics)
        response = pb.DescribeLogDirsResponse()
        if isinstance(found, Refused):
            return with_error(response, found)
        share = self._shares.begin()
        for path, log_dir in found.items():
            await LOG_DIR.encode_in_slices(response.log_dirs.add, log_dir, share, path=path)
        return response


def _deleted_to(asked: pb.DeleteRecordsPartition) -> tuple[TopicPartition, int]:
    return TopicPartition(asked.topic, asked.partition), asked.offset
