"""Type checkers know the settings of the clients. What has to be refused is marked: mypy fails where it is not."""

from __future__ import annotations

import runpy
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_type_hints

import pytest

import bus
import bus.aio
from bus.client.config.clients import AdminConfig, ConsumerConfig, ProducerConfig

ROOT = Path(__file__).parents[3]
ADDRESS = "127.0.0.1:9094"

if TYPE_CHECKING:  # never run
    bus.Producer(ADDRESS, linger_ms=5, acks="all", config_file=Path("config.toml"), interceptors=[])
    bus.Consumer(ADDRESS, group_id="billing", auto_offset_reset="by_duration:PT1H")
    bus.aio.Producer(ADDRESS, compression_type="zstd")
    bus.aio.Consumer(ADDRESS, isolation_level="read_committed")
    bus.Admin(ADDRESS, retries=3)
    _typed: bus.ProducerSettings = {"linger_ms": 5}
    bus.Producer(ADDRESS, **_typed)
    _untyped: dict[str, Any] = {"linger_ms": 5}
    bus.Producer(ADDRESS, **_untyped)

    bus.Producer(ADDRESS, linger=5)  # type: ignore[call-arg]
    bus.Producer(ADDRESS, group_id="billing")  # type: ignore[call-arg]
    bus.Producer(ADDRESS, linger_ms="5")  # type: ignore[arg-type]
    bus.Producer(ADDRESS, acks="some")  # type: ignore[arg-type]
    bus.Producer(ADDRESS, compression_type="brotli")  # type: ignore[arg-type]
    bus.Consumer(ADDRESS, linger_ms=5)  # type: ignore[call-arg]
    bus.aio.Producer(ADDRESS, linger=5)  # type: ignore[call-arg]
    bus.aio.Consumer(ADDRESS, group="billing")  # type: ignore[call-arg]
    bus.Admin(ADDRESS, retry=3)  # type: ignore[call-arg]
    _wrong: bus.ConsumerSettings = {"group": "billing"}  # type: ignore[typeddict-unknown-key]


def test_typed_settings_are_those_of_the_config_classes() -> None:
    """`python tools/client_settings.py` writes them."""
    made = runpy.run_path(str(ROOT / "tools" / "client_settings.py"))
    assert made["FILE"].read_text() == made["typed_settings"]()


@pytest.mark.parametrize(
    ("typed", "config"),
    [
        (bus.ProducerSettings, ProducerConfig),
        (bus.ConsumerSettings, ConsumerConfig),
        (bus.AdminSettings, AdminConfig),
    ],
)
def test_each_setting_of_a_client_has_a_type_and_there_is_no_other(typed: Any, config: Any) -> None:
    assert get_type_hints(typed).keys() == {setting.name for setting in fields(config)}
