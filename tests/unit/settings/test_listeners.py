"""Listeners as Kafka writes them: what they mean, and which are refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from bus.addresses import Address
from bus.model import InlinePem, KeyFiles, NameChanges
from bus.security.oauth.token_settings import DocumentUrl, TokenSettings
from bus.settings.broker import describe_broker_config
from bus.settings.keys import ConfigError
from bus.settings.listeners import Listener
from bus.settings.loading import load_broker_config
from bus.settings.login_settings import (
    broker_login,
    broker_token,
    key_set_url,
    login_lives_ms,
    login_mechanisms,
    principals_beyond_tokens,
    token_listeners,
    unused_login_settings,
    warnings_of_tokens,
)

TWO = {
    "listeners": "clients://127.0.0.1:9094,BROKERS://[::1]:0",
    "listener.security.protocol.map": "CLIENTS:plaintext,brokers:PLAINTEXT",
    "advertised.listeners": "CLIENTS://bus.example:80",
}


def test_listeners_have_names_protocols_and_addresses_of_their_own() -> None:
    config = load_broker_config(None, TWO)
    clients, brokers = config.serving_listeners
    assert clients == Listener("CLIENTS", "PLAINTEXT", Address("127.0.0.1", 9094), Address("bus.example", 80))
    assert brokers == Listener("BROKERS", "PLAINTEXT", Address("::1", 0), Address("::1", 0))
    assert config.inter_broker_listener == clients
    assert load_broker_config(None, TWO | {"inter.broker.listener.name": "brokers"}).inter_broker_listener == brokers


def test_listen_is_the_listener_plaintext() -> None:
    assert (
        load_broker_config().serving_listeners
        == load_broker_config(None, {"listeners": "PLAINTEXT://127.0.0.1:9094"}).serving_listeners
    )


SASL = {
    "listeners": "SASL_PLAINTEXT://127.0.0.1:1",
    "sasl.jaas.config": 'M required username="u" password="p";',
}


TOKENS = SASL | {
    "sasl.enabled.mechanisms": "SCRAM-SHA-512,OAUTHBEARER",
    "sasl.oauthbearer.jwks.endpoint.url": "https://issuer.example/keys",
    "sasl.oauthbearer.expected.issuer": "https://issuer.example",
    "sasl.oauthbearer.expected.audience": "bus",
}
BETWEEN = TOKENS | {
    "sasl.mechanism.inter.broker.protocol": "OAUTHBEARER",
    "sasl.oauthbearer.token.endpoint.url": "https://issuer.example/token",
    "sasl.jaas.config": 'M required clientId="c" clientSecret="hush" scope="s";',
}


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"listeners": "127.0.0.1:9094"}, "listeners: expected NAME://HOST:PORT, found '127.0.0.1:9094'"),
        ({"listeners": "PLAINTEXT://h"}, "listeners: PLAINTEXT: expected an address as host:port"),
        ({"listeners": "A://127.0.0.1:1"}, "listener A: expected its protocol in listener.security.protocol.map"),
        ({"listeners": "SASL_SSL://127.0.0.1:1"}, "a listener with TLS: expected ssl.keystore.location"),
        (SASL | {"sasl.jaas.config": ""}, "sasl.jaas.config: expected a line of JAAS"),
        (SASL | {"sasl.jaas.config": "M required username=u;"}, "sasl.jaas.config: expected a username and a password"),
        (SASL | {"sasl.enabled.mechanisms": "PLAIN"}, "inter.broker.protocol: expected one of sasl.enabled.mechanisms"),
        (SASL | {"sasl.enabled.mechanisms": ""}, "expected a mechanism for the listener .*, found none"),
        (
            SASL
            | {
                "listeners": "SASL_PLAINTEXT://0.0.0.0:1",
                "sasl.enabled.mechanisms": "SCRAM-SHA-512,PLAIN",
                "advertised.listeners": "SASL_PLAINTEXT://bus:1",
            },
            "has no TLS: by PLAIN passwords or tokens could be read",
        ),
        (
            TOKENS | {"listeners": "SASL_PLAINTEXT://0.0.0.0:1", "advertised.listeners": "SASL_PLAINTEXT://bus:1"},
            "has no TLS: by OAUTHBEARER passwords or tokens could be read",
        ),
        (TOKENS | {"sasl.oauthbearer.expected.issuer": ""}, "expected.issuer: expected one beside OAUTHBEARER"),
        (TOKENS | {"sasl.oauthbearer.expected.audience": ""}, "expected.audience: expected one beside OAUTHBEARER"),
        (TOKENS | {"sasl.oauthbearer.jwks.endpoint.url": ""}, "jwks.endpoint.url: expected a URL, .* found ''"),
        (
            TOKENS | {"sasl.oauthbearer.jwks.endpoint.url": "https://me:hush@issuer.example/keys"},
            r"jwks.endpoint.url: expected a URL without a name and a password in it, found 'https://\.\.\.'",
        ),
        (
            TOKENS | {"sasl.oauthbearer.jwks.endpoint.url": "http://issuer.example/keys?k=hush"},
            "expected https://, or sasl.oauthbearer.allow.insecure.urls=true .*found 'http://issuer.example/keys'",
        ),
        (TOKENS | {"sasl.enabled.mechanisms": "SCRAM-SHA-512"}, "expected a listener with SASL beside it, and OAUTHB"),
        (TOKENS | {"listeners": "PLAINTEXT://127.0.0.1:1"}, "expected a listener with SASL beside it, and OAUTHBEARER"),
        (
            TOKENS | {"sasl.oauthbearer.jwks.endpoint.retry.backoff.ms": "20000"},
            "jwks.endpoint.retry.backoff.max.ms, 10000, found 20000",
        ),
        (BETWEEN | {"sasl.oauthbearer.token.endpoint.url": ""}, "sasl.oauthbearer.token.endpoint.url: expected a URL"),
        (BETWEEN | {"sasl.jaas.config": ""}, "sasl.jaas.config: expected a line of JAAS"),
        (BETWEEN | {"sasl.jaas.config": "M required clientId=c;"}, "expected a clientId and a clientSecret"),
        ({"listeners": "PLAINTEXT://127.0.0.1:1,plaintext://127.0.0.1:2"}, "each name once, found PLAINTEXT twice"),
        (TWO | {"listener.security.protocol.map": "CLIENTS"}, "expected NAME:PROTOCOL, found 'CLIENTS'"),
        (TWO | {"listener.security.protocol.map": "CLIENTS:FTP"}, "CLIENTS: expected a protocol of .*, found 'FTP'"),
        (TWO | {"listener.security.protocol.map": "A:PLAINTEXT,a:FTP"}, "expected each name once, found A twice"),
        (
            TWO | {"listeners": "CLIENTS://127.0.0.1:1,BROKERS://127.0.0.1:1"},
            "found 127.0.0.1:1 for CLIENTS and BROKERS",
        ),
        (TWO | {"advertised.listeners": "OTHER://h:1"}, "expected names among those of listeners, .*, found OTHER"),
        (TWO | {"advertised.listeners": "CLIENTS://0.0.0.0:1"}, "CLIENTS is 0.0.0.0: expected advertised.listeners to"),
        (TWO | {"inter.broker.listener.name": "X"}, "expected one of the listeners, BROKERS, CLIENTS, found 'X'"),
        (TWO | {"advertise": "h:1"}, "expected either listeners or advertise, its short form, found both"),
        ({"inter.broker.listener.name": "X"}, "inter.broker.listener.name: expected listeners beside it, found none"),
    ],
)
def test_listeners_that_cannot_work_are_refused(settings: dict[str, object], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        load_broker_config(None, settings)


TLS = {"listeners": "SSL://127.0.0.1:9094"}
BOTH = TLS | {"ssl.keystore.location": "both.pem"}


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (TLS, r"expected ssl.keystore.location, or .* found none"),
        (TLS | {"ssl.key.location": "k"}, r"one of ssl.certificate.location, .*, found ssl.key.location alone"),
        (BOTH | {"ssl.key.location": "k"}, r"either ssl.keystore.location, .*, or ssl.key.location, found both"),
        (BOTH | {"ssl.keystore.key": "hush"}, r"either ssl.keystore.location, .*, or ssl.keystore.key, found both"),
        (
            TLS | {"ssl.certificate.location": "c", "ssl.key.location": "k", "ssl.keystore.key": "hush"},
            "expected either ssl.key.location or ssl.keystore.key, found both",
        ),
        (
            TLS | {"ssl.certificate.location": "c", "ssl.keystore.certificate.chain": "hush"},
            "expected either ssl.certificate.location or ssl.keystore.certificate.chain, found both",
        ),
        (
            BOTH | {"ssl.truststore.location": "t", "ssl.truststore.certificates": "hush"},
            "expected either ssl.truststore.location or ssl.truststore.certificates, found both",
        ),
        (BOTH, r"ssl.truststore.location or ssl.truststore.certificates: expected the authorities .*; found none"),
        (BOTH | {"ssl.client.auth": "requested"}, r"ssl.client.auth: expected string \(one of none, required\)"),
        (BOTH | {"ssl.keystore.type": "JKS"}, r"ssl.keystore.type: expected string \(one of PEM\), found 'JKS'"),
        (
            {"ssl.certificate.location": "c", "ssl.key.location": "k"},
            "^ssl.certificate.location: expected a listener of the protocol SSL or SASL_SSL .*found PLAINTEXT$",
        ),
        ({"ssl.client.auth": "required"}, "^ssl.client.auth: expected a listener of the protocol SSL beside it"),
        ({"ssl.principal.mapping.rules": "x"}, r"ssl.principal.mapping.rules: expected DEFAULT, .* or RULE"),
    ],
)
def test_tls_that_cannot_work_is_refused(settings: dict[str, object], said: str) -> None:
    with pytest.raises(ConfigError, match=said) as refused:
        load_broker_config(None, settings)
    assert "hush" not in str(refused.value)


def test_pem_in_settings_is_shown_nowhere() -> None:
    names = ("ssl.keystore.key", "ssl.keystore.certificate.chain", "ssl.truststore.certificates")
    config = load_broker_config(None, TLS | {name: f"hush {name}" for name in names})
    key, chain, trusted = (InlinePem(name, f"hush {name}") for name in names)
    assert config.key_files == {"SSL": KeyFiles(chain, key, trusted)}
    described = {entry.name: entry.value for entry in describe_broker_config(config)}
    assert {described[name] for name in names} == {"(hidden)"}
    assert "hush" not in repr(config) + repr(describe_broker_config(config)) + repr(config.key_files)


@pytest.mark.parametrize("prefix", ["", "listener.name.sasl_plaintext."])
def test_queries_of_urls_are_shown_nowhere(prefix: str) -> None:
    urls = {
        f"sasl.oauthbearer.{name}.endpoint.url": f"https://issuer.example/{name}?key=hush" for name in ("jwks", "token")
    }
    config = load_broker_config(None, BETWEEN | {f"{prefix}{name}": url for name, url in urls.items()})
    described = {entry.name: entry.value for entry in describe_broker_config(config)}
    for name, url in urls.items():
        assert described[f"{prefix}{name}"] == url.removesuffix("?key=hush")
    assert "hush" not in repr(config) + repr(broker_token(config)) + repr(describe_broker_config(config))


def test_password_of_a_key_is_shown_nowhere() -> None:
    config = load_broker_config(None, BOTH | {"ssl.truststore.location": "ca.pem", "ssl.key.password": "hush"})
    assert config.ssl_key_password == "hush"
    assert "hush" not in repr(config)
    assert "hush" not in repr(describe_broker_config(config))
    assert "hush" not in repr(config.key_files)


def test_brokers_have_tokens_of_their_own_and_show_no_secret() -> None:
    config = load_broker_config(None, BETWEEN | {"https.ca.location": "ca.pem"})
    ca = Path("ca.pem")
    assert key_set_url(config) == DocumentUrl("https://issuer.example/keys", ca_location=ca)
    endpoint = DocumentUrl("https://issuer.example/token", ca_location=ca)
    assert broker_token(config) == TokenSettings(endpoint, client_id="c", client_secret="hush", scope="s")
    assert "hush" not in repr(config) + repr(broker_token(config)) + repr(describe_broker_config(config))
    file = {"sasl.oauthbearer.token.endpoint.url": "file:///run/token", "sasl.jaas.config": ""}
    assert broker_token(load_broker_config(None, BETWEEN | file)).file == Path("/run/token")


def test_listener_that_asks_for_certificates_may_be_reached_from_everywhere() -> None:
    settings = {"listeners": "SSL://0.0.0.0:9094", "advertised.listeners": "SSL://bus.example:9094"}
    files = {"ssl.keystore.location": "both.pem", "ssl.truststore.location": "ca.pem"}
    load_broker_config(None, settings | files | {"ssl.client.auth": "required"})
    with pytest.raises(ConfigError, match="can be reached from other machines without authentication"):
        load_broker_config(None, settings | files)


@pytest.mark.parametrize("host", ["0.0.0.0", "[::]", "10.0.0.1", "bus.example"])
def test_listener_that_other_machines_reach_has_to_be_meant(host: str) -> None:
    settings = {"listen": f"{host}:9094", "advertise": "bus.example:9094"}
    with pytest.raises(ConfigError, match=r"can be reached from other machines .* or --insecure"):
        load_broker_config(None, settings)
    load_broker_config(None, settings | {"allow.insecure.listeners": "true"})


@pytest.mark.parametrize("host", ["127.0.0.1", "127.1.2.3", "[::1]", "localhost", "LOCALHOST"])
def test_listener_of_this_machine_is_open_to_all(host: str) -> None:
    load_broker_config(None, {"listen": f"{host}:9094"})


def test_a_listener_with_logins_by_scram_may_be_reached_from_other_machines() -> None:
    reachable = {"listeners": "SASL_PLAINTEXT://0.0.0.0:1", "advertised.listeners": "SASL_PLAINTEXT://bus:1"}
    config = load_broker_config(None, SASL | reachable)
    assert broker_login(config) == ("u", "p")
    assert config.has_logins


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({}, []),
        ({"sasl.enabled.mechanisms": "PLAIN"}, [("a listener", "sasl.enabled.mechanisms", "it has")]),
        (
            {"connections.max.reauth.ms": "1000", "connection.failed.authentication.delay.ms": "1"},
            [("a listener", "connections.max.reauth.ms, connection.failed.authentication.delay.ms", "they have")],
        ),
        (SASL, []),
        (
            SASL
            | {
                "listeners": "SASL_PLAINTEXT://127.0.0.1:1,PLAINTEXT://127.0.0.1:2",
                "inter.broker.listener.name": "PLAINTEXT",
                "sasl.enabled.mechanisms": "PLAIN",
            },
            [("an inter-broker listener", "sasl.jaas.config", "it has")],
        ),
    ],
)
def test_settings_of_logins_that_no_listener_has_are_told(
    settings: dict[str, object], said: list[tuple[str, str, str]]
) -> None:
    assert unused_login_settings(load_broker_config(None, settings)) == [
        f"expected {who} of the protocol SASL_PLAINTEXT or SASL_SSL beside {what}, found none: {many} no effect"
        for who, what, many in said
    ]


OWN = {
    "listeners": "CLIENTS://127.0.0.1:1,CLIENTS.EU://127.0.0.1:2,BROKERS://127.0.0.1:3,SASL_SSL://127.0.0.1:4",
    "listener.security.protocol.map": "CLIENTS:SSL,CLIENTS.EU:SSL,BROKERS:PLAINTEXT",
    "inter.broker.listener.name": "BROKERS",
    "ssl.certificate.location": "broker.crt",
    "ssl.key.location": "broker.key",
    "ssl.key.password": "hush",
    "ssl.truststore.location": "ca.pem",
}
OF_BROKER = KeyFiles(Path("broker.crt"), Path("broker.key"), Path("ca.pem"), "hush")


def test_listener_has_its_own_settings_and_else_those_of_the_broker() -> None:
    own = {
        "listener.name.clients.ssl.keystore.location": "clients.pem",
        "listener.name.clients.ssl.client.auth": "required",
        "listener.name.clients.eu.ssl.truststore.certificates": "hush eu",
        "listener.name.clients.eu.ssl.principal.mapping.rules": "RULE:^CN=(.*)$/$1/",
        "listener.name.sasl_ssl.ssl.key.password": "hush hush",
    }
    config = load_broker_config(None, OWN | own)
    assert config.key_files == {
        "CLIENTS": KeyFiles(Path("clients.pem"), Path("clients.pem"), Path("ca.pem")),
        "CLIENTS.EU": replace(OF_BROKER, trusted=InlinePem("ssl.truststore.certificates", "hush eu")),
        "SASL_SSL": replace(OF_BROKER, password="hush hush"),
    }
    clients, eu, *others = config.serving_listeners
    assert config.needs_client_certificate(clients)
    assert not any(map(config.needs_client_certificate, (eu, *others)))
    assert config.of_listener(eu).ssl_principal_mapping_rules == "RULE:^CN=(.*)$/$1/"
    assert {config.of_listener(one).ssl_principal_mapping_rules for one in (clients, *others)} == {"DEFAULT"}
    described = {entry.name: entry for entry in describe_broker_config(config)}
    assert described["listener.name.clients.ssl.client.auth"].value == "required"
    assert described["listener.name.clients.ssl.client.auth"].valid_values == "one of none, required"
    assert not described["listener.name.clients.ssl.client.auth"].is_default
    assert described["listener.name.clients.eu.ssl.truststore.certificates"].value == "(hidden)"
    assert described["ssl.client.auth"].is_default
    assert "hush" not in repr(config) + repr(described)


def test_settings_of_listeners_are_read_from_a_file_and_overridden(tmp_path: Path) -> None:
    file = tmp_path / "broker.toml"
    lines = [f"{name} = '{value}'" for name, value in OWN.items() if name.startswith("ssl")]
    lists = [f"{name} = {value.split(',')}" for name, value in OWN.items() if name.startswith("listener")]
    head = "\n".join([*lines, *lists, "inter.broker.listener.name = 'BROKERS'", ""])
    file.write_text(head + "listener.name.clients.ssl.client.auth = 'required'\n")
    config = load_broker_config(file)
    assert config.needs_client_certificate(config.serving_listeners[0])
    config = load_broker_config(file, {"listener.name.clients.ssl.client.auth": "none"})
    assert not config.needs_client_certificate(config.serving_listeners[0])
    file.write_text(head + "listener.name.clients.ssl.client.auth = 1\n")
    with pytest.raises(ConfigError, match=r"broker.toml: listener.name.clients.ssl.client.auth: expected string .* 1$"):
        load_broker_config(file)


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        (
            "listener.name.cliens.ssl.client.auth",
            "none",
            "expected a listener that there is, by one of listener.name.clients., listener.name.clients.eu., ",
        ),
        ("listener.name.CLIENTS.ssl.client.auth", "none", "expected a listener that there is, by one of"),
        (
            "listener.name.clients.num.partitions",
            "1",
            "num.partitions is a setting of the whole broker; a listener has keys that begin with ssl. or sasl., ",
        ),
        (
            "listener.name.clients.ssl.client.auht",
            "none",
            "unknown configuration key 'ssl.client.auht'; did you mean ssl.client.auth",
        ),
        (
            "listener.name.brokers.ssl.key.location",
            "x",
            "listener.name.brokers.ssl.key.location: expected a listener of the protocol SSL or SASL_SSL, found PLAIN",
        ),
        ("listener.name.sasl_ssl.ssl.client.auth", "none", "expected a listener of the protocol SSL, found SASL_SSL"),
        (
            "listener.name.clients.ssl.client.auth",
            "requested",
            r"^listener.name.clients.ssl.client.auth: expected string \(one of none, required\), found 'requested'",
        ),
        ("listener.name.clients.ssl.keystore.key", "hush", "listener CLIENTS: .*, found ssl.keystore.key alone"),
        (
            "listener.name.clients.sasl.enabled.mechanisms",
            "PLAIN",
            "expected a listener of the protocol SASL_PLAINTEXT or SASL_SSL, found SSL",
        ),
        (
            "listener.name.sasl_ssl.sasl.enabled.mechanisms",
            "",
            "sasl.enabled.mechanisms: expected a mechanism for the listener SASL_SSL, found none",
        ),
        (
            "listener.name.sasl_ssl.sasl.enabled.mechanisms",
            "GSSAPI",
            r"^listener.name.sasl_ssl.sasl.enabled.mechanisms: expected list \(any of ",
        ),
        (
            "listener.name.sasl_ssl.sasl.enabled.mechanisms",
            "OAUTHBEARER",
            "sasl.oauthbearer.expected.issuer: expected one beside OAUTHBEARER",
        ),
        ("listener.name.clients.ssl.principal.mapping.rules", "x", "expected DEFAULT, .* or RULE"),
    ],
)
def test_setting_of_a_listener_that_cannot_be_is_refused(name: str, value: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said) as refused:
        load_broker_config(None, OWN | {name: value})
    assert "hush" not in str(refused.value)


def test_listener_with_certificates_of_its_own_clients_may_be_reached_from_everywhere() -> None:
    settings = OWN | {"listeners": "CLIENTS://10.0.0.1:1", "listener.security.protocol.map": "CLIENTS:SSL"}
    settings["inter.broker.listener.name"] = "CLIENTS"
    load_broker_config(None, settings | {"listener.name.clients.ssl.client.auth": "required"})
    asked = settings | {"ssl.client.auth": "required"}
    load_broker_config(None, asked)
    with pytest.raises(ConfigError, match=r"listener CLIENTS at .* can be reached from other machines without"):
        load_broker_config(None, asked | {"listener.name.clients.ssl.client.auth": "none"})


def test_listeners_have_mechanisms_of_their_own() -> None:
    settings: dict[str, object] = {
        "listeners": "LOCAL://127.0.0.1:1,REMOTE://10.0.0.1:2",
        "listener.security.protocol.map": "LOCAL:SASL_PLAINTEXT,REMOTE:SASL_PLAINTEXT",
        "sasl.jaas.config": SASL["sasl.jaas.config"],
        "sasl.mechanism.inter.broker.protocol": "SCRAM-SHA-256",
        "listener.name.local.sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256",
    }
    config = load_broker_config(None, settings)
    assert login_mechanisms(config) == {
        "LOCAL": ("PLAIN", "SCRAM-SHA-256"),
        "REMOTE": ("SCRAM-SHA-256", "SCRAM-SHA-512"),
    }
    with pytest.raises(ConfigError, match=r"listener REMOTE at .* has no TLS: by PLAIN"):
        load_broker_config(None, settings | {"listener.name.remote.sasl.enabled.mechanisms": "PLAIN"})
    with pytest.raises(ConfigError, match=r"of sasl.enabled.mechanisms of its listener, PLAIN, found SCRAM"):
        load_broker_config(None, settings | {"listener.name.local.sasl.enabled.mechanisms": "PLAIN"})


def test_listeners_have_rules_of_their_own_for_new_names() -> None:
    config = load_broker_config(None, OWN | {"listener.name.clients.ssl.allow.san.changes": "true"})
    clients, eu, *_ = config.serving_listeners
    assert config.name_changes_of(clients) == NameChanges(of_alternatives=True)
    assert config.name_changes_of(eu) == NameChanges()
    config = load_broker_config(None, OWN | {"ssl.allow.dn.changes": "true"})
    assert config.name_changes_of(eu) == NameChanges(of_subject=True)


_JAAS = 'M required username="u" password="hush";'
LOGINS: dict[str, object] = {
    "listeners": "STAFF://127.0.0.1:1,PARTNERS://127.0.0.1:2,BROKERS://127.0.0.1:3,OPEN://127.0.0.1:4",
    "listener.security.protocol.map": (
        "STAFF:SASL_PLAINTEXT,PARTNERS:SASL_PLAINTEXT,BROKERS:SASL_PLAINTEXT,OPEN:PLAINTEXT"
    ),
    "inter.broker.listener.name": "BROKERS",
    "listener.name.staff.sasl.enabled.mechanisms": "OAUTHBEARER,SCRAM-SHA-512",
    "listener.name.partners.sasl.enabled.mechanisms": "OAUTHBEARER",
    "listener.name.brokers.scram-sha-512.sasl.jaas.config": 'M required username="b" password="hush";',
    "sasl.oauthbearer.jwks.endpoint.url": "https://issuer.example/keys",
    "sasl.oauthbearer.expected.issuer": "https://issuer.example",
    "sasl.oauthbearer.expected.audience": "bus",
}


def test_listeners_have_identity_providers_of_their_own() -> None:
    config = load_broker_config(
        None,
        LOGINS
        | {
            "listener.name.partners.oauthbearer.sasl.oauthbearer.jwks.endpoint.url": "https://partner.example/keys",
            "listener.name.partners.sasl.oauthbearer.expected.issuer": "https://partner.example",
            "listener.name.partners.https.ca.location": "partner.pem",
        },
    )
    staff, partners = token_listeners(config)["STAFF"], token_listeners(config)["PARTNERS"]
    assert token_listeners(config).keys() == {"STAFF", "PARTNERS"}
    assert key_set_url(staff) == DocumentUrl("https://issuer.example/keys")
    assert key_set_url(partners) == DocumentUrl("https://partner.example/keys", ca_location=Path("partner.pem"))
    assert (staff.sasl_oauthbearer_expected_issuer, partners.sasl_oauthbearer_expected_issuer) == (
        "https://issuer.example",
        "https://partner.example",
    )
    assert partners.sasl_oauthbearer_expected_audience == ("bus",)


def test_logins_hold_as_long_as_the_mechanism_the_listener_or_the_broker_says() -> None:
    config = load_broker_config(
        None,
        LOGINS
        | {
            "connections.max.reauth.ms": "3000",
            "listener.name.staff.connections.max.reauth.ms": "2000",
            "listener.name.staff.oauthbearer.connections.max.reauth.ms": "1000",
        },
    )
    assert login_lives_ms(config) == {
        "STAFF": {"OAUTHBEARER": 1000, "SCRAM-SHA-512": 2000},
        "PARTNERS": {"OAUTHBEARER": 3000},
        "BROKERS": {"SCRAM-SHA-256": 3000, "SCRAM-SHA-512": 3000},
    }
    described = {entry.name: entry.value for entry in describe_broker_config(config)}
    assert described["listener.name.staff.oauthbearer.connections.max.reauth.ms"] == "1000"
    assert described["listener.name.staff.connections.max.reauth.ms"] == "2000"


def test_what_a_broker_logs_in_with_may_be_spelled_as_kafka_does() -> None:
    config = load_broker_config(None, LOGINS)
    assert broker_login(config) == ("b", "hush")
    name = "listener.name.brokers.scram-sha-512.sasl.jaas.config"
    assert {entry.name: entry.value for entry in describe_broker_config(config)}[name] == "(hidden)"
    assert "hush" not in repr(config)
    listener = {"listener.name.brokers.sasl.jaas.config": _JAAS}
    assert broker_login(load_broker_config(None, LOGINS | listener)) == ("b", "hush")
    listener |= {"sasl.jaas.config": "M required username=other password=hush;"}
    without = {key: value for key, value in LOGINS.items() if "jaas" not in key}
    assert broker_login(load_broker_config(None, without | listener)) == ("u", "hush")
    tokens = {
        "sasl.mechanism.inter.broker.protocol": "OAUTHBEARER",
        "listener.name.brokers.sasl.enabled.mechanisms": "OAUTHBEARER",
        "listener.name.brokers.oauthbearer.sasl.oauthbearer.token.endpoint.url": "https://issuer.example/token",
        "listener.name.brokers.oauthbearer.sasl.jaas.config": 'M required clientId="c" clientSecret="hush";',
    }
    others = {key: value for key, value in LOGINS.items() if "scram-sha-512" not in key}
    config = load_broker_config(None, others | tokens)
    assert broker_token(config).client_id == "c"
    assert broker_token(config).url == DocumentUrl("https://issuer.example/token")


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        (
            "listener.name.staff.scram-sha-512.sasl.jaas.config",
            _JAAS,
            "expected no line of JAAS: users log in with what `bus users create` gave them. What this broker logs in "
            r"with at others is listener.name.brokers.scram-sha-512.sasl.jaas.config$",
        ),
        ("listener.name.brokers.plain.sasl.jaas.config", _JAAS, "expected no line of JAAS: users log in with what"),
        (
            "sasl.jaas.config",
            'M required username="u" password="hush" user_alice="hush";',
            "^sasl.jaas.config: expected no users in it, found user_alice: make users by `bus users create alice --r",
        ),
        (
            "listener.name.staff.scram-sha-256.connections.max.reauth.ms",
            "1000",
            "expected SCRAM-SHA-256 among sasl.enabled.mechanisms of the listener, found OAUTHBEARER, SCRAM-SHA-512$",
        ),
        (
            "listener.name.brokers.sasl.oauthbearer.expected.issuer",
            "https://b.example",
            "expected OAUTHBEARER among sasl.enabled.mechanisms of the listener, found SCRAM-SHA-256, SCRAM-SHA-512$",
        ),
        (
            "listener.name.staff.scram-sha-512.sasl.oauthbearer.expected.issuer",
            "https://b.example",
            "expected.issuer is no setting of SCRAM-SHA-512; expected listener.name.staff.sasl.oauthbearer.expected",
        ),
        (
            "listener.name.staff.sasl.oauthbearer.token.endpoint.url",
            "https://issuer.example/token",
            "expected the listener by which brokers reach one another, BROKERS",
        ),
        (
            "listener.name.brokers.sasl.oauthbearer.token.endpoint.url",
            "https://issuer.example/token",
            "expected sasl.mechanism.inter.broker.protocol=OAUTHBEARER beside it",
        ),
        (
            "listener.name.open.connections.max.reauth.ms",
            "1000",
            "expected a listener of the protocol SASL_PLAINTEXT or SASL_SSL, found PLAINTEXT",
        ),
        (
            "listener.name.staff.connections.max.reauth.ms",
            "0",
            r"^listener.name.staff.connections.max.reauth.ms: expected long \(\[1000,...\]\), found '0'",
        ),
        ("listener.name.partners.sasl.oauthbearer.expected.issuer", "", "^listener PARTNERS: .*issuer: expected one"),
        (
            "listener.name.partners.sasl.oauthbearer.jwks.endpoint.url",
            "http://partner.example/keys",
            "^listener PARTNERS: sasl.oauthbearer.jwks.endpoint.url: expected https://, or",
        ),
        (
            "listener.name.staff.oauthbearer.sasl.server.callback.handler.class",
            "org.example.Handler",
            "no key of the bus: leave it out: tokens are checked by the settings sasl.oauthbearer",
        ),
        ("listener.name.staff.gssapi.sasl.jaas.config", _JAAS, "no key of the bus: there is no Kerberos"),
    ],
)
def test_login_of_a_listener_that_cannot_be_is_refused(name: str, value: str, said: str) -> None:
    given = {key: one for key, one in LOGINS.items() if "jaas" not in key} if name == "sasl.jaas.config" else LOGINS
    with pytest.raises(ConfigError, match=said) as refused:
        load_broker_config(None, given | {name: value})
    assert "hush" not in str(refused.value)


def test_two_spellings_of_one_setting_of_a_listener_are_refused() -> None:
    two = {f"listener.name.staff.{name}sasl.oauthbearer.expected.scope": "a" for name in ("", "oauthbearer.")}
    with pytest.raises(
        ConfigError, match=r"expected either .*staff.sasl.* or .*staff.oauthbearer.*, which mean the sa"
    ):
        load_broker_config(None, LOGINS | two)


@pytest.mark.parametrize("line", ['M required user_alice="hush";', "required"])
def test_line_of_jaas_that_no_listener_uses_is_read_all_the_same(line: str) -> None:
    with pytest.raises(ConfigError, match=r"^sasl.jaas.config: expected (no users in it|a line of JAAS)") as refused:
        load_broker_config(None, {"sasl.jaas.config": line})
    assert "hush" not in str(refused.value)


def test_line_of_jaas_is_not_asked_for_where_brokers_do_not_log_in() -> None:
    others = {key: value for key, value in LOGINS.items() if "jaas" not in key}
    settings = others | {
        "inter.broker.listener.name": "OPEN",
        "listener.name.staff.scram-sha-512.sasl.jaas.config": _JAAS,
    }
    with pytest.raises(ConfigError, match=r"expected no line of JAAS: .* `bus users create` gave them$"):
        load_broker_config(None, settings)


PARTNERS = {
    "listeners": "STAFF://127.0.0.1:1,PARTNERS://127.0.0.1:2,BROKERS://127.0.0.1:3",
    "listener.security.protocol.map": "STAFF:SASL_PLAINTEXT,PARTNERS:SASL_PLAINTEXT,BROKERS:SASL_PLAINTEXT",
    "inter.broker.listener.name": "BROKERS",
    "sasl.jaas.config": 'ScramLoginModule required username="broker" password="p";',
    "authorizer.class.name": "acl",
    "super.users": "User:admin",
    "listener.name.partners.sasl.enabled.mechanisms": "OAUTHBEARER",
    "listener.name.partners.sasl.oauthbearer.jwks.endpoint.url": "https://partner.example/keys",
    "listener.name.partners.sasl.oauthbearer.expected.issuer": "https://partner.example",
    "listener.name.partners.sasl.oauthbearer.expected.audience": "bus",
}
ALLOWED = "listener.name.partners.sasl.oauthbearer.allow.super.users"
PREFIX = "listener.name.partners.sasl.oauthbearer.principal.prefix"


def test_tokens_make_no_super_users_and_brokers_where_the_listener_does_not_say_so() -> None:
    config = load_broker_config(None, PARTNERS)
    assert principals_beyond_tokens(config, "PARTNERS") == {"User:admin", "User:broker"}
    allowed = load_broker_config(None, PARTNERS | {ALLOWED: "true"})
    assert principals_beyond_tokens(allowed, "PARTNERS") == frozenset()


def test_brokers_that_log_in_by_tokens_are_made_by_tokens_of_their_own_listener_alone() -> None:
    partners = "listener.name.partners."
    settings = PARTNERS | {
        "sasl.mechanism.inter.broker.protocol": "OAUTHBEARER",
        "sasl.jaas.config": 'OAuthBearerLoginModule required clientId="c" clientSecret="s";',
        "sasl.oauthbearer.token.endpoint.url": "https://own.example/token",
        "listener.name.brokers.sasl.enabled.mechanisms": "OAUTHBEARER",
        **{
            name.replace(partners, "listener.name.brokers."): str(value).replace("partner", "own")
            for name, value in PARTNERS.items()
            if name.startswith(f"{partners}sasl.oauthbearer.")
        },
    }
    config = load_broker_config(None, settings)
    assert principals_beyond_tokens(config, "BROKERS") == frozenset()
    assert principals_beyond_tokens(config, "PARTNERS") == {"User:admin"}


def test_names_that_a_partners_provider_could_make_are_warned_of_until_a_prefix_keeps_them_apart() -> None:
    warnings = warnings_of_tokens(load_broker_config(None, PARTNERS))
    assert [warning.partition(": ")[2].partition(":")[0] for warning in warnings] == [
        "tokens that name User",
        "its identity provider can make a token for every user that logs in at other listeners",
    ]
    assert "User:admin, User:broker are refused" in warnings[0]
    assert warnings_of_tokens(load_broker_config(None, PARTNERS | {PREFIX: "partner:"})) == []
    with pytest.raises(ConfigError, match=r"principal\.prefix: expected characters that are seen"):
        load_broker_config(None, PARTNERS | {PREFIX: "partner\u200b"})
