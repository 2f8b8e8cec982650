"""The other brokers of the cluster over gRPC: what this broker asks them, and the calls of clients that it forwards.

A call that fails is a refusal: NETWORK_EXCEPTION if there was no connection or it broke, REQUEST_TIMED_OUT if no answer
came in time. Nothing is tried again here, but what the network swallows is sent on another connection
(peer_transport.py).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from bus.cluster_metadata.broker_decisions import BrokerIdentity, RegisterBroker
from bus.cluster_metadata.cluster_decisions import RaiseLeaderEpoch
from bus.errors import ErrorCode, Refused
from bus.grpc_api.server.connections.peer_transport import Transport, read_answer
from bus.grpc_api.server.conversions import encode_lagging, lagging_of, refusal_of, topics_of, versions_of
from bus.grpc_api.server.transactions import (
    STEP_METHODS,
    added_of,
    encode_addition,
    encode_step,
    encode_traces,
    step_answer_of,
    traces_of,
)
from bus.grpc_api.v1 import bus_pb2 as pb
from bus.model import BrokerEndpoint
from bus.runtime.metadata.peers import BrokerHeartbeat, HeartbeatAnswer, Registered
from bus.runtime.replicas.followed_tables import VersionsAnswer, VersionsRequest
from bus.runtime.transaction_calls import (
    StepAnswer,
    StepKind,
    StepRequest,
    TakenProducerId,
    Traces,
    TransactionAddition,
)
from bus.transactions.requests import Added

_CHANGE_TIMEOUT_S = 5.0
# Beyond the wait that it was asked for, a broker that is well answers a small question in less than that.
_DUE_S_MIN, _DUE_S_MAX = 0.25, 1.0


class GrpcPeers:
    """Implements `bus.runtime.metadata.peers.Peers`."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    async def identify(
        self, endpoint: BrokerEndpoint, *, timeout_s: float, needs_login: bool
    ) -> BrokerIdentity | Refused:
        request, due_s = pb.IdentifyBrokerRequest(), _due_s(timeout_s / 2)
        answer = await self._ask(endpoint, "IdentifyBroker", request, timeout_s, due_s=due_s, needs_login=needs_login)
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
        wait_s = heartbeat.max_wait_ms / 1000
        due_s = wait_s + _due_s((timeout_s - wait_s) / 8)
        again = pb.BrokerHeartbeatRequest()
        again.CopyFrom(request)
        again.max_wait_ms = 0  # the answer is late already
        answer = await self._ask(controller, "BrokerHeartbeat", request, timeout_s, due_s=due_s, again=again)
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
        if isinstance(answer, Refused):
            return answer
        return replace(traces_of(answer.traces), ended=traces_of(answer.ended).rows)

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
        identity = read_answer(envelope.method, answer.response)
        if isinstance(identity, Refused):
            return identity
        return refusal_of(identity) or TakenProducerId(identity.producer_id, answer.metadata_offset)

    async def forward(
        self, controller: BrokerEndpoint, envelope: pb.EnvelopeRequest, *, timeout_s: float
    ) -> pb.EnvelopeResponse | Refused:
        answer: pb.EnvelopeResponse | Refused = await self._ask(controller, "Envelope", envelope, timeout_s)
        return answer

    def suspect_all(self) -> None:
        self._transport.suspect_all()

    async def _ask(
        self,
        to: BrokerEndpoint,
        method: str,
        request: Any,
        timeout_s: float,
        *,
        due_s: float | None = None,
        again: Any = None,
        needs_login: bool = True,
    ) -> Any:
        """The answer, or why there is none."""
        answer = await self._transport.call(
            to, method, request, timeout_s=timeout_s, due_s=due_s, again=again, needs_login=needs_login
        )
        return answer if isinstance(answer, Refused) else refusal_of(answer) or answer


def _due_s(wanted_s: float) -> float:
    return min(max(wanted_s, _DUE_S_MIN), _DUE_S_MAX)
