"""Long-poll fetches over several partitions: wait until there is enough, then read, then answer.

A fetch looks at the entries of a session that are due (fetch_session.py); one that stands alone has a session of its
own. Guards three bounds: a response holds at most the bytes that the caller reserves, as it counts them, and at least
one batch even if it is larger; a fetch that waits costs one event and no thread; and a fetch of thousands of partitions
looks at them in slices (tasks.py). Where compaction took records or a repair gave them up, there may be nothing
at all up to the high watermark: then a fetch waits for more as if that were lower. It also waits for what its reader
knows of and this broker does not yet (`NotYet`), and refuses that when the wait is over.
"""

from __future__ import annotations

import asyncio
import contextlib
import enum
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from bus.errors import Refused, StorageFault
from bus.model import LogBatch
from bus.partition_log.reads import NotYet, Readable
from bus.runtime.partitions.fetch_session import Decision, Entry, FetchPosition, FetchSession, FindPartition
from bus.runtime.partitions.partition import ReadResult
from bus.runtime.tasks import LoopShare, LoopShares

DEFAULT_PARTITION_BYTES_MAX = 1024 * 1024


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
    first batch of an answer always has room. With a `session`, which has taken `positions` in, all of that is asked
    for."""

    positions: Sequence[FetchPosition]
    wait_ms_max: int
    bytes_min: int
    reserve: Callable[[], int]
    release: Callable[[], None] = lambda: None
    fit: FitBatches = fit_by_size
    session: FetchSession | None = None


class FetchEnd(enum.Enum):
    """Why a fetch did not wait any longer."""

    ENOUGH = "enough bytes"
    NO_WAIT = "max_wait_ms or min_bytes of 0"
    TIME = "its longest wait"
    ERROR = "an error"
    STOPPING = "the stop of the broker"


@dataclass(slots=True)
class FetchTimes:
    """The durations within one fetch, by the caller's clock; `fetch` adds to them. The rest went to other work of the
    event loop. `wait_ms_max` and `bytes_min` are those that it went by, which need not be those of the request."""

    now_ms: Callable[[], float]
    wait_ms_max: int = 0
    bytes_min: int = 0
    proved_ms: float = 0.0  # the time until the broker had proof that it leads its partitions
    waited_ms: float = 0.0
    read_ms: float = 0.0
    end: FetchEnd = FetchEnd.ENOUGH


class Stopping:
    """A flag that is set once, when the broker begins to stop."""

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
Prove = Callable[[], Awaitable[Refused | None]]


async def fetch(
    wish: FetchWish,
    find_partition: FindPartition,
    prove: Prove,
    stopping: Stopping,
    shares: LoopShares | None = None,
    times: FetchTimes | None = None,
) -> list[tuple[FetchPosition, FetchResult]]:
    """One result per position, in the order of `wish`; in a session, one of each partition of which there is anything
    to tell. Answers early after a refusal or when `stopping` begins. `prove` is awaited before it is decided what may
    be read, and says why nothing may be."""
    shares, times = shares or LoopShares(), times or FetchTimes(lambda: 0.0)
    session = FetchSession() if wish.session is None else wish.session
    try:
        with stopping.waking(session.wake):
            if wish.session is None:
                await session.put_all(wish.positions, shares.begin())
            return await _fetch(wish, session, find_partition, prove, stopping, shares, times)
    finally:
        if wish.session is None:
            session.close()


async def _fetch(
    wish: FetchWish,
    session: FetchSession,
    find_partition: FindPartition,
    prove: Prove,
    stopping: Stopping,
    shares: LoopShares,
    times: FetchTimes,
) -> list[tuple[FetchPosition, FetchResult]]:
    is_late, wake = wish.wait_ms_max <= 0, session.wake
    times.wait_ms_max, times.bytes_min = wish.wait_ms_max, wish.bytes_min

    def give_up() -> None:
        nonlocal is_late
        is_late = True
        wake.set()

    timer = asyncio.get_running_loop().call_later(wish.wait_ms_max / 1000, give_up)
    try:
        while True:
            wake.clear()
            began_ms = times.now_ms()
            unproved = await prove()
            times.proved_ms += times.now_ms() - began_ms
            share = shares.begin()
            looks, has_enough = await _look_at_due(wish, session, unproved, find_partition, share)
            is_refused = any(isinstance(decision, Refused) for _, decision in looks)
            end = _find_end(wish, is_refused=is_refused, is_stopping=stopping.has_begun, is_late=is_late)
            if end is not None or has_enough:
                began_ms = times.now_ms()
                results = await _read(wish, looks, share, is_late=end in _LATE)
                times.read_ms += times.now_ms() - began_ms
                if end is None and any(isinstance(result, Refused) for result in results):
                    end = FetchEnd.ERROR
                if end is not None or any(not isinstance(result, Refused) and result.batches for result in results):
                    times.end = end or FetchEnd.ENOUGH
                    return _tell(session, looks, results)
                wish.release()
                _take_back(looks)
            began_ms = times.now_ms()
            await wake.wait()
            times.waited_ms += times.now_ms() - began_ms
    finally:
        timer.cancel()


def _find_end(wish: FetchWish, *, is_refused: bool, is_stopping: bool, is_late: bool) -> FetchEnd | None:
    """Return why the fetch is answered now even if there is nothing to read; None: it waits."""
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

Look = tuple[Entry, Decision | Refused]


async def _look_at_due(
    wish: FetchWish, session: FetchSession, unproved: Refused | None, find_partition: FindPartition, share: LoopShare
) -> tuple[Sequence[Look], bool]:
    """Decide what may be read of each due partition; also return True if that is as much as was requested."""
    if unproved is not None:
        session.note_all()
    looks: list[Look] = []
    found = 0
    for entry in session.due():
        if share.is_used_up:
            await share.wait()
        decision = unproved or entry.decide(find_partition)
        looks.append((entry, decision))
        if isinstance(decision, Refused):
            continue
        partition, readable = decision
        if isinstance(readable, NotYet):
            continue
        if readable.offset >= readable.end_offset and not entry.has_news:
            session.rest(entry)
            looks.pop()
        elif found < wish.bytes_min:
            found += partition.bytes_available(readable, wish.bytes_min - found)
    return looks, found >= wish.bytes_min


async def _read(wish: FetchWish, looks: Sequence[Look], share: LoopShare, *, is_late: bool) -> list[FetchResult]:
    """Read each look's partition. `is_late`: a partition that cannot be read yet is refused; otherwise it has no
    result."""
    results: list[FetchResult] = []
    bytes_left = wish.reserve()
    is_first = True
    for entry, decision in looks:
        if share.is_used_up:
            await share.wait()
        if isinstance(decision, Refused):
            results.append(decision)
            continue
        partition, readable = decision
        if isinstance(readable, NotYet):
            results.append(readable.refused if is_late else _NOTHING)
            continue
        if bytes_left <= 0 and not is_first:
            readable = Readable(readable.offset, readable.offset)
        result: FetchResult
        entry.has_news = False  # records that come after this line belong to the next fetch
        try:
            result = await partition.read(readable, max(1, min(entry.position.bytes_max, bytes_left)))
            if not isinstance(result, Refused) and result.batches:
                batches, size = wish.fit(result.batches, bytes_left, is_first=is_first)
                if len(batches) < len(result.batches):
                    result = result._replace(batches=batches)
                bytes_left -= size
                is_first = is_first and not batches
        except StorageFault as fault:
            result = partition.refuse_read(fault)
        results.append(result)
    return results


def _take_back(looks: Sequence[Look]) -> None:
    """Mark the read partitions as due again: their results are not sent."""
    for entry, _ in looks:
        entry.has_news = True


def _tell(
    session: FetchSession, looks: Sequence[Look], results: Sequence[FetchResult]
) -> list[tuple[FetchPosition, FetchResult]]:
    answers: list[tuple[FetchPosition, FetchResult]] = []
    for (entry, _), result in zip(looks, results, strict=True):
        if isinstance(result, Refused):
            entry.has_news = True
        elif result.batches:
            session.serve_last(entry)
        answers.append((entry.position, result))
    return answers
