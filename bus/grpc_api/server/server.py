"""The gRPC server of a broker: the service, health, reflection, limits, and an orderly end."""

from __future__ import annotations

import asyncio
import contextlib
import functools
from collections.abc import AsyncGenerator, Mapping
from typing import Any

import grpc
from grpc_health.v1 import health_pb2

from bus.broker_api.broker_api import BrokerApi
from bus.broker_api.caller_pace import CallerPace
from bus.broker_api.principals import PrincipalRules
from bus.client_quotas.quotas import REQUEST_RATE
from bus.cluster_metadata.broker_decisions import BrokerIdentity
from bus.config.broker import BrokerConfig
from bus.config.listeners import Listener
from bus.grpc_api.server.acls import AclHandler, QuotaHandler, UserHandler
from bus.grpc_api.server.audited_calls import AuditedEnvelopes, AuditedServicer
from bus.grpc_api.server.authorization import CallAuthorization
from bus.grpc_api.server.certificates import listener_credentials, with_principal
from bus.grpc_api.server.cluster import ClusterAdminHandler, ClusterHandler, Forwarding, Handle
from bus.grpc_api.server.conversions import caller_of
from bus.grpc_api.server.fetch import FetchHandler
from bus.grpc_api.server.group_calls import GroupHandler
from bus.grpc_api.server.group_sessions import GroupSessionHandler
from bus.grpc_api.server.guards import (
    CallsInFlight,
    OpenStreams,
    StreamRegistry,
    check_login,
    guard,
    guard_answers,
    guard_stream,
    hold_request,
    quiet_departures,
)
from bus.grpc_api.server.health import HealthOfServices, HealthServicer, ReflectionServicer
from bus.grpc_api.server.logins import LoginHandler, with_login
from bus.grpc_api.server.maintenance import MaintenanceHandler
from bus.grpc_api.server.metadata import MetadataHandler
from bus.grpc_api.server.peers import GrpcPeers
from bus.grpc_api.server.produce import ProduceHandler, ProducerHandler
from bus.grpc_api.server.service_door import BUS, Recognise, ServiceDoor
from bus.grpc_api.server.strangers import Strangers
from bus.grpc_api.server.transactions import TransactionHandler
from bus.grpc_api.v1 import bus_pb2 as pb
from bus.grpc_api.v1 import bus_pb2_grpc
from bus.key_material import WatchedKeyMaterial
from bus.model import PLAINTEXT
from bus.process_tuning import CONNECTIONS_MAX
from bus.runtime.partitions.fetches import Stopping
from bus.runtime.transaction_calls import StepKind
from bus.users.stranger_rations import RationSizes, StrangerRations

_PENDING_CALLS_MAX = 20_000
_PENDING_CALLS_MAX_OF_STRANGERS = 8_000
_CONCURRENT_CALLS_MAX = 4_096
_HEADERS_BYTES_MAX = 32 * 1024
_HANDSHAKE_MS_MAX = 30_000
_LISTENERS_MAX = 64  # whose handlers for calls that other brokers forward are kept
_FAREWELL_S = 1.0
_UNPACKED_BYTES_MAX = 100 * 1024 * 1024
SERVICE_NAME: str = BUS.full_name


class AddressInUse(OSError):
    """The address to listen on is taken or is not this machine's."""


def forwardable_calls(api: BrokerApi, listener: str) -> dict[str, Handle]:
    """Handlers of the calls that only the controller can do, by the name of the method, for a listener's clients."""
    metadata = MetadataHandler(api.metadata, api.shares, listener)
    groups = GroupHandler(api.groups, api.endpoint, api.calls, api.shares, listener)
    transactions = TransactionHandler(api.transactions, api.shares, listener)
    cluster_admin = ClusterAdminHandler(api.cluster_admin, api.shares, listener)
    acls = AclHandler(api.acls, api.shares)

    async def find_coordinator(request: pb.FindCoordinatorRequest) -> pb.FindCoordinatorResponse:
        if request.key_type == pb.COORDINATOR_TYPE_TRANSACTION:
            return await transactions.find_coordinator(request)
        return await groups.find_coordinator(request)

    return {
        "InitProducerId": ProducerHandler(api.producers, api.shares).init,
        "FindCoordinator": find_coordinator,
        "Metadata": metadata.metadata,
        "CreateTopics": metadata.create_topics,
        "DeleteTopics": metadata.delete_topics,
        "CreatePartitions": metadata.create_partitions,
        "AlterConfigs": metadata.alter_configs,
        "CreateView": metadata.create_view,
        "DeleteView": metadata.delete_view,
        "ElectLeaders": cluster_admin.elect_leaders,
        "AlterPartitionReassignments": cluster_admin.alter_reassignments,
        "UnregisterBroker": cluster_admin.unregister_broker,
        "AlterClientQuotas": QuotaHandler(api.quota_admin, api.shares).alter,
        "CreateAcls": acls.create,
        "DeleteAcls": acls.delete,
        "UpdateFeatures": cluster_admin.update_features,
    }


