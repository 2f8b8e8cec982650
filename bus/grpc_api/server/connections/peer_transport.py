"""Connections to the other brokers, and what it means if nothing comes on one.

Theory of operation. A network may swallow what is sent on a connection, without a word, while new ones work: a firewall
that fails over forgets all connections at once. So silence is noticed long before a call's time is over. A call says
when its answer is due. Where nothing has come on the connection for so long, it is made on another one too, within the
same time, and the first answer wins, since the other broker may just be slow. Where an answer may take long, a small
question (IdentifyBroker) goes out on the same connection once nothing has come there for a while; if nothing comes to
that either, the connection is *silent*, and what is under way there is begun anew on another one. What may be done only
once is not: it is given up as if the connection had broken, but only where another connection has an answer. One
connection on which nothing came says that others may be dead too: those on which nothing has come since are *retired*,
so that whatever comes next has another one, and asked if something is under way there.

Guards two promises: a call that has no answer in time is followed by one on another connection; and what is under way
on a retired connection is not ended by that.
"""

from __future__ import annotations

import asyncio
import functools
import json
import logging
import math
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Protocol

import grpc

from bus.addresses import format_address
from bus.broker_api.calls import CALLS
from bus.errors import ErrorCode, Refused
from bus.grpc_api.server.connections.certificates import channel_credentials
from bus.grpc_api.server.connections.logins import WITHOUT_LOGIN, BrokerLogin, Headers
from bus.grpc_api.server.request_limits import Unreadable, answer_reader
from bus.grpc_api.v1 import bus_pb2 as pb
from bus.model import BrokerEndpoint
from bus.runtime.tasks import time_limit
from bus.security.key_material import KeyMaterial, WatchedKeyMaterial

_log = logging.getLogger(__name__)

SERVICE = pb.DESCRIPTOR.services_by_name["Cluster"]
CHANNELS_MAX = 1_000
# So long nothing comes before a connection is asked on which something is under way, and so long it has to answer.
QUIET_S = 2.0
_ANSWER_S = 1.0
# A call with less time than that says nothing of other connections.
_LATE_S_MIN = 0.5
# A connection that never had an answer may still be made: calls with less time than that leave it to the next ones.
_CONNECT_S_MAX = 2.0
# Other connections are suspected no more often: a broker that is slow to answer would have all of them made anew, again
# and again.
_SUSPICION_PAUSE_S = 10.0
# Nothing new is begun where nothing has come for so long after a request: who waited for it may have gone by now.
_SILENCE_S_MAX = 5.0
# What has an effect each time that it is called. The others may arrive twice, and late.
_ONCE = frozenset({"Envelope", "AppendAudit"})


def _service_config() -> str:
    """Have gRPC read no more of an answer than the row of the call says."""
    methods = [*SERVICE.methods, pb.DESCRIPTOR.services_by_name["Bus"].methods_by_name["SaslAuthenticate"]]
    configs = [
        {
            "name": [{"service": method.containing_service.full_name, "method": method.name}],
            "maxResponseMessageBytes": CALLS[method.name].answer_bytes_max,
        }
        for method in methods
    ]
    return json.dumps({"methodConfig": configs})


_OPTIONS = (
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
    # Else channels to one address share what is below them: another channel would be the same dead connection.
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.enable_http_proxy", 0),  # the proxies of the environment are there for the web and lead to no broker
    # A broker that comes back is reached by the next heartbeat.
    ("grpc.initial_reconnect_backoff_ms", 100),
    # By its name a pause, in fact how long one attempt to connect may take.
    ("grpc.min_reconnect_backoff_ms", 1_000),
    ("grpc.max_reconnect_backoff_ms", 500),
    ("grpc.service_config", _service_config()),
)


_ChannelKey = tuple[str, int, KeyMaterial | None]


class Transport(Protocol):
    async def call(
        self,
        to: BrokerEndpoint,
        method: str,
        message: Any,
        *,
        timeout_s: float,
        due_s: float | None = None,
        again: Any = None,
        needs_login: bool = True,
    ) -> Any:
        """The answer of that method of the service Cluster, or a refusal. `due_s`: when the answer is due, if the other
        broker is well; None: it may take long. `again`: in place of the message, where it is sent once more.
        `needs_login`: False for a method that is open to all: it is called without a login where none can be had."""
        ...

    def suspect_all(self) -> None:
        """Have other connections for what is called from now on."""
        ...

    async def close(self) -> None: ...


