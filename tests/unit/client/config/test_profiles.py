"""Profiles, and which source a setting is taken from: argument, option, environment, profile."""

from __future__ import annotations

import logging
import pickle
from pathlib import Path
from typing import Any

import pytest

from bus import Admin, BusError
from bus.client.config.clients import AdminConfig, ConsumerConfig
from bus.client.config.parsing import client_addresses, parse_config
from bus.client.config.security import SECURITY_SETTINGS, ClientLogin, Security, security_of, security_settings
from bus.client.config.sources import default_path, default_profile, overlay, security_defaults
from bus.errors import ErrorCode
from bus.model import KeyFiles

PROFILES = """
[prod]
bootstrap.servers = ["one:9094", "two:9094"]
security.protocol = "SASL_SSL"
ssl.ca.location = "ca.pem"
sasl.mechanism = "SCRAM-SHA-512"
sasl.username = "alice"
sasl.password = "hush"

[dev]
bootstrap_servers = "localhost:9094"

[file]
security.protocol = "SASL_PLAINTEXT"
sasl.mechanism = "PLAIN"
sasl.username = "alice"
sasl.password.file = "alice.secret"
"""
ALICE = ClientLogin("SCRAM-SHA-512", "alice", "hush")


@pytest.fixture(autouse=True)
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in (*SECURITY_SETTINGS, "profile", "address"):
        monkeypatch.delenv(f"BUS_{name.upper()}", raising=False)
    path = tmp_path / "config.toml"
    path.write_text(PROFILES)
    path.chmod(0o600)
    monkeypatch.setenv("BUS_CONFIG_FILE", str(path))
    return path


def security(**given: Any) -> Security:
    return security_of(parse_config(AdminConfig, given))


