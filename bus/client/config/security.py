"""How a client reaches its brokers: in the clear, or by TLS, with or without a certificate of its own.

The names are Kafka's and librdkafka's. Settings that a program does not give are those of `security_defaults`, or of
the environment: BUS_SECURITY_PROTOCOL, BUS_SSL_CA_LOCATION and so on. Guards one promise: settings that contradict each
other, or would do nothing, are refused before any connection is made, and no password is in an error or a `repr`.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from bus.client.config.values import conflict, secret, setting, text
from bus.model import PLAINTEXT, SSL, KeyFiles

_defaults: dict[str, str] = {}


@dataclass(frozen=True, slots=True)
class Security:
    """`files` have an effect with the protocol SSL only."""

    protocol: str = PLAINTEXT
    files: KeyFiles = field(default_factory=KeyFiles)


def protocol(value: Any) -> str:
    if isinstance(value, str) and value.upper() in (PLAINTEXT, SSL):
        return value.upper()
    raise ValueError(f"{PLAINTEXT} or {SSL} (there is no SASL yet)")


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


SECURITY_SETTINGS = tuple(one.name for one in fields(SecurityConfig))
SECRET_SETTINGS = frozenset(one.name for one in fields(SecurityConfig) if not one.repr)


@contextmanager
def security_defaults(settings: Mapping[str, str]) -> Iterator[None]:
    """For all clients of the process that are made meanwhile and name no such setting themselves."""
    before = dict(_defaults)
    _defaults.update(settings)
    try:
        yield
    finally:
        _defaults.clear()
        _defaults.update(before)


def with_defaults(given: Mapping[str, Any]) -> Mapping[str, Any]:
    """A program that names one of these settings names them all."""
    if any(name in given for name in SECURITY_SETTINGS):
        return given
    found = _defaults or {
        name: os.environ[variable] for name in SECURITY_SETTINGS if (variable := f"BUS_{name.upper()}") in os.environ
    }
    return {**given, **found} if found else given


def security_settings(config: SecurityConfig, given: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """For a client that works for one with `config`: it reaches the same brokers in the same way, unless `given`, its
    own settings, name any of these."""
    if any(name in (given or {}) for name in SECURITY_SETTINGS):
        return {}
    return {name: getattr(config, name) for name in SECURITY_SETTINGS}


def check_security(config: SecurityConfig, given: Collection[str]) -> None:
    """Raises `BusError` INVALID_CONFIG."""
    if config.security_protocol != SSL:
        useless = [name for name in SECURITY_SETTINGS[1:] if name in given and getattr(config, name)]
        if useless:
            raise conflict(f"{useless[0]}: expected security_protocol=SSL beside it, found {config.security_protocol}")
        return
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


def security_of(config: SecurityConfig) -> Security:
    if config.security_protocol != SSL:
        return Security()
    trusted = config.ssl_ca_location or config.ssl_truststore_location
    certificate = config.ssl_certificate_location or config.ssl_keystore_location
    key = config.ssl_key_location or config.ssl_keystore_location
    return Security(SSL, KeyFiles(_path(certificate), _path(key), _path(trusted), config.ssl_key_password or None))


def _path(text: str) -> Path | None:
    return Path(text).expanduser() if text else None
