"""The producer ids that this broker may give: what is left of its block, and the next block before that is used up.

Guards two promises: an id is given once, and ids rise: a later one is larger, whichever controller gives it. Blocks are
made durable before the first of their ids is given. A broker that ends loses what was left, and so does one that is the
controller again after another one has given larger ids.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from bus.errors import Refused
from bus.runtime.tasks import TaskScope

# The next block is asked for when a tenth of this one is left, as Kafka does.
_PREFETCH_SHARE = 10


class ProducerIdPool:
    """`allocate` makes the next block durable; the blocks that it gives do not overlap, and rise. `epoch` is that of
    the controller under which ids are given now."""

    def __init__(
        self, allocate: Callable[[], Awaitable[range | Refused]], tasks: TaskScope, *, epoch: Callable[[], int]
    ) -> None:
        self._allocate = allocate
        self._epoch = epoch
        self._block_epoch = -1  # of `_block` and `_next_block`
        self._tasks = tasks
        self._block = range(0)
        self._next_block: range | None = None
        self._prefetch_at = 0
        self._fetch: asyncio.Task[Refused | None] | None = None

    async def take(self) -> int | Refused:
        """An id that was never given. Waits only if the block is used up; cancelling it costs no id."""
        while True:
            self._forget_earlier()
            if self._block:
                break
            if self._next_block is None:
                fetch = self._start_fetch()
                await asyncio.wait([fetch])  # who waits may go, the block comes all the same
                if (refused := fetch.result()) is not None:
                    return refused
                continue  # others waited too, and may have used it up
            self._block, self._next_block = self._next_block, None
            self._prefetch_at = len(self._block) // _PREFETCH_SHARE
        producer_id, self._block = self._block[0], self._block[1:]
        if len(self._block) <= self._prefetch_at and self._next_block is None:
            self._start_fetch()
        return producer_id

    def _forget_earlier(self) -> None:
        """Under an earlier epoch: the controllers since may have given larger ids."""
        epoch = self._epoch()
        if epoch != self._block_epoch:
            self._block, self._next_block, self._block_epoch = range(0), None, epoch

    def _start_fetch(self) -> asyncio.Task[Refused | None]:
        if self._fetch is None:
            self._fetch = self._tasks.start(self._fetch_block(), "producer-ids")
        return self._fetch

    async def _fetch_block(self) -> Refused | None:
        try:
            epoch = self._epoch()
            block = await self._allocate()
            if isinstance(block, Refused):
                return block
            self._forget_earlier()
            if epoch == self._block_epoch:
                self._next_block = block
            return None
        finally:
            self._fetch = None
