"""The steps before the handler of a call, in their order."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from bus.broker_api.calls import CALLS
from bus.broker_api.cluster_admin import UserApi
from bus.broker_api.requests import RequestMemory
from bus.errors import ErrorCode
from bus.grpc_api.server.acls import UserHandler
from bus.grpc_api.server.servicers import BusServicer
from bus.grpc_api.v1 import bus_pb2 as pb
from bus.runtime.logs import request_id
from bus.runtime.tasks import LoopShares
from bus.security.users import Users
from bus.settings.broker import BrokerConfig
from tests.support.api_bench import ALICE
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
        self._authorizer: Any = self
        self.caller = ALICE
        self.changes = Anything()
        self.handlers.users = UserHandler(UserApi(self), LoopShares())  # type: ignore[arg-type]  # as far as it is asked

    def note(self, step: str) -> None:
        is_in_memory = self.memory.bytes_left("other") < RequestMemory(1_000_000).bytes_left("other")
        self.steps.append((step, is_in_memory, bool(request_id.get())))

    async def _take_turn(self, *_: Any) -> None:
        self.note("pace")

    def access(self, *_: Any) -> Any:
        return self

    async def refusal_of_request(self, *_: Any) -> None:
        self.note("authorize")

    async def describe(self) -> Users:
        """Answer as the directory of users, of which there are none."""
        self.note("handle")
        return Users()


def steps_of(method: Callable[[Witness], Any]) -> list[tuple[str, bool, bool]]:
    async def call() -> list[tuple[str, bool, bool]]:
        witness = Witness()
        response = await method(witness)(REQUEST, QuietContext())
        assert [(user.user, user.error_code) for user in response.users] == [("alice", ErrorCode.RESOURCE_NOT_FOUND)]
        assert witness.memory.bytes_left("other") == RequestMemory(1_000_000).bytes_left("other")
        return witness.steps

    return asyncio.run(call())


def test_a_caller_is_paced_before_it_is_authorized_and_its_request_is_in_memory_and_named_meanwhile() -> None:
    steps = steps_of(lambda witness: witness.DescribeUserScramCredentials)
    assert steps == [("pace", True, True), ("authorize", True, True), ("handle", True, True)]


def test_a_broker_is_authorized_and_not_paced() -> None:
    call = CALLS["DescribeUserScramCredentials"]
    steps = steps_of(lambda witness: witness.of_broker(call, witness.handlers.users.describe))
    assert steps == [("authorize", True, True), ("handle", True, True)]
