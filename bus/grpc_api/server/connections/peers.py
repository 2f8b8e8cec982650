"""The other brokers of the cluster over gRPC: what this broker asks them, and the calls of clients that it forwards.

A call that fails is a refusal: NETWORK_EXCEPTION if there was no connection or it broke, REQUEST_TIMED_OUT if no answer
came in time. Nothing is tried again here, but what the network swallows is sent on another connection
(peer_transport.py).
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from bus.cluster_metadata.broker_decisions import BrokerIdentity, RegisterBroker
from bus.cluster_metadata.cluster_decisions import RaiseLeaderEpoch
from bus.errors import ErrorCode, Refused
from bus.grpc_api.server.connections.peer_transport import Transport, read_answer
from bus.grpc_api.server.conversions import refusal_of
from bus.grpc_api.server.peer_messages import (
    EPOCH_RAISE,
    HEARTBEAT,
    HEARTBEAT_ANSWER,
    IDENTITY,
    REGISTERED,
    REGISTRATION,
    VERSIONS_ANSWER,
    VERSIONS_REQUEST,
)
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
from bus.runtime.metadata.peers import (
    BrokerHeartbeat,
    HeartbeatAnswer,
    Registered,
    StepAnswer,
    StepKind,
    StepRequest,
    TakenProducerId,
    Traces,
    TransactionAddition,
)
from bus.runtime.replicas.followed_tables import VersionsAnswer, VersionsRequest
from bus.transactions.requests import Added

_CHANGE_TIMEOUT_S = 5.0
# For the answer of a broker that hands over, which may be on its way.
LAST_ANSWER_S = 1.0
# What a broker answers as a leader, a coordinator or the controller: there is another one once it is fenced.
_BY_OFFICE = frozenset(
    {"Envelope", "RaiseLeaderEpoch", "AddPartitionsToTxn", "FindNeeded", "AppendAudit", *STEP_METHODS.values()}
)
# Beyond the wait that it was asked for, a broker that is well answers a small question in less than that.
_DUE_S_MIN, _DUE_S_MAX = 0.25, 1.0


class GrpcPeers:
    """Implements `bus.runtime.metadata.peers.Peers`."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self._waiting: dict[int, set[asyncio.Future[None]]] = {}  # by broker id; set once they are given up

    async def identify(
        self, endpoint: BrokerEndpoint, *, timeout_s: float, needs_login: bool
    ) -> BrokerIdentity | Refused:
        request, due_s = pb.IdentifyBrokerRequest(), _due_s(timeout_s / 2)
        answer = await self._ask(endpoint, "IdentifyBroker", request, timeout_s, due_s=due_s, needs_login=needs_login)
        return answer if isinstance(answer, Refused) else IDENTITY.decode(answer)

    async def register(
        self, controller: BrokerEndpoint, command: RegisterBroker, *, cluster_id: str
    ) -> Registered | Refused:
        request = REGISTRATION.encode(command, cluster_id=cluster_id)
        answer = await self._ask(controller, "RegisterBroker", request, _CHANGE_TIMEOUT_S)
        return answer if isinstance(answer, Refused) else REGISTERED.decode(answer)

    async def heartbeat(
        self, controller: BrokerEndpoint, heartbeat: BrokerHeartbeat, *, timeout_s: float
    ) -> HeartbeatAnswer | Refused:
        request = HEARTBEAT.encode(heartbeat)
        wait_s = heartbeat.max_wait_ms / 1000
        due_s = wait_s + _due_s((timeout_s - wait_s) / 8)
        again = pb.BrokerHeartbeatRequest()
        again.CopyFrom(request)
        again.max_wait_ms = 0  # the answer is late already
        answer = await self._ask(controller, "BrokerHeartbeat", request, timeout_s, due_s=due_s, again=again)
        return answer if isinstance(answer, Refused) else HEARTBEAT_ANSWER.decode(answer)

    async def committed_versions(
        self, leader: BrokerEndpoint, request: VersionsRequest, *, timeout_s: float
    ) -> VersionsAnswer | Refused:
        answer = await self._ask(leader, "CommittedVersions", VERSIONS_REQUEST.encode(request), timeout_s)
        return answer if isinstance(answer, Refused) else VERSIONS_ANSWER.decode(answer)

    async def raise_leader_epoch(self, controller: BrokerEndpoint, command: RaiseLeaderEpoch) -> int | Refused:
        answer = await self._ask(controller, "RaiseLeaderEpoch", EPOCH_RAISE.encode(command), _CHANGE_TIMEOUT_S)
        return answer if isinstance(answer, Refused) else int(answer.leader_epoch)

    async def add_to_transaction(
        self, coordinator: BrokerEndpoint, addition: TransactionAddition, *, timeout_s: float
    ) -> Added | Refused:
        request = pb.AddPartitionsToTxnRequest(transactions=[encode_addition(addition)])
        answer = await self._call(coordinator, "AddPartitionsToTxn", request, timeout_s=timeout_s)
        if isinstance(answer, Refused):
            return answer
        if len(answer.transactions) != 1:
            return Refused(ErrorCode.UNKNOWN_SERVER_ERROR, f"expected one answer, found {len(answer.transactions)}")
        return added_of(answer.transactions[0])

    async def step_transaction(
        self, leader: BrokerEndpoint, kind: StepKind, request: StepRequest, *, timeout_s: float
    ) -> StepAnswer | Refused:
        answer = await self._call(leader, STEP_METHODS[kind], encode_step(request), timeout_s=timeout_s)
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

    def give_up(self, broker_id: int) -> None:
        waiting = list(self._waiting.get(broker_id, ()))
        if waiting:
            asyncio.get_running_loop().call_later(LAST_ANSWER_S, _set_all, waiting)

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
        answer = await self._call(
            to, method, request, timeout_s=timeout_s, due_s=due_s, again=again, needs_login=needs_login
        )
        return answer if isinstance(answer, Refused) else refusal_of(answer) or answer

    async def _call(self, to: BrokerEndpoint, method: str, request: Any, **how: Any) -> Any:
        """The message that is answered, or why there is none: see `give_up`."""
        if method not in _BY_OFFICE:
            return await self._transport.call(to, method, request, **how)
        asked = asyncio.ensure_future(self._transport.call(to, method, request, **how))
        given_up: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        waiting = self._waiting.setdefault(to.broker_id, set())
        waiting.add(given_up)
        try:
            await asyncio.wait([asked, given_up], return_when=asyncio.FIRST_COMPLETED)
            if asked.done():
                return asked.result()
            reason = "it was fenced meanwhile, and has not answered"
            return Refused(ErrorCode.NETWORK_EXCEPTION, f"{method} at broker {to.broker_id}, {to.address}: {reason}")
        finally:
            asked.cancel()
            waiting.discard(given_up)


def _set_all(waiting: Sequence[asyncio.Future[None]]) -> None:
    for future in waiting:
        if not future.done():
            future.set_result(None)


def _due_s(wanted_s: float) -> float:
    return min(max(wanted_s, _DUE_S_MIN), _DUE_S_MAX)
