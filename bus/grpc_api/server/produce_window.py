"""How much of produce requests may wait for its answer on one stream.

Guards one promise: a client that sends faster than the disk takes, or that does not read its answers, is held back and
fills no memory; nothing more is read from its stream.
"""

from __future__ import annotations

import asyncio
from collections.abc import Hashable
from typing import Generic, Protocol, TypeVar

from bus.broker_api.request_memory import RequestMemory

STREAM_BYTES_MAX = 32 * 1024 * 1024
STREAM_REQUESTS_MAX = 1024


class Sized(Protocol):
    @property
    def size_bytes(self) -> int: ...


RequestT = TypeVar("RequestT", bound=Sized)


class Window(Generic[RequestT]):
    """What one stream has in flight, in order. `admit` waits while a bound is reached."""

    def __init__(self, memory: RequestMemory, client: Hashable) -> None:
        self._memory = memory
        self._client = client
        self._queue: asyncio.Queue[RequestT | None] = asyncio.Queue()
        self._room = asyncio.Event()
        self._room.set()
        self._bytes = 0
        self._requests = 0
        self._failure: Exception | None = None

    async def admit(self, request: RequestT) -> None:
        """Returns when the next one may be read."""
        self._bytes += request.size_bytes
        self._requests += 1
        self._queue.put_nowait(request)
        while self._is_full():
            self._room.clear()
            await self._room.wait()
        await self._memory.wait_for_room(self._client)

    async def next(self) -> RequestT | None:
        """None after the last one. Raises the failure that ended the stream, once all before it was taken."""
        request = await self._queue.get()
        if request is None and self._failure is not None:
            raise self._failure
        return request

    def release(self, request: RequestT) -> None:
        """It is answered."""
        self._bytes -= request.size_bytes
        self._requests -= 1
        if not self._is_full():
            self._room.set()

    def end(self, failure: Exception | None = None) -> None:
        """Nothing more is admitted, since all is read or because of `failure`."""
        self._failure = failure
        self._queue.put_nowait(None)

    def _is_full(self) -> bool:
        return self._bytes >= STREAM_BYTES_MAX or self._requests >= STREAM_REQUESTS_MAX
