"""Reads documents of an identity provider: file://, https://, and http:// if it is allowed.

Guards these promises: a document is bounded in size; a server whose answer, headers included, does not end in time is
given up, however slowly it goes on sending; certificates are always verified; redirections are refused, because they
could lead to a server that is not configured; no error contains what was sent. Blocks, so it is for a thread. Uses the
proxies of the environment (HTTPS_PROXY, NO_PROXY), except for servers on this machine.
"""

from __future__ import annotations

import functools
import http.client
import io
import socket
import ssl
import urllib.error
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from time import monotonic
from typing import Any

from bus.platform.bounded_files import FILE_BYTES_MAX, FileFault, read_bounded
from bus.records.json_text import parse_strict
from bus.security.oauth.token_settings import DocumentUrl

DOCUMENT_BYTES_MAX = FILE_BYTES_MAX
FETCH_SECONDS_MAX = 10.0
_CHUNK_BYTES = 65_536
_ERROR_BYTES_MAX = 4_096


class DocumentFault(OSError):
    """The document could not be read. `status`: of HTTP, if a server has answered; `body`: the start of its answer."""

    def __init__(self, message: str, status: int | None = None, body: bytes = b"") -> None:
        super().__init__(message)
        self.status = status
        self.body = body


def read_document(
    url: DocumentUrl,
    *,
    form: bytes | None = None,
    headers: Mapping[str, str] | None = None,
    seconds_max: float = FETCH_SECONDS_MAX,
) -> bytes:
    """The whole document. `form`: what to POST, instead of a GET. Raises `DocumentFault`."""
    if url.path is not None:
        return _read_file(url.path)
    request = urllib.request.Request(url.url, form, {"Accept": "application/json", **(headers or {})})
    try:
        return _ask(request, _opener(url), url, seconds_max)
    except urllib.error.HTTPError as error:
        with error:
            raise _refusal(url, error) from None
    except DocumentFault:
        raise
    except (OSError, http.client.HTTPException, ValueError) as error:
        reason = getattr(error, "reason", None) or error
        raise DocumentFault(f"{url}: {_first_line(reason)}") from None


def read_json(url: DocumentUrl, **how: Any) -> Mapping[str, Any]:
    """Raises `DocumentFault`, also for what is no JSON object."""
    try:
        found = parse_strict(read_document(url, **how))
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise DocumentFault(f"{url}: expected a JSON object, found something else")
    return found


def _read_file(path: Path) -> bytes:
    try:
        return read_bounded(path)
    except FileFault as fault:
        raise DocumentFault(f"{path}: {fault}") from None


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: Any, **__: Any) -> None:
        return None


def _opener(url: DocumentUrl) -> urllib.request.OpenerDirector:
    handlers: list[urllib.request.BaseHandler] = [_NoRedirects(), _HttpHandler()]
    if url.is_on_this_machine:
        handlers.append(urllib.request.ProxyHandler({}))
    if url.url.startswith("https:"):
        try:
            context = ssl.create_default_context(cafile=None if url.ca_location is None else str(url.ca_location))
        except (OSError, ssl.SSLError) as error:
            where = url.ca_location or "the authorities of the system"
            raise DocumentFault(f"{where}: expected a PEM file with authorities, {_first_line(error)}") from None
        handlers.append(_HttpsHandler(context))
    return urllib.request.build_opener(*handlers)


def _ask(
    request: urllib.request.Request, opener: urllib.request.OpenerDirector, url: DocumentUrl, seconds_max: float
) -> bytes:
    """Ask the server. The time-out of the socket bounds the way to the server, `_ReadsInTime` everything that it
    sends."""
    with opener.open(request, timeout=seconds_max) as response:
        found = bytearray()
        while chunk := response.read1(_CHUNK_BYTES):
            found += chunk
            if len(found) > DOCUMENT_BYTES_MAX:
                raise DocumentFault(f"{url}: expected at most {DOCUMENT_BYTES_MAX} bytes, found more")
    return bytes(found)


class _ReadsInTime(io.RawIOBase):
    """The bytes that arrive on the socket, until `ends_s`; then it raises `TimeoutError`. A time-out of the socket
    itself would begin again with each byte."""

    def __init__(self, connection: socket.socket, incoming: io.RawIOBase, ends_s: float) -> None:
        super().__init__()
        self._connection = connection
        self._incoming = incoming
        self._ends_s = ends_s

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:
        left_s = self._ends_s - monotonic()
        if left_s <= 0:
            raise TimeoutError("the answer did not end in time")
        self._connection.settimeout(left_s)
        count: int | None = self._incoming.readinto(buffer)
        return count

    def close(self) -> None:
        self._incoming.close()
        super().close()


class _Response(http.client.HTTPResponse):
    """Also that of a proxy."""

    def __init__(self, connection: socket.socket, *arguments: Any, ends_s: float, **more: Any) -> None:
        super().__init__(connection, *arguments, **more)
        self.fp = io.BufferedReader(_ReadsInTime(connection, self.fp.detach(), ends_s))


class _HttpHandler(urllib.request.HTTPHandler):
    def http_open(self, request: urllib.request.Request) -> http.client.HTTPResponse:
        return self.do_open(_new_connection, request)  # type: ignore[arg-type]


class _HttpsHandler(urllib.request.HTTPSHandler):
    def __init__(self, context: ssl.SSLContext) -> None:
        super().__init__(context=context)
        self._trusted = context

    def https_open(self, request: urllib.request.Request) -> http.client.HTTPResponse:
        return self.do_open(_new_secure_connection, request, context=self._trusted)  # type: ignore[arg-type]


def _new_connection(host: str, *, timeout: float) -> http.client.HTTPConnection:
    return _answered_in_time(http.client.HTTPConnection(host, timeout=timeout), timeout)


def _new_secure_connection(host: str, *, timeout: float, context: ssl.SSLContext) -> http.client.HTTPConnection:
    return _answered_in_time(http.client.HTTPSConnection(host, timeout=timeout, context=context), timeout)


def _answered_in_time(connection: http.client.HTTPConnection, seconds_max: float) -> http.client.HTTPConnection:
    """Within `seconds_max` from now on."""
    connection.response_class = functools.partial(_Response, ends_s=monotonic() + seconds_max)  # type: ignore[assignment]
    return connection


def _refusal(url: DocumentUrl, error: urllib.error.HTTPError) -> DocumentFault:
    try:
        body = error.read(_ERROR_BYTES_MAX)
    except (OSError, http.client.HTTPException, ValueError):
        body = b""
    hint = "; redirections are not followed, name the place itself" if 300 <= error.code < 400 else ""
    return DocumentFault(f"{url}: HTTP status {error.code}{hint}", error.code, body)


def _first_line(error: object) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:300]
