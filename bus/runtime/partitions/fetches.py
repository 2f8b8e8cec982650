"""Long-poll fetches over several partitions: wait until there is enough, then read, then answer.

Guards three bounds: a response holds at most the bytes that the caller reserves, as it counts them, and at least one
batch even if it is larger; a fetch that waits costs one event and no thread; and a fetch of thousands of partitions
looks at them in slices (loop_shares.py). Where compaction took records or a repair gave them up, there may be nothing
at all up to the high watermark: then a fetch waits for more as if that were lower. It also waits for what its reader
knows of and this broker does not yet (`NotYet`), and refuses that when the wait is over.
"""

from __future__ import annotations

import asyncio
import contextlib
import enum
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from bus.errors import Refused, StorageFault
from bus.model import LogBatch, TopicPartition
from bus.partition_log.reads import NotYet, Readable
from bus.runtime.loop_shares import LoopShare, LoopShares
from bus.runtime.partitions.partition import ReadResult

DEFAULT_PARTITION_BYTES_MAX = 1024 * 1024


class FetchPosition(NamedTuple):  # a tuple: one is made for each partition of each fetch
    partition: TopicPartition
    topic_id: str  # empty: not checked
    offset: int
    bytes_max: int
    current_leader_epoch: int | None
    seen_version: int | None = None  # the newest Delta version that the reader was told of


class Fetchable(Protocol):
    """A partition as a fetch reads it, on its leader or on a follower: see `Partition`."""

    def decide_fetch(
        self, offset: int, current_leader_epoch: int | None, seen_version: int | None = None
    ) -> Readable | NotYet | Refused: ...

    def bytes_available(self, readable: Readable, enough: int) -> int: ...

    async def read(self, readable: Readable, max_bytes: int) -> ReadResult | Refused: ...

    def refuse_read(self, fault: StorageFault) -> Refused: ...

    def add_reader(self, event: asyncio.Event) -> None: ...

    def remove_reader(self, event: asyncio.Event) -> None: ...


class FitBatches(Protocol):
    def __call__(
        self, batches: Sequence[LogBatch], bytes_max: int, *, is_first: bool
    ) -> tuple[Sequence[LogBatch], int]: ...


def fit_by_size(batches: Sequence[LogBatch], bytes_max: int, *, is_first: bool) -> tuple[Sequence[LogBatch], int]:
    """The first of `batches` that are at most `bytes_max` large, and their size."""
    size = 0
    for position, batch in enumerate(batches):
        if size + batch.size_bytes > bytes_max and not (is_first and position == 0):
            return batches[:position], size
        size += batch.size_bytes
    return batches, size


@dataclass(frozen=True, slots=True)
class FetchWish:
    """`reserve` is called once there is something to read and returns how many bytes the answer may have; `release` is
    called if nothing was read after all. `fit` returns the batches of a partition that have room, and their size; the
    first batch of an answer always has room."""

    positions: Sequence[FetchPosition]
    wait_ms_max: int
    bytes_min: int
    reserve: Callable[[], int]
    release: Callable[[], None] = lambda: None
    fit: FitBatches = fit_by_size


class FetchEnd(enum.Enum):
    """Why a fetch did not wait any longer."""

    ENOUGH = "enough bytes"
    NO_WAIT = "no wait asked for"
    TIME = "its longest wait"
    ERROR = "an error"
    STOPPING = "the stop of the broker"


@dataclass(slots=True)
class FetchTimes:
    """Where the time of one fetch went, by the caller's clock; `fetch` adds to it. The rest went to other work of the
    event loop."""

    now_ms: Callable[[], float]
    waited_ms: float = 0.0
    read_ms: float = 0.0
    end: FetchEnd = FetchEnd.ENOUGH


class Stopping:
    """Begins once, when the broker is about to stop."""

    def __init__(self) -> None:
        self.has_begun = False
        self._waiting: dict[asyncio.Event, None] = {}

    def begin(self) -> None:
        self.has_begun = True
        for wake in self._waiting:
            wake.set()

    @contextlib.contextmanager
    def waking(self, wake: asyncio.Event) -> Iterator[None]:
        """`wake` is set if stopping begins in this block. If it began before, only `has_begun` says so."""
        self._waiting[wake] = None
        try:
            yield
        finally:
            self._waiting.pop(wake, None)


FetchResult = ReadResult | Refused
FindPartition = Callable[[TopicPartition, str], "Fetchable | Refused"]
Prove = Callable[[], Awaitable[Refused | None]]


async def fetch(
    wish: FetchWish,
    find_partition: FindPartition,
    prove: Prove,
    stopping: Stopping,
    shares: LoopShares | None = None,
    times: FetchTimes | None = None,
) -> list[tuple[TopicPartition, FetchResult]]:
    """One result per position, in the order of `wish`. Answers early after a refusal or when `stopping` begins. `prove`
    is awaited before it is decided what may be read, and says why nothing may be."""
    wake = asyncio.Event()
    with stopping.waking(wake):
        return await _fetch(
            wish, find_partition, prove, stopping, shares or LoopShares(), times or FetchTimes(lambda: 0.0), wake
        )


