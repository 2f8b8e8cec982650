from __future__ import annotations

import asyncio

from bus.errors import ErrorCode, Refused, StorageFault, StorageFull
from bus.model import ProducerStamp
from bus.ports import Conflicted, Unknown
from bus.runtime.partitions.partition_queue import Appended, ProducerResumed
from tests.support.fake_table import Scripted, wait_until
from tests.support.partition_bench import DELETED, Bench, base_offset, code, run

DAY_MS = 86_400_000
OUT_OF_ORDER = ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


def sequences(bench: Bench, producer_id: int = 7) -> list[int]:
    return [row.sequence for row in bench.table.rows if row.producer_id == producer_id]


def test_repeat_has_the_offset_and_the_version_of_the_original() -> None:
    async def scenario(bench: Bench) -> None:
        first = await bench.send(7, 0, 10)
        await bench.append(5)
        assert await bench.send(7, 0, 10) == first == Appended(0, 1, -1, 0)
        assert len(bench.table.commits) == 2
        assert bench.table.producers.asked == []

    run(scenario)


def test_repeat_within_one_commit_waits_for_it_and_has_its_answer() -> None:
    async def scenario(bench: Bench) -> None:
        bench.table.gate.clear()
        waiting = [bench.append(), bench.send(7, 0, 3), bench.send(7, 0, 3), bench.send(7, 3, 1)]
        await asyncio.sleep(0)
        assert not any(answer.done() for answer in waiting)
        bench.table.gate.set()
        assert [base_offset(answer) for answer in await asyncio.gather(*waiting)] == [0, 1, 1, 4]
        assert sequences(bench) == [0, 1, 2, 3]

    run(scenario)


def test_repeat_within_a_commit_that_fails_fails_with_it() -> None:
    async def scenario(bench: Bench) -> None:
        bench.table.script = [StorageFull("no room")]
        original, repeat = bench.send(7, 0, 3), bench.send(7, 0, 3)
        assert code(await original) is code(await repeat) is ErrorCode.KAFKA_STORAGE_ERROR
        assert base_offset(await bench.send(7, 0, 3)) == 0
        assert sequences(bench) == [0, 1, 2]

    run(scenario)


def test_repeat_of_a_batch_in_flight_is_decided_after_it() -> None:
    async def scenario(bench: Bench) -> None:
        bench.table.gate.clear()
        original = bench.send(7, 0, 3)
        await asyncio.sleep(0)  # the writer takes it alone
        repeat = bench.send(7, 0, 3)
        bench.table.gate.set()
        assert await original == await repeat
        assert len(bench.table.commits) == 1

    run(scenario)


def test_batch_behind_a_failed_one_is_not_taken_before_it() -> None:
    """The very first batch of a producer, too: otherwise its retry would look like a duplicate, and be lost."""

    async def scenario(bench: Bench) -> None:
        bench.table.script = [StorageFault("the disk does not answer")]
        bench.table.gate.clear()
        first = bench.send(7, 0, 10)
        await asyncio.sleep(0)
        second = bench.send(7, 10, 10)
        bench.table.gate.set()
        assert code(await first) is ErrorCode.KAFKA_STORAGE_ERROR
        assert code(await second) is OUT_OF_ORDER
        assert base_offset(await bench.send(7, 0, 10)) == 0
        assert base_offset(await bench.send(7, 10, 10)) == 10

    run(scenario)


def test_repeat_is_answered_though_the_limits_have_changed_and_a_new_batch_is_refused() -> None:
    async def scenario(bench: Bench) -> None:
        assert base_offset(await bench.send(7, 0)) == 0
        bench.configure(record_bytes_max=1)
        assert base_offset(await bench.send(7, 0)) == 0
        assert code(await bench.send(7, 1)) is ErrorCode.MESSAGE_TOO_LARGE

    run(scenario)


def test_refused_batch_leaves_its_sequences_expected() -> None:
    async def scenario(bench: Bench) -> None:
        bench.configure(record_bytes_max=1)
        assert code(await bench.send(7, 0)) is ErrorCode.MESSAGE_TOO_LARGE
        bench.configure()
        assert code(await bench.send(7, 1)) is OUT_OF_ORDER
        assert base_offset(await bench.send(7, 0)) == 0

    run(scenario)


