"""The gRPC server of a broker: the service, health, reflection, limits, and an orderly end."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Mapping

import grpc
from grpc_health.v1 import health_pb2

from bus.broker_api.broker_api import BrokerApi
from bus.broker_api.certificate_principals import PrincipalRules
from bus.cluster_metadata.broker_decisions import BrokerIdentity
from bus.grpc_api.server.connections.certificates import listener_credentials, with_principal
from bus.grpc_api.server.connections.logins import with_login
from bus.grpc_api.server.connections.peers import GrpcPeers
from bus.grpc_api.server.connections.strangers import Strangers
from bus.grpc_api.server.guards import (
    CallsInFlight,
    OpenStreams,
    StreamRegistry,
    quiet_departures,
)
from bus.grpc_api.server.health import HealthOfServices, HealthServicer, ReflectionServicer
from bus.grpc_api.server.service_door import BUS, Recognise, ServiceDoor
from bus.grpc_api.server.servicers import BusServicer, ClusterServicer
from bus.platform.process_tuning import CONNECTIONS_MAX
from bus.runtime.partitions.fetches import Stopping
from bus.security.key_material import WatchedKeyMaterial
from bus.security.stranger_rations import RationSizes, StrangerRations
from bus.settings.broker import BrokerConfig
from bus.settings.listeners import Listener

_PENDING_CALLS_MAX = 20_000
_PENDING_CALLS_MAX_OF_STRANGERS = 8_000
_CONCURRENT_CALLS_MAX = 4_096
_HEADERS_BYTES_MAX = 32 * 1024
_HANDSHAKE_MS_MAX = 30_000
_FAREWELL_S = 1.0
SERVICE_NAME: str = BUS.full_name


class AddressInUse(OSError):
    """The address to listen on is taken or is not this machine's."""


class BusServer:
    """`bind`, `listen`, then `serve`. `stop` ends it in order: `stopping` begins, nothing new is read, what was read is
    answered, then it closes."""

    def __init__(
        self,
        config: BrokerConfig,
        stopping: Stopping,
        keys: Mapping[str, WatchedKeyMaterial] | None = None,
        *,
        connections_max: int = CONNECTIONS_MAX,
    ) -> None:
        """`keys`: of listeners with TLS, by their names; None if there are none. `connections_max`: of each one."""
        quiet_departures()
        self._config = config
        self._streams = StreamRegistry(stopping)
        self._health = HealthOfServices()
        self._open_streams = OpenStreams(config.client_streams_count_max)
        self._calls = CallsInFlight()
        self._strangers = Strangers(StrangerRations(RationSizes().within(connections_max)))
        self._listening = [
            _Listening(listener, config, self._calls, (keys or {}).get(listener.name), connections_max, self._strangers)
            for listener in config.serving_listeners
        ]

    def bind(self) -> dict[str, int]:
        """The port that each listener has bound, by its name. Raises `AddressInUse`."""
        return {one.name: one.bind() for one in self._listening}

    async def listen(self, identity: BrokerIdentity) -> None:
        """Say who this broker is, and nothing else yet."""
        self._tell_health(health_pb2.HealthCheckResponse.NOT_SERVING)
        self._strangers.start()
        for one in self._listening:
            await one.listen(identity, HealthServicer(self._health, self._open_streams, one.name))

    async def serve(self, api: BrokerApi, peers: GrpcPeers) -> None:
        for one in self._listening:
            bus = BusServicer(api, self._streams, self._config, peers, one.name, self._open_streams)
            is_between_brokers = one.name == self._config.inter_broker_listener.name
            cluster = ClusterServicer(api, bus, is_between_brokers=is_between_brokers)
            reflection = ReflectionServicer(api, self._streams, self._open_streams, one.name)
            one.door.open(bus, cluster, reflection, one.recognise_by_login(api))
        self._tell_health(health_pb2.HealthCheckResponse.SERVING)

    def _tell_health(self, status: health_pb2.HealthCheckResponse.ServingStatus) -> None:
        for name in ("", SERVICE_NAME):
            self._health.set(name, status)

    async def abandon(self) -> None:
        """End in place of `stop`, where the server does not come to serve."""
        await self._stop_servers(None)

    async def stop(self) -> None:
        """Once all calls are answered, a connection whose peer hangs is given a second: gRPC would wait twenty for its
        farewell."""
        self._health.end()
        grace_s = self._config.controlled_shutdown_timeout_ms / 1000
        stopping = asyncio.ensure_future(self._stop_servers(grace_s))
        await self._streams.drain()
        answered = asyncio.ensure_future(self._calls.wait_until_none())
        await asyncio.wait([stopping, answered], return_when=asyncio.FIRST_COMPLETED)
        answered.cancel()
        await asyncio.wait([stopping], timeout=_FAREWELL_S)
        await self._stop_servers(None)
        await stopping

    async def _stop_servers(self, grace_s: float | None) -> None:
        await asyncio.gather(*(one.server.stop(grace_s) for one in self._listening))
        self._strangers.close()


