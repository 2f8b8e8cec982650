"""The settings of the producer, and which of them depend on one another."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Any

from bus.client.config import values
from bus.client.config.connection import ConnectionConfig
from bus.client.config.values import (
    ANY_MILLISECONDS,
    INSTANCES,
    SERIALIZERS,
    SOME_MILLISECONDS,
    choice,
    conflict,
    instances_of,
    integer,
    literal,
    object_of,
    setting,
)

_ACKS = {"all": -1, "-1": -1, -1: -1, "1": 1, 1: 1, "0": 0, 0: 0}
_COMPRESSIONS = {name: name for name in ("none", "gzip", "snappy", "lz4", "zstd")}

# How many requests of one producer the leader remembers for each partition: with more on their way, the first of them
# could no longer be told from a new one. (Kafka's NUM_BATCHES_TO_RETAIN.)
_IDEMPOTENT_IN_FLIGHT_MAX = 5


@dataclass(frozen=True, slots=True)
class ProducerConfig(ConnectionConfig):
    """`name`, the identity that outlives the process, is the bus's own; `partitioner` and `interceptors` are Kafka's
    partitioner.class and interceptor.classes, as objects."""

    client_id: str = setting("bus-producer", values.client_id)
    name: str | None = setting(None, values.name)
    transactional_id: str | None = setting(None, values.identity)
    transaction_timeout_ms: int = setting(60_000, SOME_MILLISECONDS)
    acks: int = setting(-1, choice(_ACKS), typed=literal(_ACKS))
    enable_idempotence: bool = setting(True, values.boolean)
    linger_ms: int = setting(5, ANY_MILLISECONDS)
    batch_size: int = setting(16_384, integer(0))  # 0: every record is a batch of its own
    buffer_memory: int = setting(33_554_432, integer(1_024, 2**62))
    max_block_ms: int = setting(60_000, ANY_MILLISECONDS)
    max_request_size: int = setting(1_048_576, integer(1_024))
    max_in_flight_requests_per_connection: int = setting(5, integer(1))
    compression_type: str = setting("none", choice(_COMPRESSIONS), typed=literal(_COMPRESSIONS))
    compression_gzip_level: int = setting(-1, integer(1, 9, besides=-1))
    compression_lz4_level: int = setting(9, integer(1, 17))
    compression_zstd_level: int = setting(3, integer(-131_072, 22))
    delivery_timeout_ms: int = setting(120_000, SOME_MILLISECONDS)
    retries: int = setting(2**31 - 1, integer(0))
    partitioner: Any = setting(None, values.partitioner, reader=object_of({}))
    partitioner_ignore_keys: bool = setting(False, values.boolean)
    partitioner_adaptive_partitioning_enable: bool = setting(True, values.boolean)
    partitioner_availability_timeout_ms: int = setting(0, ANY_MILLISECONDS)  # 0: no partition is left out for it
    key_serializer: Any = setting(None, values.serializer, reader=object_of(SERIALIZERS))
    value_serializer: Any = setting(None, values.serializer, reader=object_of(SERIALIZERS))
    interceptors: tuple[Any, ...] = setting(
        (), values.interceptors("on_send", "on_acknowledgement", "close"), typed=INSTANCES, reader=instances_of
    )
    metrics_sample_window_ms: int = setting(30_000, SOME_MILLISECONDS)
    metrics_num_samples: int = setting(2, integer(1))


def reconcile(config: ProducerConfig, given: Collection[str]) -> ProducerConfig:
    """`given`: the names of those that are no defaults. Raises `BusError` INVALID_CONFIG."""
    _check_transactions(config, given)
    config = _reconcile_idempotence(config, given)
    config = _reconcile_delivery_timeout(config, given)
    return _reconcile_sizes(config, given)


def _check_transactions(config: ProducerConfig, given: Collection[str]) -> None:
    """A name and a transactional id are two identities; and transactions need idempotence."""
    if config.transactional_id is None:
        if "transaction_timeout_ms" in given:
            raise conflict("transaction_timeout_ms: expected a transactional_id beside it, found none")
        return
    identity = f"transactional_id={config.transactional_id!r}"
    if config.name is not None:
        raise conflict(f"{identity}: expected no name beside it, found name={config.name!r}")
    if not config.enable_idempotence:
        raise conflict(f"{identity}: expected enable_idempotence=True, found False")
    if config.acks != -1 or config.retries == 0:
        raise conflict(
            f"{identity}: expected acks='all' and retries above 0, found acks={config.acks} and "
            f"retries={config.retries}"
        )


def _reconcile_idempotence(config: ProducerConfig, given: Collection[str]) -> ProducerConfig:
    """Idempotence needs acks=all, retries and few requests in flight. Acks and retries turn it off unless it was asked
    for; too many in flight are an error, as in Kafka 4."""
    if config.enable_idempotence:
        is_asked_for = "enable_idempotence" in given
        if config.acks != -1 or config.retries == 0:
            wrong = f"acks='all', found acks={config.acks}" if config.acks != -1 else "retries above 0, found retries=0"
            if is_asked_for:
                raise conflict(f"enable_idempotence=True: expected {wrong}")
            if config.name is not None:
                raise conflict(f"name={config.name!r} needs enable_idempotence: expected {wrong}")
            config = replace(config, enable_idempotence=False)
        elif config.max_in_flight_requests_per_connection > _IDEMPOTENT_IN_FLIGHT_MAX:
            raise conflict(
                f"enable_idempotence=True: expected max_in_flight_requests_per_connection of at most "
                f"{_IDEMPOTENT_IN_FLIGHT_MAX}, found {config.max_in_flight_requests_per_connection}; "
                f"with enable_idempotence=False there may be more"
            )
    elif config.name is not None:
        raise conflict(f"name={config.name!r}: expected enable_idempotence=True, found False")
    return config


def _reconcile_delivery_timeout(config: ProducerConfig, given: Collection[str]) -> ProducerConfig:
    """A record has time for its linger and for one request at least (KIP-91)."""
    least = min(config.linger_ms + config.request_timeout_ms, 2**31 - 1)
    if config.delivery_timeout_ms >= least:
        return config
    if "delivery_timeout_ms" in given:
        raise conflict(
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
            raise conflict(f"expected {name} of at most buffer_memory={config.buffer_memory}, found {size}")
        lowered: Any = {name: config.buffer_memory}
        config = replace(config, **lowered)
    return config
