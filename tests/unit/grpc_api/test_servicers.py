"""The steps before the handler of a call, in their order."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from bus.broker_api.calls import CALLS
from bus.broker_api.requests import RequestMemory
from bus.grpc_api.server.servicers import BusServicer
from bus.grpc_api.v1 import bus_pb2 as pb
from bus.runtime.logs import request_id
from bus.settings.broker import BrokerConfig
from tests.support.cancelled_calls import QuietContext

REQUEST = pb.DescribeUserScramCredentialsRequest(users=["alice"])


class Anything:
    """Stands for the parts of a broker that no step asks for more than a part, or whether something is so."""

    def __getattr__(self, name: str) -> Any:
        return self

    def __call__(self, *_: Any, **__: Any) -> Any:
        return self


class Witness(BusServicer):
    """Notes each step, and how many requests are in memory in it."""

    def __init__(self) -> None:
        api: Any = Anything()
        api.control_memory = self.memory = RequestMemory(1_000_000)
        super().__init__(api, api, BrokerConfig(), api)
        self.steps: list[tuple[str, bool, bool]] = []
        self._authorization: Any = self

    def note(self, step: str) -> None:
        is_in_memory = self.memory.bytes_left("other") < RequestMemory(1_000_000).bytes_left("other")
        self.steps.append((step, is_in_memory, bool(request_id.get())))

    async def _take_turn(self, *_: Any) -> None:
        self.note("pace")

    def around(self, method: str, handle: Callable[[Any], Awaitable[Any]], _: Any) -> Callable[[Any], Awaitable[Any]]:
        async def answer(request: Any) -> Any:
            self.note("authorize")
            return await handle(request)

        return answer

    async def handle(self, request: Any) -> str:
        self.note("handle")
        return f"answer to {request.users}"


def steps_of(method: Callable[[Witness], Any]) -> list[tuple[str, bool, bool]]:
    async def call() -> list[tuple[str, bool, bool]]:
        witness = Witness()
        witness.handlers.users.describe = witness.handle  # type: ignore[method-assign, assignment]
        assert await method(witness)(REQUEST, QuietContext()) == "answer to ['alice']"
        assert witness.memory.bytes_left("other") == RequestMemory(1_000_000).bytes_left("other")
        return witness.steps

    return asyncio.run(call())


def test_a_caller_is_paced_before_it_is_authorized_and_its_request_is_in_memory_and_named_meanwhile() -> None:
    steps = steps_of(lambda witness: witness.DescribeUserScramCredentials)
    assert steps == [("pace", True, True), ("authorize", True, True), ("handle", True, True)]


def test_a_broker_is_authorized_and_not_paced() -> None:
    steps = steps_of(lambda witness: witness.of_broker(CALLS["DescribeUserScramCredentials"], witness.handle))
    assert steps == [("authorize", True, True), ("handle", True, True)]
