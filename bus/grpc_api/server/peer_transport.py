"""Connections to the other brokers.

A call that fails is a refusal: NETWORK_EXCEPTION if there was no connection or it broke, REQUEST_TIMED_OUT if no answer
came in time. Nothing is tried again here, but where an answer did not come in time, what follows has another
connection: a network may swallow what is sent on one without a word.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any, Protocol

import grpc

from bus.addresses import format_address
from bus.errors import ErrorCode, Refused
from bus.grpc_api.server.certificates import channel_credentials
from bus.grpc_api.server.peer_logins import BrokerLogin
from bus.grpc_api.v1 import bus_pb2 as pb
from bus.key_material import KeyMaterial, WatchedKeyMaterial
from bus.model import BrokerEndpoint

SERVICE = pb.DESCRIPTOR.services_by_name["Cluster"]
CHANNELS_MAX = 1_000
# Nothing new is begun where nothing has come for so long after a request: who waited for it may have gone by now.
_SILENCE_S_MAX = 5.0
_OPTIONS = (
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
    # Else channels to one address share what is below them: another channel would be the same dead connection.
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.enable_http_proxy", 0),  # the proxies of the environment are there for the web and lead to no broker
    # A broker that comes back is reached by the next heartbeat.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 500),
)


_ChannelKey = tuple[str, int, KeyMaterial | None]


class Transport(Protocol):
    async def call(self, to: BrokerEndpoint, method: str, message: Any, *, timeout_s: float) -> Any:
        """The answer of that method of the service Cluster, or a refusal."""
        ...

    async def close(self) -> None: ...


@dataclass(slots=True, eq=False)
class _Connection:
    """A retired one is used for nothing new, and is closed behind the last call that is under way on it."""

    channel: grpc.aio.Channel
    calls_under_way: int = 0
    silent_since_s: float | None = None  # when the first request went out that nothing has come after
    is_retired: bool = False


class GrpcTransport:
    """A connection to each address that was asked of late. Any caller of RegisterBroker names an address, so they are
    bounded: the one that was not asked for longest is closed. `keys`: for TLS; other certificates make other
    connections. `login`: where the other brokers' listener asks for one."""

    def __init__(self, keys: WatchedKeyMaterial | None = None, login: BrokerLogin | None = None) -> None:
        self._keys = keys
        self._login = login
        self._connections: dict[_ChannelKey, _Connection] = {}
        self._closing: set[asyncio.Task[None]] = set()

    async def call(self, to: BrokerEndpoint, method: str, message: Any, *, timeout_s: float) -> Any:
        key = to.host, to.port, None if self._keys is None else self._keys.current
        connection = self._connection(key)
        connection.calls_under_way += 1
        if connection.silent_since_s is None:
            connection.silent_since_s = asyncio.get_running_loop().time()
        try:
            answer = await self._call(key, connection.channel, method, message, timeout_s)
            connection.silent_since_s = None
            return answer
        except grpc.aio.AioRpcError as error:
            is_late = error.code() is grpc.StatusCode.DEADLINE_EXCEEDED
            if is_late:
                self._retire(key, connection)
            elif error.code() is not grpc.StatusCode.UNAVAILABLE:
                connection.silent_since_s = None
            code = ErrorCode.REQUEST_TIMED_OUT if is_late else ErrorCode.NETWORK_EXCEPTION
            return Refused(code, f"{method} at broker {to.broker_id}, {to.address}: {error.details()}")
        finally:
            connection.calls_under_way -= 1
            if connection.is_retired:
                self._close_unused(connection)

    async def _call(
        self, key: _ChannelKey, channel: grpc.aio.Channel, method: str, message: Any, timeout_s: float
    ) -> Any:
        descriptor = SERVICE.methods_by_name[method]
        call = channel.unary_unary(
            f"/{SERVICE.full_name}/{method}",
            request_serializer=descriptor.input_type._concrete_class.SerializeToString,
            response_deserializer=descriptor.output_type._concrete_class.FromString,
        )
        if self._login is None:
            return await call(message, timeout=timeout_s)
        is_open_to_all = method == "IdentifyBroker"
        return await self._call_logged_in(self._login, key, channel, call, message, timeout_s, is_open_to_all)

    async def _call_logged_in(
        self,
        login: BrokerLogin,
        key: _ChannelKey,
        channel: grpc.aio.Channel,
        call: Any,
        message: Any,
        timeout_s: float,
        is_open_to_all: bool,
    ) -> Any:
        """A session that the other broker has forgotten, as it started again, is asked for once more."""
        for is_again in (False, True):
            try:
                headers = await login.headers(channel, key, timeout_s=timeout_s)
            except grpc.aio.AioRpcError:
                if not is_open_to_all:
                    raise
                headers = ()  # a broker that starts knows no users yet
            if isinstance(headers, Refused):
                return headers
            try:
                return await call(message, timeout=timeout_s, metadata=headers)
            except grpc.aio.AioRpcError as error:
                if error.code() is not grpc.StatusCode.UNAUTHENTICATED or is_again:
                    raise
                login.forget(key)
        raise AssertionError("the second answer is returned or raised")

    def _connection(self, key: _ChannelKey) -> _Connection:
        found = self._connections.pop(key, None)
        now_s = asyncio.get_running_loop().time()
        if found is not None and found.silent_since_s is not None and now_s - found.silent_since_s >= _SILENCE_S_MAX:
            self._retire(key, found)
            found = None
        connection = found or _Connection(_open(key))
        self._connections[key] = connection  # the last one
        if len(self._connections) > CHANNELS_MAX:
            oldest = next(iter(self._connections))
            if self._login is not None:
                self._login.forget(oldest)
            self._retire(oldest, self._connections[oldest])
        return connection

    def _retire(self, key: _ChannelKey, connection: _Connection) -> None:
        if self._connections.get(key) is connection:
            del self._connections[key]
        connection.is_retired = True
        self._close_unused(connection)

    def _close_unused(self, connection: _Connection) -> None:
        if not connection.calls_under_way:
            closing = asyncio.get_running_loop().create_task(connection.channel.close())
            self._closing.add(closing)
            closing.add_done_callback(self._closing.discard)

    async def close(self) -> None:
        connections, self._connections = list(self._connections.values()), {}
        await asyncio.gather(*self._closing)
        for connection in connections:
            await connection.channel.close()


def _open(key: _ChannelKey) -> grpc.aio.Channel:
    host, port, material = key
    target = format_address(host, port)
    if material is None:
        return grpc.aio.insecure_channel(target, options=_OPTIONS)
    return grpc.aio.secure_channel(target, channel_credentials(material), options=_OPTIONS)
