"""Obstacles on the way to a broker by no fault of it: proxies of the environment, names that nobody knows."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator

import pytest
from click.testing import CliRunner

from bus import Admin, BusError, Producer
from bus.cli.main import cli
from bus.client.first_contact import broker_needed
from bus.errors import ErrorCode
from tests.support.fake_broker import FakeBroker

WAIT_S = 30.0
UNKNOWN_HOST = f"{'n' * 64}.invalid"  # a label has 63 characters at most: the resolver asks no server for it
VARIABLES = ("grpc_proxy", "https_proxy", "http_proxy")


class WebProxy:
    """Refuses everything, and notes the first line of each request."""

    def __init__(self) -> None:
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listening.getsockname()[1]}"
        self.asked: list[bytes] = []
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._listening.accept()
            except OSError:  # closed
                return
            with connection:
                self.asked.append(connection.recv(4096).split(b"\r\n")[0])
                connection.sendall(b"HTTP/1.1 403 Forbidden\r\n\r\n")

    def close(self) -> None:
        self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        self._thread.join(WAIT_S)


@pytest.fixture
def proxy() -> Iterator[WebProxy]:
    made = WebProxy()
    yield made
    made.close()


@pytest.mark.parametrize("variable", VARIABLES)
def test_client_goes_past_the_proxies_of_the_environment(
    variable: str, proxy: WebProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable, proxy.url)
    with FakeBroker() as broker:
        broker.cluster.create("t")
        with Producer(broker.address) as producer:
            assert producer.send("t", b"v").result(WAIT_S).offset == 0
    assert proxy.asked == []


def test_client_that_needs_the_proxy_of_the_environment_says_so(
    proxy: WebProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("grpc_proxy", proxy.url)
    with FakeBroker() as broker, broker_needed(), Admin(broker.address, enable_http_proxy=True) as admin:
        with pytest.raises(BusError):
            admin.list_topics()
        assert proxy.asked[0] == f"CONNECT {broker.address} HTTP/1.1".encode()


def test_host_that_nobody_knows_is_named_in_our_words() -> None:
    with broker_needed(), Admin(f"{UNKNOWN_HOST}:9094") as admin, pytest.raises(BusError) as caught:
        admin.list_topics()
    assert caught.value.code is ErrorCode.NETWORK_EXCEPTION
    assert f"no host '{UNKNOWN_HOST}' is known, of the broker at {UNKNOWN_HOST}:9094" in caught.value.message
    assert "lookup" not in caught.value.message


def test_command_names_a_host_that_nobody_knows() -> None:
    result = CliRunner().invoke(cli, ["topics", "list", "--address", f"{UNKNOWN_HOST}:9094"])
    assert result.exit_code == 1
    assert f"no host '{UNKNOWN_HOST}' is known" in result.output
