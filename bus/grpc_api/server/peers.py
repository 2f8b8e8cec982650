"""The other brokers of the cluster over gRPC: what this broker asks them, and the calls of clients that it forwards.

A call that fails is a refusal: NETWORK_EXCEPTION if there was no connection or it broke, REQUEST_TIMED_OUT if no answer
came in time. Nothing is tried again here, but where an answer did not come in time, what follows has another
connection: a network may swallow what is sent on one without a word.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any, Protocol

import grpc

from bus.addresses import format_address
from bus.cluster_metadata.broker_decisions import BrokerIdentity, RegisterBroker
from bus.cluster_metadata.cluster_decisions import RaiseLeaderEpoch
from bus.errors import ErrorCode, Refused
from bus.grpc_api.server.certificates import channel_credentials
from bus.grpc_api.server.conversions import encode_lagging, lagging_of, topics_of, versions_of
from bus.grpc_api.server.peer_logins import BrokerLogin
from bus.grpc_api.server.transaction_messages import (
    STEP_METHODS,
    added_of,
    encode_addition,
    encode_step,
    encode_traces,
    step_answer_of,
    traces_of,
)
from bus.grpc_api.v1 import bus_pb2 as pb
from bus.key_material import KeyMaterial, WatchedKeyMaterial
from bus.model import BrokerEndpoint
from bus.runtime.metadata.peers import BrokerHeartbeat, HeartbeatAnswer, Registered
from bus.runtime.replicas.committed_versions import VersionsAnswer, VersionsRequest
from bus.runtime.transaction_calls import (
    StepAnswer,
    StepKind,
    StepRequest,
    TakenProducerId,
    Traces,
    TransactionAddition,
)
from bus.transactions.requests import Added

SERVICE = pb.DESCRIPTOR.services_by_name["Cluster"]
CHANNELS_MAX = 1_000
_CHANGE_TIMEOUT_S = 5.0
# Nothing new is begun where nothing has come for so long after a request: who waited for it may have gone by now.
_SILENCE_S_MAX = 5.0
_OPTIONS = (
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
    # Else channels to one address share what is below them: another channel would be the same dead connection.
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.enable_http_proxy", 0),  # the proxies of the environment are there for the web and lead to no broker
    # A broker that comes back is reached by the next heartbeat.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 500),
)


_ChannelKey = tuple[str, int, KeyMaterial | None]


class Transport(Protocol):
    async def call(self, to: BrokerEndpoint, method: str, message: Any, *, timeout_s: float) -> Any:
        """The answer of that method of the service Cluster, or a refusal."""
        ...

    async def close(self) -> None: ...


@dataclass(slots=True, eq=False)
class _Connection:
    """A retired one is used for nothing new, and is closed behind the last call that is under way on it."""

    channel: grpc.aio.Channel
    calls_under_way: int = 0
    silent_since_s: float | None = None  # when the first request went out that nothing has come after
    is_retired: bool = False


class GrpcTransport:
    """A connection to each address that was asked of late. Any caller of RegisterBroker names an address, so they are
    bounded: the one that was not asked for longest is closed. `keys`: for TLS; other certificates make other
    connections. `login`: where the other brokers' listener asks for one."""

    def __init__(self, keys: WatchedKeyMaterial | None = None, login: BrokerLogin | None = None) -> None:
        self._keys = keys
        self._login = login
        self._connections: dict[_ChannelKey, _Connection] = {}
        self._closing: set[asyncio.Task[None]] = set()

    async def call(self, to: BrokerEndpoint, method: str, message: Any, *, timeout_s: float) -> Any:
        key = to.host, to.port, None if self._keys is None else self._keys.current
        connection = self._connection(key)
        connection.calls_under_way += 1
        if connection.silent_since_s is None:
            connection.silent_since_s = asyncio.get_running_loop().time()
        try:
            answer = await self._call(key, connection.channel, method, message, timeout_s)
            connection.silent_since_s = None
            return answer
        except grpc.aio.AioRpcError as error:
            is_late = error.code() is grpc.StatusCode.DEADLINE_EXCEEDED
            if is_late:
                self._retire(key, connection)
            elif error.code() is not grpc.StatusCode.UNAVAILABLE:
                connection.silent_since_s = None
            code = ErrorCode.REQUEST_TIMED_OUT if is_late else ErrorCode.NETWORK_EXCEPTION
            return Refused(code, f"{method} at broker {to.broker_id}, {to.address}: {error.details()}")
        finally:
            connection.calls_under_way -= 1
            if connection.is_retired:
                self._close_unused(connection)

    async def _call(
        self, key: _ChannelKey, channel: grpc.aio.Channel, method: str, message: Any, timeout_s: float
    ) -> Any:
        descriptor = SERVICE.methods_by_name[method]
        call = channel.unary_unary(
            f"/{SERVICE.full_name}/{method}",
            request_serializer=descriptor.input_type._concrete_class.SerializeToString,
            response_deserializer=descriptor.output_type._concrete_class.FromString,
        )
        if self._login is None:
            return await call(message, timeout=timeout_s)
        is_open_to_all = method == "IdentifyBroker"
        return await self._call_logged_in(self._login, key, channel, call, message, timeout_s, is_open_to_all)

    async def _call_logged_in(
        self,
        login: BrokerLogin,
        key: _ChannelKey,
        channel: grpc.aio.Channel,
        call: Any,
        message: Any,
        timeout_s: float,
        is_open_to_all: bool,
    ) -> Any:
        """A session that the other broker has forgotten, as it started again, is asked for once more."""
        for is_again in (False, True):
            try:
                headers = await login.headers(channel, key, timeout_s=timeout_s)
            except grpc.aio.AioRpcError:
                if not is_open_to_all:
                    raise
                headers = ()  # a broker that starts knows no users yet
            if isinstance(headers, Refused):
                return headers
            try:
                return await call(message, timeout=timeout_s, metadata=headers)
            except grpc.aio.AioRpcError as error:
                if error.code() is not grpc.StatusCode.UNAUTHENTICATED or is_again:
                    raise
                login.forget(key)
        raise AssertionError("the second answer is returned or raised")

    def _connection(self, key: _ChannelKey) -> _Connection:
        found = self._connections.pop(key, None)
        now_s = asyncio.get_running_loop().time()
        if found is not None and found.silent_since_s is not None and now_s - found.silent_since_s >= _SILENCE_S_MAX:
            self._retire(key, found)
            found = None
        connection = found or _Connection(_open(key))
        self._connections[key] = connection  # the last one
        if len(self._connections) > CHANNELS_MAX:
            oldest = next(iter(self._connections))
            if self._login is not None:
                self._login.forget(oldest)
            self._retire(oldest, self._connections[oldest])
        return connection

    def _retire(self, key: _ChannelKey, connection: _Connection) -> None:
        if self._connections.get(key) is connection:
            del self._connections[key]
        connection.is_retired = True
        self._close_unused(connection)

    def _close_unused(self, connection: _Connection) -> None:
        if not connection.calls_under_way:
            closing = asyncio.get_running_loop().create_task(connection.channel.close())
            self._closing.add(closing)
            closing.add_done_callback(self._closing.discard)

    async def close(self) -> None:
        connections, self._connections = list(self._connections.values()), {}
        await asyncio.gather(*self._closing)
        for connection in connections:
            await connection.channel.close()


