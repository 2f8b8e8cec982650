"""What a client shows to a token endpoint in place of a secret: an assertion that its key has signed (RFC 7523, 2.2).

The settings are Kafka's (KIP-1139, and KIP-1258 for client credentials). Key, template and assertion are read for each
token, so files may change. Guards one promise: an error names the file and what was expected, and has nothing of a key,
a passphrase or an assertion in it.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import load_pem_private_key
from jwt import PyJWS

from bus.bounded_files import FileFault, read_bounded
from bus.oauth.messages import NoToken, check_form
from bus.oauth.token_settings import AssertionSettings
from bus.records.json_text import parse_strict

_RSA_BITS_MIN = 2_048
_KEY_SETTING = "sasl_oauthbearer_assertion_private_key_pem"


class AssertionFault(Exception):
    """There is no assertion to show. The message says what was expected."""


def make_assertion(settings: AssertionSettings, now_s: float) -> str:
    """`now_s`: seconds since 1970. Raises `AssertionFault`."""
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
    """As in Kafka, claims of the template win over those of settings, and times over both."""
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
