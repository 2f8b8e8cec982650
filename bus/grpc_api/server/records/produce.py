"""Produce over gRPC, in order per stream, pipelined, bounded; and the identities of idempotent producers.

A reader takes requests off the stream and has their batches queued; answers go out in the order of the requests. What
is costly to parse is parsed in a thread. Guards one promise: a client that sends faster than the disk takes, or that
does not read its answers, is held back (`Window`, requests.py) and fills no memory; nothing more is read from its
stream.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import itertools
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Generic, Protocol, TypeVar

import grpc

from bus.broker_api.authorization import Access, Authorizer
from bus.broker_api.client_quotas import CallerPace, ClientQuotas
from bus.broker_api.pipeline import read_in_turn
from bus.broker_api.produce import Destination, PartitionProduced, ProduceApi, ProduceInFlight, ProduceRequest
from bus.broker_api.requests import Caller, Held, RequestMemory
from bus.broker_api.transactions import ClaimedStamp, ProducerApi
from bus.errors import Refused
from bus.grpc_api.server.conversions import Converted, caller_of, encode_leader, with_error
from bus.grpc_api.server.guards import StreamRegistry, check_login
from bus.grpc_api.server.records.produce_decoding import CallPayload, ProduceCall, UnparsedCall, parse_call
from bus.grpc_api.server.request_limits import RequestReader, Unreadable, UnreadableRequest
from bus.grpc_api.v1 import bus_pb2 as pb
from bus.model import TopicPartition
from bus.partition_log.appends import ACKS_ALL
from bus.runtime.blocking import BlockingCalls
from bus.runtime.partitions.partition_queue import ResumeResult
from bus.runtime.tasks import LoopShares
from bus.security.quotas import PRODUCER_BYTE_RATE, REQUEST_RATE

_QUOTAS = (PRODUCER_BYTE_RATE, REQUEST_RATE)


@dataclass(frozen=True, slots=True)
class _Received:
    """A request, and what it takes in memory; None: there was no room for it."""

    call: ProduceCall | UnparsedCall
    held: Held | None


def _size_of(call: ProduceCall | UnparsedCall) -> int:
    return call.size_bytes


class ProduceHandler:
    """`unpacked_bytes_max` bounds what one request may be unpacked to, and what its records take beside their bytes."""

    def __init__(
        self,
        api: ProduceApi,
        authorizer: Authorizer,
        quotas: ClientQuotas,
        streams: StreamRegistry,
        calls: BlockingCalls,
        memory: RequestMemory,
        shares: LoopShares,
        *,
        unpacked_bytes_max: int,
        listener: str,
    ) -> None:
        self._api = api
        self._authorizer = authorizer
        self._quotas = quotas
        self._streams = streams
        self._calls = calls
        self._memory = memory
        self._shares = shares
        self._unpacked_bytes_max = unpacked_bytes_max
        self._listener = listener
        self._encode = functools.partial(_encode, listener=listener)

    @contextlib.contextmanager
    def held(self, request: Any, context: grpc.aio.ServicerContext) -> Iterator[Sequence[Any]]:
        """The stage HOLD_MEMORY of a single request. One without room is refused partition by partition."""
        if isinstance(request, Unreadable):
            yield request, context
            return
        client = context.peer()
        held = self._memory.hold(client, request.size_bytes) if self._memory.has_room(client) else None
        try:
            yield _Received(request, held), context
        finally:
            if held is not None:
                held.drop()

    async def pace(self, received: _Received, context: grpc.aio.ServicerContext, access: Access) -> None:
        """The stage PACE of a single request. Raises `OverQuota`."""
        if received.held is None:
            return
        pace = CallerPace(self._quotas, access.caller, *_QUOTAS)
        if pace.is_held:
            await pace.wait_or_refuse(context.time_remaining())
            check_login()  # it may have waited for long
        pace.note_request()

    async def once(self, received: _Received, _: grpc.aio.ServicerContext, access: Access) -> pb.ProduceResponse:
        pace = CallerPace(self._quotas, access.caller, *_QUOTAS)
        return await self._answer(await self._take(received, pace, access))

    async def stream(self, calls: AsyncIterator[ProduceCall | UnparsedCall], context: grpc.aio.ServicerContext) -> None:
        caller = caller_of(context, self._listener)
        window: Window[ProduceInFlight] = Window()
        pace = CallerPace(self._quotas, caller, *_QUOTAS)
        reader = self._streams.start(self._read(calls, window, pace), f"produce/{caller.request_id}")
        try:
            while (in_flight := await window.next()) is not None:
                await context.write(await self._answer(in_flight))
                window.release(in_flight)
        finally:
            reader.cancel()

    async def _read(
        self, calls: AsyncIterator[ProduceCall | UnparsedCall], window: Window[ProduceInFlight], pace: CallerPace
    ) -> None:
        failure: Exception | None = None
        access = self._authorizer.access(pace.caller, "Produce")
        try:
            async for call, held in read_in_turn(calls, self._memory, pace, _size_of):
                try:
                    in_flight = await self._take(_Received(call, held), pace, access)
                finally:
                    if held is not None:
                        held.drop()
                await window.admit(in_flight)
        except Exception as error:
            failure = error
        finally:
            window.end(failure)

    async def _take(self, received: _Received, pace: CallerPace, access: Access) -> ProduceInFlight:
        """Have its batches queued. A request that goes over the quota is taken all the same; the next one of those who
        share it waits."""
        caller, call = pace.caller, received.call
        throttle_ms = pace.note_produced(call.size_bytes)
        if received.held is None:
            pace.note_request()
            with self._memory.holding(caller.connection, call.size_bytes):
                return await self._api.refuse_for_memory(self._request(await self._parse(call, caller)))
        request = self._request(await self._parse(call, caller))
        in_flight = await self._api.submit(access, request, received.held)
        return replace(in_flight, throttle_ms=throttle_ms) if throttle_ms else in_flight

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
            message.transactional_id,
            message.names_last_sequences,
        )

    async def _answer(self, in_flight: ProduceInFlight) -> pb.ProduceResponse:
        produced, throttle_ms = await self._api.answer(in_flight)
        throttle_ms = max(throttle_ms, in_flight.throttle_ms)
        response = pb.ProduceResponse(correlation_id=in_flight.correlation_id, throttle_time_ms=throttle_ms)
        await self._shares.begin().extend(response.partitions, map(self._encode, produced))
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


def _encode(produced: PartitionProduced, *, listener: str) -> pb.PartitionProduceResponse:
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
                current_leader=encode_leader(produced.leader, listener),
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


class ProducerHandler:
    def __init__(self, api: ProducerApi, shares: LoopShares) -> None:
        self._api = api
        self._shares = shares

    async def init(self, access: Access, request: pb.InitProducerIdRequest) -> pb.InitProducerIdResponse:
        identity = await self._api.init(
            access,
            request.name or None,
            producer_id=request.producer_id if request.HasField("producer_id") else None,
            producer_epoch=request.producer_epoch,
            keeps_epoch=request.keep_epoch,
            instance_id=request.instance_id,
        )
        if isinstance(identity, Refused):
            return with_error(pb.InitProducerIdResponse(producer_id=-1, producer_epoch=-1), identity)
        return pb.InitProducerIdResponse(producer_id=identity.producer_id, producer_epoch=identity.producer_epoch)

    async def resume(self, access: Access, request: pb.ResumeProducerRequest) -> pb.ResumeProducerResponse:
        partitions = Converted(request.partitions, _resumed_partition)
        results = await self._api.resume(access, request.producer_id, request.producer_epoch, partitions)
        response = pb.ResumeProducerResponse()
        resumed = itertools.starmap(_resumed, zip(request.partitions, results, strict=True))
        await self._shares.begin().extend(response.partitions, resumed)
        return response


def _resumed_partition(asked: pb.ResumeProducerPartition) -> tuple[TopicPartition, str]:
    return TopicPartition(asked.topic, asked.partition), asked.topic_id


def _resumed(asked: pb.ResumeProducerPartition, result: ResumeResult) -> pb.ResumeProducerPartitionResponse:
    answer = pb.ResumeProducerPartitionResponse(topic=asked.topic, partition=asked.partition)
    if isinstance(result, Refused):
        answer.last_sequence = answer.last_epoch = answer.version = -1
        return with_error(answer, result)
    answer.last_sequence, answer.last_epoch, answer.version = result.last_sequence, result.last_epoch, result.version
    return answer


STREAM_BYTES_MAX = 32 * 1024 * 1024
STREAM_REQUESTS_MAX = 1024


class Sized(Protocol):
    @property
    def size_bytes(self) -> int: ...


RequestT = TypeVar("RequestT", bound=Sized)


class Window(Generic[RequestT]):
    """The requests that one stream has in flight, in order. `admit` waits while a bound is reached."""

    def __init__(self) -> None:
        self._queue: asyncio.Queue[RequestT | None] = asyncio.Queue()
        self._room = asyncio.Event()
        self._room.set()
        self._bytes = 0
        self._requests = 0
        self._failure: Exception | None = None

    async def admit(self, request: RequestT) -> None:
        """Returns when this stream has room for the next one."""
        self._bytes += request.size_bytes
        self._requests += 1
        self._queue.put_nowait(request)
        while self._is_full():
            self._room.clear()
            await self._room.wait()

    async def next(self) -> RequestT | None:
        """None after the last one. Raises the failure that ended the stream, once all before it was taken."""
        request = await self._queue.get()
        if request is None and self._failure is not None:
            raise self._failure
        return request

    def release(self, request: RequestT) -> None:
        """It is answered."""
        self._bytes -= request.size_bytes
        self._requests -= 1
        if not self._is_full():
            self._room.set()

    def end(self, failure: Exception | None = None) -> None:
        """Nothing more is admitted, since all is read or because of `failure`."""
        self._failure = failure
        self._queue.put_nowait(None)

    def _is_full(self) -> bool:
        return self._bytes >= STREAM_BYTES_MAX or self._requests >= STREAM_REQUESTS_MAX
