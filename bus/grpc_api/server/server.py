"""The gRPC server of a broker: the service, health, reflection, limits, and an orderly end.

A request that cannot be read at all, for example a value that the enum does not have, ends with INVALID_ARGUMENT;
an error of the broker itself ends with INTERNAL and a line in its log, and the broker goes on.
"""

from __future__ import annotations

import asyncio
import functools
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TypeVar

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_health.v1._async import HealthServicer
from grpc_reflection.v1alpha import reflection

from bus.config import BrokerConfig
from bus.grpc_api.server.control import ControlHandler
from bus.grpc_api.server.fetch import FetchHandler
from bus.grpc_api.server.group_sessions import GroupSessionHandler
from bus.grpc_api.server.groups import GroupHandler
from bus.grpc_api.server.maintenance import BrokerStopping, MaintenanceHandler
from bus.grpc_api.server.produce import ProduceHandler
from bus.grpc_api.server.produce_wire import parse_call
from bus.grpc_api.server.producers import ProducerHandler
from bus.grpc_api.server.requests import StreamRegistry, new_request_id
from bus.grpc_api.server.views import ViewHandler
from bus.grpc_api.v1 import bus_pb2, bus_pb2_grpc
from bus.ports import Clock
from bus.runtime.blocking import BlockingCalls
from bus.runtime.cluster import Cluster
from bus.runtime.group_coordinator import GroupCoordinator
from bus.runtime.logs import request_id

_log = logging.getLogger(__name__)

_PENDING_CALLS_MAX = 20_000
SERVICE_NAME: str = bus_pb2.DESCRIPTOR.services_by_name["Bus"].full_name

RequestT = TypeVar("RequestT")
ResponseT = TypeVar("ResponseT")


class AddressInUse(OSError):
    """The address to listen on is taken or is not this machine's."""


