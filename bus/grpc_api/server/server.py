"""The gRPC server of a broker: the service, health, reflection, limits, and an orderly end."""

from __future__ import annotations

import asyncio
import functools
from typing import Any

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_health.v1._async import HealthServicer
from grpc_reflection.v1alpha import reflection

from bus.broker_api.broker_api import BrokerApi
from bus.config.broker import BrokerConfig
from bus.grpc_api.server.cluster import ClusterHandler, Forwarding, Handle
from bus.grpc_api.server.cluster_admin import ClusterAdminHandler
from bus.grpc_api.server.conversions import client_host
from bus.grpc_api.server.fetch import FetchHandler
from bus.grpc_api.server.group_sessions import GroupSessionHandler
from bus.grpc_api.server.groups import GroupHandler
from bus.grpc_api.server.guards import StreamRegistry, guard, guard_answers, guard_stream, hold_request
from bus.grpc_api.server.maintenance import MaintenanceHandler
from bus.grpc_api.server.metadata import MetadataHandler
from bus.grpc_api.server.peers import GrpcPeers
from bus.grpc_api.server.produce import ProduceHandler, ProducerHandler
from bus.grpc_api.server.request_limits import control_reader, produce_reader
from bus.grpc_api.v1 import bus_pb2, bus_pb2_grpc
from bus.runtime.partitions.fetches import Stopping

_PENDING_CALLS_MAX = 20_000
_CONCURRENT_CALLS_MAX = 4_096
_UNPACKED_BYTES_MAX = 100 * 1024 * 1024
_BUS, _CLUSTER = (bus_pb2.DESCRIPTOR.services_by_name[name] for name in ("Bus", "Cluster"))
SERVICE_NAME: str = _BUS.full_name


class AddressInUse(OSError):
    """The address to listen on is taken or is not this machine's."""


