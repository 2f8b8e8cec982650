"""Variables in the settings of a broker: what they stand for, and that nothing of it is shown."""

from __future__ import annotations

from pathlib import Path

import pytest

from bus.settings.broker import describe_broker_config
from bus.settings.files import parse_properties
from bus.settings.keys import ConfigError
from bus.settings.loading import load_broker_config
from bus.settings.login_settings import broker_login

BOTH = {"listeners": "SASL_PLAINTEXT://127.0.0.1:1", "config.providers": "env,file,directory"}


def jaas(password: str) -> str:
    return f'M required username="b" password="{password}";'


@pytest.fixture
def secrets(tmp_path: Path) -> Path:
    (tmp_path / "secrets.properties").write_text("# of the broker\nother=x\npassword = hush\nwith.colon: a=b\n")
    (tmp_path / "password").write_text("hush\n")
    (tmp_path / "half").write_bytes(b"\xff\xfe")
    return tmp_path


@pytest.mark.parametrize(
    "variable",
    ["${env:BUS_HUSH}", "${env::BUS_HUSH}", "${file:%s/secrets.properties:password}", "${directory:%s:password}"],
)
def test_a_variable_stands_for_what_its_provider_has(
    secrets: Path, variable: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BUS_HUSH", "hush")
    text = jaas(variable.replace("%s", str(secrets)))
    config = load_broker_config(None, BOTH | {"sasl.jaas.config": text})
    assert broker_login(config) == ("b", "hush")
    assert "hush" not in repr(config) + repr(describe_broker_config(config))
    listener = {"listener.name.sasl_plaintext.scram-sha-512.sasl.jaas.config": text}
    assert broker_login(load_broker_config(None, BOTH | listener)) == ("b", "hush")


def test_a_file_of_settings_may_have_them_in_texts_lists_and_for_numbers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BUS_HOST", "127.0.0.1")
    monkeypatch.setenv("BUS_ID", "7")
    file = tmp_path / "broker.toml"
    file.write_text(
        'config.providers = ["env"]\nlisteners = ["PLAINTEXT://${env:BUS_HOST}:1"]\nbroker.id = "${env:BUS_ID}"\n'
        'root = "./a${other:x}$1"\n'
    )
    config = load_broker_config(file)
    assert config.listeners == ("PLAINTEXT://127.0.0.1:1",)
    assert config.broker_id == 7
    assert config.root == "./a${other:x}$1"
    monkeypatch.setenv("BUS_ID", "hush")
    with pytest.raises(ConfigError, match=r"broker.toml: broker.id: expected int .*, found another value$"):
        load_broker_config(file)


@pytest.mark.parametrize(
    ("variable", "said"),
    [
        ("${env:BUS_NONE}", "expected BUS_NONE in the environment, found none"),
        ("${env:/path:BUS_NONE}", "expected ${env:NAME}"),
        ("${file:%s/none:password}", "expected a readable file, found: No such file or directory"),
        ("${file:%s/secrets.properties:missing}", "expected a line missing=... in the file, found none"),
        ("${file:%s/half:password}", "expected UTF-8 text, found other bytes at position 0"),
        ("${file:password}", "expected ${file:/PATH:KEY}"),
        ("${directory:%s:none}", "expected a readable file, found: No such file or directory"),
        ("${directory:%s:../x}", "expected ${directory:/PATH:FILE}"),
        ("${directory:%s:..}", "expected ${directory:/PATH:FILE}"),
    ],
)
def test_a_variable_that_stands_for_nothing_is_refused(secrets: Path, variable: str, said: str) -> None:
    variable = variable.replace("%s", str(secrets))
    with pytest.raises(ConfigError) as refused:
        load_broker_config(None, BOTH | {"sasl.jaas.config": jaas(variable)})
    assert str(refused.value) == f"sasl.jaas.config: {variable}: {said}"


def test_a_provider_has_to_be_named() -> None:
    for providers, found in (("", "none"), ("file", "file")):
        settings = BOTH | {"config.providers": providers, "sasl.jaas.config": jaas("${env:HOME}")}
        with pytest.raises(ConfigError, match=rf"expected env in config.providers, found {found}$"):
            load_broker_config(None, settings)
    with pytest.raises(ConfigError, match=r"config.providers: expected list \(any of env, file, directory\)"):
        load_broker_config(None, {"config.providers": "vault"})
    with pytest.raises(ConfigError, match=r"leave it out: config\.providers names those that there are"):
        load_broker_config(None, {"config.providers.env.class": "org.example.Env"})


def test_properties_are_read_as_java_does() -> None:
    text = "! no\n a = 1 \nb:2=3\nlong = x\\\n   y\nnothing\na=4\n"
    assert parse_properties(text) == {"a": "4", "b": "2=3", "long": "xy"}