class BusServicer(bus_pb2_grpc.BusServicer):
    def __init__(
        self,
        cluster: Cluster,
        coordinator: GroupCoordinator,
        clock: Clock,
        streams: StreamRegistry,
        calls: BlockingCalls,
        config: BrokerConfig,
    ) -> None:
        self._control = ControlHandler(cluster)
        self._producers = ProducerHandler(cluster, config.request_timeout_ms)
        self._produce = ProduceHandler(
            cluster,
            clock,
            streams,
            calls,
            request_timeout_ms=config.request_timeout_ms,
            request_bytes_max=config.socket_request_max_bytes,
            queued_bytes_max=config.queued_max_request_bytes,
        )
        self._fetch = FetchHandler(cluster, streams, config.fetch_max_bytes)
        self._groups = GroupHandler(cluster, coordinator)
        self._group_sessions = GroupSessionHandler(cluster, coordinator, streams)
        self._views = ViewHandler(cluster)
        self._maintenance = MaintenanceHandler(
            cluster, streams, jobs_max=config.log_cleaner_threads, request_timeout_ms=config.request_timeout_ms
        )

    async def Produce(self, request_iterator, context):  # type: ignore[no-untyped-def]
        await _guard_stream(self._produce.stream, request_iterator, context)

    async def ProduceOnce(self, request, context):  # type: ignore[no-untyped-def]
        return await _guard(self._produce.once, request, context)

    async def InitProducerId(self, request, context):  # type: ignore[no-untyped-def]
        return await _guard(self._producers.init, request, context)

    async def ResumeProducer(self, request, context):  # type: ignore[no-untyped-def]
        return await _guard(self._producers.resume, request, context)

    async def Fetch(self, request_iterator, context):  # type: ignore[no-untyped-def]
        await _guard_stream(self._fetch.stream, request_iterator, context)

    async def FetchOnce(self, request, context):  # type: ignore[no-untyped-def]
        return await _guard(self._fetch.once, request, context)

    async def FindCoordinator(self, request, context):  # type: ignore[no-untyped-def]
        return await _guard(self._groups.find_coordinator, request, context)

    async def JoinGroup(self, request, context):  # type: ignore[no-untyped-def]
        return await _guard(functools.partial(self._groups.join, peer=context.peer()), request, context)

    async def SyncGroup(self, request, context):  # type: ignore[no-untyped-def]
        return await _guard(self._groups.sync, request, context)

    async def Heartbeat(self, request, context):  # type: ignore[no-untyped-def]
        return await _guard(self._groups.heartbeat, request, context)

    async def LeaveGroup(self, request, context):  # type: ignore[no-untyped-def]
        return await _guard(self._groups.leave, request, context)

    async def OffsetCommit(self, request, context):  # type: ignore[no-untyped-def]
        return await _guard(self._groups.commit, request, context)

    async def OffsetFetch(self, request, context):  # type: ignore[no-untyped-def]
        return await _guard(self._groups.fetch_offsets, request, context)

    async def OffsetDelete(self, request, context):  # type: ignore[no-untyped-def]
        return await _guard(self._groups.delete_offsets, request, context)

    async def ListGroups(self, request, context):  # type: ignore[no-untyped-def]
        return await _guard(self._groups.list_groups, request, context)

    async def DescribeGroups(self, request, context):  # type: ignore[no-untyped-def]
        return await _guard(self._groups.describe_groups, request, context)

    async def DeleteGroups(self, request, context):  # type: ignore[no-untyped-def]
        return await _guard(self._groups.delete_groups, request, context)

    async def GroupSession(self, request_iterator, context):  # type: ignore[no-untyped-def]
        await _guard_stream(self._group_sessions.stream, request_iterator, context)

    async def ListOffsets(self, request, context):  # type: ignore[no-untyped-def]
        return await _guard(self._control.list_offsets, request, context)

    async def Metadata(self, request, context):  # type: ignore[no-untyped-def]
        return await _guard(self._control.metadata, request, context)

    async def CreateTopics(self, request, context):  # type: ignore[no-untyped-def]
        return await _guard(self._control.create_topics, request, context)

    async def DeleteTopics(self, request, context):  # type: ignore[no-untyped-def]
        return await _guard(self._control.delete_topics, request, context)

    async def CreatePartitions(self, request, context):  # type: ignore[no-untyped-def]
        return await _guard(self._control.create_partitions, request, context)

    async def DescribeConfigs(self, request, context):  # type: ignore[no-untyped-def]
        return await _guard(self._control.describe_configs, request, context)

    async def AlterConfigs(self, request, context):  # type: ignore[no-untyped-def]
        return await _guard(self._control.alter_configs, request, context)

    async def DeleteRecords(self, request, context):  # type: ignore[no-untyped-def]
        return await _guard(self._maintenance.delete_records, request, context)

    async def MaintainLog(self, request, context):  # type: ignore[no-untyped-def]
        async for response in _guard_answers(self._maintenance.maintain, request, context):
            yield response

    async def SwapFiles(self, request, context):  # type: ignore[no-untyped-def]
        return await _guard(self._maintenance.swap_files, request, context)

    async def CreateView(self, request, context):  # type: ignore[no-untyped-def]
        return await _guard(self._views.create, request, context)

    async def DeleteView(self, request, context):  # type: ignore[no-untyped-def]
        return await _guard(self._views.delete, request, context)

    async def ListViews(self, request, context):  # type: ignore[no-untyped-def]
        return await _guard(self._views.list, request, context)


async def _guard(
    handle: Callable[[RequestT], Awaitable[ResponseT]], request: RequestT, context: grpc.aio.ServicerContext
) -> ResponseT:
    request_id.set(new_request_id())
    try:
        return await handle(request)
    except ValueError as error:
        await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
    except Exception:
        _log.exception("request failed")
        await context.abort(grpc.StatusCode.INTERNAL, f"the broker failed; see its log for {request_id.get()}")
    raise AssertionError("abort raises")


async def _guard_answers(
    handle: Callable[[RequestT], AsyncIterator[ResponseT]], request: RequestT, context: grpc.aio.ServicerContext
) -> AsyncIterator[ResponseT]:
    request_id.set(new_request_id())
    try:
        async for response in handle(request):
            yield response
    except ValueError as error:
        await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
    except BrokerStopping as stopping:
        await context.abort(grpc.StatusCode.UNAVAILABLE, str(stopping))
    except Exception:
        _log.exception("request failed")
        await context.abort(grpc.StatusCode.INTERNAL, f"the broker failed; see its log for {request_id.get()}")


