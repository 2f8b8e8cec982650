"""Identities of idempotent producers over gRPC: who one is, and where its records end.

What comes from a client is checked here, once for every call that carries an identity: an id or an epoch that was never
given, or that is out of range, gets no further.
"""

from __future__ import annotations

import asyncio

from bus.cluster_metadata.producer_ids import PRODUCER_EPOCH_MAX, ProducerIdentity
from bus.errors import ErrorCode, Refused
from bus.grpc_api.server.partition_answers import answered, gather_answers
from bus.grpc_api.v1 import bus_pb2 as pb
from bus.model import SEQUENCE_MODULUS, ProducerStamp, TopicPartition
from bus.partition_log.appends import ACKS_NONE
from bus.runtime.cluster import Cluster
from bus.runtime.loop_shares import LoopShares
from bus.runtime.partitions.partition_queue import ProducerResumed, ResumeResult


class ProducerHandler:
    def __init__(self, cluster: Cluster, shares: LoopShares, request_timeout_ms: int) -> None:
        self._cluster = cluster
        self._shares = shares
        self._request_timeout_ms = request_timeout_ms

    async def init(self, request: pb.InitProducerIdRequest) -> pb.InitProducerIdResponse:
        identity: ProducerIdentity | Refused
        has_id = request.HasField("producer_id")
        if request.producer_epoch and not has_id:
            identity = _invalid(f"expected a producer id with producer epoch {request.producer_epoch}, found none")
        else:
            identity = await self._cluster.producers.init(
                request.name or None,
                producer_id=request.producer_id if has_id else None,
                producer_epoch=request.producer_epoch if has_id else None,
                keeps_epoch=request.keep_epoch,
            )
        if isinstance(identity, Refused):
            return pb.InitProducerIdResponse(
                error_code=int(identity.code),  # type: ignore[arg-type]
                error_message=identity.message,
                producer_id=-1,
                producer_epoch=-1,
            )
        return pb.InitProducerIdResponse(producer_id=identity.producer_id, producer_epoch=identity.producer_epoch)

    async def resume(self, request: pb.ResumeProducerRequest) -> pb.ResumeProducerResponse:
        """All partitions at once, so that a busy one holds up no other; each has the broker's request.timeout.ms."""
        refused = check_identity(request.producer_id, request.producer_epoch) or self._cluster.producers.check(
            ProducerStamp(request.producer_id, request.producer_epoch, 0)
        )
        answers: list[asyncio.Future[ResumeResult]] = []
        share = self._shares.begin()
        for asked in request.partitions:
            if share.is_used_up:
                await share.wait()
            answers.append(answered(refused) if refused is not None else self._resume(asked, request))
        results = await gather_answers(
            answers,
            timeout_ms=self._request_timeout_ms,
            otherwise=f"what was queued before was not committed within {self._request_timeout_ms} ms",
            share=share,
        )
        response = pb.ResumeProducerResponse()
        for asked, result in zip(request.partitions, results, strict=True):
            if share.is_used_up:
                await share.wait()
            response.partitions.append(_encode(asked, result))
        return response

    def _resume(
        self, asked: pb.ResumeProducerPartition, request: pb.ResumeProducerRequest
    ) -> asyncio.Future[ResumeResult]:
        partition = self._cluster.host.find(TopicPartition(asked.topic, asked.partition), asked.topic_id)
        if isinstance(partition, Refused):
            return answered(partition)
        return partition.resume_producer(request.producer_id, request.producer_epoch)


def decode_stamp(data: pb.PartitionProduceData, acks: int) -> ProducerStamp | Refused | None:
    """The identity and first sequence that a batch carries; None if it is of no idempotent producer."""
    if not data.HasField("producer_id"):
        if data.producer_epoch or data.base_sequence:
            return _invalid(
                f"expected a producer id with producer epoch {data.producer_epoch} and base sequence "
                f"{data.base_sequence}, found none"
            )
        return None
    refused = check_identity(data.producer_id, data.producer_epoch)
    if refused is not None:
        return refused
    if data.base_sequence < 0:
        return _invalid(f"expected a base sequence from 0 to {SEQUENCE_MODULUS - 1}, found {data.base_sequence}")
    if acks == ACKS_NONE:
        return _invalid(
            f"expected acks -1 or 1 of idempotent producer {data.producer_id}, found 0: it would learn of no gap"
        )
    return ProducerStamp(data.producer_id, data.producer_epoch, data.base_sequence)


def check_identity(producer_id: int, producer_epoch: int) -> Refused | None:
    if producer_id < 0:
        return _invalid(f"expected a producer id from 0 on, found {producer_id}")
    if not 0 <= producer_epoch <= PRODUCER_EPOCH_MAX:
        return _invalid(f"expected a producer epoch from 0 to {PRODUCER_EPOCH_MAX}, found {producer_epoch}")
    return None


def _invalid(message: str) -> Refused:
    return Refused(ErrorCode.INVALID_REQUEST, message)


def _encode(asked: pb.ResumeProducerPartition, result: ResumeResult) -> pb.ResumeProducerPartitionResponse:
    match result:
        case ProducerResumed(last_sequence, last_epoch, version):
            return pb.ResumeProducerPartitionResponse(
                topic=asked.topic,
                partition=asked.partition,
                last_sequence=last_sequence,
                last_epoch=last_epoch,
                version=version,
            )
        case Refused(code, message):
            return pb.ResumeProducerPartitionResponse(
                topic=asked.topic,
                partition=asked.partition,
                error_code=int(code),  # type: ignore[arg-type]
                error_message=message,
                last_sequence=-1,
                last_epoch=-1,
                version=-1,
            )
