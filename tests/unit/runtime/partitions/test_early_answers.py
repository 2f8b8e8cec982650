"""acks=1 is answered with its offset while the pace of commits still holds its commit back."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace

from bus.descriptions import DeletedRecords
from bus.errors import ErrorCode, Refused, StorageFault
from bus.ports import Conflicted
from bus.runtime.partitions.partition_queue import Appended, AppendResult, ProducerResumed
from tests.support.fake_table import records
from tests.support.partition_bench import SETTINGS, Bench, InlineCalls, base_offset, code
from tests.support.virtual_time import run_virtually

PACE_S = 4.0


def run(scenario: Callable[[Bench], Awaitable[None]]) -> None:
    async def main() -> None:
        settings = replace(SETTINGS, commit_interval_ms=int(PACE_S * 1000))
        bench = Bench(settings=settings, calls=InlineCalls())
        try:
            await bench.append(3)  # the only commit at once
            await scenario(bench)
        finally:
            bench.partition.stop(ErrorCode.UNKNOWN_SERVER_ERROR, "the test has ended")
            await bench.close()

    run_virtually(main())


def now_s() -> float:
    return asyncio.get_running_loop().time()


async def settle() -> None:
    for _ in range(50):
        await asyncio.sleep(0)


def test_leader_only_answers_come_at_once_and_all_join_one_commit() -> None:
    async def scenario(bench: Bench) -> None:
        waiting = bench.append(2)
        assert base_offset(await bench.append(1, acks=1)) == 5
        assert base_offset(await bench.append(4, acks=1)) == 6
        assert now_s() < 0.1
        assert not waiting.done()
        assert bench.partition.state.high_watermark == 3
        assert base_offset(await waiting) == 3
        assert now_s() > PACE_S - 0.1
        assert bench.partition.state.high_watermark == 10
        assert [len(commit) for commit in bench.table.commits] == [1, 3]

    run(scenario)


def test_a_broker_that_stops_commits_what_was_answered_without_waiting_for_the_pace() -> None:
    async def scenario(bench: Bench) -> None:
        assert base_offset(await bench.append(2, acks=1)) == 3
        await bench.partition.end_pace()
        assert bench.partition.state.high_watermark == 5
        await bench.append(1)
        assert now_s() < 0.1

    run(scenario)


def test_batch_that_is_refused_is_refused_at_once_and_takes_no_offset() -> None:
    async def scenario(bench: Bench) -> None:
        bench.configure(record_bytes_max=150)
        bench.partition.configure(replace(bench.partition.writer.settings, commit_interval_ms=4000))
        await bench.append(1)
        assert code(await bench.append(1, size_bytes=200, acks=1)) is ErrorCode.MESSAGE_TOO_LARGE
        assert base_offset(await bench.append(1, acks=1)) == 4
        assert now_s() < 0.1

    run(scenario)


def test_a_change_and_a_resumed_producer_come_behind_what_was_answered() -> None:
    async def scenario(bench: Bench) -> None:
        await bench.append(2, acks=1)
        assert await bench.partition.delete_records(5) == DeletedRecords(5, 3)
        assert now_s() < 0.1
        assert base_offset(await bench.send(7, 0, acks=1)) == 5
        resumed = await bench.resume(7, 1)
        assert isinstance(resumed, ProducerResumed)
        assert (resumed.last_sequence, bench.partition.state.high_watermark) == (0, 6)

    run(scenario)


def test_what_was_answered_and_could_not_be_committed_gives_its_offsets_back() -> None:
    async def scenario(bench: Bench) -> None:
        bench.table.script = [StorageFault("no disk")]
        assert base_offset(await bench.append(2, acks=1)) == 3
        assert code(await bench.append(1)) is ErrorCode.KAFKA_STORAGE_ERROR
        assert base_offset(await bench.append(1, acks=1)) == 3
        assert base_offset(await bench.append(1)) == 4

    run(scenario)


def test_what_was_answered_goes_behind_a_foreign_commit() -> None:
    async def scenario(bench: Bench) -> None:
        assert base_offset(await bench.append(2, acks=1)) == 3
        bench.table.script = [Conflicted(2, leader_epoch=3, operation="WRITE")]
        bench.table.commit_foreign(7)
        assert base_offset(await bench.append(1)) == 12
        assert bench.partition.state.high_watermark == 13

    run(scenario)


def test_batch_is_settled_once_when_it_is_committed_or_dropped() -> None:
    async def scenario(bench: Bench) -> None:
        settled: list[AppendResult] = []

        def append(acks: int, size_bytes: int = 100) -> asyncio.Future[AppendResult]:
            return bench.partition.append(
                records(1, size_bytes), acks=acks, current_leader_epoch=None, request_id="", on_settled=settled.append
            )

        await append(1)
        await append(0)
        await settle()
        assert settled == [], "answered, and still waiting for its commit"
        await append(-1)
        assert [type(result) for result in settled] == [Appended] * 3
        settled.clear()
        await append(1)
        await append(0)
        bench.partition.stop(ErrorCode.NOT_LEADER_OR_FOLLOWER, "fenced")
        await asyncio.sleep(2 * PACE_S)
        refused = await append(-1)
        assert len(settled) == 3
        assert isinstance(refused, Refused)

    run(scenario)