class _Connection:
    """A retired one is used for nothing new, and is closed behind the last call that is under way on it."""

    def __init__(self, key: _ChannelKey, now_s: float) -> None:
        self.key = key
        self.channel = _open(key)
        self.made_at_s = now_s
        self.heard_at_s: float | None = None  # when something came last
        self.silent_since_s: float | None = None  # when the first request went out that nothing has come after
        self.calls_under_way = 0
        self.is_retired = False
        self.is_silent = False
        self.wakes: set[asyncio.Event] = set()  # of calls that are under way, set once it is silent
        self.question: asyncio.Task[None] | None = None

    def note_sent(self, now_s: float) -> None:
        if self.silent_since_s is None:
            self.silent_since_s = now_s

    def note_heard(self, now_s: float) -> None:
        self.heard_at_s, self.silent_since_s = now_s, None

    def was_heard_since(self, since_s: float) -> bool:
        return self.heard_at_s is not None and self.heard_at_s > since_s


@dataclass(frozen=True, slots=True)
class _Call:
    to: BrokerEndpoint
    key: _ChannelKey
    method: str
    message: Any
    deadline_s: float
    due_s: float | None
    needs_login: bool
    wake: asyncio.Event  # there is something to see to

    @property
    def is_once(self) -> bool:
        return self.method in _ONCE

    def refused(self, code: ErrorCode, reason: str | None) -> Refused:
        return Refused(code, f"{self.method} at broker {self.to.broker_id}, {self.to.address}: {reason}")


@dataclass(slots=True)
class _Attempt:
    """One of the ways in which a call may have its answer. `connection`: None for a question that decides about the
    attempt before. `is_late`: it has no answer, and one was due."""

    task: asyncio.Task[Any]
    connection: _Connection | None
    begun_s: float
    look_at_s: float
    is_late: bool = False

    @property
    def is_lost(self) -> bool:
        return self.is_late or (self.connection is not None and self.connection.is_silent)


