"""Settings of one listener: `listener.name.<name>.<key>`, with the name in small letters, as in Kafka (KIP-103).

What a listener does not have of its own is that of the broker. Some keys may be of one login mechanism of the
listener, `listener.name.<name>.<mechanism>.<key>`. Guards one promise: an override that would do nothing is refused,
with what was expected. That is one of a listener that does not exist, of a key that is the whole broker's, of a
listener whose protocol has no use for it, or of a mechanism that the listener does not have. Another way to name keys,
certificates or authorities replaces the broker's: a listener with files of its own has none of the broker's
certificates.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from bus.model import SASL_PROTOCOLS, SSL, TLS_PROTOCOLS
from bus.security.scram import ABSENT_MECHANISMS, MECHANISMS, OAUTHBEARER, parse_jaas
from bus.settings.kafka_keys import KAFKA_KEYS
from bus.settings.keys import ConfigError, ConfigValue, Key, field_name, unknown_key_message
from bus.settings.listeners import SSL_KEY_SETTINGS, TRUSTED_SETTINGS, Listener

PREFIX = "listener.name."
JAAS = "sasl.jaas.config"
SESSION_LIFE = "connections.max.reauth.ms"

_KEY_FORMS = ("ssl.keystore.type", "ssl.truststore.type")
_NAME_CHANGES = ("ssl.allow.dn.changes", "ssl.allow.san.changes")
_OF_CERTIFICATES = ("ssl.client.auth", "ssl.principal.mapping.rules")
# The settings that decide which tokens are accepted.
TOKEN_KEYS = (
    "sasl.oauthbearer.jwks.endpoint.url",
    "sasl.oauthbearer.jwks.endpoint.refresh.ms",
    "sasl.oauthbearer.jwks.endpoint.retry.backoff.ms",
    "sasl.oauthbearer.jwks.endpoint.retry.backoff.max.ms",
    "sasl.oauthbearer.expected.issuer",
    "sasl.oauthbearer.expected.audience",
    "sasl.oauthbearer.expected.scope",
    "sasl.oauthbearer.clock.skew.seconds",
    "sasl.oauthbearer.scope.claim.name",
    "sasl.oauthbearer.sub.claim.name",
    "sasl.oauthbearer.principal.prefix",
    "sasl.oauthbearer.allow.super.users",
    "sasl.oauthbearer.allow.insecure.urls",
    "https.ca.location",
)
# The settings with which this broker logs in at others; they belong to the inter-broker listener.
_BROKER_TOKEN_KEYS = ("sasl.oauthbearer.token.endpoint.url", "sasl.oauthbearer.header.urlencode")
BROKER_LOGIN_KEYS = (JAAS, *_BROKER_TOKEN_KEYS)
# Key -> the protocols of listeners that have a use for it.
LISTENER_KEYS: Mapping[str, Sequence[str]] = {
    **dict.fromkeys((*SSL_KEY_SETTINGS, *_KEY_FORMS, *_NAME_CHANGES), TLS_PROTOCOLS),
    **dict.fromkeys(_OF_CERTIFICATES, (SSL,)),
    **dict.fromkeys(("sasl.enabled.mechanisms", SESSION_LIFE, *TOKEN_KEYS, *BROKER_LOGIN_KEYS), SASL_PROTOCOLS),
}
# Key -> the mechanisms that it can be about.
_MECHANISM_KEYS: Mapping[str, Sequence[str]] = {
    **dict.fromkeys((*TOKEN_KEYS, *_BROKER_TOKEN_KEYS), (OAUTHBEARER,)),
    **dict.fromkeys((JAAS, SESSION_LIFE), MECHANISMS),
}
_TRUSTED = frozenset(TRUSTED_SETTINGS)
_OWN = frozenset(SSL_KEY_SETTINGS) - _TRUSTED


@dataclass(frozen=True, slots=True)
class Override:
    """`mechanism`: that the name has, None if it has none."""

    listener: Listener
    mechanism: str | None
    base_name: str  # the name of the broker's key
    key: Key  # its name is the whole one, for messages

    @property
    def own_key(self) -> str:
        """The name under which the listener stores it: with the mechanism, if the key may belong to several."""
        if self.mechanism is not None and len(_MECHANISM_KEYS[self.base_name]) > 1:
            return mechanism_key(self.mechanism, self.base_name)
        return self.base_name


def mechanism_key(mechanism: str, base_name: str) -> str:
    return f"{mechanism.lower()}.{base_name}"


def base_name_of(own_key: str) -> str:
    """The broker's key of `Override.own_key`."""
    return _split_mechanism(own_key)[1]