def test_profile_has_the_address_and_the_connection(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = Security("SASL_SSL", KeyFiles(trusted=file.parent / "ca.pem"), ALICE)
    assert security(profile="prod") == expected
    assert client_addresses(None, {"profile": "prod"}) == ("one:9094", "two:9094")
    assert client_addresses("other:1", {"profile": "prod"}) == ("other:1",)
    assert security() == Security()  # none is used that is not named
    monkeypatch.setenv("BUS_PROFILE", "prod")
    assert security() == expected
    assert security(profile="dev") == Security()
    assert security(profile="") == Security()
    with default_profile("dev"):
        assert security() == Security()
        assert client_addresses(None, {}) == ("localhost:9094",)
    monkeypatch.setenv("BUS_ADDRESS", "there:1")
    assert client_addresses(None, {}) == ("there:1",)


def test_file_of_an_argument_wins_over_that_of_the_environment(tmp_path: Path) -> None:
    other = tmp_path / "other.toml"
    other.write_text('[prod]\nsecurity.protocol = "SSL"\n')
    assert security(profile="prod", config_file=other) == Security("SSL")
    with pytest.raises(BusError, match="config_file: expected a profile of it beside it, found none"):
        security(config_file=str(other))


def test_file_is_where_settings_of_users_are() -> None:
    assert default_path({"BUS_CONFIG_FILE": "/x/y.toml", "XDG_CONFIG_HOME": "/settings"}) == Path("/x/y.toml")
    assert default_path({"XDG_CONFIG_HOME": "/settings"}) == Path("/settings/bus/config.toml")
    assert default_path({}) == Path.home() / ".config/bus/config.toml"


def test_each_setting_comes_from_the_first_source_that_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BUS_PROFILE", "prod")
    monkeypatch.setenv("BUS_SASL_PASSWORD", "of-environment")
    monkeypatch.setenv("BUS_SSL_CA_LOCATION", "environment.pem")
    found = security()
    assert found.login == ClientLogin("SCRAM-SHA-512", "alice", "of-environment")
    assert found.files == KeyFiles(trusted=Path("environment.pem"))
    with security_defaults({"ssl_ca_location": "first.pem"}), security_defaults({"ssl_ca_location": "option.pem"}):
        assert security().files == KeyFiles(trusted=Path("option.pem"))
        assert security(ssl_truststore_location="argument.pem").files == KeyFiles(trusted=Path("argument.pem"))
    assert security() == found


TOKENS = [name for name in SECURITY_SETTINGS if name.startswith(("sasl_oauth", "https_"))]
ASSERTIONS = [name for name in SECURITY_SETTINGS if "assertion" in name]
SECRETS = [
    "sasl_oauthbearer_client_secret_file",
    *ASSERTIONS,
    "sasl_oauthbearer_client_secret",
    "sasl_oauthbearer_client_credentials_client_secret",
]
CLIENT = [
    *SECRETS,
    "sasl_oauthbearer_client_id",
    "sasl_oauthbearer_client_credentials_client_id",
    "sasl_oauthbearer_scope",
]


@pytest.mark.parametrize(
    ("upper", "hidden"),
    [
        ({"ssl_truststore_location": "x"}, {"ssl_ca_location", "ssl_ca_pem", "ssl_truststore_certificates"}),
        (
            {"ssl_keystore_location": "x"},
            {
                *("ssl_certificate_location", "ssl_key_location", "ssl_key_password", "ssl_key_password_file"),
                *("ssl_certificate_pem", "ssl_keystore_certificate_chain", "ssl_key_pem", "ssl_keystore_key"),
            },
        ),
        ({"ssl_key_password": "x"}, {"ssl_key_password_file"}),
        ({"sasl_mechanisms": "PLAIN"}, {"sasl_mechanism", *TOKENS}),
        (
            {"sasl_mechanism": "oauthbearer"},
            {"sasl_mechanisms", "sasl_username", "sasl_password", "sasl_password_file"},
        ),
        ({"sasl_oauthbearer_client_secret_file": "x"}, {*SECRETS, "sasl_jaas_config"} - {SECRETS[0]}),
        (
            {"sasl_oauthbearer_assertion_private_key_file": "x"},
            {*SECRETS, "sasl_jaas_config"} - {"sasl_oauthbearer_assertion_private_key_file"},
        ),
        ({"sasl_oauthbearer_assertion_private_key_passphrase": "x"}, set()),
        ({"sasl_oauthbearer_client_id": "x"}, {*CLIENT, "sasl_jaas_config"} - {"sasl_oauthbearer_client_id"}),
        (
            {"sasl_oauth_token_provider": "x"},
            {*CLIENT, "sasl_oauthbearer_token_endpoint_url", "sasl_jaas_config"},
        ),
        ({"sasl_password_file": "x"}, {"sasl_password", "sasl_jaas_config"}),
        ({"sasl_username": "x"}, {"sasl_password", "sasl_password_file", "sasl_jaas_config"}),
        ({"sasl_jaas_config": "x"}, {"sasl_username", "sasl_password", "sasl_password_file", *CLIENT}),
        ({"security_protocol": "SASL_SSL"}, set()),
        ({"security_protocol": "PLAINTEXT"}, {name for name in SECURITY_SETTINGS if name != "security_protocol"}),
    ],
)
def test_another_way_to_say_the_same_hides_that_of_later_sources(upper: dict[str, str], hidden: set[str]) -> None:
    lower = dict.fromkeys(SECURITY_SETTINGS, "lower")
    assert lower.keys() - hidden == overlay(upper, lower).keys()
    assert overlay(upper, lower) == {**{name: "lower" for name in lower if name not in hidden}, **upper}


def test_client_that_works_for_another_connects_as_that_one(monkeypatch: pytest.MonkeyPatch) -> None:
    first = parse_config(AdminConfig, {"profile": "prod"})
    monkeypatch.setenv("BUS_SECURITY_PROTOCOL", "SSL")
    monkeypatch.setenv("BUS_PROFILE", "dev")
    second = parse_config(ConsumerConfig, security_settings(first))
    assert security_of(second) == security_of(first)
    assert security_settings(first, {"profile": "file"}) == {}


def test_password_is_read_from_a_file_where_the_settings_are_read(file: Path) -> None:
    secret = file.parent / "alice.secret"
    secret.write_text("hush\n")
    config = pickle.loads(pickle.dumps(parse_config(AdminConfig, {"profile": "file"})))
    secret.unlink()  # an executor of Spark has no such file
    assert security_of(config).login == ClientLogin("PLAIN", "alice", "hush")
    assert "hush" not in repr(config)
    for content, said in (
        (None, "sasl_password_file: .*alice.secret: expected a readable file, found: No such file"),
        (b"", "expected one line with the password, found 0 lines"),
        (b"hush\nhush\n", "expected one line with the password, found 2 lines"),
        (b"\xffhush", "expected UTF-8 text, found other bytes at position 0"),
    ):
        if content is not None:
            secret.write_bytes(content)
        with pytest.raises(BusError, match=said) as refused:
            parse_config(AdminConfig, {"profile": "file"})
        assert "hush" not in str(refused.value)
    with pytest.raises(BusError, match="expected either sasl_password_file or sasl_password, found both"):
        parse_config(AdminConfig, {"profile": "file", "sasl_password_file": "x", "sasl_password": "hush"})


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (None, "config.toml: expected a readable file, found: No such file"),
        ("[dev]\n[stage]", "config.toml: expected one of its profiles, dev, stage, found 'prod'"),
        ("", "config.toml: expected one of its profiles, none, as the file is empty, found 'prod'"),
        ('sasl.x = "hush"\nsasl_password = "hush"', "expected a table for each profile, .*, found 'sasl_password'"),
        ('[prod]\nsasl.pasword = "hush"', "profile prod in .*: expected .*, found 'sasl.pasword'; .* 'sasl.password'"),
        (
            '[prod]\nlinger.mx = "hush"',
            "expected bootstrap.servers or a setting of a client, found 'linger.mx'; .* 'linger.ms'",
        ),
        ("[prod]\nlinger.ms = 1.5", "linger.ms: expected a text, a truth value, an integer or a list of texts, found"),
        ("[prod]\nsasl.password = 4711", "sasl.password: expected a text or a truth value, found another type: int"),
        ("[prod]\nsasl.username = true", r"sasl_username \(from the profile .*\): expected a text, found True"),
        ("[prod]\nbootstrap.servers = true", "bootstrap.servers: expected a text, or a list of texts, found another"),
        ("[prod]\nbootstrap.servers = [4711]", "expected a text, or a list of texts, found another type: list"),
        ('[prod]\nsasl.password = "hush"\nsasl_password = "hush"', "expected sasl_password once, found it with dots"),
        ('[prod]\nsecurity.protocol = "TLS"', r"security_protocol \(from the profile prod in .*\): expected one of"),
        ("[prod\nhush", "config.toml: expected TOML, found: .*line 1"),
        ('[prod]\nsasl.jaas.config = "hush"', r"sasl_jaas_config \(from the profile .*found another value"),
    ],
)
def test_file_that_cannot_be_used_is_refused_without_its_values(file: Path, text: str | None, said: str) -> None:
    file.unlink() if text is None else file.write_text(text)
    with pytest.raises(BusError, match=said) as refused:
        parse_config(AdminConfig, {"profile": "prod"})
    assert refused.value.code is ErrorCode.INVALID_CONFIG
    assert "hush" not in str(refused.value)
    assert "4711" not in str(refused.value)