def test_batch_older_than_the_last_five_is_found_in_the_table() -> None:
    async def scenario(bench: Bench) -> None:
        for sequence in range(0, 12, 2):
            await bench.send(7, sequence, 2)
        assert await bench.send(7, 2, 2) == Appended(2, 2, -1, 0)
        assert bench.table.producers.asked == []
        assert await bench.send(7, 0, 2) == Appended(0, 6, -1, 0)
        assert bench.table.producers.asked == ["match_producer"]
        assert sequences(bench) == list(range(12))

    run(scenario)


def test_batch_that_needs_the_table_ends_the_commit_before_it_and_keeps_its_place() -> None:
    async def scenario(bench: Bench) -> None:
        bench.table.commit_stamped(ProducerStamp(7, 0, 0), 4)
        bench = bench.reopened()
        answers = [bench.append(2), bench.send(7, 0, 4), bench.append(1), bench.send(7, 2, 4), bench.append(1)]
        results = await asyncio.gather(*answers)
        assert [base_offset(result) for result in results] == [4, 0, 6, 2, 9]
        assert isinstance(results[3], Appended)
        assert results[3].offsets == [2, 3, 7, 8]
        assert [len(commit) for commit in bench.table.commits[1:]] == [1, 1, 2]
        assert sequences(bench) == list(range(6))

    run(scenario)


def test_rest_of_a_batch_that_the_table_has_in_part_is_appended_once() -> None:
    async def scenario(bench: Bench) -> None:
        await bench.send(7, 0, 4)
        await bench.append(1)
        overlapping = await bench.send(7, 2, 4)
        assert overlapping == Appended(2, 3, -1, 0, offsets=[2, 3, 5, 6])
        again = await bench.send(7, 2, 4)
        assert isinstance(again, Appended)
        assert again.offsets == [2, 3, 5, 6]
        assert base_offset(await bench.send(7, 6, 1)) == 7
        assert sequences(bench) == list(range(7))

    run(scenario)


def test_retired_records_are_never_appended_again() -> None:
    async def scenario(bench: Bench) -> None:
        await bench.send(7, 0, 4)
        await bench.send(7, 4, 4)
        bench.table.retire(2)
        bench = bench.reopened()
        assert code(await bench.send(7, 0, 2)) is ErrorCode.DUPLICATE_SEQUENCE_NUMBER
        in_part = await bench.send(7, 0, 4)
        assert isinstance(in_part, Appended)
        assert in_part.offsets == [-1, -1, 2, 3]
        assert code(await bench.send(7, 1, 8)) is OUT_OF_ORDER
        assert base_offset(await bench.send(7, 8, 1)) == 8

    run(scenario)


def test_compacted_records_are_never_appended_again() -> None:
    async def scenario(bench: Bench) -> None:
        await bench.send(7, 0, 4)
        await bench.send(7, 4, 4)
        bench = bench.reopened()
        bench.table.rows = [row for row in bench.table.rows if row.offset in (2, 3, 7)]
        bench.table.rewrites.compacted_to = 8
        assert code(await bench.send(7, 0, 2)) is ErrorCode.DUPLICATE_SEQUENCE_NUMBER
        assert code(await bench.send(7, 4, 3)) is ErrorCode.DUPLICATE_SEQUENCE_NUMBER
        in_part = await bench.send(7, 0, 4)
        assert isinstance(in_part, Appended)
        assert in_part.offsets == [-1, -1, 2, 3]
        assert code(await bench.send(7, 9, 1)) is OUT_OF_ORDER
        assert base_offset(await bench.send(7, 8, 1)) == 8

    run(scenario)


def test_records_that_are_in_no_whole_log_were_never_there() -> None:
    async def scenario(bench: Bench) -> None:
        await bench.send(7, 0, 4)
        bench = bench.reopened()
        bench.table.rows = []
        assert code(await bench.send(7, 0, 2)) is OUT_OF_ORDER

    run(scenario)


