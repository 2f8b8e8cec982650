"""The life of the log over gRPC: records deleted, maintenance by hand, files swapped by a job.

Guards one promise: each partition that was asked for gets one answer. What may be done to a partition is the runtime's
to decide, and which files may be swapped the table's.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Sequence
from typing import Any

from bus.cluster_metadata.names import is_internal_topic
from bus.errors import ErrorCode, Refused
from bus.grpc_api.server.partition_answers import answered, gather_answers
from bus.grpc_api.server.requests import BrokerStopping as BrokerStopping
from bus.grpc_api.server.requests import InvalidArgument, StreamRegistry, new_request_id
from bus.grpc_api.v1 import bus_pb2 as pb
from bus.model import TopicPartition
from bus.ports import SwapKind
from bus.runtime.cluster import Cluster
from bus.runtime.loop_shares import LoopShares
from bus.runtime.partitions.maintenance import (
    DeleteRecordsResult,
    FilesSwapped,
    MaintainResult,
    MaintenanceAction,
    RecordsDeleted,
)
from bus.runtime.partitions.partition import Partition

_ACTIONS = {
    pb.MAINTENANCE_ACTION_ROLL: MaintenanceAction.ROLL,
    pb.MAINTENANCE_ACTION_COMPACT: MaintenanceAction.COMPACT,
    pb.MAINTENANCE_ACTION_CLEAN: MaintenanceAction.CLEAN,
}
_KINDS = {pb.SWAP_KIND_SAME_ROWS: SwapKind.SAME_ROWS, pb.SWAP_KIND_LAST_OF_KEYS: SwapKind.LAST_OF_KEYS}
_NO_PARTITION = -1


class MaintenanceHandler:
    """`jobs_max` partitions of one call are worked on at a time, so that a call that is given up leaves the rest."""

    def __init__(
        self,
        cluster: Cluster,
        streams: StreamRegistry,
        shares: LoopShares,
        *,
        jobs_max: int,
        request_timeout_ms: int,
    ) -> None:
        self._shares = shares
        self._cluster = cluster
        self._streams = streams
        self._jobs_max = jobs_max
        self._request_timeout_ms = request_timeout_ms

    # ------------------------------------------------------------------ deleting records

    async def delete_records(self, request: pb.DeleteRecordsRequest) -> pb.DeleteRecordsResponse:
        """All partitions at once, so that a busy one holds up no other; each has the broker's request.timeout.ms."""
        answers, share = [], self._shares.begin()
        for asked in request.partitions:
            if share.is_used_up:
                await share.wait()
            answers.append(self._delete(asked))
        results = await gather_answers(
            answers,
            timeout_ms=self._request_timeout_ms,
            otherwise=f"the records were not deleted within {self._request_timeout_ms} ms; they may be later",
            share=share,
        )
        response = pb.DeleteRecordsResponse()
        for asked, result in zip(request.partitions, results, strict=True):
            if share.is_used_up:
                await share.wait()
            response.partitions.append(_encode_deleted(asked, result))
        return response

    def _delete(self, asked: pb.DeleteRecordsPartition) -> asyncio.Future[DeleteRecordsResult]:
        partition = self._find(asked.topic, asked.partition)
        if isinstance(partition, Refused):
            return answered(partition)
        if is_internal_topic(asked.topic):
            message = f"expected a topic of a user, found {asked.topic}: its records are the bus's own"
            return answered(Refused(ErrorCode.INVALID_TOPIC_EXCEPTION, message))
        return partition.delete_records(asked.offset)

    # ------------------------------------------------------------------ maintenance by hand

    async def maintain(self, request: pb.MaintainLogRequest) -> AsyncIterator[pb.MaintainLogResponse]:
        """Each partition's answer as it is finished. Raises `BrokerStopping`."""
        action = _ACTIONS.get(request.action)
        if action is None:
            raise InvalidArgument(f"expected a maintenance action from 0 to {max(_ACTIONS)}, found {request.action}")
        waiting = deque(dict.fromkeys(request.partitions) or self._all_partitions(request.topic))
        running: dict[asyncio.Future[MaintainResult], int] = {}
        stopping = self._streams.start(_wait(self._streams.draining), f"maintenance/{new_request_id()}")
        try:
            while waiting or running:
                while waiting and len(running) < self._jobs_max:
                    number = waiting.popleft()
                    running[self._maintain(request.topic, number, action)] = number
                awaited: list[asyncio.Future[Any]] = [stopping, *running]
                await asyncio.wait(awaited, return_when=asyncio.FIRST_COMPLETED)
                for answer in [answer for answer in running if answer.done()]:
                    yield _encode_maintained(running.pop(answer), answer.result())
                if stopping.done() and (waiting or running):
                    raise BrokerStopping("the broker is stopping")
        finally:
            stopping.cancel()

    def _all_partitions(self, topic: str) -> Sequence[int]:
        found = self._cluster.state.topics.get(topic)
        return [_NO_PARTITION] if found is None else range(len(found.partitions))

    def _maintain(self, topic: str, number: int, action: MaintenanceAction) -> asyncio.Future[MaintainResult]:
        partition = self._find(topic, number)
        return answered(partition) if isinstance(partition, Refused) else partition.maintain(action)

    # ------------------------------------------------------------------ files of a job

    async def swap_files(self, request: pb.SwapFilesRequest) -> pb.SwapFilesResponse:
        kind = _KINDS.get(request.kind)
        if kind is None:
            raise InvalidArgument(f"expected a kind of swap from 0 to {max(_KINDS)}, found {request.kind}")
        partition = self._find(request.topic, request.partition)
        if isinstance(partition, Refused):
            return _encode_swapped(partition)
        return _encode_swapped(await partition.swap_files(list(request.removes), list(request.adds), kind))

    def _find(self, topic: str, number: int) -> Partition | Refused:
        return self._cluster.host.find(TopicPartition(topic, number))


def _encode_deleted(asked: pb.DeleteRecordsPartition, result: DeleteRecordsResult) -> pb.DeleteRecordsPartitionResponse:
    answer = pb.DeleteRecordsPartitionResponse(topic=asked.topic, partition=asked.partition)
    match result:
        case RecordsDeleted(low_watermark, version):
            answer.low_watermark, answer.version = low_watermark, version
        case Refused(code, message):
            answer.error_code, answer.error_message = int(code), message  # type: ignore[assignment]
            answer.low_watermark = answer.version = -1
    return answer


def _encode_maintained(number: int, result: MaintainResult) -> pb.MaintainLogResponse:
    if isinstance(result, Refused):
        return pb.MaintainLogResponse(
            partition=number,
            error_code=int(result.code),  # type: ignore[arg-type]
            error_message=result.message,
            version=-1,
            log_start=-1,
        )
    return pb.MaintainLogResponse(
        partition=number,
        version=result.version,
        files_before=result.files_before,
        files_after=result.files_after,
        bytes_before=result.bytes_before,
        bytes_after=result.bytes_after,
        rewritten_bytes=result.rewritten_bytes,
        log_start=result.log_start,
        dropped_versions=result.dropped_versions,
        deleted_files=result.deleted_files,
        deleted_bytes=result.deleted_bytes,
    )


def _encode_swapped(result: FilesSwapped | Refused) -> pb.SwapFilesResponse:
    match result:
        case FilesSwapped(version):
            return pb.SwapFilesResponse(version=version)
        case Refused(code, message):
            return pb.SwapFilesResponse(error_code=int(code), error_message=message, version=-1)  # type: ignore[arg-type]


async def _wait(event: asyncio.Event) -> None:
    await event.wait()
