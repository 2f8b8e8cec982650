"""Connections to other brokers: one for each address, not without a bound, and another one where nothing comes."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any, cast

import grpc
import pytest

from bus.errors import BusError, ErrorCode, Refused
from bus.grpc_api.server.connections import peer_transport
from bus.grpc_api.server.connections.logins import BrokerLogin
from bus.grpc_api.server.connections.peer_transport import GrpcTransport
from bus.grpc_api.v1 import bus_pb2 as pb
from bus.model import BrokerEndpoint
from tests.support.virtual_time import run_virtually


class FakeChannel:
    def __init__(self, log: list[str], target: str) -> None:
        self._log = log
        self._target = target
        log.append(f"open {target}")

    def unary_unary(self, *_: Any, **__: Any) -> Callable[..., Any]:
        async def call(message: Any, timeout: float) -> str:
            return self._target

        return call

    async def close(self) -> None:
        self._log.append(f"close {self._target}")


def test_connection_that_was_not_asked_for_longest_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    log: list[str] = []
    monkeypatch.setattr(grpc.aio, "insecure_channel", lambda target, options: FakeChannel(log, target))
    monkeypatch.setattr(peer_transport, "CHANNELS_MAX", 2)

    async def ask() -> None:
        transport = GrpcTransport()
        for host in ("a", "b", "a", "c", "a"):
            to = BrokerEndpoint(1, host, 1)
            answer = await transport.call(to, "IdentifyBroker", pb.IdentifyBrokerRequest(), timeout_s=1)
            assert answer == f"{host}:1"
        await transport.close()

    asyncio.run(ask())
    assert log == ["open a:1", "open b:1", "open c:1", "close b:1", "close c:1", "close a:1"]


class StrangerChannel:
    """Answers with bytes, as a server of something else does. As gRPC's channels do, it gives None for what the reader
    of answers raises."""

    def __init__(self, answer: bytes) -> None:
        self._answer = answer

    def unary_unary(self, path: str, response_deserializer: Callable[[bytes], Any], **_: Any) -> Callable[..., Any]:
        async def call(message: Any, timeout: float) -> Any:
            try:
                return response_deserializer(self._answer)
            except Exception:
                return None

        return call

    async def close(self) -> None: ...


def test_answer_that_is_no_message_is_a_refusal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grpc.aio, "insecure_channel", lambda target, options: StrangerChannel(b"\xff" * 50))

    async def play() -> None:
        transport = GrpcTransport()
        answer = await asyncio.wait_for(ask(transport), 10.0)
        await transport.close()
        assert code_of(answer) is ErrorCode.NETWORK_EXCEPTION
        assert answer.message == "expected a IdentifyBrokerResponse, found 50 bytes that are none"

    run_virtually(play())


class Network:
    """Answers each call with the number of its connection, after the delay of its method, unless that connection is
    swallowed: then nothing comes. Connections are made `connect_s` after they are opened."""

    def __init__(self) -> None:
        self.targets: list[str] = []  # of the connections, by their numbers
        self.open: set[int] = set()
        self.swallowed: set[int] = set()
        self.delays_s: dict[str, float] = {}
        self.connect_s = 0.0
        self.calls: list[tuple[int, str]] = []

    def channel(self, target: str, options: Any) -> SwallowedChannel:
        assert ("grpc.use_local_subchannel_pool", 1) in options, "else it is the connection of another channel"
        self.targets.append(target)
        return SwallowedChannel(self)

    @property
    def opened(self) -> int:
        return len(self.targets)

    def count(self, method: str) -> int:
        return sum(called == method for _, called in self.calls)


class SwallowedChannel:
    def __init__(self, network: Network) -> None:
        self._network = network
        self._made_at_s = asyncio.get_running_loop().time() + network.connect_s
        self.number = network.opened - 1
        network.open.add(self.number)

    def unary_unary(self, path: str, **_: Any) -> Callable[..., Any]:
        method, network, loop = path.rpartition("/")[2], self._network, asyncio.get_running_loop()

        async def call(message: Any, timeout: float, metadata: Any = ()) -> int:
            network.calls.append((self.number, method))
            until_s = loop.time() + timeout
            answered_at_s = max(loop.time(), self._made_at_s) + network.delays_s.get(method, 0.0)
            await asyncio.sleep(min(until_s, answered_at_s) - loop.time())
            if self.number in network.swallowed or answered_at_s > until_s:
                await asyncio.sleep(until_s - loop.time())
                empty = grpc.aio.Metadata()
                raise grpc.aio.AioRpcError(grpc.StatusCode.DEADLINE_EXCEEDED, empty, empty, "Deadline Exceeded")
            assert self.number in network.open, "a connection is closed behind the last call on it"
            return self.number

        return call

    async def close(self) -> None:
        self._network.open.discard(self.number)


async def ask(
    transport: GrpcTransport,
    timeout_s: float = 1.0,
    method: str = "IdentifyBroker",
    *,
    due_s: float | None = None,
    host: str = "a",
    needs_login: bool = True,
) -> Any:
    return await transport.call(
        BrokerEndpoint(1, host, 1),
        method,
        pb.IdentifyBrokerRequest(),
        timeout_s=timeout_s,
        due_s=due_s,
        needs_login=needs_login,
    )


def code_of(answer: Any) -> ErrorCode:
    assert isinstance(answer, Refused)
    return answer.code


def now_s() -> float:
    return asyncio.get_running_loop().time()


@pytest.fixture
def network(monkeypatch: pytest.MonkeyPatch) -> Network:
    made = Network()
    monkeypatch.setattr(grpc.aio, "insecure_channel", made.channel)
    return made


def play(network: Network, scenario: Callable[[GrpcTransport], Coroutine[Any, Any, None]]) -> None:
    """Run the scenario in virtual time, and check that all connections are closed in the end, and no call is left."""

    async def run() -> None:
        transport = GrpcTransport()
        await scenario(transport)
        await transport.close()
        assert not network.open
        assert asyncio.all_tasks() == {asyncio.current_task()}

    run_virtually(run())


# ---------------------------------------------------------------- behind a time-out


def test_call_behind_one_without_an_answer_in_time_has_another_connection(network: Network) -> None:
    async def scenario(transport: GrpcTransport) -> None:
        assert await ask(transport) == 0
        network.swallowed.add(0)
        assert code_of(await ask(transport)) is ErrorCode.REQUEST_TIMED_OUT
        assert await ask(transport) == 1
        assert network.open == {1}

    play(network, scenario)


def test_slow_call_beside_one_that_is_late_has_its_answer_on_the_same_connection(network: Network) -> None:
    async def scenario(transport: GrpcTransport) -> None:
        assert await ask(transport) == 0
        network.delays_s["Envelope"] = 3.0
        slow = asyncio.ensure_future(ask(transport, 10, "Envelope"))
        await asyncio.sleep(0.5)
        network.delays_s["FindNeeded"] = 2.0
        assert code_of(await ask(transport, 1, "FindNeeded")) is ErrorCode.REQUEST_TIMED_OUT
        assert await ask(transport) == 1
        assert await slow == 0
        await asyncio.sleep(0)
        assert network.open == {1}

    play(network, scenario)


def test_calls_that_are_cancelled_before_their_time_is_over_leave_a_silent_connection(network: Network) -> None:
    async def scenario(transport: GrpcTransport) -> None:
        assert await ask(transport) == 0
        network.swallowed.add(0)
        for _ in range(5):
            with pytest.raises(asyncio.TimeoutError):
                await asyncio.wait_for(ask(transport, 30), 1)
        assert await ask(transport) == 1

    play(network, scenario)


def test_connection_that_is_still_being_made_is_left_to_the_calls_that_follow(network: Network) -> None:
    async def scenario(transport: GrpcTransport) -> None:
        network.connect_s = 1.2
        for _ in range(2):
            assert code_of(await ask(transport, 0.5)) is ErrorCode.REQUEST_TIMED_OUT
        assert await ask(transport, 0.5) == 0

    play(network, scenario)


def test_attempt_to_connect_has_the_time_that_a_slow_network_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    """A tenth of a second, as between brokers of one machine, is less than a handshake of TLS between two cities."""
    network = Network()
    found: dict[str, int] = {}

    def open_channel(target: str, options: Any) -> SwallowedChannel:
        found.update(options)
        return network.channel(target, options)

    monkeypatch.setattr(grpc.aio, "insecure_channel", open_channel)

    async def scenario(transport: GrpcTransport) -> None:
        assert await ask(transport) == 0

    play(network, scenario)
    assert found["grpc.min_reconnect_backoff_ms"] == 1_000  # by its name a pause
    assert found["grpc.max_reconnect_backoff_ms"] == 500


def test_connection_that_is_never_made_is_given_up(network: Network) -> None:
    async def scenario(transport: GrpcTransport) -> None:
        network.swallowed.add(0)
        for _ in range(4):
            assert code_of(await ask(transport, 0.5)) is ErrorCode.REQUEST_TIMED_OUT
        assert await ask(transport, 0.5) == 1

    play(network, scenario)


# ---------------------------------------------------------------- within one call


def test_call_whose_answer_is_due_has_it_on_another_connection_within_its_time(network: Network) -> None:
    async def scenario(transport: GrpcTransport) -> None:
        assert await ask(transport) == 0
        network.swallowed.add(0)
        began_s = now_s()
        assert await ask(transport, 2, due_s=0.5) == 1
        assert now_s() - began_s == pytest.approx(0.5)
        await asyncio.sleep(0.1)
        assert network.open == {1}

    play(network, scenario)


def test_call_on_a_connection_that_was_swallowed_behind_another_answer_is_late_as_soon(network: Network) -> None:
    async def scenario(transport: GrpcTransport) -> None:
        network.delays_s["BrokerHeartbeat"] = 0.4
        assert await ask(transport) == 0
        heartbeat = asyncio.ensure_future(ask(transport, 2, "BrokerHeartbeat", due_s=0.5))
        await asyncio.sleep(0.3)
        assert await ask(transport) == 0
        network.swallowed.add(0)
        assert await heartbeat == 1
        assert now_s() == pytest.approx(0.3 + 0.5 + 0.4)

    play(network, scenario)


def test_answer_of_a_broker_that_is_just_slow_is_taken_on_the_connection_on_which_it_comes(network: Network) -> None:
    async def scenario(transport: GrpcTransport) -> None:
        assert await ask(transport) == 0
        network.delays_s["BrokerHeartbeat"] = 1.2
        assert await ask(transport, 2, "BrokerHeartbeat", due_s=0.5) == 0
        assert network.calls[1:] == [(0, "BrokerHeartbeat"), (1, "BrokerHeartbeat")]

    play(network, scenario)


def test_call_on_a_connection_that_was_never_made_is_not_begun_anew(network: Network) -> None:
    """Its broker may be gone, and another connection has no better prospects."""

    async def scenario(transport: GrpcTransport) -> None:
        network.swallowed |= {0, 1}
        assert code_of(await ask(transport, 8, due_s=0.5)) is ErrorCode.REQUEST_TIMED_OUT
        assert network.opened == 1

    play(network, scenario)


def test_long_poll_on_a_swallowed_connection_is_begun_anew(network: Network) -> None:
    async def scenario(transport: GrpcTransport) -> None:
        assert await ask(transport) == 0
        network.swallowed.add(0)
        network.delays_s["CommittedVersions"] = 0.1
        assert await ask(transport, 12, "CommittedVersions") == 1
        assert now_s() == pytest.approx(3.1)

    play(network, scenario)


def test_long_poll_on_a_connection_that_is_well_waits_there(network: Network) -> None:
    async def scenario(transport: GrpcTransport) -> None:
        assert await ask(transport) == 0
        network.delays_s["CommittedVersions"] = 10.0
        assert await ask(transport, 12, "CommittedVersions") == 0
        assert network.opened == 1
        assert network.count("CommittedVersions") == 1

    play(network, scenario)


def test_call_that_may_be_made_once_is_refused_where_only_another_connection_is_answered(network: Network) -> None:
    async def scenario(transport: GrpcTransport) -> None:
        assert await ask(transport) == 0
        network.swallowed.add(0)
        assert code_of(await ask(transport, 30, "Envelope")) is ErrorCode.NETWORK_EXCEPTION
        assert now_s() == pytest.approx(3.0)
        assert network.count("Envelope") == 1

    play(network, scenario)


def test_call_that_may_be_made_once_is_waited_for_while_the_broker_answers_nothing_at_all(network: Network) -> None:
    async def scenario(transport: GrpcTransport) -> None:
        assert await ask(transport) == 0
        network.delays_s = {"Envelope": 20.0, "IdentifyBroker": 60.0}
        assert await ask(transport, 30, "Envelope") == 0
        assert network.count("Envelope") == 1

    play(network, scenario)


@pytest.mark.parametrize("method", ["CommittedVersions", "Envelope"])
@pytest.mark.parametrize("after_s", [0.0, 1.0, 2.5, 3.0, 3.5, 6.0])
def test_call_that_is_cancelled_leaves_nothing_under_way(network: Network, method: str, after_s: float) -> None:
    async def scenario(transport: GrpcTransport) -> None:
        assert await ask(transport) == 0
        network.swallowed |= {0, 1, 2}
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(ask(transport, 30, method), after_s)
        await asyncio.sleep(1)  # a question may be under way
        network.swallowed.clear()
        assert await ask(transport) == await ask(transport)
        assert len(network.open) == 1

    play(network, scenario)


def test_calls_that_are_under_way_when_the_transport_closes_are_cancelled(network: Network) -> None:
    calls: list[asyncio.Future[Any]] = []

    async def scenario(transport: GrpcTransport) -> None:
        assert await ask(transport) == 0
        network.swallowed |= {0, 1}
        calls.extend(asyncio.ensure_future(ask(transport, 30, method)) for method in ("Envelope", "FindNeeded"))
        await asyncio.sleep(3.5)
        await transport.close()
        await asyncio.wait(calls)

    play(network, scenario)
    assert all(call.cancelled() for call in calls)


# ---------------------------------------------------------------- other connections


def test_one_silent_connection_has_the_idle_ones_replaced_too(network: Network) -> None:
    async def scenario(transport: GrpcTransport) -> None:
        assert [await ask(transport, host=host) for host in "abc"] == [0, 1, 2]
        await asyncio.sleep(1)
        network.swallowed |= {0, 1}
        heartbeat = asyncio.ensure_future(ask(transport, 2, "BrokerHeartbeat", due_s=0.5))
        await asyncio.sleep(0.2)
        assert await ask(transport, host="c") == 2
        assert await heartbeat == 3
        began_s = now_s()
        assert await ask(transport, host="b") == 4
        assert now_s() == began_s
        assert await ask(transport, host="c") == 2, "it was heard since"

    play(network, scenario)


def test_slow_broker_has_the_connections_to_others_replaced_once_in_a_while(network: Network) -> None:
    async def scenario(transport: GrpcTransport) -> None:
        assert [await ask(transport, host=host) for host in "ab"] == [0, 1]
        network.delays_s["BrokerHeartbeat"] = 1.0
        for number in range(20):
            assert isinstance(await ask(transport, 2, "BrokerHeartbeat", due_s=0.5), int)
            if number % 4 == 3:
                await ask(transport, host="b")
        await asyncio.sleep(0.1)
        assert network.targets.count("b:1") == 3  # the first, and one each ten seconds

    play(network, scenario)


def test_what_is_under_way_on_other_connections_goes_on_where_they_are_heard(network: Network) -> None:
    async def scenario(transport: GrpcTransport) -> None:
        assert [await ask(transport, host=host) for host in "abc"] == [0, 1, 2]
        await asyncio.sleep(1)
        network.swallowed |= {0, 1}
        network.delays_s["CommittedVersions"] = 10.0
        polls = [asyncio.ensure_future(ask(transport, 12, "CommittedVersions", host=host)) for host in "bc"]
        began_s = now_s()
        assert await ask(transport, 2, due_s=0.5) == 3
        assert await polls[1] == 2
        assert now_s() - began_s == pytest.approx(10.0)
        assert await polls[0] == 4
        assert now_s() - began_s == pytest.approx(11.5)  # asked at 0.5, begun anew at 1.5

    play(network, scenario)


def test_call_behind_a_suspicion_of_all_has_another_connection(network: Network) -> None:
    async def scenario(transport: GrpcTransport) -> None:
        assert [await ask(transport, host=host) for host in "ab"] == [0, 1]
        network.delays_s["Envelope"] = 15.0
        slow = asyncio.ensure_future(ask(transport, 20, "Envelope"))
        await asyncio.sleep(1)
        transport.suspect_all()
        await asyncio.sleep(0)
        assert network.open == {0}
        assert [await ask(transport, host=host) for host in "ab"] == [2, 3]
        assert await slow == 0

    play(network, scenario)


# ---------------------------------------------------------------- logins


class LoginStream:
    """Grants a session, unless its connection is swallowed."""

    def __init__(self, is_swallowed: bool) -> None:
        self._is_swallowed = is_swallowed

    async def write(self, request: Any) -> None: ...

    async def read(self) -> Any:
        if self._is_swallowed:
            await asyncio.sleep(math.inf)
        return pb.SaslAuthenticateResponse(session_token="s", session_lifetime_ms=60_000)

    def cancel(self) -> None: ...


class LoginChannel:
    def __init__(self, *, is_swallowed: bool) -> None:
        self._is_swallowed = is_swallowed

    def stream_stream(self, *_: Any, **__: Any) -> Callable[..., LoginStream]:
        return lambda timeout, metadata: LoginStream(self._is_swallowed)


class Tokens:
    def token(self, timeout_ms: float) -> str:
        return "t"


def test_login_on_a_swallowed_connection_keeps_nobody_who_has_another_one(monkeypatch: pytest.MonkeyPatch) -> None:
    async def call_at_once(function: Callable[..., Any], *arguments: Any) -> Any:
        return function(*arguments)

    monkeypatch.setattr(asyncio, "to_thread", call_at_once)

    async def run() -> None:
        login = BrokerLogin("OAUTHBEARER", tokens=cast(Any, Tokens()))
        swallowed, other = cast(Any, LoginChannel(is_swallowed=True)), cast(Any, LoginChannel(is_swallowed=False))
        with pytest.raises(asyncio.TimeoutError):
            await login.headers(swallowed, "b", timeout_s=1)
        assert await login.headers(other, "b", timeout_s=1) == (("authorization", "Session s"),)
        assert now_s() == pytest.approx(1.0)

    run_virtually(run())


@pytest.mark.parametrize("failure", ["hangs", "is refused"])
def test_call_waits_for_no_renewal_of_a_session_that_holds(monkeypatch: pytest.MonkeyPatch, failure: str) -> None:
    async def run() -> None:
        is_well, asked_s = True, []

        async def fetch(function: Callable[..., Any], timeout_ms: float) -> Any:
            if not is_well:
                asked_s.append(now_s())
                await asyncio.sleep(timeout_ms / 1000 if failure == "hangs" else 0)
                raise BusError(ErrorCode.NETWORK_EXCEPTION, "the provider is gone")
            return function(timeout_ms)

        monkeypatch.setattr(asyncio, "to_thread", fetch)
        login, channel = (
            BrokerLogin("OAUTHBEARER", tokens=cast(Any, Tokens())),
            cast(Any, LoginChannel(is_swallowed=False)),
        )
        held = await login.headers(channel, "b", timeout_s=1)
        is_well = False
        await asyncio.sleep(48)
        while now_s() < 59.9:
            begun_s = now_s()
            assert await login.headers(channel, "b", timeout_s=2.5) == held
            assert now_s() == begun_s
            await asyncio.sleep(0.5)
        assert 3 <= len(asked_s) <= 13, "not with each call"
        await asyncio.sleep(0.5)
        begun_s = now_s()
        with suppress(asyncio.TimeoutError):
            assert code_of(await login.headers(channel, "b", timeout_s=2.5)) is ErrorCode.NETWORK_EXCEPTION
        assert now_s() - begun_s <= 2.5
        is_well = True
        await asyncio.sleep(3)
        assert await login.headers(channel, "b", timeout_s=1) == held

    run_virtually(run())


@pytest.mark.parametrize("failure", ["hangs", "is refused"])
def test_broker_is_asked_who_it_is_where_no_login_can_be_had(
    network: Network, monkeypatch: pytest.MonkeyPatch, failure: str
) -> None:
    async def fetch(function: Callable[..., Any], timeout_ms: float) -> Any:
        await asyncio.sleep(timeout_ms / 1000 if failure == "hangs" else 0)
        raise BusError(ErrorCode.NETWORK_EXCEPTION, "the provider is gone")

    monkeypatch.setattr(asyncio, "to_thread", fetch)

    async def run() -> None:
        transport = GrpcTransport(login=BrokerLogin("OAUTHBEARER", tokens=cast(Any, Tokens())))
        assert await ask(transport, 1.5, due_s=0.75, needs_login=False) == 0
        assert now_s() < 0.75, "no other connection is tried for want of a login"
        assert isinstance(await ask(transport, 1.5, due_s=0.75), Refused)
        assert isinstance(await ask(transport, method="FindNeeded"), Refused)
        await transport.close()

    run_virtually(run())
