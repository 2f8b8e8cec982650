"""How a client reaches its brokers: in the clear or by TLS, with a certificate of its own, a login, or neither.

The names are Kafka's and librdkafka's; where settings come from that a program does not give is in `sources`. Guards
one promise: settings that contradict each other, or would do nothing, are refused before any connection is made, and no
password is in an error or a `repr`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, TypeVar

from bus.client.config.values import conflict, secret, setting, text
from bus.errors import count_of
from bus.model import PLAINTEXT, SASL_PLAINTEXT, SASL_PROTOCOLS, SASL_SSL, SSL, TLS_PROTOCOLS, KeyFiles
from bus.sasl import ABSENT_MECHANISMS, PASSWORD_MECHANISMS, PLAIN, parse_jaas

ConfigT = TypeVar("ConfigT", bound="SecurityConfig")


@dataclass(frozen=True, slots=True)
class ClientLogin:
    mechanism: str
    name: str
    password: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class Security:
    """`files` have an effect with TLS only, `login` with SASL."""

    protocol: str = PLAINTEXT
    files: KeyFiles = field(default_factory=KeyFiles)
    login: ClientLogin | None = None

    @property
    def has_tls(self) -> bool:
        return self.protocol in TLS_PROTOCOLS


_PROTOCOLS = (PLAINTEXT, SSL, SASL_PLAINTEXT, SASL_SSL)


def protocol(value: Any) -> str:
    if isinstance(value, str) and value.upper() in _PROTOCOLS:
        return value.upper()
    raise ValueError(f"one of {', '.join(_PROTOCOLS)}")


def mechanism(value: Any) -> str:
    if isinstance(value, str) and value.upper() in ("", *PASSWORD_MECHANISMS):
        return value.upper()
    reason = ABSENT_MECHANISMS.get(value.upper(), "") if isinstance(value, str) else ""
    raise ValueError(f"one of {', '.join(PASSWORD_MECHANISMS)}{f' ({reason})' if reason else ''}")


def jaas(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError("a text")
    if value:
        try:
            parse_jaas(value)
        except ValueError as expected:
            raise ValueError(str(expected)) from None
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
    ssl_key_password: str = secret("", text)
    ssl_key_password_file: str = setting("", text)
    sasl_mechanism: str = setting("", mechanism)
    sasl_mechanisms: str = setting("", mechanism)
    sasl_username: str = setting("", text)
    sasl_password: str = secret("", text)
    sasl_password_file: str = setting("", text)
    sasl_jaas_config: str = secret("", jaas)


SECURITY_SETTINGS = tuple(one.name for one in fields(SecurityConfig))
SECRET_SETTINGS = frozenset(one.name for one in fields(SecurityConfig) if not one.repr)
# Those that name a file.
FILE_SETTINGS = frozenset(name for name in SECURITY_SETTINGS if name.endswith(("_location", "_file")))
# A file that holds a secret -> the setting that it stands for.
PASSWORD_FILES = {"sasl_password_file": "sasl_password", "ssl_key_password_file": "ssl_key_password"}
_OWN_SETTINGS = frozenset({*SECURITY_SETTINGS, "profile"})


def security_settings(config: SecurityConfig, given: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """For a client that works for one with `config`: it reaches the same brokers in the same way, unless `given`, its
    own settings, name any of these."""
    if any(name in _OWN_SETTINGS for name in given or ()):
        return {}
    return {name: getattr(config, name) for name in SECURITY_SETTINGS}


def check_security(config: SecurityConfig, given: Collection[str]) -> None:
    """Raises `BusError` INVALID_CONFIG, without anything secret."""
    used = [name for name in SECURITY_SETTINGS if name in given and getattr(config, name)]
    _check_use(config, used, "ssl_", TLS_PROTOCOLS)
    _check_use(config, used, "sasl_", SASL_PROTOCOLS)
    trusted, truststore = config.ssl_ca_location, config.ssl_truststore_location
    if trusted and truststore and trusted != truststore:
        raise conflict("expected ssl_ca_location or ssl_truststore_location, which mean the same, found two files")
    if config.ssl_keystore_location and (config.ssl_certificate_location or config.ssl_key_location):
        raise conflict(
            "expected either ssl_keystore_location, with key and certificate, or ssl_certificate_location and "
            "ssl_key_location, found both"
        )
    if bool(config.ssl_certificate_location) != bool(config.ssl_key_location):
        raise conflict("expected ssl_certificate_location and ssl_key_location together, found one of the two")
    for file_setting, stands_for in PASSWORD_FILES.items():
        if getattr(config, file_setting) and getattr(config, stands_for):
            raise conflict(f"expected either {file_setting} or {stands_for}, found both")


def _check_use(config: SecurityConfig, used: Collection[str], prefix: str, protocols: Collection[str]) -> None:
    useless = [name for name in used if name.startswith(prefix)]
    if useless and config.security_protocol not in protocols:
        expected = " or ".join(protocols)
        raise conflict(
            f"{useless[0]}: expected security_protocol={expected} beside it, found {config.security_protocol}"
        )


def _login_of(config: SecurityConfig) -> ClientLogin:
    """Raises `BusError` INVALID_CONFIG."""
    if config.sasl_mechanism and config.sasl_mechanisms and config.sasl_mechanism != config.sasl_mechanisms:
        raise conflict("expected sasl_mechanism or sasl_mechanisms, which mean the same, found two mechanisms")
    chosen = config.sasl_mechanism or config.sasl_mechanisms
    if not chosen:
        raise conflict(f"sasl_mechanism: expected one of {', '.join(PASSWORD_MECHANISMS)}, found none")
    options = parse_jaas(config.sasl_jaas_config) if config.sasl_jaas_config else {}
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
    return ClientLogin(chosen, name, password)


def with_passwords(config: ConfigT) -> ConfigT:
    """The same of settings that were checked, with passwords in place of the files that hold them: where it is sent to,
    as Spark sends it to executors, there need be no such file. Raises `BusError` INVALID_CONFIG."""
    found = {name: getattr(config, name) for name in PASSWORD_FILES if getattr(config, name)}
    read = {PASSWORD_FILES[name]: _read_secret(name, Path(path).expanduser()) for name, path in found.items()}
    config = replace(config, **read, **dict.fromkeys(found, ""))
    if config.security_protocol in SASL_PROTOCOLS:
        _login_of(config)
    return config


def _read_secret(setting: str, path: Path) -> str:
    """The one line of a file."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise conflict(f"{setting}: {path}: expected a readable file, found: {error.strerror}") from None
    except UnicodeDecodeError:
        raise conflict(f"{setting}: {path}: expected a line of UTF-8 text, found other bytes") from None
    lines = text.splitlines()
    if len(lines) != 1 or not lines[0]:
        raise conflict(f"{setting}: {path}: expected one line with the password, found {count_of(len(lines), 'line')}")
    return lines[0]


def security_of(config: SecurityConfig) -> Security:
    """Of settings that were checked."""
    login = _login_of(config) if config.security_protocol in SASL_PROTOCOLS else None
    if config.security_protocol not in TLS_PROTOCOLS:
        return Security(config.security_protocol, login=login)
    trusted = config.ssl_ca_location or config.ssl_truststore_location
    certificate = config.ssl_certificate_location or config.ssl_keystore_location
    key = config.ssl_key_location or config.ssl_keystore_location
    files = KeyFiles(_path(certificate), _path(key), _path(trusted), config.ssl_key_password or None)
    return Security(config.security_protocol, files, login)


def _path(text: str) -> Path | None:
    return Path(text).expanduser() if text else None