def test_wrong_setting_of_the_environment_is_told_with_its_origin(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BUS_SECURITY_PROTOCOL", "TLS")
    with pytest.raises(
        BusError, match=r"security_protocol \(from the environment, BUS_SECURITY_PROTOCOL\): expected one of PLAINTEXT"
    ):
        security()


def test_conflict_names_where_both_settings_are_from(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file.write_text('[prod]\nsecurity.protocol = "PLAINTEXT"\n')
    monkeypatch.setenv("BUS_SSL_CA_LOCATION", "ca.pem")
    with pytest.raises(BusError) as refused:
        parse_config(AdminConfig, {"profile": "prod"})
    assert refused.value.message == (
        "ssl_ca_location: expected security_protocol=SSL or SASL_SSL beside it, found PLAINTEXT (ssl_ca_location is "
        f"from the environment, BUS_SSL_CA_LOCATION; security_protocol is from the profile prod in {file})"
    )


def test_conflict_names_a_file_of_options_beside_an_argument() -> None:
    options = security_defaults({"security_protocol": "PLAINTEXT"}, "--command-config client.properties")
    with options, pytest.raises(BusError) as refused:
        parse_config(AdminConfig, {"ssl_ca_location": "ca.pem"})
    assert refused.value.message.endswith(
        " (ssl_ca_location is from the arguments of the client; security_protocol is from --command-config "
        "client.properties)"
    )


def test_conflict_of_arguments_alone_names_no_source(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BUS_SASL_USERNAME", "bob")
    with pytest.raises(BusError, match=r"found PLAINTEXT$"):
        parse_config(AdminConfig, {"security_protocol": "PLAINTEXT", "ssl_ca_location": "ca.pem"})


def test_setting_that_a_later_source_hides_has_no_origin_in_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BUS_SASL_USERNAME", "bob")
    with pytest.raises(BusError, match="sasl_username and sasl_password") as refused:
        parse_config(AdminConfig, {"profile": "prod"})
    message = refused.value.message
    assert "sasl_username is from the environment, BUS_SASL_USERNAME" in message
    assert "sasl_password is from" not in message
    assert "hush" not in message


def test_client_without_an_address_is_told_where_it_may_come_from() -> None:
    with pytest.raises(BusError, match=r"found none: .*set BUS_ADDRESS, or name a profile that has bootstrap.servers"):
        Admin()


@pytest.mark.parametrize(
    ("mode", "profile", "is_warned_of"),
    [(0o600, "prod", False), (0o640, "prod", True), (0o604, "prod", True), (0o644, "dev", False)],
)
def test_file_with_secrets_that_others_may_read_is_warned_of_once(
    file: Path, mode: int, profile: str, is_warned_of: bool, caplog: pytest.LogCaptureFixture
) -> None:
    file.chmod(mode)
    for _ in range(3):
        parse_config(AdminConfig, {"profile": profile})
    said = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    if is_warned_of:
        assert said == [f"{file} holds secrets and can be read by other users (mode 0{mode:o}): run chmod 600 on it"]
    else:
        assert said == []


@pytest.mark.parametrize(
    ("file_mode", "folder_mode", "what"),
    [
        (0o600, 0o700, None),
        (0o644, 0o755, None),
        (0o620, 0o700, "file"),
        (0o602, 0o700, "file"),
        (0o600, 0o777, "folder"),
        (0o600, 0o1777, None),
    ],
)
def test_profile_that_others_may_change_is_warned_of_once(
    file: Path, file_mode: int, folder_mode: int, what: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    file.chmod(file_mode)
    file.parent.chmod(folder_mode)
    for _ in range(3):
        parse_config(AdminConfig, {"profile": "dev"})
    said = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    changed = {"file": file, "folder": file.parent, None: None}[what]
    assert said == [one for one in said if one.startswith(f"{changed} can be changed by other users (mode 0")]
    assert len(said) == (what is not None)


@pytest.mark.parametrize(("mode", "is_warned_of"), [(0o600, False), (0o644, True)])
def test_file_of_a_password_that_others_may_read_is_warned_of(
    file: Path, mode: int, is_warned_of: bool, caplog: pytest.LogCaptureFixture
) -> None:
    secret = file.parent / "alice.secret"
    secret.write_text("hush\n")
    secret.chmod(mode)
    parse_config(AdminConfig, {"profile": "file"})
    assert [f"{secret} holds secrets" in record.getMessage() for record in caplog.records] == [True] * is_warned_of


def test_secrets_of_a_profile_are_shown_nowhere() -> None:
    config = parse_config(AdminConfig, {"profile": "prod"})
    assert "hush" not in repr(config) + repr(security_of(config))
    from bus.client.config.sources import chosen_profile, with_defaults

    assert "hush" not in repr(chosen_profile({"profile": "prod"})) + repr(with_defaults({"profile": "prod"}))
