"""The streams of all clients, and their orderly end."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

from bus.runtime.partitions.fetches import Stopping
from bus.runtime.tasks import TaskScope


class StreamRegistry:
    """The readers of all open streams. After `drain`, which begins `stopping`, nothing more is read; what was read is
    still answered."""

    def __init__(self, stopping: Stopping) -> None:
        self._stopping = stopping
        self._readers = TaskScope("stream")

    def start(self, reader: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        return self._readers.start(reader, name)

    async def drain(self) -> None:
        self._stopping.begin()
        await self._readers.cancel()
