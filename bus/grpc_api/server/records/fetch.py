"""Fetch over gRPC: long polls on a stream, answered in order; the client may ask again before it has read the answer.
Answers that are costly to make are made in a thread. At DEBUG the log says of each answer where its time went."""

from __future__ import annotations

import asyncio
import functools
import logging
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

import grpc

from bus.broker_api.authorization import Access, Authorizer
from bus.broker_api.client_quotas import CallerPace, ClientQuotas
from bus.broker_api.fetch import AnswerRoom, FetchApi, FetchRequest
from bus.broker_api.requests import Held, InvalidArgument, RequestMemory
from bus.errors import ErrorCode, Refused, count_of
from bus.grpc_api.server.conversions import Converted, caller_of
from bus.grpc_api.server.guards import StreamRegistry, hold_requests, until_logout
from bus.grpc_api.server.records.fetch_encoding import (
    DEFAULT_FETCH_COLUMNS,
    Answer,
    check_columns,
    encode_answer,
    fit_batches,
)
from bus.grpc_api.v1 import bus_pb2 as pb
from bus.grpc_api.value_messages import decode_partitions
from bus.model import TopicPartition
from bus.runtime.blocking import BlockingCalls
from bus.runtime.logs import request_id
from bus.runtime.partitions.fetch_session import FetchPosition, FetchSession
from bus.runtime.partitions.fetches import DEFAULT_PARTITION_BYTES_MAX, FetchTimes
from bus.security.quotas import CONSUMER_BYTE_RATE

_log = logging.getLogger(__name__)

# Requests that wait on one stream for the answers before them.
STREAM_REQUESTS_MAX = 16


class FetchHandler:
    """`requests` is the memory of requests that came on streams."""

    def __init__(
        self,
        api: FetchApi,
        authorizer: Authorizer,
        quotas: ClientQuotas,
        streams: StreamRegistry,
        calls: BlockingCalls,
        requests: RequestMemory,
        listener: str,
    ) -> None:
        self._api = api
        self._authorizer = authorizer
        self._quotas = quotas
        self._streams = streams
        self._calls = calls
        self._requests = requests
        self._listener = listener

    async def once(self, request: pb.FetchRequest, context: grpc.aio.ServicerContext, access: Access) -> bytes:
        pace = CallerPace(self._quotas, access.caller, CONSUMER_BYTE_RATE)
        room = self._api.room_for(pace.caller.connection)
        context.add_done_callback(lambda _: room.release())
        answered = _Answered(request)
        with until_logout():
            encoded = await self._fetch(answered, room, pace, access, None)
            await pace.wait(context.time_remaining())
        _log_answer(answered, len(encoded))
        return encoded

    async def stream(self, requests: AsyncIterator[pb.FetchRequest], context: grpc.aio.ServicerContext) -> None:
        stream_id = request_id.get()
        queue: _Queue = asyncio.Queue(STREAM_REQUESTS_MAX)
        caller = caller_of(context, self._listener)
        pace = CallerPace(self._quotas, caller, CONSUMER_BYTE_RATE)
        held_requests = hold_requests(self._requests, requests, CallerPace(self._quotas, caller))
        reader = self._streams.start(_read(held_requests, queue), f"fetch/{stream_id}")
        reader.add_done_callback(lambda _: _end(queue))
        room = self._api.room_for(caller.connection)
        access = self._authorizer.access(caller, "Fetch")
        session = _StreamSession(self._api)
        try:
            while (asked := await queue.get()) is not None:
                if isinstance(asked, Exception):
                    raise asked
                answered, held = asked
                try:
                    request_id.set(f"{stream_id}/{answered.request.correlation_id}")
                    with until_logout():
                        encoded = await self._fetch(answered, room, pace, access, session)
                    written = _now_ms()
                    await context.write(encoded)
                    answered.write_ms = _now_ms() - written
                    _log_answer(answered, len(encoded))
                finally:
                    room.release()
                    held.drop()
                with until_logout():
                    await pace.wait()
        finally:
            session.end()
            reader.cancel()
            reader.add_done_callback(lambda _: _drop_all(queue))

    async def _fetch(
        self,
        answered: _Answered,
        room: AnswerRoom,
        pace: CallerPace,
        access: Access,
        of_stream: _StreamSession | None,
    ) -> bytes:
        """A serialized `pb.FetchResponse`: the generated code would copy the records half a dozen times. One that is
        over the caller's quota has no partitions, and nothing is read for one that is before it begins."""
        request = answered.request
        held_ms = pace.throttle_ms()
        if held_ms:
            if of_stream is not None:
                of_stream.end()
            return _throttled(request, held_ms)
        session = None if of_stream is None else of_stream.take(request)
        answered.queued_ms = _now_ms() - answered.arrived_ms
        columns = tuple(request.columns) or DEFAULT_FETCH_COLUMNS
        quota_bytes_max = pace.fetch_bytes_max()
        asked = FetchRequest(
            Converted(request.partitions, _position),
            request.max_bytes,
            request.min_bytes,
            request.max_wait_ms,
            turn=request.correlation_id,
            rack=request.rack_id if session is None else "",
            session=session,
            forgotten=decode_partitions(request.forgotten),
            quota_bytes_max=quota_bytes_max,
        )
        refusal = _check_form(request, columns)
        if refusal is not None:
            found = await self._api.refuse(asked, refusal)
        else:
            found = await self._api.fetch(access, asked, room, fit_batches, answered.times)
        is_plain = request.format == pb.RECORD_FORMAT_RECORDS
        in_session = None
        if of_stream is not None and session is not None:
            in_session = self._api.may_go_on(session)
            if not in_session:
                of_stream.end()
        answer = Answer(
            request.correlation_id, columns, is_plain, found, room.granted_bytes, self._listener, in_session
        )
        encode = functools.partial(encode_answer, answer)
        began = _now_ms()
        encoded = encode() if answer.is_quick else await self._calls.compute(encode, room.client)
        answered.encode_ms = _now_ms() - began
        throttle_ms, is_given = pace.note_fetched(len(encoded))
        if throttle_ms:
            encoded = _throttled(request, throttle_ms) + (encoded if is_given else b"")
            if of_stream is not None and not is_given:
                of_stream.end()  # what it has told was not given
        room.settle(len(encoded))
        return encoded


