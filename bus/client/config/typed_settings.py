"""The settings of the clients as typed keywords: made by tools/client_settings.py, and never edited.

`Producer(linger=5)` fails a type checker, and an editor completes the names. A program that keeps settings in a
dictionary declares it as one of these.
"""

from __future__ import annotations

import os
from typing import Any, Literal, TypedDict


class ConnectionSettings(TypedDict, total=False):
    security_protocol: str
    ssl_ca_location: str
    ssl_truststore_location: str
    ssl_certificate_location: str
    ssl_key_location: str
    ssl_keystore_location: str
    ssl_ca_pem: str
    ssl_truststore_certificates: str
    ssl_certificate_pem: str
    ssl_keystore_certificate_chain: str
    ssl_key_pem: str
    ssl_keystore_key: str
    ssl_keystore_type: str
    ssl_truststore_type: str
    ssl_key_password: str
    ssl_key_password_file: str
    sasl_mechanism: str
    sasl_mechanisms: str
    sasl_username: str
    sasl_password: str
    sasl_password_file: str
    sasl_jaas_config: str
    sasl_oauthbearer_method: str
    sasl_oauthbearer_token_endpoint_url: str
    sasl_oauthbearer_client_id: str
    sasl_oauthbearer_client_credentials_client_id: str
    sasl_oauthbearer_client_secret: str
    sasl_oauthbearer_client_credentials_client_secret: str
    sasl_oauthbearer_client_secret_file: str
    sasl_oauthbearer_assertion_file: str
    sasl_oauthbearer_assertion_private_key_file: str
    sasl_oauthbearer_assertion_private_key_pem: str
    sasl_oauthbearer_assertion_private_key_passphrase: str
    sasl_oauthbearer_assertion_algorithm: str
    sasl_oauthbearer_assertion_claim_aud: str
    sasl_oauthbearer_assertion_claim_iss: str
    sasl_oauthbearer_assertion_claim_sub: str
    sasl_oauthbearer_assertion_claim_exp_seconds: int
    sasl_oauthbearer_assertion_claim_nbf_seconds: int
    sasl_oauthbearer_assertion_claim_jti_include: bool
    sasl_oauthbearer_assertion_template_file: str
    sasl_oauthbearer_assertion_jwt_template_file: str
    sasl_oauthbearer_scope: str
    sasl_oauthbearer_header_urlencode: bool
    sasl_oauthbearer_allow_insecure_urls: bool
    https_ca_location: str
    sasl_oauth_token_provider: Any
    profile: str
    config_file: str | os.PathLike[str]
    client_id: str
    request_timeout_ms: int
    retry_backoff_ms: int
    retry_backoff_max_ms: int
    reconnect_backoff_ms: int
    reconnect_backoff_max_ms: int
    metadata_max_age_ms: int
    enable_http_proxy: bool


class ProducerSettings(ConnectionSettings, total=False):
    name: str | None
    transactional_id: str | None
    transaction_timeout_ms: int
    acks: Literal["all", "-1", -1, "1", 1, "0", 0]
    enable_idempotence: bool
    linger_ms: int
    batch_size: int
    buffer_memory: int
    max_block_ms: int
    max_request_size: int
    max_in_flight_requests_per_connection: int
    compression_type: Literal["none", "gzip", "snappy", "lz4", "zstd"]
    compression_gzip_level: int
    compression_lz4_level: int
    compression_zstd_level: int
    delivery_timeout_ms: int
    retries: int
    partitioner: Any
    partitioner_ignore_keys: bool
    partitioner_adaptive_partitioning_enable: bool
    partitioner_availability_timeout_ms: int
    key_serializer: Any
    value_serializer: Any
    interceptors: list[Any] | tuple[Any, ...]
    metrics_sample_window_ms: int
    metrics_num_samples: int


class ConsumerSettings(ConnectionSettings, total=False):
    client_rack: str
    group_id: str | None
    group_instance_id: str | None
    session_timeout_ms: int
    heartbeat_interval_ms: int
    max_poll_interval_ms: int
    partition_assignment_strategy: Any
    enable_auto_commit: bool
    auto_commit_interval_ms: int
    auto_offset_reset: str
    allow_auto_create_topics: bool
    isolation_level: Literal["read_uncommitted", "read_committed"]
    key_deserializer: Any
    value_deserializer: Any
    interceptors: list[Any] | tuple[Any, ...]
    fetch_min_bytes: int
    fetch_max_wait_ms: int
    fetch_max_bytes: int
    max_partition_fetch_bytes: int
    max_poll_records: int
    default_api_timeout_ms: int
    metrics_sample_window_ms: int
    metrics_num_samples: int


class AdminSettings(ConnectionSettings, total=False):
    retries: int
    default_api_timeout_ms: int
