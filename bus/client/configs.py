"""The settings of the clients: Kafka's names with underscores for dots, its defaults, each checked when it is given.

Guards one promise: no setting is silently ignored. A name that is not known is refused together with the nearest one
that is, one of Kafka's that is not honoured with the reason; a value that cannot work, alone or beside another, is
refused before any connection is made. Where two settings conflict and only one of them was given, the other one, a
default, gives way as it does in Kafka.
"""

from __future__ import annotations

import difflib
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, TypeVar

from bus.client import config_values as values
from bus.client.config_values import Check, choice, integer
from bus.errors import BusError, ErrorCode


def _setting(default: Any, check: Check) -> Any:
    return field(default=default, metadata=_checked_by(check))


def _checked_by(check: Check) -> Mapping[str, Check]:
    return {"check": check}


_ANY_MILLISECONDS = integer(0)
_SOME_MILLISECONDS = integer(1)
_ACKS = {"all": -1, "-1": -1, -1: -1, "1": 1, 1: 1, "0": 0, 0: 0}
_COMPRESSIONS = {name: name for name in ("none", "gzip", "snappy", "lz4", "zstd")}
_RESETS = {"earliest": "earliest", "latest": "latest", "none": "none"}


@dataclass(frozen=True, slots=True)
class AdminConfig:
    client_id: str = _setting("bus-admin", values.client_id)
    request_timeout_ms: int = _setting(30_000, _SOME_MILLISECONDS)
    retries: int = _setting(2**31 - 1, integer(0))
    retry_backoff_ms: int = _setting(100, _ANY_MILLISECONDS)
    retry_backoff_max_ms: int = _setting(1_000, _ANY_MILLISECONDS)
    reconnect_backoff_ms: int = _setting(50, _SOME_MILLISECONDS)
    reconnect_backoff_max_ms: int = _setting(1_000, _SOME_MILLISECONDS)
    metadata_max_age_ms: int = _setting(300_000, _ANY_MILLISECONDS)
    default_api_timeout_ms: int = _setting(60_000, _SOME_MILLISECONDS)


@dataclass(frozen=True, slots=True)
class ProducerConfig:
    """`name`, the identity that outlives the process, is the bus's own; `partitioner` and `interceptors` are Kafka's
    partitioner.class and interceptor.classes, as objects."""

    client_id: str = _setting("bus-producer", values.client_id)
    name: str | None = _setting(None, values.producer_name)
    acks: int = _setting(-1, choice(_ACKS))
    enable_idempotence: bool = _setting(True, values.boolean)
    linger_ms: int = _setting(5, _ANY_MILLISECONDS)
    batch_size: int = _setting(16_384, integer(0))  # 0: every record is a batch of its own
    buffer_memory: int = _setting(33_554_432, integer(1_024, 2**62))
    max_block_ms: int = _setting(60_000, _ANY_MILLISECONDS)
    max_request_size: int = _setting(1_048_576, integer(1_024))
    max_in_flight_requests_per_connection: int = _setting(5, integer(1))
    compression_type: str = _setting("none", choice(_COMPRESSIONS))
    compression_gzip_level: int = _setting(-1, integer(1, 9, besides=-1))
    compression_lz4_level: int = _setting(9, integer(1, 17))
    compression_zstd_level: int = _setting(3, integer(-131_072, 22))
    request_timeout_ms: int = _setting(30_000, _SOME_MILLISECONDS)
    delivery_timeout_ms: int = _setting(120_000, _SOME_MILLISECONDS)
    retries: int = _setting(2**31 - 1, integer(0))
    retry_backoff_ms: int = _setting(100, _ANY_MILLISECONDS)
    retry_backoff_max_ms: int = _setting(1_000, _ANY_MILLISECONDS)
    reconnect_backoff_ms: int = _setting(50, _SOME_MILLISECONDS)
    reconnect_backoff_max_ms: int = _setting(1_000, _SOME_MILLISECONDS)
    metadata_max_age_ms: int = _setting(300_000, _ANY_MILLISECONDS)
    partitioner: Any = field(default=None, metadata=_checked_by(values.partitioner))
    partitioner_ignore_keys: bool = _setting(False, values.boolean)
    partitioner_adaptive_partitioning_enable: bool = _setting(True, values.boolean)
    partitioner_availability_timeout_ms: int = _setting(0, _ANY_MILLISECONDS)  # 0: no partition is left out for it
    key_serializer: Any = field(default=None, metadata=_checked_by(values.serializer))
    value_serializer: Any = field(default=None, metadata=_checked_by(values.serializer))
    interceptors: tuple[Any, ...] = _setting((), values.interceptors)
    metrics_sample_window_ms: int = _setting(30_000, _SOME_MILLISECONDS)
    metrics_num_samples: int = _setting(2, integer(1))


