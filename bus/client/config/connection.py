"""The settings that all clients share: their client id, and how they reach brokers and try again."""

from __future__ import annotations

from dataclasses import dataclass

from bus.client.config import values
from bus.client.config.security import SecurityConfig
from bus.client.config.values import ANY_MILLISECONDS, SOME_MILLISECONDS, setting


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
