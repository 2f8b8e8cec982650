"""The settings of each kind of client, and which of those of a producer or a consumer depend on one another.

All clients share how they reach brokers and how they try again. They connect in the clear or by TLS, with a certificate
of their own, a login, or neither. The names are Kafka's and librdkafka's. What several settings of a connection say
together is checked in `security` and `tokens`.
"""

from __future__ import annotations

import inspect
from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Any

from bus.client.assignors import assignors_of
from bus.client.config import values
from bus.client.config.values import (
    ANY_MILLISECONDS,
    DESERIALIZERS,
    INSTANCES,
    SERIALIZERS,
    SOME_MILLISECONDS,
    boolean,
    choice,
    conflict,
    instances_of,
    integer,
    literal,
    object_of,
    objects_of,
    setting,
    text,
)
from bus.model import PLAINTEXT, SASL_PLAINTEXT, SASL_SSL, SSL
from bus.security.scram import ABSENT_MECHANISMS, MECHANISMS, parse_jaas

_PROTOCOLS = (PLAINTEXT, SSL, SASL_PLAINTEXT, SASL_SSL)
_ASSERTION_ALGORITHMS = ("RS256", "PS256", "ES256")


def protocol(value: Any) -> str:
    if isinstance(value, str) and value.upper() in _PROTOCOLS:
        return value.upper()
    raise ValueError(f"one of {', '.join(_PROTOCOLS)}")


def mechanism(value: Any) -> str:
    if isinstance(value, str) and value.upper() in ("", *MECHANISMS):
        return value.upper()
    reason = ABSENT_MECHANISMS.get(value.upper(), "") if isinstance(value, str) else ""
    raise ValueError(f"one of {', '.join(MECHANISMS)}{f' ({reason})' if reason else ''}")


def pem(value: Any) -> str:
    if not isinstance(value, str) or value.upper() not in ("", "PEM"):
        raise ValueError("PEM, as there are no Java keystores here")
    return value.upper()


def jaas(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError("a text")
    if value:
        parse_jaas(value)
    return value


def algorithm(value: Any) -> str:
    if isinstance(value, str) and value.upper() in _ASSERTION_ALGORITHMS:
        return value.upper()
    raise ValueError(f"one of {', '.join(_ASSERTION_ALGORITHMS)}")


def oauth_method(value: Any) -> str:
    """librdkafka's other one, default, makes unsigned tokens."""
    if isinstance(value, str) and value.lower() in ("", "oidc"):
        return value.lower()
    raise ValueError("oidc")


def token_provider(value: Any) -> Any:
    if value is None or value == "":
        return None
    if isinstance(value, type) or not callable(value) or inspect.iscoroutinefunction(value):
        raise ValueError("a function, not a coroutine, that returns a token, or a token and when it expires")
    return value


@dataclass(frozen=True, slots=True)
class SecurityConfig:
    """The settings of every client that are about its connections."""

    security_protocol: str = setting(PLAINTEXT, protocol)
    ssl_ca_location: str = setting("", text)
    ssl_truststore_location: str = setting("", text)
    ssl_certificate_location: str = setting("", text)
    ssl_key_location: str = setting("", text)
    ssl_keystore_location: str = setting("", text)
    ssl_ca_pem: str = setting("", text, is_secret=True)
    ssl_truststore_certificates: str = setting("", text, is_secret=True)
    ssl_certificate_pem: str = setting("", text, is_secret=True)
    ssl_keystore_certificate_chain: str = setting("", text, is_secret=True)
    ssl_key_pem: str = setting("", text, is_secret=True)
    ssl_keystore_key: str = setting("", text, is_secret=True)
    ssl_keystore_type: str = setting("", pem)
    ssl_truststore_type: str = setting("", pem)
    ssl_key_password: str = setting("", text, is_secret=True)
    ssl_key_password_file: str = setting("", text)
    sasl_mechanism: str = setting("", mechanism)
    sasl_mechanisms: str = setting("", mechanism)
    sasl_username: str = setting("", text)
    sasl_password: str = setting("", text, is_secret=True)
    sasl_password_file: str = setting("", text)
    sasl_jaas_config: str = setting("", jaas, is_secret=True)
    sasl_oauthbearer_method: str = setting("", oauth_method)
    sasl_oauthbearer_token_endpoint_url: str = setting("", text, is_secret=True)  # its query may be
    sasl_oauthbearer_client_id: str = setting("", text)
    sasl_oauthbearer_client_credentials_client_id: str = setting("", text)
    sasl_oauthbearer_client_secret: str = setting("", text, is_secret=True)
    sasl_oauthbearer_client_credentials_client_secret: str = setting("", text, is_secret=True)
    sasl_oauthbearer_client_secret_file: str = setting("", text)
    sasl_oauthbearer_assertion_file: str = setting("", text)
    sasl_oauthbearer_assertion_private_key_file: str = setting("", text)
    sasl_oauthbearer_assertion_private_key_pem: str = setting("", text, is_secret=True)
    sasl_oauthbearer_assertion_private_key_passphrase: str = setting("", text, is_secret=True)
    sasl_oauthbearer_assertion_algorithm: str = setting("RS256", algorithm)
    sasl_oauthbearer_assertion_claim_aud: str = setting("", text)
    sasl_oauthbearer_assertion_claim_iss: str = setting("", text)
    sasl_oauthbearer_assertion_claim_sub: str = setting("", text)
    sasl_oauthbearer_assertion_claim_exp_seconds: int = setting(300, integer(1))
    sasl_oauthbearer_assertion_claim_nbf_seconds: int = setting(60, integer(0))
    sasl_oauthbearer_assertion_claim_jti_include: bool = setting(True, boolean)
    sasl_oauthbearer_assertion_template_file: str = setting("", text)
    sasl_oauthbearer_assertion_jwt_template_file: str = setting("", text)
    sasl_oauthbearer_scope: str = setting("", text)
    sasl_oauthbearer_header_urlencode: bool = setting(False, boolean)
    sasl_oauthbearer_allow_insecure_urls: bool = setting(False, boolean)
    https_ca_location: str = setting("", text)
    sasl_oauth_token_provider: Any = setting(None, token_provider, is_secret=True)


@dataclass(frozen=True, slots=True)
class ConnectionConfig(SecurityConfig):
    """Each kind of client has a `client_id` of its own by default. `profile`, of `config_file`: see `profiles`."""

    profile: str = setting("", values.text)
    config_file: str = setting("", values.path, typed="str | os.PathLike[str]")
    client_id: str = setting("", values.client_id)
    request_timeout_ms: int = setting(30_000, SOME_MILLISECONDS)
    retry_backoff_ms: int = setting(100, ANY_MILLISECONDS)
    retry_backoff_max_ms: int = setting(1_000, ANY_MILLISECONDS)
    reconnect_backoff_ms: int = setting(50, SOME_MILLISECONDS)
    reconnect_backoff_max_ms: int = setting(1_000, SOME_MILLISECONDS)
    metadata_max_age_ms: int = setting(300_000, ANY_MILLISECONDS)
    enable_http_proxy: bool = setting(False, values.boolean)  # http_proxy and similar variables of the environment


@dataclass(frozen=True, slots=True)
class AdminConfig(ConnectionConfig):
    client_id: str = setting("bus-admin", values.client_id)
    retries: int = setting(2**31 - 1, integer(0))
    default_api_timeout_ms: int = setting(60_000, SOME_MILLISECONDS)


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


def reconcile_producer(config: ProducerConfig, given: Collection[str]) -> ProducerConfig:
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


def reconcile_consumer(config: ConsumerConfig, given: Collection[str]) -> ConsumerConfig:
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