def _open(key: _ChannelKey) -> grpc.aio.Channel:
    host, port, material = key
    target = format_address(host, port)
    if material is None:
        return grpc.aio.insecure_channel(target, options=_OPTIONS)
    return grpc.aio.secure_channel(target, channel_credentials(material), options=_OPTIONS)


class GrpcPeers:
    """Implements `bus.runtime.metadata.peers.Peers`."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    async def identify(self, endpoint: BrokerEndpoint, *, timeout_s: float) -> BrokerIdentity | Refused:
        answer = await self._ask(endpoint, "IdentifyBroker", pb.IdentifyBrokerRequest(), timeout_s)
        if isinstance(answer, Refused):
            return answer
        return BrokerIdentity(answer.cluster_id, answer.broker_id, answer.incarnation_id)

    async def register(
        self, controller: BrokerEndpoint, command: RegisterBroker, *, cluster_id: str
    ) -> Registered | Refused:
        request = pb.RegisterBrokerRequest(
            cluster_id=cluster_id,
            broker_id=command.endpoint.broker_id,
            host=command.endpoint.host,
            port=command.endpoint.port,
            rack=command.rack or "",
            incarnation_id=command.incarnation,
            min_feature_level=command.level_min,
            max_feature_level=command.level_max,
            listeners=[
                pb.BrokerListener(name=one.name, protocol=one.protocol, host=one.host, port=one.port)
                for one in command.endpoint.listeners
            ],
        )
        answer = await self._ask(controller, "RegisterBroker", request, _CHANGE_TIMEOUT_S)
        return answer if isinstance(answer, Refused) else Registered(answer.broker_epoch, answer.metadata_offset)

    async def heartbeat(
        self, controller: BrokerEndpoint, heartbeat: BrokerHeartbeat, *, timeout_s: float
    ) -> HeartbeatAnswer | Refused:
        request = pb.BrokerHeartbeatRequest(
            broker_id=heartbeat.broker_id,
            broker_epoch=heartbeat.broker_epoch,
            incarnation_id=heartbeat.incarnation,
            metadata_offset=heartbeat.metadata_offset,
            want_shut_down=heartbeat.wants_shut_down,
            max_wait_ms=heartbeat.max_wait_ms,
            used_producer_ids=heartbeat.used_producer_ids,
            lagging=encode_lagging(heartbeat.lagging),
            want_fence=heartbeat.wants_fence,
            is_unanswered=heartbeat.is_unanswered,
        )
        answer = await self._ask(controller, "BrokerHeartbeat", request, timeout_s)
        if isinstance(answer, Refused):
            return answer
        return HeartbeatAnswer(answer.metadata_offset, answer.should_shut_down, lagging_of(answer.lagging))

    async def committed_versions(
        self, leader: BrokerEndpoint, request: VersionsRequest, *, timeout_s: float
    ) -> VersionsAnswer | Refused:
        message = pb.CommittedVersionsRequest(
            incarnation_id=request.incarnation,
            after=request.after,
            max_wait_ms=request.wait_ms_max,
            broker_id=request.report.broker_id,
            broker_epoch=request.report.broker_epoch,
            applied=topics_of(request.report.applied),
        )
        answer = await self._ask(leader, "CommittedVersions", message, timeout_s)
        if isinstance(answer, Refused):
            return answer
        return VersionsAnswer(answer.incarnation_id, answer.end, versions_of(answer.topics), answer.is_awaited)

    async def raise_leader_epoch(self, controller: BrokerEndpoint, command: RaiseLeaderEpoch) -> int | Refused:
        request = pb.RaiseLeaderEpochRequest(
            broker_id=command.leader_id,
            broker_epoch=command.broker_epoch,
            topic=command.partition.topic,
            partition=command.partition.partition,
            above=command.above,
        )
        answer = await self._ask(controller, "RaiseLeaderEpoch", request, _CHANGE_TIMEOUT_S)
        return answer if isinstance(answer, Refused) else int(answer.leader_epoch)

    async def add_to_transaction(
        self, coordinator: BrokerEndpoint, addition: TransactionAddition, *, timeout_s: float
    ) -> Added | Refused:
        request = pb.AddPartitionsToTxnRequest(transactions=[encode_addition(addition)])
        answer = await self._transport.call(coordinator, "AddPartitionsToTxn", request, timeout_s=timeout_s)
        if isinstance(answer, Refused):
            return answer
        if len(answer.transactions) != 1:
            return Refused(ErrorCode.UNKNOWN_SERVER_ERROR, f"expected one answer, found {len(answer.transactions)}")
        return added_of(answer.transactions[0])

    async def step_transaction(
        self, leader: BrokerEndpoint, kind: StepKind, request: StepRequest, *, timeout_s: float
    ) -> StepAnswer | Refused:
        answer = await self._transport.call(leader, STEP_METHODS[kind], encode_step(request), timeout_s=timeout_s)
        return answer if isinstance(answer, Refused) else step_answer_of(request, answer)

    async def find_needed(
        self, coordinator: BrokerEndpoint, coordinator_partition: int, traces: Traces, *, timeout_s: float
    ) -> Traces | Refused:
        request = pb.FindNeededRequest(coordinator_partition=coordinator_partition, traces=encode_traces(traces))
        answer = await self._ask(coordinator, "FindNeeded", request, timeout_s)
        return answer if isinstance(answer, Refused) else traces_of(answer.traces)

    async def append_audit(self, leader: BrokerEndpoint, rows: bytes, *, timeout_s: float) -> Refused | None:
        answer = await self._ask(leader, "AppendAudit", pb.AppendAuditRequest(rows=rows), timeout_s)
        return answer if isinstance(answer, Refused) else None

    async def take_producer_id(self, controller: BrokerEndpoint, *, timeout_s: float) -> TakenProducerId | Refused:
        envelope = pb.EnvelopeRequest(
            method="InitProducerId",
            request=pb.InitProducerIdRequest().SerializeToString(),
            client="broker",
            is_own=True,
        )
        answer = await self.forward(controller, envelope, timeout_s=timeout_s)
        if isinstance(answer, Refused):
            return answer
        identity = pb.InitProducerIdResponse.FromString(answer.response)
        if identity.error_code != pb.ERROR_CODE_NONE:
            return Refused(ErrorCode(identity.error_code), identity.error_message)
        return TakenProducerId(identity.producer_id, answer.metadata_offset)

    async def forward(
        self, controller: BrokerEndpoint, envelope: pb.EnvelopeRequest, *, timeout_s: float
    ) -> pb.EnvelopeResponse | Refused:
        answer: pb.EnvelopeResponse | Refused = await self._ask(controller, "Envelope", envelope, timeout_s)
        return answer

    async def _ask(self, to: BrokerEndpoint, method: str, request: Any, timeout_s: float) -> Any:
        """The answer, or why there is none."""
        answer = await self._transport.call(to, method, request, timeout_s=timeout_s)
        if isinstance(answer, Refused) or answer.error_code == pb.ERROR_CODE_NONE:
            return answer
        return Refused(ErrorCode(answer.error_code), answer.error_message)