async def _guard_stream(
    handle: Callable[[AsyncIterator[RequestT], grpc.aio.ServicerContext], Awaitable[None]],
    requests: AsyncIterator[RequestT],
    context: grpc.aio.ServicerContext,
) -> None:
    request_id.set(new_request_id())
    try:
        await handle(requests, context)
    except Exception:
        _log.exception("stream failed")
        await context.abort(grpc.StatusCode.INTERNAL, f"the broker failed; see its log for {request_id.get()}")


def _record_handlers(servicer: BusServicer) -> dict[str, grpc.RpcMethodHandler]:
    """The methods that carry records: their large messages are not left to the generated code."""
    serialize = bus_pb2.ProduceResponse.SerializeToString
    return {
        "Produce": grpc.stream_stream_rpc_method_handler(servicer.Produce, parse_call, serialize),
        "ProduceOnce": grpc.unary_unary_rpc_method_handler(servicer.ProduceOnce, parse_call, serialize),
        "Fetch": grpc.stream_stream_rpc_method_handler(servicer.Fetch, bus_pb2.FetchRequest.FromString, None),
        "FetchOnce": grpc.unary_unary_rpc_method_handler(servicer.FetchOnce, bus_pb2.FetchRequest.FromString, None),
    }


class BusServer:
    """Bound with `start`; `stop` ends it in order: nothing new is read, what was read is answered, then it closes."""

    def __init__(self, config: BrokerConfig) -> None:
        self._config = config
        self._streams = StreamRegistry()
        self._health = HealthServicer()
        limit = config.socket_request_max_bytes
        self._server = grpc.aio.server(
            options=[
                ("grpc.max_receive_message_length", limit),
                ("grpc.max_send_message_length", -1),
                ("grpc.so_reuseport", 0),  # a second broker on the same port is an error, not a silent half
                ("grpc.keepalive_time_ms", 30_000),  # finds clients that are gone without a word
                ("grpc.keepalive_permit_without_calls", 1),
                ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
                # Calls that have come and are not yet taken up; beyond it gRPC cancels some at random. A large group
                # that begins to rebalance joins all at once.
                ("grpc.server.max_pending_requests", _PENDING_CALLS_MAX),
                ("grpc.server.max_pending_requests_hard_limit", 2 * _PENDING_CALLS_MAX),
            ]
        )

    def bind(self) -> int:
        """The port that was bound. Raises `AddressInUse`."""
        address = str(self._config.listen_address)
        try:
            port: int = self._server.add_insecure_port(address)
        except RuntimeError:
            port = 0  # its message speaks of gRPC's own debug settings only
        if port == 0:
            raise AddressInUse(f"cannot listen on {address}: is another program using it, or is it not this machine's?")
        return port

    async def start(self, cluster: Cluster, coordinator: GroupCoordinator, clock: Clock, calls: BlockingCalls) -> None:
        servicer = BusServicer(cluster, coordinator, clock, self._streams, calls, self._config)
        bus_pb2_grpc.add_BusServicer_to_server(servicer, self._server)  # type: ignore[no-untyped-call]  # generated
        self._server.add_registered_method_handlers(SERVICE_NAME, _record_handlers(servicer))  # in their place
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)
        names = (SERVICE_NAME, health_pb2.DESCRIPTOR.services_by_name["Health"].full_name, reflection.SERVICE_NAME)
        reflection.enable_server_reflection(names, self._server)
        await self._server.start()
        for name in ("", SERVICE_NAME):
            await self._health.set(name, health_pb2.HealthCheckResponse.SERVING)

    async def stop(self) -> None:
        await self._health.enter_graceful_shutdown()
        stopping = asyncio.ensure_future(self._server.stop(self._config.controlled_shutdown_timeout_ms / 1000))
        await self._streams.drain()
        await stopping
