"""Every table of settings is made of keys, and what a key has when nobody sets it is what it would take."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

import pytest

from bus.client.config.clients import AdminConfig, ConsumerConfig, ProducerConfig
from bus.processing.settings import ProcessingSettings
from bus.settings.broker import BrokerConfig
from bus.settings.keys import ConfigError, Key, keys_of
from bus.settings.topic import TopicConfig

TABLES = (TopicConfig, BrokerConfig, AdminConfig, ProducerConfig, ConsumerConfig, ProcessingSettings)
NO_KEYS = {"listener_overrides"}  # keys of single listeners, by their names


@pytest.mark.parametrize("table", TABLES)
def test_every_field_is_a_key_that_takes_its_own_default(table: type) -> None:
    keys: Mapping[str, Key] = keys_of(table, "_")
    assert keys.keys() == {field.name for field in fields(table)} - NO_KEYS
    for key in keys.values():
        assert key.check(key.default) == key.default


@pytest.mark.parametrize("table", TABLES)
@pytest.mark.parametrize("wrong", [b"\x00", {1: 2}, 3.5j])
def test_every_refusal_names_the_key_with_what_was_expected_and_found(table: type, wrong: Any) -> None:
    for key in keys_of(table, "_").values():
        with pytest.raises(ConfigError) as refused:
            key.check(wrong)
        found = "another value" if key.is_secret or key.shown_as else repr(wrong)
        assert str(refused.value).startswith(f"{key.name}: expected ")
        assert str(refused.value).endswith(f", found {found}")
