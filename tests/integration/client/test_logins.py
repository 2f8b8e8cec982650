"""Clients that log in: by SCRAM and PLAIN, by wrong passwords and right ones, and what ends a login."""

from __future__ import annotations

import base64
import logging
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import pytest
from click.testing import CliRunner

from bus import Admin, BusError, Consumer, Producer, ScramCredentialInfo, TopicPartition, UserScramCredentialUpsertion
from bus.broker import Broker
from bus.broker_api.logins import LoginReport
from bus.cli.main import cli
from bus.errors import ErrorCode
from bus.grpc_api.v1 import bus_pb2 as pb
from bus.grpc_api.v1 import bus_pb2_grpc
from bus.platform.system_clock import SystemClock
from bus.runtime.user_directory import UserLedger
from bus.security.scram import SCRAM_MECHANISMS, salt_password
from bus.security.users import DeleteScram, SetScram
from bus.settings.broker import BrokerConfig
from bus.storage_delta.root import open_storage
from tests.support.broker_thread import running_broker

# A client that retried would take a minute.

SHA_256, SHA_512 = SCRAM_MECHANISMS
PASSWORD = "pencil-and-paper"
FAILED = "invalid credentials with SASL mechanism"


def set_password(root: Path | str, name: str, password: str = PASSWORD) -> None:
    """Set the password as `bus users create --root` does."""
    storage = open_storage(str(root), exclusive=False)
    salt = b"salt of a user"
    UserLedger(storage, SystemClock()).alter(
        [
            SetScram(name, mechanism.name, 4096, salt, salt_password(mechanism, password, salt, 4096))
            for mechanism in SCRAM_MECHANISMS.values()
        ]
    )
    storage.close()


def delete_user(root: Path | str, name: str) -> None:
    storage = open_storage(str(root), exclusive=False)
    UserLedger(storage, SystemClock()).alter([DeleteScram(name, mechanism) for mechanism in SCRAM_MECHANISMS])
    storage.close()


def serving(**more: Any) -> BrokerConfig:
    return BrokerConfig(
        listeners=("SASL_PLAINTEXT://127.0.0.1:0", "PLAINTEXT://127.0.0.1:0"),
        inter_broker_listener_name="PLAINTEXT",
        sasl_enabled_mechanisms=(SHA_256, SHA_512, "PLAIN"),
        offsets_topic_num_partitions=1,
        transaction_state_log_num_partitions=1,
        group_initial_rebalance_delay_ms=0,
        **more,
    )


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("logins") / "root"


@pytest.fixture(scope="module")
def broker(root: Path) -> Iterator[Broker]:
    set_password(root, "alice")
    with running_broker(root, config=serving()) as broker:
        yield broker


def address_of(broker: Broker, listener: str = "SASL_PLAINTEXT") -> str:
    return f"127.0.0.1:{broker.ports[listener]}"


def login(mechanism: str = SHA_512, *, name: str = "alice", password: str = PASSWORD, **more: Any) -> dict[str, Any]:
    return {
        "security_protocol": "SASL_PLAINTEXT",
        "sasl_mechanism": mechanism,
        "sasl_username": name,
        "sasl_password": password,
        **more,
    }


def test_mechanisms_of_a_listener_are_not_those_of_another(tmp_path: Path) -> None:
    """Neither is a login: what was proved by one mechanism does not get in where that one is not enabled."""
    root = tmp_path / "root"
    set_password(root, "alice")
    config = replace(
        serving(),
        listeners=("SASL_PLAINTEXT://127.0.0.1:0", "STRICT://127.0.0.1:0", "PLAINTEXT://127.0.0.1:0"),
        listener_security_protocol_map=("STRICT:SASL_PLAINTEXT",),
        listener_overrides={"STRICT": {"sasl.enabled.mechanisms": (SHA_512,)}},
    )
    with running_broker(root, config=config) as broker:
        strict = address_of(broker, "STRICT")
        with Admin(strict, **login(SHA_512)) as admin:
            assert admin.list_topics() == []
        for mechanism in (SHA_256, "PLAIN"):
            with Admin(address_of(broker), **login(mechanism)) as admin:
                assert admin.list_topics() == []
            with pytest.raises(BusError, match=SHA_512), Admin(strict, **login(mechanism)) as admin:
                admin.list_topics()
        header = "Basic " + base64.b64encode(f"alice:{PASSWORD}".encode()).decode()
        for listener, is_let_in in (("SASL_PLAINTEXT", True), ("STRICT", False)):
            with grpc.insecure_channel(address_of(broker, listener)) as channel:
                call = bus_pb2_grpc.BusStub(channel).Metadata
                if is_let_in:
                    call(pb.MetadataRequest(), metadata=[("authorization", header)], timeout=40)
                    continue
                with pytest.raises(grpc.RpcError) as refused:
                    call(pb.MetadataRequest(), metadata=[("authorization", header)], timeout=40)
                assert refused.value.code() is grpc.StatusCode.UNAUTHENTICATED
                assert refused.value.details() == (
                    f"UNSUPPORTED_SASL_MECHANISM: expected a mechanism of {SHA_512}, found 'PLAIN'"
                )


