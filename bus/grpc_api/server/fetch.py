"""Fetch: long polls over a stream, answered in order; the client may ask again before it has read the answer.

What an answer takes in memory counts from when its records are read until it is written, against a share of its client:
one that does not read its answers gets smaller ones, and no other client does. Answers that are costly to make are made
in a thread.
"""

from __future__ import annotations

import asyncio
import functools
from collections import Counter
from collections.abc import AsyncIterator, Hashable

import grpc

from bus.errors import ErrorCode, Refused
from bus.grpc_api.server.fetch_answers import Answer, FetchedPartition, encode_answer
from bus.grpc_api.server.fetch_encoding import DEFAULT_FETCH_COLUMNS, check_columns, fit_batches
from bus.grpc_api.server.guards import hold_requests
from bus.grpc_api.server.request_memory import Held, RequestMemory
from bus.grpc_api.server.requests import StreamRegistry, new_request_id
from bus.grpc_api.v1 import bus_pb2 as pb
from bus.model import TopicPartition
from bus.runtime.blocking import BlockingCalls
from bus.runtime.cluster import Cluster
from bus.runtime.logs import request_id
from bus.runtime.loop_shares import LoopShares
from bus.runtime.partitions.fetches import DEFAULT_PARTITION_BYTES_MAX, FetchPosition, FetchWish, fetch

# Requests that wait on one stream for the answers before them.
STREAM_REQUESTS_MAX = 16
# An answer may have so much, however much the client has not read yet.
_ANSWER_BYTES_MIN = 64 * 1024


class FetchHandler:
    """`requests` is the memory of requests that came on streams, `answers` that of what they are answered."""

    def __init__(
        self,
        cluster: Cluster,
        streams: StreamRegistry,
        calls: BlockingCalls,
        requests: RequestMemory,
        answers: RequestMemory,
        shares: LoopShares,
        fetch_bytes_max: int,
    ) -> None:
        self._cluster = cluster
        self._streams = streams
        self._calls = calls
        self._requests = requests
        self._answers = answers
        self._shares = shares
        self._fetch_bytes_max = fetch_bytes_max

    async def once(self, request: pb.FetchRequest, context: grpc.aio.ServicerContext) -> bytes:
        room = _Room(self._answers, context.peer())
        context.add_done_callback(lambda _: room.release())
        return await self._fetch(request, room)

    async def stream(self, requests: AsyncIterator[pb.FetchRequest], context: grpc.aio.ServicerContext) -> None:
        stream_id = new_request_id()
        queue: _Queue = asyncio.Queue(STREAM_REQUESTS_MAX)
        held_requests = hold_requests(self._requests, requests, context.peer())
        reader = self._streams.start(_read(held_requests, queue), f"fetch/{stream_id}")
        reader.add_done_callback(lambda _: _end(queue))
        room = _Room(self._answers, context.peer())
        try:
            while (asked := await queue.get()) is not None:
                if isinstance(asked, Exception):
                    raise asked
                request, held = asked
                try:
                    request_id.set(f"{stream_id}/{request.correlation_id}")
                    await context.write(await self._fetch(request, room))
                finally:
                    room.release()
                    held.drop()
        finally:
            reader.cancel()
            reader.add_done_callback(lambda _: _drop_all(queue))

    async def _fetch(self, request: pb.FetchRequest, room: _Room) -> bytes:
        """A serialized `pb.FetchResponse`: the generated code would copy the records half a dozen times."""
        columns = tuple(request.columns) or DEFAULT_FETCH_COLUMNS
        is_plain = request.format == pb.RECORD_FORMAT_RECORDS
        answer = Answer(request.correlation_id, columns, is_plain)
        asked = _in_turn(request)
        refusal = _check_request(request, columns)
        if refusal is not None:
            names = dict.fromkeys(TopicPartition(item.topic, item.partition) for item in asked)
            answer.results = [(name, 0, refusal) for name in names]
        else:
            wish, answer.results = await self._wish(request, asked, room)
            results = await fetch(wish, self._cluster.host.find, self._streams.draining, self._shares)
            answer.results += [
                (position.partition, position.offset, result)
                for position, (_, result) in zip(wish.positions, results, strict=True)
            ]
            answer.bytes_max = room.granted_bytes
        encode = functools.partial(encode_answer, answer)
        encoded = encode() if answer.is_quick else await self._calls.compute(encode, room.client)
        room.settle(len(encoded))
        return encoded

    async def _wish(
        self, request: pb.FetchRequest, asked: list[pb.FetchPartition], room: _Room
    ) -> tuple[FetchWish, list[FetchedPartition]]:
        """And the answers of partitions that are not fetched: those that the request names twice."""
        counts = Counter((item.topic, item.partition) for item in asked)
        positions: list[FetchPosition] = []
        refused: dict[TopicPartition, Refused] = {}
        share = self._shares.begin()
        for item in asked:
            if share.is_used_up:
                await share.wait()
            name = TopicPartition(item.topic, item.partition)
            times = counts[item.topic, item.partition]
            if times > 1:
                message = f"expected each partition once in a request, found {name} {times} times"
                refused[name] = Refused(ErrorCode.INVALID_REQUEST, message)
            elif item.partition_max_bytes < 0:
                message = f"{name}: expected partition_max_bytes from 0 on, found {item.partition_max_bytes}"
                refused[name] = Refused(ErrorCode.INVALID_FETCH_SIZE, message)
            else:
                positions.append(_position(name, item))
        bytes_max = min(
            request.max_bytes or self._fetch_bytes_max,
            self._fetch_bytes_max,
            sum(position.bytes_max for position in positions),
        )
        wish = FetchWish(
            positions,
            wait_ms_max=0 if refused else max(0, request.max_wait_ms),
            bytes_min=max(0, request.min_bytes),
            reserve=functools.partial(room.reserve, bytes_max),
            release=room.release,
            fit=fit_batches,
        )
        return wish, [(name, 0, refusal) for name, refusal in refused.items()]


