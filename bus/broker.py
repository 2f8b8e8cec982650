"""A broker: the only place where adapters meet rules.

`run_broker` serves one root until it is told to stop. SIGTERM, SIGINT and SIGHUP stop it in order: nothing new is
accepted, commits in flight are finished and answered, the root is released. A second SIGTERM or SIGINT exits at once;
that loses nothing that was acknowledged with acks=all, since such a record is on disk. A broker whose root was removed,
or made again by another one, stops by itself.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import gc
import logging
import os
import signal
import time
import uuid
from collections.abc import Callable, Iterator

import uvloop

from bus.addresses import Address
from bus.broker_api.authorization import warnings_of_access
from bus.broker_api.broker_api import BrokerApi
from bus.broker_api.logins import LoginApi, TokenLogins
from bus.cluster_metadata.broker_decisions import BrokerIdentity
from bus.errors import RootLost, StorageFault, count_of
from bus.grpc_api.server.connections.logins import BrokerLogin
from bus.grpc_api.server.connections.peer_transport import GrpcTransport
from bus.grpc_api.server.connections.peers import GrpcPeers
from bus.grpc_api.server.server import BusServer
from bus.model import PLAINTEXT, BrokerEndpoint, KeyFiles, ListenerAddress, NameChanges, RunningBroker
from bus.platform.process_tuning import connections_max, give_back_memory_when_idle, tune_process
from bus.platform.system_clock import SystemClock
from bus.ports import Clock, Storage
from bus.runtime.audit_log import AuditLog
from bus.runtime.blocking import BlockingCalls
from bus.runtime.cluster import Cluster
from bus.runtime.coordinators.group_coordinator import GroupCoordinator
from bus.runtime.coordinators.transaction_link import Transactions, new_transactions
from bus.runtime.key_directory import KeyDirectory, RefreshTimes
from bus.runtime.logs import warn_of_pauses, write_out_logs
from bus.runtime.metadata.peers import Peers
from bus.runtime.partitions.fetches import Stopping
from bus.runtime.tasks import LoopShares, TaskScope
from bus.runtime.user_directory import UserDirectory
from bus.security.bearer_tokens import TokenRules
from bus.security.key_material import KeyMaterialFault, WatchedKeyMaterial
from bus.security.oauth.documents import read_document
from bus.security.oauth.token_settings import DocumentUrl
from bus.security.oauth.token_sources import TokenSource
from bus.security.scram import OAUTHBEARER
from bus.settings.broker import BrokerConfig
from bus.settings.keys import ConfigError
from bus.settings.listeners import Listener
from bus.settings.login_settings import (
    broker_login,
    broker_token,
    key_set_url,
    principals_beyond_tokens,
    token_listeners,
    unused_login_settings,
    warnings_of_tokens,
)
from bus.storage_delta.root import open_storage

_log = logging.getLogger(__name__)

_ROOT_CHECK_INTERVAL_S = 1.0
_LOST_GRACE_S = 1.0  # calls under way get answers for this long once the root is lost
_KEYS_CHECK_INTERVAL_S = 30.0
_LAST_LINES_TIMEOUT_S = 0.2


class BrokerCore:
    """Serves one root to the adapters of all protocols: `start` returns its API, `serve` says that clients reach it.
    `leave`, `begin_stop`, then `stop` once no request is under way; each once. `abandon` instead, if the start fails
    behind it; `close`, if `start` was not called."""

    def __init__(
        self,
        config: BrokerConfig,
        *,
        clock: Clock,
        calls: BlockingCalls,
        shares: LoopShares,
        stopping: Stopping,
        peers: Peers,
        new_uuid: Callable[[], str],
    ) -> None:
        self._config = config
        self._peers = peers
        self._clock = clock
        self._shares = shares
        self._stopping = stopping
        self._new_uuid = new_uuid
        self._tasks = TaskScope("broker")
        self._storage: Storage | None = None
        self.calls = calls
        self._cluster: Cluster | None = None
        self._coordinator: GroupCoordinator | None = None
        self._transactions: Transactions | None = None
        self._users: UserDirectory | None = None
        self._signing_keys: dict[str, KeyDirectory] = {}
        self._audit: AuditLog | None = None

    @property
    def storage(self) -> Storage:
        assert self._storage is not None, "the broker has not started"
        return self._storage

    @property
    def cluster(self) -> Cluster:
        assert self._cluster is not None, "the broker has not started"
        return self._cluster

    @property
    def coordinator(self) -> GroupCoordinator:
        assert self._coordinator is not None, "the broker has not started"
        return self._coordinator

    @property
    def transactions(self) -> Transactions:
        assert self._transactions is not None, "the broker has not started"
        return self._transactions

    @property
    def audit(self) -> AuditLog:
        assert self._audit is not None, "the broker has not started"
        return self._audit

    async def start(self, storage: Storage, address: Address, listeners: tuple[ListenerAddress, ...] = ()) -> BrokerApi:
        """Raises `StorageFault`; then nothing of it runs any more. The core closes `storage`. `address`: for other
        brokers; `listeners`: for clients, if there are others than PLAINTEXT at that address."""
        self._storage = storage
        self._cluster = Cluster(
            storage,
            self._config,
            BrokerEndpoint(self._config.broker_id, address.host, address.port, listeners),
            clock=self._clock,
            peers=self._peers,
            new_topic_id=self._new_uuid,
            calls=self.calls,
            tasks=self._tasks,
        )
        try:
            await self.cluster.start()
            self._coordinator = GroupCoordinator(
                self.cluster,
                self._config,
                clock=self._clock,
                calls=self.calls,
                tasks=self._tasks,
                new_uuid=self._new_uuid,
            )
            self.coordinator.start()
            self._transactions = new_transactions(
                self.cluster,
                self._config,
                self._peers,
                self.coordinator,
                clock=self._clock,
                calls=self.calls,
                tasks=self._tasks,
            )
            self.transactions.start()
            self._users = UserDirectory(storage, clock=self._clock, calls=self.calls, tasks=self._tasks)
            await self._users.start(follow=self._config.has_logins)
            self._signing_keys = _new_key_directories(self._config, self.calls, self._tasks)
            for keys in set(self._signing_keys.values()):
                keys.start()
            self._audit = AuditLog(self.cluster, self._peers, clock=self._clock, tasks=self._tasks)
            self._audit.start()
        except BaseException:
            await self.abandon()
            raise
        return BrokerApi(
            self.cluster,
            self.coordinator,
            self.transactions,
            self._users,
            self.audit,
            self._config,
            tokens=self._token_logins(),
            clock=self._clock,
            calls=self.calls,
            stopping=self._stopping,
            shares=self._shares,
        )

    def _token_logins(self) -> dict[str, TokenLogins]:
        """Return the logins of each listener with OAUTHBEARER, by its name."""
        settings = token_listeners(self._config)
        return {
            name: TokenLogins(
                keys, _token_rules(settings[name], principals_beyond_tokens(self._config, name)), self._clock
            )
            for name, keys in self._signing_keys.items()
        }

    async def abandon(self) -> None:
        """End instead of `begin_stop` and `stop`, if the broker does not come to serve."""
        self.begin_stop()
        await self.give_up()

    async def give_up(self) -> None:
        """Take the place of `stop` where there is nothing left that could be written."""
        await self._tasks.cancel()
        if self._cluster is not None:
            await self._cluster.end_changes()
        self.close()

    def serve(self) -> None:
        self.cluster.serve()

    async def leave(self) -> None:
        """While clients are still answered: other brokers, if there are any, take over what this one leads."""
        if self._transactions is not None:
            await self._transactions.coordinator.log_all()
        await self.cluster.leave()

    def begin_stop(self) -> None:
        """Members of groups are sent away, and so are producers that wait for the end of a transaction; commits in
        flight are answered yet."""
        if self._transactions is not None:
            self._transactions.close()
        if self._coordinator is not None:
            self._coordinator.close()
        if self._users is not None:
            self._users.close()
        for keys in set(self._signing_keys.values()):
            keys.close()

    async def stop(self) -> None:
        await self.audit.close()
        await self.cluster.end_changes()
        await self.cluster.end_maintenance()
        await self._tasks.join()
        self.close()

    def close(self) -> None:
        self.calls.close()
        if self._storage is not None:
            self._storage.close()


class Broker:
    """Serves one root. Raises `ConfigError` for certificates, or rules for their names, that cannot be used. `start`,
    then `stop`; both once. `ports`: those that were bound, by the names of the listeners; `port`: that of the first
    one. `keys`: of listeners with TLS, by their names."""

    def __init__(self, config: BrokerConfig, *, clock: Clock | None = None, storage: Storage | None = None) -> None:
        self._config = config
        self._given_storage = storage
        clock = clock or SystemClock()
        stopping = Stopping()
        self.keys = _open_keys(config)
        self._watching: asyncio.Task[None] | None = None
        self._lost: RootLost | None = None
        self._server = BusServer(
            config, stopping, self.keys, connections_max=connections_max(len(config.serving_listeners))
        )
        self._transport = GrpcTransport(self.keys.get(config.inter_broker_listener.name), _broker_login(config))
        self._peers = GrpcPeers(self._transport)
        self._core = BrokerCore(
            config,
            clock=clock,
            calls=BlockingCalls(config.num_io_threads, clock=clock, maintenance_threads=config.log_cleaner_threads),
            shares=LoopShares(),
            stopping=stopping,
            peers=self._peers,
            new_uuid=lambda: str(uuid.uuid4()),
        )
        self._logins: LoginApi | None = None
        self.ports: dict[str, int] = {}
        self.port = 0

    @property
    def cluster(self) -> Cluster:
        return self._core.cluster

    @property
    def audit(self) -> AuditLog:
        return self._core.audit

    @property
    def logins(self) -> LoginApi:
        assert self._logins is not None, "the broker has not started"
        return self._logins

    async def start(self) -> None:
        """Raises `AddressInUse`, `RootInUse`, `RootNotUsable` or another `StorageFault`; then nothing is left open."""
        started = time.monotonic()
        self.ports = self._server.bind()
        self.port = next(iter(self.ports.values()))
        async with contextlib.AsyncExitStack() as undo:
            undo.push_async_callback(self._transport.close)
            undo.callback(self._core.close)
            address = self._advertised(self._config.inter_broker_listener)
            storage = self._given_storage
            if storage is None:
                holder = RunningBroker(self._config.broker_id, str(address), os.getpid())
                storage = open_storage(
                    self._config.root,
                    holder=str(holder),
                    broker_id=self._config.broker_id,
                    staged_cache_bytes=self._config.transaction_staged_cache_bytes,
                )
            undo.callback(storage.close)
            undo.push_async_callback(self._server.abandon)
            await self._server.listen(BrokerIdentity(storage.cluster_id, self._config.broker_id, storage.incarnation))
            api = await self._core.start(storage, address, self._listener_addresses())
            undo.push_async_callback(self._core.abandon)
            self._logins = api.logins
            await self._server.serve(api, self._peers)
            undo.pop_all()
        self._core.serve()
        has_acls = bool(len(self.cluster.state.acls))
        of_access = warnings_of_access(self._config.acl_policy, self._config.open_listeners, has_acls=has_acls)
        for warning in (*of_access, *unused_login_settings(self._config), *warnings_of_tokens(self._config)):
            _log.warning("%s", warning)
        if self.keys:
            self._watching = asyncio.get_running_loop().create_task(self._watch_keys())
        _log.info(
            "serving %s on %s: %s, ready in %.2f s",
            storage.root_url,
            self.shown_addresses,
            count_of(len(self.cluster.state.topics), "topic"),
            time.monotonic() - started,
        )

    @property
    def shown_addresses(self) -> str:
        """The addresses for clients, as a text for people: `host:port`, or NAME://host:port of each listener if there
        are others than PLAINTEXT."""
        endpoint = self.cluster.endpoint
        if not endpoint.listeners:
            return str(Address(endpoint.host, endpoint.port))
        return ", ".join(f"{one.name}://{Address(one.host, one.port)}" for one in endpoint.listeners)

    def _advertised(self, listener: Listener) -> Address:
        return listener.advertised.at_port(self.ports[listener.name])

    def _listener_addresses(self) -> tuple[ListenerAddress, ...]:
        """None for the listener PLAINTEXT alone: its address is that of the broker."""
        serving = self._config.serving_listeners
        if [(one.name, one.protocol) for one in serving] == [(PLAINTEXT, PLAINTEXT)]:
            return ()
        return tuple(
            ListenerAddress(one.name, one.protocol, at.host, at.port)
            for one in serving
            for at in [self._advertised(one)]
        )

    async def _watch_keys(self) -> None:
        while True:
            await asyncio.sleep(_KEYS_CHECK_INTERVAL_S)
            for keys in set(self.keys.values()):
                await self._core.calls.control(keys.look)

    async def wait_until_unfenced(self) -> None:
        """Between `start` and `stop`. Returns once the cluster counts on this broker."""
        await self.cluster.wait_until_unfenced()

    async def wait_root_lost(self) -> RootLost:
        """Between `start` and `stop`. Returns once the root was removed or made again; nothing is written to it since
        then, so all that is left to do is to stop."""
        core = self._core
        while True:
            try:
                await core.calls.control(core.storage.check_held)
            except RootLost as lost:
                if self._lost is None:
                    self._lost = lost
                    _log.critical("%s; the broker stops at once", lost)
                return lost
            except StorageFault as fault:
                _log.warning("whether the root is still held cannot be told: %s", fault)
            await asyncio.sleep(_ROOT_CHECK_INTERVAL_S)

    async def stop(self) -> RootLost | None:
        """Stop in order. Once the root is lost, before or meanwhile, at once: the other brokers of it end as well, so
        nobody takes over, and nothing can be written; calls are answered with the fault, which is returned."""
        if self._watching is not None:
            self._watching.cancel()
            await asyncio.wait([self._watching])
        lost = asyncio.ensure_future(self.wait_root_lost())
        leaving = asyncio.ensure_future(self._core.leave())
        await asyncio.wait([lost, leaving], return_when=asyncio.FIRST_COMPLETED)
        if self._lost is None:
            await leaving
        leaving.cancel()
        self._core.begin_stop()
        stopping = asyncio.ensure_future(self._server.stop())
        await asyncio.wait([lost, stopping], return_when=asyncio.FIRST_COMPLETED)
        lost.cancel()
        if self._lost is None:
            await stopping
            await self._core.stop()
        else:
            await asyncio.wait([stopping], timeout=_LOST_GRACE_S)
            await self._server.abandon()
            await stopping
            await self._core.give_up()
        await self._transport.close()
        _log.info("stopped")
        return self._lost


def _open_keys(config: BrokerConfig) -> dict[str, WatchedKeyMaterial]:
    """Open the keys of each listener with TLS, by its name; listeners with the same files and rules share them. Raises
    `ConfigError`."""
    opened: dict[tuple[KeyFiles, NameChanges], WatchedKeyMaterial] = {}
    found = {}
    for listener in config.serving_listeners:
        if not listener.has_tls:
            continue
        files, may_change = config.key_files[listener.name], config.name_changes_of(listener)
        if (files, may_change) not in opened:
            try:
                opened[files, may_change] = WatchedKeyMaterial(files, may_change=may_change)
            except KeyMaterialFault as fault:
                raise ConfigError(f"listener {listener.name}: {fault}") from None
        found[listener.name] = opened[files, may_change]
    return found


def _new_key_directories(config: BrokerConfig, calls: BlockingCalls, tasks: TaskScope) -> dict[str, KeyDirectory]:
    """Return the key directory of each listener with OAUTHBEARER, by its name; listeners with the same identity
    provider share one."""
    directories: dict[tuple[DocumentUrl, RefreshTimes], KeyDirectory] = {}
    found = {}
    for name, own in token_listeners(config).items():
        url, times = key_set_url(own), _refresh_times(own)
        if (url, times) not in directories:
            read = functools.partial(read_document, url)
            directories[url, times] = KeyDirectory(read, str(url), times, calls=calls, tasks=tasks)
        found[name] = directories[url, times]
    return found


def _refresh_times(config: BrokerConfig) -> RefreshTimes:
    return RefreshTimes(
        config.sasl_oauthbearer_jwks_endpoint_refresh_ms,
        config.sasl_oauthbearer_jwks_endpoint_retry_backoff_ms,
        config.sasl_oauthbearer_jwks_endpoint_retry_backoff_max_ms,
    )


def _token_rules(config: BrokerConfig, reserved: frozenset[str]) -> TokenRules:
    return TokenRules(
        config.sasl_oauthbearer_expected_issuer,
        config.sasl_oauthbearer_expected_audience,
        clock_skew_s=config.sasl_oauthbearer_clock_skew_seconds,
        name_claim=config.sasl_oauthbearer_sub_claim_name,
        scope_claim=config.sasl_oauthbearer_scope_claim_name,
        scopes=config.sasl_oauthbearer_expected_scope,
        prefix=config.sasl_oauthbearer_principal_prefix,
        reserved=reserved,
    )


def _broker_login(config: BrokerConfig) -> BrokerLogin | None:
    """None where brokers reach one another without."""
    if not config.inter_broker_listener.has_logins:
        return None
    if config.sasl_mechanism_inter_broker_protocol == OAUTHBEARER:
        return BrokerLogin(OAUTHBEARER, tokens=TokenSource(broker_token(config)))
    name, password = broker_login(config)
    return BrokerLogin(config.sasl_mechanism_inter_broker_protocol, name, password)


def run_broker(config: BrokerConfig, on_ready: Callable[[Broker], None] | None = None) -> None:
    """Serve until SIGTERM, SIGINT or SIGHUP. `on_ready` is called once clients are answered and the cluster counts on
    the broker; it must not wait. Raises what `Broker.start` raises, and `RootLost` once the root is lost."""
    tune_process(is_memory_bounded=config.memory_max_bytes > 0)
    uvloop.run(_serve(config, on_ready))


async def _serve(config: BrokerConfig, on_ready: Callable[[Broker], None] | None) -> None:
    broker = Broker(config)
    stopping = asyncio.Event()
    with _stopping_by_signals(stopping):
        if await _start(broker, stopping):
            await _run(broker, stopping, on_ready)


@contextlib.contextmanager
def _stopping_by_signals(stopping: asyncio.Event) -> Iterator[None]:
    """Have SIGTERM, SIGINT and SIGHUP set `stopping` within the block."""
    loop = asyncio.get_running_loop()

    def on_signal(number: signal.Signals) -> None:
        if not stopping.is_set():
            _log.info("%s: finishing the commits in flight, then stopping", number.name)
            stopping.set()
        elif number is not signal.SIGHUP:  # when a terminal is closed, the shell and the kernel may each send SIGHUP
            _log.warning("second signal (%s): exiting at once", number.name)
            write_out_logs(_LAST_LINES_TIMEOUT_S)
            os._exit(1)

    wanted = [signal.SIGTERM, signal.SIGINT]
    # nohup ignores it for a process that is to outlive its terminal
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        wanted.append(signal.SIGHUP)
    for number in wanted:
        loop.add_signal_handler(number, on_signal, number)
    try:
        yield
    finally:
        for number in wanted:  # else they stay with a loop that is closed
            loop.remove_signal_handler(number)


async def _run(broker: Broker, stopping: asyncio.Event, on_ready: Callable[[Broker], None] | None) -> None:
    """Serve until it is to stop, or its root is lost; then stop it. Raises `RootLost`, also if it is lost meanwhile."""
    loop = asyncio.get_running_loop()
    # Objects that exist now stay: a collection that visits all of them holds the loop for a tenth of a second or more.
    gc.collect()
    gc.freeze()
    watching = [loop.create_task(warn_of_pauses()), loop.create_task(give_back_memory_when_idle())]
    try:
        unfenced = loop.create_task(broker.wait_until_unfenced())
        signalled, lost = loop.create_task(stopping.wait()), loop.create_task(broker.wait_root_lost())
        await asyncio.wait([unfenced, signalled, lost], return_when=asyncio.FIRST_COMPLETED)
        if unfenced.done() and on_ready is not None:
            on_ready(broker)
        await asyncio.wait([signalled, lost], return_when=asyncio.FIRST_COMPLETED)
        for waiting in (unfenced, signalled, lost):
            waiting.cancel()
    finally:
        fault = await broker.stop()
        for task in watching:
            task.cancel()
    if fault is not None:
        raise fault


async def _start(broker: Broker, stopping: asyncio.Event) -> bool:
    """Start the broker; True if it has started. False: it was asked to stop before, for example while it waited to join
    the cluster."""
    loop = asyncio.get_running_loop()
    starting, signalled = loop.create_task(broker.start()), loop.create_task(stopping.wait())
    await asyncio.wait([starting, signalled], return_when=asyncio.FIRST_COMPLETED)
    signalled.cancel()
    if not starting.done():
        starting.cancel()
    try:
        await starting
    except asyncio.CancelledError:
        if not stopping.is_set():
            raise
        _log.info("stopped before it served")
        return False
    return True