@dataclass(frozen=True, slots=True)
class ConsumerConfig:
    client_id: str = _setting("bus-consumer", values.client_id)
    auto_offset_reset: str = _setting("latest", choice(_RESETS))
    fetch_min_bytes: int = _setting(1, integer(0))
    fetch_max_wait_ms: int = _setting(500, _ANY_MILLISECONDS)
    fetch_max_bytes: int = _setting(52_428_800, integer(1))
    max_partition_fetch_bytes: int = _setting(1_048_576, integer(1))
    max_poll_records: int = _setting(500, integer(1))
    request_timeout_ms: int = _setting(30_000, _SOME_MILLISECONDS)
    default_api_timeout_ms: int = _setting(60_000, _SOME_MILLISECONDS)
    retry_backoff_ms: int = _setting(100, _ANY_MILLISECONDS)
    retry_backoff_max_ms: int = _setting(1_000, _ANY_MILLISECONDS)
    reconnect_backoff_ms: int = _setting(50, _SOME_MILLISECONDS)
    reconnect_backoff_max_ms: int = _setting(1_000, _SOME_MILLISECONDS)
    metadata_max_age_ms: int = _setting(300_000, _ANY_MILLISECONDS)


ClientConfig = AdminConfig | ProducerConfig | ConsumerConfig
_KINDS: dict[type[ClientConfig], str] = {
    ProducerConfig: "a producer",
    ConsumerConfig: "a consumer",
    AdminConfig: "an admin client",
}
_BACKOFFS = (("retry_backoff_ms", "retry_backoff_max_ms"), ("reconnect_backoff_ms", "reconnect_backoff_max_ms"))
ConfigT = TypeVar("ConfigT", AdminConfig, ProducerConfig, ConsumerConfig)

# How many requests of one producer the leader remembers for each partition: with more on their way, the first of them
# could no longer be told from a new one. (Kafka's NUM_BATCHES_TO_RETAIN.)
_IDEMPOTENT_IN_FLIGHT_MAX = 5

_NO_GROUPS = "consumer groups are not supported yet: name the partitions with assign()"
_NO_TRANSACTIONS = "transactions are not supported yet"
_GRPC_SOCKETS = "gRPC sizes and keeps its own connections"
_OWN_METRICS = "metrics are read with Producer.metrics(), all of them, whenever you like"
_BYTES_ONLY = "keys and values are bytes in this version"
_NO_SECURITY = "connections are neither encrypted nor authenticated in this version"

# Kafka's names that a user may well bring along and that are not honoured, each with what to do instead.
_NOT_SUPPORTED = {
    "bootstrap_servers": "give the address as the first argument",
    "group_id": _NO_GROUPS,
    "group_instance_id": _NO_GROUPS,
    "enable_auto_commit": "consumer groups are not supported yet: keep the position where you keep your results",
    "key_deserializer": _BYTES_ONLY,
    "value_deserializer": _BYTES_ONLY,
    "transactional_id": f"{_NO_TRANSACTIONS}; for a producer that goes on after a restart use name",
    "transaction_timeout_ms": _NO_TRANSACTIONS,
    "transaction_two_phase_commit_enable": _NO_TRANSACTIONS,
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
    "security_protocol": _NO_SECURITY,
    "security_providers": _NO_SECURITY,
    "config_providers": "give the values themselves",
}
_NOT_SUPPORTED_PREFIXES = {"sasl_": _NO_SECURITY, "ssl_": _NO_SECURITY}


def parse_config(kind: type[ConfigT], given: Mapping[str, Any]) -> ConfigT:
    """The settings of `kind`, `given` over the defaults. Raises `BusError` INVALID_CONFIG."""
    checks: dict[str, Check] = {setting.name: setting.metadata["check"] for setting in fields(kind)}
    checked: dict[str, Any] = {}
    for name, value in given.items():
        if name not in checks:
            raise BusError(ErrorCode.INVALID_CONFIG, _unknown_config(kind, name, list(checks)))
        try:
            checked[name] = checks[name](value)
        except (ValueError, TypeError) as expected:
            raise BusError(ErrorCode.INVALID_CONFIG, f"{name}: expected {expected}, found {value!r}") from None
    config: Any = _reconcile_backoffs(kind(**checked), checked)
    if isinstance(config, ProducerConfig):
        config = _reconcile_idempotence(config, checked)
        config = _reconcile_delivery_timeout(config, checked)
        config = _reconcile_sizes(config, checked)
    return config  # type: ignore[no-any-return]


