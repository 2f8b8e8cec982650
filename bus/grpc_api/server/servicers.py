"""The methods of the services: the steps before a handler, and the handler that the row of a call names.

A call has a method of its own here only where its steps are its own: streams, several answers, two ways to go.
"""

from __future__ import annotations

import contextlib
import functools
import operator
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from typing import Any, NoReturn

import grpc
from grpc.aio import ServicerContext

from bus.broker_api.authorization import Access
from bus.broker_api.broker_api import BrokerApi
from bus.broker_api.calls import CALLS, Call
from bus.broker_api.client_quotas import CallerPace
from bus.broker_api.pipeline import Handle, Step, Wrap, assemble, auditing_end
from bus.grpc_api.server.acls import AclHandler, QuotaHandler, UserHandler
from bus.grpc_api.server.cluster import ClusterAdminHandler, ClusterHandler, Forwarding
from bus.grpc_api.server.connections.logins import LoginHandler
from bus.grpc_api.server.connections.peers import GrpcPeers
from bus.grpc_api.server.conversions import caller_of
from bus.grpc_api.server.group_calls import GroupHandler
from bus.grpc_api.server.group_sessions import GroupSessionHandler
from bus.grpc_api.server.guards import (
    OpenStreams,
    StreamRegistry,
    check_login,
    ending_of,
    guard,
    guard_answers,
    guard_stream,
    hold_request,
)
from bus.grpc_api.server.maintenance import MaintenanceHandler
from bus.grpc_api.server.metadata import MetadataHandler
from bus.grpc_api.server.records.fetch import FetchHandler
from bus.grpc_api.server.records.produce import ProduceHandler, ProducerHandler
from bus.grpc_api.server.service_door import BUS, CLUSTER
from bus.grpc_api.server.transactions import TransactionHandler
from bus.grpc_api.v1 import bus_pb2 as pb
from bus.model import PLAINTEXT
from bus.security.quotas import REQUEST_RATE
from bus.settings.broker import BrokerConfig

_LISTENERS_MAX = 64  # whose handlers for calls that other brokers forward are kept
_UNPACKED_BYTES_MAX = 100 * 1024 * 1024


class Handlers:
    """The handlers of the calls that came by this listener: an attribute for each subject that the rows name. Those of
    streams are added by the servicer that has their registry."""

    produce: ProduceHandler
    fetch: FetchHandler
    group_sessions: GroupSessionHandler
    logins: LoginHandler

    def __init__(self, api: BrokerApi, listener: str) -> None:
        self.metadata = MetadataHandler(api.metadata, api.shares, listener)
        self.producers = ProducerHandler(api.producers, api.shares)
        self.groups = GroupHandler(api.groups, api.calls, api.shares, listener)
        self.transactions = TransactionHandler(api.transactions, api.shares, listener)
        self.maintenance = MaintenanceHandler(api.maintenance, api.shares)
        self.cluster_admin = ClusterAdminHandler(api.cluster_admin, api.shares, listener)
        self.quotas = QuotaHandler(api.quota_admin, api.shares)
        self.acls = AclHandler(api.acls, api.shares)
        self.users = UserHandler(api.users, api.shares)

    async def find_coordinator(self, access: Access, request: pb.FindCoordinatorRequest) -> pb.FindCoordinatorResponse:
        if request.key_type == pb.COORDINATOR_TYPE_TRANSACTION:
            return await self.transactions.find_coordinator(access, request)
        return await self.groups.find_coordinator(access, request)


def forwarded_handlers(api: BrokerApi, listener: str) -> Mapping[str, Handle]:
    """Answer the calls that only the controller can do, by their names, for the clients of a listener."""
    handlers = Handlers(api, listener)
    return {call.name: find_handler(handlers, call) for call in CALLS.values() if call.is_forwarded}


def find_handler(handlers: object, call: Call) -> Callable[..., Any]:
    """The handler that the row of the call names. Raises `AttributeError` if there is none."""
    found: Callable[..., Any] = operator.attrgetter(call.handler)(handlers)
    return found


