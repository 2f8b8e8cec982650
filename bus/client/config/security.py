"""The checks of what settings of a connection say together: its protocol, its keys and certificates, its login.

The settings are in `clients`; where those come from that a program does not give is in `sources`. Guards one
promise: settings that contradict each other, or would do nothing, are refused before any connection is made, and no
password is in an error or a `repr`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

from bus.client.config.clients import SecurityConfig
from bus.client.config.tokens import check_assertion, environment_secret, is_token_setting, tokens_of
from bus.client.config.values import conflict
from bus.errors import count_of, did_you_mean, near_names
from bus.model import PLAINTEXT, SASL_PROTOCOLS, TLS_PROTOCOLS, InlinePem, KeyFiles
from bus.platform.bounded_files import FileFault, read_bounded_text
from bus.security.oauth.token_settings import TokenSettings
from bus.security.scram import ABSENT_MECHANISMS, MECHANISMS, OAUTHBEARER, PLAIN, parse_jaas, prepared
from bus.settings.keys import AbsentKeys, keys_of

ConfigT = TypeVar("ConfigT", bound=SecurityConfig)


@dataclass(frozen=True, slots=True)
class ClientLogin:
    """A login by name and password."""

    mechanism: str
    name: str
    password: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class TokenLogin:
    """A login by OAUTHBEARER."""

    tokens: TokenSettings


@dataclass(frozen=True, slots=True)
class Security:
    """`files` have an effect with TLS only, `login` with SASL."""

    protocol: str = PLAINTEXT
    files: KeyFiles = field(default_factory=KeyFiles)
    login: ClientLogin | TokenLogin | None = None

    @property
    def has_tls(self) -> bool:
        return self.protocol in TLS_PROTOCOLS


_KEYS = keys_of(SecurityConfig, "_")
SECURITY_SETTINGS = tuple(_KEYS)
# Their values are in no `repr` and no error; those of SECRET_SETTINGS belong into no file that others may read.
HIDDEN_SETTINGS = frozenset(name for name, key in _KEYS.items() if key.is_secret)
TRUSTED_SETTINGS = ("ssl_ca_location", "ssl_truststore_location", "ssl_ca_pem", "ssl_truststore_certificates")
CERTIFICATE_SETTINGS = ("ssl_certificate_location", "ssl_certificate_pem", "ssl_keystore_certificate_chain")
KEY_SETTINGS = ("ssl_key_location", "ssl_key_pem", "ssl_keystore_key")
SECRET_SETTINGS = HIDDEN_SETTINGS - {*TRUSTED_SETTINGS, *CERTIFICATE_SETTINGS}
# Those that name a file.
FILE_SETTINGS = frozenset(name for name in SECURITY_SETTINGS if name.endswith(("_location", "_file")))
# A file that holds a secret -> the setting that it stands for.
PASSWORD_FILES = {"sasl_password_file": "sasl_password", "ssl_key_password_file": "ssl_key_password"}
_OWN_SETTINGS = frozenset({*SECURITY_SETTINGS, "profile"})


def security_settings(config: SecurityConfig, given: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Return the settings for a client that works on behalf of one with `config`: it reaches the same brokers in the
    same way, unless `given`, its own settings, name any of these."""
    if any(name in _OWN_SETTINGS for name in given or ()):
        return {}
    return {name: getattr(config, name) for name in SECURITY_SETTINGS}


def check_security(config: SecurityConfig, given: Collection[str]) -> None:
    """Raises `BusError` INVALID_CONFIG, without anything secret."""
    used = [name for name, key in _KEYS.items() if name in given and getattr(config, name) != key.default]
    _check_use(config, used, "ssl_", TLS_PROTOCOLS)
    _check_use(config, used, "sasl_", SASL_PROTOCOLS)
    _check_token_use(config, used)
    check_assertion(config, used)
    _one_of(config, TRUSTED_SETTINGS)
    parts = [name for name in (_one_of(config, CERTIFICATE_SETTINGS), _one_of(config, KEY_SETTINGS)) if name]
    if config.ssl_keystore_location and parts:
        raise conflict(f"expected either ssl_keystore_location, with key and certificate, or {parts[0]}, found both")
    if len(parts) == 1:
        missing = "private key" if parts[0] in CERTIFICATE_SETTINGS else "certificate"
        raise conflict(f"expected a {missing} beside {parts[0]}, found none")
    for file_setting, stands_for in PASSWORD_FILES.items():
        if getattr(config, file_setting) and getattr(config, stands_for):
            raise conflict(f"expected either {file_setting} or {stands_for}, found both")


