"""Compaction and cleaning beside a partition's writer, on a fake table."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace

import pytest

from bus.errors import ErrorCode, StorageFault
from bus.partition_log.cleaning import FILES_MIN, CleaningRules
from bus.ports import CommitOutcome, Conflicted, Unknown
from tests.support.fake_table import FakeTable, ManualClock, wait_until
from tests.support.partition_bench import SETTINGS, Bench, InlineCalls, base_offset, code

RULES = CleaningRules(
    tombstone_retention_ms=10_000, file_delete_delay_ms=0, version_retention_ms=500, version_count_max=7
)
NEVER = replace(RULES, file_delete_delay_ms=86_400_000)


def run(scenario: Callable[[Bench], Awaitable[None]], rules: CleaningRules | None = NEVER) -> None:
    async def main() -> None:
        bench = Bench(settings=replace(SETTINGS, cleaning=rules), calls=InlineCalls(1))
        try:
            await scenario(bench)
        finally:
            bench.partition.stop(ErrorCode.UNKNOWN_SERVER_ERROR, "the test has ended")
            await bench.close()

    asyncio.run(main())


def fill(table: FakeTable) -> None:
    table.key_compaction_backlog = FILES_MIN
    table.key_compaction_backlog_bytes = 1


def test_what_is_compacted_is_swapped_in_by_the_writer_and_records_keep_their_offsets() -> None:
    async def scenario(bench: Bench) -> None:
        fill(bench.table)
        assert base_offset(await bench.append(2)) == 0
        await wait_until(lambda: len(bench.table.swaps) == 1)
        await wait_until(lambda: bench.partition.state.version == 2)
        assert base_offset(await bench.append(1)) == 2
        state = bench.partition.state
        assert (state.version, state.high_watermark, state.log_start) == (3, 3, 0)
        assert len(bench.table.swaps) == 1

    run(scenario)


def test_a_log_that_is_not_compacted_is_left_alone() -> None:
    async def scenario(bench: Bench) -> None:
        fill(bench.table)
        await bench.append()
        await asyncio.sleep(0)
        assert bench.table.swaps == []
        assert bench.table.cleaned == []

    run(scenario, rules=None)


@pytest.mark.parametrize(
    "outcome",
    [StorageFault("no room"), Conflicted(2, leader_epoch=None, operation="OPTIMIZE"), Unknown(2, "the reply was lost")],
)
def test_a_swap_that_fails_is_tried_again_only_after_more_files(outcome: CommitOutcome | Exception) -> None:
    async def scenario(bench: Bench) -> None:
        fill(bench.table)
        bench.table.swap_script = [outcome]
        await bench.append()
        await wait_until(lambda: len(bench.table.swaps) == 1)
        assert base_offset(await bench.append()) == 1
        for _ in range(5):
            await bench.append()
        assert len(bench.table.swaps) == 1
        bench.table.key_compaction_backlog += FILES_MIN
        await bench.append()
        await wait_until(lambda: len(bench.table.swaps) == 2)
        assert base_offset(await bench.append()) == 8
        assert bench.partition.stopped is None

    run(scenario)


def test_a_swap_that_loses_to_a_leader_of_a_higher_epoch_ends_this_one() -> None:
    async def scenario(bench: Bench) -> None:
        fill(bench.table)
        bench.table.swap_script = [Conflicted(2, leader_epoch=4, operation="WRITE")]
        await bench.append()
        await wait_until(lambda: bench.partition.stopped is not None)
        assert code(await bench.append()) is ErrorCode.NOT_LEADER_OR_FOLLOWER

    run(scenario)


def test_compaction_that_cannot_be_prepared_disturbs_no_append() -> None:
    async def scenario(bench: Bench) -> None:
        fill(bench.table)
        bench.table.prepare_fault = StorageFault("no room")
        for expected in range(4):
            assert base_offset(await bench.append()) == expected
        assert bench.table.prepare_count == 1
        bench.table.prepare_fault = None
        bench.table.key_compaction_backlog += FILES_MIN
        await bench.append()
        await wait_until(lambda: len(bench.table.swaps) == 1)

    run(scenario)


def test_what_was_replaced_is_removed_after_its_delay_and_then_the_timer_rests() -> None:
    async def scenario(bench: Bench) -> None:
        clock: ManualClock = bench.clock
        await bench.append()
        await wait_until(lambda: len(bench.table.cleaned) >= 4)
        for _ in range(20):
            await asyncio.sleep(0.0)
        calls = len(bench.table.cleaned)
        assert set(bench.table.cleaned) == {("files", clock.time_ms), ("versions", clock.time_ms - 500)}
        for _ in range(20):
            await asyncio.sleep(0.0)
        assert len(bench.table.cleaned) == calls
        clock.time_ms += 50
        await bench.append()
        await wait_until(lambda: ("files", clock.time_ms) in bench.table.cleaned)

    run(scenario, rules=RULES)


def test_files_go_before_a_checkpoint_may_forget_that_they_were_removed() -> None:
    async def scenario(bench: Bench) -> None:
        bench.table.is_checkpoint_due = True
        await bench.append()
        await wait_until(lambda: not bench.table.is_checkpoint_due)
        assert bench.table.cleaned == [("files", bench.clock.time_ms - NEVER.file_delete_delay_ms)]

    run(scenario)


def test_a_reader_in_a_hole_that_reaches_to_the_end_it_may_read_gets_nothing_yet() -> None:
    async def scenario(bench: Bench) -> None:
        await bench.append(3)
        readable = bench.partition.decide_fetch(1, None)
        bench.partition._cache.clear(bench.partition._tail)
        bench.table.commits.clear()
        result = await bench.partition.read(readable, 100)  # type: ignore[arg-type]
        assert (list(result.batches), result.high_watermark) == ([], 3)

    run(scenario)
