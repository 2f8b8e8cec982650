"""The settings of a client that say where its token for OAUTHBEARER comes from.

Kafka's names, librdkafka's and the options of a line of JAAS mean the same. A client secret that no source of settings
has is taken from the environment alone (`SECRET_VARIABLE`): so a job of Spark can name the other settings, and its
options have no secret.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from pathlib import Path

from bus.client.config.clients import SecurityConfig
from bus.client.config.values import conflict
from bus.security.oauth.token_settings import AssertionSettings, DocumentUrl, TokenSettings, parse_url, shown_url

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


def has_assertion(config: SecurityConfig) -> bool:
    return any(getattr(config, name) for name in ASSERTION_SOURCES)


def check_assertion(config: SecurityConfig, used: Collection[str]) -> None:
    """Refuse settings of an assertion, which a client shows to its token endpoint in place of a secret
    (private_key_jwt), that contradict each other or would do nothing. The names are Kafka's (KIP-1139, KIP-1258) and
    librdkafka's. `used`: the settings that were given a value. Raises `BusError` INVALID_CONFIG."""
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


def assertion_of(config: SecurityConfig, client_id: str, endpoint: str) -> AssertionSettings | None:
    """Return the assertion of checked settings; None: they have none. Raises `BusError` INVALID_CONFIG."""
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


SECRET_VARIABLE = "BUS_SASL_OAUTHBEARER_CLIENT_SECRET"
PLACE_SETTINGS = ("sasl_oauthbearer_token_endpoint_url", "sasl_oauth_token_provider")
CLIENT_ID_SETTINGS = ("sasl_oauthbearer_client_id", "sasl_oauthbearer_client_credentials_client_id")
CLIENT_SECRET_SETTINGS = ("sasl_oauthbearer_client_secret", "sasl_oauthbearer_client_credentials_client_secret")
_SECRET_FILE = "sasl_oauthbearer_client_secret_file"


def is_token_setting(name: str) -> bool:
    """True if the setting is meaningful for OAUTHBEARER only."""
    return name.startswith(("sasl_oauth", "https_"))


def tokens_of(config: SecurityConfig, options: Mapping[str, str]) -> TokenSettings:
    """Raises `BusError` INVALID_CONFIG. `options`: of JAAS."""
    if config.sasl_username or config.sasl_password:
        raise conflict("sasl_username and sasl_password: by OAUTHBEARER expected a token, found a name or a password")
    provider, url = config.sasl_oauth_token_provider, config.sasl_oauthbearer_token_endpoint_url
    if (provider is None) == (not url):
        found = "both" if url else "none"
        raise conflict(
            "expected either sasl_oauthbearer_token_endpoint_url, of a token endpoint or (file://) of a file with a "
            f"token, or sasl_oauth_token_provider, found {found}"
        )
    document = None if provider is not None else _document_url(config, url)
    if document is not None and document.path is None:
        return _client_credentials(config, document, options)
    if has_assertion(config):
        name = next(name for name in ASSERTION_SOURCES if getattr(config, name))
        raise conflict(f"{name}: expected the URL of a token endpoint beside it, found another place of tokens")
    return TokenSettings(document, provider)


def environment_secret(config: SecurityConfig, options: Mapping[str, str]) -> dict[str, str]:
    """The setting that the environment has in place of a secret that is missing; empty: none is missing, or there."""
    secret_file, found = config.sasl_oauthbearer_client_secret_file, os.environ.get(SECRET_VARIABLE, "")
    if (
        not found
        or secret_file
        or has_assertion(config)
        or _single(config, CLIENT_SECRET_SETTINGS, options.get("clientSecret", ""))
    ):
        return {}
    return {CLIENT_SECRET_SETTINGS[0]: found}


def _document_url(config: SecurityConfig, url: str) -> DocumentUrl:
    try:
        return parse_url(
            url, ca_location=config.https_ca_location, allows_insecure=config.sasl_oauthbearer_allow_insecure_urls
        )
    except ValueError as expected:
        raise conflict(f"sasl_oauthbearer_token_endpoint_url: expected {expected}, found {shown_url(url)!r}") from None


def _client_credentials(config: SecurityConfig, url: DocumentUrl, options: Mapping[str, str]) -> TokenSettings:
    client_id = _single(config, CLIENT_ID_SETTINGS, options.get("clientId", ""))
    client_secret = _single(config, CLIENT_SECRET_SETTINGS, options.get("clientSecret", ""))
    scope = _single(config, ("sasl_oauthbearer_scope",), options.get("scope", ""))
    secret_file = config.sasl_oauthbearer_client_secret_file
    if client_secret and secret_file:
        raise conflict(f"expected either {CLIENT_SECRET_SETTINGS[0]} or {_SECRET_FILE}, found both")
    assertion = assertion_of(config, client_id, url.url)
    if assertion is not None:
        if client_secret or secret_file:
            raise conflict("expected either a client secret or sasl_oauthbearer_assertion_..., found both")
        return TokenSettings(url, client_id=client_id, scope=scope, assertion=assertion)
    if not client_id or not (client_secret or secret_file):
        raise conflict(
            f"expected {CLIENT_ID_SETTINGS[0]} and {CLIENT_SECRET_SETTINGS[0]} (or {_SECRET_FILE}, or "
            f"{ASSERTION_SOURCES[1]}, or in the environment {SECRET_VARIABLE}), found "
            f"{'no id' if not client_id else 'no secret'}"
        )
    if ":" in client_id and not config.sasl_oauthbearer_header_urlencode:
        raise conflict(f"{CLIENT_ID_SETTINGS[0]}: expected sasl_oauthbearer_header_urlencode=true for one with a colon")
    return TokenSettings(
        url,
        client_id=client_id,
        client_secret=client_secret,
        client_secret_file=Path(secret_file).expanduser() if secret_file else None,
        scope=scope,
        encodes_header=config.sasl_oauthbearer_header_urlencode,
    )


def _single(config: SecurityConfig, names: tuple[str, ...], option: str) -> str:
    """The value that one or more of the spellings have. Empty: none has one."""
    found = {value for value in (*(getattr(config, name) for name in names), option) if value}
    if len(found) > 1:
        raise conflict(
            f"{names[0]}: expected one value, found different ones, by its other name or in sasl_jaas_config"
        )
    return found.pop() if found else ""
