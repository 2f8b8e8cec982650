"""Logins on the wire: calls that go away at each step, floods, times and texts that tell nothing."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import logging
import queue
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from bus.broker import Broker
from bus.broker_api import fetch as fetching
from bus.broker_api import logins
from bus.broker_api.logins import LoginReport
from bus.broker_api.requests import Unavailable
from bus.errors import ErrorCode
from bus.grpc_api.v1 import bus_pb2 as pb
from bus.grpc_api.v1 import bus_pb2_grpc
from bus.platform.system_clock import SystemClock
from bus.runtime import login_table
from bus.runtime.user_directory import UserLedger
from bus.security.scram import SCRAM_MECHANISMS, SCRAM_SHA_256, SESSION_EXPIRED, ScramClient, salt_password
from bus.security.users import SetScram
from bus.settings.broker import BrokerConfig
from bus.storage_delta.root import open_storage
from tests.support import rude_http2
from tests.support.broker_thread import loop_of, running_broker
from tests.support.member_processes import wait_until
from tests.support.peer_logins import check_that_brokers_log_in

SHA_256 = SCRAM_SHA_256.name
PASSWORD = "pencil-and-paper"
SALT = b"salt of a user"


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    storage = open_storage(str(tmp_path / "root"), exclusive=False)
    salted = salt_password(SCRAM_SHA_256, PASSWORD, SALT, 4096)
    UserLedger(storage, SystemClock()).alter([SetScram("alice", SHA_256, 4096, SALT, salted)])
    storage.close()
    config = BrokerConfig(
        listeners=("SASL_PLAINTEXT://127.0.0.1:0", "PLAINTEXT://127.0.0.1:0"),
        inter_broker_listener_name="PLAINTEXT",
        sasl_enabled_mechanisms=(*SCRAM_MECHANISMS, "PLAIN"),
    )
    with running_broker(tmp_path / "root", config=config) as broker:
        yield broker


@pytest.fixture
def channel(broker: Broker) -> Iterator[grpc.Channel]:
    with grpc.insecure_channel(f"127.0.0.1:{broker.ports['SASL_PLAINTEXT']}") as channel:
        yield channel


class Dialogue:
    """One login, step by step."""

    def __init__(self, channel: grpc.Channel, metadata: Any = ()) -> None:
        self.requests: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self.answers = bus_pb2_grpc.BusStub(channel).SaslAuthenticate(
            iter(self.requests.get, None), metadata=metadata, timeout=40
        )

    def ask(self, auth_bytes: bytes, mechanism: str = "") -> pb.SaslAuthenticateResponse:
        self.requests.put(pb.SaslAuthenticateRequest(mechanism=mechanism, auth_bytes=auth_bytes))
        answer: pb.SaslAuthenticateResponse = next(self.answers)
        return answer

    def end(self) -> None:
        self.requests.put(None)
        self.answers.cancel()


def log_in(
    channel: grpc.Channel, name: str = "alice", password: str = PASSWORD, metadata: Any = ()
) -> pb.SaslAuthenticateResponse:
    client = ScramClient(SCRAM_SHA_256, name, password, "abc")
    dialogue = Dialogue(channel, metadata)
    answer = dialogue.ask(client.first(), SHA_256)
    if not answer.error_code:
        answer = dialogue.ask(client.final(answer.auth_bytes))
    dialogue.end()
    return answer


def shown(answer: pb.SaslAuthenticateResponse) -> tuple[tuple[str, str], ...]:
    return (("authorization", f"Session {answer.session_token}"),)


def may_call(channel: grpc.Channel, metadata: Any) -> bool:
    call = bus_pb2_grpc.BusStub(channel).ListViews.future(pb.ListViewsRequest(), metadata=metadata, timeout=30)
    if call.exception() is None:
        return True
    assert call.code() is grpc.StatusCode.UNAUTHENTICATED
    return False


def test_a_session_is_extended_by_who_shows_it_and_stays_that_callers(channel: grpc.Channel) -> None:
    first = log_in(channel)
    assert len(first.session_token) >= 40
    assert first.session_lifetime_ms == 3_600_000
    assert log_in(channel, metadata=shown(first)).session_token == first.session_token
    assert log_in(channel).session_token != first.session_token
    unknown = (("authorization", "Session never-was"),)
    assert log_in(channel, metadata=unknown).session_token not in ("", "never-was")


def test_a_session_is_not_extended_for_another_user(broker: Broker, channel: grpc.Channel, tmp_path: Path) -> None:
    storage = open_storage(str(tmp_path / "root"), exclusive=False)
    salted = salt_password(SCRAM_SHA_256, PASSWORD, SALT, 4096)
    UserLedger(storage, SystemClock()).alter([SetScram("bob", SHA_256, 4096, SALT, salted)])
    storage.close()
    first = log_in(channel)
    answer = log_in(channel, "bob", metadata=shown(first))
    assert answer.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
    assert "as User:alice by SCRAM-SHA-256" in answer.error_message
    assert not answer.session_token


def test_unknown_users_and_wrong_passwords_look_alike(channel: grpc.Channel) -> None:
    firsts = {name: Dialogue(channel).ask(f"n,,n={name},r=abc".encode(), SHA_256) for name in ("alice", "nobody")}
    known, unknown = (first.auth_bytes.decode().split(",") for first in firsts.values())
    assert [part[:2] for part in known] == [part[:2] for part in unknown]
    assert known[2] == unknown[2] == "i=4096"
    again = Dialogue(channel).ask(b"n,,n=nobody,r=abc", SHA_256).auth_bytes.decode().split(",")
    assert again[1] == unknown[1]  # another salt each time would tell
    wrong, nobody = log_in(channel, password="wrong-password"), log_in(channel, "nobody")
    assert wrong.error_code == nobody.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
    assert wrong.error_message == nobody.error_message


def test_a_proof_is_not_taken_twice(channel: grpc.Channel) -> None:
    """A proof that somebody has listened to is worth nothing in another login."""
    client = ScramClient(SCRAM_SHA_256, "alice", PASSWORD, "abc")
    dialogue = Dialogue(channel)
    final = client.final(dialogue.ask(client.first(), SHA_256).auth_bytes)
    assert dialogue.ask(final).session_token
    other = Dialogue(channel)
    other.ask(client.first(), SHA_256)
    assert other.ask(final).error_code == ErrorCode.SASL_AUTHENTICATION_FAILED


@pytest.mark.parametrize(
    "message", [b"", b"n,,n=" + b"a" * 100_000 + b",r=abc", b"n,,n=a\nb,r=abc", b"p=x,,n=alice,r=abc", b"\xff"]
)
def test_what_is_no_login_ends_it_with_an_answer(channel: grpc.Channel, message: bytes) -> None:
    dialogue = Dialogue(channel)
    answer = dialogue.ask(message, SHA_256)
    if not answer.error_code:  # a name that no user has
        answer = dialogue.ask(b"c=biws,r=abc,p=AAAA")
    assert answer.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
    assert next(dialogue.answers, None) is None


def test_the_mechanisms_that_are_enabled_are_told(channel: grpc.Channel) -> None:
    answer = Dialogue(channel).ask(b"", "GSSAPI")
    assert answer.error_code == ErrorCode.UNSUPPORTED_SASL_MECHANISM
    assert list(answer.mechanisms) == [*SCRAM_MECHANISMS, "PLAIN"]


@pytest.mark.parametrize("steps", [0, 1, 2])
def test_a_login_that_goes_away_at_any_step_leaves_nothing(broker: Broker, channel: grpc.Channel, steps: int) -> None:
    client = ScramClient(SCRAM_SHA_256, "alice", "wrong-password", "abc")
    for _ in range(5):
        dialogue = Dialogue(channel)
        if steps:
            first = dialogue.ask(client.first(), SHA_256)
        if steps > 1:  # while the failure waits to be answered
            dialogue.requests.put(pb.SaslAuthenticateRequest(auth_bytes=client.final(first.auth_bytes)))
        dialogue.end()
    assert log_in(channel).session_token
    _wait_for_none_under_way(broker)


def _wait_for_none_under_way(broker: Broker) -> None:
    api = broker.logins

    async def count() -> int:
        return api._at_once.total()

    while asyncio.run_coroutine_threadsafe(count(), loop_of(broker)).result(timeout=30):
        threading.Event().wait(0.01)


def test_a_login_that_never_goes_on_is_ended(
    broker: Broker, channel: grpc.Channel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bus.grpc_api.server.connections.logins.LOGIN_SECONDS_MAX", 0.2)
    dialogue = Dialogue(channel)
    dialogue.ask(b"n,,n=alice,r=abc", SHA_256)
    with pytest.raises(grpc.RpcError) as caught:
        next(dialogue.answers)
    assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED
    _wait_for_none_under_way(broker)


def test_a_login_that_times_out_while_its_answer_is_held_up_ends_with_a_status(
    broker: Broker, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A client that takes no answer until the login is over, which gRPC's own cannot be told to be."""
    monkeypatch.setattr("bus.grpc_api.server.connections.logins.LOGIN_SECONDS_MAX", 0.1)
    monkeypatch.setattr("bus.grpc_api.server.guards._STATUS_SECONDS_MAX", 0.1)
    caplog.set_level(logging.DEBUG, "bus.grpc_api.server.guards")
    message = pb.SaslAuthenticateRequest(mechanism=SHA_256, auth_bytes=b"n,,n=alice,r=abc").SerializeToString()
    with socket.create_connection(("127.0.0.1", broker.ports["SASL_PLAINTEXT"]), timeout=30) as connection:
        call = rude_http2.header_frames(1, rude_http2.call_of("/bus.v1.Bus/SaslAuthenticate"))
        connection.sendall(rude_http2.hello(window_bytes=0) + call + rude_http2.message_frame(1, message))
        wait_until(lambda: any("does not read its status" in line for line in caplog.messages), "it is given up")
        _wait_for_none_under_way(broker)
        connection.sendall(rude_http2.window_frame(1, 60_000))
        received = b""
        while b"grpc-status\x02" not in received:
            received += connection.recv(65_536)
        assert b"grpc-status\x0216" in received  # UNAUTHENTICATED
    assert not [one for one in caplog.records if one.levelno >= logging.ERROR]