class BusServicer(bus_pb2_grpc.BusServicer):
    """Answers the clients of one listener."""

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
        self._authorization = CallAuthorization(api.authorizer)
        self._metadata = MetadataHandler(api.metadata, api.shares, listener)
        self._producers = ProducerHandler(api.producers, api.shares)
        self._produce = ProduceHandler(
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
        self._fetch = FetchHandler(
            api.fetch, api.authorizer, api.quotas, streams, api.calls, self._control_memory, listener
        )
        self._groups = GroupHandler(api.groups, api.endpoint, api.calls, api.shares, listener)
        self._group_sessions = GroupSessionHandler(
            api.groups, api.authorizer, api.quotas, streams, self._control_memory, listener
        )
        self._maintenance = MaintenanceHandler(api.maintenance, api.shares)
        self._quota_admin = QuotaHandler(api.quota_admin, api.shares)
        self._cluster_admin = ClusterAdminHandler(api.cluster_admin, api.shares, listener)
        self.transactions = TransactionHandler(api.transactions, api.shares, listener)
        self._acls = AclHandler(api.acls, api.shares)
        self._users = UserHandler(api.users, api.shares)
        has_logins = any(one.has_logins for one in config.serving_listeners if one.name == listener)
        self._logins = LoginHandler(api.logins, streams, listener, has_logins=has_logins)
        self._forwarding = Forwarding(
            api.cluster,
            peers,
            forwardable_calls(api, listener),
            listener=listener,
            timeout_ms=config.request_timeout_ms,
        )

    async def _here_or_forwarded(self, method: str, request: Any, context: grpc.aio.ServicerContext) -> Any:
        async def handle(readable: Any) -> Any:
            caller = caller_of(context, self._listener)
            return await self._forwarding.handle(method, readable, caller)

        return await self.unary(method, handle, request, context)

    async def unary(self, method: str, handle: Any, request: Any, context: grpc.aio.ServicerContext) -> Any:
        """A client's call of this name. Nothing is done about it while its caller owes something of its quota."""
        authorized = self._authorized(method, handle, context)
        if self._quotas.has(REQUEST_RATE):
            authorized = self._paced(authorized, context)
        return await self._held(authorized, request, context)

    async def of_broker(self, method: str, handle: Any, request: Any, context: grpc.aio.ServicerContext) -> Any:
        """A call of this name that brokers make; no quota is about them."""
        return await self._held(self._authorized(method, handle, context), request, context)

    def _authorized(self, method: str, handle: Any, context: grpc.aio.ServicerContext) -> Any:
        return self._authorization.around(method, handle, functools.partial(caller_of, context, self._listener))

    async def _stream(self, handle: Any, requests: Any, context: grpc.aio.ServicerContext) -> None:
        async def counted(readable: Any, context: grpc.aio.ServicerContext) -> None:
            with self._open_streams.one(caller_of(context, self._listener)):
                await handle(readable, context)

        await guard_stream(counted, requests, context)

    def _paced(self, handle: Any, context: grpc.aio.ServicerContext) -> Any:
        async def answer(request: Any) -> Any:
            await self._take_turn(CallerPace(self._quotas, caller_of(context, self._listener)), context)
            return await handle(request)

        return answer

    async def _take_turn(self, pace: CallerPace, context: grpc.aio.ServicerContext, count: int = 1) -> None:
        """Raises `OverQuota`. `count`: for how many requests the call counts."""
        await pace.wait_or_refuse(context.time_remaining())
        check_login()  # it may have waited for long
        pace.note_request(count)

    async def _held(self, handle: Any, request: Any, context: grpc.aio.ServicerContext) -> Any:
        """While it waits for its answer, a request counts against its client's share of memory."""
        with hold_request(self._control_memory, request, context.peer()) as held:
            return await guard(handle, held, context)

    async def Produce(self, request_iterator, context):  # type: ignore[no-untyped-def]
        await self._stream(self._produce.stream, request_iterator, context)

    async def ProduceOnce(self, request, context):  # type: ignore[no-untyped-def]
        return await guard(functools.partial(self._produce.once, context=context), request, context)

    async def InitProducerId(self, request, context):  # type: ignore[no-untyped-def]
        if getattr(request, "transactional_id", ""):  # its coordinator is asked; a request may be `Unreadable`
            return await self.unary("InitProducerId", self.transactions.init, request, context)
        return await self._here_or_forwarded("InitProducerId", request, context)

    async def ResumeProducer(self, request, context):  # type: ignore[no-untyped-def]
        return await self.unary("ResumeProducer", self._producers.resume, request, context)

    async def Fetch(self, request_iterator, context):  # type: ignore[no-untyped-def]
        await self._stream(self._fetch.stream, request_iterator, context)

    async def FetchOnce(self, request, context):  # type: ignore[no-untyped-def]
        return await self.unary("FetchOnce", functools.partial(self._fetch.once, context=context), request, context)

    async def FindCoordinator(self, request, context):  # type: ignore[no-untyped-def]
        return await self._here_or_forwarded("FindCoordinator", request, context)

    async def JoinGroup(self, request, context):  # type: ignore[no-untyped-def]
        return await self.unary("JoinGroup", functools.partial(self._groups.join, context=context), request, context)

    async def SyncGroup(self, request, context):  # type: ignore[no-untyped-def]
        return await self.unary("SyncGroup", self._groups.sync, request, context)

    async def Heartbeat(self, request, context):  # type: ignore[no-untyped-def]
        return await self.unary("Heartbeat", self._groups.heartbeat, request, context)

    async def LeaveGroup(self, request, context):  # type: ignore[no-untyped-def]
        return await self.unary("LeaveGroup", self._groups.leave, request, context)

    async def OffsetCommit(self, request, context):  # type: ignore[no-untyped-def]
        return await self.unary("OffsetCommit", self._groups.commit, request, context)

    async def OffsetFetch(self, request, context):  # type: ignore[no-untyped-def]
        return await self.unary("OffsetFetch", self._groups.fetch_offsets, request, context)

    async def OffsetDelete(self, request, context):  # type: ignore[no-untyped-def]
        return await self.unary("OffsetDelete", self._groups.delete_offsets, request, context)

    async def ListGroups(self, request, context):  # type: ignore[no-untyped-def]
        return await self.unary("ListGroups", self._groups.list_groups, request, context)

    async def DescribeGroups(self, request, context):  # type: ignore[no-untyped-def]
        return await self.unary("DescribeGroups", self._groups.describe_groups, request, context)

    async def DeleteGroups(self, request, context):  # type: ignore[no-untyped-def]
        return await self.unary("DeleteGroups", self._groups.delete_groups, request, context)

    async def GroupSession(self, request_iterator, context):  # type: ignore[no-untyped-def]
        await self._stream(self._group_sessions.stream, request_iterator, context)

    async def TxnOffsetCommit(self, request, context):  # type: ignore[no-untyped-def]
        return await self.unary("TxnOffsetCommit", self.transactions.commit_offsets, request, context)

    async def EndTxn(self, request, context):  # type: ignore[no-untyped-def]
        return await self.unary("EndTxn", self.transactions.end, request, context)

    async def ListTransactions(self, request, context):  # type: ignore[no-untyped-def]
        return await self.unary("ListTransactions", self.transactions.list_transactions, request, context)

    async def DescribeTransactions(self, request, context):  # type: ignore[no-untyped-def]
        return await self.unary("DescribeTransactions", self.transactions.describe_transactions, request, context)

    async def DescribeProducers(self, request, context):  # type: ignore[no-untyped-def]
        return await self.unary("DescribeProducers", self.transactions.describe_producers, request, context)

    async def AbortTransaction(self, request, context):  # type: ignore[no-untyped-def]
        return await self.unary("AbortTransaction", self.transactions.abort, request, context)

    async def FenceProducers(self, request, context):  # type: ignore[no-untyped-def]
        return await self.unary("FenceProducers", self.transactions.fence, request, context)

    async def ListOffsets(self, request, context):  # type: ignore[no-untyped-def]
        return await self.unary("ListOffsets", self._metadata.list_offsets, request, context)

    async def Metadata(self, request, context):  # type: ignore[no-untyped-def]
        return await self._here_or_forwarded("Metadata", request, context)

    async def CreateTopics(self, request, context):  # type: ignore[no-untyped-def]
        return await self._here_or_forwarded("CreateTopics", request, context)

    async def DeleteTopics(self, request, context):  # type: ignore[no-untyped-def]
        return await self._here_or_forwarded("DeleteTopics", request, context)

    async def CreatePartitions(self, request, context):  # type: ignore[no-untyped-def]
        return await self._here_or_forwarded("CreatePartitions", request, context)

    async def DescribeConfigs(self, request, context):  # type: ignore[no-untyped-def]
        return await self.unary("DescribeConfigs", self._metadata.describe_configs, request, context)

    async def AlterConfigs(self, request, context):  # type: ignore[no-untyped-def]
        return await self._here_or_forwarded("AlterConfigs", request, context)

    async def DeleteRecords(self, request, context):  # type: ignore[no-untyped-def]
        return await self.unary("DeleteRecords", self._maintenance.delete_records, request, context)

    async def MaintainLog(self, request, context):  # type: ignore[no-untyped-def]
        caller = functools.partial(caller_of, context, self._listener)
        maintain = self._authorization.around_answers("MaintainLog", self._maintenance.maintain, caller)

        async def paced(readable: Any) -> AsyncGenerator[Any, None]:
            with self._open_streams.one(caller()):
                await self._begin_maintenance(readable, context)
                async with contextlib.aclosing(maintain(readable)) as answers:
                    async for answer in answers:
                        yield answer

        with hold_request(self._control_memory, request, context.peer()) as held:
            async for response in guard_answers(paced, held, context):
                yield response

    async def _begin_maintenance(self, request: pb.MaintainLogRequest, context: grpc.aio.ServicerContext) -> None:
        """Each of its partitions counts as a request: it has one rewritten."""
        if self._quotas.has(REQUEST_RATE):
            pace = CallerPace(self._quotas, caller_of(context, self._listener))
            await self._take_turn(pace, context, self._maintenance.count_partitions(request))

    async def SwapFiles(self, request, context):  # type: ignore[no-untyped-def]
        return await self.unary("SwapFiles", self._maintenance.swap_files, request, context)

    async def CreateView(self, request, context):  # type: ignore[no-untyped-def]
        return await self._here_or_forwarded("CreateView", request, context)

    async def DeleteView(self, request, context):  # type: ignore[no-untyped-def]
        return await self._here_or_forwarded("DeleteView", request, context)

    async def ListViews(self, request, context):  # type: ignore[no-untyped-def]
        return await self.unary("ListViews", self._metadata.list_views, request, context)

    async def ApiVersions(self, request, context):  # type: ignore[no-untyped-def]
        return await self.unary("ApiVersions", self._cluster_admin.api_versions, request, context)

    async def DescribeCluster(self, request, context):  # type: ignore[no-untyped-def]
        return await self.unary("DescribeCluster", self._cluster_admin.describe, request, context)

    async def ElectLeaders(self, request, context):  # type: ignore[no-untyped-def]
        return await self._here_or_forwarded("ElectLeaders", request, context)

    async def AlterPartitionReassignments(self, request, context):  # type: ignore[no-untyped-def]
        return await self._here_or_forwarded("AlterPartitionReassignments", request, context)

    async def ListPartitionReassignments(self, request, context):  # type: ignore[no-untyped-def]
        return await self.unary("ListPartitionReassignments", self._cluster_admin.list_reassignments, request, context)

    async def UnregisterBroker(self, request, context):  # type: ignore[no-untyped-def]
        return await self._here_or_forwarded("UnregisterBroker", request, context)

    async def SaslAuthenticate(self, request_iterator, context):  # type: ignore[no-untyped-def]
        await guard_stream(self._logins.authenticate, request_iterator, context)

    async def DescribeUserScramCredentials(self, request, context):  # type: ignore[no-untyped-def]
        return await self.unary("DescribeUserScramCredentials", self._users.describe, request, context)

    async def AlterUserScramCredentials(self, request, context):  # type: ignore[no-untyped-def]
        return await self.unary("AlterUserScramCredentials", self._users.alter, request, context)

    async def CreateAcls(self, request, context):  # type: ignore[no-untyped-def]
        return await self._here_or_forwarded("CreateAcls", request, context)

    async def DescribeAcls(self, request, context):  # type: ignore[no-untyped-def]
        return await self.unary("DescribeAcls", self._acls.describe, request, context)

    async def DeleteAcls(self, request, context):  # type: ignore[no-untyped-def]
        return await self._here_or_forwarded("DeleteAcls", request, context)

    async def DescribeClientQuotas(self, request, context):  # type: ignore[no-untyped-def]
        return await self.unary("DescribeClientQuotas", self._quota_admin.describe, request, context)

    async def AlterClientQuotas(self, request, context):  # type: ignore[no-untyped-def]
        return await self._here_or_forwarded("AlterClientQuotas", request, context)

    async def DescribeQuotaUsage(self, request, context):  # type: ignore[no-untyped-def]
        return await self.unary("DescribeQuotaUsage", self._quota_admin.usage, request, context)

    async def UpdateFeatures(self, request, context):  # type: ignore[no-untyped-def]
        return await self._here_or_forwarded("UpdateFeatures", request, context)


class ClusterServicer(bus_pb2_grpc.ClusterServicer):
    """Calls between brokers. `is_between_brokers`: of the listener; at others a broker says who it is, and
    nothing else."""

    def __init__(self, api: BrokerApi, bus: BusServicer, *, is_between_brokers: bool = True) -> None:
        handlers_at = functools.lru_cache(_LISTENERS_MAX)(functools.partial(forwardable_calls, api))
        self._cluster = ClusterHandler(api.cluster, CallAuthorization(api.authorizer), handlers_at)
        self._transactions = bus.transactions
        self._bus = bus
        self._is_between_brokers = is_between_brokers

    async def _unary(self, method: str, handle: Any, request: Any, context: grpc.aio.ServicerContext) -> Any:
        if self._is_between_brokers:
            return await self._bus.of_broker(method, handle, request, context)
        message = f"expected {method} at the listener by which brokers reach one another (inter.broker.listener.name)"
        await context.abort(grpc.StatusCode.PERMISSION_DENIED, message)
        raise AssertionError("abort raises")

    async def IdentifyBroker(self, request, context):  # type: ignore[no-untyped-def]
        return await self._bus.of_broker("IdentifyBroker", self._cluster.identify, request, context)

    async def RegisterBroker(self, request, context):  # type: ignore[no-untyped-def]
        return await self._unary("RegisterBroker", self._cluster.register, request, context)

    async def BrokerHeartbeat(self, request, context):  # type: ignore[no-untyped-def]
        return await self._unary("BrokerHeartbeat", self._cluster.heartbeat, request, context)

    async def CommittedVersions(self, request, context):  # type: ignore[no-untyped-def]
        return await self._unary("CommittedVersions", self._cluster.committed_versions, request, context)

    async def RaiseLeaderEpoch(self, request, context):  # type: ignore[no-untyped-def]
        return await self._unary("RaiseLeaderEpoch", self._cluster.raise_leader_epoch, request, context)

    async def AddPartitionsToTxn(self, request, context):  # type: ignore[no-untyped-def]
        return await self._unary("AddPartitionsToTxn", self._transactions.add, request, context)

    async def VoteTransaction(self, request, context):  # type: ignore[no-untyped-def]
        step = functools.partial(self._transactions.step, StepKind.VOTE)
        return await self._unary("VoteTransaction", step, request, context)

    async def CommitTransaction(self, request, context):  # type: ignore[no-untyped-def]
        step = functools.partial(self._transactions.step, StepKind.COMMIT)
        return await self._unary("CommitTransaction", step, request, context)

    async def ApplyTransaction(self, request, context):  # type: ignore[no-untyped-def]
        step = functools.partial(self._transactions.step, StepKind.APPLY)
        return await self._unary("ApplyTransaction", step, request, context)

    async def DropTransaction(self, request, context):  # type: ignore[no-untyped-def]
        step = functools.partial(self._transactions.step, StepKind.DROP)
        return await self._unary("DropTransaction", step, request, context)

    async def ResolveTransaction(self, request, context):  # type: ignore[no-untyped-def]
        step = functools.partial(self._transactions.step, StepKind.RESOLVE)
        return await self._unary("ResolveTransaction", step, request, context)

    async def FindNeeded(self, request, context):  # type: ignore[no-untyped-def]
        return await self._unary("FindNeeded", self._transactions.find_needed, request, context)

    async def AppendAudit(self, request, context):  # type: ignore[no-untyped-def]
        return await self._unary("AppendAudit", self._cluster.append_audit, request, context)

    async def Envelope(self, request, context):  # type: ignore[no-untyped-def]
        return await self._unary("Envelope", self._cluster.envelope, request, context)


class BusServer:
    """`bind`, `listen`, then `serve`. `stop` ends it in order: `stopping` begins, nothing new is read, what was read is
    answered, then it closes."""

    def __init__(
        self,
        config: BrokerConfig,
        stopping: Stopping,
        keys: Mapping[str, WatchedKeyMaterial] | None = None,
        *,
        connections_max: int = CONNECTIONS_MAX,
    ) -> None:
        """`keys`: of listeners with TLS, by their names; None if there are none. `connections_max`: of each one."""
        quiet_departures()
        self._config = config
        self._streams = StreamRegistry(stopping)
        self._health = HealthOfServices()
        self._open_streams = OpenStreams(config.client_streams_count_max)
        self._calls = CallsInFlight()
        self._strangers = Strangers(StrangerRations(RationSizes().within(connections_max)))
        self._listening = [
            _Listening(listener, config, self._calls, (keys or {}).get(listener.name), connections_max, self._strangers)
            for listener in config.serving_listeners
        ]

    def bind(self) -> dict[str, int]:
        """The port that each listener has bound, by its name. Raises `AddressInUse`."""
        return {one.name: one.bind() for one in self._listening}

    async def listen(self, identity: BrokerIdentity) -> None:
        """Say who this broker is, and nothing else yet."""
        self._tell_health(health_pb2.HealthCheckResponse.NOT_SERVING)
        self._strangers.start()
        for one in self._listening:
            await one.listen(identity, HealthServicer(self._health, self._open_streams, one.name))

    async def serve(self, api: BrokerApi, peers: GrpcPeers) -> None:
        for one in self._listening:
            bus = BusServicer(api, self._streams, self._config, peers, one.name, self._open_streams)
            is_between_brokers = one.name == self._config.inter_broker_listener.name
            cluster = ClusterServicer(api, bus, is_between_brokers=is_between_brokers)
            audited = AuditedServicer(bus, api.audit, one.name) if api.audit.is_enabled else bus
            audited_cluster = AuditedEnvelopes(cluster, api.audit, one.name) if api.audit.is_enabled else cluster
            reflection = ReflectionServicer(api, self._streams, self._open_streams, one.name)
            one.door.open(audited, audited_cluster, reflection, one.recognise_by_login(api))
        self._tell_health(health_pb2.HealthCheckResponse.SERVING)

    def _tell_health(self, status: health_pb2.HealthCheckResponse.ServingStatus) -> None:
        for name in ("", SERVICE_NAME):
            self._health.set(name, status)

    async def abandon(self) -> None:
        """In place of `stop`, where it does not come to serve."""
        await self._stop_servers(None)

    async def stop(self) -> None:
        """Once all calls are answered, a connection whose peer hangs is given a second: gRPC would wait twenty for its
        farewell."""
        self._health.end()
        grace_s = self._config.controlled_shutdown_timeout_ms / 1000
        stopping = asyncio.ensure_future(self._stop_servers(grace_s))
        await self._streams.drain()
        answered = asyncio.ensure_future(self._calls.wait_until_none())
        await asyncio.wait([stopping, answered], return_when=asyncio.FIRST_COMPLETED)
        answered.cancel()
        await asyncio.wait([stopping], timeout=_FAREWELL_S)
        await self._stop_servers(None)
        await stopping

    async def _stop_servers(self, grace_s: float | None) -> None:
        await asyncio.gather(*(one.server.stop(grace_s) for one in self._listening))
        self._strangers.close()


class _Listening:
    """One listener: a server of gRPC's by itself, so that each call is known to have come by it."""

    def __init__(
        self,
        listener: Listener,
        config: BrokerConfig,
        calls: CallsInFlight,
        keys: WatchedKeyMaterial | None,
        connections_max: int,
        strangers: Strangers,
    ) -> None:
        limit = config.socket_request_max_bytes
        self._listener = listener
        self.name = listener.name
        needs_certificate = config.needs_client_certificate(listener)
        rules = PrincipalRules(config.of_listener(listener).ssl_principal_mapping_rules)
        self._on_known = functools.partial(strangers.recognise, listener.name)
        certified = functools.partial(with_principal, rules=rules, on_known=self._on_known)
        recognise = certified if needs_certificate else None
        has_strangers = listener.has_logins or needs_certificate
        pending_max = _PENDING_CALLS_MAX_OF_STRANGERS if has_strangers else _PENDING_CALLS_MAX
        self.door = ServiceDoor(limit, calls, recognise)
        self._credentials = None
        if listener.has_tls:
            assert keys is not None, f"listener {listener.name} has no certificate"
            self._credentials = listener_credentials(keys, needs_client_certificate=needs_certificate)
        self.server = grpc.aio.server(
            options=[
                ("grpc.max_receive_message_length", limit),
                ("grpc.max_send_message_length", -1),
                # More are closed as soon as they are there.
                ("grpc.max_allowed_incoming_connections", connections_max),
                # For TLS and the first words of HTTP/2: those that say nothing leave their places to others.
                ("grpc.server_handshake_timeout_ms", _HANDSHAKE_MS_MAX),
                # Of one connection; more wait in the client until others of its calls have ended.
                ("grpc.max_concurrent_streams", _CONCURRENT_CALLS_MAX),
                ("grpc.max_connection_idle_ms", config.connections_max_idle_ms),
                # Of the headers of one call; tokens of some providers take most of it.
                ("grpc.max_metadata_size", _HEADERS_BYTES_MAX),
                ("grpc.absolute_max_metadata_size", _HEADERS_BYTES_MAX),
                ("grpc.so_reuseport", 0),  # a second broker on the same port is an error, not a silent half
                ("grpc.keepalive_time_ms", 30_000),  # finds clients that are gone without a word
                ("grpc.keepalive_permit_without_calls", 1),
                ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
                # Calls that have come and are not yet taken up; beyond it gRPC cancels some at random. A large group
                # that begins to rebalance joins all at once.
                ("grpc.server.max_pending_requests", pending_max),
                ("grpc.server.max_pending_requests_hard_limit", 2 * pending_max),
                *(strangers.listener_options(listener.name) if has_strangers else ()),
            ]
        )

    def recognise_by_login(self, api: BrokerApi) -> Recognise | None:
        """None: the listener has no authentication."""
        if not self._listener.has_logins:
            return None
        return functools.partial(with_login, api=api.logins, listener=self.name, on_known=self._on_known)

    def bind(self) -> int:
        """The port that was bound. Raises `AddressInUse`."""
        address = str(self._listener.bind)
        try:
            port: int = (
                self.server.add_insecure_port(address)
                if self._credentials is None
                else self.server.add_secure_port(address, self._credentials)
            )
        except RuntimeError:
            port = 0  # its message speaks of gRPC's own debug settings only
        if port == 0:
            raise AddressInUse(f"cannot listen on {address}: is another program using it, or is it not this machine's?")
        return port

    async def listen(self, identity: BrokerIdentity, health: HealthServicer) -> None:
        self.door.identify_as(identity)
        self.server.add_generic_rpc_handlers((self.door, health.handlers()))
        await self.server.start()