def test_new_leader_knows_the_producers_of_the_old_one() -> None:
    async def scenario(bench: Bench) -> None:
        first = await bench.send(7, 0, 4, epoch=2)
        bench = bench.reopened()
        assert code(await bench.send(7, 0, 4, epoch=1)) is ErrorCode.INVALID_PRODUCER_EPOCH
        assert code(await bench.send(7, 5, 4, epoch=2)) is OUT_OF_ORDER
        assert await bench.send(7, 0, 4, epoch=2) == first
        assert bench.table.producers.asked == ["match_producer"]
        assert base_offset(await bench.send(7, 4, 4, epoch=2)) == 4

    run(scenario)


def test_unknown_outcome_that_was_a_commit_makes_the_retry_a_repeat() -> None:
    async def scenario(bench: Bench) -> None:
        bench.table.script = [Scripted.LOST_REPLY]
        assert code(await bench.send(7, 0, 4)) is ErrorCode.KAFKA_STORAGE_ERROR
        assert await bench.send(7, 0, 4) == Appended(0, 1, -1, 0)
        assert sequences(bench) == [0, 1, 2, 3]

    run(scenario)


def test_unknown_outcome_that_was_none_makes_the_retry_an_append() -> None:
    async def scenario(bench: Bench) -> None:
        bench.table.script = [Unknown(1, "sync of the folder failed")]
        assert code(await bench.send(7, 0, 4)) is ErrorCode.KAFKA_STORAGE_ERROR
        assert code(await bench.send(7, 4, 4)) is OUT_OF_ORDER
        assert base_offset(await bench.send(7, 0, 4)) == 0

    run(scenario)


def test_lost_race_runs_repeats_and_originals_again_behind_the_winner() -> None:
    async def scenario(bench: Bench) -> None:
        bench.table.script = [Conflicted(1, leader_epoch=3, operation="MERGE")]
        answers = [bench.send(7, 0, 2), bench.send(7, 0, 2), bench.send(7, 2, 2)]
        bench.table.commit_foreign(5)
        assert [base_offset(answer) for answer in await asyncio.gather(*answers)] == [5, 5, 7]
        assert sequences(bench) == [0, 1, 2, 3]

    run(scenario)


def test_lost_race_keeps_those_behind_who_wait_for_the_table() -> None:
    async def scenario(bench: Bench) -> None:
        bench.table.commit_stamped(ProducerStamp(8, 0, 0), 3)
        bench = bench.reopened()
        bench.table.script = [Conflicted(2, leader_epoch=3, operation="OPTIMIZE")]
        answers = [bench.send(7, 0, 2), bench.send(8, 0, 3), bench.send(7, 2, 2)]
        assert [base_offset(answer) for answer in await asyncio.gather(*answers)] == [3, 0, 5]

    run(scenario)


def test_lost_race_against_the_very_records_finds_them() -> None:
    """A bulk load may have merged them on the same key."""

    async def scenario(bench: Bench) -> None:
        bench.table.script = [Conflicted(1, leader_epoch=None, operation="MERGE")]
        answer = bench.send(7, 0, 2)
        bench.table.commit_stamped(ProducerStamp(7, 0, 0), 2)
        assert base_offset(await answer) == 0
        assert sequences(bench) == [0, 1]

    run(scenario)


def test_acks_1_whose_commit_fails_shows_the_loss_to_the_producer() -> None:
    async def scenario(bench: Bench) -> None:
        bench.table.script = [StorageFault("the disk does not answer")]
        lost = bench.send(7, 0, 4, acks=1)
        repeat = bench.send(7, 0, 4, acks=1)
        assert await lost == await repeat == Appended(0, -1, -1, 0)
        assert code(await bench.send(7, 4, 4, acks=1)) is OUT_OF_ORDER

    run(scenario)


def test_table_that_cannot_be_asked_refuses_this_batch_only() -> None:
    async def scenario(bench: Bench) -> None:
        bench.table.commit_stamped(ProducerStamp(7, 0, 0), 4)
        bench = bench.reopened()
        bench.table.producers.fault = StorageFault("the disk does not answer")
        repeat, other = bench.send(7, 0, 4), bench.send(8, 0, 1)
        assert code(await repeat) is ErrorCode.KAFKA_STORAGE_ERROR
        assert base_offset(await other) == 4
        bench.table.producers.fault = None
        assert base_offset(await bench.send(7, 0, 4)) == 0

    run(scenario)


