"""Calls that go away at a chosen await, and a broker without a network for them to be made to."""

from __future__ import annotations

import asyncio
import itertools
import types
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Generator, Iterable
from dataclasses import replace
from typing import Any
from uuid import uuid4

from bus.addresses import Address
from bus.broker import BrokerCore
from bus.grpc_api.server.connections.peer_transport import GrpcTransport
from bus.grpc_api.server.connections.peers import GrpcPeers
from bus.grpc_api.server.guards import StreamRegistry
from bus.grpc_api.server.servicers import BusServicer, ClusterServicer
from bus.platform.system_clock import SystemClock
from bus.ports import Clock
from bus.runtime.blocking import BlockingCalls
from bus.runtime.partitions.fetches import Stopping
from bus.runtime.tasks import LoopShares
from bus.settings.broker import BrokerConfig
from bus.storage_delta.root import open_storage_on
from bus.storage_delta.stores.store import ObjectStore


@types.coroutine
def _cancelled_at(
    coroutine: Coroutine[Any, Any, Any], number: int, is_late: bool
) -> Generator[Any, Any, tuple[Any, int]]:
    """The coroutine's result and the number of its awaits; its task is cancelled in the one of that number."""
    task = asyncio.current_task()
    assert task is not None
    value, error = None, None
    for count in itertools.count():
        try:
            waited = coroutine.send(value) if error is None else coroutine.throw(error)
        except StopIteration as end:
            return end.value, count
        if count == number:
            if is_late and asyncio.isfuture(waited):
                waited.add_done_callback(lambda _: task.cancel())
            else:
                task.cancel()
        try:
            value, error = (yield waited), None
        except BaseException as thrown:
            value, error = None, thrown
    raise AssertionError("the coroutine never ends")


async def cancel_at(coroutine: Coroutine[Any, Any, Any], number: int, *, is_late: bool) -> bool:
    """Run it in a task that is cancelled in await `number`: as soon as it waits, or, if `is_late`, when what it waits
    for is there and has not reached it yet. False if it ended before that await."""

    async def run() -> int:
        _, count = await _cancelled_at(coroutine, number, is_late)
        return count

    try:
        count = await asyncio.create_task(run())
    except asyncio.CancelledError:
        return True
    return count > number


class QuietContext:
    def peer(self) -> str:
        return "ipv4:127.0.0.1:1"

    def time_remaining(self) -> float | None:
        return None

    def invocation_metadata(self) -> tuple[tuple[str, str], ...]:
        return ()

    def add_done_callback(self, callback: Callable[[Any], None]) -> None:
        """The call never ends as gRPC ends one."""

    async def abort(self, code: Any, details: str) -> None:
        raise AssertionError(f"{code}: {details}")


class ReadContext(QuietContext):
    """The context of a client that reads the answers of its stream."""

    def __init__(self) -> None:
        self.answers: list[Any] = []

    async def write(self, answer: Any) -> None:
        self.answers.append(answer)
        await asyncio.sleep(0)


async def _each(requests: Iterable[Any]) -> AsyncIterator[Any]:
    for request in requests:
        yield request
        await asyncio.sleep(0)


class QuietBroker:
    """All of a broker but its server. `start` and `stop`, as often as wanted, on one store."""

    def __init__(self, store: ObjectStore, config: BrokerConfig | None = None, clock: Clock | None = None) -> None:
        self.store = store
        self.config = replace(
            config or BrokerConfig(),
            offsets_topic_num_partitions=2,
            num_partitions=1,
            group_initial_rebalance_delay_ms=0,
        )
        self._clock = clock or SystemClock()
        self.called: set[str] = set()  # of the calls in bus.proto

    async def start(self) -> None:
        stopping = Stopping()
        self.streams = StreamRegistry(stopping)
        self.core = BrokerCore(
            self.config,
            clock=self._clock,
            calls=BlockingCalls(4, clock=self._clock),
            shares=LoopShares(),
            stopping=stopping,
            peers=(peers := GrpcPeers(GrpcTransport())),
            new_uuid=lambda: str(uuid4()),
        )
        self.storage = open_storage_on(self.store)
        api = await self.core.start(self.storage, Address("127.0.0.1", 9094))
        self.cluster, self.coordinator = self.core.cluster, self.core.coordinator
        self.api = api
        self.calls_of = BusServicer(api, self.streams, self.config, peers)
        self.cluster_calls_of = ClusterServicer(api, self.calls_of)

    async def call(self, method: str, request: Any) -> Any:
        """Call a method as gRPC does; return the answer, or those of a stream of answers."""
        self.called.add(method)
        handled = getattr(self.calls_of, method)(request, QuietContext())
        return [answer async for answer in handled] if hasattr(handled, "__aiter__") else await handled

    async def stream(self, method: str, requests: Iterable[Any]) -> list[Any]:
        """The answers to the requests of a stream."""
        self.called.add(method)
        context = ReadContext()
        await getattr(self.calls_of, method)(_each(requests), context)
        return context.answers

    async def stop(self) -> None:
        self.core.begin_stop()
        await self.streams.drain()
        await self.core.stop()


def run_on_broker(store: ObjectStore, do: Callable[[QuietBroker], Awaitable[None]]) -> None:
    """One life of a broker; `do` has it while it serves."""

    async def live() -> None:
        broker = QuietBroker(store)
        await broker.start()
        try:
            await do(broker)
        finally:
            await broker.stop()

    asyncio.run(live())
