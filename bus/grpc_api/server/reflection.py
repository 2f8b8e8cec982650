"""The contract, told to those who ask for it: gRPC's reflection, for callers who may describe the cluster.

Guards one promise: where the broker knows its callers, or asks who may do what, nothing is told that a call of the
contract would not tell them. Each request is checked, so an ACL acts on the next one of a stream that is open.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import grpc
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha.reflection import aio

from bus.broker_api.broker_api import BrokerApi
from bus.broker_api.call_permissions import CALL_RULES
from bus.broker_api.caller_pace import CallerPace
from bus.broker_api.requests import Caller
from bus.grpc_api.server.conversions import caller_of
from bus.grpc_api.server.guards import StreamRegistry, guard_stream, hold_requests
from bus.grpc_api.server.open_streams import OpenStreams
from bus.grpc_api.server.request_limits import Unreadable, UnreadableRequest
from bus.grpc_api.server.service_door import BUS, CLUSTER, REFLECTION

CALL = "ServerReflectionInfo"
(_NEED,) = CALL_RULES[CALL].request
_TOLD = (
    BUS.full_name,
    CLUSTER.full_name,
    health_pb2.DESCRIPTOR.services_by_name["Health"].full_name,
    REFLECTION.full_name,
)


class ReflectionServicer:
    """For the callers of one listener."""

    def __init__(self, api: BrokerApi, streams: StreamRegistry, open_streams: OpenStreams, listener: str) -> None:
        self._api = api
        self._streams = streams
        self._open_streams = open_streams
        self._listener = listener
        self._contract = aio.ReflectionServicer(_TOLD)

    async def ServerReflectionInfo(self, request_iterator: Any, context: grpc.aio.ServicerContext) -> None:
        await guard_stream(self._stream, request_iterator, context)

    async def _stream(self, requests: AsyncIterator[Any], context: grpc.aio.ServicerContext) -> None:
        caller = caller_of(context, self._listener)
        with self._open_streams.one(caller):
            await self._streams.run(self._answer(requests, context, caller), f"reflection/{caller.request_id}")

    async def _answer(self, requests: AsyncIterator[Any], context: grpc.aio.ServicerContext, caller: Caller) -> None:
        async for response in self._contract.ServerReflectionInfo(self._allowed(requests, caller), context):
            await context.write(response)

    async def _allowed(self, requests: AsyncIterator[Any], caller: Caller) -> AsyncIterator[Any]:
        """Raises `UnreadableRequest` at the first that is not."""
        access = self._api.authorizer.access(caller, CALL)
        pace = CallerPace(self._api.quotas, caller)
        async for request, held in hold_requests(self._api.control_memory, requests, pace):
            refused = None if access is None else await access.refusal(_NEED)
            if refused is not None:
                raise UnreadableRequest(Unreadable(grpc.StatusCode.PERMISSION_DENIED, refused.message))
            yield request
            held.drop()