def test_bug_while_the_table_is_asked_answers_all_that_waited() -> None:
    async def scenario(bench: Bench) -> None:
        bench.table.commit_stamped(ProducerStamp(7, 0, 0), 4)
        bench = bench.reopened()
        bench.table.producers.fault = RuntimeError("a bug")
        before, repeat, after = bench.append(), bench.send(7, 0, 4), bench.append()
        assert base_offset(await before) == 4
        assert code(await repeat) is code(await after) is ErrorCode.UNKNOWN_SERVER_ERROR
        assert base_offset(await bench.append()) == 5

    run(scenario)


def test_partition_that_stops_while_the_table_is_asked_appends_nothing_more() -> None:
    async def scenario(bench: Bench) -> None:
        bench.table.commit_stamped(ProducerStamp(7, 0, 0), 4)
        bench = bench.reopened()
        answers = [bench.send(7, 0, 8), bench.append()]
        await asyncio.sleep(0)
        bench.partition.stop(ErrorCode.NOT_LEADER_OR_FOLLOWER, "the test says so")
        assert {code(answer) for answer in await asyncio.gather(*answers)} == {ErrorCode.NOT_LEADER_OR_FOLLOWER}
        assert len(bench.table.commits) == 1

    run(scenario)


def test_idle_producer_leaves_memory_and_goes_on_where_its_rows_end() -> None:
    async def scenario(bench: Bench) -> None:
        await bench.send(7, 0, 4, epoch=1)
        bench.clock.time_ms += DAY_MS + 1
        await bench.send(9, 0, 1)  # at this commit the other one is forgotten
        assert set(bench.table.producers.progress) == {9}
        assert code(await bench.send(7, 0, 4)) is ErrorCode.INVALID_PRODUCER_EPOCH
        assert bench.table.producers.asked == ["find_last_sequence"]
        assert code(await bench.send(7, 5, 1, epoch=1)) is OUT_OF_ORDER
        assert base_offset(await bench.send(7, 0, 4, epoch=1)) == 0
        assert base_offset(await bench.send(7, 4, 4, epoch=1)) == 5
        assert bench.table.producers.asked == ["find_last_sequence", "match_producer"]
        assert sequences(bench) == list(range(8))

    run(scenario)


def test_repeat_of_a_producer_that_was_idle_while_nobody_led_is_found() -> None:
    async def scenario(bench: Bench) -> None:
        first = await bench.send(7, 0, 4)
        bench.clock.time_ms += DAY_MS + 1
        bench = bench.reopened()
        assert await bench.send(7, 0, 4) == first
        assert bench.table.producers.asked == ["find_last_sequence", "match_producer"]

    run(scenario)


def test_forgotten_producer_whose_rows_are_gone_goes_on_where_it_ended() -> None:
    async def scenario(bench: Bench) -> None:
        await bench.send(7, 0, 4)
        bench.table.retire(4)
        bench.clock.time_ms += DAY_MS + 1
        bench = bench.reopened()
        assert code(await bench.send(7, 6, 2)) is OUT_OF_ORDER
        assert base_offset(await bench.send(7, 4, 4)) == 4
        assert code(await bench.send(7, 2, 2)) is ErrorCode.DUPLICATE_SEQUENCE_NUMBER
        assert bench.table.producers.asked == ["find_last_sequence", "match_producer"]

    run(scenario)


def test_producer_that_keeps_appending_is_not_forgotten() -> None:
    async def scenario(bench: Bench) -> None:
        for sequence in range(6):
            await bench.send(7, sequence)
            bench.clock.time_ms += DAY_MS // 2
        bench.table.producers.asked.clear()
        assert base_offset(await bench.send(7, 5)) == 5
        assert bench.table.producers.asked == []

    run(scenario)


