"""GroupSession: a member's heartbeats and offset commits on one stream, and the coordinator's word in between.

Theory of operation. A reader takes requests off the stream: a heartbeat is answered at once, an offset commit when it
is committed, also if other requests came behind it meanwhile. Answers and notices wait in one list for the writer. A
notice goes to the stream on which the member's last heartbeat came. Bounded: a stream whose answers are not read, or
with too many commits under way, is not read either, nor is one whose client has its share of the memory of requests: a
request counts until its answer is written.
"""

from __future__ import annotations

import asyncio
import functools
from collections import deque
from collections.abc import AsyncIterator

import grpc

from bus.broker_api.authorization import Access, Authorizer
from bus.broker_api.client_quotas import CallerPace, ClientQuotas
from bus.broker_api.groups import GroupApi, OffsetCommitting
from bus.broker_api.requests import Held, InvalidArgument, RequestMemory
from bus.consumer_groups.requests import GroupAnswer, HeartbeatTaken
from bus.errors import ErrorCode, Refused
from bus.grpc_api.server import group_calls as calls
from bus.grpc_api.server.conversions import caller_of
from bus.grpc_api.server.guards import StreamRegistry, hold_requests
from bus.grpc_api.v1 import bus_pb2 as pb
from bus.runtime.logs import request_id

# Requests of one stream whose answers have not been written.
STREAM_REQUESTS_MAX = 256


class GroupSessionHandler:
    def __init__(
        self,
        api: GroupApi,
        authorizer: Authorizer,
        quotas: ClientQuotas,
        streams: StreamRegistry,
        memory: RequestMemory,
        listener: str,
    ) -> None:
        self._api = api
        self._authorizer = authorizer
        self._quotas = quotas
        self._listener = listener
        self._streams = streams
        self._memory = memory

    async def stream(self, requests: AsyncIterator[pb.GroupSessionRequest], context: grpc.aio.ServicerContext) -> None:
        caller = caller_of(context, self._listener)
        session = _Session(self._api, self._authorizer.access(caller, "GroupSession"))
        held_requests = hold_requests(self._memory, requests, CallerPace(self._quotas, caller))
        reader = self._streams.start(session.read(held_requests), f"group/{request_id.get()}")
        reader.add_done_callback(session.end)
        try:
            while (found := await session.next_response()) is not None:
                response, held = found
                try:
                    await context.write(response)
                finally:
                    _drop(held)
            if session.failure is not None:
                raise session.failure
        finally:
            reader.cancel()
            session.close()


_Response = tuple[pb.GroupSessionResponse, Held | None]  # and the request that it answers, if it answers one


class _Session:
    def __init__(self, api: GroupApi, access: Access) -> None:
        self._api = api
        self._access = access
        self._responses: deque[_Response] = deque()
        self._has_news = asyncio.Event()
        self._has_room = asyncio.Event()
        self._unanswered = 0  # requests that were read and have no answer among the responses, nor had one
        self._is_ended = self._is_closed = False
        self._member: tuple[str, str] | None = None  # whose notices come here
        self._tell = self._on_notice  # one and the same object, by which the coordinator knows this session
        self.failure: Exception | None = None  # why the rest of the stream is not read

    # ------------------------------------------------------------------ in

    async def read(self, requests: AsyncIterator[tuple[pb.GroupSessionRequest, Held]]) -> None:
        try:
            await self._read(requests)
        except Exception as error:
            self.failure = error

    async def _read(self, requests: AsyncIterator[tuple[pb.GroupSessionRequest, Held]]) -> None:
        async for request, held in requests:
            held.use()  # by its answer
            try:
                match request.WhichOneof("call"):
                    case "heartbeat":
                        await self._heartbeat(request, held)
                    case "offset_commit":
                        await self._commit(request, held)
                    case _:
                        raise InvalidArgument("expected a heartbeat or an offset commit, found neither")
            except BaseException:
                held.drop()
                raise
            finally:
                held.drop()
            while self._unanswered + len(self._responses) >= STREAM_REQUESTS_MAX:
                self._has_room.clear()
                await self._has_room.wait()

    async def _heartbeat(self, request: pb.GroupSessionRequest, held: Held) -> None:
        command = calls.decode_heartbeat(request.heartbeat)
        answer = await self._api.heartbeat(self._access, command)
        if isinstance(answer, Refused) and answer.code is ErrorCode.GROUP_AUTHORIZATION_FAILED:
            self._stop_listening()  # to notices of a group that the member may not read any more
            self._respond_to_heartbeat(request, answer, held)
            return
        member = (command.group_id, command.member_id)
        if member != self._member:
            self._stop_listening()
            self._member = member
        self._api.listen(*member, self._tell)
        self._respond_to_heartbeat(request, answer, held)

    def _respond_to_heartbeat(
        self, request: pb.GroupSessionRequest, answer: HeartbeatTaken | Refused, held: Held
    ) -> None:
        self._respond(
            pb.GroupSessionResponse(correlation_id=request.correlation_id, heartbeat=calls.encode_heartbeat(answer)),
            held,
        )

    async def _commit(self, request: pb.GroupSessionRequest, held: Held) -> None:
        asked = request.offset_commit
        committing = await self._api.begin_commit(self._access, calls.member_of(asked), calls.offsets_of(asked))
        self._unanswered += 1
        committing.answer.add_done_callback(functools.partial(self._on_committed, request, committing, held))

    # ------------------------------------------------------------------ out

    def _on_committed(
        self,
        request: pb.GroupSessionRequest,
        committing: OffsetCommitting,
        held: Held,
        answer: asyncio.Future[GroupAnswer],
    ) -> None:
        self._unanswered -= 1
        self._has_news.set()
        if answer.cancelled() or self._is_closed:
            held.drop()
            return
        response = calls.encode_commit(request.offset_commit, committing.outcomes())
        self._respond(pb.GroupSessionResponse(correlation_id=request.correlation_id, offset_commit=response), held)

    def _on_notice(self, refused: Refused) -> None:
        self._respond(pb.GroupSessionResponse(heartbeat=calls.encode_heartbeat(refused)))

    def _respond(self, response: pb.GroupSessionResponse, held: Held | None = None) -> None:
        """`held`: the request that it answers."""
        self._responses.append((response, held))
        self._has_news.set()

    def end(self, _: asyncio.Task[None]) -> None:
        """Nothing more is read; what was read is still answered."""
        self._is_ended = True
        self._has_news.set()

    async def next_response(self) -> _Response | None:
        """None: all that was read is answered."""
        while not self._responses:
            if self._is_ended and not self._unanswered:
                return None
            self._has_news.clear()
            await self._has_news.wait()
        self._has_room.set()
        return self._responses.popleft()

    def close(self) -> None:
        self._is_closed = True
        self._stop_listening()
        while self._responses:
            _drop(self._responses.popleft()[1])

    def _stop_listening(self) -> None:
        if self._member is not None:
            self._api.unlisten(*self._member, self._tell)


def _drop(held: Held | None) -> None:
    if held is not None:
        held.drop()
