"""Long-poll fetches over several partitions: wait until there is enough, then read, then answer.

Guards two bounds: a response holds about `max_bytes`, and at least one batch even if it is larger; a fetch that waits
costs one event and no thread. Where compaction took records or a repair gave them up, there may be nothing at all up to
the high watermark: then a fetch waits for more as if that were lower.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from bus.errors import ErrorCode, RecordsDamaged, Refused, StorageDamaged, StorageFault
from bus.model import TopicPartition
from bus.partition_log.reads import Readable
from bus.runtime.partition import Partition, ReadResult

_log = logging.getLogger(__name__)

DEFAULT_PARTITION_BYTES_MAX = 1024 * 1024


@dataclass(frozen=True, slots=True)
class FetchPosition:
    partition: TopicPartition
    topic_id: str  # empty: not checked
    offset: int
    bytes_max: int
    current_leader_epoch: int | None


@dataclass(frozen=True, slots=True)
class FetchWish:
    positions: Sequence[FetchPosition]
    wait_ms_max: int
    bytes_min: int
    bytes_max: int


FetchResult = ReadResult | Refused
FindPartition = Callable[[TopicPartition, str], "Partition | Refused"]


async def fetch(
    wish: FetchWish, find_partition: FindPartition, draining: asyncio.Event
) -> list[tuple[TopicPartition, FetchResult]]:
    """One result a position, in the order of `wish`. Returns early if anything is refused or `draining` is set."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + wish.wait_ms_max / 1000
    wake = asyncio.Event()
    waited_on: list[Partition] = []
    try:
        while True:
            wake.clear()
            decisions = [_decide(position, find_partition) for position in wish.positions]
            is_refused = any(isinstance(decision, Refused) for decision in decisions)
            remaining = deadline - loop.time()
            is_over = is_refused or draining.is_set() or remaining <= 0 or wish.bytes_min <= 0
            has_enough = _has_enough(decisions, wish.bytes_min)
            if is_over or has_enough:
                results = await _read(wish, decisions)
                if is_over or any(isinstance(result, Refused) or result.batches for _, result in results):
                    return results
            if not waited_on:
                waited_on = [decision[0] for decision in decisions if not isinstance(decision, Refused)]
                for partition in waited_on:
                    partition.add_reader(wake)
                if has_enough:
                    continue  # what was committed while the files were read woke nobody
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(wake.wait(), remaining)
    finally:
        for partition in waited_on:
            partition.remove_reader(wake)


Decision = tuple[Partition, Readable]


def _decide(position: FetchPosition, find_partition: FindPartition) -> Decision | Refused:
    partition = find_partition(position.partition, position.topic_id)
    if isinstance(partition, Refused):
        return partition
    decision = partition.decide_fetch(position.offset, position.current_leader_epoch)
    return decision if isinstance(decision, Refused) else (partition, decision)


def _has_enough(decisions: Sequence[Decision | Refused], bytes_min: int) -> bool:
    found = 0
    for decision in decisions:
        if isinstance(decision, Refused):
            continue
        partition, readable = decision
        found += partition.bytes_available(readable, max(1, bytes_min - found))
        if found >= bytes_min:
            return True
    return found >= bytes_min


async def _read(wish: FetchWish, decisions: Sequence[Decision | Refused]) -> list[tuple[TopicPartition, FetchResult]]:
    results: list[tuple[TopicPartition, FetchResult]] = []
    bytes_left = wish.bytes_max
    for position, decision in zip(wish.positions, decisions, strict=True):
        if isinstance(decision, Refused):
            results.append((position.partition, decision))
            continue
        partition, readable = decision
        bytes_max = min(position.bytes_max, bytes_left)
        if bytes_max <= 0:
            readable = Readable(readable.offset, readable.offset)
        result: FetchResult
        try:
            result = await partition.read(readable, bytes_max)
            if not isinstance(result, Refused):
                bytes_left -= sum(batch.size_bytes for batch in result.batches)
        except RecordsDamaged as damage:
            # Kafka's word for it: a consumer does not wait for these records to come back, but tells its user.
            _log.error("records cannot be read: %s", damage, extra=_fields(position.partition))
            result = Refused(ErrorCode.CORRUPT_MESSAGE, f"{position.partition}: {damage}")
        except StorageDamaged as damage:
            partition.stop(ErrorCode.KAFKA_STORAGE_ERROR, str(damage))
            result = Refused(ErrorCode.KAFKA_STORAGE_ERROR, f"{position.partition}: {damage}")
        except StorageFault as fault:
            _log.error("read failed: %s", fault, extra=_fields(position.partition))
            result = Refused(ErrorCode.KAFKA_STORAGE_ERROR, f"{position.partition}: {fault}")
        results.append((position.partition, result))
    return results


def _fields(partition: TopicPartition) -> dict[str, object]:
    return {"topic": partition.topic, "partition": partition.partition}
