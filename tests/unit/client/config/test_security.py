"""How a client reaches its brokers: both spellings, what is refused, where settings come from that are not given."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bus.client.config.clients import AdminConfig, ConsumerConfig, ProducerConfig
from bus.client.config.parsing import parse_config
from bus.client.config.security import SECURITY_SETTINGS, ClientLogin, Security, TokenLogin, security_of
from bus.errors import BusError, ErrorCode
from bus.model import InlinePem, KeyFiles
from bus.security.oauth.token_settings import AssertionSettings, DocumentUrl, TokenSettings, parse_url

JAAS = 'org.apache.kafka.common.security.scram.ScramLoginModule required\n  username="alice" password="hu\\"sh;\\\\";'
SASL = {
    "security_protocol": "SASL_PLAINTEXT",
    "sasl_mechanism": "SCRAM-SHA-512",
    "sasl_username": "alice",
    "sasl_password": 'hu"sh;\\',
}
ENDPOINT = "https://issuer.example/token"
OAUTH = {
    "security_protocol": "SASL_SSL",
    "sasl_mechanism": "OAUTHBEARER",
    "sasl_oauthbearer_token_endpoint_url": ENDPOINT,
    "sasl_oauthbearer_client_id": "loader",
    "sasl_oauthbearer_client_secret": "hush",
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
        ({**SASL, "sasl_oauthbearer_scope": "x"}, "sasl_oauthbearer_scope: expected sasl_mechanism=OAUTHBEARER"),
        ({**OAUTH, "security_protocol": "SSL"}, "expected security_protocol=SASL_PLAINTEXT or SASL_SSL beside it"),
        ({**OAUTH, "sasl_username": "alice"}, "by OAUTHBEARER expected a token"),
        ({**OAUTH, "sasl_oauthbearer_token_endpoint_url": ""}, "sasl_oauth_token_provider, found none"),
        ({**OAUTH, "sasl_oauth_token_provider": lambda: ""}, "sasl_oauth_token_provider, found both"),
        ({**OAUTH, "sasl_oauthbearer_client_id": ""}, "client_secret_file, .*found no id"),
        ({**OAUTH, "sasl_oauthbearer_client_secret": ""}, "BUS_SASL_OAUTHBEARER_CLIENT_SECRET"),
        ({**OAUTH, "sasl_oauthbearer_client_secret_file": "f"}, "sasl_oauthbearer_client_secret_file, found both"),
        ({**OAUTH, "sasl_oauthbearer_client_credentials_client_secret": "h"}, "client_secret: expected one value"),
        ({**OAUTH, "sasl_oauthbearer_client_credentials_client_id": "h"}, "client_id: expected one value"),
        ({**OAUTH, "sasl_oauthbearer_client_id": "a:b"}, "sasl_oauthbearer_header_urlencode=true"),
        (
            {**OAUTH, "sasl_oauthbearer_token_endpoint_url": "http://h/t?k=hush"},
            "insecure.urls=true .*found 'http://h/t'",
        ),
        (
            {**OAUTH, "sasl_oauthbearer_token_endpoint_url": "https://me:hush@h/t"},
            r"a URL without a name and a password in it, found 'https://\.\.\.'",
        ),
        (
            {**OAUTH, "sasl_oauthbearer_header_urlencode": "yes"},
            "header_urlencode: expected True or False, found 'yes'",
        ),
        ({**OAUTH, "sasl_oauthbearer_method": "default"}, "sasl_oauthbearer_method: expected oidc"),
        ({**OAUTH, "sasl_oauth_token_provider": "f"}, "expected a function, .*found another value"),
        ({**OAUTH, "oauth_cb": print}, "give a function as sasl_oauth_token_provider"),
        ({"https_ca_location": "ca.pem"}, "https_ca_location: expected sasl_mechanism=OAUTHBEARER beside it"),
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


@pytest.mark.parametrize("kind", [AdminConfig, ConsumerConfig, ProducerConfig])
@pytest.mark.parametrize(
    ("given", "tokens"),
    [
        (OAUTH, {"client_id": "loader", "client_secret": "hush"}),
        ({**OAUTH, "sasl_oauthbearer_method": "OIDC"}, {"client_id": "loader", "client_secret": "hush"}),
        (
            {
                **OAUTH,
                "sasl_oauthbearer_client_id": "",
                "sasl_oauthbearer_client_secret": "",
                "sasl_oauthbearer_client_credentials_client_id": "loader",
                "sasl_oauthbearer_client_credentials_client_secret": "hush",
                "sasl_oauthbearer_scope": "read write",
            },
            {"client_id": "loader", "client_secret": "hush", "scope": "read write"},
        ),
        (
            {
                **OAUTH,
                "sasl_oauthbearer_client_id": "",
                "sasl_oauthbearer_client_secret": "",
                "sasl_jaas_config": 'x.OAuthBearerLoginModule required clientId="l" clientSecret="hush" scope="s";',
            },
            {"client_id": "l", "client_secret": "hush", "scope": "s"},
        ),
        (
            {
                **OAUTH,
                "sasl_oauthbearer_client_secret": "",
                "sasl_oauthbearer_client_secret_file": "secret",
                "sasl_oauthbearer_header_urlencode": "True",
            },
            {"client_id": "loader", "client_secret_file": Path("secret"), "encodes_header": True},
        ),
    ],
    ids=["librdkafka", "method", "kafka", "jaas", "file"],
)
def test_a_client_of_a_provider_has_kafkas_and_librdkafkas_names(
    kind: Any, given: dict[str, str], tokens: dict[str, Any]
) -> None:
    config = parse_config(kind, given)
    found = security_of(config)
    assert found == Security("SASL_SSL", login=TokenLogin(TokenSettings(DocumentUrl(ENDPOINT), **tokens)))
    assert "hush" not in repr(config) + repr(found)


KEYED = {name: value for name, value in OAUTH.items() if "secret" not in name} | {
    "sasl_oauthbearer_assertion_private_key_file": "loader.key"
}
BY_KEY = AssertionSettings(key_file=Path("loader.key"), issuer="loader", subject="loader", audience=ENDPOINT)


@pytest.mark.parametrize(
    ("given", "assertion"),
    [
        ({}, BY_KEY),
        (
            {
                "sasl_oauthbearer_assertion_algorithm": "es256",
                "sasl_oauthbearer_assertion_claim_aud": "https://issuer.example",
                "sasl_oauthbearer_assertion_claim_iss": "i",
                "sasl_oauthbearer_assertion_claim_sub": "s",
                "sasl_oauthbearer_assertion_claim_exp_seconds": "30",
                "sasl_oauthbearer_assertion_claim_nbf_seconds": 0,
                "sasl_oauthbearer_assertion_claim_jti_include": "false",
                "sasl_oauthbearer_assertion_private_key_passphrase": "hush",
                "sasl_oauthbearer_assertion_template_file": "t.json",
            },
            AssertionSettings(
                key_file=Path("loader.key"),
                algorithm="ES256",
                audience="https://issuer.example",
                issuer="i",
                subject="s",
                life_s=30,
                not_before_s=0,
                has_id=False,
                passphrase="hush",
                template_file=Path("t.json"),
            ),
        ),
        (
            {
                "sasl_oauthbearer_assertion_private_key_file": "",
                "sasl_oauthbearer_assertion_private_key_pem": "hush",
                "sasl_oauthbearer_assertion_jwt_template_file": "t.json",
            },
            replace(BY_KEY, key_file=None, key_pem="hush", template_file=Path("t.json")),
        ),
        (
            {"sasl_oauthbearer_assertion_private_key_file": "", "sasl_oauthbearer_assertion_file": "assertion"},
            AssertionSettings(file=Path("assertion")),
        ),
    ],
    ids=["key", "claims", "inline", "ready made"],
)
def test_a_client_may_show_an_assertion_in_place_of_a_secret(
    given: dict[str, Any], assertion: AssertionSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the environment has a secret, which is another client's."""
    monkeypatch.setenv("BUS_SASL_OAUTHBEARER_CLIENT_SECRET", "hush of another")
    config = parse_config(AdminConfig, KEYED | given)
    found = security_of(config).login
    assert found == TokenLogin(TokenSettings(DocumentUrl(ENDPOINT), client_id="loader", assertion=assertion))
    assert "hush" not in repr(config) + repr(found)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"sasl_oauthbearer_client_secret": "hush"}, "expected either a client secret or sasl_oauthbearer_assertion_"),
        (
            {"sasl_oauthbearer_client_secret_file": "f"},
            "expected either a client secret or sasl_oauthbearer_assertion_",
        ),
        (
            {"sasl_oauthbearer_assertion_file": "f"},
            "expected either .*assertion_file or .*private_key_file, found both",
        ),
        ({"sasl_oauthbearer_assertion_private_key_pem": "hush"}, "either .*key_file or .*key_pem, found both"),
        ({"sasl_oauthbearer_client_id": ""}, "expected sasl_oauthbearer_client_id beside .*; found no id"),
        (
            {"sasl_oauthbearer_token_endpoint_url": "file:///t"},
            "private_key_file: expected the URL of a token endpoint",
        ),
        ({"sasl_oauthbearer_assertion_algorithm": "HS256"}, "expected one of RS256, PS256, ES256, found 'HS256'"),
        ({"sasl_oauthbearer_assertion_claim_exp_seconds": 0}, "exp_seconds: expected an integer from 1 to"),
        ({"sasl_oauthbearer_assertion_claim_exp_seconds": "x"}, "exp_seconds: expected an integer from 1 to"),
        (
            {"sasl_oauthbearer_assertion_private_key_file": "", "sasl_oauthbearer_assertion_claim_iss": "i"},
            "claim_iss: expected .*private_key_file or .*private_key_pem beside it, found none",
        ),
        (
            {
                "sasl_oauthbearer_assertion_private_key_file": "",
                "sasl_oauthbearer_assertion_file": "f",
                "sasl_oauthbearer_assertion_private_key_passphrase": "hush",
            },
            "passphrase: expected .* beside it, found sasl_oauthbearer_assertion_file",
        ),
        (
            {
                "sasl_oauthbearer_assertion_template_file": "a",
                "sasl_oauthbearer_assertion_jwt_template_file": "b",
            },
            "which mean the same, found two files",
        ),
        ({"sasl_oauthbearer_grant_type": "urn:x"}, "the grant is client_credentials"),
        ({"sasl_oauthbearer_jwt_retriever_class": "X"}, "leave it out: with sasl_oauthbearer_assertion"),
        ({"sasl_mechanism": "PLAIN"}, "expected sasl_mechanism=OAUTHBEARER beside it"),
    ],
)
def test_an_assertion_that_cannot_be_is_refused(given: dict[str, Any], said: str) -> None:
    with pytest.raises(BusError, match=said) as refused:
        parse_config(AdminConfig, KEYED | given)
    assert refused.value.code is ErrorCode.INVALID_CONFIG
    assert "hush" not in str(refused.value)


