"""How much of produce requests may wait for its answer: on one stream, and on all of them together.

Guards one promise: a client that sends faster than the disk takes, or that does not read its answers, is held back and
fills no memory; nothing more is read from its stream. With many such clients the second bound holds: it is exceeded
by at most one request of each stream.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Generic, Protocol, TypeVar

STREAM_BYTES_MAX = 32 * 1024 * 1024
STREAM_REQUESTS_MAX = 1024


class Sized(Protocol):
    @property
    def size_bytes(self) -> int: ...


RequestT = TypeVar("RequestT", bound=Sized)


class RequestMemory:
    """What all requests take that wait for their answers, against `queued.max.request.bytes`."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._bytes = 0
        self._waiters: deque[asyncio.Future[None]] = deque()

    @property
    def is_full(self) -> bool:
        return self._bytes >= self._bytes_max

    def take(self, size_bytes: int) -> None:
        self._bytes += size_bytes

    def give_back(self, size_bytes: int) -> None:
        self._bytes -= size_bytes
        while self._waiters and not self.is_full:
            waiter = self._waiters.popleft()
            if not waiter.done():
                waiter.set_result(None)

    async def wait_for_room(self) -> None:
        """First come, first served."""
        while self.is_full:
            waiter = asyncio.get_running_loop().create_future()
            self._waiters.append(waiter)
            await waiter


class Window(Generic[RequestT]):
    """What one stream has in flight, in order. `admit` waits while a bound is reached."""

    def __init__(self, memory: RequestMemory) -> None:
        self._memory = memory
        self._queue: asyncio.Queue[RequestT | None] = asyncio.Queue()
        self._room = asyncio.Event()
        self._room.set()
        self._bytes = 0
        self._requests = 0

    async def admit(self, request: RequestT) -> None:
        """Returns when the next one may be read."""
        self._bytes += request.size_bytes
        self._requests += 1
        self._memory.take(request.size_bytes)
        self._queue.put_nowait(request)
        while self._is_full():
            self._room.clear()
            await self._room.wait()
        await self._memory.wait_for_room()

    async def next(self) -> RequestT | None:
        """None after the last one."""
        return await self._queue.get()

    def release(self, request: RequestT) -> None:
        """It is answered."""
        self._bytes -= request.size_bytes
        self._requests -= 1
        self._memory.give_back(request.size_bytes)
        if not self._is_full():
            self._room.set()

    def end(self) -> None:
        """Nothing more is admitted."""
        self._queue.put_nowait(None)

    def close(self) -> None:
        """Nobody is there any more to answer to."""
        self._memory.give_back(self._bytes)
        self._bytes = self._requests = 0

    def _is_full(self) -> bool:
        return self._bytes >= STREAM_BYTES_MAX or self._requests >= STREAM_REQUESTS_MAX
