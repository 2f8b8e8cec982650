"""What the audit is told of calls whose callers do not wait for the answer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest

from bus.errors import ErrorCode
from bus.grpc_api.server.audited_calls import CHANGED_ITEMS, AuditedEnvelopes, AuditedServicer
from bus.grpc_api.server.request_limits import Unreadable
from bus.grpc_api.v1 import bus_pb2 as pb
from bus.security.audit_events import AuditEvent
from tests.support.cancelled_calls import QuietContext

NO_ANSWER = "the call ended without an answer: it may be done"
SECRET = b"what is made of a password"
PARTITION = {"topic": "t", "partition": 1}
ACL = pb.AclBinding(
    resource_type=pb.ACL_RESOURCE_TYPE_TOPIC,
    resource_name="t",
    pattern_type=pb.ACL_PATTERN_TYPE_LITERAL,
    principal="User:a",
    host="*",
    operation=pb.ACL_OPERATION_READ,
    permission=pb.ACL_PERMISSION_ALLOW,
)
REQUESTS: dict[str, tuple[Any, list[str]]] = {
    "CreateTopics": (pb.CreateTopicsRequest(topics=[pb.NewTopic(name="a"), pb.NewTopic(name="b")]), ["a", "b"]),
    "DeleteTopics": (pb.DeleteTopicsRequest(topics=["a", "b"]), ["a", "b"]),
    "CreatePartitions": (pb.CreatePartitionsRequest(topics=[pb.NewPartitions(name="a")]), ["a"]),
    "AlterConfigs": (
        pb.AlterConfigsRequest(resources=[pb.AlterConfigsResource(resource=pb.ConfigResource(name="a"))]),
        ["a"],
    ),
    "DeleteRecords": (pb.DeleteRecordsRequest(partitions=[pb.DeleteRecordsPartition(**PARTITION)]), ["t-1"]),
    "SwapFiles": (pb.SwapFilesRequest(**PARTITION), ["t-1"]),
    "CreateView": (pb.CreateViewRequest(view=pb.View(name="v")), ["v"]),
    "DeleteView": (pb.DeleteViewRequest(name="v"), ["v"]),
    "DeleteGroups": (pb.DeleteGroupsRequest(group_ids=["g", "h"]), ["g", "h"]),
    "OffsetDelete": (pb.OffsetDeleteRequest(group_id="g"), ["g"]),
    "AlterPartitionReassignments": (
        pb.AlterPartitionReassignmentsRequest(partitions=[pb.PartitionReassignment(**PARTITION)]),
        ["t-1"],
    ),
    "ElectLeaders": (pb.ElectLeadersRequest(), [""]),
    "UnregisterBroker": (pb.UnregisterBrokerRequest(broker_id=3), ["broker 3"]),
    "UpdateFeatures": (pb.UpdateFeaturesRequest(feature="bus.version", level=3), ["bus.version 3"]),
    "AlterClientQuotas": (
        pb.AlterClientQuotasRequest(
            entries=[pb.QuotaAlteration(entity=[pb.QuotaEntityPart(type="user", name="alice")])]
        ),
        ["user=alice"],
    ),
    "CreateAcls": (pb.CreateAclsRequest(acls=[ACL]), ["ALLOW User:a READ TOPIC LITERAL t from *"]),
    "DeleteAcls": (pb.DeleteAclsRequest(filters=[pb.AclBindingFilter()]), [""]),
    "AlterUserScramCredentials": (
        pb.AlterUserScramCredentialsRequest(
            upsertions=[pb.ScramUpsertion(user="a", salted_password=SECRET)],
            deletions=[pb.ScramDeletion(user="b"), pb.ScramDeletion(user="a")],
        ),
        ["a", "b"],
    ),
    "AbortTransaction": (pb.AbortTransactionRequest(transactional_id="x"), ["x"]),
    "FenceProducers": (pb.FenceProducersRequest(transactional_ids=["x", "y"]), ["x", "y"]),
}


class Servicer:
    """No call of it is ever answered."""

    def __getattr__(self, method: str) -> Any:
        async def handle(request: Any, context: Any) -> None:
            await asyncio.Event().wait()

        return handle


class Audit:
    def __init__(self) -> None:
        self.events: list[AuditEvent] = []
        self.refused: list[str] = []  # the resources of changes of which nothing was done

    def add(self, event: AuditEvent, *, is_refused: bool = False) -> None:
        self.events.append(event)
        if is_refused:
            self.refused.append(event.resource)

    def now_ms(self) -> int:
        return 1


def told_of_one_that_goes_away(method: str, request: Any, kind: Any = AuditedServicer) -> list[AuditEvent]:
    audit: Any = Audit()

    async def go_away() -> None:
        call = asyncio.ensure_future(getattr(kind(Servicer(), audit, "L"), method)(request, QuietContext()))
        await asyncio.sleep(0)
        call.cancel()
        await asyncio.wait([call])
        assert call.cancelled()

    asyncio.run(go_away())
    events: list[AuditEvent] = audit.events
    return events


@pytest.mark.parametrize("method", sorted(CHANGED_ITEMS.keys() - {"MaintainLog"}))
def test_who_goes_away_before_the_answer_leaves_a_row(method: str) -> None:
    request, names = REQUESTS[method]
    events = told_of_one_that_goes_away(method, request)
    assert [event.resource for event in events] == names
    assert {(event.call, event.error, event.listener) for event in events} == {(method, NO_ANSWER, "L")}
    assert SECRET.decode() not in repr(events)


class AnsweringServicer:
    """It changes what it can."""

    async def DeleteGroups(self, request: Any, context: Any) -> pb.DeleteGroupsResponse:
        codes = {"done": 0, "missing": ErrorCode.GROUP_ID_NOT_FOUND, "maybe": ErrorCode.KAFKA_STORAGE_ERROR}
        return pb.DeleteGroupsResponse(
            groups=[pb.DeletedGroup(group_id=name, error_code=int(codes[name])) for name in request.group_ids]
        )


def test_what_was_refused_is_told_apart_from_what_is_done_and_what_may_be() -> None:
    audit: Any = Audit()
    request = pb.DeleteGroupsRequest(group_ids=["done", "missing", "maybe"])
    asyncio.run(AuditedServicer(AnsweringServicer(), audit, "L").DeleteGroups(request, QuietContext()))
    assert [event.resource for event in audit.events] == ["done", "missing", "maybe"]
    assert audit.refused == ["missing"]


class EndedContext(QuietContext):
    """Of a call that its handler ends with a status."""

    def __init__(self, status: grpc.StatusCode) -> None:
        self._status = status

    def code(self) -> grpc.StatusCode:
        return self._status

    def details(self) -> str:
        return "the controller is away"


class EndingServicer:
    """It ends every call with a status; MaintainLog after one answer."""

    async def MaintainLog(self, request: Any, context: Any) -> AsyncIterator[Any]:
        yield pb.MaintainLogResponse(partition=4)
        raise grpc.aio.AbortError

    def __getattr__(self, method: str) -> Any:
        async def handle(request: Any, context: Any) -> None:
            raise grpc.aio.AbortError

        return handle


def told_of_one_that_ends_with(status: grpc.StatusCode, method: str, request: Any) -> list[AuditEvent]:
    audit: Any = Audit()
    called = getattr(AuditedServicer(EndingServicer(), audit, "L"), method)(request, EndedContext(status))

    async def end() -> None:
        if isinstance(called, AsyncIterator):
            async for _ in called:
                pass
        else:
            await called

    with pytest.raises(grpc.aio.AbortError):
        asyncio.run(end())
    events: list[AuditEvent] = audit.events
    return events


@pytest.mark.parametrize("method", sorted(CHANGED_ITEMS.keys() - {"MaintainLog"}))
def test_call_that_ends_with_unavailable_leaves_a_row(method: str) -> None:
    request, names = REQUESTS[method]
    events = told_of_one_that_ends_with(grpc.StatusCode.UNAVAILABLE, method, request)
    error = "the call ended with UNAVAILABLE, the controller is away: it may be done"
    assert [(event.resource, event.error) for event in events] == [(name, error) for name in names]
    assert SECRET.decode() not in repr(events)


def test_maintenance_that_is_cut_off_leaves_a_row_beside_those_of_its_answers() -> None:
    request = pb.MaintainLogRequest(topic="t")
    events = told_of_one_that_ends_with(grpc.StatusCode.UNAVAILABLE, "MaintainLog", request)
    assert [(event.resource, bool(event.error)) for event in events] == [("t-4", False), ("t", True)]


@pytest.mark.parametrize("status", [grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.RESOURCE_EXHAUSTED])
def test_call_that_was_refused_before_it_began_leaves_no_row(status: grpc.StatusCode) -> None:
    request, _ = REQUESTS["CreateAcls"]
    assert told_of_one_that_ends_with(status, "CreateAcls", request) == []


def test_what_changes_nothing_leaves_none() -> None:
    asked = pb.CreateTopicsRequest(topics=[pb.NewTopic(name="a")], validate_only=True)
    assert told_of_one_that_goes_away("CreateTopics", asked) == []
    unreadable = Unreadable(grpc.StatusCode.INVALID_ARGUMENT, "no request")
    assert told_of_one_that_goes_away("CreateTopics", unreadable) == []


def test_change_that_a_broker_sends_on_and_does_not_wait_for_may_be_done() -> None:
    inner, resources = REQUESTS["DeleteTopics"]
    envelope = pb.EnvelopeRequest(
        method="DeleteTopics", request=inner.SerializeToString(), client="/10.0.0.1", principal="User:alice"
    )
    events = told_of_one_that_goes_away("Envelope", envelope, AuditedEnvelopes)
    for_whom = "for User:alice from /10.0.0.1 by DeleteTopics"
    assert [(event.resource, event.error, event.rule) for event in events] == [
        (resource, NO_ANSWER, for_whom) for resource in resources
    ]