def test_a_token_may_be_in_a_file_or_come_from_a_function() -> None:
    given = {"security_protocol": "SASL_SSL", "sasl_mechanism": "OAUTHBEARER"}
    file = parse_config(AdminConfig, {**given, "sasl_oauthbearer_token_endpoint_url": "file:///run/token"})
    assert security_of(file).login == TokenLogin(TokenSettings(parse_url("file:///run/token")))

    def provide() -> str:
        return "hush"

    function = parse_config(AdminConfig, {**given, "sasl_oauth_token_provider": provide})
    assert security_of(function).login == TokenLogin(TokenSettings(provider=provide))
    assert "provide" not in repr(function)

    async def provide_later() -> str:
        return "hush"

    with pytest.raises(BusError, match="a function, not a coroutine"):
        parse_config(AdminConfig, {**given, "sasl_oauth_token_provider": provide_later})


def test_the_secret_alone_may_be_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """A program names the other settings: a Spark driver has the secret in its environment, and no option has it."""
    monkeypatch.setenv("BUS_SASL_OAUTHBEARER_CLIENT_SECRET", "from there")
    without = {**OAUTH, "sasl_oauthbearer_client_secret": ""}
    config = parse_config(AdminConfig, without)
    monkeypatch.delenv("BUS_SASL_OAUTHBEARER_CLIENT_SECRET")  # as on an executor, which gets the config
    found = security_of(config).login
    assert isinstance(found, TokenLogin)
    assert found.tokens.client_secret == "from there"
    named = security_of(parse_config(AdminConfig, OAUTH)).login
    assert isinstance(named, TokenLogin)
    assert named.tokens.client_secret == "hush"


