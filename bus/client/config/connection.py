"""The settings that all clients share: how they reach brokers and how they try again.

They connect in the clear or by TLS, with a certificate of their own, a login, or neither. The names are Kafka's and
librdkafka's. What several settings say together is checked in `security` and `tokens`.
"""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import Any

from bus.client.config import values
from bus.client.config.values import ANY_MILLISECONDS, SOME_MILLISECONDS, boolean, integer, setting, text
from bus.model import PLAINTEXT, SASL_PLAINTEXT, SASL_SSL, SSL
from bus.security.scram import ABSENT_MECHANISMS, MECHANISMS, parse_jaas

_PROTOCOLS = (PLAINTEXT, SSL, SASL_PLAINTEXT, SASL_SSL)
_ASSERTION_ALGORITHMS = ("RS256", "PS256", "ES256")


def protocol(value: Any) -> str:
    if isinstance(value, str) and value.upper() in _PROTOCOLS:
        return value.upper()
    raise ValueError(f"one of {', '.join(_PROTOCOLS)}")


def mechanism(value: Any) -> str:
    if isinstance(value, str) and value.upper() in ("", *MECHANISMS):
        return value.upper()
    reason = ABSENT_MECHANISMS.get(value.upper(), "") if isinstance(value, str) else ""
    raise ValueError(f"one of {', '.join(MECHANISMS)}{f' ({reason})' if reason else ''}")


def pem(value: Any) -> str:
    if not isinstance(value, str) or value.upper() not in ("", "PEM"):
        raise ValueError("PEM, as there are no Java keystores here")
    return value.upper()


def jaas(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError("a text")
    if value:
        parse_jaas(value)
    return value


def algorithm(value: Any) -> str:
    if isinstance(value, str) and value.upper() in _ASSERTION_ALGORITHMS:
        return value.upper()
    raise ValueError(f"one of {', '.join(_ASSERTION_ALGORITHMS)}")


def oauth_method(value: Any) -> str:
    """librdkafka's other one, default, makes unsigned tokens."""
    if isinstance(value, str) and value.lower() in ("", "oidc"):
        return value.lower()
    raise ValueError("oidc")


def token_provider(value: Any) -> Any:
    if value is None or value == "":
        return None
    if isinstance(value, type) or not callable(value) or inspect.iscoroutinefunction(value):
        raise ValueError("a function, not a coroutine, that returns a token, or a token and when it expires")
    return value


@dataclass(frozen=True, slots=True)
class SecurityConfig:
    """The settings of every client that are about its connections."""

    security_protocol: str = setting(PLAINTEXT, protocol)
    ssl_ca_location: str = setting("", text)
    ssl_truststore_location: str = setting("", text)
    ssl_certificate_location: str = setting("", text)
    ssl_key_location: str = setting("", text)
    ssl_keystore_location: str = setting("", text)
    ssl_ca_pem: str = setting("", text, is_secret=True)
    ssl_truststore_certificates: str = setting("", text, is_secret=True)
    ssl_certificate_pem: str = setting("", text, is_secret=True)
    ssl_keystore_certificate_chain: str = setting("", text, is_secret=True)
    ssl_key_pem: str = setting("", text, is_secret=True)
    ssl_keystore_key: str = setting("", text, is_secret=True)
    ssl_keystore_type: str = setting("", pem)
    ssl_truststore_type: str = setting("", pem)
    ssl_key_password: str = setting("", text, is_secret=True)
    ssl_key_password_file: str = setting("", text)
    sasl_mechanism: str = setting("", mechanism)
    sasl_mechanisms: str = setting("", mechanism)
    sasl_username: str = setting("", text)
    sasl_password: str = setting("", text, is_secret=True)
    sasl_password_file: str = setting("", text)
    sasl_jaas_config: str = setting("", jaas, is_secret=True)
    sasl_oauthbearer_method: str = setting("", oauth_method)
    sasl_oauthbearer_token_endpoint_url: str = setting("", text, is_secret=True)  # its query may be
    sasl_oauthbearer_client_id: str = setting("", text)
    sasl_oauthbearer_client_credentials_client_id: str = setting("", text)
    sasl_oauthbearer_client_secret: str = setting("", text, is_secret=True)
    sasl_oauthbearer_client_credentials_client_secret: str = setting("", text, is_secret=True)
    sasl_oauthbearer_client_secret_file: str = setting("", text)
    sasl_oauthbearer_assertion_file: str = setting("", text)
    sasl_oauthbearer_assertion_private_key_file: str = setting("", text)
    sasl_oauthbearer_assertion_private_key_pem: str = setting("", text, is_secret=True)
    sasl_oauthbearer_assertion_private_key_passphrase: str = setting("", text, is_secret=True)
    sasl_oauthbearer_assertion_algorithm: str = setting("RS256", algorithm)
    sasl_oauthbearer_assertion_claim_aud: str = setting("", text)
    sasl_oauthbearer_assertion_claim_iss: str = setting("", text)
    sasl_oauthbearer_assertion_claim_sub: str = setting("", text)
    sasl_oauthbearer_assertion_claim_exp_seconds: int = setting(300, integer(1))
    sasl_oauthbearer_assertion_claim_nbf_seconds: int = setting(60, integer(0))
    sasl_oauthbearer_assertion_claim_jti_include: bool = setting(True, boolean)
    sasl_oauthbearer_assertion_template_file: str = setting("", text)
    sasl_oauthbearer_assertion_jwt_template_file: str = setting("", text)
    sasl_oauthbearer_scope: str = setting("", text)
    sasl_oauthbearer_header_urlencode: bool = setting(False, boolean)
    sasl_oauthbearer_allow_insecure_urls: bool = setting(False, boolean)
    https_ca_location: str = setting("", text)
    sasl_oauth_token_provider: Any = setting(None, token_provider, is_secret=True)


@dataclass(frozen=True, slots=True)
class ConnectionConfig(SecurityConfig):
    """Each kind of client has a `client_id` of its own by default. `profile`, of `config_file`: see `profiles`."""

    profile: str = setting("", values.text)
    config_file: str = setting("", values.path, typed="str | os.PathLike[str]")
    client_id: str = setting("", values.client_id)
    request_timeout_ms: int = setting(30_000, SOME_MILLISECONDS)
    retry_backoff_ms: int = setting(100, ANY_MILLISECONDS)
    retry_backoff_max_ms: int = setting(1_000, ANY_MILLISECONDS)
    reconnect_backoff_ms: int = setting(50, SOME_MILLISECONDS)
    reconnect_backoff_max_ms: int = setting(1_000, SOME_MILLISECONDS)
    metadata_max_age_ms: int = setting(300_000, ANY_MILLISECONDS)
    enable_http_proxy: bool = setting(False, values.boolean)  # http_proxy and similar variables of the environment
