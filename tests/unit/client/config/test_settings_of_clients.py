"""Settings of clients that a program does not give: from the environment and from a profile, and where each is from."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

import bus
import bus.aio
from bus.client.config.clients import AdminConfig, ConsumerConfig, ProducerConfig
from bus.client.config.parsing import parse_config
from bus.client.config.sources import only_settings_of_connections
from bus.errors import BusError

PROFILE = """
[prod]
bootstrap.servers = "127.0.0.1:9"
acks = "1"
enable.idempotence = false
linger.ms = 7
group.id = "billing"
value_deserializer = "json"
partition.assignment.strategy = ["range", "sticky"]
sasl.mechanism = "PLAIN"
security.protocol = "SASL_PLAINTEXT"
sasl.username = "ada"
sasl.password = "hush"
"""


class Doubled:
    def on_send(self, record: Any) -> Any:
        return record

    def on_acknowledgement(self, *arguments: Any) -> None: ...

    def close(self) -> None: ...


@pytest.fixture
def profile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "config.toml"
    path.write_text(PROFILE)
    path.chmod(0o600)
    monkeypatch.setenv("BUS_CONFIG_FILE", str(path))
    monkeypatch.setenv("BUS_PROFILE", "prod")
    return path


def test_each_kind_of_client_takes_its_own_settings_of_a_profile(profile: Path) -> None:
    assert (parse_config(ProducerConfig, {}).acks, parse_config(ProducerConfig, {}).linger_ms) == (1, 7)
    consumer = parse_config(ConsumerConfig, {})
    assert (consumer.group_id, consumer.partition_assignment_strategy) == ("billing", ["range", "sticky"])
    assert consumer.value_deserializer(b'{"a": 1}') == {"a": 1}
    assert parse_config(AdminConfig, {}).sasl_username == "ada"


def test_the_program_wins_over_the_environment_and_that_over_the_profile(
    profile: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BUS_GROUP_ID", "of-environment")
    assert parse_config(ConsumerConfig, {}).group_id == "of-environment"
    assert parse_config(ConsumerConfig, {"group_id": "of-program"}).group_id == "of-program"


def test_text_of_the_environment_is_what_the_setting_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, text in {
        "ACKS": "all",
        "LINGER_MS": "20",
        "ENABLE_IDEMPOTENCE": "true",
        "KEY_SERIALIZER": "text",
        "VALUE_SERIALIZER": "bus.serializers:long",
        "PARTITIONER": "round_robin",
        "INTERCEPTORS": f"{__name__}:Doubled",
        "CLIENT_ID": "42",
    }.items():
        monkeypatch.setenv(f"BUS_{name}", text)
    config = parse_config(ProducerConfig, {})
    assert (config.linger_ms, config.enable_idempotence, config.client_id) == (20, True, "42")
    assert (config.key_serializer("a"), config.value_serializer(1)) == (b"a", bytes(7) + b"\x01")
    assert config.partitioner == "round_robin"
    assert isinstance(config.interceptors[0], Doubled)


def test_name_of_a_producer_is_the_programs_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All producers of an environment would have it, and fence one another."""
    monkeypatch.setenv("BUS_NAME", "loader")
    assert parse_config(ProducerConfig, {}).name is None
    path = tmp_path / "config.toml"
    path.write_text('[prod]\nbootstrap.servers = "127.0.0.1:9"\nname = "loader"\n')
    with pytest.raises(BusError, match="or a setting of a client, found 'name'"):
        parse_config(ProducerConfig, {"profile": "prod", "config_file": str(path)})


@pytest.mark.parametrize(
    ("variable", "text", "expected"),
    [
        ("BUS_LINGER_MS", "soon", "an integer from 0"),
        ("BUS_VALUE_SERIALIZER", "avro", "one of text, json"),
        ("BUS_VALUE_SERIALIZER", "nowhere.at_all:x", "package.module:name of something that can be imported"),
        ("BUS_ENABLE_IDEMPOTENCE", "maybe", "True or False"),
    ],
)
def test_text_that_is_no_such_setting_is_refused_with_the_variable(
    monkeypatch: pytest.MonkeyPatch, variable: str, text: str, expected: str
) -> None:
    monkeypatch.setenv(variable, text)
    with pytest.raises(BusError) as raised:
        parse_config(ProducerConfig, {})
    assert f"(from the environment, {variable}): expected {expected}" in raised.value.message
    assert repr(text) in raised.value.message


