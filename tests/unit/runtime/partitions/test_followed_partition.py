"""A partition that another broker leads, read at this one."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from bus.cluster_metadata.cluster_records import (
    BrokerFenced,
    FeatureLevel,
    LeaderChanged,
    ReplicasAssigned,
    TopicCreated,
)
from bus.cluster_metadata.cluster_state import BUS_VERSION
from bus.errors import ErrorCode, Refused, StorageFault
from bus.model import TopicPartition
from bus.partition_log.reads import NotYet, Readable
from bus.runtime.partitions.fetch_session import FetchPosition
from bus.runtime.partitions.fetches import FetchResult, FetchWish, Stopping, fetch
from bus.runtime.partitions.partition import Partition, ReadResult
from bus.runtime.partitions.partition_host import SILENCE_MAX_MS, FollowedPartition
from bus.runtime.replicas.followed_tables import CommittedVersion
from tests.support.fake_table import FakeTable
from tests.support.host_bench import HostBench, run_host
from tests.support.proofs import proved
from tests.support.stores import log_batch

P0 = TopicPartition("orders", 0)
LED_ELSEWHERE = (
    FeatureLevel(BUS_VERSION, 1),
    TopicCreated("orders", "id-1", 1, 1),
    ReplicasAssigned("orders", "id-1", 0, 1, "1,0"),
)


class Bench:
    """Broker 0 follows a partition that broker 1 leads at leader epoch 0."""

    def __init__(self, host: HostBench) -> None:
        self.host = host.host
        self.clock = host.clock
        self.bench = host
        self.table: FakeTable

    async def follow(self) -> None:
        self.bench.follow(*LED_ELSEWHERE)
        await until(lambda: self.bench.storage.opened == [P0] and not self.host.followed.is_reading)
        self.table = self.bench.storage.tables["id-1", 0]

    def tell(self, version: int) -> None:
        """Note a version, as the leader watch does with an answer of broker 1."""
        self.host.followed.note([CommittedVersion(P0, "id-1", version)])
        self.host.followed_partitions.note_answer(1)

    def commit(self, value: bytes = b"v") -> None:
        """At the leader."""
        self.table.commit([log_batch(self.table.state.high_watermark, [value])])

    async def commit_and_tell(self, count: int = 1) -> None:
        for _ in range(count):
            self.commit()
        self.tell(self.table.state.version)
        await until(lambda: not self.host.followed.is_reading)

    def serving(self) -> FollowedPartition:
        found = self.host.find_replica(P0)
        assert isinstance(found, FollowedPartition), found
        return found

    def refused(self) -> str:
        found = self.host.find_replica(P0)
        assert isinstance(found, Refused), found
        assert found.code is ErrorCode.NOT_LEADER_OR_FOLLOWER
        return found.message

    async def fetch(self, offset: int, *, wait_ms: int = 0, seen_version: int | None = None) -> FetchResult:
        position = FetchPosition(P0, "", offset, 1_000, None, seen_version)
        wish = FetchWish([position], wait_ms, 1, lambda: 1_000)
        ((_, result),) = await fetch(wish, self.host.find_replica, proved, Stopping())
        return result


async def until(is_so: Callable[[], bool]) -> None:
    for _ in range(1000):
        if is_so():
            return
        await asyncio.sleep(0.001)
    raise AssertionError("expected it to become so")


def run(scenario: Callable[[Bench], Awaitable[None]]) -> None:
    async def follow_and_play(host: HostBench) -> None:
        bench = Bench(host)
        await bench.follow()
        await scenario(bench)

    run_host(follow_and_play)


def offsets_of(result: FetchResult) -> list[int]:
    assert isinstance(result, ReadResult), result
    return [batch.base_offset for batch in result.batches]


def test_follower_serves_what_its_leader_has_called_committed() -> None:
    async def scenario(bench: Bench) -> None:
        assert isinstance(await bench.fetch(0), Refused)
        await bench.commit_and_tell()
        bench.commit()  # lies in the store, and its leader does not know yet whether it is durable
        found = await bench.fetch(0)
        assert isinstance(found, ReadResult)
        assert offsets_of(found) == [0]
        assert (found.high_watermark, found.version) == (1, 1)
        beyond = await bench.fetch(1)
        assert offsets_of(beyond) == []

    run(scenario)


def test_follower_that_is_read_beyond_its_end_reads_on_before_it_refuses() -> None:
    async def scenario(bench: Bench) -> None:
        await bench.commit_and_tell()
        late = await bench.fetch(2)
        assert isinstance(late, Refused)
        assert late.code is ErrorCode.OFFSET_NOT_AVAILABLE
        waiting = asyncio.ensure_future(bench.fetch(2, wait_ms=60_000))
        await asyncio.sleep(0)
        await bench.commit_and_tell(2)
        assert offsets_of(await asyncio.wait_for(waiting, 10)) == [2]

    run(scenario)


def test_long_poll_at_the_end_wakes_when_the_leader_commits() -> None:
    async def scenario(bench: Bench) -> None:
        await bench.commit_and_tell()
        waiting = asyncio.ensure_future(bench.fetch(1, wait_ms=60_000))
        await asyncio.sleep(0)
        assert not waiting.done()
        await bench.commit_and_tell()
        assert offsets_of(await asyncio.wait_for(waiting, 10)) == [1]

    run(scenario)


def test_reader_that_was_told_of_a_later_version_elsewhere_is_told_of_none_before_it() -> None:
    async def scenario(bench: Bench) -> None:
        await bench.commit_and_tell(2)
        assert offsets_of(await bench.fetch(0, seen_version=2)) == [0]
        behind = await bench.fetch(0, seen_version=3)
        assert isinstance(behind, Refused)
        assert behind.code is ErrorCode.OFFSET_NOT_AVAILABLE

    run(scenario)


def test_fetch_that_waits_at_a_follower_goes_on_at_the_leader_that_it_becomes() -> None:
    async def scenario(bench: Bench) -> None:
        await bench.commit_and_tell()
        waiting = asyncio.ensure_future(bench.fetch(1, wait_ms=60_000))
        await asyncio.sleep(0)
        bench.bench.follow(LeaderChanged("orders", "id-1", 0, 0, 1))
        refused = await asyncio.wait_for(waiting, 10)
        assert isinstance(refused, Refused), "it is being opened, and the caller asks again"
        await bench.bench.settle()
        assert isinstance(bench.host.find_replica(P0), Partition)
        assert offsets_of(await bench.fetch(0)) == [0]

    run(scenario)


def test_read_under_way_gives_its_records_also_when_the_table_is_taken_to_be_led() -> None:
    async def scenario(bench: Bench) -> None:
        await bench.commit_and_tell()
        partition = bench.serving()
        readable = partition.decide_fetch(0, None)
        assert readable == Readable(0, 1)
        bench.bench.follow(LeaderChanged("orders", "id-1", 0, 0, 1))
        await bench.bench.settle()
        bench.bench.serving(P0)
        assert offsets_of(await partition.read(readable, 1_000)) == [0]

    run(scenario)


def test_read_of_records_that_were_deleted_meanwhile_is_out_of_range() -> None:
    async def scenario(bench: Bench) -> None:
        await bench.commit_and_tell(2)
        partition = bench.serving()
        readable = partition.decide_fetch(0, None)
        assert isinstance(readable, Readable)
        bench.table.cleanup.advance_log_start(1, leader_epoch=0, now_ms=0)
        refused = await partition.read(readable, 1_000)
        assert isinstance(refused, Refused)
        assert refused.code is ErrorCode.OFFSET_OUT_OF_RANGE

    run(scenario)


def test_follower_that_is_fenced_serves_nothing() -> None:
    async def scenario(bench: Bench) -> None:
        await bench.commit_and_tell()
        bench.serving()
        bench.bench.follow(BrokerFenced(0, 0))
        assert "fenced" in bench.refused()

    run(scenario)


def test_follower_whose_leader_is_silent_serves_nothing_until_it_answers_again() -> None:
    async def scenario(bench: Bench) -> None:
        await bench.commit_and_tell()
        bench.clock.advance(SILENCE_MAX_MS - 1)
        bench.serving()
        bench.clock.advance(1)
        assert "has told this follower nothing" in bench.refused()
        bench.host.followed_partitions.note_answer(1)
        bench.serving()
        bench.clock.time_ms += SILENCE_MAX_MS  # as where a virtual machine stood still
        bench.refused()
        bench.host.followed_partitions.note_answer(1)
        bench.clock.time_ms -= 3_600_000
        bench.refused()

    run(scenario)


def test_leader_epoch_is_that_of_the_metadata_or_of_the_log_if_it_is_higher() -> None:
    async def scenario(bench: Bench) -> None:
        await bench.commit_and_tell()
        assert bench.serving().decide_fetch(0, 0) == Readable(0, 1)
        newer = bench.serving().decide_fetch(0, 1)
        assert isinstance(newer, Refused)
        assert newer.code is ErrorCode.UNKNOWN_LEADER_EPOCH
        bench.table.commit_foreign(1, leader_epoch=1)  # whose leader this broker has not heard of
        bench.tell(2)
        await until(lambda: not bench.host.followed.is_reading)
        fenced = bench.serving().decide_fetch(0, 0)
        assert isinstance(fenced, Refused)
        assert fenced.code is ErrorCode.FENCED_LEADER_EPOCH

    run(scenario)


def test_fault_of_a_follower_sends_its_reader_back_and_stops_nothing() -> None:
    async def scenario(bench: Bench) -> None:
        await bench.commit_and_tell()
        refused = bench.serving().refuse_read(StorageFault("no such file"))
        assert refused.code is ErrorCode.OFFSET_NOT_AVAILABLE
        assert "no such file" in refused.message
        assert offsets_of(await bench.fetch(0)) == [0]

    run(scenario)


def test_table_that_is_not_open_is_waited_for() -> None:
    async def scenario(bench: Bench) -> None:
        bench.host.followed_partitions.note_answer(1)
        assert isinstance(bench.serving().decide_fetch(0, None), NotYet)

    run(scenario)


def test_partition_that_is_not_followed_is_refused_as_before() -> None:
    async def scenario(bench: HostBench) -> None:
        bench.follow(TopicCreated("orders", "id-1", 1, 1))
        bench.host.followed_partitions.note_answer(1)
        found = bench.host.find_replica(P0)
        assert isinstance(found, Refused)
        assert found.code is ErrorCode.NOT_LEADER_OR_FOLLOWER
        missing = bench.host.find_replica(TopicPartition("orders", 7))
        assert isinstance(missing, Refused)
        assert missing.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION

    run_host(scenario)
