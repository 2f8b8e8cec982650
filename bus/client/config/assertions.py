"""The settings of a client that shows an assertion to its token endpoint in place of a secret: private_key_jwt.

The names are Kafka's (KIP-1139, KIP-1258) and librdkafka's. Guards one promise: settings that contradict each other or
would do nothing are refused.
"""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Any, Protocol

from bus.client.config.values import conflict
from bus.oauth.token_settings import AssertionSettings

ASSERTION_ALGORITHMS = ("RS256", "PS256", "ES256")
_PREFIX = "sasl_oauthbearer_assertion_"
_FILE = f"{_PREFIX}file"
_KEY_FILE = f"{_PREFIX}private_key_file"
_KEY_PEM = f"{_PREFIX}private_key_pem"
TEMPLATE_SETTINGS = (f"{_PREFIX}template_file", f"{_PREFIX}jwt_template_file")
# Each of them is what an assertion is or is made from.
ASSERTION_SOURCES = (_FILE, _KEY_FILE, _KEY_PEM)
_MADE_WITH = (
    f"{_PREFIX}private_key_passphrase",
    f"{_PREFIX}algorithm",
    *(f"{_PREFIX}claim_{claim}" for claim in ("aud", "iss", "sub", "exp_seconds", "nbf_seconds", "jti_include")),
    *TEMPLATE_SETTINGS,
)
ASSERTION_SETTINGS = (*ASSERTION_SOURCES, *_MADE_WITH)


class AssertionConfig(Protocol):
    """What is read of the settings of a client."""

    @property
    def sasl_oauthbearer_assertion_file(self) -> str: ...
    @property
    def sasl_oauthbearer_assertion_private_key_file(self) -> str: ...
    @property
    def sasl_oauthbearer_assertion_private_key_pem(self) -> str: ...
    @property
    def sasl_oauthbearer_assertion_private_key_passphrase(self) -> str: ...
    @property
    def sasl_oauthbearer_assertion_algorithm(self) -> str: ...
    @property
    def sasl_oauthbearer_assertion_claim_aud(self) -> str: ...
    @property
    def sasl_oauthbearer_assertion_claim_iss(self) -> str: ...
    @property
    def sasl_oauthbearer_assertion_claim_sub(self) -> str: ...
    @property
    def sasl_oauthbearer_assertion_claim_exp_seconds(self) -> int: ...
    @property
    def sasl_oauthbearer_assertion_claim_nbf_seconds(self) -> int: ...
    @property
    def sasl_oauthbearer_assertion_claim_jti_include(self) -> bool: ...


def algorithm(value: Any) -> str:
    if isinstance(value, str) and value.upper() in ASSERTION_ALGORITHMS:
        return value.upper()
    raise ValueError(f"one of {', '.join(ASSERTION_ALGORITHMS)}")


def has_assertion(config: AssertionConfig) -> bool:
    return any(getattr(config, name) for name in ASSERTION_SOURCES)


def check_assertion(config: AssertionConfig, used: Collection[str]) -> None:
    """`used`: the settings that were given a value. Raises `BusError` INVALID_CONFIG."""
    sources = [name for name in ASSERTION_SOURCES if getattr(config, name)]
    if len(sources) > 1:
        raise conflict(f"expected either {sources[0]} or {sources[1]}, found both")
    useless = [name for name in _MADE_WITH if name in used]
    if useless and sources != [_KEY_FILE] and sources != [_KEY_PEM]:
        found = f"found {sources[0]}" if sources else "found none"
        raise conflict(f"{useless[0]}: expected {_KEY_FILE} or {_KEY_PEM} beside it, {found}")
    templates = [name for name in TEMPLATE_SETTINGS if getattr(config, name)]
    if len({getattr(config, name) for name in templates}) > 1:
        raise conflict(f"expected {templates[0]} or {templates[1]}, which mean the same, found two files")


def assertion_of(config: AssertionConfig, client_id: str, endpoint: str) -> AssertionSettings | None:
    """Of settings that were checked; None: they have none. Raises `BusError` INVALID_CONFIG."""
    if config.sasl_oauthbearer_assertion_file:
        return AssertionSettings(file=_path(config.sasl_oauthbearer_assertion_file))
    if not has_assertion(config):
        return None
    issuer = config.sasl_oauthbearer_assertion_claim_iss or client_id
    subject = config.sasl_oauthbearer_assertion_claim_sub or client_id
    if not issuer or not subject:
        raise conflict(
            f"expected sasl_oauthbearer_client_id beside {_KEY_FILE} or {_KEY_PEM}, or the claims "
            f"{_PREFIX}claim_iss and {_PREFIX}claim_sub; found no id"
        )
    return AssertionSettings(
        key_file=_path(config.sasl_oauthbearer_assertion_private_key_file),
        key_pem=config.sasl_oauthbearer_assertion_private_key_pem,
        passphrase=config.sasl_oauthbearer_assertion_private_key_passphrase,
        template_file=_path(next(filter(None, (getattr(config, name) for name in TEMPLATE_SETTINGS)), "")),
        algorithm=config.sasl_oauthbearer_assertion_algorithm,
        issuer=issuer,
        subject=subject,
        audience=config.sasl_oauthbearer_assertion_claim_aud or endpoint,
        life_s=config.sasl_oauthbearer_assertion_claim_exp_seconds,
        not_before_s=config.sasl_oauthbearer_assertion_claim_nbf_seconds,
        has_id=config.sasl_oauthbearer_assertion_claim_jti_include,
    )


def _path(text: str) -> Path | None:
    return Path(text).expanduser() if text else None
