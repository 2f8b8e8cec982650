"""Answers to those who watch a broker's health."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from grpc_health.v1.health_pb2 import HealthCheckRequest, HealthCheckResponse

from bus.broker_api.requests import Caller
from bus.grpc_api.server.guards import OpenStreams
from bus.grpc_api.server.health import HealthOfServices, HealthServicer
from bus.grpc_api.server.request_limits import UnreadableRequest
from tests.support.cancelled_calls import QuietContext

SERVING, NOT_SERVING = HealthCheckResponse.SERVING, HealthCheckResponse.NOT_SERVING


class Watcher(QuietContext):
    def __init__(self, *, reads: bool = True) -> None:
        self.told: list[int] = []
        self._reads = reads

    async def write(self, response: Any) -> None:
        if not self._reads:
            await asyncio.Event().wait()
        self.told.append(response.status)


def test_addresses_of_one_ipv6_network_are_one_caller_for_open_streams() -> None:
    streams = OpenStreams(2)
    here, there, elsewhere = (Caller("", f"/2001:db8:0:{network}", "") for network in ("1::1", "1::2", "2::1"))
    with streams.one(here), streams.one(there):
        with pytest.raises(UnreadableRequest, match=r"expected at most 2 open streams"), streams.one(here):
            pass
        with streams.one(elsewhere):
            pass


def test_a_watcher_that_does_not_read_keeps_no_other_one_waiting_and_not_the_end() -> None:
    async def play() -> None:
        health = HealthOfServices()
        servicer = HealthServicer(health, OpenStreams(10), "PLAINTEXT")
        health.set("", NOT_SERVING)
        deaf, keen, unknown = Watcher(reads=False), Watcher(), Watcher()
        calls = [
            asyncio.ensure_future(servicer.Watch(HealthCheckRequest(service=name), context))
            for name, context in (("", deaf), ("", keen), ("x", unknown))
        ]
        await asyncio.sleep(0)
        health.set("", SERVING)
        for _ in range(5):
            await asyncio.sleep(0)
        health.end()
        health.set("", SERVING)  # too late
        for _ in range(5):
            await asyncio.sleep(0)
        assert keen.told == [NOT_SERVING, SERVING, NOT_SERVING]
        assert unknown.told == [HealthCheckResponse.SERVICE_UNKNOWN]
        assert deaf.told == []
        for call in calls:
            call.cancel()
        await asyncio.wait(calls)

    asyncio.run(play())
