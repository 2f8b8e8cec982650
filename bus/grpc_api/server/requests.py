"""Requests and the streams that carry them: ids for the log lines, what ends one, and an orderly end of streams."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Coroutine
from typing import Any

from bus.runtime.tasks import TaskScope


class InvalidArgument(ValueError):
    """A request that says something that no call of its kind can mean; the message names what was expected."""


class BrokerStopping(Exception):
    """The broker goes away before an answer is there."""


class TakesLong(Exception):
    """Raised by what tries to do a request's work on the event loop: it is more than should be done there in one go."""


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
