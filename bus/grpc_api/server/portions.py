"""Work on many items of one request, done so that the other calls have their turns on the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from itertools import islice
from typing import TypeVar

T = TypeVar("T")


async def portions(items: Iterable[T], count: int) -> AsyncIterator[list[T]]:
    """All items, `count` at a time, with a turn for other calls between two portions."""
    rest = iter(items)
    while portion := list(islice(rest, count)):
        yield portion
        if len(portion) < count:
            return
        await asyncio.sleep(0)
