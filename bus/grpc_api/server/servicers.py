"""The methods of the services: the stages before a handler, and the handler that the row of a call names.

A call is named here only where its stages are its own: streams, several answers, two ways to go.
"""

from __future__ import annotations

import contextlib
import functools
import operator
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from typing import Any, NoReturn

import grpc
from grpc.aio import ServicerContext

from bus.broker_api.authorization import Access
from bus.broker_api.broker_api import BrokerApi
from bus.broker_api.calls import CALLS, Call
from bus.broker_api.client_quotas import CallerPace
from bus.broker_api.pipeline import Handle, Stage, Wrap, assemble, auditing_end, before, within
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
    guarded,
    guarded_stream,
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
        self.FetchOnce = assemble(self._stages(CALLS["FetchOnce"]), handlers.fetch.once)
        own_stages = {Stage.HOLD_MEMORY: within(handlers.produce.held), Stage.PACE: before(handlers.produce.pace)}
        self.ProduceOnce = assemble(self._stages(CALLS["ProduceOnce"]) | own_stages, handlers.produce.once)
        opened = {Stage.OPEN_STREAM: self._open_streams.opened(listener)}
        self.MaintainLog = assemble(self._stages(CALLS["MaintainLog"]) | opened, self._maintain)
        # The stages of each request of a stream are in its handler: `read_in_turn`.
        guard_and_open: dict[Stage, Wrap] = {Stage.GUARD: guarded_stream, **opened}
        self.Produce = assemble(guard_and_open, handlers.produce.stream)
        self.Fetch = assemble(guard_and_open, handlers.fetch.stream)
        self.GroupSession = assemble(guard_and_open, handlers.group_sessions.stream)
        of_logins = guard_and_open | {Stage.OPEN_STREAM: within(handlers.logins.opened)}
        self.SaslAuthenticate = assemble(of_logins, handlers.logins.authenticate)

    def __getattr__(self, method: str) -> Handle:
        """The method of a call without stages of its own."""
        if method not in BUS.methods_by_name:
            raise AttributeError(method)
        call = CALLS[method]
        return self._method(call, self._forwarding.handle if call.is_forwarded else find_handler(self.handlers, call))

    def _method(self, call: Call, handle: Handle, *, is_paced: bool = True) -> Handle:
        """The method of a call with one request and one answer."""

        async def answer(request: Any, context: ServicerContext, access: Access) -> Any:
            return await handle(access, request)

        return assemble(self._stages(call, is_paced=is_paced), answer)

    def _stages(self, call: Call, *, is_paced: bool = True) -> dict[Stage, Wrap]:
        """No quota is about the calls between brokers."""
        stages: dict[Stage, Wrap] = {
            Stage.HOLD_MEMORY: within(functools.partial(hold_request, self._control_memory)),
            Stage.GUARD: guarded,
            Stage.AUDIT: within(functools.partial(self._audited, call)),
        }
        if is_paced:
            stages[Stage.PACE] = before(self._pace)
        return stages

    def of_broker(self, call: Call, handle: Handle) -> Handle:
        """The method of a call that brokers make."""
        return self._method(call, handle, is_paced=False)

    @contextlib.contextmanager
    def _audited(self, call: Call, request: Any, context: ServicerContext) -> Iterator[Sequence[Any]]:
        access = self._authorizer.access(caller_of(context, self._listener), call.name)
        with auditing_end(access, lambda probe: find_handler(self.handlers, call)(probe, request), ending_of):
            yield request, context, access

    async def _pace(self, _: Any, context: ServicerContext, access: Access) -> None:
        if self._quotas.has(REQUEST_RATE):
            await self._take_turn(CallerPace(self._quotas, access.caller), context)

    async def _take_turn(self, pace: CallerPace, context: ServicerContext) -> None:
        """Raises `OverQuota`."""
        await pace.wait_or_refuse(context.time_remaining())
        check_login()  # it may have waited for long
        pace.note_request()

    async def InitProducerId(self, request, context):  # type: ignore[no-untyped-def]
        if getattr(request, "transactional_id", ""):  # its coordinator is asked; a request may be `Unreadable`
            return await self._init_in_transactions(request, context)
        return await self._init_producer(request, context)

    async def _maintain(self, request: Any, _: ServicerContext, access: Access) -> AsyncIterator[Any]:
        """Each partition counts as a request, as it has one rewritten; who may not do so learns of none."""
        note_others = functools.partial(_note_others, CallerPace(self._quotas, access.caller))
        async with contextlib.aclosing(self.handlers.maintenance.maintain(access, request, note_others)) as answers:
            async for answer in answers:
                yield answer


def _note_others(pace: CallerPace, count: int) -> None:
    if count > 1:
        pace.note_request(count - 1)


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
