"""Questions to other brokers, and the time at which an answer is due."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from bus.cluster_metadata.broker_decisions import RegisterBroker
from bus.errors import ErrorCode, Refused
from bus.grpc_api.server.connections.peers import GrpcPeers
from bus.grpc_api.v1 import bus_pb2 as pb
from bus.model import BrokerEndpoint
from bus.runtime.metadata.peers import BrokerHeartbeat
from bus.settings.broker import BrokerConfig
from tests.support.virtual_time import run_virtually

TO = BrokerEndpoint(1, "a", 1)


class Transport:
    """Answers at once, and keeps how it was asked."""

    def __init__(self, answer: Any) -> None:
        self._answer = answer
        self.asked: list[dict[str, Any]] = []

    async def call(self, to: BrokerEndpoint, method: str, message: Any, **how: Any) -> Any:
        self.asked.append({"message": message, **how})
        return self._answer

    def suspect_all(self) -> None: ...
    async def close(self) -> None: ...


def test_heartbeat_that_is_lost_goes_out_again_well_within_the_session_and_is_answered_at_once() -> None:
    config, transport = BrokerConfig(), Transport(pb.BrokerHeartbeatResponse())
    interval_ms, session_ms = config.broker_heartbeat_interval_ms, config.broker_session_timeout_ms
    heartbeat = BrokerHeartbeat(1, 2, "life", 3, wants_shut_down=False, max_wait_ms=interval_ms, wants_fence=True)
    asyncio.run(GrpcPeers(transport).heartbeat(TO, heartbeat, timeout_s=(interval_ms + session_ms) / 1000))
    (asked,) = transport.asked
    # The controller has heard the one before an interval earlier.
    assert interval_ms / 1000 < asked["due_s"] <= 0.75 * session_ms / 1000 - interval_ms / 1000
    assert asked["again"].max_wait_ms == 0
    asked["again"].max_wait_ms = interval_ms
    assert asked["again"] == asked["message"]


def test_identity_is_due_so_soon_that_another_connection_has_time_for_it() -> None:
    transport = Transport(pb.IdentifyBrokerResponse())
    for timeout_s in (0.5, 1.0, 30.0):
        asyncio.run(GrpcPeers(transport).identify(TO, timeout_s=timeout_s, needs_login=True))
    assert [asked["due_s"] for asked in transport.asked] == [0.25, 0.5, 1.0]


def test_error_of_a_code_that_is_not_known_here_is_a_refusal() -> None:
    answer = pb.RegisterBrokerResponse(error_code=9_999, error_message="later")  # type: ignore[arg-type]
    command = RegisterBroker(TO, "life")
    refused = asyncio.run(GrpcPeers(Transport(answer)).register(TO, command, cluster_id="c"))
    assert refused == Refused(ErrorCode.UNKNOWN_SERVER_ERROR, "error code 9999: later")


def test_producer_id_that_comes_as_something_else_is_a_refusal() -> None:
    transport = Transport(pb.EnvelopeResponse(response=b"\xff" * 50))
    refused = asyncio.run(GrpcPeers(transport).take_producer_id(TO, timeout_s=1.0))
    assert isinstance(refused, Refused)
    assert refused.code is ErrorCode.NETWORK_EXCEPTION
    assert refused.message == "expected a InitProducerIdResponse, found 50 bytes that are none"


class Hanging(Transport):
    """Never answers."""

    def __init__(self) -> None:
        super().__init__(None)

    async def call(self, to: BrokerEndpoint, method: str, message: Any, **how: Any) -> Any:
        await asyncio.sleep(how["timeout_s"])
        return Refused(ErrorCode.REQUEST_TIMED_OUT, "late")


def test_call_to_a_leader_ends_a_second_after_it_is_fenced_and_heartbeats_go_on() -> None:
    async def play() -> None:
        peers, loop = GrpcPeers(Hanging()), asyncio.get_running_loop()
        other = BrokerEndpoint(2, "b", 1)
        before, elsewhere = [asyncio.ensure_future(peers.take_producer_id(to, timeout_s=30.0)) for to in (TO, other)]
        heartbeat = BrokerHeartbeat(1, 2, "life", 3, wants_shut_down=False, max_wait_ms=500)
        beating = asyncio.ensure_future(peers.heartbeat(TO, heartbeat, timeout_s=30.0))
        asking = asyncio.ensure_future(peers.identify(TO, timeout_s=30.0, needs_login=False))
        await asyncio.sleep(5)
        peers.give_up(TO.broker_id)
        after = asyncio.ensure_future(peers.take_producer_id(TO, timeout_s=30.0))
        refused = await before
        assert isinstance(refused, Refused)
        assert refused.code is ErrorCode.NETWORK_EXCEPTION
        assert refused.message == "Envelope at broker 1, a:1: it was fenced meanwhile, and has not answered"
        assert loop.time() == pytest.approx(6)
        await asyncio.wait([beating, asking, elsewhere])
        assert loop.time() == pytest.approx(30)
        await after
        assert loop.time() == pytest.approx(35)

    run_virtually(play())
