"""Maintenance beside a partition's writer, on a fake table."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import pytest

from bus.descriptions import DeletedRecords, MaintainedLog
from bus.errors import ErrorCode, RecordsDamaged, Refused, StorageFault, StorageFull
from bus.model import LogBatch
from bus.partition_log.log_life import (
    DIRTY_FILES_MIN,
    RUN_FILES_MAX,
    CompactionRules,
    MaintenanceRules,
    RetentionRules,
    RollingRules,
)
from bus.ports import CommitOutcome, Conflicted, Dropped, SwapKind, Unknown
from bus.runtime.partitions.fetch_session import FetchPosition
from bus.runtime.partitions.fetches import FetchWish, Stopping, fetch
from bus.runtime.partitions.maintenance import DeleteRecordsResult, FilesSwapped, MaintenanceAction
from bus.runtime.partitions.partition_writer import CHANGES_MAX
from tests.support.fake_table import FakeTable, Scripted, log_batch, records, wait_until
from tests.support.partition_bench import DELETED, NAME, SETTINGS, Bench, InlineCalls, base_offset, code
from tests.support.proofs import proved
from tests.support.virtual_time import run_virtually

BACKOFF_S = 15.0
ROLLING = replace(SETTINGS.maintenance, rolling=RollingRules(segment_bytes=1_000_000, segment_ms=10**9))
INTERNAL = replace(SETTINGS.maintenance, is_internal=True)
RETAINING = replace(ROLLING, retention=RetentionRules(retention_ms=1_000, retention_bytes=-1))
COMPACTED = replace(
    SETTINGS.maintenance,
    compaction=CompactionRules(dirty_ratio_min=0.5, lag_min_ms=0, lag_max_ms=10**12),
    may_delete_records=False,
)


def run(scenario: Callable[[Bench], Awaitable[None]], rules: MaintenanceRules = ROLLING) -> None:
    async def main() -> None:
        bench = Bench(settings=with_rules(rules), calls=InlineCalls(), backoff_s=BACKOFF_S)
        try:
            await scenario(bench)
        finally:
            bench.partition.stop(ErrorCode.UNKNOWN_SERVER_ERROR, "the test has ended")
            await bench.close()

    run_virtually(main())


def with_rules(rules: MaintenanceRules) -> Any:
    return replace(SETTINGS, maintenance=rules)


def fill(table: FakeTable, count: int, *, size_bytes: int = 100, now_ms: int = 1_000_000) -> None:
    """Make as many commits as `count`, of another time."""
    for _ in range(count):
        batch = replace(log_batch(table.state.high_watermark, 1), size_bytes=size_bytes)
        table.commit([batch], now_ms=now_ms)


async def opened(count: int, rules: MaintenanceRules = ROLLING, **options: Any) -> Bench:
    """A partition of `count` files, one offset each."""
    table = FakeTable()
    fill(table, count, **options)
    return Bench(table=table, settings=with_rules(rules), calls=InlineCalls(), backoff_s=BACKOFF_S)


async def settle() -> None:
    for _ in range(50):
        await asyncio.sleep(0)


def levels(table: FakeTable) -> list[int]:
    return [file.level for file in table.rewrites.live]


# ---------------------------------------------------------------- rolling


def test_files_are_rolled_beside_the_appends_and_records_keep_their_offsets() -> None:
    async def scenario(bench: Bench) -> None:
        for expected in range(RUN_FILES_MAX + 20):
            assert base_offset(await bench.append()) == expected
        await wait_until(lambda: 1 in levels(bench.table))
        assert base_offset(await bench.append()) == RUN_FILES_MAX + 20
        state = bench.partition.state
        assert (state.log_start, state.high_watermark) == (0, RUN_FILES_MAX + 21)
        assert state.version == bench.table.state.version

    run(scenario)


def test_a_partition_that_nobody_writes_to_is_rolled_when_it_is_looked_after() -> None:
    async def scenario(_: Bench) -> None:
        bench = await opened(RUN_FILES_MAX)
        await settle()
        assert bench.table.rewrites.prepared == []
        bench.partition.look_after()
        await wait_until(lambda: levels(bench.table) == [1])
        assert bench.partition.state.version == bench.table.state.version

    run(scenario)


@pytest.mark.parametrize(
    "outcome",
    [
        StorageFull("no room"),
        Conflicted(RUN_FILES_MAX + 1, leader_epoch=None, operation="OPTIMIZE"),
        Unknown(RUN_FILES_MAX + 1, "the sync failed"),
        Scripted.LOST_REPLY,
    ],
)
def test_a_swap_that_fails_is_tried_again_after_the_backoff(outcome: CommitOutcome | Exception | Scripted) -> None:
    async def scenario(_: Bench) -> None:
        bench = await opened(RUN_FILES_MAX)
        bench.table.change_script = [outcome]
        bench.partition.look_after()
        await wait_until(lambda: len(bench.table.rewrites.swaps) == 1)
        await settle()
        assert base_offset(await bench.append()) == RUN_FILES_MAX
        bench.partition.look_after()
        await settle()
        assert bench.table.rewrites.prepared == ["roll"]
        await asyncio.sleep(BACKOFF_S + 1)
        is_there = outcome is Scripted.LOST_REPLY
        assert levels(bench.table) == ([1, 0] if is_there else [1])
        assert len(bench.table.rewrites.prepared) == (1 if is_there else 2)
        assert bench.partition.stopped is None
        assert bench.partition.state.version == bench.table.state.version

    run(scenario)


@pytest.mark.parametrize("fault", [StorageFull("no room"), StorageFault("no answer"), RuntimeError("a bug")])
def test_files_that_cannot_be_prepared_disturb_no_append_and_are_tried_again(fault: Exception) -> None:
    async def scenario(_: Bench) -> None:
        bench = await opened(RUN_FILES_MAX)
        bench.table.rewrites.script = [fault]
        bench.partition.look_after()
        await settle()
        for expected in range(RUN_FILES_MAX, RUN_FILES_MAX + 50):
            assert base_offset(await bench.append()) == expected
        assert (bench.table.rewrites.prepared, bench.table.rewrites.swaps) == (["roll"], [])
        await asyncio.sleep(BACKOFF_S + 1)
        assert levels(bench.table)[0] == 1

    run(scenario)


def test_a_swap_that_loses_to_a_leader_of_a_higher_epoch_ends_this_one() -> None:
    async def scenario(_: Bench) -> None:
        bench = await opened(RUN_FILES_MAX)
        bench.table.change_script = [Conflicted(RUN_FILES_MAX + 1, leader_epoch=4, operation="WRITE")]
        bench.partition.look_after()
        await wait_until(lambda: bench.partition.stopped is not None)
        assert code(await bench.append()) is ErrorCode.NOT_LEADER_OR_FOLLOWER
        await asyncio.sleep(BACKOFF_S * 2)
        assert len(bench.table.rewrites.swaps) == 1

    run(scenario)


def test_files_that_cannot_be_read_are_left_alone_and_the_others_go_on(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(_: Bench) -> None:
        bench = await opened(RUN_FILES_MAX)
        bench.table.rewrites.script = [RecordsDamaged("file-7 is no Parquet")]
        bench.partition.look_after()
        await settle()
        await asyncio.sleep(BACKOFF_S * 3)
        bench.partition.look_after()
        await settle()
        assert bench.table.rewrites.prepared == ["roll"]
        for _ in range(RUN_FILES_MAX + 20):
            await bench.append()
        await wait_until(lambda: 1 in levels(bench.table))
        assert levels(bench.table)[:RUN_FILES_MAX] == [0] * RUN_FILES_MAX
        assert bench.partition.stopped is None

    with caplog.at_level(logging.ERROR):
        run(scenario)
    damage = [record.getMessage() for record in caplog.records if "file-7" in record.getMessage()]
    assert len(damage) == 1
    assert f"offsets 0 to {RUN_FILES_MAX - 1}" in damage[0]


def test_files_that_cannot_be_read_make_no_other_run_wait_for_the_backoff() -> None:
    async def scenario(_: Bench) -> None:
        table = FakeTable()
        fill(table, 3)
        fill(table, 1, size_bytes=500_000)
        fill(table, RUN_FILES_MAX)
        bench = Bench(table=table, settings=with_rules(ROLLING), calls=InlineCalls(), backoff_s=BACKOFF_S)
        table.rewrites.script = [RecordsDamaged("file-7 is no Parquet")]
        bench.partition.look_after()
        await settle()
        assert levels(table) == [1, 0, *[0] * RUN_FILES_MAX]
        assert table.rewrites.prepared == ["roll", "roll"]

    run(scenario)


def test_records_deleted_while_a_roll_is_prepared_are_not_brought_back() -> None:
    async def scenario(bench: Bench) -> None:
        fill(bench.table, RUN_FILES_MAX)
        await bench.partition.writer.rebuild()
        bench.table.rewrites.gate.clear()
        bench.partition.look_after()
        await wait_until(lambda: bench.table.rewrites.prepared == ["roll"])
        deleted = await bench.partition.delete_records(5)
        assert isinstance(deleted, DeletedRecords)
        bench.table.rewrites.gate.set()
        await wait_until(lambda: len(bench.table.rewrites.discarded) == 1)
        assert base_offset(await bench.append()) == RUN_FILES_MAX
        assert (bench.partition.state.log_start, bench.table.rewrites.live[0].base_offset) == (5, 5)
        assert bench.partition.stopped is None

    in_threads(scenario)


def in_threads(scenario: Callable[[Bench], Awaitable[None]], rules: MaintenanceRules = ROLLING) -> None:
    """Run with real threads, for what has to happen while files are prepared."""

    async def main() -> None:
        bench = Bench(settings=with_rules(rules), backoff_s=BACKOFF_S)
        try:
            await scenario(bench)
        finally:
            bench.table.rewrites.gate.set()
            bench.table.cleanup.gate.set()
            bench.partition.stop(ErrorCode.UNKNOWN_SERVER_ERROR, "the test has ended")
            await bench.close()

    asyncio.run(main())


def test_altered_configs_count_from_the_next_decision_on_also_while_a_job_runs() -> None:
    async def scenario(bench: Bench) -> None:
        fill(bench.table, RUN_FILES_MAX)
        await bench.partition.writer.rebuild()
        bench.table.rewrites.gate.clear()
        bench.partition.look_after()
        await wait_until(lambda: bench.table.rewrites.prepared == ["roll"])
        bench.partition.configure(with_rules(replace(RETAINING, rolling=None)))
        bench.clock.advance(10_000)
        bench.partition.look_after()
        bench.table.rewrites.gate.set()
        await wait_until(lambda: bench.partition.state.log_start == RUN_FILES_MAX)
        assert bench.table.rewrites.prepared == ["roll"]

    in_threads(scenario)


def test_stopping_waits_for_no_roll() -> None:
    async def scenario(bench: Bench) -> None:
        fill(bench.table, RUN_FILES_MAX)
        await bench.partition.writer.rebuild()
        bench.throttle.use(10**306)  # for longer than anybody waits
        bench.throttle._used_until_s = 10.0**12
        bench.partition.look_after()
        await wait_until(lambda: bench.partition.maintenance._running is not None)
        await bench.partition.close(DELETED)
        assert bench.table.rewrites.swaps == []

    in_threads(scenario)


def test_a_deleted_topic_waits_until_nothing_touches_its_files() -> None:
    async def scenario(bench: Bench) -> None:
        fill(bench.table, RUN_FILES_MAX)
        await bench.partition.writer.rebuild()
        bench.table.rewrites.gate.clear()
        bench.partition.look_after()
        await wait_until(lambda: bench.table.rewrites.prepared == ["roll"])
        retiring = asyncio.ensure_future(bench.partition.close(DELETED))
        await settle()
        assert not retiring.done()
        bench.table.rewrites.gate.set()
        await retiring
        assert bench.table.rewrites.swaps == []

    in_threads(scenario)


def test_what_waits_for_its_thread_is_not_begun_once_the_partition_stops() -> None:
    async def scenario(bench: Bench) -> None:
        fill(bench.table, RUN_FILES_MAX)
        await bench.partition.writer.rebuild()
        busy = threading.Event()
        other = bench.calls.maintain(busy.wait)
        bench.partition.look_after()
        await settle()
        bench.partition.stop(ErrorCode.NOT_LEADER_OR_FOLLOWER, "fenced")
        busy.set()
        await other
        await bench.partition.end_maintenance()
        assert bench.table.rewrites.prepared == []

    in_threads(scenario)


# ---------------------------------------------------------------- retention and DeleteRecords


def test_what_is_older_than_the_retention_goes_when_the_partition_is_looked_after() -> None:
    async def scenario(bench: Bench) -> None:
        await bench.append(3)
        bench.clock.advance(600)
        now_ms = bench.clock.time_ms
        later = replace(records(2), timestamp_min_ms=now_ms, timestamp_max_ms=now_ms)
        await bench.partition.append(later, acks=-1, current_leader_epoch=None, request_id="later")
        bench.clock.advance(401)
        bench.partition.look_after()
        await wait_until(lambda: bench.partition.state.log_start == 3)
        assert bench.table.cleanup.removals == [3]
        bench.clock.advance(10_000)
        bench.partition.look_after()
        await wait_until(lambda: bench.partition.state.log_start == 5)
        assert (bench.partition.state.high_watermark, bench.table.rewrites.live) == (5, [])
        assert base_offset(await bench.append()) == 5

    run(scenario, RETAINING)


def test_a_wall_clock_that_jumps_ahead_by_a_day_deletes_nothing_at_once() -> None:
    async def scenario(bench: Bench) -> None:
        await bench.append(3)
        bench.clock.advance(300)
        bench.clock.time_ms += 86_400_000
        bench.partition.look_after()
        await settle()
        assert bench.partition.state.log_start == 0

    run(scenario, RETAINING)


def test_maintenance_that_is_under_way_can_be_waited_for() -> None:
    async def scenario(bench: Bench) -> None:
        fill(bench.table, RUN_FILES_MAX)
        await bench.partition.writer.rebuild()
        bench.table.rewrites.gate.clear()
        bench.partition.look_after()
        await wait_until(lambda: bench.table.rewrites.prepared == ["roll"])
        finishing = asyncio.ensure_future(bench.partition.finish_maintenance())
        await settle()
        assert not finishing.done()
        bench.table.rewrites.gate.set()
        await finishing
        assert len(bench.table.rewrites.swaps) == 1

    in_threads(scenario)


def test_retention_that_cannot_be_committed_is_tried_again_after_the_backoff() -> None:
    async def scenario(bench: Bench) -> None:
        await bench.append(3)
        bench.clock.advance(2_000)
        bench.table.change_script = [StorageFull("no room")]
        bench.partition.look_after()
        await settle()
        assert bench.partition.state.log_start == 0
        await asyncio.sleep(BACKOFF_S + 1)
        assert bench.partition.state.log_start == 3

    run(scenario, RETAINING)


def low_watermark(result: DeleteRecordsResult) -> int:
    assert isinstance(result, DeletedRecords), result
    return result.low_watermark


def test_a_change_does_not_wait_for_the_pace_of_commits_nor_hasten_them() -> None:
    async def scenario(bench: Bench) -> None:
        bench.partition.configure(replace(SETTINGS, commit_interval_ms=60_000))
        await bench.append(3)
        paced = bench.append(2)
        await settle()
        assert low_watermark(await bench.partition.delete_records(2)) == 2
        await settle()
        assert asyncio.get_running_loop().time() < 1
        assert not paced.done()
        assert base_offset(await paced) == 3
        assert asyncio.get_running_loop().time() > 50

    run(scenario)


def test_records_are_deleted_also_within_a_file_and_the_answer_says_where_the_log_starts() -> None:
    async def scenario(bench: Bench) -> None:
        await bench.append(10)
        await bench.append(10)
        assert await bench.partition.delete_records(13) == DeletedRecords(13, 3)
        assert [file.base_offset for file in bench.table.rewrites.live] == [10]
        assert await bench.partition.delete_records(4) == DeletedRecords(13, 3)
        assert low_watermark(await bench.partition.delete_records(-1)) == 20
        assert code(await bench.partition.delete_records(21)) is ErrorCode.OFFSET_OUT_OF_RANGE
        assert code(bench.partition.decide_fetch(19, None)) is ErrorCode.OFFSET_OUT_OF_RANGE
        assert base_offset(await bench.append()) == 20

    run(scenario)


def test_a_log_that_is_only_compacted_lets_nobody_delete_records() -> None:
    async def scenario(bench: Bench) -> None:
        await bench.append(3)
        assert code(await bench.partition.delete_records(1)) is ErrorCode.POLICY_VIOLATION
        assert bench.table.cleanup.removals == []

    run(scenario, COMPACTED)


def test_a_fetch_that_waits_is_told_that_its_offset_was_deleted() -> None:
    async def scenario(bench: Bench) -> None:
        await bench.append(3)
        position = FetchPosition(NAME, "", 2, 1_000_000, None)
        wish = FetchWish([position], wait_ms_max=60_000, bytes_min=1_000, reserve=lambda: 1_000_000)
        waiting = asyncio.ensure_future(fetch(wish, lambda name, topic_id: bench.partition, proved, Stopping()))
        await settle()
        assert not waiting.done()
        await bench.partition.delete_records(3)
        ((_, result),) = await waiting
        assert code(result) is ErrorCode.OFFSET_OUT_OF_RANGE
        assert asyncio.get_running_loop().time() < 1

    run(scenario)


def test_a_read_beside_which_its_records_are_deleted_is_refused_and_not_answered_with_others() -> None:
    async def scenario(bench: Bench) -> None:
        await bench.append(3)
        readable = bench.partition.decide_fetch(0, None)
        bench.partition.writer._cache.clear(bench.partition.writer.tail)
        may_go_on, read = threading.Event(), bench.table.log.read

        def read_slowly(offset: int, *, end_offset: int, max_bytes: int) -> list[LogBatch]:
            may_go_on.wait()
            return read(offset, end_offset=end_offset, max_bytes=max_bytes)

        bench.table.log.read = read_slowly  # type: ignore[method-assign]
        reading = asyncio.ensure_future(bench.partition.read(readable, 100))  # type: ignore[arg-type]
        await settle()
        await bench.partition.delete_records(2)
        may_go_on.set()
        assert code(await reading) is ErrorCode.OFFSET_OUT_OF_RANGE

    in_threads(scenario)


@pytest.mark.parametrize("is_committed", [True, False])
def test_deleting_records_with_an_unknown_outcome_is_said_and_the_log_decides(is_committed: bool) -> None:
    async def scenario(bench: Bench) -> None:
        await bench.append(3)
        bench.table.change_script = [Scripted.LOST_REPLY if is_committed else Unknown(2, "the sync failed")]
        assert code(await bench.partition.delete_records(2)) is ErrorCode.KAFKA_STORAGE_ERROR
        assert bench.partition.state.log_start == (2 if is_committed else 0)
        assert low_watermark(await bench.partition.delete_records(2)) == 2

    run(scenario)


def test_deleting_records_beside_another_writer_is_run_again_behind_it() -> None:
    async def scenario(bench: Bench) -> None:
        await bench.append(3)
        bench.table.change_script = [Conflicted(2, leader_epoch=None, operation="OPTIMIZE")]
        bench.table.commit_foreign(4)
        assert low_watermark(await bench.partition.delete_records(-1)) == 7

    run(scenario)


def test_deleting_records_on_a_full_disk_is_refused_and_changes_nothing() -> None:
    async def scenario(bench: Bench) -> None:
        await bench.append(3)
        bench.table.change_script = [StorageFull("no room")]
        assert code(await bench.partition.delete_records(2)) is ErrorCode.KAFKA_STORAGE_ERROR
        assert bench.partition.state.log_start == 0
        assert low_watermark(await bench.partition.delete_records(2)) == 2

    run(scenario)


def test_changes_that_wait_for_the_writer_are_bounded() -> None:
    async def scenario(bench: Bench) -> None:
        bench.table.gate.clear()
        first = bench.append()
        await asyncio.sleep(0)
        deleting = [bench.partition.delete_records(0) for _ in range(CHANGES_MAX + 1)]
        assert code(await deleting.pop()) is ErrorCode.THROTTLING_QUOTA_EXCEEDED
        bench.table.gate.set()
        assert base_offset(await first) == 0
        assert {low_watermark(result) for result in await asyncio.gather(*deleting)} == {0}

    in_threads(scenario)


def test_a_change_that_nothing_expects_to_fail_is_refused_and_the_writer_goes_on() -> None:
    async def scenario(bench: Bench) -> None:
        await bench.append(3)
        bench.table.change_script = [RuntimeError("a bug")]
        assert code(await bench.partition.delete_records(2)) is ErrorCode.UNKNOWN_SERVER_ERROR
        assert base_offset(await bench.append()) == 3
        assert low_watermark(await bench.partition.delete_records(2)) == 2

    run(scenario)


def test_a_change_whose_caller_goes_away_is_committed_all_the_same() -> None:
    async def scenario(bench: Bench) -> None:
        await bench.append(3)
        bench.table.gate.clear()
        appending = bench.append()
        await asyncio.sleep(0)
        catching_up = asyncio.ensure_future(bench.partition.catch_up())
        deleting = asyncio.ensure_future(bench.partition.maintenance.jobs.delete_records(2, may_delete=True))
        await settle()
        for caller in (catching_up, deleting):
            caller.cancel()
        bench.table.gate.set()
        assert base_offset(await appending) == 3
        await wait_until(lambda: bench.partition.state.log_start == 2)
        assert base_offset(await bench.append()) == 4

    in_threads(scenario)


def test_whoever_waits_for_a_change_is_told_when_the_partition_stops() -> None:
    async def scenario(bench: Bench) -> None:
        bench.table.gate.clear()
        first = bench.append()
        await asyncio.sleep(0)
        deleting = bench.partition.delete_records(0)
        retiring = asyncio.ensure_future(bench.partition.close(DELETED))
        await asyncio.sleep(0)
        bench.table.gate.set()
        await retiring
        assert base_offset(await first) == 0
        assert code(await deleting) is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert code(await bench.partition.delete_records(0)) is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert code(await bench.partition.maintain(MaintenanceAction.ROLL)) is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION

    in_threads(scenario)


# ---------------------------------------------------------------- compaction


def test_a_compacted_topic_is_compacted_up_to_its_newest_file() -> None:
    async def scenario(bench: Bench) -> None:
        for _ in range(DIRTY_FILES_MIN + 1):
            await bench.append()
        bench.partition.look_after()
        await wait_until(lambda: bench.table.rewrites.compacted_to > 0)
        assert bench.table.rewrites.compacted_to == DIRTY_FILES_MIN
        await settle()
        assert bench.table.rewrites.prepared == ["compact"]

    run(scenario, COMPACTED)


def test_compaction_that_gains_nothing_is_not_tried_again_before_more_has_come() -> None:
    async def scenario(bench: Bench) -> None:
        bench.table.rewrites.gains = False
        for _ in range(DIRTY_FILES_MIN + 1):
            await bench.append()
        for _ in range(5):
            bench.partition.look_after()
            await settle()
        assert bench.table.rewrites.prepared == ["compact"]

    run(scenario, COMPACTED)


def test_a_file_that_cannot_be_read_ends_compaction_over_it_until_it_is_gone() -> None:
    async def scenario(bench: Bench) -> None:
        bench.table.rewrites.script = [RecordsDamaged("file-1 is no Parquet")]
        for _ in range(DIRTY_FILES_MIN + 1):
            await bench.append()
        for _ in range(5):
            bench.partition.look_after()
            await asyncio.sleep(BACKOFF_S * 2)
        assert bench.table.rewrites.prepared == ["compact"]
        assert code(await bench.partition.maintain(MaintenanceAction.COMPACT)) is ErrorCode.KAFKA_STORAGE_ERROR
        bench.partition.configure(with_rules(replace(COMPACTED, may_delete_records=True)))
        await bench.partition.delete_records(DIRTY_FILES_MIN)
        for _ in range(DIRTY_FILES_MIN):
            await bench.append()
        bench.partition.look_after()
        await wait_until(lambda: bench.table.rewrites.compacted_to > 0)

    run(scenario, COMPACTED)


def test_the_bus_own_topics_are_compacted_as_a_whole_after_commits() -> None:
    async def scenario(bench: Bench) -> None:
        for _ in range(DIRTY_FILES_MIN):
            await bench.append()
        await wait_until(lambda: bench.table.rewrites.compacted_to == DIRTY_FILES_MIN)
        assert base_offset(await bench.append()) == DIRTY_FILES_MIN

    run(scenario, INTERNAL)


# ---------------------------------------------------------------- cleaning


def test_versions_and_files_are_dropped_by_their_ages_and_then_it_rests() -> None:
    async def scenario(bench: Bench) -> None:
        versions = bench.partition.writer.settings.maintenance.versions
        await bench.append()
        bench.partition.look_after()
        await settle()
        now_ms = bench.clock.time_ms
        assert bench.table.cleanup.dropping == [
            (now_ms - versions.retention_ms, versions.count_max, now_ms - versions.file_delete_delay_ms)
        ]
        await asyncio.sleep(60)
        bench.clock.advance(2 * versions.retention_ms)
        for _ in range(3):
            bench.partition.look_after()
            await settle()
        assert len(bench.table.cleanup.dropping) == 2
        await bench.append()
        bench.partition.look_after()
        await settle()
        assert len(bench.table.cleanup.dropping) == 3

    run(scenario)


def test_a_checkpoint_is_written_where_versions_stay_only_for_want_of_one() -> None:
    async def scenario(bench: Bench) -> None:
        await bench.append()
        bench.table.cleanup.is_checkpoint_needed = True
        bench.partition.look_after()
        await wait_until(lambda: len(bench.table.cleanup.dropping) == 1)
        assert bench.table.cleanup.checkpoints == [1]

    run(scenario)


def test_many_versions_are_dropped_after_a_checkpoint_without_waiting_for_their_age() -> None:
    async def scenario(bench: Bench) -> None:
        rules = replace(ROLLING, versions=replace(ROLLING.versions, count_max=1_000))
        bench.partition.configure(with_rules(rules))
        for _ in range(100):
            await bench.append()
        bench.table.cleanup.is_checkpoint_due = True
        await bench.append()
        await wait_until(lambda: len(bench.table.cleanup.dropping) == 1)

    run(scenario)


def test_orphans_are_deleted_a_grace_after_they_were_found_and_only_once() -> None:
    async def scenario(bench: Bench) -> None:
        bench.table.cleanup.orphans = frozenset({"left"})
        grace_s = ROLLING.versions.file_delete_delay_ms / 1000
        bench.partition.look_after()
        await settle()
        bench.table.cleanup.orphans = frozenset({"left", "new"})
        await asyncio.sleep(grace_s - 1)
        bench.partition.look_after()
        await settle()
        assert bench.table.cleanup.deleted_orphans == []
        await asyncio.sleep(2)
        for _ in range(3):
            bench.partition.look_after()
            await settle()
        assert bench.table.cleanup.deleted_orphans == [frozenset({"left"})]

    run(scenario)


def test_files_are_rolled_while_old_ones_are_being_deleted() -> None:
    async def scenario(bench: Bench) -> None:
        fill(bench.table, RUN_FILES_MAX)
        await bench.partition.writer.rebuild()
        bench.table.cleanup.gate.clear()
        bench.partition.look_after()
        await wait_until(lambda: len(bench.table.cleanup.dropping) == 1)
        await wait_until(lambda: levels(bench.table) == [1])
        bench.partition.look_after()
        await settle()
        assert len(bench.table.cleanup.dropping) == 1
        bench.table.cleanup.gate.set()
        await wait_until(lambda: len(bench.table.cleanup.dropping) == 2)

    in_threads(scenario)


def test_a_partition_that_stops_waits_until_nothing_is_deleted_any_more() -> None:
    async def scenario(bench: Bench) -> None:
        bench.table.cleanup.gate.clear()
        bench.partition.look_after()
        await wait_until(lambda: len(bench.table.cleanup.dropping) == 1)
        retiring = asyncio.ensure_future(bench.partition.close(DELETED))
        await settle()
        assert not retiring.done()
        bench.table.cleanup.gate.set()
        await retiring

    in_threads(scenario)


def test_cleaning_that_fails_is_tried_again_after_the_backoff() -> None:
    async def scenario(bench: Bench) -> None:
        bench.table.cleanup.fault = StorageFault("no answer")
        bench.partition.look_after()
        await settle()
        assert len(bench.table.cleanup.dropping) == 1
        bench.table.cleanup.fault = None
        await asyncio.sleep(BACKOFF_S + 1)
        assert len(bench.table.cleanup.dropping) == 2

    run(scenario)


def test_a_checkpoint_is_written_when_the_table_says_so() -> None:
    async def scenario(bench: Bench) -> None:
        bench.table.cleanup.is_checkpoint_due = True
        await bench.append()
        await wait_until(lambda: bench.table.cleanup.checkpoints == [1])

    run(scenario)


@pytest.mark.parametrize(("commits", "is_written"), [(199, False), (200, True)])
def test_a_broker_that_stops_leaves_a_log_that_is_opened_quickly(commits: int, is_written: bool) -> None:
    async def scenario(bench: Bench) -> None:
        for _ in range(commits):
            await bench.append()
        await bench.partition.end_maintenance()
        await bench.partition.write_last_checkpoint()
        assert bool(bench.table.cleanup.checkpoints) is is_written
        bench.partition.look_after()
        assert code(await bench.partition.maintain(MaintenanceAction.CLEAN)) is ErrorCode.NOT_LEADER_OR_FOLLOWER

    run(scenario, SETTINGS.maintenance)


# ---------------------------------------------------------------- by hand


def test_a_roll_by_hand_takes_all_that_is_not_full() -> None:
    async def scenario(bench: Bench) -> None:
        for _ in range(3):
            await bench.append(size_bytes=100)
        result = await bench.partition.maintain(MaintenanceAction.ROLL)
        assert result == MaintainedLog(
            partition=0,
            version=4,
            files_before=3,
            files_after=1,
            bytes_before=300,
            bytes_after=300,
            rewritten_bytes=300,
            log_start=0,
            dropped_versions=0,
            deleted_files=0,
            deleted_bytes=0,
        )
        again = await bench.partition.maintain(MaintenanceAction.ROLL)
        assert isinstance(again, MaintainedLog)
        assert (again.version, again.rewritten_bytes) == (4, 0)

    run(scenario)


def test_a_compaction_by_hand_needs_the_policy_and_leaves_the_newest_file() -> None:
    async def scenario(bench: Bench) -> None:
        for _ in range(3):
            await bench.append()
        result = await bench.partition.maintain(MaintenanceAction.COMPACT)
        assert isinstance(result, MaintainedLog)
        assert (result.files_after, result.rewritten_bytes, bench.table.rewrites.compacted_to) == (2, 100, 2)
        bench.partition.configure(with_rules(ROLLING))
        assert code(await bench.partition.maintain(MaintenanceAction.COMPACT)) is ErrorCode.POLICY_VIOLATION

    run(scenario, COMPACTED)


def test_cleaning_by_hand_does_retention_too_and_counts_what_went() -> None:
    async def scenario(bench: Bench) -> None:
        await bench.append(3)
        bench.clock.advance(2_000)
        bench.table.cleanup.drop_result = Dropped(versions=4, data_files=2, data_bytes=77)
        result = await bench.partition.maintain(MaintenanceAction.CLEAN)
        assert isinstance(result, MaintainedLog)
        assert (result.log_start, result.files_before, result.files_after) == (3, 1, 0)
        assert (result.dropped_versions, result.deleted_files, result.deleted_bytes) == (4, 2, 77)

    run(scenario, RETAINING)


def test_what_is_asked_for_by_hand_is_refused_if_it_fails_and_does_not_wait_for_the_backoff() -> None:
    async def scenario(bench: Bench) -> None:
        for _ in range(2):
            await bench.append()
        bench.table.rewrites.script = [StorageFull("no room"), RuntimeError("a bug")]
        assert code(await bench.partition.maintain(MaintenanceAction.ROLL)) is ErrorCode.KAFKA_STORAGE_ERROR
        assert code(await bench.partition.maintain(MaintenanceAction.ROLL)) is ErrorCode.UNKNOWN_SERVER_ERROR
        assert isinstance(await bench.partition.maintain(MaintenanceAction.ROLL), MaintainedLog)

    run(scenario)


def test_files_that_others_prepared_are_checked_and_swapped_in() -> None:
    async def scenario(bench: Bench) -> None:
        for _ in range(3):
            await bench.append()
        removes = [file.path for file in bench.table.rewrites.live[:2]]
        assert await bench.partition.swap_files(removes, ["theirs"], SwapKind.SAME_ROWS) == FilesSwapped(4)
        assert [file.path for file in bench.table.rewrites.live] == ["theirs", "file-3"]
        bench.table.rewrites.swap_refusal = Refused(ErrorCode.INVALID_REQUEST, "expected offset 3, found 4")
        refused = await bench.partition.swap_files(["file-3"], ["bad"], SwapKind.SAME_ROWS)
        assert refused == bench.table.rewrites.swap_refusal
        by_key = await bench.partition.swap_files(["file-3"], ["fewer"], SwapKind.LAST_OF_KEYS)
        assert code(by_key) is ErrorCode.POLICY_VIOLATION

    run(scenario)


def test_files_that_others_prepared_stay_if_the_log_has_moved_under_them() -> None:
    async def scenario(bench: Bench) -> None:
        for _ in range(3):
            await bench.append()
        prepared = bench.table.rewrites.check_swap(
            [file.path for file in bench.table.rewrites.live[:2]], ["theirs"], SwapKind.SAME_ROWS
        )
        assert not isinstance(prepared, Refused)
        await bench.partition.delete_records(1)
        refused = await bench.partition.maintenance.jobs.commit_swap(prepared, is_ours=False)
        assert code(refused) is ErrorCode.INVALID_REQUEST
        assert bench.table.rewrites.discarded == []

    run(scenario)


def test_whoever_has_asked_by_hand_is_told_when_the_partition_stops() -> None:
    async def scenario(bench: Bench) -> None:
        fill(bench.table, 2)
        await bench.partition.writer.rebuild()
        bench.table.rewrites.gate.clear()
        running, waiting = (bench.partition.maintain(MaintenanceAction.ROLL) for _ in range(2))
        await wait_until(lambda: bench.table.rewrites.prepared == ["roll"])
        bench.partition.stop(ErrorCode.NOT_LEADER_OR_FOLLOWER, "fenced")
        bench.table.rewrites.gate.set()
        assert code(await waiting) is ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert code(await running) is ErrorCode.KAFKA_STORAGE_ERROR
        assert bench.table.rewrites.swaps == []

    in_threads(scenario)


def test_requests_for_maintenance_are_bounded() -> None:
    async def scenario(bench: Bench) -> None:
        answers = [bench.partition.maintain(MaintenanceAction.CLEAN) for _ in range(101)]
        assert code(await answers[-1]) is ErrorCode.THROTTLING_QUOTA_EXCEEDED
        results = await asyncio.gather(*answers[:-1])
        assert all(isinstance(result, MaintainedLog) for result in results)

    run(scenario)


def test_a_reader_in_a_hole_that_reaches_to_the_end_it_may_read_gets_nothing_yet() -> None:
    async def scenario(bench: Bench) -> None:
        await bench.append(3)
        readable = bench.partition.decide_fetch(1, None)
        bench.partition.writer._cache.clear(bench.partition.writer.tail)
        bench.table.commits.clear()
        result = await bench.partition.read(readable, 100)  # type: ignore[arg-type]
        assert not isinstance(result, Refused)
        assert (list(result.batches), result.high_watermark) == ([], 3)

    run(scenario)


# ---------------------------------------------------------------- who may write


@pytest.mark.parametrize("is_managed", [True, False])
def test_an_upgrade_is_one_version_and_none_where_the_table_is_as_its_topic_says(is_managed: bool) -> None:
    async def scenario(bench: Bench) -> None:
        bench.table.is_managed = not is_managed
        for expected in (1, 1):
            done = await bench.partition.maintain(MaintenanceAction.UPGRADE)
            assert isinstance(done, MaintainedLog)
            assert (done.version, done.is_managed) == (expected, is_managed)
        assert base_offset(await bench.append()) == 0

    run(scenario, replace(ROLLING, is_managed=is_managed))


def test_an_upgrade_beside_another_writer_is_done_behind_it() -> None:
    async def scenario(bench: Bench) -> None:
        bench.table.change_script = [Conflicted(1, leader_epoch=None, operation="OPTIMIZE")]
        bench.table.commit_foreign(0)
        done = await bench.partition.maintain(MaintenanceAction.UPGRADE)
        assert isinstance(done, MaintainedLog)
        assert (done.version, done.is_managed) == (2, True)

    run(scenario)


def test_an_upgrade_of_which_nobody_knows_the_outcome_is_not_done_twice() -> None:
    async def scenario(bench: Bench) -> None:
        bench.table.change_script = [Scripted.LOST_REPLY]
        assert code(await bench.partition.maintain(MaintenanceAction.UPGRADE)) is ErrorCode.KAFKA_STORAGE_ERROR
        done = await bench.partition.maintain(MaintenanceAction.UPGRADE)
        assert isinstance(done, MaintainedLog)
        assert (done.version, done.is_managed) == (1, True)

    run(scenario)


def test_an_upgrade_by_a_leader_that_another_one_follows_is_refused() -> None:
    async def scenario(bench: Bench) -> None:
        bench.table.change_script = [Conflicted(1, leader_epoch=7, operation="FENCE", is_rival=True)]
        assert isinstance(await bench.partition.maintain(MaintenanceAction.UPGRADE), Refused)
        assert not bench.table.is_managed
        assert bench.partition.stopped is not None

    run(scenario)
