"""A broker: the only place where adapters meet rules.

`run_broker` serves one root until it is told to stop. SIGTERM and SIGINT stop it in order: nothing new is accepted,
commits in flight are finished and answered, the root is released. A second signal exits at once; that loses nothing
that was acknowledged either, since an acknowledged record is on disk. A broker whose root was removed, or made again by
another one, stops by itself.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import signal
import time
import uuid
from collections.abc import Callable

from bus.broker_api.broker_api import BrokerApi
from bus.config.broker import BrokerConfig
from bus.errors import RootLost, StorageFault, count_of
from bus.grpc_api.server.server import BusServer
from bus.model import BrokerEndpoint
from bus.ports import Clock, Storage
from bus.process_tuning import tune_process
from bus.runtime.blocking import BlockingCalls
from bus.runtime.cluster import Cluster
from bus.runtime.coordinators.groups import GroupCoordinator
from bus.runtime.partitions.fetches import Stopping
from bus.runtime.tasks import TaskScope
from bus.storage_delta.root import open_storage

_log = logging.getLogger(__name__)

_ROOT_CHECK_INTERVAL_S = 1.0


class SystemClock:
    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic_ms(self) -> float:
        return time.monotonic_ns() / 1_000_000


class Broker:
    """Serves one root on one address. `start`, then `stop`; both once."""

    def __init__(self, config: BrokerConfig, *, clock: Clock | None = None, storage: Storage | None = None) -> None:
        self._config = config
        self._clock = clock or SystemClock()
        self._storage = storage
        self._stopping = Stopping()
        self._server = BusServer(config, self._stopping)
        self._calls = BlockingCalls(
            config.num_io_threads, clock=self._clock, maintenance_threads=config.log_cleaner_threads
        )
        self._tasks = TaskScope("broker")
        self._coordinator: GroupCoordinator | None = None
        self.port = 0

    async def start(self) -> None:
        """Raises `AddressInUse`, `RootInUse`, `RootNotUsable` or another `StorageFault`; then nothing is left open."""
        started = time.monotonic()
        self.port = self._server.bind()
        cluster: Cluster | None = None
        try:
            address = self._config.advertised_address(self.port)
            if self._storage is None:
                holder = f"broker {self._config.broker_id} at {address}, pid {os.getpid()}"
                self._storage = open_storage(self._config.root, holder=holder)
            self.cluster = cluster = Cluster(
                self._storage,
                self._config,
                BrokerEndpoint(self._config.broker_id, address.host, address.port),
                clock=self._clock,
                new_topic_id=lambda: str(uuid.uuid4()),
                calls=self._calls,
                tasks=self._tasks,
            )
            await self.cluster.start()
            self._coordinator = GroupCoordinator(
                self.cluster,
                self._config,
                clock=self._clock,
                calls=self._calls,
                tasks=self._tasks,
                new_uuid=lambda: str(uuid.uuid4()),
            )
            self._coordinator.start()
            api = BrokerApi(
                cluster,
                self._coordinator,
                self._config,
                clock=self._clock,
                calls=self._calls,
                stopping=self._stopping,
            )
            await self._server.start(api)
        except BaseException:
            if self._coordinator is not None:
                self._coordinator.close()
            await self._tasks.cancel()
            if cluster is not None:
                await cluster.end_changes()
            self._close()
            raise
        _log.info(
            "serving %s on %s: %s, ready in %.2f s",
            self._storage.root_url,
            address,
            count_of(len(self.cluster.state.topics), "topic"),
            time.monotonic() - started,
        )

    async def wait_root_lost(self) -> RootLost:
        """Between `start` and `stop`. Returns once the root was removed or made again; nothing is written to it since
        then, so all that is left to do is to stop."""
        assert self._storage is not None
        while True:
            await asyncio.sleep(_ROOT_CHECK_INTERVAL_S)
            try:
                await self._calls.control(self._storage.check_held)
            except RootLost as lost:
                return lost
            except StorageFault as fault:
                _log.warning("whether the root is still held cannot be told: %s", fault)

    async def stop(self) -> None:
        if self._coordinator is not None:
            self._coordinator.close()
        await self._server.stop()
        await self.cluster.end_changes()
        await self.cluster.end_maintenance()
        await self._tasks.join()
        self._close()
        _log.info("stopped")

    def _close(self) -> None:
        self._calls.close()
        if self._storage is not None:
            self._storage.close()


def run_broker(config: BrokerConfig, on_ready: Callable[[Broker], None] | None = None) -> None:
    """Serve until SIGTERM or SIGINT. Raises what `Broker.start` raises, and `RootLost` once the root is lost."""
    tune_process()
    asyncio.run(_serve(config, on_ready))


async def _serve(config: BrokerConfig, on_ready: Callable[[Broker], None] | None) -> None:
    broker = Broker(config)
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()

    def on_signal(name: str) -> None:
        if stopping.is_set():
            _log.warning("second signal (%s): exiting at once", name)
            os._exit(1)
        _log.info("%s: finishing the commits in flight, then stopping", name)
        stopping.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, on_signal, number.name)
    await broker.start()
    # What is there now stays: a collection that goes through all of it holds the loop for a tenth of a second and more.
    gc.collect()
    gc.freeze()
    try:
        if on_ready is not None:
            on_ready(broker)
        signalled, lost = loop.create_task(stopping.wait()), loop.create_task(broker.wait_root_lost())
        await asyncio.wait([signalled, lost], return_when=asyncio.FIRST_COMPLETED)
        signalled.cancel()
        lost.cancel()
        if lost.done():
            _log.critical("%s; the broker stops", lost.result())
            raise lost.result()
    finally:
        await broker.stop()
