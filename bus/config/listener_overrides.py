"""Settings of one listener: `listener.name.<name>.<key>`, with the name in small letters, as in Kafka (KIP-103).

What a listener does not have of its own is that of the broker. Guards one promise: an override that would do nothing is
refused, with what was expected. That is one of a listener that does not exist, of a key that is the whole broker's, or
of a listener whose protocol has no use for it. Another way to name keys, certificates or authorities replaces the
broker's: a listener with files of its own has none of the broker's certificates.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from bus.config.keys import ConfigError, ConfigKey, ConfigValue, field_name, unknown_key_message
from bus.config.listeners import SSL_KEY_SETTINGS, TRUSTED_SETTINGS, Listener
from bus.model import SASL_PROTOCOLS, SSL, TLS_PROTOCOLS

PREFIX = "listener.name."

_KEY_FORMS = ("ssl.keystore.type", "ssl.truststore.type")
_NAME_CHANGES = ("ssl.allow.dn.changes", "ssl.allow.san.changes")
_OF_CERTIFICATES = ("ssl.client.auth", "ssl.principal.mapping.rules")
# Key -> the protocols of listeners that have a use for it.
LISTENER_KEYS: Mapping[str, Sequence[str]] = {
    **dict.fromkeys((*SSL_KEY_SETTINGS, *_KEY_FORMS, *_NAME_CHANGES), TLS_PROTOCOLS),
    **dict.fromkeys(_OF_CERTIFICATES, (SSL,)),
    "sasl.enabled.mechanisms": SASL_PROTOCOLS,
}
_TRUSTED = frozenset(TRUSTED_SETTINGS)
_OWN = frozenset(SSL_KEY_SETTINGS) - _TRUSTED


@dataclass(frozen=True, slots=True)
class Override:
    listener: Listener
    key: ConfigKey  # its name is the whole one, for messages

    @property
    def own_key(self) -> str:
        return self.key.name.removeprefix(_prefix_of(self.listener))


def find_override(name: str, listeners: Sequence[Listener], keys: Mapping[str, ConfigKey]) -> Override:
    """What `name` is about; `keys`: of the broker. Raises `ConfigError`."""
    found = [listener for listener in listeners if name.startswith(_prefix_of(listener))]
    if not found:
        expected = ", ".join(_prefix_of(listener) for listener in listeners)
        raise ConfigError(f"{name}: expected a listener that there is, by one of {expected}")
    listener = max(found, key=lambda one: len(one.name))
    key = name.removeprefix(_prefix_of(listener))
    protocols = LISTENER_KEYS.get(key)
    if protocols is None:
        raise ConfigError(f"{name}: {_why_not(key, keys)}; a listener has {', '.join(LISTENER_KEYS)}")
    if listener.protocol not in protocols:
        raise ConfigError(
            f"{name}: expected a listener of the protocol {' or '.join(protocols)}, found {listener.protocol}"
        )
    return Override(listener, replace(keys[key], name=name))


def settings_of_listener(own: Mapping[str, ConfigValue]) -> dict[str, ConfigValue]:
    """The fields of a broker's configuration to change for a listener with these overrides, by key."""
    hidden: set[str] = set()
    for group in (_OWN, _TRUSTED):
        if own.keys() & group - {"ssl.key.password"}:
            hidden |= group
    return {field_name(name): value for name, value in {**dict.fromkeys(hidden, ""), **own}.items()}


def _prefix_of(listener: Listener) -> str:
    return f"{PREFIX}{listener.name.lower()}."


def _why_not(key: str, keys: Iterable[str]) -> str:
    return f"{key} is a setting of the whole broker" if key in keys else unknown_key_message(key, LISTENER_KEYS)
