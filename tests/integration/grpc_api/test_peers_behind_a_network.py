"""Calls from broker to broker over a network that swallows what is sent on connections that are open."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from bus.cluster_metadata.broker_decisions import BrokerIdentity
from bus.errors import ErrorCode, Refused
from bus.grpc_api.server.peers import GrpcPeers, GrpcTransport
from bus.model import BrokerEndpoint
from tests.support.broker_thread import running_broker
from tests.support.tcp_proxy import Link, TcpProxy


async def ask_over(link: Link, times: int) -> list[Any]:
    host, _, port = link.address.rpartition(":")
    transport = GrpcTransport()
    peers = GrpcPeers(transport)
    answers = []
    for _ in range(times):
        answers.append(await peers.identify(BrokerEndpoint(0, host, int(port)), timeout_s=0.5))
        link.swallow()
    await transport.close()
    return answers


def test_broker_reaches_another_one_by_another_connection_after_a_time_out(tmp_path: Path) -> None:
    with running_broker(tmp_path / "root") as broker, TcpProxy() as proxy:
        answers = asyncio.run(ask_over(proxy.link(f"127.0.0.1:{broker.port}"), 3))
    assert isinstance(answers[0], BrokerIdentity)
    assert isinstance(answers[1], Refused)
    assert answers[1].code is ErrorCode.REQUEST_TIMED_OUT
    assert answers[2] == answers[0]
