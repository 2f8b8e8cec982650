"""Clients without a login, and what they can send to a listener that asks for one, whatever it does with HTTP/2."""

from __future__ import annotations

import errno
import itertools
import os
import socket
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import grpc
import pytest

from bus import Producer
from bus.broker import Broker
from bus.grpc_api.server.connections.strangers import Strangers, _Ended, _peer_of
from bus.grpc_api.server.connections.tcp_arrivals import IS_AVAILABLE
from bus.grpc_api.v1 import bus_pb2 as pb
from bus.grpc_api.v1.bus_pb2_grpc import BusStub
from bus.platform.system_clock import SystemClock
from bus.runtime.user_directory import UserLedger
from bus.security.scram import SCRAM_SHA_256, salt_password
from bus.security.stranger_rations import Ration, RationSizes
from bus.security.users import SetScram
from bus.settings.broker import BrokerConfig
from bus.storage_delta.root import open_storage
from tests.support.broker_process import BrokerProcess
from tests.support.broker_thread import running_broker
from tests.support.member_processes import wait_until
from tests.support.rude_http2 import ATTACKS, RudeClient, hello

pytestmark = [
    pytest.mark.timeout(240),
    pytest.mark.skipif(not IS_AVAILABLE, reason="elsewhere what arrives before a login is not bounded"),
]
SIZES = RationSizes()
SEGMENT_BYTES_MAX = 64 * 1024  # of the loopback; the one that goes beyond the ration is taken whole
CUT_SECONDS_MAX = 60  # a loaded machine may come to it late; it is never waited for in full
MEMORY_BYTES_MAX = 500_000_000
LOGIN = {
    "security_protocol": "SASL_PLAINTEXT",
    "sasl_mechanism": "SCRAM-SHA-256",
    "sasl_username": "alice",
    "sasl_password": "pencil-and-paper",
}


def make_user(root: Path) -> None:
    storage = open_storage(str(root), exclusive=False)
    salt = b"salt of a user"
    salted = salt_password(SCRAM_SHA_256, LOGIN["sasl_password"], salt, 4096)
    UserLedger(storage, SystemClock()).alter([SetScram("alice", SCRAM_SHA_256.name, 4096, salt, salted)])
    storage.close()


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    root = tmp_path_factory.mktemp("strangers") / "root"
    make_user(root)
    config = BrokerConfig(
        listeners=("SASL_PLAINTEXT://127.0.0.1:0", "PLAINTEXT://127.0.0.1:0"), inter_broker_listener_name="PLAINTEXT"
    )
    with running_broker(root, config=config) as broker:
        yield broker


addresses = (f"127.0.1.{number}" for number in itertools.count(1))  # each attack has a ration of its own


def arrivals_bytes_max(ration: Ration, since_s: float) -> float:
    """Bytes that the ration lets arrive, with what was given back meanwhile."""
    return ration.bytes_max + (time.monotonic() - since_s) * ration.bytes_a_second


def port_of(broker: Broker) -> int:
    return broker.ports["SASL_PLAINTEXT"]


def strangers_of(broker: Broker) -> Strangers:
    return broker._server._strangers


@pytest.mark.parametrize("attack", ATTACKS)
def test_stranger_is_cut_before_more_than_its_ration_has_arrived(broker: Broker, attack: str) -> None:
    begun_s = time.monotonic()
    with RudeClient(port_of(broker), source=next(addresses)) as client:
        client.attack(ATTACKS[attack](), bytes_max=16_000_000, bytes_a_second=1e9)
        assert client.wait_until_cut(CUT_SECONDS_MAX)
        arrived = client.arrived
    assert arrived <= arrivals_bytes_max(SIZES.connection, begun_s) + 2 * SEGMENT_BYTES_MAX


