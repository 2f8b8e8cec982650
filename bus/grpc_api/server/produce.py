"""Produce: in order per stream, pipelined, bounded.

A reader takes requests off the stream and queues their batches; answers go out in the order of the requests. A client
that does not read its answers, or sends faster than the disk takes, is held back (produce_window.py): then nothing more
is read from its stream.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, replace

import grpc

from bus.errors import ErrorCode, Refused
from bus.grpc_api.server.arrow_claims import Allowance
from bus.grpc_api.server.codec import decode_produce
from bus.grpc_api.server.partition_answers import answered
from bus.grpc_api.server.payloads import THREAD_BYTES_MIN, count_packed_bytes, unpack_call
from bus.grpc_api.server.produce_window import RequestMemory, Window
from bus.grpc_api.server.produce_wire import Payload, ProduceCall
from bus.grpc_api.server.producers import decode_stamp
from bus.grpc_api.server.record_faults import find_faults
from bus.grpc_api.server.requests import StreamRegistry, new_request_id
from bus.grpc_api.server.throttling import DrainRates
from bus.grpc_api.v1 import bus_pb2 as pb
from bus.model import RecordBatch, TopicPartition
from bus.partition_log.appends import ACKS_ALL, check_acks
from bus.ports import Clock
from bus.runtime.blocking import BlockingCalls
from bus.runtime.cluster import Cluster
from bus.runtime.partition import Appended, AppendResult

_MAY_BE_COMMITTED = "no commit within {} ms; the records may still be committed"
_NO_MEMORY = "the broker has queued.max.request.bytes of requests waiting for a commit; retry later"


@dataclass(frozen=True, slots=True)
class _Submitted:
    """`batch` is kept until the answer: a refusal may be about some of its records. None: it never became one."""

    partition: TopicPartition
    batch: RecordBatch | None
    answer: asyncio.Future[AppendResult]


@dataclass(frozen=True, slots=True)
class _InFlight:
    correlation_id: int
    submitted: Sequence[_Submitted]
    timeout_ms: int
    deadline_s: float
    size_bytes: int  # as it came, or as its records are, whichever is more
    received_ms: int


class ProduceHandler:
    """`request_bytes_max` bounds what one request may be unpacked to."""

    def __init__(
        self,
        cluster: Cluster,
        clock: Clock,
        streams: StreamRegistry,
        calls: BlockingCalls,
        *,
        request_timeout_ms: int,
        request_bytes_max: int,
        queued_bytes_max: int,
    ) -> None:
        self._cluster = cluster
        self._clock = clock
        self._streams = streams
        self._calls = calls
        self._request_timeout_ms = request_timeout_ms
        self._request_bytes_max = request_bytes_max
        self._memory = RequestMemory(queued_bytes_max)
        self._drain_rates = DrainRates()

    async def once(self, call: ProduceCall) -> pb.ProduceResponse:
        if self._memory.is_full:
            return await self._answer(self._refuse(call, Refused(ErrorCode.THROTTLING_QUOTA_EXCEEDED, _NO_MEMORY)))
        in_flight = self._submit(call, await self._unpack(call), new_request_id())
        self._memory.take(in_flight.size_bytes)
        try:
            return await self._answer(in_flight)
        finally:
            self._memory.give_back(in_flight.size_bytes)

    async def stream(self, calls: AsyncIterator[ProduceCall], context: grpc.aio.ServicerContext) -> None:
        window: Window[_InFlight] = Window(self._memory)
        stream_id = new_request_id()
        reader = self._streams.start(self._read(calls, window, stream_id), f"produce/{stream_id}")
        try:
            while (in_flight := await window.next()) is not None:
                await context.write(await self._answer(in_flight))
                window.release(in_flight)
        finally:
            reader.cancel()
            window.close()

    async def _read(self, calls: AsyncIterator[ProduceCall], window: Window[_InFlight], stream_id: str) -> None:
        try:
            async for call in calls:
                payloads = await self._unpack(call)
                await window.admit(self._submit(call, payloads, f"{stream_id}/{call.message.correlation_id}"))
        finally:
            window.end()

    # ------------------------------------------------------------------ in

    async def _unpack(self, call: ProduceCall) -> Sequence[Payload | Refused | None]:
        packed_bytes = count_packed_bytes(call.message)
        if not packed_bytes:
            return call.payloads
        unpack = functools.partial(unpack_call, call, self._request_bytes_max)
        return await self._calls.compute(unpack) if packed_bytes >= THREAD_BYTES_MIN else unpack()

    def _submit(self, call: ProduceCall, payloads: Sequence[Payload | Refused | None], request_id: str) -> _InFlight:
        request = call.message
        acks = request.acks if request.HasField("acks") else ACKS_ALL
        refusal = check_acks(acks)
        if refusal is not None:
            return self._refuse(call, refusal)
        now_ms = self._clock.now_ms()
        allowance = Allowance(self._request_bytes_max)
        submitted = [
            self._append(data, payloads[index] if payloads else None, acks, request_id, now_ms, allowance)
            for index, data in enumerate(request.partitions)
        ]
        return self._in_flight(call, submitted, now_ms)

    def _refuse(self, call: ProduceCall, refusal: Refused) -> _InFlight:
        submitted = [_refused(TopicPartition(data.topic, data.partition), refusal) for data in call.message.partitions]
        return self._in_flight(call, submitted, self._clock.now_ms())

    def _in_flight(self, call: ProduceCall, submitted: Sequence[_Submitted], now_ms: int) -> _InFlight:
        timeout_ms = call.message.timeout_ms or self._request_timeout_ms
        record_bytes = 0
        for item in submitted:
            if item.batch is not None:
                record_bytes += item.batch.size_bytes
        return _InFlight(
            call.message.correlation_id,
            submitted,
            timeout_ms,
            asyncio.get_running_loop().time() + timeout_ms / 1000,
            max(call.size_bytes, record_bytes),
            now_ms,
        )

    def _append(
        self,
        data: pb.PartitionProduceData,
        payload: Payload | Refused | None,
        acks: int,
        request_id: str,
        now_ms: int,
        allowance: Allowance,
    ) -> _Submitted:
        name = TopicPartition(data.topic, data.partition)
        partition = self._cluster.find_partition(name, data.topic_id)
        if isinstance(partition, Refused):
            return _refused(name, partition)
        if self._cluster.is_internal(data.topic):
            return _refused(
                name, Refused(ErrorCode.INVALID_TOPIC_EXCEPTION, f"{data.topic} is internal, only the bus writes to it")
            )
        batch = payload if isinstance(payload, Refused) else self._decode(data, payload, acks, now_ms, allowance)
        if isinstance(batch, Refused):
            return _refused(name, Refused(batch.code, f"{name}: {batch.message}"))
        epoch = data.current_leader_epoch if data.HasField("current_leader_epoch") else None
        answer = partition.append(batch, acks=acks, current_leader_epoch=epoch, request_id=request_id)
        return _Submitted(name, batch, answer)

    def _decode(
        self, data: pb.PartitionProduceData, payload: Payload | None, acks: int, now_ms: int, allowance: Allowance
    ) -> RecordBatch | Refused:
        stamp = decode_stamp(data, acks)
        if stamp is None:
            return decode_produce(data, now_ms, payload, allowance)
        if isinstance(stamp, Refused):
            return stamp
        refusal = self._cluster.check_producer(stamp)
        if refusal is not None:
            return refusal
        batch = decode_produce(data, now_ms, payload, allowance)
        return batch if isinstance(batch, Refused) else replace(batch, producer=stamp)

    # ------------------------------------------------------------------ out

    async def _answer(self, in_flight: _InFlight) -> pb.ProduceResponse:
        pending = [item.answer for item in in_flight.submitted if not item.answer.done()]
        if pending:
            timeout_s = in_flight.deadline_s - asyncio.get_running_loop().time()
            await asyncio.wait(pending, timeout=max(0.0, timeout_s))
        late = Refused(ErrorCode.REQUEST_TIMED_OUT, _MAY_BE_COMMITTED.format(in_flight.timeout_ms))
        now_s = asyncio.get_running_loop().time()
        response = pb.ProduceResponse(correlation_id=in_flight.correlation_id)
        for item in in_flight.submitted:
            result = item.answer.result() if item.answer.done() else late
            if isinstance(result, Appended):
                if item.batch is not None:
                    self._drain_rates.add_drained(item.partition, item.batch.size_bytes, now_s)
                response.partitions.append(_encode(item.partition, result))
                continue
            if result.code is ErrorCode.THROTTLING_QUOTA_EXCEEDED:
                size_bytes = in_flight.size_bytes if item.batch is None else item.batch.size_bytes
                wait_ms = self._drain_rates.throttle_ms(item.partition, size_bytes, now_s)
                response.throttle_time_ms = max(response.throttle_time_ms, wait_ms)
            response.partitions.append(_encode_refusal(item.partition, result, self._faults(item, result, in_flight)))
        return response

    def _faults(self, item: _Submitted, refusal: Refused, in_flight: _InFlight) -> list[pb.RecordError]:
        rules = self._cluster.append_rules(item.partition.topic)
        if item.batch is None or rules is None:
            return []
        return find_faults(
            item.batch, refusal, rules, received_ms=in_flight.received_ms, answered_ms=self._clock.now_ms()
        )


def _refused(partition: TopicPartition, refusal: Refused) -> _Submitted:
    return _Submitted(partition, None, answered(refusal))


def _encode(partition: TopicPartition, appended: Appended) -> pb.PartitionProduceResponse:
    return pb.PartitionProduceResponse(
        topic=partition.topic,
        partition=partition.partition,
        base_offset=appended.base_offset,
        version=appended.version,
        log_append_time_ms=appended.log_append_time_ms,
        log_start_offset=appended.log_start,
        offsets=appended.offsets,
    )


def _encode_refusal(
    partition: TopicPartition, refusal: Refused, faults: Sequence[pb.RecordError]
) -> pb.PartitionProduceResponse:
    return pb.PartitionProduceResponse(
        topic=partition.topic,
        partition=partition.partition,
        error_code=int(refusal.code),  # type: ignore[arg-type]
        error_message=refusal.message,
        base_offset=-1,
        version=-1,
        log_append_time_ms=-1,
        log_start_offset=-1,
        record_errors=faults,
    )