def _unknown_config(kind: type[ClientConfig], name: str, known: list[str]) -> str:
    if name in _NOT_SUPPORTED:
        return f"{name}: {_NOT_SUPPORTED[name]}"
    for prefix, reason in _NOT_SUPPORTED_PREFIXES.items():
        if name.startswith(prefix):
            return f"{name}: {reason}"
    for other, other_name in _KINDS.items():
        if other is not kind and name in {setting.name for setting in fields(other)}:
            return f"expected a config of {_KINDS[kind]}, found {name!r}, which is one of {other_name}"
    nearest = difflib.get_close_matches(name.replace(".", "_").lower(), known, n=1, cutoff=0.0)
    return f"expected a known config, found {name!r}; the nearest one is {nearest[0]!r}"


# ---------------------------------------------------------------- settings that depend on one another


def _conflict(message: str) -> BusError:
    return BusError(ErrorCode.INVALID_CONFIG, message)


def _reconcile_backoffs(config: ConfigT, given: Collection[str]) -> ConfigT:
    """The largest back-off is never below the first one; the one that was given decides."""
    for name, name_max in _BACKOFFS:
        first, largest = getattr(config, name), getattr(config, name_max)
        if first <= largest:
            continue
        if name in given and name_max in given:
            raise _conflict(f"expected {name_max} to be at least {name}={first}, found {largest}")
        config = replace(config, **({name_max: first} if name in given else {name: largest}))
    return config


def _reconcile_idempotence(config: ProducerConfig, given: Collection[str]) -> ProducerConfig:
    """Idempotence needs acks=all, retries and few requests in flight. Acks and retries turn it off unless it was asked
    for; too many in flight are an error, as in Kafka 4."""
    if config.enable_idempotence:
        is_asked_for = "enable_idempotence" in given
        if config.acks != -1 or config.retries == 0:
            wrong = f"acks='all', found acks={config.acks}" if config.acks != -1 else "retries above 0, found retries=0"
            if is_asked_for:
                raise _conflict(f"enable_idempotence=True: expected {wrong}")
            if config.name is not None:
                raise _conflict(f"name={config.name!r} needs enable_idempotence: expected {wrong}")
            config = replace(config, enable_idempotence=False)
        elif config.max_in_flight_requests_per_connection > _IDEMPOTENT_IN_FLIGHT_MAX:
            raise _conflict(
                f"enable_idempotence=True: expected max_in_flight_requests_per_connection of at most "
                f"{_IDEMPOTENT_IN_FLIGHT_MAX}, found {config.max_in_flight_requests_per_connection}; "
                f"with enable_idempotence=False there may be more"
            )
    elif config.name is not None:
        raise _conflict(f"name={config.name!r}: expected enable_idempotence=True, found False")
    return config


def _reconcile_delivery_timeout(config: ProducerConfig, given: Collection[str]) -> ProducerConfig:
    """A record has time for its linger and for one request at least (KIP-91)."""
    least = min(config.linger_ms + config.request_timeout_ms, 2**31 - 1)
    if config.delivery_timeout_ms >= least:
        return config
    if "delivery_timeout_ms" in given:
        raise _conflict(
            f"expected delivery_timeout_ms to be at least linger_ms={config.linger_ms} + "
            f"request_timeout_ms={config.request_timeout_ms}, found {config.delivery_timeout_ms}"
        )
    return replace(config, delivery_timeout_ms=least)


def _reconcile_sizes(config: ProducerConfig, given: Collection[str]) -> ProducerConfig:
    """A request or a batch larger than the whole buffer could never be sent."""
    for name in ("max_request_size", "batch_size"):
        size = getattr(config, name)
        if size <= config.buffer_memory:
            continue
        if name in given:
            raise _conflict(f"expected {name} of at most buffer_memory={config.buffer_memory}, found {size}")
        lowered: Any = {name: config.buffer_memory}
        config = replace(config, **lowered)
    return config


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
