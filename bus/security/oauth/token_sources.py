"""Sources of tokens for a client, or for a broker that logs in at another one: a file, a token endpoint, or a function.

Theory of operation. A file is read at each login, because another program writes new tokens to it. A token endpoint is
asked by client_credentials (RFC 6749, 4.4), with a secret or an assertion (RFC 7523); a function is called. The token
of either is used until seven tenths of its lifetime are over; then a new one is requested. If that fails, the earlier
token is used until it expires. Guards these promises: one request is in flight at a time; token, secret and assertion
are in no error, no log line and no `repr`.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote_plus, urlencode

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import load_pem_private_key
from jwt import PyJWS

from bus.errors import BusError, ErrorCode
from bus.platform.bounded_files import FileFault, read_bounded
from bus.platform.reentry import Turn, logger_of
from bus.records.json_text import parse_strict
from bus.security.oauth.documents import FETCH_SECONDS_MAX, DocumentFault, read_json
from bus.security.oauth.token_settings import AssertionSettings, TokenSettings

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
    """Return the client response of OAUTHBEARER (RFC 7628), which carries the token. Raises `NoToken`."""
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


_RSA_BITS_MIN = 2_048
_KEY_SETTING = "sasl_oauthbearer_assertion_private_key_pem"


class AssertionFault(Exception):
    """There is no assertion to show. The message says what was expected."""


def make_assertion(settings: AssertionSettings, now_s: float) -> str:
    """Make the assertion that a client sends to a token endpoint instead of a secret, signed by its key (RFC 7523,
    2.2). The settings are Kafka's (KIP-1139, and KIP-1258 for client credentials); key, template and assertion are read
    for each token, so files may change. `now_s`: seconds since 1970. Raises `AssertionFault`, which names the file and
    what was expected, and contains nothing of a key, a passphrase or an assertion."""
    if settings.file is not None:
        try:
            return check_form(_read(settings.file).decode("utf-8", "replace").strip())
        except NoToken as error:
            raise AssertionFault(f"the assertion in {settings.file}: {error}") from None
    key = _private_key(settings)
    template = {} if settings.template_file is None else _read_template(settings.template_file)
    header = {**template.get("header", {}), "alg": settings.algorithm, "typ": "JWT"}
    payload = json.dumps(_claims(settings, template.get("payload", {}), int(now_s))).encode()
    return PyJWS().encode(payload, key, settings.algorithm, header)


def _claims(settings: AssertionSettings, template: Mapping[str, Any], now_s: int) -> dict[str, Any]:
    """Return the claims. As in Kafka, claims of the template override those of the settings, and times override
    both."""
    claims = {"iss": settings.issuer, "sub": settings.subject, "aud": settings.audience, **template}
    claims |= {"iat": now_s, "exp": now_s + settings.life_s, "nbf": now_s - settings.not_before_s}
    return {**claims, "jti": str(uuid.uuid4())} if settings.has_id else claims


def _private_key(settings: AssertionSettings) -> Any:
    where = _KEY_SETTING if settings.key_file is None else str(settings.key_file)
    content = settings.key_pem.replace("\\n", "\n").encode() if settings.key_file is None else _read(settings.key_file)
    password = settings.passphrase.encode() or None
    try:
        key = load_pem_private_key(content, password)
    except TypeError:
        found = "one that is not encrypted, and a passphrase" if password else "an encrypted one and no passphrase"
        raise AssertionFault(f"{where}: expected a private key, found {found}") from None
    except (ValueError, UnsupportedAlgorithm):
        hint = ", or its passphrase is another one" if password else ""
        raise AssertionFault(f"{where}: expected a private key as PEM; it cannot be read{hint}") from None
    if settings.algorithm == "ES256":
        fault = None if _is_on_p256(key) else "a key on the curve P-256 for ES256, found another one"
    elif not isinstance(key, rsa.RSAPrivateKey):
        fault = f"a key of RSA for {settings.algorithm}, found another one"
    else:
        fault = None if key.key_size >= _RSA_BITS_MIN else f"at least {_RSA_BITS_MIN} bits, found {key.key_size}"
    if fault is not None:
        raise AssertionFault(f"{where}: expected {fault}")
    return key


def _is_on_p256(key: Any) -> bool:
    return isinstance(key, ec.EllipticCurvePrivateKey) and isinstance(key.curve, ec.SECP256R1)


def _read_template(path: Path) -> Mapping[str, Any]:
    try:
        found = parse_strict(_read(path))
    except ValueError:
        found = None
    parts = ("header", "payload")
    if not isinstance(found, dict) or not all(isinstance(found.get(part, {}), dict) for part in parts):
        raise AssertionFault(f'{path}: expected {{"header": {{...}}, "payload": {{...}}}}, found something else')
    if found.keys() - set(parts):
        raise AssertionFault(
            f"{path}: expected header and payload, found {', '.join(sorted(found.keys() - set(parts)))}"
        )
    return found


def _read(path: Path) -> bytes:
    try:
        return read_bounded(path)
    except FileFault as fault:
        raise AssertionFault(f"{path}: {fault}") from None


_log = logger_of(__name__)

# Earlier than sessions are renewed (after 0.75 of their lifetime), so that each renewal has a new token.
_RENEWED_AFTER = 0.7
_RETRY_PAUSE_S = 10.0
_TEXT_LENGTH_MAX = 300
ASSERTION_TYPE = "urn:ietf:params:oauth:client-assertion-type:jwt-bearer"  # RFC 7523, 2.2


@dataclass(frozen=True, slots=True)
class _Token:
    """Times in seconds since 1970. `expires_s` None: unknown."""

    value: str = field(repr=False)
    renewed_at_s: float = 0.0
    expires_s: float | None = None


class TokenSource:
    """Safe to use from several threads. `now_s`: seconds since 1970."""

    def __init__(self, settings: TokenSettings, now_s: Callable[[], float] = time.time) -> None:
        self._settings = settings
        self._now_s = now_s
        self._lock = Turn()
        self._held: _Token | None = None

    def token(self, timeout_ms: float) -> str:
        """The token to log in with. Blocks for the endpoint or the function. Raises `BusError`: NETWORK_EXCEPTION if a
        later attempt may succeed, SASL_AUTHENTICATION_FAILED if not."""
        if self._settings.file is not None:
            return _read_file(self._settings.file)
        seconds_max = min(timeout_ms / 1000, FETCH_SECONDS_MAX)
        if not self._lock.acquire(timeout=seconds_max):
            raise BusError(
                ErrorCode.NETWORK_EXCEPTION, "the token that another login has requested did not come in time"
            )
        try:
            held, now_s = self._held, self._now_s()
            if held is None or now_s >= held.renewed_at_s:
                held = self._renew(held, now_s, seconds_max)
            return held.value
        finally:
            self._lock.release()

    def refuse_here(self) -> None:
        """Raises `CalledInside` for a function that asks, while it is to give a token, for what needs one."""
        self._lock.refuse_here()

    def forget(self, value: str) -> None:
        """Do not use this token again: a broker has refused it."""
        with self._lock:
            if self._held is not None and self._held.value == value:
                self._held = None

    def _renew(self, held: _Token | None, now_s: float, seconds_max: float) -> _Token:
        try:
            value, life_s = self._get(seconds_max)
        except BusError as error:
            if held is None or held.expires_s is None or now_s >= held.expires_s:
                raise
            _log.warning(
                "no new token could be obtained, the earlier one is valid for another %.0f s: %s",
                held.expires_s - now_s,
                error,
            )
            self._held = _Token(held.value, min(now_s + _RETRY_PAUSE_S, held.expires_s), held.expires_s)
            return self._held
        if life_s is None:
            life_s = _claimed_life_s(value, now_s)
        if life_s is None:
            self._held = None
            return _Token(value)
        self._held = _Token(value, now_s + life_s * _RENEWED_AFTER, now_s + life_s)
        return self._held

    def _get(self, seconds_max: float) -> tuple[str, float | None]:
        """A token, and its lifetime in seconds; None: unknown."""
        if self._settings.provider is not None:
            return _ask_provider(self._settings.provider, self._now_s())
        return _ask_endpoint(self._settings, self._now_s(), seconds_max)


# ------------------------------------------------------------ a file


def _read_file(path: Path) -> str:
    try:
        return check_form(_read_text(path))
    except NoToken as error:
        raise _failed(f"the token in {path}: {error}") from None
    except FileFault as fault:
        raise _failed(f"the token cannot be read: {path}: {fault}") from None


def _read_text(path: Path) -> str:
    """Without the blanks around it. Raises `FileFault`."""
    return read_bounded(path).decode("utf-8", "replace").strip()


# ------------------------------------------------------------ a function


def _ask_provider(provider: Callable[[], Any], now_s: float) -> tuple[str, float | None]:
    try:
        found = provider()
    except BusError:
        raise
    except Exception as error:  # a user's
        code = ErrorCode.NETWORK_EXCEPTION if isinstance(error, OSError) else ErrorCode.SASL_AUTHENTICATION_FAILED
        raise BusError(code, f"sasl_oauth_token_provider has failed by {type(error).__name__}") from error
    value, expires_s = found if isinstance(found, tuple) and len(found) == 2 else (found, None)
    is_time = isinstance(expires_s, (int, float)) and not isinstance(expires_s, bool)
    if not isinstance(value, str) or not (expires_s is None or is_time):
        raise _failed(
            "sasl_oauth_token_provider: expected a token, or a token and when it expires in seconds since 1970, found "
            f"{type(found).__name__}"
        )
    return _checked(value, "sasl_oauth_token_provider"), None if expires_s is None else expires_s - now_s


# ------------------------------------------------------------ a token endpoint


def _ask_endpoint(settings: TokenSettings, now_s: float, seconds_max: float) -> tuple[str, float | None]:
    url = settings.url
    assert url is not None, "settings without a provider have a URL"
    form = {"grant_type": "client_credentials"} | ({"scope": settings.scope} if settings.scope else {})
    headers = {"Content-Type": "application/x-www-form-urlencoded"}
    if settings.assertion is not None:
        secret = _assertion(settings.assertion, now_s)
        form |= {"client_assertion_type": ASSERTION_TYPE, "client_assertion": secret}
        form |= {"client_id": settings.client_id} if settings.client_id else {}
    else:
        secret = _secret(settings)
        headers["Authorization"] = f"Basic {_basic(settings, secret)}"
    try:
        answer = read_json(url, form=urlencode(form).encode(), headers=headers, seconds_max=seconds_max)
    except DocumentFault as fault:
        raise _endpoint_error(fault, secret) from None
    value, kind, life_s = answer.get("access_token"), answer.get("token_type", "Bearer"), answer.get("expires_in")
    if not isinstance(value, str) or not isinstance(kind, str) or kind.lower() != "bearer":
        raise _failed(f"{url}: expected an access_token of the type Bearer, found none")
    return _checked(value, str(url)), _life_s(life_s)


def _assertion(settings: AssertionSettings, now_s: float) -> str:

    try:
        found = make_assertion(settings, now_s)
    except AssertionFault as fault:
        raise _failed(f"there is no assertion to ask for a token with: {fault}") from None
    life_s = _claimed_life_s(found, now_s)
    if life_s is not None and life_s <= 0:
        raise _failed(f"the assertion in {settings.file} has expired {-life_s:.0f} s ago (exp)")
    return found


def _secret(settings: TokenSettings) -> str:
    if settings.client_secret_file is None:
        return settings.client_secret
    try:
        return _read_text(settings.client_secret_file)
    except FileFault as fault:
        raise _failed(f"the secret cannot be read: {settings.client_secret_file}: {fault}") from None


def _basic(settings: TokenSettings, secret: str) -> str:
    encode = quote_plus if settings.encodes_header else str
    return base64.b64encode(f"{encode(settings.client_id)}:{encode(secret)}".encode()).decode()


def _life_s(found: Any) -> float | None:
    """Some providers send it as a string."""
    try:
        life_s = float(found)
    except (TypeError, ValueError, OverflowError):
        return None
    return life_s if 0 <= life_s < 1e9 else None


def _endpoint_error(fault: DocumentFault, secret: str) -> BusError:
    """HTTP 4xx is final, except for a time-out (408) and too many requests (429)."""
    is_final = fault.status is not None and 400 <= fault.status < 500 and fault.status not in (408, 429)
    code = ErrorCode.SASL_AUTHENTICATION_FAILED if is_final else ErrorCode.NETWORK_EXCEPTION
    said = _said(fault.body)
    hidden = not said or (bool(secret) and secret in said)
    shown = "" if hidden else f": {said[:_TEXT_LENGTH_MAX]}"
    return BusError(code, f"no token could be obtained: {fault}{shown}")


def _said(body: bytes) -> str:
    """Error and description of RFC 6749, 5.2; empty: there is none."""
    try:
        found = parse_strict(body)
    except ValueError:
        return ""
    if not isinstance(found, Mapping):
        return ""
    parts = [found.get("error"), found.get("error_description")]
    text = " ".join(part for part in parts if isinstance(part, str))
    return "".join(character if character.isprintable() else " " for character in text)


# ------------------------------------------------------------ tokens


def _checked(value: str, where: str) -> str:
    try:
        return check_form(value)
    except NoToken as error:
        raise _failed(f"{where}: {error}") from None


def _claimed_life_s(token: str, now_s: float) -> float | None:
    """The lifetime that a JSON Web Token claims (exp), not verified: the broker does that. None: it claims none."""
    parts = token.split(".")
    if len(parts) != 3:
        return None
    try:
        claims = parse_strict(base64.urlsafe_b64decode(parts[1] + "=" * (-len(parts[1]) % 4)))
    except (ValueError, binascii.Error):
        return None
    expires_s = claims.get("exp") if isinstance(claims, dict) else None
    if not isinstance(expires_s, (int, float)) or isinstance(expires_s, bool) or not abs(expires_s) < 1e12:
        return None
    return expires_s - now_s


def _failed(message: str) -> BusError:
    return BusError(ErrorCode.SASL_AUTHENTICATION_FAILED, message)
