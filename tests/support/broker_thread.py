"""A broker inside the test's process, on a thread of its own: quick to start, and its state can be looked at."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

from bus.broker import Broker
from bus.ports import Clock, Storage
from bus.settings.broker import BrokerConfig

T = TypeVar("T")
_loops: WeakKeyDictionary[Broker, asyncio.AbstractEventLoop] = WeakKeyDictionary()


def loop_of(broker: Broker) -> asyncio.AbstractEventLoop:
    return _loops[broker]


def run_on(broker: Broker, work: Coroutine[Any, Any, T]) -> T:
    """On the event loop of a running broker."""
    return asyncio.run_coroutine_threadsafe(work, loop_of(broker)).result(timeout=50)


@contextmanager
def running_broker(
    root: Path | str,
    *,
    config: BrokerConfig | None = None,
    storage: Storage | None = None,
    clock: Clock | None = None,
) -> Iterator[Broker]:
    """Serves until the block ends. `broker.port` is that of the first listener on 127.0.0.1: a free one, unless the
    config has one."""
    config = config or BrokerConfig()
    has_port = bool(config.listeners) or config.listen != BrokerConfig().listen
    settings = replace(config, root=str(root), listen=config.listen if has_port else "127.0.0.1:0")
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="broker")
    thread.start()
    try:

        async def start() -> Broker:
            broker = Broker(settings, storage=storage, clock=clock)
            await broker.start()
            return broker

        broker = asyncio.run_coroutine_threadsafe(start(), loop).result(timeout=50)
        _loops[broker] = loop
        try:
            yield broker
        finally:
            asyncio.run_coroutine_threadsafe(broker.stop(), loop).result(timeout=50)
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join(timeout=50)
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.close()