class GrpcTransport:
    """A connection to each address that was asked of late. Any caller of RegisterBroker names an address, so they are
    bounded: the one that was not asked for longest is closed. `keys`: for TLS; other certificates make other
    connections. `login`: where the other brokers' listener asks for one."""

    def __init__(self, keys: WatchedKeyMaterial | None = None, login: BrokerLogin | None = None) -> None:
        self._keys = keys
        self._login = login
        self._connections: dict[_ChannelKey, _Connection] = {}
        self._retired: set[_Connection] = set()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._closing: set[asyncio.Task[None]] = set()
        self._suspects_from_s = 0.0

    async def call(
        self,
        to: BrokerEndpoint,
        method: str,
        message: Any,
        *,
        timeout_s: float,
        due_s: float | None = None,
        again: Any = None,
        needs_login: bool = True,
    ) -> Any:
        key = to.host, to.port, None if self._keys is None else self._keys.current
        call = _Call(to, key, method, message, _now_s() + timeout_s, due_s, needs_login, asyncio.Event())
        attempts = [self._begin(call)]
        another = call if again is None else replace(call, message=again)
        try:
            while (outcome := _outcome_of(call, attempts)) is None:
                if attempts[-1].is_lost:
                    attempts.append(self._begin_to_find_out(call) if call.is_once else self._begin(another))
                await _wait(call.wake, attempts[-1].look_at_s)
                if _now_s() >= attempts[-1].look_at_s:
                    self._look(call, attempts[-1])
            return outcome
        finally:
            for attempt in attempts:
                attempt.task.cancel()

    def suspect_all(self) -> None:
        self._suspect(_now_s())

    # ------------------------------------------------------------------ attempts

    def _begin(self, call: _Call) -> _Attempt:
        connection, now_s = self._connection(call.key), _now_s()
        connection.wakes.add(call.wake)
        connection.note_sent(now_s)
        leave = self._enter(connection)
        task = self._start(
            self._attempt(call, connection), call.wake.set, lambda: connection.wakes.discard(call.wake), leave
        )
        return _Attempt(task, connection, now_s, now_s + (QUIET_S if call.due_s is None else call.due_s))

    def _begin_to_find_out(self, call: _Call) -> _Attempt:
        return _Attempt(self._start(self._refuse_once_reached(call), call.wake.set), None, _now_s(), math.inf)

    def _start(self, work: Coroutine[Any, Any, Any], *on_end: Callable[[], object]) -> asyncio.Task[Any]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)

        def end(_: object) -> None:
            self._tasks.discard(task)
            for tell in on_end:
                tell()

        task.add_done_callback(end)
        return task

    def _enter(self, connection: _Connection) -> Callable[[], None]:
        """Count one call more, behind which the result is to be called."""
        connection.calls_under_way += 1

        def leave() -> None:
            connection.calls_under_way -= 1
            self._close_unused(connection)

        return leave

    async def _attempt(self, call: _Call, connection: _Connection) -> Any:
        begun_s = _now_s()
        try:
            answer = await self._ask(call, connection)
        except asyncio.TimeoutError:
            self._note_late(connection, begun_s)
            return call.refused(ErrorCode.REQUEST_TIMED_OUT, "no answer in time")
        except grpc.aio.AioRpcError as error:
            if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
                self._note_late(connection, begun_s)
                return call.refused(ErrorCode.REQUEST_TIMED_OUT, error.details())
            if error.code() is not grpc.StatusCode.UNAVAILABLE:
                connection.note_heard(_now_s())
            return call.refused(ErrorCode.NETWORK_EXCEPTION, error.details())
        if not isinstance(answer, Refused):
            connection.note_heard(_now_s())
        return answer

    async def _refuse_once_reached(self, call: _Call) -> Refused:
        """Wait until the broker has an answer on another connection than the silent one."""
        is_reached = False
        while not is_reached:
            request = pb.IdentifyBrokerRequest()
            found = await self.call(call.to, "IdentifyBroker", request, timeout_s=_ANSWER_S, needs_login=False)
            is_reached = not isinstance(found, Refused)
            await asyncio.sleep(0 if is_reached else QUIET_S)
        reason = "nothing comes on its connection any more, while another one is answered"
        return call.refused(ErrorCode.NETWORK_EXCEPTION, reason)

    async def _ask(self, call: _Call, connection: _Connection) -> Any:
        """Raises `grpc.aio.AioRpcError`, or `asyncio.TimeoutError`."""
        ask = _new_call(connection.channel, call.method)
        if self._login is None:
            return await ask(call.message, timeout=call.deadline_s - _now_s())
        return await self._ask_logged_in(self._login, call, connection, ask)

    async def _ask_logged_in(self, login: BrokerLogin, call: _Call, connection: _Connection, ask: Any) -> Any:
        """A session that the other broker has forgotten, as it started again, is asked for once more."""
        for is_again in (False, True):
            headers = await self._log_in(login, call, connection)
            if isinstance(headers, Refused):
                return headers
            try:
                return await ask(call.message, timeout=call.deadline_s - _now_s(), metadata=headers)
            except grpc.aio.AioRpcError as error:
                if error.code() is not grpc.StatusCode.UNAUTHENTICATED or is_again:
                    raise
                login.forget(call.key)
        raise AssertionError("the second answer is returned or raised")

    async def _log_in(self, login: BrokerLogin, call: _Call, connection: _Connection) -> Headers | Refused:
        """Return the headers of a login; none for a call that does not need one, if it cannot be had soon: whether a
        broker is there does not depend on an identity provider."""
        left_s = call.deadline_s - _now_s()
        soon_s = None if call.needs_login else (call.due_s or left_s) / 2
        try:
            async with time_limit(soon_s):
                headers = await login.headers(connection.channel, call.key, timeout_s=left_s)
        except grpc.aio.AioRpcError:
            if call.method != WITHOUT_LOGIN:
                raise
            return ()  # a broker that starts knows no users yet
        except asyncio.TimeoutError:
            if call.needs_login:
                raise
            return ()
        return () if isinstance(headers, Refused) and not call.needs_login else headers

    # ------------------------------------------------------------------ silence

    def _look(self, call: _Call, attempt: _Attempt) -> None:
        """See to an attempt that has no answer yet."""
        connection, now_s = attempt.connection, _now_s()
        assert connection is not None, "a question is not looked after"
        quiet_s_max = QUIET_S if call.due_s is None else call.due_s
        attempt.look_at_s = now_s + quiet_s_max
        if connection.is_silent or connection.heard_at_s is None:
            return
        heard_at_s = max(connection.heard_at_s, attempt.begun_s)  # on a dead connection all else had its answer in time
        if now_s - heard_at_s < quiet_s_max:
            attempt.look_at_s = heard_at_s + quiet_s_max
        elif call.due_s is None:
            self._question(connection)
        else:
            attempt.is_late = True
            self._doubt(connection, heard_at_s)

    def _question(self, connection: _Connection) -> None:
        """Find out whether anything comes there."""
        if connection.question is None:
            connection.question = self._start(self._ask_whether_heard(connection), self._enter(connection))

    async def _ask_whether_heard(self, connection: _Connection) -> None:
        asked_s = _now_s()
        try:
            await _new_call(connection.channel, "IdentifyBroker")(pb.IdentifyBrokerRequest(), timeout=_ANSWER_S)
            connection.note_heard(_now_s())
        except grpc.aio.AioRpcError as error:
            if error.code() is not grpc.StatusCode.DEADLINE_EXCEEDED:
                if error.code() is not grpc.StatusCode.UNAVAILABLE:
                    connection.note_heard(_now_s())
            elif not connection.was_heard_since(asked_s):
                self._find_silent(connection, asked_s)
        finally:
            connection.question = None

    def _find_silent(self, connection: _Connection, since_s: float) -> None:
        connection.is_silent = True
        host, port, _ = connection.key
        _log.info("nothing comes on a connection to the broker at %s: another one is used", format_address(host, port))
        for wake in connection.wakes:
            wake.set()
        self._doubt(connection, since_s)

    def _note_late(self, connection: _Connection, begun_s: float) -> None:
        """A request that went out then has had no answer in time. That may be due to the broker."""
        now_s = _now_s()
        if connection.heard_at_s is None and now_s - connection.made_at_s < _CONNECT_S_MAX:
            return
        if not connection.was_heard_since(begun_s) and now_s - begun_s >= _LATE_S_MIN:
            self._doubt(connection, begun_s)
        else:
            self._retire(connection)

    def _doubt(self, connection: _Connection, since_s: float) -> None:
        """A call on it has had no answer since it went out then. So others may be dead too."""
        if connection.calls_under_way > 1 and not connection.is_silent:
            self._question(connection)
        self._retire(connection)
        now_s = _now_s()
        if now_s >= self._suspects_from_s:
            self._suspects_from_s = now_s + _SUSPICION_PAUSE_S
            self._suspect(since_s)

    def _suspect(self, since_s: float) -> None:
        """Use nothing that was heard before, but not since then; what is under way there is seen to."""
        for connection in list(self._connections.values()):
            if connection.heard_at_s is not None and not connection.was_heard_since(since_s):
                if connection.calls_under_way:
                    self._question(connection)
                self._retire(connection)

    # ------------------------------------------------------------------ connections

    def _connection(self, key: _ChannelKey) -> _Connection:
        found = self._connections.pop(key, None)
        now_s = _now_s()
        if found is not None and found.silent_since_s is not None and now_s - found.silent_since_s >= _SILENCE_S_MAX:
            self._retire(found)
            found = None
        connection = found or _Connection(key, now_s)
        self._connections[key] = connection  # the last one
        if len(self._connections) > CHANNELS_MAX:
            oldest = next(iter(self._connections))
            if self._login is not None:
                self._login.forget(oldest)
            self._retire(self._connections[oldest])
        return connection

    def _retire(self, connection: _Connection) -> None:
        if connection.is_retired:
            return
        if self._connections.get(connection.key) is connection:
            del self._connections[connection.key]
        connection.is_retired = True
        self._retired.add(connection)
        self._close_unused(connection)

    def _close_unused(self, connection: _Connection) -> None:
        if connection in self._retired and not connection.calls_under_way:
            self._retired.discard(connection)
            closing = asyncio.get_running_loop().create_task(connection.channel.close())
            self._closing.add(closing)
            closing.add_done_callback(self._closing.discard)

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        for connection in [*self._connections.values(), *self._retired]:
            self._retire(connection)
        await asyncio.gather(*self._closing)


