from __future__ import annotations

import asyncio

import pytest

from bus.errors import ErrorCode, RecordsDamaged, Refused, StorageDamaged, StorageFault, StorageFull, show_way_out
from bus.model import MAX_TIMESTAMP
from bus.partition_log.reads import Readable
from bus.ports import CommitOutcome, Conflicted, Unknown
from bus.runtime.partitions.fetch_session import FetchPosition
from bus.runtime.partitions.fetches import FetchWish, Stopping, fetch
from bus.runtime.partitions.partition_queue import Appended
from tests.support.fake_table import wait_until
from tests.support.partition_bench import DELETED, NAME, Bench, base_offset, code, run
from tests.support.proofs import proved


def test_batches_that_wait_for_a_commit_share_the_next_one() -> None:
    async def scenario(bench: Bench) -> None:
        bench.table.gate.clear()
        answers = [bench.append(10)]
        await asyncio.sleep(0)  # the writer takes the first one alone
        answers += [bench.append(1) for _ in range(20)]
        bench.table.gate.set()
        results = await asyncio.gather(*answers)
        assert [base_offset(result) for result in results] == [0, *range(10, 30)]
        assert [len(commit) for commit in bench.table.commits] == [1, 20]
        assert bench.partition.state.high_watermark == 30

    run(scenario)


def test_nothing_is_answered_or_visible_before_its_commit() -> None:
    async def scenario(bench: Bench) -> None:
        bench.table.gate.clear()
        answer, leader_only, none = bench.append(5), bench.append(5, acks=1), bench.append(5, acks=0)
        assert none.done()
        assert base_offset(none.result()) == -1
        await wait_until(leader_only.done)
        result = leader_only.result()
        assert isinstance(result, Appended)
        assert (result.base_offset, result.version) == (5, -1)
        assert not answer.done()
        assert bench.partition.decide_fetch(0, None) == Readable(0, 0)
        bench.table.gate.set()
        assert base_offset(await answer) == 0
        assert bench.partition.decide_fetch(0, None) == Readable(0, 15)

    run(scenario)


def test_full_disk_refuses_the_write_serves_reads_and_recovers() -> None:
    async def scenario(bench: Bench) -> None:
        assert base_offset(await bench.append(2)) == 0
        bench.table.script = [StorageFull("no room")]
        refused = await bench.append(3)
        assert code(refused) is ErrorCode.KAFKA_STORAGE_ERROR
        assert code(refused).is_retriable
        assert bench.partition.decide_fetch(0, None) == Readable(0, 2)
        assert base_offset(await bench.append(3)) == 2

    run(scenario)


def test_lost_race_without_a_higher_epoch_is_run_again_behind_the_winner() -> None:
    async def scenario(bench: Bench) -> None:
        bench.table.script = [Conflicted(1, leader_epoch=3, operation="WRITE")]
        bench.table.commit_foreign(7)
        assert base_offset(await bench.append(2)) == 7

    run(scenario)


def test_higher_epoch_in_the_log_fences_this_leader_for_good() -> None:
    async def scenario(bench: Bench) -> None:
        bench.table.script = [Conflicted(1, leader_epoch=4, operation="WRITE")]
        first, second = bench.append(), bench.append()
        assert code(await first) is ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert code(await second) is ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert code(await bench.append()) is ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert bench.table.commits == []
        fenced = bench.partition.decide_fetch(0, None)
        assert isinstance(fenced, Refused)

    run(scenario)


@pytest.mark.parametrize(
    "outcome", [Conflicted(2, leader_epoch=None, operation="OPTIMIZE"), Unknown(2, "no sync"), RuntimeError("a bug")]
)
@pytest.mark.parametrize("is_append", [True, False])
def test_nothing_is_committed_behind_a_leader_that_is_found_when_the_log_is_read_again(
    outcome: CommitOutcome | Exception, is_append: bool
) -> None:
    """A foreign version 2 hides the fence of a newer leader, version 3."""

    async def scenario(bench: Bench) -> None:
        await bench.append(3)
        bench.table.script = [outcome] if is_append else []
        bench.table.change_script = [] if is_append else [outcome]
        bench.table.commit_foreign(0)
        bench.table.commit_foreign(0, leader_epoch=4)
        refused = await (bench.append() if is_append else bench.partition.delete_records(1))
        assert isinstance(refused, Refused)
        assert code(await bench.append()) is ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert code(await bench.partition.delete_records(1)) is ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert (bench.table.state.version, len(bench.table.commits)) == (3, 1)

    run(scenario)


