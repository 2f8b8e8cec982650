"""Calls from broker to broker over a network that swallows what is sent on connections that are open."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from pathlib import Path
from typing import Any

import grpc
import pytest

from bus.addresses import parse_address
from bus.broker_api.calls import CALLS
from bus.errors import ErrorCode, Refused
from bus.grpc_api.server.connections.peer_transport import SERVICE, GrpcTransport
from bus.grpc_api.v1 import bus_pb2 as pb
from bus.model import BrokerEndpoint
from tests.support.broker_thread import running_broker
from tests.support.tcp_proxy import Link, TcpProxy


def ask(transport: GrpcTransport, link: Link, timeout_s: float, due_s: float | None = None) -> Awaitable[Any]:
    found = parse_address(link.address)
    endpoint = BrokerEndpoint(0, found.host, found.port)
    return transport.call(endpoint, "IdentifyBroker", pb.IdentifyBrokerRequest(), timeout_s=timeout_s, due_s=due_s)


async def ask_over(link: Link, *, has_patient_call: bool) -> list[Any]:
    """Before the connection is swallowed, on it, and after a time-out. `has_patient_call`: one is under way on the
    swallowed connection all that time, so that it stays open."""
    transport = GrpcTransport()
    answers = [await ask(transport, link, 30.0)]
    link.swallow()
    patient = asyncio.ensure_future(ask(transport, link, 60.0)) if has_patient_call else None
    answers.append(await ask(transport, link, 0.5))
    answers.append(await ask(transport, link, 30.0))
    if patient is not None:
        patient.cancel()
        await asyncio.wait([patient])
    await transport.close()
    return answers


@pytest.mark.parametrize("has_patient_call", [False, True])
def test_broker_reaches_another_one_by_another_connection_after_a_time_out(
    tmp_path: Path, has_patient_call: bool
) -> None:
    with running_broker(tmp_path / "root") as broker, TcpProxy() as proxy:
        link = proxy.link(f"127.0.0.1:{broker.port}")
        answers = asyncio.run(ask_over(link, has_patient_call=has_patient_call))
    assert isinstance(answers[0], pb.IdentifyBrokerResponse)
    assert isinstance(answers[1], Refused)
    assert answers[1].code is ErrorCode.REQUEST_TIMED_OUT
    assert answers[2] == answers[0]


@pytest.mark.parametrize("due_s", [0.5, None])
def test_call_on_a_swallowed_connection_is_answered_on_another_one_within_its_time(
    tmp_path: Path, due_s: float | None
) -> None:
    async def ask_twice(link: Link) -> list[Any]:
        transport = GrpcTransport()
        answers = [await ask(transport, link, 30.0)]
        link.swallow()
        answers.append(await ask(transport, link, 30.0, due_s))
        await transport.close()
        return answers

    with running_broker(tmp_path / "root") as broker, TcpProxy() as proxy:
        answers = asyncio.run(ask_twice(proxy.link(f"127.0.0.1:{broker.port}")))
    assert isinstance(answers[0], pb.IdentifyBrokerResponse)
    assert answers[1] == answers[0]


@pytest.mark.parametrize("method", [each.name for each in SERVICE.methods])
def test_stranger_at_the_address_of_a_broker_has_no_memory_of_who_asks_it(method: str) -> None:
    answer_bytes = CALLS[method].answer_bytes_max + 1

    async def answer(request: bytes, context: grpc.aio.ServicerContext) -> bytes:
        return bytes(answer_bytes)

    async def ask_stranger() -> Any:
        server, transport = grpc.aio.server(), GrpcTransport()
        handlers = {method: grpc.unary_unary_rpc_method_handler(answer)}
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("bus.v1.Cluster", handlers),))
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        endpoint = BrokerEndpoint(0, "127.0.0.1", port)
        request = SERVICE.methods_by_name[method].input_type._concrete_class()
        found = await transport.call(endpoint, method, request, timeout_s=30.0)
        await transport.close()
        await server.stop(None)
        return found

    found = asyncio.run(ask_stranger())
    assert isinstance(found, Refused)
    assert "larger than max" in found.message
