"""Requests and the streams that carry them: ids for the log lines, and an orderly end of streams at shutdown."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Coroutine
from typing import Any

from bus.runtime.tasks import TaskScope


def new_request_id() -> str:
    return secrets.token_hex(4)


class StreamRegistry:
    """The readers of all open streams. After `drain` nothing more is read; what was read is still answered."""

    def __init__(self) -> None:
        self.draining = asyncio.Event()
        self._readers = TaskScope("stream")

    def start(self, reader: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        return self._readers.start(reader, name)

    async def drain(self) -> None:
        self.draining.set()
        await self._readers.cancel()
