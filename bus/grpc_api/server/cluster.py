"""Calls between brokers, and how a call that changes the cluster metadata comes to the controller.

A handler of the service Bus raises `NotController` where only the controller can do what it is asked. The call is then
sent on as the message that it is, and its answer is given once this broker has followed the metadata up to what the
call has changed: a client that creates a topic at one broker can use it there. The brokers of the cluster for
administrators are here, too.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

from google.protobuf.message import Message

from bus.broker_api.authorization import OF_CLUSTER, Access, Authorizer, show_acl
from bus.broker_api.cluster_admin import ClusterAdminApi, ClusterApi
from bus.broker_api.pipeline import auditing_end
from bus.broker_api.requests import ANONYMOUS, Caller, InvalidArgument, Unavailable
from bus.errors import ErrorCode, NotController, Refused
from bus.grpc_api.contract import CALLS, CONTRACT_DIGEST, CONTRACT_VERSION, software_version
from bus.grpc_api.server.connections.peer_transport import read_answer
from bus.grpc_api.server.connections.peers import LAST_ANSWER_S, GrpcPeers
from bus.grpc_api.server.conversions import (
    refusal_of,
    with_error,
)
from bus.grpc_api.server.guards import ending_of
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
from bus.grpc_api.server.request_limits import Unreadable, UnreadableRequest, control_reader
from bus.grpc_api.v1 import bus_pb2 as pb
from bus.grpc_api.value_messages import ACL, CLUSTER, OPERATIONS, UnknownWord, decode_partitions
from bus.model import PLAINTEXT, BrokerEndpoint, TopicPartition
from bus.runtime.logs import request_id
from bus.runtime.metadata.controller import ControllerWatch
from bus.runtime.tasks import LoopShares, time_limit
from bus.security.acls import CLUSTER as THE_CLUSTER

Handle = Callable[[Access, Any], Awaitable[Any]]
_BUS = pb.DESCRIPTOR.services_by_name["Bus"]
_OWN_CALLS = ("InitProducerId",)  # that a broker makes for itself, and nobody is asked whether it may
_RETRY_S = 0.1
_WAIT_MS_MAX = 60_000  # of a long poll


class Forwarding:
    """`handlers`: of the calls that may have to be forwarded, by the name of the method; they came by `listener`."""

    def __init__(
        self,
        api: ClusterApi,
        peers: GrpcPeers,
        handlers: Mapping[str, Handle],
        *,
        listener: str,
        timeout_ms: int,
    ) -> None:
        self._api = api
        self._peers = peers
        self._handlers = handlers
        self._listener = listener
        self._timeout_s = timeout_ms / 1000
        self._watch = ControllerWatch(lambda: api.controller)

    async def handle(self, access: Access, request: Message) -> Any:
        """Return what the handler answers here or, if this broker is not the controller, what the controller answers.

        Raises `Unavailable` if no controller takes the call in time, or the connection to it breaks, or its answer
        cannot be read: then it cannot be told whether the call had an effect, as with any other connection that breaks.
        """
        try:
            async with time_limit(self._timeout_s):
                return await self._handle(access.call.name, request, access)
        except asyncio.TimeoutError:
            message = f"{access.call.name}: no controller has answered within {self._timeout_s:.0f} s"
            raise Unavailable(message) from None

    async def _handle(self, method: str, request: Message, access: Access) -> Any:
        while True:
            try:
                async with access.deferring_reports():
                    return await self._handlers[method](access, request)
            except NotController:
                controller = self._api.controller
            if controller is not None and controller != self._api.endpoint:
                envelope = pb.EnvelopeRequest(
                    method=method,
                    request=request.SerializeToString(),
                    client=access.caller.host,
                    listener=self._listener,
                    principal=access.caller.principal,
                    client_id=access.caller.client_id,
                )
                answer = await self._forward(controller, envelope)
                if not isinstance(answer, Refused):
                    response = read_answer(method, answer.response)
                    if isinstance(response, Refused):
                        raise Unavailable(f"{method}: what the controller answered cannot be read: {response.message}")
                    await self._api.wait_until_applied(answer.metadata_offset)
                    _report_changes(access, response)
                    return response
                if answer.code is not ErrorCode.NOT_CONTROLLER:
                    raise Unavailable(f"{method}: the controller did not answer: {answer.message}")
            if controller is None:
                wake = asyncio.Event()
                with self._watch.waking(wake, None):
                    await wake.wait()
            else:
                await asyncio.sleep(_RETRY_S)

    async def _forward(self, controller: BrokerEndpoint, envelope: pb.EnvelopeRequest) -> pb.EnvelopeResponse | Refused:
        """One that hangs is not waited for any longer than until there is another controller."""
        asked = asyncio.ensure_future(self._peers.forward(controller, envelope, timeout_s=self._timeout_s))
        wake = asyncio.Event()
        asked.add_done_callback(lambda _: wake.set())
        try:
            with self._watch.waking(wake, controller):
                await wake.wait()
            await asyncio.wait([asked], timeout=LAST_ANSWER_S)
            if asked.done():
                return asked.result()
            reason = f"broker {controller.broker_id}, the controller until now, has not answered"
            return Refused(ErrorCode.REQUEST_TIMED_OUT, reason)
        finally:
            asked.cancel()


def _report_changes(access: Access, response: Any) -> None:
    """Audit what the controller has answered: a refusal of the whole, an entry for each thing that the call has stated,
    or nothing if it is done."""
    refused = refusal_of(response) if "error_code" in response.DESCRIPTOR.fields_by_name else None
    outcomes_of = _OUTCOMES_OF.get(access.call.name)
    entries = None if refused is not None else _entries_of(response)
    if refused is None and outcomes_of is not None:
        access.changes.report(lambda: outcomes_of(response))
    elif entries is None:
        access.changes.report_all(refused)
    else:
        access.changes.report_in_order(map(refusal_of, entries))


# Of calls that do not name what they change: the answer does.
_OUTCOMES_OF: Mapping[str, Callable[[Any], Iterable[tuple[str, Refused | None]]]] = {
    "ElectLeaders": lambda answer: (
        (str(TopicPartition(one.topic, one.partition)), refusal_of(one)) for one in answer.partitions
    ),
    "DeleteAcls": lambda answer: ((_show_removed(acl), None) for result in answer.results for acl in result.acls),
}


def _show_removed(acl: pb.AclBinding) -> str:
    """Show the ACL that a controller has removed, also one of which this version does not know all words."""
    try:
        return show_acl(ACL.decode(acl))
    except UnknownWord as unknown:
        return f"{acl.principal} {acl.resource_name} from {acl.host}: {unknown.message}"


def _entries_of(response: Any) -> Iterable[Any] | None:
    """Those that may be refused alone."""
    for field in response.DESCRIPTOR.fields:
        if field.is_repeated and field.message_type is not None and "error_code" in field.message_type.fields_by_name:
            entries: Iterable[Any] = getattr(response, field.name)
            return entries
    return None


class ClusterHandler:
    """`handlers_at`: what answers calls that came by a listener of this name, by the name of the method. A call in an
    envelope is checked as that of the client, not as that of the broker that sends it on."""

    def __init__(
        self, api: ClusterApi, authorizer: Authorizer, handlers_at: Callable[[str], Mapping[str, Handle]]
    ) -> None:
        self._api = api
        self._authorizer = authorizer
        self._handlers_at = handlers_at

    async def identify(self, access: Access, _: pb.IdentifyBrokerRequest) -> Any:
        return IDENTITY.encode_answer(await self._api.identify(access))

    async def register(self, access: Access, request: pb.RegisterBrokerRequest) -> Any:
        command = REGISTRATION.decode(request)
        return REGISTERED.encode_answer(await self._api.register(access, command, cluster_id=request.cluster_id))

    async def heartbeat(self, access: Access, request: pb.BrokerHeartbeatRequest) -> Any:
        return HEARTBEAT_ANSWER.encode_answer(await self._api.heartbeat(access, HEARTBEAT.decode(request)))

    async def committed_versions(self, access: Access, request: pb.CommittedVersionsRequest) -> Any:
        asked = VERSIONS_REQUEST.decode(request)
        bounded = replace(asked, wait_ms_max=min(max(0, asked.wait_ms_max), _WAIT_MS_MAX))
        return VERSIONS_ANSWER.encode_answer(await self._api.committed_versions(access, bounded))

    async def raise_leader_epoch(
        self, access: Access, request: pb.RaiseLeaderEpochRequest
    ) -> pb.RaiseLeaderEpochResponse:
        answer = await self._api.raise_leader_epoch(access, EPOCH_RAISE.decode(request))
        if isinstance(answer, Refused):
            return with_error(pb.RaiseLeaderEpochResponse(), answer)
        return pb.RaiseLeaderEpochResponse(leader_epoch=answer)

    async def append_audit(self, access: Access, request: pb.AppendAuditRequest) -> pb.AppendAuditResponse:
        refusal = await self._api.append_audit(access, request.rows)
        response = pb.AppendAuditResponse()
        return response if refusal is None else with_error(response, refusal)

    async def envelope(self, access: Access, request: pb.EnvelopeRequest) -> pb.EnvelopeResponse:
        refused = await access.refusal_of_request(OF_CLUSTER)
        if refused is not None:
            return with_error(pb.EnvelopeResponse(), refused)
        if request.is_own and request.method not in _OWN_CALLS:
            names = ", ".join(_OWN_CALLS)
            raise InvalidArgument(f"expected a broker's own call, {names}, found {request.method[:100]!r}")
        handle = self._handlers_at(request.listener or PLAINTEXT).get(request.method)
        if handle is None:
            raise InvalidArgument(f"expected a method that may be forwarded, found {request.method[:100]!r}")
        message = control_reader(_BUS.methods_by_name[request.method].input_type._concrete_class)(request.request)
        if isinstance(message, Unreadable):
            raise UnreadableRequest(message)
        caller = _caller_of(request)
        if request.is_own:
            inside = self._authorizer.access_of_broker(caller, request.method)
        else:
            inside = self._authorizer.access_sent_on(caller, request.method, sender=access)
        try:
            with auditing_end(inside, lambda probe: handle(probe, message), ending_of):
                response = await handle(inside, message)
        except NotController as error:
            return with_error(pb.EnvelopeResponse(), Refused(ErrorCode.NOT_CONTROLLER, str(error)))
        return pb.EnvelopeResponse(response=response.SerializeToString(), metadata_offset=self._api.metadata_offset)


def _caller_of(envelope: pb.EnvelopeRequest) -> Caller:
    """Whom another broker has seen."""
    return Caller(
        envelope.client,
        envelope.client,
        request_id.get(),
        envelope.principal or ANONYMOUS,
        envelope.client_id,
        envelope.listener or PLAINTEXT,
    )


class ClusterAdminHandler:
    """The brokers of the cluster over gRPC: messages to values, and answers back."""

    def __init__(self, api: ClusterAdminApi, shares: LoopShares, listener: str) -> None:
        self._api = api
        self._shares = shares
        self._listener = listener

    async def api_versions(self, _: Access, request: pb.ApiVersionsRequest) -> pb.ApiVersionsResponse:
        response = pb.ApiVersionsResponse(
            contract_version=CONTRACT_VERSION,
            broker_software_version=software_version(),
            calls=CALLS,
            features=[
                pb.Feature(name=one.name, level=one.level, min_level=one.level_min, max_level=one.level_max)
                for one in self._api.features()
            ],
        )
        if request.contract_digest and request.contract_digest != CONTRACT_DIGEST:
            response.contract = pb.DESCRIPTOR.serialized_pb
        return response

    async def describe(self, access: Access, request: pb.DescribeClusterRequest) -> pb.DescribeClusterResponse:
        found = await self._api.describe(access, self._listener, is_fenced_included=request.include_fenced_brokers)
        operations = access.operations(THE_CLUSTER) if request.include_authorized_operations else ()
        if isinstance(found, Refused):
            return with_error(pb.DescribeClusterResponse(), found)
        response: pb.DescribeClusterResponse = CLUSTER.encode(
            found, authorized_operations=map(OPERATIONS.number, operations)
        )
        return response

    async def elect_leaders(self, access: Access, request: pb.ElectLeadersRequest) -> pb.ElectLeadersResponse:
        named = decode_partitions(request.topics) if request.topics else None
        response = pb.ElectLeadersResponse()
        answers = await self._api.elect_leaders(access, named)
        if isinstance(answers, Refused):
            return with_error(response, answers)
        elected = (_elected(partition, answer) for partition, answer in answers.items())
        await self._shares.begin().extend(response.partitions, elected)
        return response

    async def alter_reassignments(
        self, access: Access, request: pb.AlterPartitionReassignmentsRequest
    ) -> pb.AlterPartitionReassignmentsResponse:
        asked = [
            (TopicPartition(one.topic, one.partition), None if one.cancel else tuple(one.replica_ids))
            for one in request.partitions
        ]
        response = pb.AlterPartitionReassignmentsResponse()
        answers = await self._api.reassign_partitions(access, asked)
        if isinstance(answers, Refused):
            return with_error(response, answers)
        for (partition, _), refusal in zip(asked, answers, strict=True):
            result = response.partitions.add(topic=partition.topic, partition=partition.partition)
            if refusal is not None:
                with_error(result, refusal)
        return response

    async def list_reassignments(
        self, access: Access, _: pb.ListPartitionReassignmentsRequest
    ) -> pb.ListPartitionReassignmentsResponse:
        refusal = await self._api.refusal_of_list(access)
        response = pb.ListPartitionReassignmentsResponse()
        return response if refusal is None else with_error(response, refusal)

    async def unregister_broker(
        self, access: Access, request: pb.UnregisterBrokerRequest
    ) -> pb.UnregisterBrokerResponse:
        refusal = await self._api.unregister_broker(access, request.broker_id)
        response = pb.UnregisterBrokerResponse()
        return response if refusal is None else with_error(response, refusal)

    async def update_features(self, access: Access, request: pb.UpdateFeaturesRequest) -> pb.UpdateFeaturesResponse:
        refusal = await self._api.update_feature(
            access, request.feature, request.level, validate_only=request.validate_only
        )
        response = pb.UpdateFeaturesResponse()
        return response if refusal is None else with_error(response, refusal)


def _elected(partition: TopicPartition, answer: int | Refused) -> pb.ElectedLeader:
    elected = pb.ElectedLeader(topic=partition.topic, partition=partition.partition)
    if isinstance(answer, Refused):
        return with_error(elected, answer)
    elected.leader_id = answer
    return elected
