"""Clients that log in by tokens of an identity provider: which are accepted, and what goes on when they expire."""

from __future__ import annotations

import asyncio
import base64
import itertools
import logging
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from click.testing import CliRunner
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat

from bus import Admin, BusError, Consumer, Producer, aio
from bus.broker import Broker
from bus.broker_api.logins import LoginReport
from bus.cli.main import cli
from bus.errors import ErrorCode
from bus.grpc_api.v1 import bus_pb2 as pb
from bus.grpc_api.v1 import bus_pb2_grpc
from bus.platform.reentry import CalledInside
from bus.security.oauth.token_sources import client_response
from bus.settings.broker import BrokerConfig
from tests.integration.client.test_logins import check_that_ending_streams_cost_nothing, values_of
from tests.support.broker_thread import running_broker
from tests.support.identity_provider import (
    AUDIENCE,
    ISSUER,
    IdentityProvider,
    claims_of,
    forged,
    identity_provider,
    new_private_key,
    signed,
)
from tests.support.member_processes import wait_until
from tests.support.peer_logins import check_that_brokers_log_in

# A client that retried would take a minute.

SECRET = "s3cret of the loader"
FAILED = "invalid credentials with SASL mechanism OAUTHBEARER"


def serving(provider: IdentityProvider, **more: Any) -> BrokerConfig:
    given: dict[str, Any] = {
        "listeners": ("SASL_PLAINTEXT://127.0.0.1:0", "PLAINTEXT://127.0.0.1:0"),
        "inter_broker_listener_name": "PLAINTEXT",
        "sasl_enabled_mechanisms": ("SCRAM-SHA-512", "OAUTHBEARER"),
        "sasl_oauthbearer_jwks_endpoint_url": f"{provider.url}/keys",
        "sasl_oauthbearer_expected_issuer": ISSUER,
        "sasl_oauthbearer_expected_audience": (AUDIENCE,),
        "sasl_oauthbearer_clock_skew_seconds": 0,
        "connection_failed_authentication_delay_ms": 0,
        "offsets_topic_num_partitions": 1,
        "transaction_state_log_num_partitions": 1,
        "group_initial_rebalance_delay_ms": 0,
        **more,
    }
    return BrokerConfig(**given)


@pytest.fixture(scope="module")
def provider() -> Iterator[IdentityProvider]:
    with identity_provider() as provider:
        yield provider