def test_code_that_a_variable_names_and_that_fails_is_an_error_of_the_setting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "failing_interceptors.py").write_text("class Greedy:\n    def __init__(self, more): ...\n")
    (tmp_path / "failing_import.py").write_text("raise RuntimeError('out of order')\n")
    monkeypatch.syspath_prepend(tmp_path)
    for variable, text, expected in (
        ("BUS_VALUE_SERIALIZER", "failing_import:x", "can be imported (RuntimeError: out of order)"),
        ("BUS_INTERCEPTORS", "failing_interceptors:Greedy", "a class that can be made without arguments (TypeError"),
    ):
        with monkeypatch.context() as context:
            context.setenv(variable, text)
            with pytest.raises(BusError) as raised:
                parse_config(ProducerConfig, {})
        assert expected in raised.value.message


def test_interceptors_of_a_profile_are_named_in_a_list_as_in_a_text(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "listed_interceptors.py").write_text(
        "class Silent:\n    on_send = on_acknowledgement = close = print\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    path = tmp_path / "config.toml"
    for value in ('"listed_interceptors:Silent"', '["listed_interceptors:Silent"]'):
        path.write_text(f"[prod]\ninterceptors = {value}\n")
        config = parse_config(ProducerConfig, {"profile": "prod", "config_file": str(path)})
        assert [type(each).__name__ for each in config.interceptors] == ["Silent"]


def test_clients_that_the_bus_makes_for_itself_take_settings_of_connections_alone(profile: Path) -> None:
    with only_settings_of_connections():
        consumer = parse_config(ConsumerConfig, {})
    assert (consumer.group_id, consumer.value_deserializer, consumer.sasl_username) == (None, None, "ada")


def test_a_client_describes_its_settings_with_their_origins_and_without_secrets(
    profile: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BUS_BATCH_SIZE", "1000")
    with bus.Producer(linger_ms=9) as producer, bus.Admin() as admin, bus.Consumer() as consumer:
        found = producer.describe_settings()
        assert (found["linger_ms"].value, found["linger_ms"].origin) == (9, "the arguments of the client")
        assert (found["batch_size"].value, found["batch_size"].origin) == (1000, "the environment, BUS_BATCH_SIZE")
        assert (found["acks"].value, found["acks"].origin) == (1, f"the profile prod in {profile}")
        assert (found["buffer_memory"].value, found["buffer_memory"].origin) == (33_554_432, "default")
        assert found["sasl_password"].value == "(hidden)"
        assert "hush" not in repr([client.describe_settings() for client in (producer, admin, consumer)])
        assert consumer.describe_settings()["group_id"].value == "billing"


def test_clients_of_asyncio_describe_their_settings_too(profile: Path) -> None:
    async def describe() -> tuple[Any, Any]:
        async with bus.aio.Producer() as producer, bus.aio.Consumer() as consumer:
            return producer.describe_settings()["acks"].value, consumer.describe_settings()["group_id"].origin

    assert asyncio.run(describe()) == (1, f"the profile prod in {profile}")


def test_a_listener_has_its_group_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(BusError, match="expected a group_id"):
        bus.listener("orders")
    monkeypatch.setenv("BUS_GROUP_ID", "billing")
    bus.listener("orders")


def test_misspelt_variable_is_warned_of_once_in_a_process_by_the_clients_of_a_program(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("bus.client.config.sources._warned_variables", set())
    monkeypatch.setenv("BUS_GROUP_IDD", "billing")
    monkeypatch.setenv("BUS_SERVICE_HOST", "10.0.0.1")  # Kubernetes makes it
    with only_settings_of_connections():
        parse_config(AdminConfig, {})
    assert caplog.messages == [], "commands say it themselves"
    parse_config(ConsumerConfig, {})
    parse_config(ProducerConfig, {})
    assert caplog.messages == ["BUS_GROUP_IDD has no effect, there is no such variable; did you mean BUS_GROUP_ID?"]
