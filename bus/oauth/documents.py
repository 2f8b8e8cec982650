"""Reads documents of an identity provider: file://, https://, and http:// if it is allowed.

Guards these promises: a document is bounded in size; a server that sends nothing for a while is given up; certificates
are always verified; redirections are refused, because they could lead to a server that is not configured; no error
contains what was sent. Blocks, so it is for a thread. Uses the proxies of the environment (HTTPS_PROXY, NO_PROXY),
except for servers on this machine.
"""

from __future__ import annotations

import http.client
import json
import ssl
import urllib.error
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from time import monotonic
from typing import Any

from bus.oauth.urls import DocumentUrl

DOCUMENT_BYTES_MAX = 1 << 20
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
        return _ask(request, _opener(url), seconds_max)
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
        found = json.loads(read_document(url, **how))
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise DocumentFault(f"{url}: expected a JSON object, found something else")
    return found


def _read_file(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            found = file.read(DOCUMENT_BYTES_MAX + 1)
    except OSError as error:
        raise DocumentFault(f"{path}: {error.strerror or type(error).__name__}") from None
    return _bounded(found, str(path))


def _bounded(found: bytes, where: str) -> bytes:
    if len(found) > DOCUMENT_BYTES_MAX:
        raise DocumentFault(f"{where}: expected at most {DOCUMENT_BYTES_MAX} bytes, found more")
    return found


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: Any, **__: Any) -> None:
        return None


def _opener(url: DocumentUrl) -> urllib.request.OpenerDirector:
    handlers: list[urllib.request.BaseHandler] = [_NoRedirects()]
    if url.is_on_this_machine:
        handlers.append(urllib.request.ProxyHandler({}))
    if url.url.startswith("https:"):
        try:
            context = ssl.create_default_context(cafile=None if url.ca_location is None else str(url.ca_location))
        except (OSError, ssl.SSLError) as error:
            where = url.ca_location or "the authorities of the system"
            raise DocumentFault(f"{where}: expected a PEM file with authorities, {_first_line(error)}") from None
        handlers.append(urllib.request.HTTPSHandler(context=context))
    return urllib.request.build_opener(*handlers)


def _ask(request: urllib.request.Request, opener: urllib.request.OpenerDirector, seconds_max: float) -> bytes:
    """The time-out of the socket bounds each read, `ends_s` all of them."""
    ends_s = monotonic() + seconds_max
    with opener.open(request, timeout=seconds_max) as response:
        found = bytearray()
        while chunk := response.read1(_CHUNK_BYTES):
            found += chunk
            if len(found) > DOCUMENT_BYTES_MAX:
                break
            if monotonic() > ends_s:
                raise TimeoutError(f"the document did not end within {seconds_max:.0f} s")
    return _bounded(bytes(found), request.full_url.partition("?")[0])


def _refusal(url: DocumentUrl, error: urllib.error.HTTPError) -> DocumentFault:
    try:
        body = error.read(_ERROR_BYTES_MAX)
    except (OSError, http.client.HTTPException, ValueError):
        body = b""
    hint = "; redirections are not followed, name the place itself" if 300 <= error.code < 400 else ""
    return DocumentFault(f"{url}: HTTP status {error.code}{hint}", error.code, body)


def _first_line(error: object) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:300]
