"""The settings of the clients: Kafka's names with underscores for dots, its defaults, each checked when it is given.

Guards one promise: no setting is silently ignored. A name that is not known is refused together with the nearest one
that is; a value that cannot work is refused before any connection is made.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, TypeVar

from bus.errors import BusError, ErrorCode

_Check = Callable[[Any], Any]  # the value to use; raises ValueError that says what was expected


def _setting(default: Any, check: _Check) -> Any:
    return field(default=default, metadata={"check": check})


def _at_least(minimum: int, maximum: int = 2**31 - 1) -> _Check:
    def check(value: Any) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or not minimum <= value <= maximum:
            raise ValueError(f"an integer from {minimum} to {maximum}")
        return value

    return check


def _one_of(choices: Mapping[Any, Any]) -> _Check:
    def check(value: Any) -> Any:
        if isinstance(value, bool) or value not in choices:
            raise ValueError("one of " + ", ".join(map(repr, choices)))
        return choices[value]

    return check


def _client_id(value: Any) -> str:
    # It travels as a gRPC header, which carries printable ASCII only.
    if not isinstance(value, str) or not (value.isascii() and value.isprintable()):
        raise ValueError("printable ASCII text")
    return value


_ANY_MILLISECONDS = _at_least(0)
_SOME_MILLISECONDS = _at_least(1)
_ACKS = {"all": -1, "-1": -1, -1: -1, "1": 1, 1: 1, "0": 0, 0: 0}
_COMPRESSIONS = {"none": "none", "lz4": "lz4", "zstd": "zstd"}
_RESETS = {"earliest": "earliest", "latest": "latest", "none": "none"}


@dataclass(frozen=True, slots=True)
class AdminConfig:
    client_id: str = _setting("bus-admin", _client_id)
    request_timeout_ms: int = _setting(30_000, _SOME_MILLISECONDS)
    retries: int = _setting(2**31 - 1, _at_least(0))
    retry_backoff_ms: int = _setting(100, _ANY_MILLISECONDS)
    retry_backoff_max_ms: int = _setting(1_000, _ANY_MILLISECONDS)
    reconnect_backoff_ms: int = _setting(50, _SOME_MILLISECONDS)
    reconnect_backoff_max_ms: int = _setting(1_000, _SOME_MILLISECONDS)
    metadata_max_age_ms: int = _setting(300_000, _ANY_MILLISECONDS)
    default_api_timeout_ms: int = _setting(60_000, _SOME_MILLISECONDS)


@dataclass(frozen=True, slots=True)
class ProducerConfig:
    client_id: str = _setting("bus-producer", _client_id)
    acks: int = _setting(-1, _one_of(_ACKS))
    request_timeout_ms: int = _setting(30_000, _SOME_MILLISECONDS)
    delivery_timeout_ms: int = _setting(120_000, _SOME_MILLISECONDS)
    retries: int = _setting(2**31 - 1, _at_least(0))
    retry_backoff_ms: int = _setting(100, _ANY_MILLISECONDS)
    retry_backoff_max_ms: int = _setting(1_000, _ANY_MILLISECONDS)
    reconnect_backoff_ms: int = _setting(50, _SOME_MILLISECONDS)
    reconnect_backoff_max_ms: int = _setting(1_000, _SOME_MILLISECONDS)
    metadata_max_age_ms: int = _setting(300_000, _ANY_MILLISECONDS)
    max_request_size: int = _setting(1_048_576, _at_least(1_024))
    compression_type: str = _setting("none", _one_of(_COMPRESSIONS))
    max_in_flight_requests_per_connection: int = _setting(5, _at_least(1))
    buffer_memory: int = _setting(33_554_432, _at_least(1_024, 2**62))
    max_block_ms: int = _setting(60_000, _ANY_MILLISECONDS)


@dataclass(frozen=True, slots=True)
class ConsumerConfig:
    client_id: str = _setting("bus-consumer", _client_id)
    auto_offset_reset: str = _setting("latest", _one_of(_RESETS))
    fetch_min_bytes: int = _setting(1, _at_least(0))
    fetch_max_wait_ms: int = _setting(500, _ANY_MILLISECONDS)
    fetch_max_bytes: int = _setting(52_428_800, _at_least(1))
    max_partition_fetch_bytes: int = _setting(1_048_576, _at_least(1))
    max_poll_records: int = _setting(500, _at_least(1))
    request_timeout_ms: int = _setting(30_000, _SOME_MILLISECONDS)
    default_api_timeout_ms: int = _setting(60_000, _SOME_MILLISECONDS)
    retry_backoff_ms: int = _setting(100, _ANY_MILLISECONDS)
    retry_backoff_max_ms: int = _setting(1_000, _ANY_MILLISECONDS)
    reconnect_backoff_ms: int = _setting(50, _SOME_MILLISECONDS)
    reconnect_backoff_max_ms: int = _setting(1_000, _SOME_MILLISECONDS)
    metadata_max_age_ms: int = _setting(300_000, _ANY_MILLISECONDS)


ClientConfig = AdminConfig | ProducerConfig | ConsumerConfig
ConfigT = TypeVar("ConfigT", AdminConfig, ProducerConfig, ConsumerConfig)

# Kafka's names that a user may well bring along and that this version does not honour, each with what to do instead.
_NOT_SUPPORTED = {
    "group_id": "consumer groups are not supported yet: name the partitions with assign()",
    "group_instance_id": "consumer groups are not supported yet: name the partitions with assign()",
    "enable_auto_commit": "consumer groups are not supported yet: keep the position where you keep your results",
    "linger_ms": "records are sent at once in this version: use send_batch() to send many together",
    "batch_size": "records are sent at once in this version: use send_batch() to send many together",
    "enable_idempotence": "this version delivers at least once",
    "transactional_id": "transactions are not supported yet",
    "bootstrap_servers": "give the address as the first argument",
    "key_serializer": "keys and values are bytes in this version",
    "value_serializer": "keys and values are bytes in this version",
    "key_deserializer": "keys and values are bytes in this version",
    "value_deserializer": "keys and values are bytes in this version",
}


def parse_config(kind: type[ConfigT], given: Mapping[str, Any]) -> ConfigT:
    """The settings of `kind`, `given` over the defaults. Raises `BusError` INVALID_CONFIG."""
    checks: dict[str, _Check] = {setting.name: setting.metadata["check"] for setting in fields(kind)}
    values: dict[str, Any] = {}
    for name, value in given.items():
        if name not in checks:
            raise BusError(ErrorCode.INVALID_CONFIG, _unknown_config(name, list(checks)))
        try:
            values[name] = checks[name](value)
        except (ValueError, TypeError) as expected:
            raise BusError(ErrorCode.INVALID_CONFIG, f"{name}: expected {expected}, found {value!r}") from None
    return kind(**values)


def _unknown_config(name: str, known: list[str]) -> str:
    if name in _NOT_SUPPORTED:
        return f"{name}: {_NOT_SUPPORTED[name]}"
    nearest = difflib.get_close_matches(name.replace(".", "_").lower(), known, n=1, cutoff=0.0)
    return f"expected a known config, found {name!r}; the nearest one is {nearest[0]!r}"


def parse_addresses(address: str | list[str] | tuple[str, ...]) -> tuple[str, ...]:
    """`"host:port"`, several of them in one text with commas between, or a list. Raises `BusError` INVALID_CONFIG."""
    if isinstance(address, str):
        address = address.split(",")
    addresses = tuple(part.strip() for part in address)
    for part in addresses or ("",):
        host, colon, port = part.rpartition(":")
        if not (host and colon and port.isdecimal() and 0 < int(port) < 65536):
            raise BusError(ErrorCode.INVALID_CONFIG, f"expected an address as host:port, found {part!r}")
    return addresses