def _one_of(config: SecurityConfig, names: Collection[str]) -> str:
    """The name of the one that is given; empty if none is. Two spellings may say the same."""
    found = [name for name in names if getattr(config, name)]
    for name in found[1:]:
        if getattr(config, name) != getattr(config, found[0]) or _is_path(name) != _is_path(found[0]):
            raise conflict(f"expected either {found[0]} or {name}, found both")
    return found[0] if found else ""


def _is_path(name: str) -> bool:
    return name.endswith("_location")


def _check_token_use(config: SecurityConfig, used: Collection[str]) -> None:
    useless = [name for name in used if is_token_setting(name)]
    if useless and _mechanism_of(config) != OAUTHBEARER:
        raise conflict(f"{useless[0]}: expected sasl_mechanism={OAUTHBEARER} beside it")


def _check_use(config: SecurityConfig, used: Collection[str], prefix: str, protocols: Collection[str]) -> None:
    useless = [name for name in used if name.startswith(prefix)]
    if useless and config.security_protocol not in protocols:
        expected = " or ".join(protocols)
        raise conflict(
            f"{useless[0]}: expected security_protocol={expected} beside it, found {config.security_protocol}"
        )


def _mechanism_of(config: SecurityConfig) -> str:
    return config.sasl_mechanism or config.sasl_mechanisms


def _jaas_options(config: SecurityConfig) -> Mapping[str, str]:
    return parse_jaas(config.sasl_jaas_config) if config.sasl_jaas_config else {}


def _login_of(config: SecurityConfig) -> ClientLogin | TokenLogin:
    """Raises `BusError` INVALID_CONFIG."""
    if config.sasl_mechanism and config.sasl_mechanisms and config.sasl_mechanism != config.sasl_mechanisms:
        raise conflict("expected sasl_mechanism or sasl_mechanisms, which mean the same, found two mechanisms")
    chosen = _mechanism_of(config)
    if not chosen:
        raise conflict(f"sasl_mechanism: expected one of {', '.join(MECHANISMS)}, found none")
    options = _jaas_options(config)
    if chosen == OAUTHBEARER:
        return TokenLogin(tokens_of(config, options))
    if options and (config.sasl_username or config.sasl_password):
        raise conflict("expected sasl_jaas_config or sasl_username and sasl_password, found both")
    name, password = options.get("username", config.sasl_username), options.get("password", config.sasl_password)
    if not name or not password:
        raise conflict(
            "expected sasl_username and sasl_password (or sasl_password_file), or sasl_jaas_config with both; found "
            f"{'neither a name nor a password' if not name and not password else 'no password' if name else 'no name'}"
        )
    if chosen == PLAIN and ":" in name:
        raise conflict("sasl_username: by PLAIN expected a name without a colon; take SCRAM-SHA-512")
    return ClientLogin(chosen, prepared(name), password)


def with_passwords(config: ConfigT) -> ConfigT:
    """The same of settings that were checked, with passwords in place of the files that hold them: where it is sent to,
    as Spark sends it to executors, there need be no such file. Raises `BusError` INVALID_CONFIG."""
    found = {name: getattr(config, name) for name in PASSWORD_FILES if getattr(config, name)}
    read = {PASSWORD_FILES[name]: _read_secret(name, Path(path).expanduser()) for name, path in found.items()}
    changes: dict[str, Any] = {**read, **dict.fromkeys(found, "")}
    if config.security_protocol in SASL_PROTOCOLS and _mechanism_of(config) == OAUTHBEARER:
        changes |= environment_secret(config, _jaas_options(config))
    config = replace(config, **changes)
    if config.security_protocol in SASL_PROTOCOLS:
        _login_of(config)
    return config


