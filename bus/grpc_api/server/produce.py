"""Produce: in order per stream, pipelined, bounded.

A reader takes requests off the stream and queues their batches; answers go out in the order of the requests. A client
that does not read its answers, or sends faster than the disk takes, is held back (produce_window.py,
request_memory.py): then nothing more is read from its stream. What is costly to parse, to unpack or to check is done in
a thread, where clients take turns.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import AsyncIterator, Callable, Hashable, Sequence
from dataclasses import dataclass, field, replace

import grpc

from bus.cluster_metadata.names import is_internal_topic
from bus.errors import ErrorCode, Refused
from bus.grpc_api.server.produce_decoding import Decoded, decode_call, decode_quickly
from bus.grpc_api.server.produce_window import Window
from bus.grpc_api.server.produce_wire import ProduceCall, UnparsedCall, parse_call
from bus.grpc_api.server.producers import decode_stamp
from bus.grpc_api.server.record_faults import BLAMES_RECORDS, find_faults
from bus.grpc_api.server.request_limits import RequestReader, Unreadable, UnreadableRequest
from bus.grpc_api.server.request_memory import Held, RequestMemory
from bus.grpc_api.server.requests import StreamRegistry, TakesLong, new_request_id
from bus.grpc_api.server.throttling import DrainRates
from bus.grpc_api.v1 import bus_pb2 as pb
from bus.model import ProducerStamp, RecordBatch, TopicPartition
from bus.partition_log.appends import ACKS_ALL, check_acks
from bus.ports import Clock
from bus.runtime.blocking import BlockingCalls
from bus.runtime.cluster import Cluster
from bus.runtime.loop_shares import LoopShares
from bus.runtime.partitions.partition import Partition
from bus.runtime.partitions.partition_queue import Appended, AppendResult
from bus.runtime.tasks import TaskScope

# Of a refused batch of more, the records at fault are looked for in a thread.
_QUICK_FAULTS_RECORDS = 10_000
_MAY_BE_COMMITTED = "no commit within {} ms; the records may still be committed"
_NO_MEMORY = (
    "the broker has queued.max.request.bytes of requests waiting for a commit, or this client its share; retry later"
)


@dataclass(slots=True)
class _Submitted:
    """`refusal`: it was not queued. `batch` is kept until it is settled: a refusal may be about some of its records."""

    partition: TopicPartition
    refusal: Refused | None = None
    answer: asyncio.Future[AppendResult] | None = None
    batch: RecordBatch | None = None
    size_bytes: int = 0
    faults: Sequence[pb.RecordError] = ()
    search: asyncio.Task[None] | None = None  # for `faults`, in a thread


@dataclass(frozen=True, slots=True)
class _Target:
    """Where a batch goes, and the identity of its producer if that is idempotent."""

    partition: Partition
    stamp: ProducerStamp | None


@dataclass(frozen=True, slots=True)
class _InFlight:
    correlation_id: int
    timeout_ms: int
    deadline_s: float
    size_bytes: int  # as it came, or as its records are, whichever is more
    received_ms: int
    submitted: list[_Submitted] = field(default_factory=list)


class ProduceHandler:
    """`unpacked_bytes_max` bounds what one request may be unpacked to, and what its records take beside their bytes."""

    def __init__(
        self,
        cluster: Cluster,
        clock: Clock,
        streams: StreamRegistry,
        calls: BlockingCalls,
        memory: RequestMemory,
        shares: LoopShares,
        *,
        request_timeout_ms: int,
        unpacked_bytes_max: int,
    ) -> None:
        self._cluster = cluster
        self._clock = clock
        self._streams = streams
        self._calls = calls
        self._memory = memory
        self._shares = shares
        self._request_timeout_ms = request_timeout_ms
        self._unpacked_bytes_max = unpacked_bytes_max
        self._drain_rates = DrainRates()
        self._searches = TaskScope("produce")

    async def once(self, received: ProduceCall | UnparsedCall, client: Hashable) -> pb.ProduceResponse:
        is_refused = not self._memory.has_room(client)
        return await self._answer(await self._take(received, client, new_request_id(), is_refused=is_refused))

    async def stream(self, calls: AsyncIterator[ProduceCall | UnparsedCall], context: grpc.aio.ServicerContext) -> None:
        client = context.peer()
        window: Window[_InFlight] = Window(self._memory, client)
        reader = self._streams.start(self._read(calls, window, client), f"produce/{new_request_id()}")
        try:
            while (in_flight := await window.next()) is not None:
                await context.write(await self._answer(in_flight))
                window.release(in_flight)
        finally:
            reader.cancel()

    async def _read(
        self, calls: AsyncIterator[ProduceCall | UnparsedCall], window: Window[_InFlight], client: Hashable
    ) -> None:
        stream_id = new_request_id()
        failure: Exception | None = None
        try:
            async for received in calls:
                is_refused = self._memory.is_overdrawn(client)
                await window.admit(await self._take(received, client, stream_id, is_refused=is_refused))
        except Exception as error:
            failure = error
        finally:
            window.end(failure)

    # ------------------------------------------------------------------ in

    async def _take(
        self, received: ProduceCall | UnparsedCall, client: Hashable, request_id: str, *, is_refused: bool
    ) -> _InFlight:
        """`is_refused`: for want of memory."""
        held = self._memory.hold(client, received.size_bytes)
        try:
            call = await self._parse(received, client)
            if is_refused:
                refusal = Refused(ErrorCode.THROTTLING_QUOTA_EXCEEDED, _NO_MEMORY)
                return await self._refuse(call, [refusal] * len(call.message.partitions))
            return await self._submit(call, held, client, f"{request_id}/{call.message.correlation_id}")
        finally:
            held.drop()

    async def _parse(self, received: ProduceCall | UnparsedCall, client: Hashable) -> ProduceCall:
        """Raises `UnreadableRequest`."""
        if isinstance(received, ProduceCall):
            return received
        read = RequestReader(pb.ProduceRequest.DESCRIPTOR.name, parse_call, self._unpacked_bytes_max)
        call = await self._calls.compute(functools.partial(read, received.raw), client)
        if isinstance(call, Unreadable):
            raise UnreadableRequest(call)
        return call

    async def _submit(self, call: ProduceCall, held: Held, client: Hashable, request_id: str) -> _InFlight:
        """Queue the batches of all partitions; what is refused has its answer. A partition is looked for before its
        records are decoded, and again when they are: that may have taken a while."""
        request = call.message
        acks = request.acks if request.HasField("acks") else ACKS_ALL
        refusal = check_acks(acks)
        if refusal is not None:
            return await self._refuse(call, [refusal] * len(request.partitions))
        now_ms = self._clock.now_ms()
        share = self._shares.begin()
        targets: list[_Target | Refused] = []
        for data in request.partitions:
            if share.is_used_up:
                await share.wait()
            targets.append(self._find(data, acks))
        refused = [target if isinstance(target, Refused) else None for target in targets]
        try:
            decoded = decode_quickly(call, refused, self._unpacked_bytes_max, now_ms)
            is_stale = share.wait_count > 0
        except TakesLong:
            decode = functools.partial(decode_call, call, refused, self._unpacked_bytes_max, now_ms)
            decoded = await self._calls.compute(decode, client)
            is_stale = True
            share.renew()
        in_flight = self._in_flight(call, decoded, now_ms)
        held.grow_to(in_flight.size_bytes)
        for data, target, item in zip(request.partitions, targets, decoded, strict=True):
            if share.is_used_up:
                await share.wait()
                is_stale = True
            if is_stale and not isinstance(target, Refused):
                target = self._find(data, acks)
            submitted = self._append(data, target, item, acks, request_id, held, in_flight.received_ms)
            in_flight.submitted.append(submitted)
        return in_flight

    async def _refuse(self, call: ProduceCall, refusals: Sequence[Refused]) -> _InFlight:
        in_flight = self._in_flight(call, (), self._clock.now_ms())
        share = self._shares.begin()
        for data, refusal in zip(call.message.partitions, refusals, strict=True):
            if share.is_used_up:
                await share.wait()
            name = TopicPartition(data.topic, data.partition)
            in_flight.submitted.append(_Submitted(name, refusal, size_bytes=call.size_bytes))
        return in_flight

    def _in_flight(self, call: ProduceCall, decoded: Sequence[Decoded], now_ms: int) -> _InFlight:
        timeout_ms = call.message.timeout_ms if call.message.timeout_ms > 0 else self._request_timeout_ms
        record_bytes = sum(item.size_bytes for item in decoded if not isinstance(item, Refused))
        return _InFlight(
            call.message.correlation_id,
            timeout_ms,
            asyncio.get_running_loop().time() + timeout_ms / 1000,
            max(call.size_bytes, record_bytes),
            now_ms,
        )

    def _find(self, data: pb.PartitionProduceData, acks: int) -> _Target | Refused:
        """Where the batch goes, if it may, as far as is known without its records."""
        name = TopicPartition(data.topic, data.partition)
        partition = self._cluster.host.find(name, data.topic_id)
        if isinstance(partition, Refused):
            return partition
        if is_internal_topic(data.topic):
            message = f"{data.topic} is internal, only the bus writes to it"
            return Refused(ErrorCode.INVALID_TOPIC_EXCEPTION, message)
        stamp = decode_stamp(data, acks)
        if stamp is None:
            return _Target(partition, None)
        refusal = stamp if isinstance(stamp, Refused) else self._cluster.producers.check(stamp)
        if refusal is not None:
            return Refused(refusal.code, f"{name}: {refusal.message}")
        assert not isinstance(stamp, Refused)
        return _Target(partition, stamp)

    def _append(
        self,
        data: pb.PartitionProduceData,
        target: _Target | Refused,
        decoded: Decoded,
        acks: int,
        request_id: str,
        held: Held,
        received_ms: int,
    ) -> _Submitted:
        name = TopicPartition(data.topic, data.partition)
        if isinstance(target, Refused):
            return _refused(name, target)
        if isinstance(decoded, Refused):
            return _refused(name, Refused(decoded.code, f"{name}: {decoded.message}"))
        batch = decoded if target.stamp is None else replace(decoded, producer=target.stamp)
        submitted = _Submitted(name, None, None, batch, batch.size_bytes)
        held.use()
        submitted.answer = target.partition.append(
            batch,
            acks=acks,
            current_leader_epoch=data.current_leader_epoch if data.HasField("current_leader_epoch") else None,
            request_id=request_id,
            on_settled=functools.partial(self._settle, submitted, held, received_ms),
        )
        return submitted

    def _settle(self, submitted: _Submitted, held: Held, received_ms: int, result: AppendResult) -> None:
        """Its records are committed or dropped; from here on only the answer is kept, for as long as it is not read."""
        batch, submitted.batch = submitted.batch, None
        rules = self._cluster.host.append_rules(submitted.partition.topic)
        if batch is None or rules is None or not isinstance(result, Refused) or result.code not in BLAMES_RECORDS:
            held.drop()
            return
        find = functools.partial(
            find_faults, batch, result, rules, received_ms=received_ms, answered_ms=self._clock.now_ms()
        )
        if batch.record_count <= _QUICK_FAULTS_RECORDS:
            held.drop()
            submitted.faults = find()
        else:
            submitted.search = self._searches.start(self._search(submitted, find, held), "faults")

    async def _search(self, submitted: _Submitted, find: Callable[[], list[pb.RecordError]], held: Held) -> None:
        try:
            submitted.faults = await self._calls.compute(find, held.client)
        finally:
            held.drop()

    # ------------------------------------------------------------------ out

    async def _answer(self, in_flight: _InFlight) -> pb.ProduceResponse:
        loop, share = asyncio.get_running_loop(), self._shares.begin()
        late = Refused(ErrorCode.REQUEST_TIMED_OUT, _MAY_BE_COMMITTED.format(in_flight.timeout_ms))
        response = pb.ProduceResponse(correlation_id=in_flight.correlation_id)
        for item in in_flight.submitted:
            if share.is_used_up:
                await share.wait()
            result: AppendResult | None = item.refusal
            if item.answer is not None:
                if not item.answer.done() and (timeout_s := in_flight.deadline_s - loop.time()) > 0:
                    await asyncio.wait([item.answer], timeout=timeout_s)
                    share.renew()
                result = item.answer.result() if item.answer.done() else late
            if item.search is not None:
                await asyncio.wait([item.search])
                share.renew()
            assert result is not None, f"the batch for {item.partition} was neither queued nor refused"
            self._encode_answer(item, result, response, loop.time())
        return response

    def _encode_answer(
        self, item: _Submitted, result: AppendResult, response: pb.ProduceResponse, now_s: float
    ) -> None:
        if isinstance(result, Appended):
            if item.size_bytes:
                self._drain_rates.add_drained(item.partition, item.size_bytes, now_s)
            response.partitions.append(_encode(item.partition, result))
            return
        if result.code is ErrorCode.THROTTLING_QUOTA_EXCEEDED:
            wait_ms = self._drain_rates.throttle_ms(item.partition, item.size_bytes, now_s)
            response.throttle_time_ms = max(response.throttle_time_ms, wait_ms)
        response.partitions.append(_encode_refusal(item.partition, result, item.faults))


def _refused(partition: TopicPartition, refusal: Refused) -> _Submitted:
    return _Submitted(partition, refusal)


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
