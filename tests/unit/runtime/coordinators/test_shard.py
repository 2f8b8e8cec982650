"""A shard of groups: nothing is said before it is committed, and memory is what the log says."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any, cast

import pytest

from bus.consumer_groups import requests as rq
from bus.consumer_groups.loading import GroupCodec
from bus.consumer_groups.records import decode_record
from bus.consumer_groups.requests import GroupTimer, TimerKind
from bus.errors import ErrorCode, Refused, StorageFault, StorageFull
from bus.ports import Conflicted, KeyedRow, LogState, Unknown
from bus.runtime.coordinators import shard
from bus.runtime.coordinators.group_coordinator import sweep
from bus.runtime.coordinators.shard import Turn
from tests.support.fake_table import ManualClock, Scripted, wait_until
from tests.support.group_bench import RULES, GroupBench, commit_of, join_of, run, sync_of
from tests.support.partition_bench import LoopClock

TAKEN = rq.OffsetsCommitted((None,))


def code(answer: object) -> ErrorCode:
    refused = answer.refused if isinstance(answer, rq.JoinRefused) else answer
    assert isinstance(refused, Refused), answer
    return refused.code


def test_answer_that_has_to_wait_is_none_at_once() -> None:
    async def scenario(bench: GroupBench) -> None:
        known = rq.DescribeGroup("nobody")
        assert code(bench.shard.answer_at_once(known)) is ErrorCode.GROUP_ID_NOT_FOUND
        assert bench.shard.answer_at_once(commit_of("g", 5)) is None, "its record has to be committed"
        assert bench.shard.answer_at_once(known) is None, "a commit is in flight"
        assert await bench.offset("g") == 5

    run(scenario)


def test_nothing_is_answered_or_visible_before_its_commit() -> None:
    async def scenario(bench: GroupBench) -> None:
        bench.table.gate.clear()
        commit = bench.commit("g", 5)
        for _ in range(20):
            await asyncio.sleep(0)
        assert not commit.done()
        assert "g" not in bench.shard.states
        bench.table.gate.set()
        assert await commit == TAKEN
        assert await bench.offset("g") == 5

    run(scenario)


def test_commands_that_come_while_a_commit_is_in_flight_share_the_next_one() -> None:
    async def scenario(bench: GroupBench) -> None:
        bench.table.gate.clear()
        answers = [bench.commit("first", 1)]
        for _ in range(10):
            await asyncio.sleep(0)
        answers += [bench.commit(f"g{number}", number) for number in range(20)]
        bench.table.gate.set()
        assert await asyncio.gather(*answers) == [TAKEN] * 21
        assert [sum(batch.record_count for batch in commit) for commit in bench.table.commits] == [1, 20]

    run(scenario)


def test_decisions_of_one_commit_see_one_another() -> None:
    async def scenario(bench: GroupBench) -> None:
        bench.table.gate.clear()
        first = bench.commit("g", 1)
        for _ in range(10):
            await asyncio.sleep(0)
        delete, commit, fetch = (
            bench.submit(rq.DeleteGroup("g")),
            bench.commit("g", 9, generation=3, member_id="zombie"),
            bench.submit(rq.OffsetFetch("g", None)),
        )
        bench.table.gate.set()
        assert await first == TAKEN
        assert await delete == rq.GroupDeleted()
        refused = await commit
        assert isinstance(refused, Refused)
        assert await fetch == rq.OffsetsFetched(())

    run(scenario)


def test_what_needs_no_record_is_answered_at_once() -> None:
    async def scenario(bench: GroupBench) -> None:
        answer = bench.submit(rq.DescribeGroup("nobody"))
        assert answer.done()
        assert code(answer.result()) is ErrorCode.GROUP_ID_NOT_FOUND
        assert bench.table.commits == []

    run(scenario)


@pytest.mark.parametrize(
    ("fault", "expected"),
    [
        (StorageFull("no room"), ErrorCode.NOT_COORDINATOR),
        (StorageFault("broken"), ErrorCode.NOT_COORDINATOR),
        (Unknown(1, "the sync failed"), ErrorCode.NOT_COORDINATOR),
        (Conflicted(1, 99, "STREAMING UPDATE"), ErrorCode.NOT_COORDINATOR),
    ],
)
def test_refused_append_happens_not_at_all_and_is_retriable(fault: object, expected: ErrorCode) -> None:
    async def scenario(bench: GroupBench) -> None:
        assert await bench.commit("g", 1) == TAKEN
        bench.table.script = [fault]  # type: ignore[list-item]
        refused = code(await bench.commit("g", 2))
        assert refused is expected
        assert refused.is_retriable
        await bench.loaded()
        if bench.partition.stopped is None:
            assert await bench.offset("g") == 1
            assert await bench.commit("g", 3) == TAKEN

    run(scenario)


def test_commit_whose_reply_was_lost_is_there_after_the_load() -> None:
    async def scenario(bench: GroupBench) -> None:
        bench.table.script = [Scripted.LOST_REPLY]
        assert code(await bench.commit("g", 2)) is ErrorCode.NOT_COORDINATOR
        await bench.loaded()
        assert await bench.offset("g") == 2
        assert await bench.commit("other", 1) == TAKEN

    run(scenario)


def test_load_waits_until_the_partition_knows_how_the_append_has_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shard, "_LOAD_RETRY_S", 0)

    async def scenario(bench: GroupBench) -> None:
        bench.table.script, reload, reloads = [Scripted.LOST_REPLY], bench.table.reload, []

        def counted() -> LogState:
            reloads.append(bench.table.reload_fault)
            return reload()

        monkeypatch.setattr(bench.table, "reload", counted)
        bench.table.reload_fault = StorageFault("the disk is away")
        assert code(await bench.commit("g", 2)) is ErrorCode.NOT_COORDINATOR
        await wait_until(lambda: len(reloads) > 2)
        assert bench.shard.is_loading, "what memory had before the append would be served"
        bench.table.reload_fault = None
        await bench.loaded()
        assert await bench.offset("g") == 2

    run(scenario)


def test_refused_append_answers_joins_that_wait_and_sets_no_timer() -> None:
    async def scenario(bench: GroupBench) -> None:
        await bench.member("g", "a")
        waiting = bench.submit(join_of("g", "b"), "b-1")
        assert not waiting.done()
        bench.table.script = [StorageFault("broken")]
        assert code(await bench.commit("other", 1)) is ErrorCode.NOT_COORDINATOR
        assert code(await waiting) is ErrorCode.NOT_COORDINATOR
        await bench.loaded()
        assert [member.group_instance_id for member in bench.shard.states["g"].members.values()] == ["a"]
        assert "other" not in bench.shard.states

    run(scenario)


def test_next_coordinator_has_group_generation_assignment_and_offsets() -> None:
    async def scenario(bench: GroupBench) -> None:
        joined = await bench.member("g", "a")
        taken = await bench.commit("g", 7, generation=joined.generation, member_id=joined.member_id)
        assert taken == TAKEN
        successor = await bench.reopened().loaded()
        group = successor.shard.states["g"]
        assert (group.generation, group.leader_id, group.state.value) == (1, "a-1", "Stable")
        assert await successor.offset("g") == 7
        assert GroupTimer(TimerKind.SESSION, "g", "a-1") in successor.shard._timers
        alive = rq.Heartbeat("g", joined.generation, joined.member_id, "a")
        assert successor.heartbeat(alive) == rq.HeartbeatTaken()
        zombie = await successor.commit("g", 1, generation=joined.generation - 1, member_id=joined.member_id)
        assert code(zombie) is ErrorCode.ILLEGAL_GENERATION
        await successor.close()

    run(scenario)


def test_while_loading_commands_are_refused_and_heartbeats_taken() -> None:
    async def scenario(bench: GroupBench) -> None:
        assert await bench.commit("g", 1) == TAKEN
        successor = bench.reopened()
        assert code(await successor.commit("g", 2)) is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        assert successor.heartbeat(rq.Heartbeat("g", 1, "m")) == rq.HeartbeatTaken()
        await successor.loaded()
        assert await successor.commit("g", 2) == TAKEN
        await successor.close()

    run(scenario)


def test_records_of_another_writer_are_found_out_and_loaded() -> None:
    async def scenario(bench: GroupBench) -> None:
        rival = bench.reopened()
        assert await rival.commit("theirs", 4) == TAKEN
        await bench.partition.writer.rebuild()  # as after a conflict
        assert code(await bench.commit("ours", 1)) is ErrorCode.NOT_COORDINATOR
        await bench.loaded()
        assert await bench.offset("theirs") == 4
        assert await bench.offset("ours") == 1, "it was committed, and only its answer was refused"
        await rival.close()

    run(scenario)


def test_stopped_partition_is_no_coordinator_also_for_joins_that_wait() -> None:
    async def scenario(bench: GroupBench) -> None:
        joined = await bench.member("g", "a")
        waiting = bench.submit(join_of("g", "b"), "b-1")
        bench.partition.stop(ErrorCode.NOT_LEADER_OR_FOLLOWER, "fenced")
        assert code(await bench.commit("g", 1)) is ErrorCode.NOT_COORDINATOR
        alive = rq.Heartbeat("g", joined.generation, joined.member_id, "a")
        assert code(bench.heartbeat(alive)) is ErrorCode.NOT_COORDINATOR
        bench.shard._on_timer(GroupTimer(TimerKind.SESSION, "g", "a-1"))
        assert code(await waiting) is ErrorCode.NOT_COORDINATOR

    run(scenario)


def test_close_refuses_joins_that_wait_and_lets_the_commit_in_flight_be_answered() -> None:
    async def scenario(bench: GroupBench) -> None:
        await bench.member("g", "a")
        waiting = bench.submit(join_of("g", "b"), "b-1")
        bench.table.gate.clear()
        in_flight = bench.commit("other", 1)
        for _ in range(10):
            await asyncio.sleep(0)
        gathered = bench.commit("other", 2)
        bench.shard.close()
        assert code(waiting.result()) is ErrorCode.COORDINATOR_NOT_AVAILABLE
        assert code(gathered.result()) is ErrorCode.COORDINATOR_NOT_AVAILABLE
        assert code(await bench.commit("other", 3)) is ErrorCode.COORDINATOR_NOT_AVAILABLE
        bench.table.gate.set()
        assert await in_flight == TAKEN

    run(scenario)


def test_cancelled_join_leaves_nothing_behind() -> None:
    async def scenario(bench: GroupBench) -> None:
        await bench.member("g", "a")
        waiting = bench.submit(join_of("g", "b"), "b-1")
        waiting.cancel()
        await asyncio.sleep(0)
        assert bench.shard._answers == {}
        bench.table.gate.clear()
        blocker = bench.commit("other", 1)
        for _ in range(10):
            await asyncio.sleep(0)
        bench.commit("other", 2).cancel()
        bench.table.gate.set()
        assert await blocker == TAKEN
        await bench.commit("third", 3)
        assert await bench.offset("other") == 1

    run(scenario)


def test_heartbeat_moves_the_session_and_a_stale_expiry_ends_nobody() -> None:
    async def scenario(bench: GroupBench) -> None:
        joined = await bench.member("g", "a")
        session = GroupTimer(TimerKind.SESSION, "g", joined.member_id)
        bench.table.gate.clear()
        commit = bench.commit("other", 1)
        for _ in range(10):
            await asyncio.sleep(0)
        bench.shard._timers.cancel(session)
        bench.shard._on_timer(session)  # it expired, and waits for the commit in flight
        assert bench.heartbeat(rq.Heartbeat("g", 1, joined.member_id, "a")) == rq.HeartbeatTaken()
        assert session in bench.shard._timers
        bench.table.gate.set()
        await commit
        await bench.commit("other", 2)  # behind all that the expiry may have led to
        assert list(bench.shard.states["g"].members) == [joined.member_id]

    run(scenario)


def test_expired_session_ends_the_member_and_tells_the_others() -> None:
    async def scenario(bench: GroupBench) -> None:
        first = await bench.member("g", "a")
        join_b = bench.submit(join_of("g", "b"), "b-1")
        join_a = bench.submit(join_of("g", "a", first.member_id))
        second = await join_b
        again = await join_a
        assert isinstance(second, rq.Joined)
        assert isinstance(again, rq.Joined)
        assigned = {one.member_id: rq.Assignment(b"a") for one in again.members}
        syncs = [bench.submit(sync_of("g", second, "b")), bench.submit(sync_of("g", again, "a", assigned))]
        await asyncio.gather(*syncs)
        assert [(notice.group_id, notice.member_id) for notice in bench.notices] == [("g", "a-1")]
        bench.shard._timers.cancel(GroupTimer(TimerKind.SESSION, "g", "b-1"))
        bench.shard._on_timer(GroupTimer(TimerKind.SESSION, "g", "b-1"))
        notice = bench.notices[-1]
        assert (notice.group_id, notice.member_id, notice.refused.code) == ("g", "a-1", ErrorCode.REBALANCE_IN_PROGRESS)
        assert list(bench.shard.states["g"].members) == ["a-1"]

    run(scenario)


def test_sweep_removes_the_offsets_of_a_deleted_topic_for_good() -> None:
    async def scenario(bench: GroupBench) -> None:
        await asyncio.gather(*[bench.commit(f"g{number}", 1) for number in range(250)])
        await sweep(bench.shard, lambda group_id: rq.ForgetTopic(group_id, "t", "id"))
        assert await bench.offset("g0") == await bench.offset("g249") == -1
        successor = await bench.reopened().loaded()
        assert await successor.offset("g249") == -1
        await successor.close()

    run(scenario)


def test_decision_that_breaks_an_invariant_refuses_everybody_and_loads_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(bench: GroupBench) -> None:
        assert await bench.commit("g", 1) == TAKEN
        with monkeypatch.context() as patched:
            patched.setattr(shard.Turn, "take", _break)
            assert code(await bench.commit("g", 2)) is ErrorCode.UNKNOWN_SERVER_ERROR
        await bench.loaded()
        assert await bench.offset("g") == 1

    run(scenario)


def _break(*_: object, **__: object) -> None:
    raise AssertionError("broken")


def test_commands_beyond_the_bound_are_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shard, "WAITING_MAX", 2)

    async def scenario(bench: GroupBench) -> None:
        bench.table.gate.clear()
        taken = [bench.commit("g", 1)]
        for _ in range(10):
            await asyncio.sleep(0)
        taken += [bench.commit("g", 2), bench.commit("g", 3)]
        assert code(await bench.submit(commit_of("g", 4))) is ErrorCode.COORDINATOR_NOT_AVAILABLE
        bench.table.gate.set()
        assert await asyncio.gather(*taken) == [TAKEN] * 3

    run(scenario)


async def _gathered(bench: GroupBench, *commands: object) -> list[object]:
    """Answers of commands that were decided in one turn, behind a commit."""
    bench.table.gate.clear()
    first = bench.commit("first", 1)
    for _ in range(10):
        await asyncio.sleep(0)
    answers = [bench.submit(command) for command in commands]
    bench.table.gate.set()
    assert await first == TAKEN
    return list(await asyncio.gather(*answers))


def test_record_beyond_the_bound_of_the_log_costs_its_own_call_alone() -> None:
    async def scenario(bench: GroupBench) -> None:
        big = commit_of("big", 1)
        big = replace(big, offsets=(replace(big.offsets[0], metadata="m" * 2_000_000),))
        before, refused, after = await _gathered(bench, commit_of("before", 1), big, commit_of("after", 1))
        assert (before, after) == (TAKEN, TAKEN)
        assert code(refused) is ErrorCode.INVALID_COMMIT_OFFSET_SIZE
        assert isinstance(refused, Refused)
        assert "at most 1000000 bytes" in refused.message
        assert not bench.shard.is_loading
        assert bench.shard.states.keys() == {"first", "before", "after"}

    run(scenario, rules=replace(RULES, offset_metadata_max_bytes=3_000_000))


def test_assignment_beyond_the_bound_is_refused_to_the_leader_and_the_group_goes_on() -> None:
    async def scenario(bench: GroupBench) -> None:
        joined = await bench.submit(join_of("g", "a"), "a-1")
        assert isinstance(joined, rq.Joined)
        large = {"a-1": rq.Assignment(b"a" * 600_000), "b-1": rq.Assignment(b"b" * 600_000)}
        second = bench.submit(join_of("g", "b"), "b-1")
        again = await bench.submit(join_of("g", "a", "a-1"))
        assert isinstance(again, rq.Joined)
        assert isinstance(await second, rq.Joined)
        refused, taken = await _gathered(bench, sync_of("g", again, "a", large), commit_of("other", 1))
        assert code(refused) is ErrorCode.MESSAGE_TOO_LARGE
        assert taken == TAKEN
        small = {"a-1": rq.Assignment(b"a"), "b-1": rq.Assignment(b"b")}
        synced = await bench.submit(sync_of("g", again, "a", small))
        assert isinstance(synced, rq.Synced), synced

    run(scenario)


def test_record_that_could_not_be_read_back_costs_its_own_call_alone() -> None:
    """Were the door to let one through."""

    async def scenario(bench: GroupBench) -> None:
        epoch = replace(commit_of("big", 1).offsets[0], leader_epoch=-5)
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr("bus.consumer_groups.offsets._check_offset", lambda *_: None)
            answers = await _gathered(
                bench,
                commit_of("before", 1),
                replace(commit_of("bad", 1), offsets=(epoch,)),
                rq.OffsetFetch("bad", None),
                commit_of("after", 1),
            )
        assert [answers[0], *answers[2:]] == [TAKEN, rq.OffsetsFetched(()), TAKEN]
        assert code(answers[1]) is ErrorCode.INVALID_REQUEST
        assert not bench.shard.is_loading
        successor = await bench.reopened().loaded()
        assert successor.shard.states.keys() == {"first", "before", "after"}
        await successor.close()

    run(scenario)


def test_timeout_whose_record_is_refused_is_dropped_and_a_join_is_answered_as_one() -> None:
    async def scenario(bench: GroupBench) -> None:
        await bench.member("g", "a")
        bench.table.gate.clear()
        first = bench.commit("first", 1)
        for _ in range(10):
            await asyncio.sleep(0)
        session = GroupTimer(TimerKind.SESSION, "g", "a-1")
        bench.shard._timers.cancel(session)
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(GroupCodec, "decode", staticmethod(_refuse_group))
            bench.shard._on_timer(session)
            join = bench.submit(join_of("h", "a"), "a-2")
            bench.table.gate.set()
            assert await first == TAKEN
            assert isinstance(await join, rq.Joined)
            commit = bench.commit("second", 2)
            assert await commit == TAKEN
        assert list(bench.shard.states["g"].members) == ["a-1"]
        assert not bench.shard.is_loading

    run(scenario)


def _refuse_group(row: KeyedRow) -> object:
    if row.key == b'["group","g"]':
        raise ValueError("refused by the test")
    return decode_record(row)


def test_a_turn_is_bounded_in_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shard, "_TURN_BYTES_MAX", 10_000)

    async def scenario(bench: GroupBench) -> None:
        commands = [commit_of(f"g{number}", 1) for number in range(20)]
        large = [replace(one, offsets=(replace(one.offsets[0], metadata="m" * 4_000),)) for one in commands]
        assert await _gathered(bench, *large) == [TAKEN] * 20
        sizes = [sum(batch.record_count for batch in commit) for commit in bench.table.commits]
        assert max(sizes) == 3

    run(scenario)


def test_the_loop_is_held_for_a_bounded_time(monkeypatch: pytest.MonkeyPatch) -> None:
    decide, take = shard.CoordinatorShard._decide, Turn.take
    clocks: list[LoopClock] = []
    taken: list[int] = []  # each time

    def decide_once(self: Any, turn: Any) -> None:
        taken.append(0)
        decide(self, turn)

    def take_long(self: Any, waiting: Any, *, now_ms: int) -> None:
        taken[-1] += 1
        clocks[0].advance(4)
        take(self, waiting, now_ms=now_ms)

    async def scenario(bench: GroupBench) -> None:
        clocks.append(cast(LoopClock, bench.below.clock))
        commits = await _gathered(bench, *(commit_of(f"g{number}", 1) for number in range(20)))
        assert commits == [TAKEN] * 20
        assert (sum(taken), max(taken)) == (21, 3)

    monkeypatch.setattr(LoopClock, "monotonic_ms", ManualClock.monotonic_ms)  # without the time that passes by itself
    monkeypatch.setattr(shard.CoordinatorShard, "_decide", decide_once)
    monkeypatch.setattr(Turn, "take", take_long)
    run(scenario)


def test_row_that_cannot_be_read_is_logged_and_the_shard_loads(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(bench: GroupBench) -> None:
        assert await bench.commit("g", 1) == TAKEN
        (row,) = bench.table.commits[-1][0].columns
        row.value["leader_epoch"] = -5
        bench.table.commits[-1][0].columns.append(KeyedRow(b"what?", {"type": "x"}))
        successor = await bench.reopened().loaded()
        assert await successor.offset("g") == 1
        assert await successor.commit("other", 2) == TAKEN
        await successor.close()

    run(scenario)
    errors = [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]
    assert len(errors) == 2
    assert any("orders-0: group 'g', committed offset of t-0" in message for message in errors)
