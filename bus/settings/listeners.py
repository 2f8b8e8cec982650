"""The listeners of a broker: where it serves, by which protocol, and what clients of each are told to connect to.

Guards one promise: listeners that cannot work are refused before a port is bound, with the key, what was expected and
what was found. The names and the forms are Kafka's: `NAME://host:port`, and `NAME:PROTOCOL` in the map of protocols.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bus.addresses import Address, parse_address
from bus.model import PLAINTEXT, SASL_PLAINTEXT, SASL_PROTOCOLS, SASL_SSL, SSL, TLS_PROTOCOLS, InlinePem, KeyFiles
from bus.security.scram import SCRAM_MECHANISMS
from bus.settings.keys import ConfigError

PROTOCOLS = (PLAINTEXT, SSL, SASL_PLAINTEXT, SASL_SSL)
_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_KEYSTORE = "ssl.keystore.location"
_CERTIFICATES = ("ssl.certificate.location", "ssl.keystore.certificate.chain")
_KEYS = ("ssl.key.location", "ssl.keystore.key")
TRUSTED_SETTINGS = ("ssl.truststore.location", "ssl.truststore.certificates")
# The keys, certificates and authorities of a listener with TLS.
SSL_KEY_SETTINGS = (_KEYSTORE, *_CERTIFICATES, *_KEYS, *TRUSTED_SETTINGS, "ssl.key.password")
_ANY_HOSTS = ("0.0.0.0", "::")


def read_address(text: str) -> Address:
    """Raises `ConfigError`."""
    try:
        return parse_address(text)
    except ValueError as error:
        raise ConfigError(str(error)) from None


@dataclass(frozen=True, slots=True)
class HostPort:
    is_optional: bool = False

    def accepts(self, value: Any) -> bool:
        if self.is_optional and value == "":
            return True
        try:
            parse_address(value)
        except ValueError:
            return False
        return True

    def __str__(self) -> str:
        return ("empty or " if self.is_optional else "") + "HOST:PORT, a port from 0 to 65535"


@dataclass(frozen=True, slots=True)
class Listener:
    name: str  # upper case
    protocol: str  # one of PROTOCOLS
    bind: Address
    advertised: Address  # port 0: the one that was bound

    @property
    def has_tls(self) -> bool:
        return self.protocol in TLS_PROTOCOLS

    @property
    def has_logins(self) -> bool:
        return self.protocol in SASL_PROTOCOLS

    @property
    def is_beyond_loopback(self) -> bool:
        return not _is_loopback(self.bind.host)


def single_listener(listen: str, advertise: str) -> tuple[Listener, ...]:
    """Return the listener of `listen` and `advertise`, the short form for one listener."""
    return (Listener(PLAINTEXT, PLAINTEXT, read_address(listen), read_address(advertise or listen)),)


def parse_listeners(
    listeners: Sequence[str], *, protocols: Sequence[str], advertised: Sequence[str]
) -> tuple[Listener, ...]:
    """Parse the keys listeners, listener.security.protocol.map and advertised.listeners. Raises `ConfigError`."""
    protocol_of = _parse_protocols(protocols)
    binds = _parse_addresses("listeners", listeners)
    advertised_addresses = _parse_addresses("advertised.listeners", advertised)
    unknown = advertised_addresses.keys() - binds.keys()
    if unknown:
        raise ConfigError(
            f"advertised.listeners: expected names among those of listeners, {_show(binds)}, found {_show(unknown)}"
        )
    _check_ports(binds)
    return tuple(
        Listener(name, _protocol(name, protocol_of), bind, advertised_addresses.get(name, bind))
        for name, bind in binds.items()
    )


def find_listener(listeners: Sequence[Listener], name: str) -> Listener:
    """The one of inter.broker.listener.name; the first one if that is empty. Raises `ConfigError`."""
    if not name:
        return listeners[0]
    for listener in listeners:
        if listener.name == name.upper():
            return listener
    names = _show(listener.name for listener in listeners)
    raise ConfigError(f"inter.broker.listener.name: expected one of the listeners, {names}, found {name!r}")


def check_reachable(listeners: Sequence[Listener], *, is_short_form: bool, has_advertised: bool) -> None:
    """Check that clients can connect to the advertised addresses: one that means "all interfaces" leads nowhere."""
    for listener in listeners:
        host = listener.advertised.host
        if host not in _ANY_HOSTS:
            continue
        if is_short_form:
            name, remedy = ("advertise" if has_advertised else "listen"), "advertise"
        else:
            name, remedy = f"listener {listener.name}", "advertised.listeners"
        raise ConfigError(f"{name} is {host}: expected {remedy} to name an address that clients can connect to")


def check_guarded(listeners: Sequence[Listener], *, certified: Collection[Listener], is_insecure_allowed: bool) -> None:
    """Raises `ConfigError` for a listener without authentication that other machines can reach: all of them could read,
    write and delete all topics. `certified`: those that ask clients for certificates."""
    if is_insecure_allowed:
        return
    for listener in listeners:
        is_guarded = listener.has_logins or listener in certified
        if listener.is_beyond_loopback and not is_guarded:
            raise ConfigError(
                f"listener {listener.name} at {listener.bind} can be reached from other machines without "
                "authentication: expected an address of this machine only (127.0.0.1), or the protocol SASL_SSL, or "
                "SSL with ssl.client.auth=required, or --insecure "
                "(allow.insecure.listeners=true) if everybody in that network may read, write and delete all topics"
            )


def check_secrets_are_hidden(listener: Listener, mechanisms: Sequence[str]) -> None:
    """Refuse mechanisms other than SCRAM without TLS: the client sends its password or token itself. `mechanisms` are
    the listener's."""
    shown = [name for name in mechanisms if name not in SCRAM_MECHANISMS]
    if shown and listener.protocol == SASL_PLAINTEXT and listener.is_beyond_loopback:
        raise ConfigError(
            f"listener {listener.name} at {listener.bind} has no TLS: by {shown[0]} passwords or tokens could be "
            "read on their way; expected the protocol SASL_SSL, or sasl.enabled.mechanisms of "
            f"{_show(SCRAM_MECHANISMS)} alone"
        )