class BusServicer:
    """Answers the clients of one listener. Has a method for each call of the service Bus."""

    def __init__(
        self,
        api: BrokerApi,
        streams: StreamRegistry,
        config: BrokerConfig,
        peers: GrpcPeers,
        listener: str = PLAINTEXT,
        open_streams: OpenStreams | None = None,
    ) -> None:
        """`open_streams`: those of all listeners."""
        self._open_streams = open_streams or OpenStreams(config.client_streams_count_max)
        self._control_memory = api.control_memory
        self._quotas = api.quotas
        self._listener = listener
        self._authorizer = api.authorizer
        handlers = self.handlers = Handlers(api, listener)
        handlers.produce = ProduceHandler(
            api.produce,
            api.authorizer,
            api.quotas,
            streams,
            api.calls,
            api.produce_memory,
            api.shares,
            unpacked_bytes_max=max(_UNPACKED_BYTES_MAX, config.socket_request_max_bytes),
            listener=listener,
        )
        handlers.fetch = FetchHandler(
            api.fetch, api.authorizer, api.quotas, streams, api.calls, self._control_memory, listener
        )
        handlers.group_sessions = GroupSessionHandler(
            api.groups, api.authorizer, api.quotas, streams, self._control_memory, listener
        )
        has_logins = any(one.has_logins for one in config.serving_listeners if one.name == listener)
        handlers.logins = LoginHandler(api.logins, streams, listener, has_logins=has_logins)
        self._forwarding = Forwarding(
            api.cluster,
            peers,
            forwarded_handlers(api, listener),
            listener=listener,
            timeout_ms=config.request_timeout_ms,
        )
        init = CALLS["InitProducerId"]
        self._init_producer = self._method(init, self._forwarding.handle)
        self._init_in_transactions = self._method(init, handlers.transactions.init)
        # Its room in memory is given back when the call ends, of which the context tells.
        self.FetchOnce = assemble(self._steps(CALLS["FetchOnce"]), handlers.fetch.once)

    def __getattr__(self, method: str) -> Handle:
        """The method of a call without steps of its own."""
        if method not in BUS.methods_by_name:
            raise AttributeError(method)
        call = CALLS[method]
        return self._method(call, self._forwarding.handle if call.is_forwarded else find_handler(self.handlers, call))

    def _method(self, call: Call, handle: Handle, *, is_paced: bool = True) -> Handle:
        """The method of a call with one request and one answer."""

        async def answer(request: Any, context: ServicerContext, access: Access) -> Any:
            return await handle(access, request)

        return assemble(self._steps(call, is_paced=is_paced), answer)

    def _steps(self, call: Call, *, is_paced: bool = True) -> Mapping[Step, Wrap]:
        """No quota is about the calls between brokers."""
        steps: dict[Step, Wrap] = {
            Step.HOLD_MEMORY: self._hold_memory,
            Step.GUARD: _guard,
            Step.AUDIT: functools.partial(self._audit, call),
        }
        if is_paced:
            steps[Step.PACE] = self._pace
        return steps

    def of_broker(self, call: Call, handle: Handle) -> Handle:
        """The method of a call that brokers make."""
        return self._method(call, handle, is_paced=False)

    def _hold_memory(self, handle: Handle) -> Handle:
        async def answer(request: Any, context: ServicerContext) -> Any:
            with hold_request(self._control_memory, request, context.peer()) as held:
                return await handle(held, context)

        return answer

    def _audit(self, call: Call, handle: Handle) -> Handle:
        async def answer(request: Any, context: ServicerContext) -> Any:
            access = self._authorizer.access(caller_of(context, self._listener), call.name)
            with auditing_end(access, lambda probe: find_handler(self.handlers, call)(probe, request), ending_of):
                return await handle(request, context, access)

        return answer

    def _pace(self, handle: Handle) -> Handle:
        async def answer(request: Any, context: ServicerContext, access: Access) -> Any:
            if self._quotas.has(REQUEST_RATE):
                await self._take_turn(CallerPace(self._quotas, access.caller), context)
            return await handle(request, context, access)

        return answer

    async def _take_turn(self, pace: CallerPace, context: ServicerContext) -> None:
        """Raises `OverQuota`."""
        await pace.wait_or_refuse(context.time_remaining())
        check_login()  # it may have waited for long
        pace.note_request()

    async def _stream(self, handle: Handle, requests: Any, context: ServicerContext) -> None:
        """The steps of a stream; those of each of its requests are in its handler."""
        await assemble({Step.GUARD: _guard_stream, Step.OPEN_STREAM: self._open_stream}, handle)(requests, context)

    def _open_stream(self, handle: Handle) -> Handle:
        async def counted(readable: Any, context: ServicerContext) -> None:
            with self._open_streams.one(caller_of(context, self._listener)):
                await handle(readable, context)

        return counted

    async def Produce(self, request_iterator, context):  # type: ignore[no-untyped-def]
        await self._stream(self.handlers.produce.stream, request_iterator, context)

    async def ProduceOnce(self, request, context):  # type: ignore[no-untyped-def]
        return await guard(functools.partial(self.handlers.produce.once, context=context), request, context)

    async def InitProducerId(self, request, context):  # type: ignore[no-untyped-def]
        if getattr(request, "transactional_id", ""):  # its coordinator is asked; a request may be `Unreadable`
            return await self._init_in_transactions(request, context)
        return await self._init_producer(request, context)

    async def Fetch(self, request_iterator, context):  # type: ignore[no-untyped-def]
        await self._stream(self.handlers.fetch.stream, request_iterator, context)

    async def GroupSession(self, request_iterator, context):  # type: ignore[no-untyped-def]
        await self._stream(self.handlers.group_sessions.stream, request_iterator, context)

    async def SaslAuthenticate(self, request_iterator, context):  # type: ignore[no-untyped-def]
        await guard_stream(self.handlers.logins.authenticate, request_iterator, context)

    async def MaintainLog(self, request, context):  # type: ignore[no-untyped-def]
        """Answer with the same steps as other calls, in the same order, before several answers."""
        maintain = self.handlers.maintenance.maintain

        async def paced(readable: Any) -> AsyncGenerator[Any, None]:
            access = self._authorizer.access(caller_of(context, self._listener), "MaintainLog")
            with (
                self._open_streams.one(access.caller),
                auditing_end(access, lambda probe: maintain(probe, readable), ending_of),
            ):
                pace = CallerPace(self._quotas, access.caller)
                if self._quotas.has(REQUEST_RATE):
                    await self._take_turn(pace, context)
                # Each partition counts as a request, as it has one rewritten; who may not do so learns of none.
                note_others = functools.partial(_note_others, pace)
                async with contextlib.aclosing(maintain(access, readable, note_others)) as answers:
                    async for answer in answers:
                        yield answer

        with hold_request(self._control_memory, request, context.peer()) as held:
            async for response in guard_answers(paced, held, context):
                yield response


