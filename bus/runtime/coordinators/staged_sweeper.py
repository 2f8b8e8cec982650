"""Deletion of what transactions have left in partitions and do not need any more: staged batches that a late producer,
a crash or a deposed leader left behind, and proofs of transactional ids that have expired.

Looks through the partitions that this broker leads, now and then, and through each one soon after it has begun to lead
it: the leader before may have died before it deleted what it had committed. Guards one promise: nothing goes that a
transaction may still need. So a batch goes only if its coordinator has all transactions in memory, this leader has no
batch of the transaction under way, and one of two things is true. The coordinator says that the transaction has ended:
its id has a later epoch. Or the coordinator knows of no such transaction that is open, and no batch has come for
transaction.max.timeout.ms: the first one may be there before the coordinator knows of it. A proof goes only if no
transaction of its id has ended there for transactional.id.expiration.ms, the coordinator has loaded all ids and does
not know this one, and the id has not come back meanwhile. If it comes back later, its numbers are larger, so none of
its transactions is taken for an older one. Nor does a proof go while the partition has batches that were staged before
it: a coordinator that was suspended may yet have them applied, and the proof may be what says that the number of their
transaction is given up.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Protocol

from bus.cluster_metadata.configs import is_internal_topic
from bus.errors import Refused, StorageFault
from bus.ports import Staged, StagingKey
from bus.runtime.metadata.peers import Traces
from bus.runtime.partitions.open_transactions import Idle
from bus.runtime.partitions.partition import Partition
from bus.runtime.tasks import TaskScope
from bus.transactions.state import ProducerIdentity

_log = logging.getLogger(__name__)

_INTERVAL_S = 600.0
# After a start, when the partitions are open.
_FIRST_S = 60.0
# A partition that was taken over is swept so long afterwards, when its producers have found it.
_LED_S = 10.0
# While a coordinator cannot tell, it is swept again at each look, up to that age.
_LED_S_MAX = 60.0
_LOOK_S = 5.0
# The number of ids in one question to a coordinator.
_IDS_AT_ONCE_MAX = 1_000


class Coordinators(Protocol):
    """The coordinators of transactions, wherever they run."""

    def partition_of(self, transactional_id: str) -> int | Refused:
        """The partition of `__transaction_state`."""
        ...

    async def find_needed(self, coordinator_partition: int, traces: Traces) -> Traces | Refused:
        """Return the part of `traces` that may still be needed. Refused unless the coordinator has loaded that
        partition."""
        ...


@dataclass(frozen=True, slots=True)
class _IdleBatches:
    """Staged batches of a transaction of which none is under way. `is_old`: none has come for `age_min_ms`."""

    partition: Partition
    key: StagingKey
    idle: Idle
    is_old: bool


@dataclass(frozen=True, slots=True)
class _Swept:
    """The outcome of a sweep: how many transactions' batches were deleted. `is_complete`: every partition could be
    listed, and every coordinator could tell."""

    count: int
    is_complete: bool


class StagedSweeper:
    """`partitions` are those that are led here. Staged batches that were written less than `age_min_ms` ago stay unless
    their transaction is known to have ended, and so do proofs that came less than `id_age_min_ms` ago, by the time of
    retention."""

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
        # Since when each partition is led here, by the loop's clock; None once it was swept for that.
        self._led_since_s: dict[Partition, float | None] = {}

    def start(self) -> None:
        self._sweeping = self._tasks.start(self._sweep_now_and_then(), "transactions/staged")

    def stop(self) -> None:
        if self._sweeping is not None:
            self._sweeping.cancel()

    async def _sweep_now_and_then(self) -> None:
        loop = asyncio.get_running_loop()
        due_s = loop.time() + min(_FIRST_S, _INTERVAL_S)
        while True:
            await asyncio.sleep(min(_LOOK_S, max(0.0, due_s - loop.time())))
            is_due = loop.time() >= due_s
            try:
                await self._sweep_newly_led()
                if is_due:
                    await self.sweep()
                    await self.forget_expired()
            except Exception:
                _log.exception("what transactions have left could not be looked through; the next time will do it")
            if is_due:
                due_s = loop.time() + _INTERVAL_S

    async def _sweep_newly_led(self) -> None:
        now_s = asyncio.get_running_loop().time()
        self._led_since_s = {each: self._led_since_s.get(each, now_s) for each in self._partitions()}
        for partition, since_s in list(self._led_since_s.items()):
            if since_s is not None and now_s - since_s >= _LED_S:
                self._led_since_s[partition] = None  # also if the sweep raises: else it would raise at each look
                swept = await self._sweep([partition])
                if not swept.is_complete and now_s - since_s < _LED_S_MAX:
                    self._led_since_s[partition] = since_s

    async def sweep(self) -> int:
        """How many transactions' batches were deleted. What cannot be told now is left to the next time."""
        return (await self._sweep(self._partitions())).count

    async def _sweep(self, partitions: Iterable[Partition]) -> _Swept:
        by_coordinator: dict[int, list[_IdleBatches]] = {}
        is_complete = True
        for partition in partitions:
            idle = await self._find_idle(partition)
            is_complete = is_complete and idle is not None
            for each in idle or ():
                by_coordinator.setdefault(each.key.coordinator_partition, []).append(each)
        count = 0
        for number, batches in by_coordinator.items():
            rows = frozenset(_rows_of(each.key) for each in batches)
            answer = await self._coordinators.find_needed(number, Traces(rows=rows))
            if isinstance(answer, Refused):
                is_complete = False
                continue
            for each in batches:
                row = _rows_of(each.key)
                if row in answer.ended or (each.is_old and row not in answer.rows):
                    count += await self._discard(each.partition, each.key, each.idle)
        return _Swept(count, is_complete)

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
        for number, ids in by_number.items():
            for some in _chunks(ids):
                known = await self._coordinators.find_needed(number, Traces(transactional_ids=some))
                if isinstance(known, Refused):
                    break
                unknown += sorted(some - known.transactional_ids)
        return unknown

    async def _find_idle(self, partition: Partition) -> list[_IdleBatches] | None:
        """Return what is staged there and not under way; None if it cannot be listed now."""
        if is_internal_topic(partition.name.topic) or partition.stopped is not None:
            return []
        before_ms = self._now_ms() - self._age_min_ms
        staged = await self._list_staged(partition)
        if staged is None:
            return None
        return [
            _IdleBatches(partition, key, idle, is_old=one.newest_ms < before_ms)
            for key, one in staged
            if (idle := partition.open_transactions.look_at(key)) is not None
        ]

    async def _find_staged(self, partition: Partition, *, before_ms: int) -> list[StagingKey] | None:
        """The transactions whose newest staged batch is older than that; None if they cannot be listed now."""
        staged = await self._list_staged(partition)
        return None if staged is None else [key for key, found in staged if found.newest_ms < before_ms]

    async def _list_staged(self, partition: Partition) -> Sequence[tuple[StagingKey, Staged]] | None:
        try:
            return await partition.transactions.list_staged()
        except StorageFault as fault:
            _log.warning("%s: what is staged cannot be listed for now: %s", partition.name, fault)
            return None

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
    while some := frozenset(islice(rest, _IDS_AT_ONCE_MAX)):
        yield some