def _read_secret(setting: str, path: Path) -> str:
    """The one line of a file."""
    try:
        text = read_bounded_text(path)
    except FileFault as fault:
        raise conflict(f"{setting}: {path}: {fault}") from None
    lines = text.splitlines()
    if len(lines) != 1 or not lines[0]:
        raise conflict(f"{setting}: {path}: expected one line with the password, found {count_of(len(lines), 'line')}")
    return lines[0]


def security_of(config: SecurityConfig) -> Security:
    """Return the security of checked settings."""
    login = _login_of(config) if config.security_protocol in SASL_PROTOCOLS else None
    if config.security_protocol not in TLS_PROTOCOLS:
        return Security(config.security_protocol, login=login)
    keystore = "ssl_keystore_location" if config.ssl_keystore_location else ""
    files = KeyFiles(
        _pem(config, _one_of(config, CERTIFICATE_SETTINGS) or keystore),
        _pem(config, _one_of(config, KEY_SETTINGS) or keystore),
        _pem(config, _one_of(config, TRUSTED_SETTINGS)),
        config.ssl_key_password or None,
    )
    return Security(config.security_protocol, files, login)


def _pem(config: SecurityConfig, name: str) -> Path | InlinePem | None:
    if not name:
        return None
    value = getattr(config, name)
    return Path(value).expanduser() if _is_path(name) else InlinePem(name, value)


# Settings of connections that Kafka's and librdkafka's clients have and the bus has not, for users of Kafka's
# client.properties: one that would do nothing is refused with the reason.

_GRPC_TLS = "gRPC chooses among TLS 1.2 and 1.3; ciphers are those of the environment's GRPC_SSL_CIPHER_SUITES"
_SASL = (
    "a client logs in by sasl_mechanism, and sasl_username and sasl_password, or sasl_jaas_config, or what begins with "
    "sasl_oauthbearer_"
)
_PEM = "keys and certificates are PEM, in files or inline: ssl_ca_location, ssl_certificate_pem, ssl_keystore_key ..."
_REASONS = {
    "enable_sasl_oauthbearer_unsecure_jwt": "an unsigned token proves nothing",
    "enable_ssl_certificate_verification": "certificates are always verified",
    "https_ca_pem": "give a file as https_ca_location",
    "oauth_cb": "give a function as sasl_oauth_token_provider",
    "sasl_login_callback_handler_class": (
        "leave it out: tokens come from sasl_oauthbearer_token_endpoint_url, or from sasl_oauth_token_provider"
    ),
    "sasl_oauthbearer_extensions": "a broker ignores extensions",
    "sasl_oauthbearer_grant_type": "the grant is client_credentials, by a secret or by sasl_oauthbearer_assertion_...",
    "sasl_oauthbearer_jwt_retriever_class": (
        "leave it out: with sasl_oauthbearer_assertion_... a client asks by client_credentials and an assertion"
    ),
    "security_providers": "TLS is gRPC's own",
    "ssl_endpoint_identification_algorithm": "the host in a certificate is always checked",
    "ssl_keystore_password": "keys and certificates are PEM: the password of a key is ssl_key_password",
    "ssl_truststore_password": "keys and certificates are PEM, and a file of certificates has no password",
}
_REASONS_BY_PREFIX = {
    "sasl_kerberos_": ABSENT_MECHANISMS["GSSAPI"],
    "sasl_": _SASL,
    "ssl_cipher_": _GRPC_TLS,
    "ssl_enabled_": _GRPC_TLS,
    "ssl_protocol": _GRPC_TLS,
    "ssl_": _PEM,
}


_ABSENT = AbsentKeys(_REASONS, _REASONS_BY_PREFIX)


def reason_of_absence(name: str) -> str | None:
    """Why there is no such setting, or which one was meant; None of a name that is not about connections. `name` has
    underscores."""
    near = [] if name in _REASONS else near_names(name, SECURITY_SETTINGS, likeness_min=0.9)
    return did_you_mean(near, before="") if near else _ABSENT.reason(name)


def is_known_absence(name: str) -> bool:
    """True if a user of Kafka or librdkafka may well bring along exactly this name."""
    return name in _REASONS
