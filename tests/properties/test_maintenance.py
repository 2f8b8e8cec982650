"""Appends, rolls, compactions, retention, deletions, failures and altered configs in any order: what a partition serves
is what a naive list of its records says, and no record that was not let go of is missing.

The table is a fake, so this is about the runtime: order, outcomes and what memory makes of them.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from bus.descriptions import DeletedRecords
from bus.errors import ErrorCode, Refused, StorageFull
from bus.partition_log.log_life import CompactionRules, RetentionRules, RollingRules
from bus.ports import CommitOutcome, Conflicted, Unknown
from bus.runtime.partitions.maintenance import MaintenanceAction
from bus.runtime.partitions.partition_queue import Appended
from tests.support.fake_table import Scripted
from tests.support.partition_bench import SETTINGS, Bench, InlineCalls
from tests.support.virtual_time import run_virtually

BASE = SETTINGS.maintenance
POLICIES = {
    "none": replace(BASE, rolling=RollingRules(1_000, 10**9)),
    "delete": replace(BASE, rolling=RollingRules(1_000, 10**9), retention=RetentionRules(5_000, 2_000)),
    "compact": replace(BASE, compaction=CompactionRules(0.0, 0, 10**12), may_delete_records=False),
    "both": replace(
        BASE,
        rolling=RollingRules(500, 1_000),
        retention=RetentionRules(20_000, -1),
        compaction=CompactionRules(0.3, 0, 10**12),
    ),
}
WITH_RETENTION = ("delete", "both")
STEPS = st.one_of(
    st.tuples(st.just("append"), st.integers(1, 30)),
    st.tuples(st.just("append"), st.integers(1, 30)),
    st.tuples(st.just("look"), st.integers(0, 10_000)),
    st.tuples(st.just("delete"), st.integers(-3, 40)),
    st.tuples(st.just("by hand"), st.sampled_from(list(MaintenanceAction))),
    st.tuples(st.just("alter"), st.sampled_from(sorted(POLICIES))),
    st.tuples(st.just("fail"), st.sampled_from(["full", "unknown", "lost reply", "conflict", "prepare"])),
)


class Checked:
    def __init__(self, bench: Bench, policy: str) -> None:
        self.bench = bench
        self.end = self.start_min = 0
        self.has_had_retention = policy in WITH_RETENTION

    async def take(self, step: str, argument: object) -> None:
        bench = self.bench
        match step, argument:
            case "append", int(count):
                for _ in range(count):
                    result = await bench.append(size_bytes=100)
                    assert isinstance(result, Appended)
                    assert result.base_offset == self.end
                    self.end += 1
            case "look", int(passed_ms):
                bench.clock.advance(passed_ms)
                bench.partition.look_after()
            case "delete", int(distance):
                await self._delete(distance)
            case "by hand", MaintenanceAction() as action:
                await bench.partition.maintain(action)
            case "alter", str(policy):
                self.has_had_retention |= policy in WITH_RETENTION
                bench.partition.configure(replace(SETTINGS, maintenance=POLICIES[policy]))
            case "fail", str(how):
                self._fail(how)
        self._check()

    async def _delete(self, distance: int) -> None:
        offset = -1 if distance < 0 else self.bench.partition.state.log_start + distance
        result = await self.bench.partition.delete_records(offset)
        if isinstance(result, DeletedRecords):
            wanted = self.end if offset < 0 else offset
            # A retention that waited for the writer may have let go of more before the deletion was decided.
            is_passed = wanted < result.low_watermark == self.bench.partition.state.log_start
            assert result.low_watermark == wanted or (is_passed and self.has_had_retention)
        else:
            assert result.code in (
                ErrorCode.POLICY_VIOLATION,
                ErrorCode.OFFSET_OUT_OF_RANGE,
                ErrorCode.KAFKA_STORAGE_ERROR,
            )
            assert (result.code is ErrorCode.OFFSET_OUT_OF_RANGE) <= (offset > self.end)

    def _fail(self, how: str) -> None:
        table = self.bench.table
        version = table.state.version + 1
        outcomes: dict[str, CommitOutcome | Exception | Scripted] = {
            "full": StorageFull("no room"),
            "unknown": Unknown(version, "the sync failed"),
            "lost reply": Scripted.LOST_REPLY,
            "conflict": Conflicted(version, leader_epoch=None, operation="OPTIMIZE"),
        }
        if how == "prepare":
            table.rewrites.script.append(StorageFull("no room"))
        else:
            table.change_script = [outcomes[how]]

    def _check(self) -> None:
        state, table = self.bench.partition.state, self.bench.table
        assert self.bench.partition.stopped is None
        assert (state.version, state.log_start) == (table.state.version, table.state.log_start)
        assert state.high_watermark == table.state.high_watermark == self.end
        assert state.log_start >= self.start_min
        self.start_min = state.log_start
        # Every offset from the log start on is in one live file.
        expected = state.log_start
        for file in table.rewrites.live:
            assert file.base_offset <= expected < file.next_offset
            expected = file.next_offset
        assert expected == self.end
        assert isinstance(self.bench.partition.decide_fetch(state.log_start - 1, None), Refused)
        assert not isinstance(self.bench.partition.decide_fetch(state.log_start, None), Refused)


@settings(max_examples=settings.default.max_examples * 3 // 2)
@given(st.lists(STEPS, max_size=25), st.sampled_from(sorted(POLICIES)))
def test_any_maintenance_between_any_appends_keeps_what_was_not_let_go_of(
    steps: list[tuple[str, object]], policy: str
) -> None:
    async def main() -> None:
        bench = Bench(settings=replace(SETTINGS, maintenance=POLICIES[policy]), calls=InlineCalls(), backoff_s=1.0)
        checked = Checked(bench, policy)
        try:
            for step, argument in steps:
                await checked.take(step, argument)
                await asyncio.sleep(2.0 if step == "look" else 0)  # longer than the backoff
        finally:
            bench.partition.stop(ErrorCode.UNKNOWN_SERVER_ERROR, "the test has ended")
            await bench.close()

    run_virtually(main())
