"""What transactions have left in partitions and do not need any more: staged batches that a late producer, a crash or a
deposed leader left behind, and proofs of transactional ids that have expired.

Looks through the partitions that this broker leads, now and then. Guards one promise: nothing goes that a transaction
may still need. So a batch goes only if its coordinator has all transactions in memory and says that this one is not
open, this leader has no batch of it under way, and none has come for transaction.max.timeout.ms: its first batch may be
there before the coordinator knows of it. A proof goes only if no transaction of its id has ended there for
transactional.id.expiration.ms, the coordinator has loaded all ids and does not know this one, and the id has not come
back meanwhile. If it comes back later, its numbers are larger, so none of its transactions is taken for an older one.
Nor does a proof go while the partition has batches that were staged before it: a coordinator that was suspended may yet
have them applied, and the proof may be what says that the number of their transaction is given up.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Protocol

from bus.cluster_metadata.names import is_internal_topic
from bus.errors import Refused, StorageFault
from bus.ports import StagingKey
from bus.runtime.partitions.open_transactions import Idle
from bus.runtime.partitions.partition import Partition
from bus.runtime.tasks import TaskScope
from bus.runtime.transaction_calls import Traces
from bus.transactions.state import ProducerIdentity

_log = logging.getLogger(__name__)

_INTERVAL_S = 600.0
# After a start, when the partitions are open.
_FIRST_S = 60.0
# A coordinator is asked about so many ids at a time.
_ASKED_IDS_MAX = 1_000


class Coordinators(Protocol):
    """Of transactions, wherever they are."""

    def partition_of(self, transactional_id: str) -> int | Refused:
        """Of `__transaction_state`."""
        ...

    async def find_needed(self, coordinator_partition: int, traces: Traces) -> Traces | Refused:
        """Of `traces` what may still be needed. Refused unless the coordinator has loaded that partition."""
        ...


class StagedSweeper:
    """`partitions` are those that are led here. Staged batches that were written less than `age_min_ms` ago, and proofs
    that came less than `id_age_min_ms` ago, by the time of retention, stay."""

    def __init__(
        self,
        partitions: Callable[[], list[Partition]],
        coordinators: Coordinators,
        *,
        age_min_ms: int,
        id_age_min_ms: int,
        now_ms: Callable[[], int],
        tasks: TaskScope,
    ) -> None:
        self._partitions = partitions
        self._coordinators = coordinators
        self._age_min_ms = age_min_ms
        self._id_age_min_ms = id_age_min_ms
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
                await self.forget_expired()
            except Exception:
                _log.exception("what transactions have left could not be looked through; the next time will do it")
            await asyncio.sleep(_INTERVAL_S)

    async def sweep(self) -> int:
        """How many transactions' batches were deleted. What cannot be told now is left to the next time."""
        found: dict[int, list[tuple[Partition, StagingKey, Idle]]] = {}
        for partition in self._partitions():
            for key, idle in await self._find_old(partition):
                found.setdefault(key.coordinator_partition, []).append((partition, key, idle))
        count = 0
        for number, staged in found.items():
            rows = frozenset(_rows_of(key) for _, key, _ in staged)
            needed = await self._coordinators.find_needed(number, Traces(rows=rows))
            if isinstance(needed, Refused):
                continue
            for partition, key, idle in staged:
                if _rows_of(key) not in needed.rows:
                    count += await self._discard(partition, key, idle)
        return count

    async def forget_expired(self) -> int:
        """How many proofs of expired ids were given up: they leave the log with the partition's next commits. What
        cannot be told now is left to the next time."""
        count = 0
        for partition in self._partitions():
            if is_internal_topic(partition.name.topic) or partition.stopped is not None:
                continue
            old_ms = self._now_ms() - self._id_age_min_ms
            ended = await partition.transactions.find_old_proofs(updated_before_ms=old_ms)
            if isinstance(ended, Refused) or not ended or await self._find_staged(partition, before_ms=old_ms) != []:
                continue
            expired = await self._find_unknown(ended)
            refused = await partition.transactions.forget_proofs({each: ended[each] for each in expired})
            count += 0 if refused is not None else len(expired)
        return count

    async def _find_unknown(self, transactional_ids: Iterable[str]) -> list[str]:
        """Those that their coordinators do not know, as far as these can tell."""
        by_number: dict[int, list[str]] = {}
        for each in transactional_ids:
            number = self._coordinators.partition_of(each)
            if not isinstance(number, Refused):
                by_number.setdefault(number, []).append(each)
        unknown: list[str] = []
        for number, asked in by_number.items():
            for some in _chunks(asked):
                known = await self._coordinators.find_needed(number, Traces(transactional_ids=some))
                if isinstance(known, Refused):
                    break
                unknown += sorted(some - known.transactional_ids)
        return unknown

    async def _find_old(self, partition: Partition) -> list[tuple[StagingKey, Idle]]:
        if is_internal_topic(partition.name.topic) or partition.stopped is not None:
            return []
        staged = await self._find_staged(partition, before_ms=self._now_ms() - self._age_min_ms)
        seen = ((key, partition.open_transactions.look_at(key)) for key in staged or ())
        return [(key, idle) for key, idle in seen if idle is not None]

    async def _find_staged(self, partition: Partition, *, before_ms: int) -> list[StagingKey] | None:
        """The transactions whose newest staged batch is older than that; None if they cannot be listed now."""
        try:
            staged = await partition.transactions.list_staged()
        except StorageFault as fault:
            _log.warning("%s: what is staged cannot be listed for now: %s", partition.name, fault)
            return None
        return [key for key, found in staged if found.newest_ms < before_ms]

    async def _discard(self, partition: Partition, key: StagingKey, idle: Idle) -> bool:
        try:
            is_done = await partition.transactions.discard(key, idle)
        except StorageFault as fault:
            _log.warning("%s: what is left of %s cannot be deleted for now: %s", partition.name, key, fault)
            return False
        if is_done:
            _log.info("%s: staged batches that no transaction needs are deleted: %s", partition.name, key)
        return is_done


def _rows_of(key: StagingKey) -> ProducerIdentity:
    return ProducerIdentity(key.producer_id, key.producer_epoch)


def _chunks(transactional_ids: Iterable[str]) -> Iterator[frozenset[str]]:
    rest = iter(transactional_ids)
    while some := frozenset(islice(rest, _ASKED_IDS_MAX)):
        yield some
