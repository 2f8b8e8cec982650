"""Parses the settings of a client: Kafka's names with underscores for dots, each checked when it is given.

Guards one promise: no setting is silently ignored. A name that is not known is refused, with one that is written alike
if there is any; one of Kafka's that is not honoured with the reason; a value that cannot work, alone or beside another,
is refused before any connection is made. Where two settings conflict and only one of them was given, the other one, a
default, gives way as it does in Kafka.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from bus.addresses import parse_address
from bus.client.arguments import WrongType
from bus.client.config.clients import (
    AdminConfig,
    ConsumerConfig,
    ProducerConfig,
    reconcile_consumer,
    reconcile_producer,
)
from bus.client.config.security import SECURITY_SETTINGS, check_security, reason_of_absence, with_passwords
from bus.client.config.sources import (
    ADDRESS_VARIABLE,
    PROFILE_VARIABLE,
    FoundSettings,
    default_addresses,
    with_defaults,
)
from bus.client.config.values import conflict
from bus.errors import BusError, ErrorCode, did_you_mean, near_names
from bus.settings.keys import WrongSetting, is_text, keys_of

ClientConfig = AdminConfig | ProducerConfig | ConsumerConfig
_KINDS: dict[type[ClientConfig], str] = {
    ProducerConfig: "a producer",
    ConsumerConfig: "a consumer",
    AdminConfig: "an admin client",
}
_KEYS = {kind: keys_of(kind, "_") for kind in _KINDS}
_BACKOFFS = (("retry_backoff_ms", "retry_backoff_max_ms"), ("reconnect_backoff_ms", "reconnect_backoff_max_ms"))
ConfigT = TypeVar("ConfigT", AdminConfig, ProducerConfig, ConsumerConfig)

_GRPC_SOCKETS = "gRPC sizes and keeps its own connections"
_OWN_METRICS = "metrics are read with metrics(), all of them, whenever you like"
_FIRST_ARGUMENT = 'give the address as the first argument, such as "127.0.0.1:9094"'

# Given in place of an address that is missing.
MISSING: Any = None

# Kafka's names that a user may well bring along and that are not honoured, each with what to do instead.
_NOT_SUPPORTED = {
    "bootstrap_servers": _FIRST_ARGUMENT,
    "bootstrap.servers": _FIRST_ARGUMENT,
    "address": _FIRST_ARGUMENT,
    "group_protocol": "groups rebalance by Kafka's classic protocol",
    "group_remote_assignor": "the group's leader assigns: give partition_assignment_strategy",
    "check_crcs": "every batch is checked when it is opened",
    "exclude_internal_topics": "a pattern never matches the bus's own topics",
    "transaction_two_phase_commit_enable": "a transaction has no second coordinator",
    "partitioner_class": "give a function or an object as partitioner",
    "interceptor_classes": "give a list of objects as interceptors",
    "metric_reporters": _OWN_METRICS,
    "metrics_recording_level": _OWN_METRICS,
    "enable_metrics_push": _OWN_METRICS,
    "metadata_max_idle_ms": "topics that were used stay known for as long as the client lives",
    "metadata_recovery_strategy": "every address is asked again whenever no broker answers",
    "metadata_recovery_rebootstrap_trigger_ms": "every address is asked again whenever no broker answers",
    "client_dns_lookup": "every address of a name is tried, by gRPC",
    "send_buffer_bytes": _GRPC_SOCKETS,
    "receive_buffer_bytes": _GRPC_SOCKETS,
    "connections_max_idle_ms": _GRPC_SOCKETS,
    "socket_connection_setup_timeout_ms": f"{_GRPC_SOCKETS}; bound a call with request_timeout_ms",
    "socket_connection_setup_timeout_max_ms": f"{_GRPC_SOCKETS}; bound a call with request_timeout_ms",
    "config_providers": "give the values themselves",
}


def parse_config(kind: type[ConfigT], given: Mapping[str, Any]) -> ConfigT:
    """The settings of `kind`, `given` over those of other sources and these over the defaults. Raises `BusError`
    INVALID_CONFIG, which names the sources of settings if one of them was not given."""
    return parse_with_origins(kind, given)[0]


def parse_with_origins(kind: type[ConfigT], given: Mapping[str, Any]) -> tuple[ConfigT, Mapping[str, str]]:
    """Parse as `parse_config` does, and say where each setting is from that is no default."""
    found = with_defaults(given, _KEYS[kind])
    checked = _check_each(kind, found)
    try:
        return _check_together(kind, checked), found.origins
    except BusError as error:
        raise BusError(error.code, f"{error.message}{found.show_origins(error.message)}") from None


def _check_each(kind: type[ConfigT], settings: FoundSettings) -> dict[str, Any]:
    keys = _KEYS[kind]
    checked: dict[str, Any] = {}
    for name, value in settings.values.items():
        key = keys.get(name)
        if key is None:
            raise BusError(ErrorCode.INVALID_CONFIG, _unknown_config(kind, name, keys))
        is_typed = settings.is_given(name) and name not in SECURITY_SETTINGS
        try:
            checked[name] = key.check(value) if is_typed else key.parse(value)
        except WrongSetting as wrong:
            where = f"{name}{settings.show_origin(name)}"
            raise conflict(f"{where}: expected {wrong.expected}, found {wrong.found}") from None
    return checked


def _check_together(kind: type[ConfigT], checked: Mapping[str, Any]) -> ConfigT:
    config: Any = _reconcile_backoffs(kind(**checked), checked)
    check_security(config, checked)
    config = with_passwords(config)
    if isinstance(config, ProducerConfig):
        config = reconcile_producer(config, checked)
    elif isinstance(config, ConsumerConfig):
        config = reconcile_consumer(config, checked)
    return config  # type: ignore[no-any-return]


def _unknown_config(kind: type[ClientConfig], name: str, known: Iterable[str]) -> str:
    if name in _NOT_SUPPORTED:
        return f"{name}: {_NOT_SUPPORTED[name]}"
    reason = reason_of_absence(name)
    if reason is not None:
        return f"{name}: {reason}"
    for other, other_name in _KINDS.items():
        if other is not kind and name in _KEYS[other]:
            return f"expected a config of {_KINDS[kind]}, found {name!r}, which is one of {other_name}"
    meant = did_you_mean(map(repr, near_names(name.replace(".", "_").lower(), known)))
    return f"expected a known config, found {name!r}{meant}"


@dataclass(frozen=True, slots=True)
class EffectiveSetting:
    """`origin`: "default", or which source it is from."""

    name: str
    value: Any
    origin: str


def describe(config: ClientConfig, origins: Mapping[str, str]) -> dict[str, EffectiveSetting]:
    """All settings by their names. What may be a secret is not shown: its value is "(hidden)"."""
    described = {}
    for name, key in _KEYS[type(config)].items():
        value = getattr(config, name)
        shown = "(hidden)" if key.is_secret and value else value
        described[name] = EffectiveSetting(name, shown, origins.get(name, "default"))
    return described


# ---------------------------------------------------------------- settings that depend on one another


def _reconcile_backoffs(config: ConfigT, given: Collection[str]) -> ConfigT:
    """The largest back-off is never below the first one; the one that was given decides."""
    for name, name_max in _BACKOFFS:
        first, largest = getattr(config, name), getattr(config, name_max)
        if first <= largest:
            continue
        if name in given and name_max in given:
            raise conflict(f"expected {name_max} to be at least {name}={first}, found {largest}")
        config = replace(config, **({name_max: first} if name in given else {name: largest}))
    return config


def client_addresses(address: Any, given: Mapping[str, Any]) -> tuple[str, ...]:
    """Those of a client with the settings `given`: if `address` is none, of BUS_ADDRESS, else of the profile. Raises
    `BusError` INVALID_CONFIG."""
    return parse_addresses(default_addresses(given) if address is None else address)


def parse_addresses(address: Any) -> tuple[str, ...]:
    """`"host:port"`, several of them in one text with commas between, or a list. Raises `BusError` INVALID_CONFIG."""
    if isinstance(address, str):
        address = address.split(",")
    if not isinstance(address, (list, tuple)):
        raise _no_address(address)
    addresses = [part.strip() if isinstance(part, str) else part for part in address]
    found: list[str] = []
    for part in addresses or [""]:
        if not isinstance(part, str):
            raise _no_address(part)
        if not is_text(part):
            raise BusError(ErrorCode.INVALID_CONFIG, f"expected an address that has a form in UTF-8, found {part!r}")
        if any(sign in part for sign in "/\\@?# \t\r\n"):
            raise BusError(
                ErrorCode.INVALID_CONFIG, f"expected an address as host:port, without scheme and path, found {part!r}"
            )
        try:
            found.append(str(parse_address(part, port_min=1)))
        except ValueError as error:
            raise BusError(ErrorCode.INVALID_CONFIG, str(error)) from None
    return tuple(found)


def _no_address(found: Any) -> WrongType:
    """A program brought the way of another client along, or forgot the address."""
    example = f"{_FIRST_ARGUMENT}, and settings by their names behind it"
    if found is None:
        example += f"; or set {ADDRESS_VARIABLE}, or name a profile that has bootstrap.servers ({PROFILE_VARIABLE})"
    kind = "none" if found is None else type(found).__name__
    return WrongType(
        ErrorCode.INVALID_CONFIG, f"expected an address as host:port, or a list of them, found {kind}: {example}"
    )
