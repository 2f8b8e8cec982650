"""The client response of OAUTHBEARER (RFC 7628), which carries the token."""

from __future__ import annotations

import re

# The characters of a token (RFC 6750, b64token): none of them ends the message or a header.
_TOKEN = re.compile(r"[A-Za-z0-9._~+/-]+=*", re.ASCII)
_RESPONSE = re.compile(rb"(?:n|y),(?:a=([^,\x00]*))?,\x01((?:[A-Za-z]+=[^\x00\x01]*\x01)*)\x01")
_MESSAGE_BYTES_MAX = 65_536


class NoToken(ValueError):
    """The message has no token. Says what was expected, and nothing of what was found."""


def check_form(token: str) -> str:
    """The token, if it is one by its form. Raises `NoToken`."""
    if _TOKEN.fullmatch(token) is None:
        raise NoToken("expected a token of letters, digits and -._~+/, with = at its end only")
    return token


def client_response(token: str) -> bytes:
    """Raises `NoToken`."""
    return f"n,,\x01auth=Bearer {check_form(token)}\x01\x01".encode()


def parse_client_response(message: bytes) -> str:
    """The token. Extensions (KIP-342) are ignored. Raises `NoToken`."""
    found = _RESPONSE.fullmatch(message) if len(message) <= _MESSAGE_BYTES_MAX else None
    if found is None:
        raise NoToken("expected a client response of RFC 7628: n,,^Aauth=Bearer TOKEN^A^A")
    if found[1]:
        raise NoToken("expected no authorization identity (a=): the principal is that of the token")
    values = [pair.partition(b"=")[2] for pair in found[2].split(b"\x01") if pair.startswith(b"auth=")]
    if len(values) != 1:
        raise NoToken("expected one auth=Bearer TOKEN")
    kind, _, token = values[0].decode("ascii", "replace").partition(" ")
    if kind.lower() != "bearer":
        raise NoToken("expected the kind Bearer in auth=")
    return check_form(token.strip(" "))