def find_override(name: str, listeners: Sequence[Listener], keys: Mapping[str, Key]) -> Override:
    """Find the listener, mechanism and key that `name` overrides; `keys` are the broker's. Raises `ConfigError`."""
    found = [listener for listener in listeners if name.startswith(_prefix_of(listener))]
    if not found:
        expected = ", ".join(_prefix_of(listener) for listener in listeners)
        raise ConfigError(f"{name}: expected a listener that there is, by one of {expected}")
    listener = max(found, key=lambda one: len(one.name))
    mechanism, key = _split_mechanism(name.removeprefix(_prefix_of(listener)))
    protocols = LISTENER_KEYS.get(key)
    if protocols is None:
        raise ConfigError(
            f"{name}: {_why_not(key, keys)}; a listener has keys that begin with ssl. or sasl., {SESSION_LIFE} and "
            "https.ca.location"
        )
    if listener.protocol not in protocols:
        raise ConfigError(
            f"{name}: expected a listener of the protocol {' or '.join(protocols)}, found {listener.protocol}"
        )
    if mechanism is not None and mechanism not in _MECHANISM_KEYS.get(key, ()):
        raise ConfigError(f"{name}: {key} is no setting of {mechanism}; expected {_prefix_of(listener)}{key}")
    return Override(listener, mechanism, key, replace(keys[key], name=name))


def check_use(override: Override, *, enabled: Sequence[str], inter_broker: Listener, broker_mechanism: str) -> None:
    """Raises `ConfigError` for an override that would do nothing. `enabled`: mechanisms of its listener;
    `broker_mechanism`: by which brokers log in at one another."""
    name, key = override.key.name, override.base_name
    if key == JAAS and (override.listener != inter_broker or override.mechanism not in (None, broker_mechanism)):
        of_brokers = f"{_prefix_of(inter_broker)}{broker_mechanism.lower()}.{JAAS}"
        hint = f". What this broker logs in with at others is {of_brokers}" if inter_broker.has_logins else ""
        raise ConfigError(
            f"{name}: expected no line of JAAS: users log in with what `bus users create` gave them{hint}"
        )
    if key in BROKER_LOGIN_KEYS and override.listener != inter_broker:
        raise ConfigError(f"{name}: expected the listener by which brokers reach one another, {inter_broker.name}")
    if key in _BROKER_TOKEN_KEYS and broker_mechanism != OAUTHBEARER:
        raise ConfigError(f"{name}: expected sasl.mechanism.inter.broker.protocol={OAUTHBEARER} beside it")
    needed = OAUTHBEARER if key in TOKEN_KEYS else override.mechanism
    if needed is not None and needed not in enabled:
        shown = ", ".join(enabled) or "none"
        raise ConfigError(f"{name}: expected {needed} among sasl.enabled.mechanisms of the listener, found {shown}")


def check_jaas(name: str, text: str) -> Mapping[str, str]:
    """The options of a broker's line. Raises `ConfigError`, without a value of it."""
    try:
        options = parse_jaas(text)
    except ValueError as expected:
        raise ConfigError(f"{name}: expected {expected}") from None
    users = [option.removeprefix("user_") for option in options if option.startswith("user_")]
    if users:
        raise ConfigError(
            f"{name}: expected no users in it, found user_{users[0]}: make users by "
            f"`bus users create {users[0]} --root ROOT`, with --password-file for a password that they have"
        )
    return options


def settings_of_listener(own: Mapping[str, ConfigValue]) -> dict[str, ConfigValue]:
    """The fields of a broker's configuration to change for a listener with these overrides, by key."""
    hidden: set[str] = set()
    for group in (_OWN, _TRUSTED):
        if own.keys() & group - {"ssl.key.password"}:
            hidden |= group
    changed = {name: value for name, value in own.items() if base_name_of(name) == name}
    return {field_name(name): value for name, value in {**dict.fromkeys(hidden, ""), **changed}.items()}


def _prefix_of(listener: Listener) -> str:
    return f"{PREFIX}{listener.name.lower()}."


def _split_mechanism(key: str) -> tuple[str | None, str]:
    first, _, rest = key.partition(".")
    if first.upper() in MECHANISMS and first.islower():
        return first.upper(), rest
    return None, key


def _why_not(key: str, keys: Iterable[str]) -> str:
    if key in keys:
        return f"{key} is a setting of the whole broker"
    reason = ABSENT_MECHANISMS.get(key.partition(".")[0].upper()) or KAFKA_KEYS.reason(key, by_family=False)
    return unknown_key_message(key, LISTENER_KEYS) if reason is None else f"no key of the bus: {reason}"
