"""Calls from broker to broker over a network that swallows what is sent on connections that are open."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from bus.addresses import parse_address
from bus.cluster_metadata.broker_decisions import BrokerIdentity
from bus.errors import ErrorCode, Refused
from bus.grpc_api.server.peers import GrpcPeers, GrpcTransport
from bus.model import BrokerEndpoint
from tests.support.broker_thread import running_broker
from tests.support.tcp_proxy import Link, TcpProxy


async def ask_over(link: Link) -> list[Any]:
    """Before the connection is swallowed, on it, and after a time-out."""
    found = parse_address(link.address)
    transport = GrpcTransport()
    peers = GrpcPeers(transport)
    answers = []
    for timeout_s in (30.0, 0.5, 30.0):
        answers.append(await peers.identify(BrokerEndpoint(0, found.host, found.port), timeout_s=timeout_s))
        if len(answers) == 1:
            link.swallow()
    await transport.close()
    return answers


def test_broker_reaches_another_one_by_another_connection_after_a_time_out(tmp_path: Path) -> None:
    with running_broker(tmp_path / "root") as broker, TcpProxy() as proxy:
        answers = asyncio.run(ask_over(proxy.link(f"127.0.0.1:{broker.port}")))
    assert isinstance(answers[0], BrokerIdentity)
    assert isinstance(answers[1], Refused)
    assert answers[1].code is ErrorCode.REQUEST_TIMED_OUT
    assert answers[2] == answers[0]
