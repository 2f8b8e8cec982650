"""The settings of a broker about logins: of its clients at each listener, and its own at other brokers.

Guards two promises: a login that could not work is refused at the start, with what was expected; and no error has
anything secret of a line of JAAS or of a URL. What a listener does not have of its own is the broker's
(`BrokerConfig.of_listener`). The keys themselves stand in `bus.settings.broker`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from bus.client_texts import is_seen
from bus.model import SASL_PROTOCOLS
from bus.security.acls import PRINCIPAL_TYPE
from bus.security.oauth.token_settings import DocumentUrl, TokenSettings, parse_url, shown_url
from bus.security.scram import OAUTHBEARER
from bus.settings.broker import BROKER_CONFIGS, BrokerConfig
from bus.settings.keys import ConfigError, check_at_most, field_name
from bus.settings.listener_overrides import JAAS, SESSION_LIFE, check_jaas, mechanism_key
from bus.settings.listeners import Listener, check_secrets_are_hidden

_OF_LOGINS = ("sasl.enabled.mechanisms", SESSION_LIFE, "connection.failed.authentication.delay.ms")
_OF_BROKER_LOGINS = ("sasl.mechanism.inter.broker.protocol", JAAS)


# ------------------------------------------------------------ of clients


def login_mechanisms(config: BrokerConfig) -> Mapping[str, Sequence[str]]:
    """How clients may log in at each listener with SASL, by its name. Raises `ConfigError`."""
    serving = [one for one in config.serving_listeners if one.has_logins]
    return {one.name: config.of_listener(one).sasl_enabled_mechanisms for one in serving}


def login_lives_ms(config: BrokerConfig) -> Mapping[str, Mapping[str, int]]:
    """How long a login at each listener with SASL holds, by its name and mechanism. Raises `ConfigError`."""
    return {one.name: _lives_ms(config, one) for one in config.serving_listeners if one.has_logins}


def _lives_ms(config: BrokerConfig, listener: Listener) -> Mapping[str, int]:
    own = config.of_listener(listener)
    lives = {name: _of_mechanism(config, listener, name, SESSION_LIFE) for name in own.sasl_enabled_mechanisms}
    return {name: own.connections_max_reauth_ms if life is None else life for name, life in lives.items()}


def _of_mechanism(config: BrokerConfig, listener: Listener, mechanism: str, key: str) -> Any:
    """None: the mechanism has none of its own."""
    return config.listener_overrides.get(listener.name, {}).get(mechanism_key(mechanism, key))


def token_listeners(config: BrokerConfig) -> Mapping[str, BrokerConfig]:
    """Return the own settings of each listener with OAUTHBEARER, by its name. Raises `ConfigError`."""
    mechanisms = login_mechanisms(config)
    serving = [one for one in config.serving_listeners if OAUTHBEARER in mechanisms.get(one.name, ())]
    return {one.name: config.of_listener(one) for one in serving}


def key_set_url(own: BrokerConfig) -> DocumentUrl:
    """Return the URL of the key set for a listener with these settings. Raises `ConfigError`."""
    return _oauth_url(own, "sasl.oauthbearer.jwks.endpoint.url", own.sasl_oauthbearer_jwks_endpoint_url)


def _oauth_url(own: BrokerConfig, key: str, text: str) -> DocumentUrl:
    try:
        return parse_url(
            text, ca_location=own.https_ca_location, allows_insecure=own.sasl_oauthbearer_allow_insecure_urls
        )
    except ValueError as expected:
        raise ConfigError(f"{key}: expected {expected}, found {shown_url(text)!r}") from None


def principals_beyond_tokens(config: BrokerConfig, listener: str) -> frozenset[str]:
    """Super users, and the user by which brokers log in at one another, unless tokens of the listener may make them.
    Raises `ConfigError`."""
    own = token_listeners(config)[listener]
    return frozenset() if _may_make_super_users(config, listener, own) else _privileged(config)


def _may_make_super_users(config: BrokerConfig, listener: str, own: BrokerConfig) -> bool:
    between = config.inter_broker_listener
    is_brokers_own = listener == between.name and config.sasl_mechanism_inter_broker_protocol == OAUTHBEARER
    return own.sasl_oauthbearer_allow_super_users or is_brokers_own


def _privileged(config: BrokerConfig) -> frozenset[str]:
    policy = config.acl_policy
    found = frozenset() if policy is None else policy.super_users
    if config.inter_broker_listener.has_logins and config.sasl_mechanism_inter_broker_protocol != OAUTHBEARER:
        found |= {f"{PRINCIPAL_TYPE}:{broker_login(config)[0]}"}
    return found


def warnings_of_tokens(config: BrokerConfig) -> Sequence[str]:
    """About listeners whose identity provider makes principals that others know, too; a text for the operator each."""
    found = []
    for name, own in token_listeners(config).items():
        if own.sasl_oauthbearer_principal_prefix:
            continue
        refused = principals_beyond_tokens(config, name)
        if refused:
            found.append(
                f"listener {name}: tokens that name {', '.join(sorted(refused))} are refused: set "
                "sasl.oauthbearer.allow.super.users=true if its identity provider may make super users and brokers"
            )
        if _has_other_users(config, name):
            found.append(
                f"listener {name}: its identity provider can make a token for every user that logs in at other "
                "listeners: set sasl.oauthbearer.principal.prefix to keep its names apart"
            )
    return found


def _has_other_users(config: BrokerConfig, listener: str) -> bool:
    """Tell whether principals come by another listener that do not come from the same identity provider."""
    providers = {
        name: (own.sasl_oauthbearer_jwks_endpoint_url, own.sasl_oauthbearer_expected_issuer)
        for name, own in token_listeners(config).items()
    }
    mechanisms = login_mechanisms(config)
    for one in config.serving_listeners:
        enabled = set(mechanisms.get(one.name, ()))
        is_elsewhere = one.name != listener
        is_other_provider = is_elsewhere and providers.get(one.name, providers[listener]) != providers[listener]
        if is_other_provider or (is_elsewhere and (enabled - {OAUTHBEARER} or config.needs_client_certificate(one))):
            return True
    return False


# ------------------------------------------------------------ between brokers


def broker_login(config: BrokerConfig) -> tuple[str, str]:
    """Name and password by which this broker logs in at others. Raises `ConfigError`."""
    own = _between_brokers(config)
    if not own.sasl_jaas_config:
        raise ConfigError(
            f"{JAAS}: expected a line of JAAS with the name and password by which brokers log in at one another at "
            f"the listener {config.inter_broker_listener.name}: ScramLoginModule required "
            'username="u" password="p"; found none'
        )
    options = check_jaas(JAAS, own.sasl_jaas_config)
    if not options.get("username") or not options.get("password"):
        raise ConfigError(f"{JAAS}: expected a username and a password")
    return options["username"], options["password"]


def broker_token(config: BrokerConfig) -> TokenSettings:
    """Return the settings by which this broker gets its token to log in at others. Raises `ConfigError`."""
    own = _between_brokers(config)
    url = _oauth_url(own, "sasl.oauthbearer.token.endpoint.url", own.sasl_oauthbearer_token_endpoint_url)
    if url.path is not None:
        return TokenSettings(url)
    options = check_jaas(JAAS, own.sasl_jaas_config)
    if not options.get("clientId") or not options.get("clientSecret"):
        raise ConfigError(f"{JAAS}: expected a clientId and a clientSecret for OAUTHBEARER")
    return TokenSettings(
        url,
        client_id=options["clientId"],
        client_secret=options["clientSecret"],
        scope=options.get("scope", ""),
        encodes_header=own.sasl_oauthbearer_header_urlencode,
    )


def _between_brokers(config: BrokerConfig) -> BrokerConfig:
    """The settings of the listener by which brokers reach one another."""
    listener = config.inter_broker_listener
    own = config.of_listener(listener)
    jaas = _of_mechanism(config, listener, config.sasl_mechanism_inter_broker_protocol, JAAS)
    return own if jaas is None else replace(own, sasl_jaas_config=jaas)


# ------------------------------------------------------------ checks


def check_logins(config: BrokerConfig) -> None:
    """Raises `ConfigError` for logins that cannot work, or would let in more than is meant."""
    mechanisms = login_mechanisms(config)
    for name, enabled in mechanisms.items():
        if not enabled:
            raise ConfigError(f"sasl.enabled.mechanisms: expected a mechanism for the listener {name}, found none")
    for listener in config.serving_listeners:
        check_secrets_are_hidden(listener, mechanisms.get(listener.name, ()))
    if config.sasl_jaas_config:
        check_jaas(JAAS, config.sasl_jaas_config)
    if config.inter_broker_listener.has_logins:
        _check_broker_login(config, mechanisms[config.inter_broker_listener.name])
    _check_token_logins(config)


def _check_broker_login(config: BrokerConfig, enabled: Sequence[str]) -> None:
    mechanism = config.sasl_mechanism_inter_broker_protocol
    if mechanism not in enabled:
        raise ConfigError(
            "sasl.mechanism.inter.broker.protocol: expected one of sasl.enabled.mechanisms of its listener, "
            f"{', '.join(enabled)}, found {mechanism}"
        )
    if mechanism == OAUTHBEARER:
        broker_token(config)
    else:
        broker_login(config)


def _check_token_logins(config: BrokerConfig) -> None:
    listeners = token_listeners(config)
    for name, own in listeners.items():
        try:
            _check_token_rules(own)
        except ConfigError as error:
            raise ConfigError(f"listener {name}: {error}") from None
    if listeners:
        return
    others = ("jwks_endpoint_url", "expected_issuer", "expected_audience", "expected_scope")
    useless = [name.replace("_", ".") for name in others if getattr(config, f"sasl_oauthbearer_{name}")]
    if useless:
        raise ConfigError(
            f"sasl.oauthbearer.{useless[0]}: expected a listener with SASL beside it, and OAUTHBEARER in "
            "sasl.enabled.mechanisms"
        )


def _check_token_rules(own: BrokerConfig) -> None:
    """Check the token settings of a listener with OAUTHBEARER."""
    for name in ("issuer", "audience"):
        if not getattr(own, f"sasl_oauthbearer_expected_{name}"):
            raise ConfigError(
                f"sasl.oauthbearer.expected.{name}: expected one beside OAUTHBEARER, found none: tokens for other "
                "services would be accepted"
            )
    if own.sasl_oauthbearer_principal_prefix and not is_seen(own.sasl_oauthbearer_principal_prefix):
        raise ConfigError(
            "sasl.oauthbearer.principal.prefix: expected characters that are seen, without blanks around them, found "
            f"{own.sasl_oauthbearer_principal_prefix!a}"
        )
    key_set_url(own)
    backoff = "sasl.oauthbearer.jwks.endpoint.retry.backoff"
    check_at_most(own, f"{backoff}.ms", f"{backoff}.max.ms")


def unused_login_settings(config: BrokerConfig) -> Sequence[str]:
    """Return a text for the operator for each setting about logins that has no effect, because no listener has logins.
    It is no error, since it opens nothing, but the operator may believe that callers have to log in."""
    found = []
    for names, is_used, expected in (
        (_OF_LOGINS, config.has_logins, "a listener"),
        (_OF_BROKER_LOGINS, config.inter_broker_listener.has_logins, "an inter-broker listener"),
    ):
        changed = [name for name in names if getattr(config, field_name(name)) != BROKER_CONFIGS[name].default]
        if changed and not is_used:
            what = f"expected {expected} of the protocol {' or '.join(SASL_PROTOCOLS)} beside {', '.join(changed)}"
            found.append(f"{what}, found none: {'it has' if len(changed) == 1 else 'they have'} no effect")
    return found


TRUST_DOMAIN = r"[a-z0-9._-]{1,255}"
_TEXT = r"((?:\\.|[^\\/])*)"
_RULE = re.compile(
    rf"\s*(?:(?P<default>DEFAULT)|(?P<spiffe>SPIFFE(?::({TRUST_DOMAIN}))?)|RULE:{_TEXT}/{_TEXT}/([LU]?))\s*(?:,|$)"
)


@dataclass(frozen=True, slots=True)
class DefaultRule:
    """The distinguished name as it is."""


@dataclass(frozen=True, slots=True)
class PatternRule:
    text: str  # the rule as configured
    pattern: str
    replacement: str
    case: str  # L, U or nothing


@dataclass(frozen=True, slots=True)
class SpiffeRule:
    trust_domain: str | None  # None: any


MappingRule = DefaultRule | PatternRule | SpiffeRule


def parse_mapping_rules(text: str) -> Sequence[MappingRule]:
    r"""Parse the rules by which certificates name clients (ssl.principal.mapping.rules); there is at least one. Raises
    `ConfigError`. `bus.broker_api.certificate_principals` applies the rules, and checks their patterns.

    Rules are separated by commas; the first one that matches a certificate decides. Kafka's rules (KIP-371) match its
    distinguished name: `RULE:pattern/replacement/` if the pattern matches the whole name, with `L` or `U` behind it for
    small letters or capitals, and `DEFAULT`, the name as it is. A slash in a pattern is written `\/`; `$1` in a
    replacement is the first group of the pattern. `SPIFFE` matches certificates with a SPIFFE id, which becomes the
    name, and `SPIFFE:domain` those of one trust domain."""
    rules: list[MappingRule] = []
    position = 0
    while position < len(text):
        found = _RULE.match(text, position)
        if found is None:
            raise unreadable(text[position:])
        rules.append(_rule(found))
        position = found.end()
    if not rules:
        raise unreadable(text)
    return rules


def _rule(found: re.Match[str]) -> MappingRule:
    if found["default"]:
        return DefaultRule()
    if found["spiffe"]:
        return SpiffeRule(found[3])
    return PatternRule(found[0].strip(" ,"), found[4], found[5], found[6])


def unreadable(text: str, reason: str = "") -> ConfigError:
    return ConfigError(
        "ssl.principal.mapping.rules: expected DEFAULT, SPIFFE, SPIFFE:trust.domain or RULE:pattern/replacement/[LU], "
        f"with commas between rules, found {text!r}{reason and f': {reason}'}"
    )