def test_logins_under_way_are_bounded(channel: grpc.Channel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logins, "LOGINS_AT_ONCE_OF_A_HOST_MAX", 3)
    held = [Dialogue(channel) for _ in range(3)]
    for dialogue in held:
        dialogue.ask(b"n,,n=alice,r=abc", SHA_256)
    with pytest.raises(grpc.RpcError) as caught:
        log_in(channel)
    assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
    for dialogue in held:
        dialogue.end()


def test_hosts_that_have_many_logins_under_way_keep_no_other_from_logging_in(
    broker: Broker,
) -> None:
    api = broker.logins
    with contextlib.ExitStack() as held:
        for host in range(logins.LOGINS_AT_ONCE_MAX // logins.LOGINS_AT_ONCE_OF_A_HOST_MAX):
            for _ in range(logins.LOGINS_AT_ONCE_OF_A_HOST_MAX):
                held.enter_context(api.one_of(f"/10.0.0.{host}"))
            with pytest.raises(Unavailable):
                held.enter_context(api.one_of(f"/10.0.0.{host}"))
        for _ in range(logins.LOGINS_AT_ONCE_OF_ANY_HOST):
            held.enter_context(api.one_of("/10.0.1.1"))
        with pytest.raises(Unavailable):
            held.enter_context(api.one_of("/10.0.1.1"))


def test_addresses_of_one_ipv6_network_are_one_host_for_logins_under_way(broker: Broker) -> None:
    api = broker.logins
    with contextlib.ExitStack() as held:
        for number in range(logins.LOGINS_AT_ONCE_OF_A_HOST_MAX):
            held.enter_context(api.one_of(f"/2001:db8::{number:x}"))
        with pytest.raises(Unavailable):
            held.enter_context(api.one_of("/2001:db8::ffff"))
        held.enter_context(api.one_of("/2001:db8:0:1::1"))


def test_sessions_are_bounded_and_the_oldest_of_a_name_makes_room(
    channel: grpc.Channel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(login_table, "LOGINS_OF_A_NAME_MAX", 2)
    first, second, third = (shown(log_in(channel)) for _ in range(3))
    assert [may_call(channel, one) for one in (first, second, third)] == [False, True, True]
    monkeypatch.setattr(login_table, "LOGINS_MAX", 2)
    monkeypatch.setattr(login_table, "LOGINS_OF_A_NAME_MAX", 20)
    fourth = shown(log_in(channel))
    assert [may_call(channel, one) for one in (second, third, fourth)] == [False, True, True]


def test_one_password_is_checked_once_however_many_calls_show_it(
    channel: grpc.Channel, monkeypatch: pytest.MonkeyPatch
) -> None:
    checks: list[str] = []
    check = logins.is_password_of

    def count(*arguments: Any) -> bool:
        checks.append(threading.current_thread().name)
        return check(*arguments)

    monkeypatch.setattr(logins, "is_password_of", count)
    header = (("authorization", f"Basic {base64.b64encode(f'alice:{PASSWORD}'.encode()).decode()}"),)
    stub = bus_pb2_grpc.BusStub(channel)
    calls = [stub.ListViews.future(pb.ListViewsRequest(), metadata=header, timeout=30) for _ in range(50)]
    assert all(call.exception() is None for call in calls)
    assert len(checks) == 1
    assert checks[0].startswith("login")
    wrong = (("authorization", f"Basic {base64.b64encode(b'alice:wrong-password').decode()}"),)
    assert not may_call(channel, wrong)
    assert not may_call(channel, wrong)
    assert len(checks) == 3  # what is wrong is not remembered


def test_guesses_whose_callers_go_away_are_bounded_and_reported(
    broker: Broker, channel: grpc.Channel, monkeypatch: pytest.MonkeyPatch
) -> None:
    reports: list[LoginReport] = []
    monkeypatch.setattr(broker.logins, "report", reports.append)
    monkeypatch.setattr(logins, "LOGINS_AT_ONCE_OF_A_HOST_MAX", 2)
    is_let_go, checks = threading.Event(), threading.Semaphore(0)

    def check(*_: Any) -> bool:
        checks.release()
        return not is_let_go.wait(30)

    monkeypatch.setattr(logins, "is_password_of", check)
    stub = bus_pb2_grpc.BusStub(channel)

    def guess(number: int) -> Any:
        header = base64.b64encode(b"alice:guess-%d" % number).decode()
        metadata = (("authorization", f"Basic {header}"),)
        return stub.ListViews.future(pb.ListViewsRequest(), metadata=metadata, timeout=30)

    waiting = [guess(number) for number in range(2)]
    assert checks.acquire(timeout=20)
    refused = guess(2)
    assert refused.code() is grpc.StatusCode.UNAVAILABLE
    for call in waiting:
        call.cancel()
    assert guess(3).code() is grpc.StatusCode.UNAVAILABLE  # what they asked for is not done yet
    is_let_go.set()
    wait_until(lambda: [one.name for one in reports if one.reason] == ["alice"] * 2, "both failures are reported")


@pytest.fixture
def begun(monkeypatch: pytest.MonkeyPatch) -> threading.Semaphore:
    """Released by each fetch that begins."""
    fetch, begun = fetching.fetch, threading.Semaphore(0)

    async def begin(*arguments: Any) -> Any:
        begun.release()
        return await fetch(*arguments)

    monkeypatch.setattr(fetching, "fetch", begin)
    return begun


def delete_alice(admin: bus_pb2_grpc.BusStub) -> None:
    deletion = pb.ScramDeletion(user="alice", mechanism=SHA_256)
    admin.AlterUserScramCredentials(pb.AlterUserScramCredentialsRequest(deletions=[deletion]), timeout=30)


def test_what_comes_in_while_a_fetch_waits_is_not_given_to_a_user_that_was_deleted(
    broker: Broker, channel: grpc.Channel, begun: threading.Semaphore
) -> None:
    with grpc.insecure_channel(f"127.0.0.1:{broker.ports['PLAINTEXT']}") as other:
        admin, stub = bus_pb2_grpc.BusStub(other), bus_pb2_grpc.BusStub(channel)
        admin.CreateTopics(pb.CreateTopicsRequest(topics=[pb.NewTopic(name="t", partitions=1)]), timeout=30)
        asked = pb.FetchRequest(max_wait_ms=40_000, min_bytes=1, partitions=[pb.FetchPartition(topic="t")])
        metadata = shown(log_in(channel))
        once = stub.FetchOnce.future(asked, metadata=metadata, timeout=40)
        requests: queue.SimpleQueue[pb.FetchRequest] = queue.SimpleQueue()
        requests.put(asked)
        answers = stub.Fetch(iter(requests.get, None), metadata=metadata, timeout=40)
        assert begun.acquire(timeout=20)
        assert begun.acquire(timeout=20)
        delete_alice(admin)
        record = pb.RecordList(records=[pb.Record(value=b"news")])
        batch = pb.PartitionProduceData(topic="t", records=record)
        admin.ProduceOnce(pb.ProduceRequest(partitions=[batch]), timeout=30)
        assert once.code() is grpc.StatusCode.UNAUTHENTICATED
        with pytest.raises(grpc.RpcError) as caught:
            next(answers)
        assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED


def test_a_fetch_that_waits_ends_with_the_login(
    broker: Broker, channel: grpc.Channel, begun: threading.Semaphore
) -> None:
    """It would wait for ten minutes."""
    with grpc.insecure_channel(f"127.0.0.1:{broker.ports['PLAINTEXT']}") as other:
        admin, stub = bus_pb2_grpc.BusStub(other), bus_pb2_grpc.BusStub(channel)
        admin.CreateTopics(pb.CreateTopicsRequest(topics=[pb.NewTopic(name="quiet", partitions=1)]), timeout=30)
        asked = pb.FetchRequest(max_wait_ms=600_000, min_bytes=1, partitions=[pb.FetchPartition(topic="quiet")])
        metadata = shown(log_in(channel))
        once = stub.FetchOnce.future(asked, metadata=metadata, timeout=30)
        requests: queue.SimpleQueue[pb.FetchRequest] = queue.SimpleQueue()
        requests.put(asked)
        requests.put(asked)
        answers = stub.Fetch(iter(requests.get, None), metadata=metadata, timeout=30)
        assert begun.acquire(timeout=20)
        assert begun.acquire(timeout=20)
        delete_alice(admin)
        with pytest.raises(grpc.RpcError) as caught:
            next(answers)
        for ended in (once, caught.value):
            assert ended.code() is grpc.StatusCode.UNAUTHENTICATED
            assert ended.details() == SESSION_EXPIRED


def test_who_has_not_logged_in_is_refused_before_anything_of_the_request_is_read(channel: grpc.Channel) -> None:
    """gRPC would keep it in memory, up to its limit, of any number of calls."""
    requests: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
    methods = [
        f"/{service.full_name}/{method.name}"
        for service in pb.DESCRIPTOR.services_by_name.values()
        for method in service.methods
        if method.name not in ("SaslAuthenticate", "IdentifyBroker")
    ]
    for path in methods:
        call = channel.stream_stream(path)(iter(requests.get, None), timeout=30)
        assert call.code() is grpc.StatusCode.UNAUTHENTICATED, path
        requests.put(None)


def test_calls_whose_requests_never_come_end_with_the_login(broker: Broker, channel: grpc.Channel) -> None:
    """A user that was deleted would keep the broker's memory, and the connection, for as long as it likes."""
    requests: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
    metadata = shown(log_in(channel))
    with grpc.insecure_channel(f"127.0.0.1:{broker.ports['PLAINTEXT']}") as plain:
        calls = [
            channel.stream_stream(f"/bus.v1.Bus/{name}")(iter(requests.get, None), metadata=metadata, timeout=30)
            for name in ("ListViews", "ProduceOnce", "MaintainLog")
        ]
        assert may_call(channel, metadata)
        delete_alice(bus_pb2_grpc.BusStub(plain))
        for call in calls:
            assert call.code() is grpc.StatusCode.UNAUTHENTICATED
            assert call.details() == SESSION_EXPIRED
            requests.put(None)


def test_every_login_and_every_failure_is_reported(
    broker: Broker, channel: grpc.Channel, monkeypatch: pytest.MonkeyPatch
) -> None:
    reports: list[LoginReport] = []
    monkeypatch.setattr(broker.logins, "report", reports.append)
    log_in(channel)
    log_in(channel, password="wrong-password")
    log_in(channel, "nobody")
    may_call(channel, (("authorization", f"Basic {base64.b64encode(b'alice:wrong').decode()}"),))
    assert [(one.mechanism, one.name, one.reason is None) for one in reports] == [
        (SHA_256, "alice", True),
        (SHA_256, "alice", False),
        (SHA_256, "nobody", False),
        ("PLAIN", "alice", False),
    ]
    assert {(one.caller.host, one.caller.listener) for one in reports} == {("/127.0.0.1", "SASL_PLAINTEXT")}


def test_a_broker_that_stops_waits_for_no_login(tmp_path: Path) -> None:
    config = BrokerConfig(
        listeners=("SASL_PLAINTEXT://127.0.0.1:0", "PLAINTEXT://127.0.0.1:0"), inter_broker_listener_name="PLAINTEXT"
    )
    with running_broker(tmp_path / "root", config=config) as broker:
        channel = grpc.insecure_channel(f"127.0.0.1:{broker.ports['SASL_PLAINTEXT']}")
        dialogue = Dialogue(channel)
        dialogue.ask(b"n,,n=alice,r=abc", SHA_256)
    with pytest.raises(grpc.RpcError) as caught:
        next(dialogue.answers)
    assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
    channel.close()


@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-512", "PLAIN"])
def test_brokers_log_in_at_one_another(tmp_path: Path, mechanism: str) -> None:
    root = tmp_path / "root"
    storage = open_storage(str(root), exclusive=False)
    one = SCRAM_MECHANISMS["SCRAM-SHA-512"]
    salted = salt_password(one, PASSWORD, SALT, 4096)
    UserLedger(storage, SystemClock()).alter([SetScram("broker", one.name, 4096, SALT, salted)])
    storage.close()

    def config(broker_id: int, password: str = PASSWORD) -> BrokerConfig:
        return BrokerConfig(
            broker_id=broker_id,
            listeners=("SASL_PLAINTEXT://127.0.0.1:0",),
            sasl_enabled_mechanisms=(mechanism,),
            sasl_mechanism_inter_broker_protocol=mechanism,
            sasl_jaas_config=f'x.ScramLoginModule required username="broker" password="{password}";',
        )

    settings: dict[str, Any] = {
        "security_protocol": "SASL_PLAINTEXT",
        "sasl_mechanism": mechanism,
        "sasl_username": "broker",
        "sasl_password": PASSWORD,
    }
    check_that_brokers_log_in(root, config(0), config(1), settings, secret=PASSWORD)