def test_resuming_waits_for_what_was_queued_before_and_fences_older_epochs() -> None:
    async def scenario(bench: Bench) -> None:
        bench.table.gate.clear()
        in_flight = bench.send(7, 0, 4)
        await asyncio.sleep(0)
        queued, resumed, late = bench.send(7, 4, 2), bench.resume(7, 1), bench.send(7, 6, 1)
        await asyncio.sleep(0)
        assert not resumed.done()
        bench.table.gate.set()
        assert [base_offset(await in_flight), base_offset(await queued)] == [0, 4]
        assert await resumed == ProducerResumed(last_sequence=5, last_epoch=0, version=2)
        assert code(await late) is ErrorCode.INVALID_PRODUCER_EPOCH
        assert code(await bench.resume(7, 0)) is ErrorCode.INVALID_PRODUCER_EPOCH
        assert await bench.resume(7, 1) == await resumed
        assert base_offset(await bench.send(7, 6, 1, epoch=1)) == 6

    run(scenario)


def test_resuming_a_producer_that_never_wrote_here_finds_nothing_and_fences() -> None:
    async def scenario(bench: Bench) -> None:
        assert await bench.resume(7, 2) == ProducerResumed(-1, -1, -1)
        assert code(await bench.send(7, 0, epoch=1)) is ErrorCode.INVALID_PRODUCER_EPOCH
        assert code(await bench.send(7, 3, epoch=2)) is OUT_OF_ORDER
        assert base_offset(await bench.send(7, 0, epoch=2)) == 0

    run(scenario)


def test_resuming_a_forgotten_producer_asks_its_rows() -> None:
    async def scenario(bench: Bench) -> None:
        await bench.send(7, 0, 4, epoch=1)
        bench.clock.time_ms += DAY_MS + 1
        bench = bench.reopened()
        assert await bench.resume(7, 2) == ProducerResumed(3, 1, 1)
        assert code(await bench.send(7, 4, epoch=1)) is ErrorCode.INVALID_PRODUCER_EPOCH
        assert base_offset(await bench.send(7, 4, epoch=2)) == 4

    run(scenario)


def test_fence_outlives_a_rebuild() -> None:
    async def scenario(bench: Bench) -> None:
        await bench.send(7, 0, 4)
        await bench.resume(7, 1)
        bench.table.script = [Unknown(2, "sync of the folder failed")]
        assert code(await bench.append()) is ErrorCode.KAFKA_STORAGE_ERROR
        assert code(await bench.send(7, 4, 1)) is ErrorCode.INVALID_PRODUCER_EPOCH

    run(scenario)


def test_resuming_while_the_log_cannot_be_read_is_refused_for_now() -> None:
    async def scenario(bench: Bench) -> None:
        bench.table.script = [Unknown(1, "sync of the folder failed")]
        bench.table.reload_fault = StorageFault("the disk does not answer")
        await bench.send(7, 0, 4)
        assert code(await bench.resume(7, 1)) is ErrorCode.KAFKA_STORAGE_ERROR
        bench.table.reload_fault = None
        assert await bench.resume(7, 1) == ProducerResumed(-1, -1, -1)

    run(scenario)


def test_closed_partition_refuses_those_who_resume() -> None:
    async def scenario(bench: Bench) -> None:
        bench.table.gate.clear()
        first = bench.send(7, 0)
        await asyncio.sleep(0)
        resumed = bench.resume(7, 1)
        retiring = asyncio.ensure_future(bench.partition.close(DELETED))
        await asyncio.sleep(0)
        bench.table.gate.set()
        await retiring
        assert base_offset(await first) == 0
        assert code(await resumed) is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert code(await bench.resume(7, 1)) is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION

    run(scenario)


def test_queue_full_of_those_who_resume_refuses_by_name() -> None:
    async def scenario(bench: Bench) -> None:
        bench.table.gate.clear()
        first = bench.append()
        await asyncio.sleep(0)
        waiting = [bench.resume(producer_id, 0) for producer_id in range(4)]
        assert code(await waiting.pop()) is ErrorCode.THROTTLING_QUOTA_EXCEEDED
        bench.table.gate.set()
        assert base_offset(await first) == 0
        assert not any(isinstance(answer, Refused) for answer in await asyncio.gather(*waiting))
        await wait_until(lambda: bench.partition.writer._queue.size_bytes == 0)

    run(scenario, queue_bytes_max=3 * 1024)
