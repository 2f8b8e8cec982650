"""Text that has no form in UTF-8 is refused by name wherever a client, a broker or SQL takes text."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

import bus.sql
from bus import TopicPartition
from bus.client import arguments
from bus.client.config.clients import AdminConfig, ConsumerConfig, ProducerConfig
from bus.client.config.parsing import parse_addresses, parse_config
from bus.client.group.group_topics import subscription_of
from bus.errors import BusError
from bus.settings.broker import BROKER_CONFIGS
from bus.settings.keys import ConfigType
from bus.settings.loading import load_broker_config
from bus.sql import SqlError
from tests.support.hand_written_root import HandWrittenRoot

BAD = "a\ud800b"
NO_CALLBACKS: dict[str, Any] = {"on_assigned": None, "on_revoked": None, "on_lost": None}


@pytest.mark.parametrize("kind", [ProducerConfig, ConsumerConfig, AdminConfig])
def test_no_setting_of_a_client_takes_it(kind: Any) -> None:
    for setting in fields(kind):
        if setting.name == "profile":
            continue  # is looked for in a file first
        for value in (BAD, [BAD]):
            with pytest.raises((BusError, TypeError)) as raised:
                parse_config(kind, {setting.name: value})
            assert setting.name in str(raised.value)


@pytest.mark.parametrize("name", BROKER_CONFIGS)
def test_no_setting_of_a_broker_takes_it(name: str) -> None:
    key = BROKER_CONFIGS[name]
    with pytest.raises(ValueError, match="expected"):
        key.parse(BAD)
    if key.type in (ConfigType.STRING, ConfigType.LIST):
        with pytest.raises(ValueError, match="expected"):
            key.check((BAD,) if key.type is ConfigType.LIST else BAD)


def test_no_address_topic_or_pattern_takes_it() -> None:
    with pytest.raises(BusError, match="UTF-8"):
        parse_addresses(f"{BAD}:9094")
    for topics, pattern in (([BAD], None), (None, BAD)):
        with pytest.raises(BusError, match="UTF-8"):
            subscription_of(topics, pattern, **NO_CALLBACKS)
    for check in (
        lambda: arguments.check_topic(BAD),
        lambda: arguments.check_topic_partition("partition", TopicPartition(BAD, 0)),
        lambda: arguments.check_configs("configs", {BAD: "1"}),
        lambda: arguments.check_configs("configs", {"retention.ms": BAD}),
    ):
        with pytest.raises(BusError, match="UTF-8"):
            check()


def test_no_statement_takes_it(tmp_path: Path) -> None:
    root = HandWrittenRoot(tmp_path / "root")
    with bus.sql.connect(str(root.folder)) as connection, pytest.raises(SqlError, match="UTF-8"):
        connection.sql(f"SELECT '{BAD}'")


def test_root_keeps_the_spaces_of_its_name() -> None:
    assert load_broker_config(None, {"root": " trail "}).root == " trail "
    assert load_broker_config(None, {"num.partitions": " 4 "}).num_partitions == 4
