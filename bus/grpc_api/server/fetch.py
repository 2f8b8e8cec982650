"""Fetch over gRPC: long polls on a stream, answered in order; the client may ask again before it has read the answer.
Answers that are costly to make are made in a thread."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import AsyncIterator

import grpc

from bus.broker_api.fetch import AnswerRoom, FetchApi, FetchRequest
from bus.broker_api.request_memory import Held, RequestMemory
from bus.errors import ErrorCode, Refused
from bus.grpc_api.server.conversions import Converted
from bus.grpc_api.server.fetch_answers import Answer, encode_answer
from bus.grpc_api.server.fetch_encoding import DEFAULT_FETCH_COLUMNS, check_columns, fit_batches
from bus.grpc_api.server.guards import hold_requests
from bus.grpc_api.server.streams import StreamRegistry
from bus.grpc_api.v1 import bus_pb2 as pb
from bus.model import TopicPartition
from bus.runtime.blocking import BlockingCalls
from bus.runtime.logs import request_id
from bus.runtime.partitions.fetches import DEFAULT_PARTITION_BYTES_MAX, FetchPosition

# Requests that wait on one stream for the answers before them.
STREAM_REQUESTS_MAX = 16


class FetchHandler:
    """`requests` is the memory of requests that came on streams."""

    def __init__(self, api: FetchApi, streams: StreamRegistry, calls: BlockingCalls, requests: RequestMemory) -> None:
        self._api = api
        self._streams = streams
        self._calls = calls
        self._requests = requests

    async def once(self, request: pb.FetchRequest, context: grpc.aio.ServicerContext) -> bytes:
        room = self._api.room_for(context.peer())
        context.add_done_callback(lambda _: room.release())
        return await self._fetch(request, room)

    async def stream(self, requests: AsyncIterator[pb.FetchRequest], context: grpc.aio.ServicerContext) -> None:
        stream_id = request_id.get()
        queue: _Queue = asyncio.Queue(STREAM_REQUESTS_MAX)
        held_requests = hold_requests(self._requests, requests, context.peer())
        reader = self._streams.start(_read(held_requests, queue), f"fetch/{stream_id}")
        reader.add_done_callback(lambda _: _end(queue))
        room = self._api.room_for(context.peer())
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

    async def _fetch(self, request: pb.FetchRequest, room: AnswerRoom) -> bytes:
        """A serialized `pb.FetchResponse`: the generated code would copy the records half a dozen times."""
        columns = tuple(request.columns) or DEFAULT_FETCH_COLUMNS
        asked = FetchRequest(
            Converted(request.partitions, _position),
            request.max_bytes,
            request.min_bytes,
            request.max_wait_ms,
            turn=request.correlation_id,
        )
        refusal = _check_form(request, columns)
        if refusal is not None:
            found = await self._api.refuse(asked, refusal)
        else:
            found = await self._api.fetch(asked, room, fit_batches)
        is_plain = request.format == pb.RECORD_FORMAT_RECORDS
        answer = Answer(request.correlation_id, columns, is_plain, found, room.granted_bytes)
        encode = functools.partial(encode_answer, answer)
        encoded = encode() if answer.is_quick else await self._calls.compute(encode, room.client)
        room.settle(len(encoded))
        return encoded


def _check_form(request: pb.FetchRequest, columns: tuple[str, ...]) -> Refused | None:
    """Of the records in the answer."""
    if request.format not in pb.RecordFormat.values():
        known = ", ".join(pb.RecordFormat.keys())
        return Refused(ErrorCode.INVALID_REQUEST, f"expected a format among {known}, found {request.format}")
    return check_columns(columns)


def _position(asked: pb.FetchPartition) -> FetchPosition:
    return FetchPosition(
        TopicPartition(asked.topic, asked.partition),
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