@pytest.mark.parametrize("mechanism", [SHA_256, SHA_512, "PLAIN"])
def test_records_go_in_and_out_of_one_who_has_logged_in(broker: Broker, mechanism: str) -> None:
    settings, topic = login(mechanism), f"in-and-out-{mechanism}"
    with Producer(address_of(broker), **settings) as producer:
        producer.send(topic, b"one").result(timeout=30)
    with Consumer(address_of(broker), group_id=mechanism, auto_offset_reset="earliest", **settings) as consumer:
        consumer.subscribe([topic])
        records: list[Any] = []
        while not records:
            records = list(consumer.poll(500))
    assert [record.value for record in records] == [b"one"]


@pytest.mark.parametrize("mechanism", [SHA_256, SHA_512, "PLAIN"])
@pytest.mark.parametrize("who", [{"password": "wrong-password"}, {"name": "nobody"}], ids=["password", "name"])
def test_a_wrong_password_and_an_unknown_user_are_told_at_once_and_alike(
    broker: Broker, mechanism: str, who: dict[str, str]
) -> None:
    with Producer(address_of(broker), **login(mechanism, **who)) as producer, pytest.raises(BusError) as caught:
        producer.send("topic", b"one").result(timeout=30)
    with Admin(address_of(broker), **login(mechanism, **who)) as admin, pytest.raises(BusError) as caught_again:
        admin.list_topics()
    assert caught.value.code is caught_again.value.code is ErrorCode.SASL_AUTHENTICATION_FAILED
    assert caught_again.value.message.endswith(f"{FAILED} {mechanism}")
    assert who.get("password", PASSWORD) not in str(caught.value)


def test_a_client_without_a_login_is_told_what_is_missing(broker: Broker) -> None:
    with (
        Admin(address_of(broker)) as admin,
        pytest.raises(BusError, match="set sasl_mechanism to one of SCRAM") as caught,
    ):
        admin.list_topics()
    assert caught.value.code is ErrorCode.SASL_AUTHENTICATION_FAILED


def test_a_listener_without_logins_says_so(broker: Broker) -> None:
    with Admin(address_of(broker, "PLAINTEXT"), **login()) as admin, pytest.raises(BusError) as caught:
        admin.list_topics()
    assert caught.value.code is ErrorCode.UNSUPPORTED_SASL_MECHANISM