class _Room:
    """What the answer of one call takes, or of one stream, where they come one after another."""

    def __init__(self, memory: RequestMemory, client: Hashable) -> None:
        self.client = client
        self.granted_bytes = 0
        self._memory = memory
        self._held: Held | None = None

    def reserve(self, bytes_max: int) -> int:
        self.release()
        self.granted_bytes = min(bytes_max, max(_ANSWER_BYTES_MIN, self._memory.bytes_left(self.client)))
        self._held = self._memory.hold(self.client, self.granted_bytes)
        return self.granted_bytes

    def settle(self, size_bytes: int) -> None:
        """The answer takes so much."""
        self.release()
        self._held = self._memory.hold(self.client, size_bytes)

    def release(self) -> None:
        held, self._held = self._held, None
        if held is not None:
            held.drop()


def _in_turn(request: pb.FetchRequest) -> list[pb.FetchPartition]:
    """The partition that was first last time is last now, so none is starved by `max_bytes`."""
    asked = list(request.partitions)
    first = request.correlation_id % len(asked) if asked else 0
    return asked[first:] + asked[:first]


def _check_request(request: pb.FetchRequest, columns: tuple[str, ...]) -> Refused | None:
    if request.max_bytes < 0:
        return Refused(ErrorCode.INVALID_FETCH_SIZE, f"expected max_bytes from 0 on, found {request.max_bytes}")
    if request.format not in pb.RecordFormat.values():
        known = ", ".join(pb.RecordFormat.keys())
        return Refused(ErrorCode.INVALID_REQUEST, f"expected a format among {known}, found {request.format}")
    return check_columns(columns)


def _position(name: TopicPartition, asked: pb.FetchPartition) -> FetchPosition:
    return FetchPosition(
        name,
        asked.topic_id,
        asked.fetch_offset,
        asked.partition_max_bytes or DEFAULT_PARTITION_BYTES_MAX,
        asked.current_leader_epoch if asked.HasField("current_leader_epoch") else None,
    )


_Asked = tuple[pb.FetchRequest, Held] | Exception | None
_Queue = asyncio.Queue[_Asked]


async def _read(requests: AsyncIterator[tuple[pb.FetchRequest, Held]], queue: _Queue) -> None:
    """A request that cannot be read is raised where its answer would be."""
    try:
        async for request, held in requests:
            try:
                await queue.put((request, held))
            except asyncio.CancelledError:
                held.drop()
                raise
    except Exception as error:
        await queue.put(error)


def _end(queue: _Queue) -> None:
    """If the queue is full, its oldest request is dropped: a fetch that is not answered loses nothing."""
    if queue.full():
        _drop(queue.get_nowait())
    queue.put_nowait(None)


def _drop_all(queue: _Queue) -> None:
    while not queue.empty():
        _drop(queue.get_nowait())


def _drop(asked: _Asked) -> None:
    if isinstance(asked, tuple):
        asked[1].drop()
