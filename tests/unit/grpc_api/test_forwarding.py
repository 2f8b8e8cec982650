"""A call that only the controller can do, at another broker, in virtual time."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from bus.broker_api.authorization import Access
from bus.broker_api.requests import Caller, Unavailable
from bus.errors import ErrorCode, NotController, Refused
from bus.grpc_api.server.cluster import Forwarding
from bus.grpc_api.server.servicers import forwarded_handlers
from bus.grpc_api.v1 import bus_pb2 as pb
from bus.grpc_api.value_messages import ACL
from bus.model import BrokerEndpoint
from bus.security.acls import CLUSTER_NAME, AclBinding, AclOperation, AclResourceType
from tests.support.acls import allow
from tests.support.api_bench import ApiBench, KeptAudit, open_access
from tests.support.virtual_time import run_virtually

FORMER, PRESENT, SELF = (BrokerEndpoint(number, "h", number) for number in range(3))
CLUSTER_TYPE = AclResourceType.CLUSTER
CALLER = Caller("connection", "/10.0.0.1", "request", "User:alice", "loader")
ANSWER = pb.EnvelopeResponse(response=pb.CreateTopicsResponse().SerializeToString(), metadata_offset=7)


class Cluster:
    """The cluster as a following broker sees it: `api` and `peers` of the calls that it forwards. The controller
    answers after `answers_after_s`; it is another one after `is_former_after_s`."""

    def __init__(self, *, answers_after_s: float, is_former_after_s: float) -> None:
        self._known: BrokerEndpoint | None = FORMER
        self.looks = 0
        self.endpoint = SELF
        self.is_cancelled = False
        self._answers_after_s = answers_after_s
        asyncio.get_running_loop().call_later(is_former_after_s, self._elect)

    @property
    def controller(self) -> BrokerEndpoint | None:
        self.looks += 1
        return self._known

    def _elect(self) -> None:
        self._known = PRESENT

    async def wait_until_applied(self, metadata_offset: int) -> None:
        assert metadata_offset == ANSWER.metadata_offset

    async def forward(self, controller: BrokerEndpoint, envelope: Any, *, timeout_s: float) -> Any:
        assert controller == FORMER
        assert (envelope.principal, envelope.client, envelope.client_id) == ("User:alice", "/10.0.0.1", "loader")
        assert not envelope.is_own
        try:
            await asyncio.wait_for(asyncio.sleep(self._answers_after_s), timeout_s)
        except asyncio.TimeoutError:
            return Refused(ErrorCode.REQUEST_TIMED_OUT, "late")
        except asyncio.CancelledError:
            self.is_cancelled = True
            raise
        return ANSWER

    def forwarding(self) -> Forwarding:
        async def handle(access: Access, request: Any) -> Any:
            raise NotController("broker 2 is not the controller")

        api: Any = self
        return Forwarding(api, api, {"CreateTopics": handle}, listener="PLAINTEXT", timeout_ms=30_000)

    async def create_topics(self, forwarding: Forwarding | None = None) -> float:
        forwarding = forwarding or self.forwarding()
        began = asyncio.get_running_loop().time()
        access = open_access("CreateTopics", CALLER)
        assert await forwarding.handle(access, pb.CreateTopicsRequest()) == pb.CreateTopicsResponse()
        return asyncio.get_running_loop().time() - began


def test_answer_of_a_controller_is_waited_for_as_long_as_it_is_the_controller() -> None:
    async def play() -> None:
        assert 20 <= await Cluster(answers_after_s=20, is_former_after_s=100).create_topics() < 21

    run_virtually(play())


def test_controller_that_hangs_is_not_waited_for_once_there_is_another_one() -> None:
    async def play() -> None:
        cluster = Cluster(answers_after_s=1_000, is_former_after_s=2)
        with pytest.raises(Unavailable, match="the controller until now, has not answered"):
            await cluster.create_topics()
        assert asyncio.get_running_loop().time() < 4
        await asyncio.sleep(0.1)
        assert cluster.is_cancelled

    run_virtually(play())


def test_answer_of_a_controller_that_hands_over_may_come_a_little_later() -> None:
    async def play() -> None:
        assert await Cluster(answers_after_s=2.5, is_former_after_s=2).create_topics() < 3

    run_virtually(play())


def test_thousands_of_calls_that_wait_look_for_another_controller_together() -> None:
    """While it hangs: else they keep the event loop busy that is to elect another one."""

    async def play() -> None:
        cluster = Cluster(answers_after_s=20, is_former_after_s=100)
        forwarding = cluster.forwarding()
        calls = [asyncio.ensure_future(cluster.create_topics(forwarding)) for _ in range(1_000)]
        await asyncio.sleep(1)
        before = cluster.looks
        await asyncio.sleep(10)
        assert 0 < cluster.looks - before <= 101
        await asyncio.gather(*calls)
        before = cluster.looks
        await asyncio.sleep(10)
        assert cluster.looks - before <= 1  # nothing waits

    run_virtually(play())


def test_call_is_forwarded_once_a_controller_is_known() -> None:
    async def play() -> None:
        cluster = Cluster(answers_after_s=1, is_former_after_s=100)
        cluster._known = None
        asyncio.get_running_loop().call_later(5, setattr, cluster, "_known", FORMER)
        assert 6 <= await cluster.create_topics() < 7

    run_virtually(play())


class Forwarded:
    """A broker that is not the controller, with ACLs and an audit; `answer`: the controller's, to each call."""

    def __init__(self, answer: Any, *acls: AclBinding) -> None:
        self.audit = KeptAudit()
        self.bench = ApiBench(*acls, audit=self.audit, on_call=self._refuse)
        self._answer = answer
        self.forwarded: list[str] = []
        api: Any = SimpleNamespace(
            controller=PRESENT, endpoint=SELF, wait_until_applied=lambda _: asyncio.sleep(0), identity=None
        )
        peers: Any = SimpleNamespace(forward=self._forward)
        handlers = forwarded_handlers(self.bench.api, "PLAINTEXT")
        self.forwarding = Forwarding(api, peers, handlers, listener="PLAINTEXT", timeout_ms=30_000)

    def _refuse(self, path: str) -> Any:
        if path.startswith("cluster.controller."):
            raise NotController("broker 1 is the controller")
        raise AssertionError(path)

    async def _forward(self, controller: BrokerEndpoint, envelope: Any, *, timeout_s: float) -> Any:
        self.forwarded.append(envelope.method)
        answer = self._answer if isinstance(self._answer, bytes) else self._answer.SerializeToString()
        return pb.EnvelopeResponse(response=answer)

    def call(self, method: str, request: Any) -> Any:
        answers = []

        async def play() -> None:
            answers.append(await self.forwarding.handle(self.bench.access(method), request))

        run_virtually(play())
        return answers[0]

    @property
    def rows(self) -> list[tuple[str, str, str]]:
        return [(event.call, event.resource, event.error) for event in self.audit.events]