def test_unknown_outcome_is_said_and_the_log_decides() -> None:
    async def scenario(bench: Bench) -> None:
        bench.table.script = [Unknown(1, "sync of the folder failed")]
        answer = bench.append(4)
        bench.table.commit_foreign(4)  # it was committed after all
        assert code(await answer) is ErrorCode.KAFKA_STORAGE_ERROR
        assert base_offset(await bench.append(1)) == 4

    run(scenario)


def test_log_that_went_back_stops_the_partition() -> None:
    async def scenario(bench: Bench) -> None:
        await bench.append(4)
        bench.table.script = [Conflicted(2, leader_epoch=None, operation="RESTORE")]
        bench.table.commit_foreign(-2)
        assert code(await bench.append()) is ErrorCode.KAFKA_STORAGE_ERROR
        assert bench.partition.stopped is not None
        assert "went back" in bench.partition.stopped.message

    run(scenario)


def test_damaged_log_stops_the_partition_with_its_reason() -> None:
    async def scenario(bench: Bench) -> None:
        bench.table.script = [Conflicted(1, leader_epoch=None, operation="DELETE")]
        bench.table.reload_fault = StorageDamaged("version 1 removed rows")
        result = await bench.append()
        assert isinstance(result, Refused)
        assert "version 1 removed rows" in result.message
        assert code(await bench.append()) is ErrorCode.KAFKA_STORAGE_ERROR

    run(scenario)


def test_log_that_cannot_be_read_for_now_is_tried_again_by_the_next_append() -> None:
    async def scenario(bench: Bench) -> None:
        bench.table.script = [Unknown(1, "sync of the folder failed")]
        bench.table.reload_fault = StorageFault("the disk does not answer")
        assert code(await bench.append(4)) is ErrorCode.KAFKA_STORAGE_ERROR
        assert code(await bench.append(4)) is ErrorCode.KAFKA_STORAGE_ERROR
        assert bench.table.commits == []
        bench.table.reload_fault = None
        assert base_offset(await bench.append(1)) == 0

    run(scenario)


def test_fault_that_nobody_foresaw_answers_and_the_writer_goes_on() -> None:
    async def scenario(bench: Bench) -> None:
        bench.table.script = [RuntimeError("a bug")]
        assert code(await bench.append()) is ErrorCode.UNKNOWN_SERVER_ERROR
        assert base_offset(await bench.append()) == 0

    run(scenario)


def test_full_queue_refuses_by_name_and_takes_again_when_there_is_room() -> None:
    async def scenario(bench: Bench) -> None:
        bench.table.gate.clear()
        first = bench.append()
        await asyncio.sleep(0)
        waiting = [bench.append(size_bytes=100) for _ in range(10)]
        refused = bench.append(size_bytes=1)
        assert code(await refused) is ErrorCode.THROTTLING_QUOTA_EXCEEDED
        bench.table.gate.set()
        assert [base_offset(result) for result in await asyncio.gather(first, *waiting)] == list(range(11))
        assert base_offset(await bench.append()) == 11

    run(scenario, queue_bytes_max=1000)


def test_caller_that_went_away_disturbs_nobody() -> None:
    async def scenario(bench: Bench) -> None:
        bench.table.gate.clear()
        gone, stays = bench.append(2), bench.append(2)
        await asyncio.sleep(0)
        gone.cancel()
        bench.table.gate.set()
        assert base_offset(await stays) == 2

    run(scenario)


def test_closed_partition_finishes_its_commit_and_refuses_the_rest() -> None:
    async def scenario(bench: Bench) -> None:
        bench.table.gate.clear()
        first = bench.append()
        await asyncio.sleep(0)
        second = bench.append()
        retiring = asyncio.ensure_future(bench.partition.close(DELETED))
        await asyncio.sleep(0)
        bench.table.gate.set()
        await retiring
        assert base_offset(await first) == 0
        assert code(await second) is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION

    run(scenario)


def wish(offset: int, *, bytes_min: int = 1, wait_ms: int = 60_000) -> FetchWish:
    return FetchWish([FetchPosition(NAME, "", offset, 1_000_000, None)], wait_ms, bytes_min, lambda: 1_000_000)


def test_waiting_fetch_is_woken_by_the_commit() -> None:
    async def scenario(bench: Bench) -> None:
        waiting = asyncio.ensure_future(fetch(wish(0), lambda name, topic_id: bench.partition, proved, Stopping()))
        await asyncio.sleep(0)
        await bench.append(3)
        ((position, result),) = await waiting
        assert position.partition == NAME
        assert not isinstance(result, Refused)
        assert [batch.base_offset for batch in result.batches] == [0]
        assert result.high_watermark == 3

    run(scenario)


