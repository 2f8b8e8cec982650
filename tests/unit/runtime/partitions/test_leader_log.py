"""Meaning of a commit's outcome for a leader, and when it steps down."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import TypeVar

import pytest

from bus.errors import ErrorCode, Refused, StorageDamaged, StorageFault, VersionReplaced
from bus.model import TopicPartition
from bus.ports import CommitOutcome, Committed, Conflicted, FenceLost, LogState, Unknown
from bus.runtime.partitions.leader_log import LeaderLog

T = TypeVar("T")
EPOCH = 3
STATE = LogState(version=7, log_start=0, high_watermark=10, leader_epoch=EPOCH, file_count=1, size_bytes=1)
OPTIMIZE = Conflicted(8, None, "OPTIMIZE")


class ScriptedLog:
    """`found` is what a reload finds, or raises; `lead_outcome` what `lead` comes to, if not to lead."""

    def __init__(self) -> None:
        self.state = STATE
        self.lead_outcome: CommitOutcome | None = None
        self.found: LogState | Exception = STATE

    def reload(self) -> LogState:
        if isinstance(self.found, Exception):
            raise self.found
        return self.found

    follow = reload

    def lead(self, leader_epoch: int, now_ms: int, *, fence: bool) -> CommitOutcome:
        self.state = self.reload()
        return self.lead_outcome or Committed(self.state.version, self.state.high_watermark)


async def at_once(call: Callable[[], T]) -> T:
    return call()


class Leader:
    def __init__(self, housekeep: Callable[[Callable[[], T]], Awaitable[T]] = at_once) -> None:
        self.table = ScriptedLog()
        self.stops: list[Refused] = []
        self.log = LeaderLog(
            TopicPartition("orders", 0),
            self.table,
            title="orders-0",
            way_out="see the guide",
            leader_epoch=EPOCH,
            fenced=ErrorCode.NOT_LEADER_OR_FOLLOWER,
            reload_in=at_once,
            housekeep_in=housekeep,
            on_stopped=self.stops.append,
        )

    async def commit(self, outcome: CommitOutcome | Exception) -> object:
        def call() -> CommitOutcome:
            if isinstance(outcome, Exception):
                raise outcome
            return outcome

        return await self.log.commit(call, at_once)

    @property
    def stop_code(self) -> ErrorCode | None:
        return None if self.log.stopped is None else self.log.stopped.code


def run(scenario: Callable[[Leader], Awaitable[None]]) -> None:
    async def main() -> None:
        await scenario(Leader())

    asyncio.run(main())


@pytest.mark.parametrize(
    ("conflict", "steps_down"),
    [
        (OPTIMIZE, False),
        (Conflicted(8, EPOCH - 1, "WRITE", is_rival=True), False),
        (Conflicted(8, EPOCH, "WRITE"), False),
        (Conflicted(8, EPOCH, "WRITE", is_rival=True), True),
        (Conflicted(8, EPOCH + 1, "WRITE", is_rival=True), True),
    ],
)
@pytest.mark.parametrize("is_of_a_fence", [True, False])
def test_a_race_lost_to_another_leader_ends_this_one_at_once(
    conflict: Conflicted, steps_down: bool, is_of_a_fence: bool
) -> None:
    async def scenario(leader: Leader) -> None:
        outcome = FenceLost("no orphan was deleted", conflict) if is_of_a_fence else conflict
        assert await leader.commit(outcome) == conflict
        assert leader.stop_code is (ErrorCode.NOT_LEADER_OR_FOLLOWER if steps_down else None)
        assert len(leader.stops) == steps_down
        assert leader.log.is_reload_due

    run(scenario)


@pytest.mark.parametrize("doubt", [OPTIMIZE, Unknown(8, "the sync failed"), RuntimeError("a bug")])
@pytest.mark.parametrize(
    "found",
    [replace(STATE, version=9, leader_epoch=EPOCH + 1), replace(STATE, version=9, is_overtaken=True)],
)
def test_a_successor_that_is_found_when_the_log_is_read_again_ends_this_leader(
    doubt: CommitOutcome | Exception, found: LogState
) -> None:
    """Its version may lie behind a foreign one, which the race was lost to."""

    async def scenario(leader: Leader) -> None:
        try:
            await leader.commit(doubt)
        except RuntimeError:
            assert isinstance(doubt, RuntimeError)
        assert leader.log.is_reload_due
        assert leader.log.stopped is None
        leader.table.found = found
        assert await leader.log.reload() is None
        assert leader.stop_code is ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert leader.log.refuse_until_reloaded() == leader.log.stopped == leader.stops[0]

    run(scenario)


def test_a_log_without_a_successor_is_followed() -> None:
    async def scenario(leader: Leader) -> None:
        await leader.commit(OPTIMIZE)
        assert leader.log.refuse_until_reloaded() is not None
        leader.table.found = replace(STATE, version=8)
        assert await leader.log.reload() == leader.table.found
        leader.log.is_reload_due = False
        assert leader.log.refuse_until_reloaded() is None
        assert await leader.commit(Committed(9, 11)) == Committed(9, 11)

    run(scenario)


def test_a_fault_leaves_everything_as_it_was_and_the_next_commit_may_succeed() -> None:
    async def scenario(leader: Leader) -> None:
        refused = await leader.commit(StorageFault("no disk"))
        assert refused == Refused(ErrorCode.KAFKA_STORAGE_ERROR, "orders-0: no disk")
        assert not leader.log.is_reload_due
        assert leader.stops == []

    run(scenario)


def test_what_the_table_itself_refuses_is_no_conflict() -> None:
    async def scenario(leader: Leader) -> None:
        refused = await leader.commit(Conflicted(STATE.version, None, "the files have changed"))
        assert refused == Refused(ErrorCode.INVALID_REQUEST, "orders-0: the files have changed")
        assert not leader.log.is_reload_due

    run(scenario)


@pytest.mark.parametrize("where", ["commit", "housekeep", "reload"])
def test_an_acknowledged_version_that_was_replaced_stops_the_log_wherever_it_is_found(where: str) -> None:
    async def scenario(leader: Leader) -> None:
        fault = VersionReplaced("version 7 is another program's")

        def fail() -> CommitOutcome:
            raise fault

        if where == "commit":
            assert isinstance(await leader.commit(fault), Refused)
        elif where == "housekeep":
            with pytest.raises(VersionReplaced):
                await leader.log.housekeep(fail)
        else:
            leader.table.found = fault
            assert await leader.log.reload() is None
        assert leader.stop_code is ErrorCode.KAFKA_STORAGE_ERROR
        assert "version 7 is another program's" in leader.stops[0].message

    run(scenario)


def test_a_damaged_log_stops_and_one_that_cannot_be_read_for_now_does_not() -> None:
    async def scenario(leader: Leader) -> None:
        leader.table.found = StorageFault("no disk")
        assert await leader.log.reload() is None
        assert leader.stops == []
        assert leader.log.is_reload_due
        leader.table.found = StorageDamaged("version 7 removed rows")
        assert await leader.log.reload() is None
        assert leader.stops[0].message == "orders-0: version 7 removed rows; see the guide"

    run(scenario)


def test_the_log_is_not_read_again_while_its_files_are_looked_through() -> None:
    async def main() -> None:
        gate = asyncio.Event()

        async def gated(call: Callable[[], T]) -> T:
            await gate.wait()
            return call()

        leader = Leader(gated)
        looking = asyncio.ensure_future(leader.log.housekeep(lambda: "looked"))
        await asyncio.sleep(0)
        reading = asyncio.ensure_future(leader.log.reload())
        for _ in range(5):
            await asyncio.sleep(0)
        assert not reading.done()
        assert await leader.commit(Committed(8, 11)) == Committed(8, 11), "commits do not wait for it"
        gate.set()
        assert await looking == "looked"
        assert await reading == STATE

    asyncio.run(main())


def test_log_that_could_not_be_read_again_is_read_before_the_first_commit_of_a_higher_epoch() -> None:
    async def scenario(leader: Leader) -> None:
        await leader.commit(Unknown(8, "the sync failed"))
        leader.table.found = StorageFault("the disk does not answer")
        assert await leader.log.reload() is None
        with pytest.raises(StorageFault, match="the disk does not answer"):
            await leader.log.lead(EPOCH + 1, now_ms=0, fence=True)
        assert leader.log.refuse_until_reloaded() is not None

    run(scenario)


def test_leader_that_was_fenced_by_a_log_that_it_has_read_may_lead_again_at_a_higher_epoch() -> None:
    async def scenario(leader: Leader) -> None:
        leader.table.found = replace(STATE, version=9, leader_epoch=EPOCH + 1)
        await leader.commit(Unknown(8, "the sync failed"))
        assert await leader.log.reload() is None
        assert await leader.log.lead(EPOCH + 2, now_ms=0, fence=True) is None
        assert leader.log.refuse_until_reloaded() is None
        assert leader.log.leader_epoch == EPOCH + 2

    run(scenario)


@pytest.mark.parametrize(
    ("outcome", "code"),
    [
        (Conflicted(9, EPOCH + 2, "FENCE", is_rival=True), ErrorCode.NOT_LEADER_OR_FOLLOWER),
        (Conflicted(9, None, "OPTIMIZE"), ErrorCode.KAFKA_STORAGE_ERROR),
        (Unknown(9, "the sync failed"), ErrorCode.KAFKA_STORAGE_ERROR),
    ],
)
def test_a_log_whose_lead_was_not_taken_is_committed_to_no_more(outcome: CommitOutcome, code: ErrorCode) -> None:
    async def scenario(leader: Leader) -> None:
        leader.table.lead_outcome = outcome
        refused = await leader.log.lead(EPOCH + 1, now_ms=0, fence=True)
        assert refused is not None
        assert refused.code is code
        assert leader.log.refuse_until_reloaded() == refused == leader.stops[0]
        leader.table.lead_outcome = None
        assert await leader.log.lead(EPOCH + 3, now_ms=0, fence=True) is None
        assert leader.log.refuse_until_reloaded() is None

    run(scenario)
