"""What requests take in memory until the broker is done with them, shared out by client.

A request counts from when it is read until all of its records are committed or dropped, whether it is answered before
(acks 0 and 1), or its client has gone, or does not read the answer. Guards two promises: all requests together take
about `bytes_max`; and no client fills it: each may have as much as is still free, so that one greedy client leaves half
of it to the others, and twelve of them leave a thirteenth (dynamic thresholds, Choudhury and Hahne 1998).
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Hashable, Iterator

# A client that has no more than this part of it is never held back by others.
_SHARE_MIN = 1 / 1024


class RequestMemory:
    """For one event loop. Clients are told apart by any value. `overdraft_bytes`: what a client may have beyond its
    share, of requests that had been read when the share was used up."""

    def __init__(self, bytes_max: int, overdraft_bytes: int = 0) -> None:
        self._bytes_max = bytes_max
        self._overdraft_bytes = overdraft_bytes
        self._bytes = 0
        self._bytes_of: dict[Hashable, int] = {}
        # By client, each in the order they came: what others drop costs a look at each client, not at each stream.
        self._waiting: dict[Hashable, dict[asyncio.Future[None], None]] = {}

    def bytes_left(self, client: Hashable) -> int:
        """How much more the client may have now."""
        own = self._bytes_of.get(client, 0)
        return max(int(self._bytes_max * _SHARE_MIN) + 1, self._bytes_max - self._bytes) - own

    def has_room(self, client: Hashable) -> bool:
        """It may take one more request, of any size."""
        return self.bytes_left(client) > 0

    def is_overdrawn(self, client: Hashable) -> bool:
        """It has so much more than its share that the next request is refused, though it has been read. A client of a
        few streams never has: each waits for room before it is read on."""
        return self.bytes_left(client) < -self._overdraft_bytes

    def hold(self, client: Hashable, size_bytes: int) -> Held:
        held = Held(self, client)
        held.grow_to(size_bytes)
        return held

    @contextlib.contextmanager
    def holding(self, client: Hashable, size_bytes: int) -> Iterator[None]:
        """In this block."""
        held = self.hold(client, size_bytes)
        try:
            yield
        finally:
            held.drop()

    def add(self, client: Hashable, size_bytes: int) -> None:
        self._bytes += size_bytes
        own = self._bytes_of.get(client, 0) + size_bytes
        if own:
            self._bytes_of[client] = own
        else:
            self._bytes_of.pop(client, None)
        if size_bytes < 0 and self._waiting:
            self._call_those_with_room()

    async def wait_for_room(self, client: Hashable) -> None:
        """First come, first served, among those who may."""
        while not self.has_room(client):
            called: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.setdefault(client, {})[called] = None
            try:
                await called
            finally:
                self._leave(client, called)

    def _call_those_with_room(self) -> None:
        for client in [client for client in self._waiting if self.has_room(client)]:
            for called in self._waiting.pop(client):
                if not called.done():
                    called.set_result(None)

    def _leave(self, client: Hashable, called: asyncio.Future[None]) -> None:
        line = self._waiting.get(client, {})
        line.pop(called, None)
        if not line:
            self._waiting.pop(client, None)


class Held:
    """What one request takes, until each of its users has dropped it: the call, and each batch that waits."""

    __slots__ = ("_memory", "_size_bytes", "_users", "client")

    def __init__(self, memory: RequestMemory, client: Hashable) -> None:
        self._memory = memory
        self.client = client
        self._size_bytes = 0
        self._users = 1

    def grow_to(self, size_bytes: int) -> None:
        if size_bytes > self._size_bytes:
            self._memory.add(self.client, size_bytes - self._size_bytes)
            self._size_bytes = size_bytes

    def use(self) -> None:
        self._users += 1

    def drop(self) -> None:
        self._users -= 1
        if not self._users:
            self._memory.add(self.client, -self._size_bytes)
            self._size_bytes = 0