def test_what_the_controller_answers_is_audited_by_the_broker_that_was_asked() -> None:
    results = [
        pb.TopicResult(name="a"),
        pb.TopicResult(name="b", error_code=pb.ERROR_CODE_TOPIC_ALREADY_EXISTS, error_message="it is there"),
        pb.TopicResult(name="c", error_code=pb.ERROR_CODE_TOPIC_AUTHORIZATION_FAILED, error_message="no"),
    ]
    broker = Forwarded(pb.CreateTopicsResponse(topics=results), allow(AclOperation.CREATE, CLUSTER_NAME, CLUSTER_TYPE))
    request = pb.CreateTopicsRequest(topics=[pb.NewTopic(name=name) for name in "abc"])
    assert list(broker.call("CreateTopics", request).topics) == results
    assert broker.rows == [
        ("CreateTopics", "a", ""),
        ("CreateTopics", "b", "TOPIC_ALREADY_EXISTS: it is there"),
    ]
    assert broker.audit.refused == ["b"]


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (b"\xff" * 50, "expected a CreateTopicsResponse, found 50 bytes that are none"),
        (b"\x0a\x00" * 30_000, "expected a CreateTopicsResponse of at most 20000 items, found more"),
    ],
)
def test_answer_that_is_none_is_refused_by_name(answer: bytes, reason: str) -> None:
    broker = Forwarded(answer, allow(AclOperation.CREATE, CLUSTER_NAME, CLUSTER_TYPE))
    with pytest.raises(Unavailable, match=f"CreateTopics: what the controller answered cannot be read: {reason}"):
        broker.call("CreateTopics", pb.CreateTopicsRequest(topics=[pb.NewTopic(name="a")]))


def test_what_the_answer_alone_names_is_audited_by_it() -> None:
    alter = allow(AclOperation.ALTER, CLUSTER_NAME, CLUSTER_TYPE)
    removed = pb.DeleteAclsResponse(results=[pb.DeletedAcls(acls=[ACL.encode(alter)])])
    broker = Forwarded(removed, alter)
    broker.call("DeleteAcls", pb.DeleteAclsRequest(filters=[pb.AclBindingFilter()]))
    assert broker.rows == [("DeleteAcls", "ALLOW User:alice ALTER CLUSTER LITERAL kafka-cluster from *", "")]
    later = pb.AclBinding(resource_type=1, resource_name="t", principal="User:bob", host="*", operation=99)
    broker = Forwarded(pb.DeleteAclsResponse(results=[pb.DeletedAcls(acls=[later, ACL.encode(alter)])]), alter)
    broker.call("DeleteAcls", pb.DeleteAclsRequest(filters=[pb.AclBindingFilter()]))
    (unknown, known) = broker.rows
    assert unknown[1].startswith("User:bob t from *: expected Acl")
    assert known[1] == "ALLOW User:alice ALTER CLUSTER LITERAL kafka-cluster from *"
    elected = pb.ElectLeadersResponse(partitions=[pb.ElectedLeader(topic="t", partition=1, leader_id=2)])
    broker = Forwarded(elected, alter)
    broker.call("ElectLeaders", pb.ElectLeadersRequest())
    assert broker.rows == [("ElectLeaders", "t-1", "")]
    whole = pb.DeleteAclsResponse(error_code=pb.ERROR_CODE_SECURITY_DISABLED, error_message="off")
    broker = Forwarded(whole, alter)
    broker.call("DeleteAcls", pb.DeleteAclsRequest(filters=[pb.AclBindingFilter()]))
    assert broker.rows == [("DeleteAcls", "", "SECURITY_DISABLED: off")]


def test_a_refusal_is_reported_by_the_broker_that_answers() -> None:
    request = pb.DeleteTopicsRequest(topics=["mine", "other"])
    broker = Forwarded(pb.DeleteTopicsResponse(topics=[pb.TopicResult(name=name) for name in request.topics]))
    broker.call("DeleteTopics", request)
    assert (broker.forwarded, [event.resource for event in broker.audit.denials]) == ([], ["mine", "other"])
    answer = pb.DeleteTopicsResponse(topics=[pb.TopicResult(name=name) for name in request.topics])
    broker = Forwarded(answer, allow(AclOperation.DELETE, "mine"))
    broker.call("DeleteTopics", request)
    assert (broker.forwarded, broker.audit.denials) == (["DeleteTopics"], [])  # the controller decides about all