@pytest.mark.timeout(900)  # its connections wait for their cut one after another, each as long as the machine takes
def test_address_gets_in_no_more_than_its_ration_by_however_many_connections(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Nearly nothing is given back meanwhile: on a slow machine that would be more than all connections can send.
    ration = replace(SIZES.address, bytes_a_second=1)
    monkeypatch.setattr(strangers_of(broker)._rations, "sizes", replace(SIZES, address=ration))
    source, arrived, begun_s = next(addresses), 0, time.monotonic()
    connection_count = 20
    for _ in range(connection_count):
        with RudeClient(port_of(broker), source=source) as client:
            client.attack(ATTACKS["small_calls"](), bytes_max=1_000_000, bytes_a_second=1e9)
            assert client.wait_until_cut(CUT_SECONDS_MAX)
            arrived += client.arrived
    # The system takes a segment's worth of each one before the broker sees it, also of one that is never let in.
    assert arrived <= arrivals_bytes_max(ration, begun_s) + connection_count * SEGMENT_BYTES_MAX


def test_connection_that_cannot_be_watched_is_cut_and_takes_no_place(
    broker: Broker, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A connection without a duplicate would have no bound, and would be counted for good."""
    source = next(addresses)
    with monkeypatch.context() as patched:

        def refuse(connection: socket.socket) -> socket.socket:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

        patched.setattr("bus.grpc_api.server.connections.strangers._duplicate", refuse)
        for _ in range(3):
            with RudeClient(port_of(broker), source=source) as client:
                assert client.wait_until_cut(CUT_SECONDS_MAX)
    assert not strangers_of(broker)._rations._addresses[source].connections
    wait_until(lambda: f"closed a connection from {source} at listener" in caplog.text, "the log names the address")
    with RudeClient(port_of(broker), source=source) as client:
        assert client.send(hello())
        assert not client.wait_until_cut(0.5)


def test_silent_connections_of_one_address_leave_room_for_others(broker: Broker) -> None:
    source = next(addresses)
    clients = [RudeClient(port_of(broker), source=source) for _ in range(SIZES.address_connections_max + 20)]
    try:
        # The last ones, or the first ones where it took so long to come that those have had their time for a login.
        cut = (client for client in [*clients[-20:], *clients[:20]] if client.wait_until_cut(CUT_SECONDS_MAX / 20))
        assert len(list(itertools.islice(cut, 20))) == 20
        with RudeClient(port_of(broker), source=next(addresses)) as other:
            assert other.send(hello())
            assert not other.wait_until_cut(0.5)
        with Producer(f"127.0.0.1:{port_of(broker)}", **LOGIN) as producer:  # type: ignore[arg-type]
            producer.send("t", value=b"x").result()
    finally:
        for client in clients:
            client.close()


def test_caller_that_has_logged_in_has_no_ration(broker: Broker) -> None:
    with Producer(f"127.0.0.1:{port_of(broker)}", **LOGIN) as producer:  # type: ignore[arg-type]
        for _ in range(4):
            producer.send("t", value=bytes(500_000)).result()
        wait_until(lambda: not any("127.0.0.1:" in peer for _, peer in strangers_of(broker)._by_key), "no watch")


def test_caller_by_ipv6_is_recognised(tmp_path: Path) -> None:
    try:
        with socket.create_server(("::1", 0), family=socket.AF_INET6):
            pass
    except OSError:
        pytest.skip("this machine has no IPv6")
    config = BrokerConfig(
        listeners=("SASL_PLAINTEXT://[::1]:0", "PLAINTEXT://127.0.0.1:0"),
        inter_broker_listener_name="PLAINTEXT",
        sasl_enabled_mechanisms=("PLAIN",),
    )
    make_user(tmp_path / "root")
    basic = "Basic YWxpY2U6cGVuY2lsLWFuZC1wYXBlcg=="
    with (
        running_broker(tmp_path / "root", config=config) as broker,
        grpc.insecure_channel(f"[::1]:{port_of(broker)}") as channel,
    ):
        BusStub(channel).ListViews(pb.ListViewsRequest(), metadata=(("authorization", basic),), timeout=120)
        assert not strangers_of(broker)._by_key


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("10.0.0.1", ("ipv4:10.0.0.1:5", "10.0.0.1")),
        ("::ffff:10.0.0.1", ("ipv4:10.0.0.1:5", "10.0.0.1")),
        ("2001:db8:1:2:3::4", ("ipv6:[2001:db8:1:2:3::4]:5", "2001:db8:1:2::/64")),
        ("fe80::1%eth0", ("ipv6:[fe80::1%eth0]:5", "fe80::/64")),
    ],
)
def test_peer_is_named_as_by_grpc_and_counted_by_its_network(host: str, expected: tuple[str, str]) -> None:
    assert _peer_of(host, 5) == expected


def test_connections_of_one_ipv6_network_that_were_cut_are_one_line(caplog: pytest.LogCaptureFixture) -> None:
    strangers = Strangers()
    for host in ("2001:db8::1", "2001:db8::2", "2001:db8::3", "2001:db8:0:1::1"):
        strangers._ended.append(_Ended("STAFF", host, "too much"))
    strangers._log_ended()
    assert [message.split()[4] for message in caplog.messages] == ["2001:db8::1", "2001:db8:0:1::1"]
    strangers.close()


def test_memory_of_a_broker_stays_bounded_whatever_strangers_send(tmp_path: Path) -> None:
    root = tmp_path / "root"
    make_user(root)
    broker = BrokerProcess(root)
    settings = tmp_path / "broker.toml"
    settings.write_text(
        f'listeners = ["SASL_PLAINTEXT://{broker.address}", "PLAINTEXT://127.0.0.1:0"]\n'
        'inter.broker.listener.name = "PLAINTEXT"\n'
    )
    broker.configure(settings)
    with broker:
        for attack in ("indexed_fields", "small_calls", "blocks_under_the_limit"):
            for _ in range(3):
                with RudeClient(broker.port, source=next(addresses)) as client:
                    client.attack(ATTACKS[attack](), bytes_max=20_000_000, bytes_a_second=1e9)
                    assert client.wait_until_cut(CUT_SECONDS_MAX)
        with Producer(broker.address, **LOGIN) as producer:  # type: ignore[arg-type]
            producer.send("t", value=b"x").result()
        status = Path(f"/proc/{broker.pid}/status").read_text()
        peak = next(line.split()[1] for line in status.splitlines() if line.startswith("VmHWM:"))
        assert int(peak) * 1024 < MEMORY_BYTES_MAX
