"""Produce over gRPC: in order per stream, pipelined, bounded.

A reader takes requests off the stream and has their batches queued; answers go out in the order of the requests. A
client that does not read its answers, or sends faster than the disk takes, is held back (produce_window.py,
request_memory.py): then nothing more is read from its stream. What is costly to parse is parsed in a thread.
"""

from __future__ import annotations

import functools
from collections.abc import AsyncIterator

import grpc

from bus.broker_api.produce import (
    Destination,
    PartitionProduced,
    ProduceApi,
    ProduceInFlight,
    ProduceRequest,
)
from bus.broker_api.producers import ClaimedStamp
from bus.broker_api.request_memory import RequestMemory
from bus.broker_api.requests import Caller
from bus.errors import Refused
from bus.grpc_api.server.callers import caller_of
from bus.grpc_api.server.conversions import Converted
from bus.grpc_api.server.produce_decoding import CallPayload
from bus.grpc_api.server.produce_window import Window
from bus.grpc_api.server.produce_wire import ProduceCall, UnparsedCall, parse_call
from bus.grpc_api.server.refusals import with_error
from bus.grpc_api.server.request_limits import RequestReader, Unreadable, UnreadableRequest
from bus.grpc_api.server.streams import StreamRegistry
from bus.grpc_api.v1 import bus_pb2 as pb
from bus.model import TopicPartition
from bus.partition_log.appends import ACKS_ALL
from bus.runtime.blocking import BlockingCalls
from bus.runtime.loop_shares import LoopShares


class ProduceHandler:
    """`unpacked_bytes_max` bounds what one request may be unpacked to, and what its records take beside their bytes."""

    def __init__(
        self,
        api: ProduceApi,
        streams: StreamRegistry,
        calls: BlockingCalls,
        memory: RequestMemory,
        shares: LoopShares,
        *,
        unpacked_bytes_max: int,
    ) -> None:
        self._api = api
        self._streams = streams
        self._calls = calls
        self._memory = memory
        self._shares = shares
        self._unpacked_bytes_max = unpacked_bytes_max

    async def once(self, received: ProduceCall | UnparsedCall, context: grpc.aio.ServicerContext) -> pb.ProduceResponse:
        caller = caller_of(context)
        is_refused = not self._memory.has_room(caller.connection)
        return await self._answer(await self._take(received, caller, is_refused=is_refused))

    async def stream(self, calls: AsyncIterator[ProduceCall | UnparsedCall], context: grpc.aio.ServicerContext) -> None:
        caller = caller_of(context)
        window: Window[ProduceInFlight] = Window(self._memory, caller.connection)
        reader = self._streams.start(self._read(calls, window, caller), f"produce/{caller.request_id}")
        try:
            while (in_flight := await window.next()) is not None:
                await context.write(await self._answer(in_flight))
                window.release(in_flight)
        finally:
            reader.cancel()

    async def _read(
        self, calls: AsyncIterator[ProduceCall | UnparsedCall], window: Window[ProduceInFlight], caller: Caller
    ) -> None:
        failure: Exception | None = None
        try:
            async for received in calls:
                is_refused = self._memory.is_overdrawn(caller.connection)
                await window.admit(await self._take(received, caller, is_refused=is_refused))
        except Exception as error:
            failure = error
        finally:
            window.end(failure)

    async def _take(self, received: ProduceCall | UnparsedCall, caller: Caller, *, is_refused: bool) -> ProduceInFlight:
        """`is_refused`: for want of memory."""
        held = self._memory.hold(caller.connection, received.size_bytes)
        try:
            request = self._request(await self._parse(received, caller))
            if is_refused:
                return await self._api.refuse_for_memory(request)
            return await self._api.submit(request, caller, held)
        finally:
            held.drop()

    async def _parse(self, received: ProduceCall | UnparsedCall, caller: Caller) -> ProduceCall:
        """Raises `UnreadableRequest`."""
        if isinstance(received, ProduceCall):
            return received
        read = RequestReader(pb.ProduceRequest.DESCRIPTOR.name, parse_call, self._unpacked_bytes_max)
        call = await self._calls.compute(functools.partial(read, received.raw), caller.connection)
        if isinstance(call, Unreadable):
            raise UnreadableRequest(call)
        return call

    def _request(self, call: ProduceCall) -> ProduceRequest:
        message = call.message
        return ProduceRequest(
            message.correlation_id,
            message.acks if message.HasField("acks") else ACKS_ALL,
            message.timeout_ms,
            Converted(message.partitions, _destination),
            CallPayload(call, self._unpacked_bytes_max),
        )

    async def _answer(self, in_flight: ProduceInFlight) -> pb.ProduceResponse:
        produced, throttle_ms = await self._api.answer(in_flight)
        response = pb.ProduceResponse(correlation_id=in_flight.correlation_id, throttle_time_ms=throttle_ms)
        await self._shares.begin().extend(response.partitions, map(_encode, produced))
        return response


def _destination(data: pb.PartitionProduceData) -> Destination:
    return Destination(
        TopicPartition(data.topic, data.partition),
        data.topic_id,
        ClaimedStamp(
            data.producer_id if data.HasField("producer_id") else None, data.producer_epoch, data.base_sequence
        ),
        data.current_leader_epoch if data.HasField("current_leader_epoch") else None,
    )


def _encode(produced: PartitionProduced) -> pb.PartitionProduceResponse:
    name, result = produced.partition, produced.result
    if isinstance(result, Refused):
        return with_error(
            pb.PartitionProduceResponse(
                topic=name.topic,
                partition=name.partition,
                base_offset=-1,
                version=-1,
                log_append_time_ms=-1,
                log_start_offset=-1,
                record_errors=[pb.RecordError(index=fault.index, message=fault.message) for fault in produced.faults],
            ),
            result,
        )
    return pb.PartitionProduceResponse(
        topic=name.topic,
        partition=name.partition,
        base_offset=result.base_offset,
        version=result.version,
        log_append_time_ms=result.log_append_time_ms,
        log_start_offset=result.log_start,
        offsets=result.offsets,
    )