def _throttled(request: pb.FetchRequest, throttle_ms: int) -> bytes:
    """An answer without partitions, or what stands before one that has some."""
    answer: bytes = pb.FetchResponse(
        correlation_id=request.correlation_id, throttle_time_ms=throttle_ms
    ).SerializeToString()
    return answer


class _StreamSession:
    """The session of one stream, while it has one: see `FetchSession` in bus.proto."""

    def __init__(self, api: FetchApi) -> None:
        self._api = api
        self._session: FetchSession | None = None

    def take(self, request: pb.FetchRequest) -> FetchSession | None:
        """The one that the next request of the stream is part of. Raises `InvalidArgument`."""
        is_continued = request.session == pb.FETCH_SESSION_CONTINUE
        if is_continued and self._session is None:
            raise InvalidArgument("expected FETCH_SESSION_CONTINUE behind an answer that was in_session, found none")
        if request.forgotten and not is_continued:
            raise InvalidArgument("expected forgotten partitions with FETCH_SESSION_CONTINUE only")
        if not is_continued:
            self.end()
            if request.session == pb.FETCH_SESSION_BEGIN and not request.rack_id:
                self._session = self._api.begin_session()
        return self._session

    def end(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            session.close()


def _now_ms() -> float:
    return asyncio.get_running_loop().time() * 1000


@dataclass(slots=True)
class _Answered:
    """A request, and where the time of its answer went, in milliseconds."""

    request: pb.FetchRequest
    arrived_ms: float = field(default_factory=_now_ms)
    queued_ms: float = 0.0  # behind the answers before it on its stream
    times: FetchTimes = field(default_factory=lambda: FetchTimes(_now_ms))
    encode_ms: float = 0.0
    write_ms: float = 0.0  # until gRPC took it, which waits for a client that does not read


def _log_answer(answered: _Answered, size_bytes: int) -> None:
    if not _log.isEnabledFor(logging.DEBUG):
        return
    request, times = answered.request, answered.times
    _log.debug(
        "fetch of %s answered with %d bytes in %.1f ms, ended by %s: %.1f behind earlier answers, "
        "%.1f proving, %.1f waiting (max_wait_ms %d, min_bytes %d), %.1f reading, %.1f encoding, %.1f writing",
        count_of(len(request.partitions), "partition"),
        size_bytes,
        _now_ms() - answered.arrived_ms,
        times.end.value,
        answered.queued_ms,
        times.proved_ms,
        times.waited_ms,
        times.wait_ms_max,
        times.bytes_min,
        times.read_ms,
        answered.encode_ms,
        answered.write_ms,
    )


def _check_form(request: pb.FetchRequest, columns: tuple[str, ...]) -> Refused | None:
    """Check the form of the records in the answer."""
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
        asked.seen_version if asked.HasField("seen_version") else None,
    )


_Asked = tuple[_Answered, Held] | Exception | None
_Queue = asyncio.Queue[_Asked]


async def _read(requests: AsyncIterator[tuple[pb.FetchRequest, Held]], queue: _Queue) -> None:
    """A request that cannot be read is raised where its answer would be."""
    try:
        async for request, held in requests:
            try:
                await queue.put((_Answered(request), held))
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
