"""Settings that say where a client gets its token."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bus.security.oauth.urls import DocumentUrl


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