def test_a_mechanism_that_is_not_enabled_is_named_with_those_that_are(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    config = BrokerConfig(
        listeners=("SASL_PLAINTEXT://127.0.0.1:0", "PLAINTEXT://127.0.0.1:0"),
        inter_broker_listener_name="PLAINTEXT",
        sasl_enabled_mechanisms=(SHA_512,),
    )
    with running_broker(tmp_path / "root", config=config) as broker:
        reports: list[LoginReport] = []
        broker.logins.reports.append(reports.append)
        for mechanism, name in ((SHA_256, ""), ("PLAIN", "alice")):
            for _ in range(3):
                with Admin(address_of(broker), **login(mechanism)) as admin, pytest.raises(BusError) as caught:
                    admin.list_topics()
                assert caught.value.code is ErrorCode.UNSUPPORTED_SASL_MECHANISM
                assert f"expected a mechanism of {SHA_512}, found '{mechanism}'" in caught.value.message
                assert "UNSUPPORTED_SASL_MECHANISM" not in caught.value.message  # it is the code already
            said = f"failed login of '{name}' by {mechanism} from /127.0.0.1: listener SASL_PLAINTEXT has {SHA_512}"
            assert caplog.text.count(said) == 1  # the others are counted
            assert [(one.mechanism, one.name) for one in reports] == [(mechanism, name)]
            reports.clear()
        assert PASSWORD not in caplog.text


def test_logins_that_no_listener_has_are_told_at_the_start(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with running_broker(tmp_path / "root", config=BrokerConfig(sasl_enabled_mechanisms=(SHA_512,))):
        told = [record.message for record in caplog.records if record.levelno == logging.WARNING]
    assert [line for line in told if "sasl.enabled.mechanisms, found none: it has no effect" in line]


def test_every_call_of_the_contract_wants_a_login(tmp_path: Path) -> None:
    """But for the login itself, and for the question who a broker is."""
    at_once = replace(serving(), connection_failed_authentication_delay_ms=0)
    with (
        running_broker(tmp_path / "root", config=at_once) as broker,
        grpc.insecure_channel(address_of(broker)) as channel,
    ):
        for service in ("Bus", "Cluster"):
            descriptor = pb.DESCRIPTOR.services_by_name[service]
            for method in descriptor.methods:
                if method.name in ("SaslAuthenticate", "IdentifyBroker"):
                    continue
                make = getattr(
                    channel,
                    f"{'stream' if method.client_streaming else 'unary'}_"
                    f"{'stream' if method.server_streaming else 'unary'}",
                )
                call = make(
                    f"/{descriptor.full_name}/{method.name}", request_serializer=None, response_deserializer=None
                )
                for header in (None, "Session abc", "Basic abc", "Bearer abc", "Negotiate abc", "~"):
                    metadata = () if header is None else (("authorization", header),)
                    request = iter([b""]) if method.client_streaming else b""
                    read = list if method.server_streaming else bytes
                    with pytest.raises(grpc.RpcError) as caught:
                        read(call(request, metadata=metadata, timeout=30))
                    assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED, (method.name, header)


def test_the_principal_is_in_the_log_and_nothing_secret_is(broker: Broker, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    with Admin(address_of(broker), **login()) as admin:
        admin.list_topics()
    guess = login("PLAIN", name="mal\nlory", password="guess-a-word")
    with Admin(address_of(broker), **guess) as admin, pytest.raises(BusError):
        admin.list_topics()
    assert "'alice' has logged in by SCRAM-SHA-512" in caplog.text
    assert "mal\\\\nlory" in caplog.text or "mal\\nlory" in caplog.text
    shown = base64.b64encode(b"mal\nlory:guess-a-word").decode()
    for secret in (PASSWORD, "guess-a-word", shown, "Session "):
        assert secret not in caplog.text


def test_who_was_created_at_another_broker_gets_in_at_once(broker: Broker, root: Path) -> None:
    for name, mechanism in (("bob", SHA_256), ("carol", "PLAIN")):
        set_password(root, name)
        with Admin(address_of(broker), **login(mechanism, name=name)) as admin:
            admin.list_topics()


@pytest.mark.parametrize("mechanism", [SHA_512, "PLAIN"])
def test_a_deleted_user_and_a_changed_password_end_what_is_open(broker: Broker, root: Path, mechanism: str) -> None:
    name = f"dave-{mechanism}"
    set_password(root, name)
    with (
        Admin(address_of(broker, "PLAINTEXT")) as other,
        Producer(address_of(broker), **login(mechanism, name=name)) as producer,
        Admin(address_of(broker), **login(mechanism, name=name)) as admin,
    ):
        producer.send("dave", b"one").result(timeout=30)
        admin.list_topics()
        other.alter_user_scram_credentials(
            [
                UserScramCredentialUpsertion(name, ScramCredentialInfo(one), "another-password")
                for one in SCRAM_MECHANISMS
            ]
        )
        with pytest.raises(BusError) as caught:
            admin.list_topics()
        assert caught.value.code is ErrorCode.SASL_AUTHENTICATION_FAILED
        with pytest.raises(BusError) as caught:
            producer.send("dave", b"two").result(timeout=30)
        assert caught.value.code is ErrorCode.SASL_AUTHENTICATION_FAILED


def test_a_token_is_worth_nothing_once_its_user_is_deleted_at_another_broker(broker: Broker, root: Path) -> None:
    set_password(root, "erin")
    with Admin(address_of(broker), **login(name="erin")) as admin:
        admin.list_topics()
        headers = admin._cluster._logins.headers(address_of(broker), 1000.0)
        assert headers[-1][1].startswith("Session ")
        delete_user(root, "erin")
        with grpc.insecure_channel(address_of(broker)) as channel:
            stub, deadline = bus_pb2_grpc.BusStub(channel), time.monotonic() + 30
            while time.monotonic() < deadline:
                call = stub.ListViews.future(pb.ListViewsRequest(), metadata=headers, timeout=30)
                if call.exception() is not None:
                    break
            assert call.code() is grpc.StatusCode.UNAUTHENTICATED


def values_of(broker: Broker, topic: str) -> list[bytes]:
    partition = TopicPartition(topic, 0)
    with Consumer(address_of(broker, "PLAINTEXT")) as consumer:
        consumer.assign([partition])
        consumer.seek_to_beginning([partition])
        end = consumer.end_offsets([partition])[partition]
        found: list[bytes] = []
        while len(found) < end:
            found += [record.value for record in consumer.poll(500) if record.value is not None]
        return found


def check_that_ending_streams_cost_nothing(
    broker: Broker, settings: dict[str, Any], caplog: pytest.LogCaptureFixture, *, is_idempotent: bool
) -> None:
    """Produces until two streams have ended with their session: each record is there once, in order if the producer is
    idempotent."""
    with Producer(
        address_of(broker), **settings, enable_idempotence=is_idempotent, linger_ms=0, batch_size=64
    ) as producer:
        futures = []
        while caplog.text.count("the session has expired") < 2:
            futures.append(producer.send("numbers", str(len(futures)).encode()))
            futures[max(0, len(futures) - 50)].result(timeout=30)
        for future in futures:
            future.result(timeout=30)
    found = values_of(broker, "numbers")
    assert sorted(found, key=int) == [str(one).encode() for one in range(len(futures))]
    if is_idempotent:
        assert found == sorted(found, key=int)


@pytest.mark.parametrize("mechanism", [SHA_512, "PLAIN"])
@pytest.mark.parametrize("is_idempotent", [True, False], ids=["idempotent", "not idempotent"])
def test_streams_end_with_their_login_and_the_producer_goes_on_without_loss_or_double(
    tmp_path: Path,
    mechanism: str,
    is_idempotent: bool,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Logins of a second, and a client that never renews them: it produces until two of its streams have ended with
    records on their way."""
    monkeypatch.setattr("bus.client.connection.logins._RENEWED_AFTER", 1_000.0)
    root = tmp_path / "root"
    set_password(root, "alice")
    with running_broker(root, config=serving(connections_max_reauth_ms=1_000)) as broker:
        check_that_ending_streams_cost_nothing(broker, login(mechanism), caplog, is_idempotent=is_idempotent)


def test_a_session_is_renewed_in_time_and_its_streams_go_on(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    root = tmp_path / "root"
    set_password(root, "alice")
    caplog.set_level(logging.DEBUG, "bus.broker_api.logins")
    with running_broker(root, config=serving(connections_max_reauth_ms=1_000)) as broker:
        with Producer(address_of(broker), **login(), linger_ms=0) as producer:
            count = 0
            while caplog.text.count("has logged in") < 4:
                producer.send("numbers", str(count).encode()).result(timeout=30)
                count += 1
        assert "the session has expired" not in caplog.text
        assert len(values_of(broker, "numbers")) == count


def test_a_broker_that_started_again_is_logged_in_to_again(tmp_path: Path) -> None:
    root = tmp_path / "root"
    set_password(root, "alice")
    with running_broker(root, config=serving()) as broker:
        port = broker.ports["SASL_PLAINTEXT"]
        admin = Admin(f"127.0.0.1:{port}", **login())
        admin.list_topics()
    again = replace(serving(), listeners=(f"SASL_PLAINTEXT://127.0.0.1:{port}", "PLAINTEXT://127.0.0.1:0"))
    with running_broker(root, config=again), admin:
        assert admin.list_topics() == []


def test_the_commands_log_in(broker: Broker, tmp_path: Path) -> None:
    settings = tmp_path / "client.properties"
    settings.write_text(
        "security.protocol=SASL_PLAINTEXT\nsasl.mechanism=SCRAM-SHA-512\n"
        "sasl.jaas.config=org.apache.kafka.common.security.scram.ScramLoginModule required "
        f'username="alice" password="{PASSWORD}";\n'
    )
    environment = {"BUS_ADDRESS": address_of(broker)}
    result = CliRunner().invoke(
        cli, ["topics", "create", "by-command", "--command-config", str(settings)], env=environment
    )
    assert result.exit_code == 0, result.output
    environment |= {
        "BUS_SECURITY_PROTOCOL": "SASL_PLAINTEXT",
        "BUS_SASL_MECHANISMS": "SCRAM-SHA-256",
        "BUS_SASL_USERNAME": "alice",
        "BUS_SASL_PASSWORD": PASSWORD,
    }
    result = CliRunner().invoke(cli, ["produce", "by-command"], input="one\n", env=environment)
    assert result.exit_code == 0, result.output
    properties = [f"-X{name}={value}" for name, value in login("PLAIN").items()]
    result = CliRunner().invoke(cli, ["topics", "list", *properties], env={"BUS_ADDRESS": address_of(broker)})
    assert result.exit_code == 0, result.output
    assert "is seen by all who list processes" in result.stderr
    assert PASSWORD not in result.output
    refused = CliRunner().invoke(
        cli,
        ["topics", "list"],
        env={**environment, "BUS_SASL_PASSWORD": "wrong-password", "BUS_SASL_MECHANISMS": "PLAIN"},
    )
    assert refused.exit_code == 1
    assert "SASL_AUTHENTICATION_FAILED" in refused.stderr
    assert "wrong-password" not in refused.output
