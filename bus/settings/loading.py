"""Reads the settings of a broker, and checks that they fit together.

Guards one promise: a wrong setting stops the start with the key, what was expected and what was found, never later.
Reads nothing but the one file that `load_broker_config` is asked to read, and what the variables in it name.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from bus.model import SSL, TLS_PROTOCOLS
from bus.settings.broker import BROKER_CONFIGS, BrokerConfig
from bus.settings.files import Resolved, flatten, read_toml, resolve
from bus.settings.kafka_keys import absent_key_message
from bus.settings.keys import ConfigError, ConfigValue, Key, check_at_most, field_name
from bus.settings.listener_overrides import PREFIX, check_use, find_override
from bus.settings.listeners import SSL_KEY_SETTINGS, check_guarded, check_reachable
from bus.settings.login_settings import check_logins, login_mechanisms, parse_mapping_rules

_PROVIDERS_KEY = "config.providers"


def load_broker_config(path: str | Path | None = None, overrides: Mapping[str, object] | None = None) -> BrokerConfig:
    """The settings in the TOML file at `path` if one is given, changed by `overrides`, the rest at their defaults.

    Both use the names of `BROKER_CONFIGS`, and `listener.name.<name>.` before those of `LISTENER_KEYS`. An override
    that is a text is parsed, as command lines and environments have only texts; any other must have the key's type.
    Raises `ConfigError` for a file that cannot be read or is no TOML (with line and column), an unknown key (with the
    nearest known one), a wrong value.
    """
    given = [] if path is None else [(name, value, f"{path}: ") for name, value in _read_settings(Path(path)).items()]
    given += [(name, value, "") for name, value in (overrides or {}).items()]
    given = _without_variables(given)
    settings: dict[str, Any] = {}
    for name, value, where in given:
        if not name.startswith(PREFIX):
            with _located(where):
                settings[field_name(name)] = _value(_broker_key(name), value, where)
    config = _fit_memory(BrokerConfig(**settings), settings.keys())
    own = [one for one in given if one[0].startswith(PREFIX)]
    config = replace(config, listener_overrides=_parse_overrides(config, own))
    _check_overrides(config, own)
    _check_listeners(config)
    _check_authorizer(config)
    check_at_most(config, "group.min.session.timeout.ms", "group.max.session.timeout.ms")
    _check_heartbeats(config)
    check_at_most(config, "log.cleaner.min.compaction.lag.ms", "log.cleaner.max.compaction.lag.ms")
    return config


def literal_secrets(settings: Iterable[tuple[str, str]]) -> list[str]:
    """Names of those that are secrets and are given as they are, and not by a variable."""
    secret = [name for name, key in BROKER_CONFIGS.items() if key.is_secret]

    def is_secret(name: str) -> bool:
        return name in secret or (name.startswith(PREFIX) and any(name.endswith(f".{one}") for one in secret))

    return [name for name, value in settings if value and "${" not in value and is_secret(name)]


_Given = tuple[str, object, str]  # name, value, and the beginning of messages about it: empty, or the file


def _without_variables(given: Sequence[_Given]) -> list[_Given]:
    """Return the values with their variables resolved. Raises `ConfigError`."""
    of_providers: dict[str, Any] = {}
    for name, value, where in given:
        if name == _PROVIDERS_KEY:
            with _located(where):
                of_providers[field_name(name)] = _value(BROKER_CONFIGS[name], value, where)
    enabled = BrokerConfig(**of_providers).config_providers
    found: list[_Given] = []
    for name, value, where in given:
        with _located(f"{where}{name}: "):
            found.append((name, value if name == _PROVIDERS_KEY else resolve(value, enabled), where))
    return found


# The memory of a broker before its first client comes, plus encoding and decoding beyond the bounds.
_BASE_BYTES = 160 * 1024 * 1024
# Each bound's share of the rest. Answers take as much again as requests, and other calls a quarter of it.
_SHARES_OF_MEMORY = {
    "queued_max_request_bytes": 1 / 4,
    "queued_max_bytes": 1 / 4,
    "log_cache_bytes": 1 / 8,
    "transaction_staged_cache_bytes": 1 / 8,
    "fetch_max_bytes": 1 / 16,
}


def _fit_memory(config: BrokerConfig, given: Collection[str]) -> BrokerConfig:
    """Lower bounds so that they fit into `memory.max.bytes`; those that were `given` stay, and none becomes larger."""
    if config.memory_max_bytes == 0:
        return config
    room = config.memory_max_bytes - _BASE_BYTES
    lowered = {
        name: min(getattr(config, name), int(room * share))
        for name, share in _SHARES_OF_MEMORY.items()
        if name not in given
    }
    return replace(config, **lowered)


def _parse_overrides(config: BrokerConfig, given: Iterable[_Given]) -> dict[str, dict[str, ConfigValue]]:
    """`listener.name.<name>.<key>`, by listener and key."""
    found: dict[str, dict[str, ConfigValue]] = {}
    names: dict[tuple[str, str], str] = {}
    for name, value, where in given:
        with _located(where):
            override = find_override(name, config.serving_listeners, BROKER_CONFIGS)
            other = names.setdefault((override.listener.name, override.own_key), name)
            if other != name:
                raise ConfigError(f"expected either {other} or {name}, which mean the same, found both")
            found.setdefault(override.listener.name, {})[override.own_key] = _value(override.key, value, where)
    return found


def _check_overrides(config: BrokerConfig, given: Iterable[_Given]) -> None:
    """That each of them has an effect."""
    mechanisms = login_mechanisms(config)
    for name, _, where in given:
        with _located(where):
            override = find_override(name, config.serving_listeners, BROKER_CONFIGS)
            check_use(
                override,
                enabled=mechanisms.get(override.listener.name, ()),
                inter_broker=config.inter_broker_listener,
                broker_mechanism=config.sasl_mechanism_inter_broker_protocol,
            )


def _value(key: Key, value: object, where: str) -> Any:
    """Command lines and variables have only texts, files have types."""
    if isinstance(value, Resolved):
        return replace(key, is_secret=True).parse(str(value))
    return key.parse(value) if isinstance(value, str) and not where else key.check(value)


@contextmanager
def _located(where: str) -> Iterator[None]:
    """Errors raised within begin with `where`."""
    try:
        yield
    except ConfigError as error:
        raise ConfigError(f"{where}{error}") from None


def _broker_key(name: str) -> Key:
    key = BROKER_CONFIGS.get(name)
    if key is None:
        raise ConfigError(absent_key_message(name, BROKER_CONFIGS))
    return key


def _check_listeners(config: BrokerConfig) -> None:
    short = {name: getattr(config, name) for name in ("listen", "advertise")}
    changed = [name for name, value in short.items() if value != BROKER_CONFIGS[name].default]
    if config.listeners and changed:
        raise ConfigError(f"expected either listeners or {changed[0]}, its short form, found both")
    others = ("listener_security_protocol_map", "advertised_listeners", "inter_broker_listener_name")
    alone = [name.replace("_", ".") for name in others if getattr(config, name)]
    if not config.listeners and alone:
        raise ConfigError(f"{alone[0]}: expected listeners beside it, found none")
    serving = config.serving_listeners
    config.inter_broker_listener  # noqa: B018  raises
    check_guarded(
        serving,
        certified=[one for one in serving if config.needs_client_certificate(one)],
        is_insecure_allowed=config.allow_insecure_listeners,
    )
    check_reachable(serving, is_short_form=not config.listeners, has_advertised=bool(config.advertise))
    config.key_files  # noqa: B018  raises
    _check_tls_use(config)
    check_logins(config)
    for listener in serving:
        parse_mapping_rules(config.of_listener(listener).ssl_principal_mapping_rules)


def _check_tls_use(config: BrokerConfig) -> None:
    """Certificates that no listener shows, or asks clients for, would leave an operator believing that there is TLS."""
    given = [name for name in SSL_KEY_SETTINGS if getattr(config, field_name(name))]
    protocols = {one.protocol for one in config.serving_listeners}
    if config.ssl_client_auth == "required" and SSL not in protocols:
        raise ConfigError(f"ssl.client.auth: expected a listener of the protocol {SSL} beside it, {_found(protocols)}")
    if given and not protocols & set(TLS_PROTOCOLS):
        expected = " or ".join(TLS_PROTOCOLS)
        raise ConfigError(f"{given[0]}: expected a listener of the protocol {expected} beside it, {_found(protocols)}")


def _found(protocols: Iterable[str]) -> str:
    return f"as listeners=SSL://HOST:PORT; found {', '.join(sorted(protocols))}"


def _check_authorizer(config: BrokerConfig) -> None:
    config.acl_policy  # noqa: B018  raises
    others = ("super_users", "allow_everyone_if_no_acl_found")
    useless = [name.replace("_", ".") for name in others if getattr(config, name)]
    if useless and not config.authorizer_class_name:
        raise ConfigError(f"{useless[0]}: expected authorizer.class.name=acl beside it, found none")


def _check_heartbeats(config: BrokerConfig) -> None:
    interval, timeout = config.broker_heartbeat_interval_ms, config.broker_session_timeout_ms
    if interval >= timeout:
        raise ConfigError(
            f"expected broker.heartbeat.interval.ms below broker.session.timeout.ms, {timeout}, found {interval}"
        )


def _read_settings(path: Path) -> dict[str, object]:
    document = read_toml(path)
    try:
        return flatten(document)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from None