def test_a_login_by_tokens_hides_one_by_password_of_the_environment_and_the_other_way_round(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("username", "password"):
        monkeypatch.setenv(f"BUS_SASL_{name.upper()}", "from there")
    assert isinstance(security_of(parse_config(AdminConfig, OAUTH)).login, TokenLogin)
    for name, value in OAUTH.items():
        monkeypatch.setenv(f"BUS_{name.upper()}", value)
    for name in ("username", "password"):
        monkeypatch.delenv(f"BUS_SASL_{name.upper()}")
    assert isinstance(security_of(parse_config(AdminConfig, {})).login, TokenLogin)
    assert isinstance(security_of(parse_config(AdminConfig, SASL)).login, ClientLogin)
    assert security_of(parse_config(AdminConfig, {"security_protocol": "SSL"})).login is None


def test_a_client_of_the_program_has_no_secret_of_another_client(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BUS_SASL_OAUTHBEARER_CLIENT_CREDENTIALS_CLIENT_SECRET", "of another")
    monkeypatch.setenv("BUS_SASL_OAUTHBEARER_SCOPE", "of another")
    found = security_of(parse_config(AdminConfig, OAUTH)).login
    assert isinstance(found, TokenLogin)
    assert (found.tokens.client_secret, found.tokens.scope) == ("hush", "")
    with pytest.raises(BusError, match="found no secret"):
        parse_config(AdminConfig, {**OAUTH, "sasl_oauthbearer_client_secret": ""})


def test_wrong_password_is_not_shown() -> None:
    secret: Any = b"hush"
    with pytest.raises(BusError, match="ssl_key_password: expected a text, found another value"):
        parse_config(AdminConfig, {"security_protocol": "SSL", "ssl_key_password": secret})
