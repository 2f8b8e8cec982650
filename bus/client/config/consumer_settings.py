"""The settings of the consumer, and which of them depend on one another."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Any

from bus.client.assignors import assignors_of
from bus.client.config import values
from bus.client.config.connection import ConnectionConfig
from bus.client.config.values import (
    ANY_MILLISECONDS,
    DESERIALIZERS,
    INSTANCES,
    SOME_MILLISECONDS,
    choice,
    conflict,
    instances_of,
    integer,
    literal,
    object_of,
    objects_of,
    setting,
)

_ISOLATION_LEVELS = {"read_uncommitted": "read_uncommitted", "read_committed": "read_committed"}


def _strategy(value: Any) -> Any:
    assignors_of(value)
    return value


@dataclass(frozen=True, slots=True)
class ConsumerConfig(ConnectionConfig):
    """`partition_assignment_strategy` is as it was given, for `assignors_of`; `interceptors` are Kafka's
    interceptor.classes, as objects."""

    client_id: str = setting("bus-consumer", values.client_id)
    client_rack: str = setting("", values.text)
    group_id: str | None = setting(None, values.identity)
    group_instance_id: str | None = setting(None, values.name)
    session_timeout_ms: int = setting(45_000, SOME_MILLISECONDS)
    heartbeat_interval_ms: int = setting(3_000, SOME_MILLISECONDS)
    max_poll_interval_ms: int = setting(300_000, SOME_MILLISECONDS)
    partition_assignment_strategy: Any = setting(("range", "cooperative-sticky"), _strategy, reader=objects_of)
    enable_auto_commit: bool = setting(True, values.boolean)
    auto_commit_interval_ms: int = setting(5_000, ANY_MILLISECONDS)
    auto_offset_reset: str = setting("latest", values.offset_reset)
    allow_auto_create_topics: bool = setting(True, values.boolean)
    isolation_level: str = setting("read_uncommitted", choice(_ISOLATION_LEVELS), typed=literal(_ISOLATION_LEVELS))
    key_deserializer: Any = setting(None, values.deserializer, reader=object_of(DESERIALIZERS))
    value_deserializer: Any = setting(None, values.deserializer, reader=object_of(DESERIALIZERS))
    interceptors: tuple[Any, ...] = setting(
        (), values.interceptors("on_consume", "on_commit", "close"), typed=INSTANCES, reader=instances_of
    )
    fetch_min_bytes: int = setting(1, integer(0))
    fetch_max_wait_ms: int = setting(500, ANY_MILLISECONDS)
    fetch_max_bytes: int = setting(52_428_800, integer(1))
    max_partition_fetch_bytes: int = setting(1_048_576, integer(1))
    max_poll_records: int = setting(500, integer(1))
    default_api_timeout_ms: int = setting(60_000, SOME_MILLISECONDS)
    metrics_sample_window_ms: int = setting(30_000, SOME_MILLISECONDS)
    metrics_num_samples: int = setting(2, integer(1))


def reconcile(config: ConsumerConfig, given: Collection[str]) -> ConsumerConfig:
    """`given`: the names of those that are no defaults. Raises `BusError` INVALID_CONFIG."""
    if config.heartbeat_interval_ms >= config.session_timeout_ms:
        raise conflict(
            f"expected heartbeat_interval_ms below session_timeout_ms={config.session_timeout_ms}, "
            f"found {config.heartbeat_interval_ms}"
        )
    if config.group_id is not None:
        return config
    if config.group_instance_id is not None:
        raise conflict(f"group_instance_id={config.group_instance_id!r}: expected a group_id beside it, found None")
    if config.enable_auto_commit and "enable_auto_commit" in given:
        raise conflict("enable_auto_commit=True: expected a group_id beside it, found None")
    return replace(config, enable_auto_commit=False)
