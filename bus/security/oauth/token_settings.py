"""Settings that say where a client gets its token, and URLs of documents of an identity provider, with the rule which
of them are allowed."""

from __future__ import annotations

import ipaddress
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

_SCHEMES = ("https", "http", "file")


@dataclass(frozen=True, slots=True)
class DocumentUrl:
    """`path`: of file://. `ca_location`: PEM file with the authorities to trust; None: those of the system."""

    url: str = field(repr=False)
    path: Path | None = None
    ca_location: Path | None = None

    @property
    def is_on_this_machine(self) -> bool:
        return self.path is not None or _is_loopback(urlsplit(self.url).hostname or "")

    def __str__(self) -> str:
        return shown_url(self.url)


def parse_url(text: str, *, ca_location: str = "", allows_insecure: bool = False) -> DocumentUrl:
    """Raises `ValueError`, which says what was expected. `allows_insecure`: http:// for other machines."""
    try:
        parts = urlsplit(text)
        parts.port  # noqa: B018  raises
    except ValueError:
        raise ValueError("a URL, https://HOST/PATH or file:///PATH") from None
    if parts.scheme not in _SCHEMES or (parts.scheme != "file" and not parts.hostname):
        raise ValueError("a URL, https://HOST/PATH or file:///PATH")
    if parts.username is not None or parts.password is not None:
        raise ValueError("a URL without a name and a password in it")
    if parts.scheme == "file":
        if parts.hostname not in (None, "localhost") or not parts.path.startswith("/"):
            raise ValueError("a file as file:///PATH, with its whole path")
        return DocumentUrl(text, Path(unquote(parts.path)))
    if any(character <= " " or character == "\x7f" for character in text):
        # The library that asks would refuse it with all of it in the error.
        raise ValueError("a URL without blanks and control characters")
    if parts.scheme == "http" and not _is_loopback(parts.hostname or "") and not allows_insecure:
        raise ValueError("https://, or sasl.oauthbearer.allow.insecure.urls=true if the network can be trusted")
    return DocumentUrl(text, None, Path(ca_location).expanduser() if ca_location else None)


def shown_url(text: str) -> str:
    """Return the part of a URL that an error, a log or an answer may repeat: no query and no fragment, which may be
    secret; if the URL has an @, behind a possible password, only the scheme."""
    if "@" in text:
        scheme, separator, _ = text.partition("://")
        return f"{scheme}://..." if separator else "..."
    return text.partition("?")[0].partition("#")[0]


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"


@dataclass(frozen=True, slots=True)
class AssertionSettings:
    """The assertion that a client sends instead of a secret. Either `file`, with a ready-made assertion, or `key_file`
    or `key_pem`, which signs one for each token; it is valid from `not_before_s` before it is made until `life_s` after
    that."""

    file: Path | None = None
    key_file: Path | None = None
    key_pem: str = field(default="", repr=False)
    passphrase: str = field(default="", repr=False)
    template_file: Path | None = None
    algorithm: str = "RS256"
    issuer: str = ""
    subject: str = ""
    audience: str = ""
    life_s: int = 300
    not_before_s: int = 60
    has_id: bool = True  # a claim (jti) by which a provider knows one that is shown twice


@dataclass(frozen=True, slots=True)
class TokenSettings:
    """Either `url`, of a file with a token or of a token endpoint, or `provider`, a function that returns a token, or a
    token and its time of expiry in seconds since 1970. The other fields are for a token endpoint; `client_secret_file`
    is read for each token."""

    url: DocumentUrl | None = None
    provider: Callable[[], Any] | None = field(default=None, repr=False)
    client_id: str = ""
    client_secret: str = field(default="", repr=False)
    client_secret_file: Path | None = None
    assertion: AssertionSettings | None = None  # replaces the secret
    scope: str = ""
    encodes_header: bool = False  # whether id and secret are sent URL-encoded (RFC 6749, 2.3.1)

    @property
    def file(self) -> Path | None:
        return None if self.url is None else self.url.path
