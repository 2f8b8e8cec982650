"""Turns at something that few can use at once, shared out by client.

Guards one promise: clients that wait have turns one after another, so one with a thousand requests waits longer, and
the others do not.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import OrderedDict
from collections.abc import AsyncIterator, Hashable


class FairTurns:
    """For one event loop; `turns_max` at once."""

    def __init__(self, turns_max: int) -> None:
        self._free = turns_max
        # By client, in the order in which it came; no line is empty.
        self._waiting: OrderedDict[Hashable, OrderedDict[asyncio.Future[None], None]] = OrderedDict()

    @contextlib.asynccontextmanager
    async def turn(self, client: Hashable) -> AsyncIterator[None]:
        if self._free and not self._waiting:
            self._free -= 1
        else:
            await self._wait(client)
        try:
            yield
        finally:
            self._free += 1
            self._call_next()

    async def _wait(self, client: Hashable) -> None:
        called: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(client, OrderedDict())[called] = None
        self._call_next()
        try:
            await called
        except asyncio.CancelledError:
            if called.done() and not called.cancelled():
                self._free += 1
                self._call_next()
            else:
                self._forget(client, called)
            raise

    def _forget(self, client: Hashable, called: asyncio.Future[None]) -> None:
        """It has gone away before it was called. A line that is long may have passed over it already."""
        line = self._waiting.get(client, OrderedDict())
        line.pop(called, None)
        if not line:
            self._waiting.pop(client, None)

    def _call_next(self) -> None:
        while self._free and self._waiting:
            client, line = next(iter(self._waiting.items()))
            called, _ = line.popitem(last=False)
            if line:
                self._waiting.move_to_end(client)
            else:
                del self._waiting[client]
            if not called.done():
                self._free -= 1
                called.set_result(None)
