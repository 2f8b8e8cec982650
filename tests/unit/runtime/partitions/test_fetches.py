"""When a fetch that found nothing in files goes on waiting, and when it answers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import cast

import pytest

from bus.errors import ErrorCode, RecordsDamaged, Refused, StorageDamaged, StorageFault, show_way_out
from bus.model import TopicPartition
from bus.partition_log.reads import NotYet, Readable
from bus.runtime.partitions.fetch_session import FetchPosition
from bus.runtime.partitions.fetches import (
    FetchEnd,
    FetchResult,
    FetchTimes,
    FetchWish,
    Stopping,
    fetch,
)
from bus.runtime.partitions.partition import Partition, ReadResult, refuse_read
from bus.runtime.tasks import Wakeable
from tests.support.fake_table import wait_until
from tests.support.proofs import UNPROVED, proved, unproved
from tests.support.stores import log_batch
from tests.support.virtual_time import run_virtually

PLACE = TopicPartition("t", 0)
EMPTY = ReadResult((), 10, 0, 1)
FULL = ReadResult((log_batch(10, [b"v"]),), 11, 0, 2)
BEHIND = Refused(ErrorCode.OFFSET_NOT_AVAILABLE, "not known here")


class LogWithHoles:
    """Offsets that are there for the rules, and whatever a test says for the files."""

    def __init__(self, *reads: ReadResult | Exception) -> None:
        self._reads = list(reads)
        self._readers: set[Wakeable] = set()
        self.on_read: Callable[[], None] = lambda: None
        self.read_count = 0
        self.stopped_with: str | None = None
        self.version = 1

    def decide_fetch(self, offset: int, epoch: int | None, seen_version: int | None = None) -> Readable | NotYet:
        return NotYet(BEHIND) if seen_version is not None and seen_version > self.version else Readable(offset, 10)

    def bytes_available(self, readable: Readable, enough: int) -> int:
        return enough

    async def read(self, readable: Readable, max_bytes: int) -> ReadResult:
        self.read_count += 1
        self.on_read()
        found = self._reads.pop(0) if len(self._reads) > 1 else self._reads[0]
        if isinstance(found, Exception):
            raise found
        return found

    def add_reader(self, event: Wakeable) -> None:
        self._readers.add(event)

    def remove_reader(self, event: Wakeable) -> None:
        self._readers.discard(event)

    def wake(self) -> None:
        for event in list(self._readers):
            event.set()

    def refuse_read(self, fault: StorageFault) -> Refused:
        return refuse_read(PLACE, fault, self.stop)

    def stop(self, code: ErrorCode, reason: str) -> None:
        self.stopped_with = reason


def answer_of(log: LogWithHoles, *, wait_ms: int = 60_000, bytes_min: int = 1) -> FetchResult:
    wish = FetchWish([FetchPosition(PLACE, "", 3, 1_000, None)], wait_ms, bytes_min, lambda: 1_000)

    async def run() -> FetchResult:
        ((_, result),) = await fetch(wish, lambda place, topic_id: cast("Partition", log), proved, Stopping())
        return result

    return asyncio.run(asyncio.wait_for(run(), 10))


def test_a_fetch_that_finds_nothing_below_the_high_watermark_waits_for_the_next_commit() -> None:
    log = LogWithHoles(EMPTY, FULL)

    def commit_behind_the_first_read() -> None:
        if log.read_count == 1:
            asyncio.get_running_loop().call_soon(log.wake)

    log.on_read = commit_behind_the_first_read
    assert answer_of(log) is FULL
    assert log.read_count == 2


def test_a_commit_while_the_first_read_was_under_way_is_not_missed() -> None:
    log = LogWithHoles(EMPTY, FULL)
    log.on_read = log.wake
    assert answer_of(log) is FULL


@pytest.mark.parametrize(("wait_ms", "bytes_min"), [(0, 1), (60_000, 0)])
def test_a_fetch_that_may_not_wait_answers_with_nothing(wait_ms: int, bytes_min: int) -> None:
    log = LogWithHoles(EMPTY)
    assert answer_of(log, wait_ms=wait_ms, bytes_min=bytes_min) is EMPTY
    assert log.read_count == 1


@pytest.mark.parametrize(
    ("fault", "code", "is_stopped"),
    [
        (RecordsDamaged("file x"), ErrorCode.CORRUPT_MESSAGE, False),
        (StorageDamaged("version x"), ErrorCode.KAFKA_STORAGE_ERROR, True),
        (StorageFault("disk x"), ErrorCode.KAFKA_STORAGE_ERROR, False),
    ],
)
def test_only_a_damaged_log_stops_the_partition(fault: StorageFault, code: ErrorCode, is_stopped: bool) -> None:
    log = LogWithHoles(fault)
    way_out = f"; {show_way_out('t', 0)}" if code is ErrorCode.CORRUPT_MESSAGE else ""
    assert answer_of(log) == Refused(code, f"{PLACE}: {fault}{way_out}")
    assert (log.stopped_with == str(fault)) is is_stopped


def test_a_fetch_that_waits_answers_when_the_broker_begins_to_stop() -> None:
    async def scenario() -> None:
        log, stopping = LogWithHoles(EMPTY), Stopping()
        wish = FetchWish([FetchPosition(PLACE, "", 3, 1_000, None)], 600_000, 1, lambda: 1_000)
        fetching = asyncio.ensure_future(fetch(wish, lambda place, topic_id: cast("Partition", log), proved, stopping))
        await wait_until(lambda: bool(log._readers) and log.read_count == 1)
        assert not fetching.done()
        stopping.begin()
        ((_, result),) = await asyncio.wait_for(fetching, 10)
        assert result is EMPTY
        assert not stopping._waiting

    asyncio.run(scenario())


def test_nothing_is_read_where_leadership_cannot_be_proved() -> None:
    async def scenario() -> None:
        log = LogWithHoles(FULL)
        position = FetchPosition(PLACE, "", 3, 1_000, None)
        wish = FetchWish([position], 600_000, 1, lambda: 1_000)
        found = await fetch(wish, lambda place, topic_id: cast("Partition", log), unproved, Stopping())
        assert found == [(position, UNPROVED)]
        assert log.read_count == 0

    asyncio.run(scenario())


def loop_ms() -> float:
    return asyncio.get_running_loop().time() * 1000


@pytest.mark.parametrize(
    ("found", "wait_ms", "bytes_min", "end", "waited_ms"),
    [
        (FULL, 500, 1, FetchEnd.ENOUGH, 0),
        (EMPTY, 500, 1, FetchEnd.TIME, 500),
        (EMPTY, 0, 1, FetchEnd.NO_WAIT, 0),
        (EMPTY, 500, 0, FetchEnd.NO_WAIT, 0),
        (StorageFault("no disk"), 500, 1, FetchEnd.ERROR, 0),
    ],
)
def test_a_fetch_tells_why_it_ended_and_how_long_it_waited(
    found: ReadResult | Exception, wait_ms: int, bytes_min: int, end: FetchEnd, waited_ms: int
) -> None:
    wish = FetchWish([FetchPosition(PLACE, "", 3, 1_000, None)], wait_ms, bytes_min, lambda: 1_000)
    times = FetchTimes(loop_ms)

    async def run() -> None:
        log = cast("Partition", LogWithHoles(found))
        await fetch(wish, lambda place, topic_id: log, proved, Stopping(), times=times)

    run_virtually(run())
    assert times.end is end
    assert times.waited_ms == pytest.approx(waited_ms, abs=0.01)


def test_a_fetch_tells_how_long_it_waited_for_the_proof_of_leadership() -> None:
    """Before the first look, and before the one at the end of the wait."""
    times = FetchTimes(loop_ms)
    wish = FetchWish([FetchPosition(PLACE, "", 3, 1_000, None)], 500, 7, lambda: 1_000)

    async def prove_slowly() -> Refused | None:
        await asyncio.sleep(0.1)
        return None

    async def run() -> None:
        log = cast("Partition", LogWithHoles(EMPTY))
        await fetch(wish, lambda place, topic_id: log, prove_slowly, Stopping(), times=times)

    run_virtually(run())
    assert times.proved_ms == pytest.approx(200, abs=0.01)
    assert times.waited_ms == pytest.approx(400, abs=0.01)
    assert (times.wait_ms_max, times.bytes_min) == (500, 7)


def test_a_fetch_that_waits_tells_that_the_broker_stopped() -> None:
    times = FetchTimes(loop_ms)
    wish = FetchWish([FetchPosition(PLACE, "", 3, 1_000, None)], 500, 1, lambda: 1_000)

    async def run() -> None:
        stopping = Stopping()
        asyncio.get_running_loop().call_later(0.2, stopping.begin)
        log = cast("Partition", LogWithHoles(EMPTY))
        await fetch(wish, lambda place, topic_id: log, proved, stopping, times=times)

    run_virtually(run())
    assert times.end is FetchEnd.STOPPING
    assert times.waited_ms == pytest.approx(200, abs=0.01)


def wish_for(*seen_versions: int | None, wait_ms: int) -> FetchWish:
    """One of each partition of the topic."""
    positions = [
        FetchPosition(TopicPartition("t", number), "", 3, 1_000, None, seen)
        for number, seen in enumerate(seen_versions)
    ]
    return FetchWish(positions, wait_ms, 1, lambda: 1_000)


def test_a_reader_that_knows_more_than_the_broker_waits_and_is_refused_when_its_time_is_over() -> None:
    async def scenario() -> None:
        log = LogWithHoles(FULL)
        for wait_ms in (0, 500):
            began_ms = loop_ms()
            wish = wish_for(2, wait_ms=wait_ms)
            ((_, result),) = await fetch(wish, lambda place, topic_id: log, proved, Stopping())
            assert (result, log.read_count) == (BEHIND, 0)
            assert loop_ms() - began_ms == pytest.approx(wait_ms, abs=0.01)

    run_virtually(scenario())


def test_a_reader_that_knows_more_than_the_broker_is_served_as_soon_as_the_broker_knows_as_much() -> None:
    async def scenario() -> None:
        log = LogWithHoles(FULL)

        def learn() -> None:
            log.version = 2
            log.wake()

        began_ms = loop_ms()
        asyncio.get_running_loop().call_later(1.0, learn)
        ((_, result),) = await fetch(wish_for(2, wait_ms=60_000), lambda place, topic_id: log, proved, Stopping())
        assert result is FULL
        assert loop_ms() - began_ms == pytest.approx(1_000, abs=0.01)

    run_virtually(scenario())


def test_partition_that_is_not_known_so_far_is_not_refused_for_the_records_of_another_one() -> None:
    async def scenario() -> None:
        logs = [LogWithHoles(FULL), LogWithHoles(FULL)]
        wish = wish_for(None, 2, wait_ms=60_000)
        found = await fetch(wish, lambda place, topic_id: logs[place.partition], proved, Stopping())
        first, second = (result for _, result in found)
        assert first is FULL
        assert not isinstance(second, Refused)
        assert not second.batches

    run_virtually(scenario())


def test_partition_that_another_broker_has_begun_to_lead_is_waited_for_there() -> None:
    """A fetch waits at a follower, which becomes the leader."""

    async def scenario() -> None:
        before, after = LogWithHoles(EMPTY), LogWithHoles(EMPTY, FULL)
        found = before

        def move() -> None:
            nonlocal found
            found = after
            before.wake()
            asyncio.get_running_loop().call_later(1.0, after.wake)

        began_ms = loop_ms()
        asyncio.get_running_loop().call_later(1.0, move)
        ((_, result),) = await fetch(wish_for(None, wait_ms=60_000), lambda *_: found, proved, Stopping())
        assert result is FULL
        assert loop_ms() - began_ms == pytest.approx(2_000, abs=0.01)
        assert not before._readers
        assert not after._readers

    run_virtually(scenario())