async def _fetch(
    wish: FetchWish,
    find_partition: FindPartition,
    prove: Prove,
    stopping: Stopping,
    shares: LoopShares,
    times: FetchTimes,
    wake: asyncio.Event,
) -> list[tuple[TopicPartition, FetchResult]]:
    is_late = wish.wait_ms_max <= 0

    def give_up() -> None:
        nonlocal is_late
        is_late = True
        wake.set()

    timer = asyncio.get_running_loop().call_later(wish.wait_ms_max / 1000, give_up)
    waited_on: dict[Fetchable, None] = {}
    try:
        while True:
            wake.clear()
            unproved = await prove()
            share = shares.begin()
            decisions, has_enough = await _decide_all(wish, unproved, find_partition, share)
            is_refused = any(isinstance(decision, Refused) for decision in decisions)
            end = _find_end(wish, is_refused=is_refused, is_stopping=stopping.has_begun, is_late=is_late)
            if end is not None or has_enough:
                began_ms = times.now_ms()
                results = await _read(wish, decisions, share, is_late=end in _LATE)
                times.read_ms += times.now_ms() - began_ms
                if end is None and any(isinstance(result, Refused) for _, result in results):
                    end = FetchEnd.ERROR
                if end is not None or any(not isinstance(result, Refused) and result.batches for _, result in results):
                    times.end = end or FetchEnd.ENOUGH
                    return results
                wish.release()
            found = dict.fromkeys(decision[0] for decision in decisions if not isinstance(decision, Refused))
            if found.keys() - waited_on.keys():  # a partition that has another leader now is another one
                for partition in found:
                    partition.add_reader(wake)
                waited_on |= found
                if has_enough or share.wait_count:
                    continue  # a commit while the files were read, or the partitions were looked at, set no event
            began_ms = times.now_ms()
            await wake.wait()
            times.waited_ms += times.now_ms() - began_ms
    finally:
        timer.cancel()
        for partition in waited_on:
            partition.remove_reader(wake)


def _find_end(wish: FetchWish, *, is_refused: bool, is_stopping: bool, is_late: bool) -> FetchEnd | None:
    """Why the fetch is answered now even if there is nothing to read; None: it is not."""
    if is_refused:
        return FetchEnd.ERROR
    if is_stopping:
        return FetchEnd.STOPPING
    if wish.bytes_min <= 0 or wish.wait_ms_max <= 0:
        return FetchEnd.NO_WAIT
    return FetchEnd.TIME if is_late else None


# Ends at which a partition that is not known so far is refused: no more comes.
_LATE = (FetchEnd.NO_WAIT, FetchEnd.TIME, FetchEnd.STOPPING)
_NOTHING = ReadResult((), -1, -1, -1)

Decision = tuple[Fetchable, Readable | NotYet]


def _decide(position: FetchPosition, find_partition: FindPartition) -> Decision | Refused:
    partition = find_partition(position.partition, position.topic_id)
    if isinstance(partition, Refused):
        return partition
    decision = partition.decide_fetch(position.offset, position.current_leader_epoch, position.seen_version)
    return decision if isinstance(decision, Refused) else (partition, decision)


async def _decide_all(
    wish: FetchWish, unproved: Refused | None, find_partition: FindPartition, share: LoopShare
) -> tuple[Sequence[Decision | Refused], bool]:
    """What may be read of each partition, and whether that is as much as was asked for."""
    decisions: list[Decision | Refused] = []
    found = 0
    for position in wish.positions:
        if share.is_used_up:
            await share.wait()
        decision = unproved or _decide(position, find_partition)
        decisions.append(decision)
        if not isinstance(decision, Refused) and found < wish.bytes_min:
            partition, readable = decision
            if isinstance(readable, NotYet):
                continue
            found += partition.bytes_available(readable, wish.bytes_min - found)
    return decisions, found >= wish.bytes_min


async def _read(
    wish: FetchWish, decisions: Sequence[Decision | Refused], share: LoopShare, *, is_late: bool
) -> list[tuple[TopicPartition, FetchResult]]:
    """`is_late`: what is not known so far is refused, and otherwise it has nothing to say."""
    results: list[tuple[TopicPartition, FetchResult]] = []
    bytes_left = wish.reserve()
    is_first = True
    for position, decision in zip(wish.positions, decisions, strict=True):
        if share.is_used_up:
            await share.wait()
        if isinstance(decision, Refused):
            results.append((position.partition, decision))
            continue
        partition, readable = decision
        if isinstance(readable, NotYet):
            results.append((position.partition, readable.refused if is_late else _NOTHING))
            continue
        if bytes_left <= 0 and not is_first:
            readable = Readable(readable.offset, readable.offset)
        result: FetchResult
        try:
            result = await partition.read(readable, max(1, min(position.bytes_max, bytes_left)))
            if not isinstance(result, Refused) and result.batches:
                batches, size = wish.fit(result.batches, bytes_left, is_first=is_first)
                if len(batches) < len(result.batches):
                    result = result._replace(batches=batches)
                bytes_left -= size
                is_first = is_first and not batches
        except StorageFault as fault:
            result = partition.refuse_read(fault)
        results.append((position.partition, result))
    return results
