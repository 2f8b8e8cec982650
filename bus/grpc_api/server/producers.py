"""Identities of idempotent producers over gRPC: messages to values, and answers back."""

from __future__ import annotations

import itertools

from bus.broker_api.producers import ProducerApi
from bus.errors import Refused
from bus.grpc_api.server.refusals import with_error
from bus.grpc_api.v1 import bus_pb2 as pb
from bus.model import TopicPartition
from bus.runtime.loop_shares import LoopShares
from bus.runtime.partitions.partition_queue import ResumeResult


class ProducerHandler:
    def __init__(self, api: ProducerApi, shares: LoopShares) -> None:
        self._api = api
        self._shares = shares

    async def init(self, request: pb.InitProducerIdRequest) -> pb.InitProducerIdResponse:
        identity = await self._api.init(
            request.name or None,
            producer_id=request.producer_id if request.HasField("producer_id") else None,
            producer_epoch=request.producer_epoch,
            keeps_epoch=request.keep_epoch,
        )
        if isinstance(identity, Refused):
            return with_error(pb.InitProducerIdResponse(producer_id=-1, producer_epoch=-1), identity)
        return pb.InitProducerIdResponse(producer_id=identity.producer_id, producer_epoch=identity.producer_epoch)

    async def resume(self, request: pb.ResumeProducerRequest) -> pb.ResumeProducerResponse:
        partitions = ((TopicPartition(asked.topic, asked.partition), asked.topic_id) for asked in request.partitions)
        results = await self._api.resume(request.producer_id, request.producer_epoch, partitions)
        response = pb.ResumeProducerResponse()
        resumed = itertools.starmap(_resumed, zip(request.partitions, results, strict=True))
        await self._shares.begin().extend(response.partitions, resumed)
        return response


def _resumed(asked: pb.ResumeProducerPartition, result: ResumeResult) -> pb.ResumeProducerPartitionResponse:
    answer = pb.ResumeProducerPartitionResponse(topic=asked.topic, partition=asked.partition)
    if isinstance(result, Refused):
        answer.last_sequence = answer.last_epoch = answer.version = -1
        return with_error(answer, result)
    answer.last_sequence, answer.last_epoch, answer.version = result.last_sequence, result.last_epoch, result.version
    return answer