class _Listening:
    """One listener: a server of gRPC's by itself, so that each call is known to have come by it."""

    def __init__(
        self,
        listener: Listener,
        config: BrokerConfig,
        calls: CallsInFlight,
        keys: WatchedKeyMaterial | None,
        connections_max: int,
        strangers: Strangers,
    ) -> None:
        limit = config.socket_request_max_bytes
        self._listener = listener
        self.name = listener.name
        needs_certificate = config.needs_client_certificate(listener)
        rules = PrincipalRules(config.of_listener(listener).ssl_principal_mapping_rules)
        self._on_known = functools.partial(strangers.recognise, listener.name)
        certified = functools.partial(with_principal, rules=rules, on_known=self._on_known)
        recognise = certified if needs_certificate else None
        has_strangers = listener.has_logins or needs_certificate
        pending_max = _PENDING_CALLS_MAX_OF_STRANGERS if has_strangers else _PENDING_CALLS_MAX
        self.door = ServiceDoor(limit, calls, recognise)
        self._credentials = None
        if listener.has_tls:
            assert keys is not None, f"listener {listener.name} has no certificate"
            self._credentials = listener_credentials(keys, needs_client_certificate=needs_certificate)
        self.server = grpc.aio.server(
            options=[
                ("grpc.max_receive_message_length", limit),
                ("grpc.max_send_message_length", -1),
                # More are closed as soon as they are there.
                ("grpc.max_allowed_incoming_connections", connections_max),
                # For TLS and the first words of HTTP/2: those that say nothing leave their places to others.
                ("grpc.server_handshake_timeout_ms", _HANDSHAKE_MS_MAX),
                # Of one connection; more wait in the client until others of its calls have ended.
                ("grpc.max_concurrent_streams", _CONCURRENT_CALLS_MAX),
                ("grpc.max_connection_idle_ms", config.connections_max_idle_ms),
                # Of the headers of one call; tokens of some providers take most of it.
                ("grpc.max_metadata_size", _HEADERS_BYTES_MAX),
                ("grpc.absolute_max_metadata_size", _HEADERS_BYTES_MAX),
                ("grpc.so_reuseport", 0),  # a second broker on the same port is an error, not a silent half
                ("grpc.keepalive_time_ms", 30_000),  # finds clients that are gone without a word
                ("grpc.keepalive_permit_without_calls", 1),
                ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
                # Calls that have come and are not yet taken up; beyond it gRPC cancels some at random. A large group
                # that begins to rebalance joins all at once.
                ("grpc.server.max_pending_requests", pending_max),
                ("grpc.server.max_pending_requests_hard_limit", 2 * pending_max),
                *(strangers.listener_options(listener.name) if has_strangers else ()),
            ]
        )

    def recognise_by_login(self, api: BrokerApi) -> Recognise | None:
        """None: the listener has no authentication."""
        if not self._listener.has_logins:
            return None
        return functools.partial(with_login, api=api.logins, listener=self.name, on_known=self._on_known)

    def bind(self) -> int:
        """The port that was bound. Raises `AddressInUse`."""
        address = str(self._listener.bind)
        try:
            port: int = (
                self.server.add_insecure_port(address)
                if self._credentials is None
                else self.server.add_secure_port(address, self._credentials)
            )
        except RuntimeError:
            port = 0  # its message speaks of gRPC's own debug settings only
        if port == 0:
            raise AddressInUse(f"cannot listen on {address}: is another program using it, or is it not this machine's?")
        return port

    async def listen(self, identity: BrokerIdentity, health: HealthServicer) -> None:
        self.door.identify_as(identity)
        self.server.add_generic_rpc_handlers((self.door, health.handlers()))
        await self.server.start()
