"""gRPC's own services: health (grpc.health.v1), which needs no login and says whether the broker serves, and
reflection, which describes the contract to callers who may describe the cluster.

Guards two promises about health: those who watch it count among the streams of their address; and a watcher that does
not read its answers holds up neither others nor the broker's end, as it would in the servicer that comes with gRPC,
which writes to a watcher while it holds the lock of all.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha.reflection import aio

from bus.broker_api.broker_api import BrokerApi
from bus.broker_api.calls import CALLS
from bus.broker_api.client_quotas import CallerPace
from bus.broker_api.logins import LOGIN_SECONDS_MAX
from bus.broker_api.pipeline import Stage, assemble
from bus.broker_api.requests import Caller, InvalidArgument
from bus.grpc_api.server.conversions import caller_of
from bus.grpc_api.server.guards import (
    OpenStreams,
    StreamRegistry,
    guarded,
    guarded_stream,
    hold_requests,
    of_one_request,
)
from bus.grpc_api.server.request_limits import Unreadable, UnreadableRequest, control_reader
from bus.grpc_api.server.service_door import BUS, CLUSTER, REFLECTION

_NAME_LENGTH_MAX = 256  # of a service
_Status = health_pb2.HealthCheckResponse
_NAME: str = health_pb2.DESCRIPTOR.services_by_name["Health"].full_name


class HealthOfServices:
    """The health of the services of all listeners. Belongs to one event loop."""

    def __init__(self) -> None:
        self._statuses: dict[str, int] = {}
        self._is_ending = False
        self._changed = asyncio.Event()  # set once; each change has another one

    def find(self, service: str) -> int | None:
        return self._statuses.get(service)

    def set(self, service: str, status: int) -> None:
        """Without effect after `end`."""
        if not self._is_ending:
            self._statuses[service] = status
            self._announce()

    def end(self) -> None:
        """From now on none serves."""
        self._is_ending = True
        self._statuses = dict.fromkeys(self._statuses, _Status.NOT_SERVING)
        self._announce()

    async def wait_for_change(self) -> None:
        await self._changed.wait()

    def _announce(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()


class HealthServicer:
    """Answers the callers of one listener. `open_streams`: those of all listeners."""

    def __init__(self, health: HealthOfServices, open_streams: OpenStreams, listener: str) -> None:
        self._health = health
        self._open_streams = open_streams
        self._listener = listener
        self.Check = assemble({Stage.GUARD: guarded}, self._check)
        self.Watch = assemble({Stage.GUARD: guarded}, self._watch)

    def handlers(self) -> grpc.GenericRpcHandler:
        """Health is answered without authentication, so a request has as long to arrive as a login may take."""
        reader = control_reader(health_pb2.HealthCheckRequest)
        check, watch = (of_one_request(handle, reader.name, LOGIN_SECONDS_MAX) for handle in (self.Check, self.Watch))
        handlers = {
            "Check": grpc.stream_unary_rpc_method_handler(check, reader, _Status.SerializeToString),
            "Watch": grpc.stream_stream_rpc_method_handler(watch, reader, _Status.SerializeToString),
        }
        return grpc.method_handlers_generic_handler(_NAME, handlers)

    async def _check(self, request: Any, context: grpc.aio.ServicerContext) -> Any:
        status = self._health.find(request.service)
        if status is None:
            await context.abort(grpc.StatusCode.NOT_FOUND, "")
        return _Status(status=status)

    async def _watch(self, request: Any, context: grpc.aio.ServicerContext) -> None:
        if len(request.service) > _NAME_LENGTH_MAX:
            raise InvalidArgument(f"expected a service of at most {_NAME_LENGTH_MAX} characters")
        with self._open_streams.one(caller_of(context, self._listener)):
            await self._report_changes(request.service, context)

    async def _report_changes(self, service: str, context: grpc.aio.ServicerContext) -> None:
        reported: int | None = None
        while True:
            found = self._health.find(service)
            status = _Status.SERVICE_UNKNOWN if found is None else found
            if status == reported:
                await self._health.wait_for_change()
            else:
                await context.write(_Status(status=status))
                reported = status


CALL = "ServerReflectionInfo"
(_NEED,) = CALLS[CALL].needs
_DESCRIBED_SERVICES = (
    BUS.full_name,
    CLUSTER.full_name,
    health_pb2.DESCRIPTOR.services_by_name["Health"].full_name,
    REFLECTION.full_name,
)


class ReflectionServicer:
    """Answers the callers of one listener.

    Guards one promise: where the broker knows its callers, or checks their rights, a caller learns nothing that a call
    of the contract would not tell it. Each request is checked, so an ACL acts on the next one of a stream that is open.
    """

    def __init__(self, api: BrokerApi, streams: StreamRegistry, open_streams: OpenStreams, listener: str) -> None:
        self._api = api
        self._streams = streams
        self._listener = listener
        stages = {Stage.GUARD: guarded_stream, Stage.OPEN_STREAM: open_streams.opened(listener)}
        self.ServerReflectionInfo = assemble(stages, self._stream)
        self._contract = aio.ReflectionServicer(_DESCRIBED_SERVICES)

    async def _stream(self, requests: AsyncIterator[Any], context: grpc.aio.ServicerContext) -> None:
        caller = caller_of(context, self._listener)
        await self._streams.run(self._answer(requests, context, caller), f"reflection/{caller.request_id}")

    async def _answer(self, requests: AsyncIterator[Any], context: grpc.aio.ServicerContext, caller: Caller) -> None:
        async for response in self._contract.ServerReflectionInfo(self._allowed(requests, caller), context):
            await context.write(response)

    async def _allowed(self, requests: AsyncIterator[Any], caller: Caller) -> AsyncIterator[Any]:
        """Raises `UnreadableRequest` at the first that is not."""
        access = self._api.authorizer.access(caller, CALL)
        pace = CallerPace(self._api.quotas, caller)
        async for request, held in hold_requests(self._api.control_memory, requests, pace):
            try:
                refused = await access.refusal(_NEED)
                if refused is not None:
                    raise UnreadableRequest(Unreadable(grpc.StatusCode.PERMISSION_DENIED, refused.message))
                yield request
            finally:
                held.drop()