class BusServicer(bus_pb2_grpc.BusServicer):
    """`forwardable`: handlers of the calls that only the controller can do, by the name of the method."""

    def __init__(self, api: BrokerApi, streams: StreamRegistry, config: BrokerConfig, peers: GrpcPeers) -> None:
        self._control_memory = api.control_memory
        self._metadata = MetadataHandler(api.metadata, api.shares)
        self._producers = ProducerHandler(api.producers, api.shares)
        self._produce = ProduceHandler(
            api.produce,
            streams,
            api.calls,
            api.produce_memory,
            api.shares,
            unpacked_bytes_max=max(_UNPACKED_BYTES_MAX, config.socket_request_max_bytes),
        )
        self._fetch = FetchHandler(api.fetch, streams, api.calls, self._control_memory)
        self._groups = GroupHandler(api.groups, api.endpoint, api.calls, api.shares)
        self._group_sessions = GroupSessionHandler(api.groups, streams, self._control_memory)
        self._maintenance = MaintenanceHandler(api.maintenance, api.shares)
        self._cluster_admin = ClusterAdminHandler(api.cluster_admin, api.shares)
        self.forwardable: dict[str, Handle] = {
            "InitProducerId": self._producers.init,
            "FindCoordinator": self._groups.find_coordinator,
            "Metadata": self._metadata.metadata,
            "CreateTopics": self._metadata.create_topics,
            "DeleteTopics": self._metadata.delete_topics,
            "CreatePartitions": self._metadata.create_partitions,
            "AlterConfigs": self._metadata.alter_configs,
            "CreateView": self._metadata.create_view,
            "DeleteView": self._metadata.delete_view,
            "ElectLeaders": self._cluster_admin.elect_leaders,
            "AlterPartitionReassignments": self._cluster_admin.alter_reassignments,
            "UnregisterBroker": self._cluster_admin.unregister_broker,
            "UpdateFeatures": self._cluster_admin.update_features,
        }
        self._forwarding = Forwarding(api.cluster, peers, self.forwardable, timeout_ms=config.request_timeout_ms)

    async def _here_or_forwarded(self, method: str, request: Any, context: grpc.aio.ServicerContext) -> Any:
        handle = functools.partial(self._forwarding.handle, method, client=client_host(context.peer()))
        return await self.unary(handle, request, context)

    async def unary(self, handle: Any, request: Any, context: grpc.aio.ServicerContext) -> Any:
        """While it waits for its answer, a request counts against its client's share of memory."""
        with hold_request(self._control_memory, request, context.peer()) as held:
            return await guard(handle, held, context)

    async def Produce(self, request_iterator, context):  # type: ignore[no-untyped-def]
        await guard_stream(self._produce.stream, request_iterator, context)

    async def ProduceOnce(self, request, context):  # type: ignore[no-untyped-def]
        return await guard(functools.partial(self._produce.once, context=context), request, context)

    async def InitProducerId(self, request, context):  # type: ignore[no-untyped-def]
        return await self._here_or_forwarded("InitProducerId", request, context)

    async def ResumeProducer(self, request, context):  # type: ignore[no-untyped-def]
        return await self.unary(self._producers.resume, request, context)

    async def Fetch(self, request_iterator, context):  # type: ignore[no-untyped-def]
        await guard_stream(self._fetch.stream, request_iterator, context)

    async def FetchOnce(self, request, context):  # type: ignore[no-untyped-def]
        return await self.unary(functools.partial(self._fetch.once, context=context), request, context)

    async def FindCoordinator(self, request, context):  # type: ignore[no-untyped-def]
        return await self._here_or_forwarded("FindCoordinator", request, context)

    async def JoinGroup(self, request, context):  # type: ignore[no-untyped-def]
        return await self.unary(functools.partial(self._groups.join, context=context), request, context)

    async def SyncGroup(self, request, context):  # type: ignore[no-untyped-def]
        return await self.unary(self._groups.sync, request, context)

    async def Heartbeat(self, request, context):  # type: ignore[no-untyped-def]
        return await self.unary(self._groups.heartbeat, request, context)

    async def LeaveGroup(self, request, context):  # type: ignore[no-untyped-def]
        return await self.unary(self._groups.leave, request, context)

    async def OffsetCommit(self, request, context):  # type: ignore[no-untyped-def]
        return await self.unary(self._groups.commit, request, context)

    async def OffsetFetch(self, request, context):  # type: ignore[no-untyped-def]
        return await self.unary(self._groups.fetch_offsets, request, context)

    async def OffsetDelete(self, request, context):  # type: ignore[no-untyped-def]
        return await self.unary(self._groups.delete_offsets, request, context)

    async def ListGroups(self, request, context):  # type: ignore[no-untyped-def]
        return await self.unary(self._groups.list_groups, request, context)

    async def DescribeGroups(self, request, context):  # type: ignore[no-untyped-def]
        return await self.unary(self._groups.describe_groups, request, context)

    async def DeleteGroups(self, request, context):  # type: ignore[no-untyped-def]
        return await self.unary(self._groups.delete_groups, request, context)

    async def GroupSession(self, request_iterator, context):  # type: ignore[no-untyped-def]
        await guard_stream(self._group_sessions.stream, request_iterator, context)

    async def ListOffsets(self, request, context):  # type: ignore[no-untyped-def]
        return await self.unary(self._metadata.list_offsets, request, context)

    async def Metadata(self, request, context):  # type: ignore[no-untyped-def]
        return await self._here_or_forwarded("Metadata", request, context)

    async def CreateTopics(self, request, context):  # type: ignore[no-untyped-def]
        return await self._here_or_forwarded("CreateTopics", request, context)

    async def DeleteTopics(self, request, context):  # type: ignore[no-untyped-def]
        return await self._here_or_forwarded("DeleteTopics", request, context)

    async def CreatePartitions(self, request, context):  # type: ignore[no-untyped-def]
        return await self._here_or_forwarded("CreatePartitions", request, context)

    async def DescribeConfigs(self, request, context):  # type: ignore[no-untyped-def]
        return await self.unary(self._metadata.describe_configs, request, context)

    async def AlterConfigs(self, request, context):  # type: ignore[no-untyped-def]
        return await self._here_or_forwarded("AlterConfigs", request, context)

    async def DeleteRecords(self, request, context):  # type: ignore[no-untyped-def]
        return await self.unary(self._maintenance.delete_records, request, context)

    async def MaintainLog(self, request, context):  # type: ignore[no-untyped-def]
        async for response in guard_answers(self._maintenance.maintain, request, context):
            yield response

    async def SwapFiles(self, request, context):  # type: ignore[no-untyped-def]
        return await self.unary(self._maintenance.swap_files, request, context)

    async def CreateView(self, request, context):  # type: ignore[no-untyped-def]
        return await self._here_or_forwarded("CreateView", request, context)

    async def DeleteView(self, request, context):  # type: ignore[no-untyped-def]
        return await self._here_or_forwarded("DeleteView", request, context)

    async def ListViews(self, request, context):  # type: ignore[no-untyped-def]
        return await self.unary(self._metadata.list_views, request, context)

    async def DescribeCluster(self, request, context):  # type: ignore[no-untyped-def]
        return await self.unary(self._cluster_admin.describe, request, context)

    async def ElectLeaders(self, request, context):  # type: ignore[no-untyped-def]
        return await self._here_or_forwarded("ElectLeaders", request, context)

    async def AlterPartitionReassignments(self, request, context):  # type: ignore[no-untyped-def]
        return await self._here_or_forwarded("AlterPartitionReassignments", request, context)

    async def ListPartitionReassignments(self, request, context):  # type: ignore[no-untyped-def]
        return await self.unary(self._cluster_admin.list_reassignments, request, context)

    async def UnregisterBroker(self, request, context):  # type: ignore[no-untyped-def]
        return await self._here_or_forwarded("UnregisterBroker", request, context)

    async def UpdateFeatures(self, request, context):  # type: ignore[no-untyped-def]
        return await self._here_or_forwarded("UpdateFeatures", request, context)


