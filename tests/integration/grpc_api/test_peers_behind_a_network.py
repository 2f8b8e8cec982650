"""Calls from broker to broker over a network that swallows what is sent on connections that are open."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from bus.addresses import parse_address
from bus.cluster_metadata.broker_decisions import BrokerIdentity
from bus.errors import ErrorCode, Refused
from bus.grpc_api.server.peer_transport import GrpcTransport
from bus.grpc_api.server.peers import GrpcPeers
from bus.model import BrokerEndpoint
from tests.support.broker_thread import running_broker
from tests.support.tcp_proxy import Link, TcpProxy


async def ask_over(link: Link, *, has_patient_call: bool) -> list[Any]:
    """Before the connection is swallowed, on it, and after a time-out. `has_patient_call`: one is under way on the
    swallowed connection all that time, so that it stays open."""
    found = parse_address(link.address)
    transport = GrpcTransport()
    peers = GrpcPeers(transport)
    endpoint = BrokerEndpoint(0, found.host, found.port)
    answers = [await peers.identify(endpoint, timeout_s=30.0)]
    link.swallow()
    patient = asyncio.ensure_future(peers.identify(endpoint, timeout_s=60.0)) if has_patient_call else None
    answers.append(await peers.identify(endpoint, timeout_s=0.5))
    answers.append(await peers.identify(endpoint, timeout_s=30.0))
    if patient is not None:
        assert not patient.done()
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
    assert isinstance(answers[0], BrokerIdentity)
    assert isinstance(answers[1], Refused)
    assert answers[1].code is ErrorCode.REQUEST_TIMED_OUT
    assert answers[2] == answers[0]
