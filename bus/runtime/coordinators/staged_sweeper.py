"""Staged batches that no transaction needs any more: what a late producer, a crash or a deposed leader left behind.

Looks through the partitions that this broker leads, now and then. Guards one promise: nothing of a transaction that
may still be committed is deleted. So a folder goes only if its coordinator has all transactions in memory and says that
this one is not open, this leader has no batch of it under way, and it was not written to for
transaction.max.timeout.ms: its first batch may be there before the coordinator knows of it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from bus.cluster_metadata.names import is_internal_topic
from bus.errors import Refused, StorageFault
from bus.ports import StagingKey
from bus.runtime.partitions.partition import Partition
from bus.runtime.tasks import TaskScope
from bus.transactions.state import ProducerIdentity

_log = logging.getLogger(__name__)

_INTERVAL_S = 600.0
# After a start, when the partitions are open.
_FIRST_S = 60.0

OpenTransactions = Callable[[int], Awaitable[frozenset[ProducerIdentity] | Refused]]


class StagedSweeper:
    """`partitions` are those that are led here. `find_open` asks the coordinator of a partition of
    `__transaction_state`. What was written less than `age_min_ms` ago, by the time of retention, stays."""

    def __init__(
        self,
        partitions: Callable[[], list[Partition]],
        find_open: OpenTransactions,
        *,
        age_min_ms: int,
        now_ms: Callable[[], int],
        tasks: TaskScope,
    ) -> None:
        self._partitions = partitions
        self._find_open = find_open
        self._age_min_ms = age_min_ms
        self._now_ms = now_ms
        self._tasks = tasks
        self._sweeping: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._sweeping = self._tasks.start(self._sweep_now_and_then(), "transactions/staged")

    def stop(self) -> None:
        if self._sweeping is not None:
            self._sweeping.cancel()

    async def _sweep_now_and_then(self) -> None:
        await asyncio.sleep(min(_FIRST_S, _INTERVAL_S))
        while True:
            try:
                await self.sweep()
            except Exception:
                _log.exception("staged batches could not be looked through; the next time will do it")
            await asyncio.sleep(_INTERVAL_S)

    async def sweep(self) -> int:
        """How many transactions' batches were deleted. What cannot be told now is left to the next time."""
        found: dict[int, list[tuple[Partition, StagingKey]]] = {}
        for partition in self._partitions():
            for key in await self._find_old(partition):
                found.setdefault(key.coordinator_partition, []).append((partition, key))
        count = 0
        for number, staged in found.items():
            still_open = await self._find_open(number)
            if isinstance(still_open, Refused):
                continue
            for partition, key in staged:
                if ProducerIdentity(key.producer_id, key.producer_epoch) not in still_open:
                    count += await self._discard(partition, key)
        return count

    async def _find_old(self, partition: Partition) -> list[StagingKey]:
        if is_internal_topic(partition.name.topic) or partition.stopped is not None:
            return []
        try:
            staged = await partition.transactions.list_staged()
        except StorageFault as fault:
            _log.warning("%s: what is staged cannot be listed for now: %s", partition.name, fault)
            return []
        old_ms = self._now_ms() - self._age_min_ms
        return [key for key, found in staged if found.newest_ms < old_ms and not partition.transactions.knows(key)]

    async def _discard(self, partition: Partition, key: StagingKey) -> bool:
        try:
            is_done = await partition.transactions.discard(key)
        except StorageFault as fault:
            _log.warning("%s: what is left of %s cannot be deleted for now: %s", partition.name, key, fault)
            return False
        if is_done:
            _log.info("%s: staged batches that no transaction needs are deleted: %s", partition.name, key)
        return is_done
