"""Produce: in order per stream, pipelined, bounded.

A reader takes requests off the stream and queues their batches; answers go out in the order of the requests. A client
that does not read its answers, or sends faster than the disk takes, is held back by the two bounds below: then nothing
more is read from its stream.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, replace

import grpc

from bus.errors import ErrorCode, Refused
from bus.grpc_api.server.codec import decode_produce
from bus.grpc_api.server.produce_wire import ProduceCall
from bus.grpc_api.server.producers import decode_stamp
from bus.grpc_api.server.requests import StreamRegistry, new_request_id
from bus.grpc_api.v1 import bus_pb2 as pb
from bus.model import RecordBatch, TopicPartition
from bus.partition_log.appends import ACKS_ALL, check_acks
from bus.ports import Clock
from bus.runtime.cluster import Cluster
from bus.runtime.partition import Appended, AppendResult

_log = logging.getLogger(__name__)

STREAM_BYTES_MAX = 32 * 1024 * 1024
STREAM_REQUESTS_MAX = 1024

_MAY_BE_COMMITTED = "no commit within {} ms; the records may still be committed"


@dataclass(frozen=True, slots=True)
class _InFlight:
    """A request without its records: those are in the partitions' queues, and only there."""

    correlation_id: int
    partitions: Sequence[TopicPartition]
    answers: Sequence[asyncio.Future[AppendResult]]
    timeout_ms: int
    deadline: float
    size_bytes: int


class ProduceHandler:
    def __init__(self, cluster: Cluster, clock: Clock, streams: StreamRegistry, request_timeout_ms: int) -> None:
        self._cluster = cluster
        self._clock = clock
        self._streams = streams
        self._request_timeout_ms = request_timeout_ms

    async def once(self, call: ProduceCall) -> pb.ProduceResponse:
        return await self._answer(self._submit(call, new_request_id()))

    async def stream(self, calls: AsyncIterator[ProduceCall], context: grpc.aio.ServicerContext) -> None:
        window = _Window()
        stream_id = new_request_id()
        reader = self._streams.start(self._read(calls, window, stream_id), f"produce/{stream_id}")
        try:
            while (in_flight := await window.next()) is not None:
                await context.write(await self._answer(in_flight))
                window.release(in_flight)
        finally:
            reader.cancel()

    async def _read(self, calls: AsyncIterator[ProduceCall], window: _Window, stream_id: str) -> None:
        try:
            async for call in calls:
                await window.admit(self._submit(call, f"{stream_id}/{call.message.correlation_id}"))
        finally:
            window.end()

    def _submit(self, call: ProduceCall, request_id: str) -> _InFlight:
        request = call.message
        acks = request.acks if request.HasField("acks") else ACKS_ALL
        refusal = check_acks(acks)
        answers: list[asyncio.Future[AppendResult]] = []
        for index, data in enumerate(request.partitions):
            answers.append(_refused(refusal) if refusal else self._append(data, call.payload(index), acks, request_id))
        timeout_ms = request.timeout_ms or self._request_timeout_ms
        return _InFlight(
            request.correlation_id,
            [TopicPartition(data.topic, data.partition) for data in request.partitions],
            answers,
            timeout_ms,
            asyncio.get_running_loop().time() + timeout_ms / 1000,
            call.size_bytes,
        )

    def _append(
        self, data: pb.PartitionProduceData, payload: bytes | memoryview | None, acks: int, request_id: str
    ) -> asyncio.Future[AppendResult]:
        partition = self._cluster.find_partition(TopicPartition(data.topic, data.partition), data.topic_id)
        if isinstance(partition, Refused):
            return _refused(partition)
        if self._cluster.is_internal(data.topic):
            return _refused(
                Refused(ErrorCode.INVALID_TOPIC_EXCEPTION, f"{data.topic} is internal, only the bus writes to it")
            )
        batch = self._decode(data, payload, acks)
        if isinstance(batch, Refused):
            return _refused(Refused(batch.code, f"{partition.name}: {batch.message}"))
        epoch = data.current_leader_epoch if data.HasField("current_leader_epoch") else None
        return partition.append(batch, acks=acks, current_leader_epoch=epoch, request_id=request_id)

    def _decode(
        self, data: pb.PartitionProduceData, payload: bytes | memoryview | None, acks: int
    ) -> RecordBatch | Refused:
        stamp = decode_stamp(data, acks)
        if stamp is None:
            return decode_produce(data, self._clock.now_ms(), payload)
        if isinstance(stamp, Refused):
            return stamp
        refusal = self._cluster.check_producer(stamp)
        if refusal is not None:
            return refusal
        batch = decode_produce(data, self._clock.now_ms(), payload)
        return batch if isinstance(batch, Refused) else replace(batch, producer=stamp)

    async def _answer(self, in_flight: _InFlight) -> pb.ProduceResponse:
        pending = [answer for answer in in_flight.answers if not answer.done()]
        if pending:
            timeout = in_flight.deadline - asyncio.get_running_loop().time()
            await asyncio.wait(pending, timeout=max(0.0, timeout))
        late = Refused(ErrorCode.REQUEST_TIMED_OUT, _MAY_BE_COMMITTED.format(in_flight.timeout_ms))
        return pb.ProduceResponse(
            correlation_id=in_flight.correlation_id,
            partitions=[
                _encode(partition, answer.result() if answer.done() else late)
                for partition, answer in zip(in_flight.partitions, in_flight.answers, strict=True)
            ],
        )


class _Window:
    """What one stream has in flight, in order. `admit` waits while a bound is reached."""

    def __init__(self) -> None:
        self._queue: asyncio.Queue[_InFlight | None] = asyncio.Queue()
        self._room = asyncio.Event()
        self._room.set()
        self._bytes = 0
        self._requests = 0

    async def admit(self, in_flight: _InFlight) -> None:
        self._bytes += in_flight.size_bytes
        self._requests += 1
        self._queue.put_nowait(in_flight)
        if self._is_full():
            self._room.clear()
            await self._room.wait()

    def release(self, in_flight: _InFlight) -> None:
        self._bytes -= in_flight.size_bytes
        self._requests -= 1
        if not self._is_full():
            self._room.set()

    def _is_full(self) -> bool:
        return self._bytes >= STREAM_BYTES_MAX or self._requests >= STREAM_REQUESTS_MAX

    def end(self) -> None:
        self._queue.put_nowait(None)

    async def next(self) -> _InFlight | None:
        return await self._queue.get()


def _refused(refusal: Refused) -> asyncio.Future[AppendResult]:
    answer: asyncio.Future[AppendResult] = asyncio.get_running_loop().create_future()
    answer.set_result(refusal)
    return answer


def _encode(partition: TopicPartition, result: AppendResult) -> pb.PartitionProduceResponse:
    match result:
        case Appended(base_offset, version, log_append_time_ms, log_start, offsets):
            return pb.PartitionProduceResponse(
                topic=partition.topic,
                partition=partition.partition,
                base_offset=base_offset,
                version=version,
                log_append_time_ms=log_append_time_ms,
                log_start_offset=log_start,
                offsets=offsets,
            )
        case Refused(code, message):
            return pb.PartitionProduceResponse(
                topic=partition.topic,
                partition=partition.partition,
                error_code=int(code),  # type: ignore[arg-type]
                error_message=message,
                base_offset=-1,
                version=-1,
                log_append_time_ms=-1,
                log_start_offset=-1,
            )