def test_fetch_that_waits_behind_offsets_whose_commit_fails_learns_so_at_once() -> None:
    async def scenario(bench: Bench) -> None:
        bench.table.gate.clear()
        bench.table.script = [StorageFault("the disk does not answer")]
        answer = bench.append(4)
        await asyncio.sleep(0.01)
        waiting = asyncio.ensure_future(fetch(wish(2), lambda name, topic_id: bench.partition, proved, Stopping()))
        await asyncio.sleep(0.01)
        assert not waiting.done()
        bench.table.gate.set()
        assert code(await answer) is ErrorCode.KAFKA_STORAGE_ERROR
        ((_, result),) = await asyncio.wait_for(waiting, 10)
        assert code(result) is ErrorCode.OFFSET_OUT_OF_RANGE

    run(scenario)


def test_fetch_waits_for_min_bytes_and_answers_what_there_is_when_time_is_up() -> None:
    async def scenario(bench: Bench) -> None:
        await bench.append(3, size_bytes=50)
        await fetch(wish(0, bytes_min=1000, wait_ms=1), lambda name, topic_id: bench.partition, proved, Stopping())
        waiting = asyncio.ensure_future(
            fetch(wish(0, bytes_min=100), lambda name, topic_id: bench.partition, proved, Stopping())
        )
        await asyncio.sleep(0)
        assert not waiting.done()
        await bench.append(3, size_bytes=50)
        ((_, result),) = await waiting
        assert not isinstance(result, Refused)
        assert sum(batch.record_count for batch in result.batches) == 6

    run(scenario)


@pytest.mark.parametrize("offset", [-1, 4])
def test_fetch_outside_the_log_is_answered_at_once(offset: int) -> None:
    async def scenario(bench: Bench) -> None:
        await bench.append(3)
        ((_, result),) = await fetch(wish(offset), lambda name, topic_id: bench.partition, proved, Stopping())
        assert isinstance(result, Refused)
        assert result.code is ErrorCode.OFFSET_OUT_OF_RANGE

    run(scenario)


def test_file_that_cannot_be_read_refuses_this_fetch_only() -> None:
    async def scenario(bench: Bench) -> None:
        bench.table.commit_foreign(3)
        await bench.partition.writer.rebuild()

        def fail(offset: int, *, end_offset: int, max_bytes: int) -> list[object]:
            raise StorageFault("the disk does not answer")

        bench.table.log.read = fail  # type: ignore[assignment]
        ((_, result),) = await fetch(wish(0), lambda name, topic_id: bench.partition, proved, Stopping())
        assert isinstance(result, Refused)
        assert result.code is ErrorCode.KAFKA_STORAGE_ERROR
        assert base_offset(await bench.append()) == 3

    run(scenario)


def test_offset_at_a_version_is_the_high_watermark_that_it_left() -> None:
    async def scenario(bench: Bench) -> None:
        await bench.append(2)
        await bench.append(3)
        listed = [await bench.partition.list_offset_at(version, None) for version in (0, 1, 2, 3, -1)]
        assert [one.offset for one in listed if not isinstance(one, Refused)] == [0, 2, 5, -1, -1]
        fenced = await bench.partition.list_offset_at(1, bench.partition.state.leader_epoch + 1)
        assert isinstance(fenced, Refused)

    run(scenario)


@pytest.mark.parametrize("timestamp_ms", [1_000, MAX_TIMESTAMP])
@pytest.mark.parametrize(
    ("fault", "answer", "is_stopped"),
    [
        (
            RecordsDamaged("file x, offsets 0 to 2"),
            Refused(ErrorCode.CORRUPT_MESSAGE, f"{NAME}: file x, offsets 0 to 2; {show_way_out(NAME.topic, 0)}"),
            False,
        ),
        (StorageDamaged("version x"), Refused(ErrorCode.KAFKA_STORAGE_ERROR, f"{NAME}: version x"), True),
        (StorageFault("disk x"), Refused(ErrorCode.KAFKA_STORAGE_ERROR, f"{NAME}: disk x"), False),
    ],
)
def test_a_time_is_looked_up_in_damaged_records_with_the_answer_of_a_fetch(
    fault: StorageFault, answer: Refused, is_stopped: bool, timestamp_ms: int
) -> None:
    async def scenario(bench: Bench) -> None:
        await bench.append(3)
        bench.table.log.fault = fault
        assert await bench.partition.list_offset(timestamp_ms, None) == answer
        assert (bench.partition.stopped is not None) is is_stopped

    run(scenario)
