"""A call that only the controller can do, at another broker, in virtual time."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from bus.broker_api.authorization import Access
from bus.broker_api.requests import Caller, Unavailable
from bus.errors import ErrorCode, NotController, Refused
from bus.grpc_api.server.cluster import Forwarding
from bus.grpc_api.v1 import bus_pb2 as pb
from bus.model import BrokerEndpoint
from tests.support.api_bench import open_access
from tests.support.virtual_time import run_virtually

FORMER, PRESENT, SELF = (BrokerEndpoint(number, "h", number) for number in range(3))
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
