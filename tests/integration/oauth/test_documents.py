"""Documents of identity providers: bounded, not led elsewhere, and with certificates that are looked at."""

from __future__ import annotations

import contextlib
import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import ThreadingHTTPServer
from pathlib import Path

import pytest

from bus.security.oauth.documents import DOCUMENT_BYTES_MAX, DocumentFault, read_document, read_json
from bus.security.oauth.token_settings import parse_url
from tests.support.certificates import Authority
from tests.support.identity_provider import IdentityProvider, _Handler, identity_provider


@pytest.fixture
def provider() -> Iterator[IdentityProvider]:
    with identity_provider() as provider:
        yield provider


def test_a_document_is_read_from_a_server_and_from_a_file(provider: IdentityProvider, tmp_path: Path) -> None:
    found = read_document(parse_url(f"{provider.url}/keys"))
    assert b'"kid": "one"' in found
    file = tmp_path / "key set.json"
    file.write_bytes(found)
    assert read_document(parse_url(file.as_uri())) == found


def test_a_proxy_of_the_environment_is_not_asked_for_this_machine(
    provider: IdentityProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("http_proxy", "HTTP_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    assert read_document(parse_url(f"{provider.url}/keys"))


def test_what_is_too_large_is_refused(provider: IdentityProvider, tmp_path: Path) -> None:
    provider.body = b" " * (DOCUMENT_BYTES_MAX + 1)
    with pytest.raises(DocumentFault, match="expected at most 1048576 bytes, found more"):
        read_document(parse_url(f"{provider.url}/keys"))
    file = tmp_path / "large"
    file.write_bytes(provider.body)
    with pytest.raises(DocumentFault, match="expected at most 1048576 bytes, found more"):
        read_document(parse_url(file.as_uri()))


def test_a_redirection_is_not_followed(provider: IdentityProvider) -> None:
    with identity_provider() as other:
        provider.status, provider.location = 302, f"{other.url}/keys"
        with pytest.raises(DocumentFault, match="HTTP status 302; redirections are not followed"):
            read_document(parse_url(f"{provider.url}/keys"))
        assert not other.asked.is_set()


def test_a_server_that_does_not_answer_is_given_up(provider: IdentityProvider, monkeypatch: pytest.MonkeyPatch) -> None:
    answered = threading.Event()
    monkeypatch.setattr(provider, "answer", lambda *_: (answered.wait(40), (200, b"{}"))[1])
    with pytest.raises(DocumentFault, match="timed out"):
        read_document(parse_url(f"{provider.url}/keys"), seconds_max=0.2)
    answered.set()


@pytest.mark.parametrize(
    "beginning",
    [
        b"",
        b"HTTP/1.1 404 ",
        b"HTTP/1.1 200 OK\r\nX-Header: ",
        b"HTTP/1.1 200 OK\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1;",
    ],
)
def test_a_server_that_goes_on_sending_a_byte_now_and_then_is_given_up(beginning: bytes) -> None:
    with _dripping_server(beginning) as url, pytest.raises(DocumentFault, match=r"timed out|did not end in time"):
        read_document(parse_url(url), seconds_max=0.3)


@contextmanager
def _dripping_server(beginning: bytes) -> Iterator[str]:
    is_over = threading.Event()

    def drip() -> None:
        connection, _ = listening.accept()
        with connection, contextlib.suppress(OSError):
            connection.sendall(beginning)
            while not is_over.wait(0.01):
                connection.sendall(b"x")

    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=drip)
        thread.start()
        try:
            yield f"http://127.0.0.1:{listening.getsockname()[1]}/keys"
        finally:
            is_over.set()
            thread.join()


@pytest.mark.parametrize("body", [b"", b"<html>", b"[]", b"[" * 100_000])
def test_what_is_no_json_object_is_refused(provider: IdentityProvider, body: bytes) -> None:
    provider.body = body or b" "
    with pytest.raises(DocumentFault, match="expected a JSON object"):
        read_json(parse_url(f"{provider.url}/keys"))


def test_nothing_there_is_said(tmp_path: Path) -> None:
    with pytest.raises(DocumentFault, match="No such file"):
        read_document(parse_url((tmp_path / "missing").as_uri()))
    with identity_provider() as provider:
        url = f"{provider.url}/keys"
        with pytest.raises(DocumentFault, match="/other: HTTP status 404"):
            read_document(parse_url(f"{provider.url}/other?api_key=hush"))
    with pytest.raises(DocumentFault, match="refused"):
        read_document(parse_url(url))


def test_the_certificate_of_a_server_is_verified(tmp_path: Path) -> None:
    authority, other = Authority(tmp_path / "one"), Authority(tmp_path / "two", "other")
    issued = authority.issue("issuer", host="127.0.0.1")
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
    server.provider = IdentityProvider(server)  # type: ignore[attr-defined]
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(issued.certificate, issued.key)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    server.handle_error = lambda *_: None  # type: ignore[method-assign]  # a client that does not trust it goes away
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    url = f"https://127.0.0.1:{server.server_address[1]}/keys"
    try:
        assert b"one" in read_document(parse_url(url, ca_location=str(authority.path)))
        with pytest.raises(DocumentFault, match="CERTIFICATE_VERIFY_FAILED"):
            read_document(parse_url(url, ca_location=str(other.path)))
        with pytest.raises(DocumentFault, match="CERTIFICATE_VERIFY_FAILED"):
            read_document(parse_url(url))
        with pytest.raises(DocumentFault, match=r"Hostname mismatch|hostname|IP address mismatch"):
            read_document(parse_url(url.replace("127.0.0.1", "localhost"), ca_location=str(authority.path)))
        with pytest.raises(DocumentFault, match="expected a PEM file with authorities"):
            read_document(parse_url(url, ca_location=str(tmp_path / "missing.pem")))
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
