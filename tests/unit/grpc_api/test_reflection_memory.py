"""The memory that requests for the contract take while they are answered."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import pytest
from grpc_reflection.v1alpha import reflection_pb2

from bus.grpc_api.server.guards import OpenStreams
from bus.grpc_api.server.health import ReflectionServicer
from bus.grpc_api.server.request_limits import UnreadableRequest
from bus.model import PLAINTEXT
from tests.support.api_bench import ALICE, BY_ACLS, FOR_ALL, ApiBench

UNUSED: Any = None


async def one_request() -> AsyncIterator[Any]:
    yield reflection_pb2.ServerReflectionRequest(list_services="*")


def allowed_requests(bench: ApiBench) -> Any:
    return ReflectionServicer(bench.api, UNUSED, OpenStreams(1), PLAINTEXT)._allowed(one_request(), ALICE)


def test_a_refused_request_takes_no_memory_any_more() -> None:
    async def play() -> None:
        bench = ApiBench(config=BY_ACLS)
        before = bench.api.control_memory.bytes_left(ALICE.connection)
        with pytest.raises(UnreadableRequest):
            await anext(allowed_requests(bench))
        assert bench.api.control_memory.bytes_left(ALICE.connection) == before

    asyncio.run(play())


def test_a_request_whose_caller_goes_away_takes_no_memory_any_more() -> None:
    async def play() -> None:
        bench = ApiBench(config=FOR_ALL)
        before = bench.api.control_memory.bytes_left(ALICE.connection)
        async with contextlib.aclosing(allowed_requests(bench)) as requests:
            await anext(requests)
            assert bench.api.control_memory.bytes_left(ALICE.connection) < before
        assert bench.api.control_memory.bytes_left(ALICE.connection) == before

    asyncio.run(play())
