"""Audit rows of calls whose callers do not wait for the answer."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine, Generator, Sequence
from types import SimpleNamespace
from typing import Any

import grpc
import pytest

from bus.broker_api.calls import CALLS
from bus.broker_api.pipeline import auditing_end
from bus.broker_api.requests import InvalidArgument, OverQuota, Unavailable
from bus.consumer_groups.requests import DeleteGroup, GroupDeleted
from bus.errors import ErrorCode, Refused
from bus.grpc_api.server.request_limits import Unreadable
from bus.grpc_api.server.servicers import find_handler
from bus.grpc_api.v1 import bus_pb2 as pb
from bus.runtime import tasks
from bus.runtime.tasks import answered
from bus.security.acls import AclOperation
from bus.security.audit_trail import AuditEvent
from tests.support.acls import allow
from tests.support.api_bench import ApiBench, KeptAudit, raise_reached
from tests.support.cancelled_calls import QuietContext, cancel_at
from tests.support.proofs import proved

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


def hang(path: str) -> Any:
    return Hanging()


class Hanging:
    """The answer of a runtime that is never there, nor is any part of it."""

    def __getattr__(self, name: str) -> Any:
        return self if not name.startswith("__") else object.__getattribute__(self, name)

    def __call__(self, *_: Any, **__: Any) -> Any:
        return self

    def __await__(self) -> Generator[Any, None, Any]:
        return asyncio.Event().wait().__await__()


def bench_of(audit: KeptAudit, on_call: Any = hang) -> ApiBench:
    bench = ApiBench(super_users="User:ANONYMOUS;User:alice", audit=audit, on_call=on_call)
    bench.cluster.host.find = lambda *_: SimpleNamespace(
        delete_records=lambda _: asyncio.get_running_loop().create_future(), swap_files=lambda *_: Hanging()
    )
    return bench


async def go_away(call: Any) -> None:
    waiting = asyncio.ensure_future(call)
    for _ in range(3):
        await asyncio.sleep(0)
    assert not waiting.done()
    waiting.cancel()
    await asyncio.wait([waiting])
    assert waiting.cancelled()


@pytest.mark.parametrize("method", sorted(REQUESTS))
def test_caller_that_goes_away_before_the_answer_leaves_a_row(method: str) -> None:
    request, names = REQUESTS[method]
    audit = KeptAudit()

    async def play() -> None:
        await go_away(bench_of(audit).call(method, request))

    asyncio.run(play())
    assert [event.resource for event in audit.events] == names
    assert {(event.call, event.error, event.listener) for event in audit.events} == {(method, NO_ANSWER, "PLAINTEXT")}
    assert SECRET.decode() not in repr(audit.events)


@pytest.mark.parametrize("method", sorted(REQUESTS))
def test_caller_that_goes_away_before_its_turn_leaves_a_row_and_has_nothing_done(method: str) -> None:
    """It waits for its quota."""
    request, names = REQUESTS[method]
    audit = KeptAudit()

    async def play() -> None:
        bench = bench_of(audit, raise_reached)
        bench.cluster.host.find = lambda *_: raise_reached("a partition")
        calls: Any = bench.calls_of
        calls._quotas.has, calls._take_turn = lambda _: True, lambda *_: asyncio.Event().wait()
        await go_away(bench.call(method, request))

    asyncio.run(play())
    assert [(event.resource, event.error) for event in audit.events] == [(name, NO_ANSWER) for name in names]


class AbortingContext(QuietContext):
    async def abort(self, code: Any, details: str) -> None:
        raise grpc.aio.AbortError


def reported_of_one_that_ends_with(error: Exception, method: str, request: Any) -> list[AuditEvent]:
    def fail(path: str) -> Any:
        raise error

    async def play() -> None:
        bench = bench_of(audit, fail)
        bench.cluster.host.find = fail
        with pytest.raises(grpc.aio.AbortError):
            await bench.call(method, request, AbortingContext())

    audit = KeptAudit()
    asyncio.run(play())
    return audit.events


@pytest.mark.parametrize("method", sorted(REQUESTS))
def test_call_that_ends_unavailable_leaves_a_row(method: str) -> None:
    request, names = REQUESTS[method]
    events = reported_of_one_that_ends_with(Unavailable("the controller is away"), method, request)
    error = "the call ended with UNAVAILABLE, the controller is away: it may be done"
    assert [(event.resource, event.error) for event in events] == [(name, error) for name in names]
    assert SECRET.decode() not in repr(events)


@pytest.mark.parametrize("error", [InvalidArgument("no such thing"), OverQuota("too much")])
def test_call_that_was_refused_for_its_request_leaves_no_row(error: Exception) -> None:
    for method in ("CreateTopics", "CreateAcls"):
        assert reported_of_one_that_ends_with(error, method, REQUESTS[method][0]) == []


def test_each_call_that_is_audited_is_played_here() -> None:
    audited = {name for name, row in CALLS.items() if row.audited is not None}
    assert audited == {*REQUESTS, "MaintainLog"}, "what the audit keeps of each call is tested"


def test_maintenance_that_ends_unavailable_leaves_a_row_beside_those_of_its_answers() -> None:
    audit = KeptAudit()

    async def play() -> None:
        bench = bench_of(audit)
        maintained: asyncio.Future[Any] = answered(Refused(ErrorCode.POLICY_VIOLATION, "no"))
        hanging = asyncio.get_running_loop().create_future()
        answers = iter([maintained, hanging])
        bench.cluster.host.find = lambda _: SimpleNamespace(maintain=lambda _: next(answers))
        request = pb.MaintainLogRequest(topic="t", partitions=[4, 5])
        call = bench.calls_of.MaintainLog(request, AbortingContext())
        assert (await anext(call)).partition == 4
        asyncio.get_running_loop().call_soon(bench.api.maintenance._stopping.begin)
        with pytest.raises(grpc.aio.AbortError):
            await anext(call)

    asyncio.run(play())
    assert [(event.resource, event.error.partition(":")[0]) for event in audit.events] == [
        ("t-4", "POLICY_VIOLATION"),
        ("t", "the call ended with UNAVAILABLE, the broker is stopping"),
    ]
    assert audit.refused == ["t-4"]


def test_call_that_validates_or_cannot_be_read_leaves_no_row() -> None:
    audit = KeptAudit()

    async def play() -> None:
        request = pb.CreateTopicsRequest(topics=[pb.NewTopic(name="a")], validate_only=True)
        await go_away(bench_of(audit).call("CreateTopics", request))
        unreadable = Unreadable(grpc.StatusCode.INVALID_ARGUMENT, "no request")
        with pytest.raises(grpc.aio.AbortError):
            await bench_of(audit).call("CreateTopics", unreadable, AbortingContext())

    asyncio.run(play())
    assert audit.events == []


def test_what_was_refused_is_told_apart_from_what_is_done_and_what_may_be() -> None:
    codes = {"missing": ErrorCode.GROUP_ID_NOT_FOUND, "maybe": ErrorCode.KAFKA_STORAGE_ERROR}
    audit = KeptAudit()

    async def play() -> None:
        def delete(command: DeleteGroup) -> Any:
            code = codes.get(command.group_id)
            return answered(GroupDeleted() if code is None else Refused(code, "for a reason"))

        bench = bench_of(audit)
        bench.cluster.prove_leadership = proved
        bench.coordinator.submit = delete
        await bench.call("DeleteGroups", pb.DeleteGroupsRequest(group_ids=["done", "missing", "maybe"]))

    asyncio.run(play())
    assert [(event.resource, event.error) for event in audit.events] == [
        ("done", ""),
        ("missing", "GROUP_ID_NOT_FOUND: for a reason"),
        ("maybe", "KAFKA_STORAGE_ERROR: for a reason"),
    ]
    assert audit.refused == ["missing"]


def test_change_that_a_broker_sends_on_and_does_not_wait_for_may_be_done() -> None:
    inner, resources = REQUESTS["DeleteTopics"]
    envelope = pb.EnvelopeRequest(
        method="DeleteTopics", request=inner.SerializeToString(), client="/10.0.0.1", principal="User:alice"
    )
    audit = KeptAudit()

    async def play() -> None:
        await go_away(bench_of(audit).cluster_calls_of.Envelope(envelope, QuietContext()))

    asyncio.run(play())
    for_whom = "for User:alice from /10.0.0.1 by DeleteTopics"
    assert [(event.call, event.principal, event.resource, event.error, event.rule) for event in audit.events] == [
        ("Envelope", "User:ANONYMOUS", resource, NO_ANSWER, for_whom) for resource in resources
    ]


def test_maintenance_whose_caller_goes_away_between_two_answers_leaves_a_row_of_what_goes_on() -> None:
    audit = KeptAudit()

    async def play() -> None:
        bench = bench_of(audit)
        answers = iter(
            [answered(Refused(ErrorCode.POLICY_VIOLATION, "no")), asyncio.get_running_loop().create_future()]
        )
        bench.cluster.host.find = lambda _: SimpleNamespace(maintain=lambda _: next(answers))
        call = bench.calls_of.MaintainLog(pb.MaintainLogRequest(topic="t", partitions=[4, 5]), QuietContext())
        assert (await anext(call)).partition == 4
        await call.aclose()

    asyncio.run(play())
    assert [(event.resource, event.error.partition(":")[0]) for event in audit.events] == [
        ("t-4", "POLICY_VIOLATION"),
        ("t", NO_ANSWER.partition(":")[0]),
    ]


@pytest.mark.parametrize("method", ["AlterUserScramCredentials", "AlterClientQuotas"])
def test_denied_change_whose_caller_goes_away_with_its_answer_leaves_the_denial_alone(method: str) -> None:
    audit = KeptAudit()

    async def play() -> None:
        bench = ApiBench(audit=audit)
        access = bench.access(method)
        with auditing_end(access, lambda _: None, lambda _: None):
            await find_handler(bench.calls_of.handlers, CALLS[method])(access, REQUESTS[method][0])
            raise asyncio.CancelledError

    with pytest.raises(asyncio.CancelledError):
        asyncio.run(play())
    assert (audit.events, len(audit.denials)) == ([], 1)


def test_denied_request_that_names_nothing_that_there_can_be_is_no_fault_of_the_broker(
    caplog: pytest.LogCaptureFixture,
) -> None:
    audit = KeptAudit()
    unknown = pb.CreateAclsRequest(acls=[pb.AclBinding(principal="nobody", operation=99)])
    refused = ApiBench(audit=audit).answer("CreateAcls", unknown)
    assert refused.error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    assert (audit.events, len(audit.denials)) == ([], 1)
    assert [record for record in caplog.records if record.levelno >= logging.ERROR] == []


def test_topic_that_is_created_for_a_client_of_another_broker_is_audited_with_the_names_of_both() -> None:
    inner = pb.MetadataRequest(topics=["made"], allow_auto_topic_creation=True)
    envelope = pb.EnvelopeRequest(
        method="Metadata", request=inner.SerializeToString(), client="/10.0.0.1", principal="User:alice"
    )
    audit = KeptAudit()

    async def create(names: Sequence[str]) -> Any:
        return SimpleNamespace(created=names, refused={})

    async def finish(work: Coroutine[Any, Any, Any], _: str) -> Any:
        return await work

    async def play() -> None:
        bench = bench_of(audit)
        bench.cluster.metadata.tasks.finish = finish
        bench.cluster.controller.auto_create_topics = create
        await bench.cluster_calls_of.Envelope(envelope, QuietContext())
        await bench.ask("Metadata", inner)

    asyncio.run(play())
    assert [(event.call, event.principal, event.resource, event.rule) for event in audit.events] == [
        ("Metadata", "User:alice", "made", "sent on by User:ANONYMOUS from /127.0.0.1"),
        ("Metadata", "User:alice", "made", ""),
    ]


def test_only_what_the_caller_may_change_may_be_done_when_it_goes_away() -> None:
    audit = KeptAudit()
    may_delete = allow(AclOperation.DELETE, "mine", principal="User:ANONYMOUS")

    async def play(*topics: str) -> None:
        bench = ApiBench(may_delete, audit=audit, on_call=hang)
        await go_away(bench.call("DeleteTopics", pb.DeleteTopicsRequest(topics=topics)))

    asyncio.run(play("mine", "secret"))
    assert [(event.resource, event.error) for event in audit.events] == [("mine", NO_ANSWER)]
    assert ([event.resource for event in audit.denials], audit.refused) == (["secret"], [])


def test_caller_that_goes_away_before_its_access_is_decided_takes_no_room_that_is_kept_for_changes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(tasks, "SLICE_S", -1)
    audit = KeptAudit()

    async def play() -> None:
        call = ApiBench(audit=audit).call("DeleteTopics", pb.DeleteTopicsRequest(topics=["a", "b"]))
        assert await cancel_at(call, 0, is_late=False)
        for _ in range(10):
            await asyncio.sleep(0)

    asyncio.run(play())
    assert [event.error for event in audit.events] == [NO_ANSWER, NO_ANSWER]
    assert audit.refused == ["a", "b"]


def test_many_rows_of_one_call_leave_the_loop_to_others_in_between(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tasks, "SLICE_S", 0)
    audit, counts = KeptAudit(), list[int]()

    async def play() -> None:
        access = ApiBench(audit=audit).access("DeleteTopics")
        access.changes.begin(lambda: ["a", "b", "c"])
        access.changes.report_all(None)
        for _ in range(4):
            counts.append(len(audit.events))
            await asyncio.sleep(0)

    asyncio.run(play())
    assert counts == [1, 2, 3, 3]
