"""Connections to other brokers: one for each address, and not without a bound."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import grpc
import pytest

from bus.grpc_api.server import peers
from bus.grpc_api.server.peers import GrpcTransport
from bus.grpc_api.v1 import bus_pb2 as pb
from bus.model import BrokerEndpoint


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
    monkeypatch.setattr(peers, "CHANNELS_MAX", 2)

    async def ask() -> None:
        transport = GrpcTransport()
        for host in ("a", "b", "a", "c", "a"):
            to = BrokerEndpoint(1, host, 1)
            answer = await transport.call(to, "IdentifyBroker", pb.IdentifyBrokerRequest(), timeout_s=1)
            assert answer == f"{host}:1"
        await transport.close()

    asyncio.run(ask())
    assert log == ["open a:1", "open b:1", "open c:1", "close b:1", "close c:1", "close a:1"]