def _note_others(pace: CallerPace, count: int) -> None:
    if count > 1:
        pace.note_request(count - 1)


def _guard(handle: Handle) -> Handle:
    async def answer(request: Any, context: ServicerContext) -> Any:
        return await guard(functools.partial(handle, context=context), request, context)

    return answer


def _guard_stream(handle: Handle) -> Handle:
    async def answer(requests: Any, context: ServicerContext) -> None:
        await guard_stream(handle, requests, context)

    return answer


class ClusterServicer:
    """Calls between brokers. `is_between_brokers`: of the listener; at others a broker says who it is, and
    nothing else. Has a method for each call of the service Cluster."""

    def __init__(self, api: BrokerApi, bus: BusServicer, *, is_between_brokers: bool = True) -> None:
        handlers_at = functools.lru_cache(_LISTENERS_MAX)(functools.partial(forwarded_handlers, api))
        self.cluster = ClusterHandler(api.cluster, api.authorizer, handlers_at)
        self.transactions = bus.handlers.transactions
        self._bus = bus
        self._is_between_brokers = is_between_brokers

    def __getattr__(self, method: str) -> Callable[..., Awaitable[Any]]:
        if method not in CLUSTER.methods_by_name:
            raise AttributeError(method)
        if self._is_between_brokers or method == "IdentifyBroker":
            return self._bus.of_broker(CALLS[method], find_handler(self, CALLS[method]))
        return functools.partial(_refuse, method)


async def _refuse(method: str, _: Any, context: ServicerContext) -> NoReturn:
    message = f"expected {method} at the listener by which brokers reach one another (inter.broker.listener.name)"
    await context.abort(grpc.StatusCode.PERMISSION_DENIED, message)
    raise AssertionError("abort raises")
