"""Connections to other brokers: one for each address, not without a bound, and another one after a time-out."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from typing import Any

import grpc
import pytest

from bus.errors import ErrorCode, Refused
from bus.grpc_api.server import peer_transport
from bus.grpc_api.server.peer_transport import GrpcTransport
from bus.grpc_api.v1 import bus_pb2 as pb
from bus.model import BrokerEndpoint
from tests.support.virtual_time import run_virtually


class FakeChannel:
    def __init__(self, log: list[str], target: str) -> None:
        self._log = log
        self._target = target
        log.append(f"open {target}")

    def unary_unary(self, *_: Any, **__: Any) -> Callable[..., Any]:
        async def call(message: Any, timeout: float) -> str:
            return self._target

        return call

    async def close(self) -> None:
        self._log.append(f"close {self._target}")


def test_connection_that_was_not_asked_for_longest_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    log: list[str] = []
    monkeypatch.setattr(grpc.aio, "insecure_channel", lambda target, options: FakeChannel(log, target))
    monkeypatch.setattr(peer_transport, "CHANNELS_MAX", 2)

    async def ask() -> None:
        transport = GrpcTransport()
        for host in ("a", "b", "a", "c", "a"):
            to = BrokerEndpoint(1, host, 1)
            answer = await transport.call(to, "IdentifyBroker", pb.IdentifyBrokerRequest(), timeout_s=1)
            assert answer == f"{host}:1"
        await transport.close()

    asyncio.run(ask())
    assert log == ["open a:1", "open b:1", "open c:1", "close b:1", "close c:1", "close a:1"]


class Network:
    """Answers each call after `delay_s`, unless the connection that it is made on is swallowed."""

    def __init__(self) -> None:
        self.opened = 0
        self.open: set[int] = set()
        self.swallowed: set[int] = set()
        self.delay_s = 0.0

    def channel(self, target: str, options: Any) -> SwallowedChannel:
        return SwallowedChannel(self)


class SwallowedChannel:
    def __init__(self, network: Network) -> None:
        self._network = network
        self.number = network.opened
        network.opened += 1
        network.open.add(self.number)

    def unary_unary(self, *_: Any, **__: Any) -> Callable[..., Any]:
        async def call(message: Any, timeout: float) -> int:
            delay_s = math.inf if self.number in self._network.swallowed else self._network.delay_s
            if delay_s > timeout:
                await asyncio.sleep(timeout)
                empty = grpc.aio.Metadata()
                raise grpc.aio.AioRpcError(grpc.StatusCode.DEADLINE_EXCEEDED, empty, empty, "Deadline Exceeded")
            await asyncio.sleep(delay_s)
            assert self.number in self._network.open, "a connection is closed behind the last call on it"
            return self.number

        return call

    async def close(self) -> None:
        self._network.open.discard(self.number)


async def ask(transport: GrpcTransport, timeout_s: float = 1.0) -> Any:
    to = BrokerEndpoint(1, "a", 1)
    return await transport.call(to, "IdentifyBroker", pb.IdentifyBrokerRequest(), timeout_s=timeout_s)


@pytest.fixture
def network(monkeypatch: pytest.MonkeyPatch) -> Network:
    made = Network()
    monkeypatch.setattr(grpc.aio, "insecure_channel", made.channel)
    return made


def test_call_behind_one_without_an_answer_in_time_has_another_connection(network: Network) -> None:
    async def run() -> None:
        transport = GrpcTransport()
        assert await ask(transport) == 0
        network.swallowed.add(0)
        late = await ask(transport)
        assert isinstance(late, Refused)
        assert late.code is ErrorCode.REQUEST_TIMED_OUT
        assert await ask(transport) == 1
        assert network.open == {1}
        await transport.close()
        assert not network.open

    run_virtually(run())


def test_slow_call_beside_one_that_is_late_has_its_answer_on_the_same_connection(network: Network) -> None:
    async def run() -> None:
        transport = GrpcTransport()
        network.delay_s = 3.0
        slow = asyncio.ensure_future(ask(transport, timeout_s=10))
        await asyncio.sleep(1)
        assert isinstance(await ask(transport), Refused)
        network.delay_s = 0.0
        assert await ask(transport) == 1
        assert await slow == 0
        await asyncio.sleep(0)
        assert network.open == {1}
        await transport.close()

    run_virtually(run())


def test_calls_that_are_cancelled_before_their_time_is_over_leave_a_silent_connection(network: Network) -> None:
    async def run() -> None:
        transport = GrpcTransport()
        assert await ask(transport) == 0
        network.swallowed.add(0)
        for _ in range(3):
            with pytest.raises(asyncio.TimeoutError):
                await asyncio.wait_for(ask(transport, timeout_s=30), 2)
        assert await ask(transport) == 1
        await transport.close()

    run_virtually(run())
