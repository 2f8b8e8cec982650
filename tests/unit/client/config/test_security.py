"""How a client reaches its brokers: both spellings, what is refused, where settings come from that are not given."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from bus.client.config.parsing import AdminConfig, ConsumerConfig, ProducerConfig, parse_config
from bus.client.config.security import SECURITY_SETTINGS, ClientLogin, Security, security_of
from bus.errors import BusError, ErrorCode
from bus.model import InlinePem, KeyFiles

JAAS = 'org.apache.kafka.common.security.scram.ScramLoginModule required\n  username="alice" password="hu\\"sh;\\\\";'
SASL = {
    "security_protocol": "SASL_PLAINTEXT",
    "sasl_mechanism": "SCRAM-SHA-512",
    "sasl_username": "alice",
    "sasl_password": 'hu"sh;\\',
}
CA, CERTIFICATE, KEY = Path("ca.pem"), Path("own.crt"), Path("own.key")


@pytest.fixture(autouse=True)
def no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in SECURITY_SETTINGS:
        monkeypatch.delenv(f"BUS_{name.upper()}", raising=False)


@pytest.mark.parametrize("kind", [AdminConfig, ConsumerConfig, ProducerConfig])
@pytest.mark.parametrize(
    ("given", "files"),
    [
        ({}, KeyFiles()),
        ({"ssl_ca_location": "ca.pem"}, KeyFiles(trusted=CA)),
        ({"ssl_truststore_location": "ca.pem", "ssl_ca_location": "ca.pem"}, KeyFiles(trusted=CA)),
        ({"ssl_certificate_location": "own.crt", "ssl_key_location": "own.key"}, KeyFiles(CERTIFICATE, KEY)),
        ({"ssl_keystore_location": "own.key", "ssl_key_password": "hush"}, KeyFiles(KEY, KEY, password="hush")),
        (
            {"ssl_truststore_certificates": "hush", "ssl_truststore_type": "pem"},
            KeyFiles(trusted=InlinePem("ssl_truststore_certificates", "hush")),
        ),
        (
            {"ssl_ca_pem": "hush", "ssl_certificate_pem": "hush", "ssl_key_pem": "hush", "ssl_key_password": "hush"},
            KeyFiles(
                InlinePem("ssl_certificate_pem", "hush"),
                InlinePem("ssl_key_pem", "hush"),
                InlinePem("ssl_ca_pem", "hush"),
                "hush",
            ),
        ),
        (
            {"ssl_keystore_certificate_chain": "hush", "ssl_keystore_key": "hush", "ssl_keystore_type": "PEM"},
            KeyFiles(InlinePem("ssl_keystore_certificate_chain", "hush"), InlinePem("ssl_keystore_key", "hush")),
        ),
    ],
)
def test_both_spellings_mean_the_same(kind: Any, given: dict[str, str], files: KeyFiles) -> None:
    config = parse_config(kind, {"security_protocol": "ssl", **given})
    assert security_of(config) == Security("SSL", files)
    assert "hush" not in repr(config)
    assert "hush" not in repr(security_of(config))


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"security_protocol": "TLS"}, "expected one of PLAINTEXT, SSL, SASL_PLAINTEXT, SASL_SSL, found 'TLS'"),
        ({"security_protocol": "SASL_SSL"}, "sasl_mechanism: expected one of SCRAM-SHA-256, .*, found none"),
        ({**SASL, "sasl_mechanism": "GSSAPI"}, "sasl_mechanism: expected one of SCRAM.*there is no Kerberos"),
        ({**SASL, "sasl_mechanisms": "PLAIN"}, "which mean the same, found two mechanisms"),
        ({**SASL, "sasl_password": ""}, "expected sasl_username and sasl_password .*; found no password"),
        ({**SASL, "sasl_jaas_config": JAAS}, "expected sasl_jaas_config or sasl_username .*, found both"),
        ({**SASL, "sasl_mechanism": "PLAIN", "sasl_username": "a:b"}, "a name without a colon"),
        ({**SASL, "ssl_ca_location": "ca.pem"}, "expected security_protocol=SSL or SASL_SSL beside it"),
        ({**SASL, "security_protocol": "SSL"}, "expected security_protocol=SASL_PLAINTEXT or SASL_SSL beside it"),
        ({"sasl_jaas_config": "hush"}, "sasl_jaas_config: expected a line of JAAS.*found another value"),
        (
            {"ssl_ca_location": "ca.pem"},
            "ssl_ca_location: expected security_protocol=SSL or SASL_SSL beside it, found PLAINTEXT",
        ),
        (
            {"security_protocol": "SSL", "ssl_ca_location": "a", "ssl_truststore_location": "b"},
            "expected either ssl_ca_location or ssl_truststore_location, found both",
        ),
        ({"security_protocol": "SSL", "ssl_key_location": "k"}, "a certificate beside ssl_key_location, found none"),
        ({"security_protocol": "SSL", "ssl_certificate_pem": "c"}, "a private key beside ssl_certificate_pem, found"),
        (
            {"security_protocol": "SSL", "ssl_key_location": "k", "ssl_keystore_location": "b"},
            "expected either ssl_keystore_location, .*found both",
        ),
        (
            {"security_protocol": "SSL", "ssl_key_location": "k", "ssl_keystore_key": "hush"},
            "expected either ssl_key_location or ssl_keystore_key, found both",
        ),
        (
            {"security_protocol": "SSL", "ssl_keystore_key": "hush", "ssl_key_pem": "hush hush"},
            "expected either ssl_key_pem or ssl_keystore_key, found both",
        ),
        (
            {"security_protocol": "SSL", "ssl_ca_location": "hushed.pem", "ssl_ca_pem": "hushed.pem"},
            "expected either ssl_ca_location or ssl_ca_pem, found both",
        ),
        (
            {"security_protocol": "SSL", "ssl_keystore_location": "k", "ssl_keystore_certificate_chain": "hush"},
            "expected either ssl_keystore_location, .*, or ssl_keystore_certificate_chain, found both",
        ),
        ({"ssl_ca_pem": "hush"}, "ssl_ca_pem: expected security_protocol=SSL or SASL_SSL beside it"),
        ({"security_protocol": "SSL", "ssl_keystore_type": "JKS"}, "expected PEM, as there are no Java keystores"),
        ({"ssl_truststore_password": "x"}, "ssl_truststore_password: keys and certificates are PEM"),
        ({"ssl_endpoint_identification_algorithm": ""}, "the host in a certificate is always checked"),
    ],
)
def test_settings_that_cannot_work_are_refused(given: dict[str, str], said: str) -> None:
    with pytest.raises(BusError, match=said) as refused:
        parse_config(ProducerConfig, given)
    assert refused.value.code is ErrorCode.INVALID_CONFIG
    assert "hush" not in str(refused.value)


@pytest.mark.parametrize(
    "given",
    [
        SASL,
        {**SASL, "sasl_mechanism": "", "sasl_mechanisms": "scram-sha-512"},
        {"security_protocol": "SASL_PLAINTEXT", "sasl_mechanism": "SCRAM-SHA-512", "sasl_jaas_config": JAAS},
    ],
)
def test_a_login_has_kafkas_and_librdkafkas_names_and_shows_no_password(given: dict[str, str]) -> None:
    config = parse_config(AdminConfig, given)
    found = security_of(config)
    assert found == Security("SASL_PLAINTEXT", login=ClientLogin("SCRAM-SHA-512", "alice", 'hu"sh;\\'))
    assert "hu" not in repr(config) + repr(found)


def test_wrong_password_is_not_shown() -> None:
    secret: Any = b"hush"
    with pytest.raises(BusError, match="ssl_key_password: expected a text, found another value"):
        parse_config(AdminConfig, {"security_protocol": "SSL", "ssl_key_password": secret})