@pytest.fixture(scope="module")
def broker(provider: IdentityProvider, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    with running_broker(tmp_path_factory.mktemp("tokens") / "root", config=serving(provider)) as broker:
        yield broker


@pytest.fixture
def channel(broker: Broker) -> Iterator[grpc.Channel]:
    with grpc.insecure_channel(address_of(broker)) as channel:
        yield channel


def address_of(broker: Broker, listener: str = "SASL_PLAINTEXT") -> str:
    return f"127.0.0.1:{broker.ports[listener]}"


def to_broker(broker: Broker) -> grpc.Channel:
    return grpc.insecure_channel(address_of(broker))


def login(**more: Any) -> dict[str, Any]:
    return {"security_protocol": "SASL_PLAINTEXT", "sasl_mechanism": "OAUTHBEARER", **more}


def by_function(provide: Any) -> dict[str, Any]:
    return login(sasl_oauth_token_provider=provide)


def by_endpoint(provider: IdentityProvider, **more: Any) -> dict[str, Any]:
    return login(
        sasl_oauthbearer_token_endpoint_url=f"{provider.url}/token",
        sasl_oauthbearer_client_id="loader",
        sasl_oauthbearer_client_secret=SECRET,
        **more,
    )


def hand_over(channel: grpc.Channel, token: str, metadata: Any = ()) -> pb.SaslAuthenticateResponse:
    """The whole login."""
    request = pb.SaslAuthenticateRequest(mechanism="OAUTHBEARER", auth_bytes=client_response(token))
    answers = list(bus_pb2_grpc.BusStub(channel).SaslAuthenticate(iter([request]), metadata=metadata, timeout=30))
    assert len(answers) == 1
    return answers[0]


def shown(answer: pb.SaslAuthenticateResponse) -> tuple[tuple[str, str], ...]:
    return (("authorization", f"Session {answer.session_token}"),)


def status_of(channel: grpc.Channel, metadata: Any) -> grpc.StatusCode:
    call = bus_pb2_grpc.BusStub(channel).ListViews.future(pb.ListViewsRequest(), metadata=metadata, timeout=30)
    call.exception()
    found: grpc.StatusCode = call.code()
    return found


# ------------------------------------------------------------ clients


@pytest.mark.parametrize("source", ["endpoint", "file", "function"])
def test_records_go_in_and_out_of_one_who_has_logged_in(
    broker: Broker, provider: IdentityProvider, tmp_path: Path, source: str
) -> None:
    file = tmp_path / "token"
    file.write_text(provider.token("alice"))
    settings = {
        "endpoint": by_endpoint(provider, sasl_oauthbearer_scope="read write"),
        "file": login(sasl_oauthbearer_token_endpoint_url=file.as_uri()),
        "function": by_function(lambda: provider.token("alice")),
    }[source]
    topic = f"in-and-out-{source}"
    with Producer(address_of(broker), **settings) as producer:
        producer.send(topic, b"one").result(timeout=30)
    with Consumer(address_of(broker), group_id=source, auto_offset_reset="earliest", **settings) as consumer:
        consumer.subscribe([topic])
        records: list[Any] = []
        while not records:
            records = list(consumer.poll(500))
    assert [record.value for record in records] == [b"one"]


def test_token_that_takes_longer_than_a_call_serves_the_next_one(broker: Broker, provider: IdentityProvider) -> None:
    may_answer, count = threading.Event(), itertools.count()

    def provide() -> str:
        next(count)
        assert may_answer.wait(60)
        return provider.token("alice")

    times = {"request_timeout_ms": 200, "default_api_timeout_ms": 200, "retries": 0}
    with Admin(address_of(broker), **times, **by_function(provide)) as admin:
        with pytest.raises(BusError) as caught:
            admin.list_topics()
        assert caught.value.code is ErrorCode.REQUEST_TIMED_OUT
        may_answer.set()
        wait_until(lambda: _is_answered(admin.list_topics), "the token serves a call")
        assert next(count) == 1


def _is_answered(call: Callable[[], object]) -> bool:
    """Return False for a call that was too slow, as it may be on a busy machine."""
    try:
        call()
    except BusError as error:
        if not error.retriable:
            raise
        return False
    return True


def test_function_that_asks_for_what_needs_its_token_is_refused(broker: Broker) -> None:
    clients: list[Admin] = []

    def provide() -> str:
        clients[0].list_topics()
        raise AssertionError("the call was answered")

    with Admin(address_of(broker), **by_function(provide)) as admin:
        clients.append(admin)
        with pytest.raises(CalledInside):
            admin.list_topics()


def test_programs_of_asyncio_log_in(broker: Broker, provider: IdentityProvider) -> None:
    async def run() -> None:
        async with aio.Producer(address_of(broker), **by_endpoint(provider)) as producer:
            await producer.send("by-asyncio", b"one")

    asyncio.run(run())
    assert values_of(broker, "by-asyncio") == [b"one"]


def test_the_commands_log_in(broker: Broker, provider: IdentityProvider, tmp_path: Path) -> None:
    """Commands take the login from Kafka's file of properties, by librdkafka's names, and from the environment
    alone."""
    file = tmp_path / "client.properties"
    file.write_text(
        "security.protocol=SASL_PLAINTEXT\nsasl.mechanism=OAUTHBEARER\n"
        f"sasl.oauthbearer.token.endpoint.url={provider.url}/token\n"
        "sasl.jaas.config=org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required "
        f'clientId="loader" clientSecret="{SECRET}" scope="bus";\n'
    )
    environment = {"BUS_ADDRESS": address_of(broker)}
    result = CliRunner().invoke(cli, ["topics", "create", "by-command", "--command-config", str(file)], env=environment)
    assert result.exit_code == 0, result.output
    assert provider.token_requests[-1]["scope"] == ["bus"]
    secret = tmp_path / "secret"
    secret.write_text(SECRET)
    properties = {
        "security.protocol": "sasl_plaintext",
        "sasl.mechanisms": "OAUTHBEARER",
        "sasl.oauthbearer.method": "oidc",
        "sasl.oauthbearer.token.endpoint.url": f"{provider.url}/token",
        "sasl.oauthbearer.client.id": "loader",
        "sasl.oauthbearer.client.secret.file": str(secret),
    }
    options = [f"-X{name}={value}" for name, value in properties.items()]
    result = CliRunner().invoke(cli, ["produce", "by-command", *options], input="one\n", env=environment)
    assert result.exit_code == 0, result.output
    environment |= {
        "BUS_SECURITY_PROTOCOL": "SASL_PLAINTEXT",
        "BUS_SASL_MECHANISM": "OAUTHBEARER",
        "BUS_SASL_OAUTHBEARER_TOKEN_ENDPOINT_URL": f"{provider.url}/token",
        "BUS_SASL_OAUTHBEARER_CLIENT_ID": "loader",
        "BUS_SASL_OAUTHBEARER_CLIENT_SECRET": SECRET,
    }
    result = CliRunner().invoke(cli, ["topics", "list"], env=environment)
    assert result.exit_code == 0, result.output
    assert "by-command" in result.output


def test_a_client_may_show_an_assertion_to_its_provider(
    broker: Broker, provider: IdentityProvider, tmp_path: Path
) -> None:
    """The assertion takes the place of a secret, and is set in Kafka's file of properties."""
    key = new_private_key("RS256")
    provider.client_keys["keyed"] = key.public_key()
    (tmp_path / "keyed.key").write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    file = tmp_path / "client.properties"
    file.write_text(
        "security.protocol=SASL_PLAINTEXT\nsasl.mechanism=OAUTHBEARER\n"
        f"sasl.oauthbearer.token.endpoint.url={provider.url}/token\n"
        "sasl.oauthbearer.client.credentials.client.id=keyed\n"
        "sasl.oauthbearer.assertion.algorithm=RS256\n"
        f"sasl.oauthbearer.assertion.private.key.file={tmp_path}/keyed.key\n"
        "sasl.oauthbearer.assertion.claim.exp.seconds=60\n"
    )
    environment = {"BUS_ADDRESS": address_of(broker)}
    result = CliRunner().invoke(cli, ["topics", "create", "keyed", "--command-config", str(file)], env=environment)
    assert result.exit_code == 0, result.output
    claims = provider.assertions[-1]["claims"]
    assert (claims["iss"], claims["exp"] - claims["iat"]) == ("keyed", 60)


def test_a_client_that_the_provider_refuses_is_told_at_once(broker: Broker, provider: IdentityProvider) -> None:
    settings = by_endpoint(provider) | {"sasl_oauthbearer_client_secret": "guess-a-word"}
    with Admin(address_of(broker), **settings) as admin, pytest.raises(BusError) as caught:
        admin.list_topics()
    assert caught.value.code is ErrorCode.SASL_AUTHENTICATION_FAILED
    assert "HTTP status 401" in caught.value.message
    assert "guess-a-word" not in caught.value.message


def test_a_broker_without_tokens_names_its_mechanisms(tmp_path: Path, provider: IdentityProvider) -> None:
    config = BrokerConfig(
        listeners=("SASL_PLAINTEXT://127.0.0.1:0", "PLAINTEXT://127.0.0.1:0"), inter_broker_listener_name="PLAINTEXT"
    )
    with running_broker(tmp_path / "root", config=config) as broker, grpc.insecure_channel(address_of(broker)) as there:
        with Admin(address_of(broker), **by_endpoint(provider)) as admin, pytest.raises(BusError) as caught:
            admin.list_topics()
        assert caught.value.code is ErrorCode.UNSUPPORTED_SASL_MECHANISM
        assert "SCRAM-SHA-512" in caught.value.message
        assert status_of(there, (("authorization", f"Bearer {provider.token()}"),)) is grpc.StatusCode.UNAUTHENTICATED


# ------------------------------------------------------------ tokens that are not accepted

ROWS = (
    "expired",
    "not yet valid",
    "foreign issuer",
    "foreign audience",
    "no audience",
    "alg none",
    "public key as secret",
    "signed by another",
    "no name",
    "unknown key",
    "huge",
    "opaque",
)


def rejected_tokens(provider: IdentityProvider) -> dict[str, tuple[str, str]]:
    """The token, and why, as the broker's log says."""
    public = provider.keys["one"].public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    header = {"alg": "none", "kid": "one"}
    return {
        "expired": (provider.token(life_s=-1), "the token has expired"),
        "not yet valid": (provider.token(nbf=time.time() + 100), "not valid for another"),
        "foreign issuer": (provider.token(iss="https://elsewhere.example"), "expected the issuer"),
        "foreign audience": (provider.token(aud="elsewhere"), "expected an audience"),
        "no audience": (provider.token(aud=None), "expected an audience"),
        "alg none": (forged(claims_of(), header), "expected a signature by one of"),
        "public key as secret": (
            forged(claims_of(), header | {"alg": "HS256"}, public),
            "expected a signature by one of",
        ),
        "signed by another": (signed(new_private_key("ES256"), claims_of()), "the signature is not that of the key"),
        "no name": (provider.token(sub=None), "expected a name in the claim sub"),
        "unknown key": (signed(new_private_key("ES256"), claims_of(), key_id="none"), "the key set has no key"),
        "huge": (provider.token(groups=["a-group"] * 4_000), "expected a token of at most 16384 characters"),
        "opaque": ("of-another-kind", "expected a signed JSON Web Token"),
    }


@pytest.mark.parametrize("row", ROWS)
def test_a_token_that_is_not_accepted_is_refused_with_one_text_and_the_report_says_why(
    broker: Broker,
    channel: grpc.Channel,
    provider: IdentityProvider,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    row: str,
) -> None:
    caplog.set_level(logging.DEBUG)
    reports: list[LoginReport] = []
    monkeypatch.setattr(broker.logins, "report", reports.append)
    rows = rejected_tokens(provider)
    assert set(rows) == set(ROWS)
    token, reason = rows[row]
    answer = hand_over(channel, token)
    first = list(reports)
    assert answer.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
    assert answer.error_message.endswith(FAILED)
    assert not answer.session_token
    if len(token) < 30_000:  # what all headers of a call may have together
        status = status_of(channel, (("authorization", f"Bearer {token}"),))
        assert status is grpc.StatusCode.UNAUTHENTICATED
    assert reports
    assert all(reason in (one.reason or "") for one in reports)
    assert token not in repr(reports) + caplog.text
    if signature := token.rpartition(".")[2]:
        assert signature not in repr(reports) + caplog.text
    assert [(one.mechanism, one.reason is None) for one in first] == [("OAUTHBEARER", False)]


def test_a_message_without_a_token_is_refused(channel: grpc.Channel) -> None:
    for message in (b"", b"n,,", b"n,,\x01auth=Basic abc\x01\x01", b"\xff" * 100_000):
        request = pb.SaslAuthenticateRequest(mechanism="OAUTHBEARER", auth_bytes=message)
        (answer,) = bus_pb2_grpc.BusStub(channel).SaslAuthenticate(iter([request]), timeout=30)
        assert answer.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED


def test_the_principal_is_in_the_log_and_the_token_is_not(
    broker: Broker, provider: IdentityProvider, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    token = provider.token("carol")
    with Admin(address_of(broker), **by_function(lambda: token)) as admin:
        admin.list_topics()
        headers = admin._cluster._logins.headers(address_of(broker), 1000.0)
        assert token not in repr(admin._cluster._logins._tokens) + repr(admin._cluster._config)
    assert "'carol' has logged in by OAUTHBEARER from /127.0.0.1" in caplog.text
    for secret in (token, base64.b64encode(token.encode()).decode(), headers[-1][1].removeprefix("Session ")):
        assert secret not in caplog.text


# ------------------------------------------------------------ sessions


def test_a_session_ends_with_its_token_or_sooner(channel: grpc.Channel, provider: IdentityProvider) -> None:
    assert 0 < hand_over(channel, provider.token(life_s=300)).session_lifetime_ms <= 300_000
    assert hand_over(channel, provider.token(life_s=86_400)).session_lifetime_ms == 3_600_000
    short = shown(hand_over(channel, provider.token(life_s=0.5)))
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline and status_of(channel, short) is grpc.StatusCode.OK:
        pass
    assert status_of(channel, short) is grpc.StatusCode.UNAUTHENTICATED


def test_a_session_is_extended_by_a_new_token_of_the_same_principal_alone(
    channel: grpc.Channel, provider: IdentityProvider
) -> None:
    first = hand_over(channel, provider.token("alice", life_s=60))
    again = hand_over(channel, provider.token("alice", life_s=300), shown(first))
    assert again.session_token == first.session_token
    assert again.session_lifetime_ms > 200_000
    other = hand_over(channel, provider.token("bob"), shown(first))
    assert other.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
    assert "as User:alice by OAUTHBEARER" in other.error_message


def test_a_token_that_is_shown_with_each_call_is_not_extended_by_a_later_one(
    channel: grpc.Channel, provider: IdentityProvider
) -> None:
    token = provider.token(life_s=2)
    metadata = (("authorization", f"Bearer {token}"),)
    assert status_of(channel, metadata) is grpc.StatusCode.OK
    answer = hand_over(channel, provider.token(life_s=300), metadata)
    assert answer.session_token != token
    assert status_of(channel, shown(answer)) is grpc.StatusCode.OK
    wait_until(lambda: status_of(channel, metadata) is grpc.StatusCode.UNAUTHENTICATED, "the token has expired")


def test_a_token_itself_may_be_shown_with_each_call_until_it_expires(
    channel: grpc.Channel, provider: IdentityProvider
) -> None:
    """This is for clients other than the SDK."""
    header = (("authorization", f"Bearer {provider.token(life_s=1.5)}"),)
    stub = bus_pb2_grpc.BusStub(channel)
    calls = [stub.ListViews.future(pb.ListViewsRequest(), metadata=header, timeout=30) for _ in range(20)]
    assert {call.code() for call in calls if call.exception() is None} == {grpc.StatusCode.OK}
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline and status_of(channel, header) is grpc.StatusCode.OK:
        pass
    assert status_of(channel, header) is grpc.StatusCode.UNAUTHENTICATED


# ------------------------------------------------------------ keys of the provider


def test_a_key_that_was_added_is_accepted_at_once_and_a_flood_of_unknown_ones_asks_for_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bus.runtime.key_directory.UNKNOWN_KEY_PAUSE_S", 1_000.0)
    with (
        identity_provider() as provider,
        running_broker(tmp_path / "root", config=serving(provider)) as broker,
        to_broker(broker) as channel,
    ):
        assert hand_over(channel, provider.token()).session_token
        assert provider.key_requests == 1
        provider.add_key("two")
        assert hand_over(channel, provider.token(key_id="two")).session_token
        assert provider.key_requests == 2
        stranger = new_private_key("ES256")
        for number in range(50):
            token = signed(stranger, claims_of(), key_id=f"unknown-{number}")
            assert hand_over(channel, token).error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
        assert provider.key_requests == 2
        assert hand_over(channel, provider.token()).session_token


def test_the_keys_stay_while_the_provider_is_down_and_a_broker_starts_without_it(tmp_path: Path) -> None:
    with identity_provider() as provider:
        provider.status, token = 503, provider.token()
        config = serving(
            provider,
            sasl_oauthbearer_jwks_endpoint_refresh_ms=1_000,
            sasl_oauthbearer_jwks_endpoint_retry_backoff_max_ms=100,
        )
        with running_broker(tmp_path / "root", config=config) as broker, to_broker(broker) as to:
            assert hand_over(to, provider.token()).error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
            provider.status = 200
            _wait_for_key_requests(provider, 2)
            assert hand_over(to, provider.token()).session_token
            provider.status = 500
            _wait_for_key_requests(provider, 3)
            assert hand_over(to, provider.token()).session_token
            provider.status, provider.keys = 200, {}
            _wait_for_key_requests(provider, 3)
            assert hand_over(to, token).session_token
            provider.add_key("new")
            _wait_for_key_requests(provider, 2)
            assert hand_over(to, provider.token(key_id="new")).session_token
            assert hand_over(to, token).error_code == ErrorCode.SASL_AUTHENTICATION_FAILED


def _wait_for_key_requests(provider: IdentityProvider, more: int) -> None:
    """The last of them is answered when the next one is begun."""
    wanted = provider.key_requests + more
    while provider.key_requests < wanted:
        provider.asked.clear()
        assert provider.asked.wait(30)


def test_keys_may_be_in_a_file(tmp_path: Path) -> None:
    with identity_provider() as provider:
        file = tmp_path / "keys.json"
        file.write_bytes(provider.answer("GET", "/keys", "", b"")[1])
        config = serving(provider, sasl_oauthbearer_jwks_endpoint_url=file.as_uri())
        with running_broker(tmp_path / "root", config=config) as broker, to_broker(broker) as to:
            assert hand_over(to, provider.token()).session_token
            provider.add_key("two")
            file.write_bytes(provider.answer("GET", "/keys", "", b"")[1])
            assert hand_over(to, provider.token(key_id="two")).session_token


# ------------------------------------------------------------ listeners


def test_listeners_accept_tokens_of_their_own_provider_for_as_long_as_they_say(tmp_path: Path) -> None:
    with identity_provider() as own, identity_provider() as foreign:
        config = serving(
            own,
            listeners=("SASL_PLAINTEXT://127.0.0.1:0", "PARTNERS://127.0.0.1:0", "PLAINTEXT://127.0.0.1:0"),
            listener_security_protocol_map=("PARTNERS:SASL_PLAINTEXT",),
            connections_max_reauth_ms=60_000,
            listener_overrides={
                "PARTNERS": {
                    "sasl.oauthbearer.jwks.endpoint.url": f"{foreign.url}/keys",
                    "sasl.oauthbearer.expected.issuer": "https://partner.example",
                    "oauthbearer.connections.max.reauth.ms": 30_000,
                }
            },
        )
        of_staff, of_partner = own.token("alice"), foreign.token("alice", iss="https://partner.example")
        with (
            running_broker(tmp_path / "root", config=config) as broker,
            to_broker(broker) as staff,
            grpc.insecure_channel(address_of(broker, "PARTNERS")) as partners,
        ):
            for channel, good, bad, life_ms in (
                (staff, of_staff, of_partner, 60_000),
                (partners, of_partner, of_staff, 30_000),
            ):
                assert hand_over(channel, good).session_lifetime_ms == life_ms
                assert hand_over(channel, bad).error_code == ErrorCode.SASL_AUTHENTICATION_FAILED


def test_a_login_at_one_listener_is_none_at_another(tmp_path: Path, provider: IdentityProvider) -> None:
    """Neither a session nor a token that is remembered: the other listener may trust another provider."""
    config = serving(
        provider,
        listeners=("SASL_PLAINTEXT://127.0.0.1:0", "STRICT://127.0.0.1:0", "PLAINTEXT://127.0.0.1:0"),
        listener_security_protocol_map=("STRICT:SASL_PLAINTEXT",),
        listener_overrides={"STRICT": {"sasl.oauthbearer.expected.audience": ("strict",)}},
    )
    token = provider.token("alice")
    with (
        running_broker(tmp_path / "root", config=config) as broker,
        to_broker(broker) as lax,
        grpc.insecure_channel(address_of(broker, "STRICT")) as strict,
    ):
        session = shown(hand_over(lax, token))
        for metadata in (session, (("authorization", f"Bearer {token}"),)):
            assert status_of(lax, metadata) is grpc.StatusCode.OK
            assert status_of(strict, metadata) is grpc.StatusCode.UNAUTHENTICATED
        answer = hand_over(strict, provider.token("alice", aud="strict"), session)
        assert answer.session_token
        assert shown(answer) != session
        assert status_of(lax, session) is grpc.StatusCode.OK


# ------------------------------------------------------------ streams


def test_a_stream_goes_on_with_a_new_token(
    tmp_path: Path, provider: IdentityProvider, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "bus.broker_api.logins")
    tokens: list[str] = []

    def provide() -> str:
        tokens.append(provider.token("alice", life_s=3))
        return tokens[-1]

    with running_broker(tmp_path / "root", config=serving(provider)) as broker:
        with Producer(address_of(broker), **by_function(provide), linger_ms=0) as producer:
            count = 0
            while caplog.text.count("has logged in") < 4:
                producer.send("numbers", str(count).encode()).result(timeout=30)
                count += 1
        assert len(set(tokens)) >= 2
        assert "the session has expired" not in caplog.text
        assert len(values_of(broker, "numbers")) == count


@pytest.mark.parametrize("is_idempotent", [True, False], ids=["idempotent", "not idempotent"])
def test_streams_end_with_their_token_and_the_producer_goes_on_without_loss_or_double(
    tmp_path: Path,
    provider: IdentityProvider,
    is_idempotent: bool,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A client that never renews its sessions: it produces until two of its streams have ended with records on their
    way."""
    monkeypatch.setattr("bus.client.connection.logins._RENEWED_AFTER", 1_000.0)
    settings = by_function(lambda: provider.token("alice", life_s=1))
    with running_broker(tmp_path / "root", config=serving(provider)) as broker:
        check_that_ending_streams_cost_nothing(broker, settings, caplog, is_idempotent=is_idempotent)


# ------------------------------------------------------------ brokers


@pytest.mark.parametrize("source", ["endpoint", "file"])
def test_brokers_log_in_at_one_another(tmp_path: Path, provider: IdentityProvider, source: str) -> None:
    file = tmp_path / "token"
    file.write_text(provider.token("broker"))
    module = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule"
    means: dict[str, Any] = {
        "endpoint": {
            "sasl_oauthbearer_token_endpoint_url": f"{provider.url}/token",
            "sasl_jaas_config": f'{module} required clientId="loader" clientSecret="{SECRET}";',
        },
        "file": {"sasl_oauthbearer_token_endpoint_url": file.as_uri()},
    }[source]

    def config(broker_id: int) -> BrokerConfig:
        return serving(
            provider,
            broker_id=broker_id,
            listeners=("SASL_PLAINTEXT://127.0.0.1:0",),
            inter_broker_listener_name="",
            sasl_mechanism_inter_broker_protocol="OAUTHBEARER",
            **means,
        )

    check_that_brokers_log_in(tmp_path / "root", config(0), config(1), by_endpoint(provider), secret=SECRET)


def test_a_provider_makes_no_super_user_unless_the_listener_says_so(provider: IdentityProvider, tmp_path: Path) -> None:
    ruled = {"authorizer_class_name": "acl", "super_users": "User:admin;User:ANONYMOUS"}
    with running_broker(tmp_path / "root", config=serving(provider, **ruled)) as broker, to_broker(broker) as channel:
        refused = hand_over(channel, provider.token("admin"))
        assert refused.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
        assert not hand_over(channel, provider.token("alice")).error_code
    prefixed = serving(provider, **ruled, sasl_oauthbearer_principal_prefix="partner:")
    with running_broker(tmp_path / "root", config=prefixed) as broker, to_broker(broker) as channel:
        reports: list[LoginReport] = []
        broker.logins.reports.append(reports.append)
        assert not hand_over(channel, provider.token("admin")).error_code
        assert [report.name for report in reports] == ["partner:admin"]