class ClusterServicer(bus_pb2_grpc.ClusterServicer):
    def __init__(self, api: BrokerApi, bus: BusServicer) -> None:
        self._cluster = ClusterHandler(api.cluster, bus.forwardable)
        self._unary = bus.unary

    async def RegisterBroker(self, request, context):  # type: ignore[no-untyped-def]
        return await self._unary(self._cluster.register, request, context)

    async def BrokerHeartbeat(self, request, context):  # type: ignore[no-untyped-def]
        return await self._unary(self._cluster.heartbeat, request, context)

    async def CommittedVersions(self, request, context):  # type: ignore[no-untyped-def]
        return await self._unary(self._cluster.committed_versions, request, context)

    async def RaiseLeaderEpoch(self, request, context):  # type: ignore[no-untyped-def]
        return await self._unary(self._cluster.raise_leader_epoch, request, context)

    async def Envelope(self, request, context):  # type: ignore[no-untyped-def]
        return await self._unary(self._cluster.envelope, request, context)


# Their answers are large, and made as bytes at once: the generated code would copy them half a dozen times.
_SERIALIZED = ("Fetch", "FetchOnce")


def method_handlers(
    servicer: BusServicer | ClusterServicer, request_bytes_max: int
) -> dict[str, grpc.RpcMethodHandler]:
    """A handler for each call of the servicer's part of the contract. Its requests are read here and not by the
    generated code, which has no limits, and whose errors gRPC answers with UNKNOWN."""
    handlers = {}
    service = _BUS if isinstance(servicer, BusServicer) else _CLUSTER
    for method in service.methods:
        request_class, response_class = method.input_type._concrete_class, method.output_type._concrete_class
        is_produce = request_class is bus_pb2.ProduceRequest
        reader = produce_reader(request_bytes_max) if is_produce else control_reader(request_class)
        serialize = None if method.name in _SERIALIZED else response_class.SerializeToString
        new_handler = _NEW_HANDLER[method.client_streaming, method.server_streaming]
        handlers[method.name] = new_handler(getattr(servicer, method.name), reader, serialize)
    return handlers


_NEW_HANDLER = {
    (False, False): grpc.unary_unary_rpc_method_handler,
    (False, True): grpc.unary_stream_rpc_method_handler,
    (True, True): grpc.stream_stream_rpc_method_handler,
}


class BusServer:
    """Bound with `start`; `stop` ends it in order: `stopping` begins, nothing new is read, what was read is answered,
    then it closes."""

    def __init__(self, config: BrokerConfig, stopping: Stopping) -> None:
        self._config = config
        self._streams = StreamRegistry(stopping)
        self._health = HealthServicer()
        limit = config.socket_request_max_bytes
        self._server = grpc.aio.server(
            options=[
                ("grpc.max_receive_message_length", limit),
                ("grpc.max_send_message_length", -1),
                # Of one connection; more wait in the client until others of its calls have ended.
                ("grpc.max_concurrent_streams", _CONCURRENT_CALLS_MAX),
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

    async def start(self, api: BrokerApi, peers: GrpcPeers) -> None:
        bus = BusServicer(api, self._streams, self._config, peers)
        for service, servicer in ((_BUS, bus), (_CLUSTER, ClusterServicer(api, bus))):
            handlers = method_handlers(servicer, self._config.socket_request_max_bytes)
            self._server.add_registered_method_handlers(service.full_name, handlers)
            self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service.full_name, handlers),))
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)
        names = (
            SERVICE_NAME,
            _CLUSTER.full_name,
            health_pb2.DESCRIPTOR.services_by_name["Health"].full_name,
            reflection.SERVICE_NAME,
        )
        reflection.enable_server_reflection(names, self._server)
        await self._server.start()
        for name in ("", SERVICE_NAME):
            await self._health.set(name, health_pb2.HealthCheckResponse.SERVING)

    async def stop(self) -> None:
        await self._health.enter_graceful_shutdown()
        stopping = asyncio.ensure_future(self._server.stop(self._config.controlled_shutdown_timeout_ms / 1000))
        await self._streams.drain()
        await stopping