def ssl_key_files(settings: Mapping[str, str], *, needs_trusted: bool) -> KeyFiles:
    """Return the key files of listeners with TLS, from the values of ssl.keystore.location and so on. Raises
    `ConfigError`; looks at no file."""
    both = _one_of(settings, (_KEYSTORE,))
    certificate = _one_of(settings, _CERTIFICATES)
    key = _one_of(settings, _KEYS)
    parts = [name for name in (certificate, key) if name]
    if both and parts:
        raise ConfigError(f"expected either {_KEYSTORE}, with key and certificates, or {parts[0]}, found both")
    if not both and len(parts) != 2:
        found = f"found {parts[0]} alone" if parts else "found none"
        raise ConfigError(
            f"a listener with TLS: expected {_KEYSTORE}, or one of {', '.join(_CERTIFICATES)} and one of "
            f"{', '.join(_KEYS)}, {found}"
        )
    trusted = _one_of(settings, TRUSTED_SETTINGS)
    if needs_trusted and not trusted:
        raise ConfigError(
            f"{' or '.join(TRUSTED_SETTINGS)}: expected the authorities whose certificates are trusted, as clients or "
            "other brokers have to show theirs; found none"
        )
    return KeyFiles(
        _pem(settings, certificate or both),
        _pem(settings, key or both),
        _pem(settings, trusted) if trusted else None,
        settings["ssl.key.password"] or None,
    )


def _one_of(settings: Mapping[str, str], names: Sequence[str]) -> str:
    """The name of the one that is set; empty if none is."""
    found = [name for name in names if settings[name]]
    if len(found) > 1:
        raise ConfigError(f"expected either {found[0]} or {found[1]}, found both")
    return found[0] if found else ""


def _pem(settings: Mapping[str, str], name: str) -> Path | InlinePem:
    value = settings[name]
    return Path(value) if name.endswith(".location") else InlinePem(name, value)


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def _parse_addresses(key: str, texts: Sequence[str]) -> dict[str, Address]:
    found: dict[str, Address] = {}
    for text in texts:
        name, separator, address = text.partition("://")
        if not separator or _NAME.fullmatch(name) is None:
            raise ConfigError(f"{key}: expected NAME://HOST:PORT, found {text!r}")
        name = name.upper()
        if name in found:
            raise ConfigError(f"{key}: expected each name once, found {name} twice")
        try:
            found[name] = read_address(address)
        except ConfigError as error:
            raise ConfigError(f"{key}: {name}: {error}") from None
    return found


def _check_ports(binds: Mapping[str, Address]) -> None:
    taken: dict[Address, str] = {}
    for name, address in binds.items():
        if address.port and address in taken:
            both = f"{taken[address]} and {name}"
            raise ConfigError(f"listeners: expected an address for each, found {address} for {both}")
        taken[address] = name


def _parse_protocols(texts: Sequence[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for text in texts:
        name, separator, protocol = text.partition(":")
        if not separator or _NAME.fullmatch(name) is None:
            raise ConfigError(f"listener.security.protocol.map: expected NAME:PROTOCOL, found {text!r}")
        if found.setdefault(name.upper(), protocol.upper()) != protocol.upper():
            raise ConfigError(f"listener.security.protocol.map: expected each name once, found {name.upper()} twice")
    return found


def _protocol(name: str, protocol_of: Mapping[str, str]) -> str:
    protocol = protocol_of.get(name, name)
    if protocol in PROTOCOLS:
        return protocol
    if name in protocol_of:
        raise ConfigError(f"listener {name}: expected a protocol of {_show(PROTOCOLS)}, found {protocol!r}")
    raise ConfigError(
        f"listener {name}: expected its protocol in listener.security.protocol.map, one of "
        f"{_show(f'{name}:{one}' for one in PROTOCOLS)}"
    )


def _show(names: Iterable[str]) -> str:
    return ", ".join(sorted(names))
