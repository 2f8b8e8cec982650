"""Names of topics whose tables are being created or deleted.

Guards one promise: of two callers whose names collide, one is at work at a time, in the order they came. What has no
such name in common goes on side by side.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator, Iterable

from bus.cluster_metadata.names import collision_key


class TopicNamesInUse:
    def __init__(self) -> None:
        self._locks: dict[str, asyncio.Lock] = {}
        self._users: Counter[str] = Counter()  # of each lock, those that wait included

    @contextlib.asynccontextmanager
    async def hold(self, names: Iterable[str]) -> AsyncIterator[None]:
        """All of `names` at once, until the block ends. Not to be nested."""
        async with contextlib.AsyncExitStack() as stack:
            for key in sorted({collision_key(name) for name in names}):  # in one order, so that no two wait in a circle
                stack.callback(self._leave, key)
                self._users[key] += 1
                await stack.enter_async_context(self._locks.setdefault(key, asyncio.Lock()))
            yield

    def _leave(self, key: str) -> None:
        self._users[key] -= 1
        if not self._users[key]:
            del self._users[key], self._locks[key]