def _now_s() -> float:
    return asyncio.get_running_loop().time()


async def _wait(wake: asyncio.Event, until_s: float) -> None:
    """Wait until it is set, or that time has come."""
    with suppress(asyncio.TimeoutError):
        async with time_limit(None if until_s == math.inf else max(0.0, until_s - _now_s())):
            await wake.wait()
    wake.clear()


def _outcome_of(call: _Call, attempts: Sequence[_Attempt]) -> Any:
    """The first answer, or why there is none. A refusal of an attempt that was lost is not the last word, unless the
    call may be made only once."""
    for attempt in attempts:
        if attempt.task.done():
            found = attempt.task.result()
            if call.is_once or attempt is attempts[-1] or not isinstance(found, Refused):
                return found
    return None


def _new_call(channel: grpc.aio.Channel, method: str) -> Any:
    descriptor = SERVICE.methods_by_name[method]
    return channel.unary_unary(
        f"/{SERVICE.full_name}/{method}",
        request_serializer=descriptor.input_type._concrete_class.SerializeToString,
        response_deserializer=functools.partial(read_answer, method),
    )


def read_answer(method: str, raw: bytes) -> Any:
    """Read what another broker has answered to that call. NETWORK_EXCEPTION: it is no such message, or beyond a limit.
    Never raises: gRPC would give None for it, which means that there is no outcome yet."""
    answer = answer_reader(method)(raw)
    return Refused(ErrorCode.NETWORK_EXCEPTION, answer.message) if isinstance(answer, Unreadable) else answer


def _open(key: _ChannelKey) -> grpc.aio.Channel:
    host, port, material = key
    target = format_address(host, port)
    if material is None:
        return grpc.aio.insecure_channel(target, options=_OPTIONS)
    return grpc.aio.secure_channel(target, channel_credentials(material), options=_OPTIONS)
