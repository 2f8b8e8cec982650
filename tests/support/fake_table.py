"""A partition's table in memory, whose commits go as a test scripts them."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

from bus.model import LogBatch, RecordBatch
from bus.ports import CommitOutcome, Committed, FoundOffset, LogState, ProducerProgress

T = TypeVar("T")


class FakeTable:
    """Commits at once, unless `script` holds something else to do for the next append: an outcome to return (nothing
    is committed), a fault to raise, or a function to call first. `gate`, when cleared, holds every append back."""

    def __init__(self) -> None:
        self.commits: list[list[LogBatch]] = []
        self.script: list[CommitOutcome | Exception | Callable[[], None]] = []
        self.gate = threading.Event()
        self.gate.set()
        self.reload_fault: Exception | None = None
        self.producer_progress: Mapping[int, ProducerProgress] = {}
        self.is_checkpoint_due = False
        self._state = LogState(version=0, log_start=0, high_watermark=0, leader_epoch=-1, file_count=0, size_bytes=0)

    @property
    def state(self) -> LogState:
        return self._state

    def append(
        self,
        batches: Sequence[LogBatch],
        *,
        leader_epoch: int,
        now_ms: int,
        compression: str = "none",
        producers: Sequence[ProducerProgress] = (),
    ) -> CommitOutcome:
        self.gate.wait()
        if self.script:
            step = self.script.pop(0)
            if isinstance(step, Exception):
                raise step
            if not callable(step):
                return step
            step()
        return self.commit(list(batches))

    def commit(self, batches: list[LogBatch]) -> Committed:
        expected = self._state.high_watermark
        for batch in batches:
            assert batch.base_offset == expected, f"expected offset {expected}, found {batch.base_offset}"
            expected = batch.next_offset
        self.commits.append(batches)
        self._state = replace(self._state, version=self._state.version + 1, high_watermark=expected)
        return Committed(self._state.version, expected)

    def commit_foreign(self, count: int) -> None:
        """What another writer does to the table: `count` records that this one does not know of."""
        self._state = replace(
            self._state, version=self._state.version + 1, high_watermark=self._state.high_watermark + count
        )

    def reload(self) -> LogState:
        if self.reload_fault is not None:
            raise self.reload_fault
        return self._state

    def read(self, offset: int, *, end_offset: int, max_bytes: int) -> list[LogBatch]:
        batches = [batch for commit in self.commits for batch in commit if batch.next_offset > offset]
        return [batch for batch in batches if batch.next_offset <= end_offset][:1]

    def find_timestamp(self, timestamp_ms: int) -> FoundOffset | None:
        return None

    def find_max_timestamp(self) -> FoundOffset | None:
        return None

    def write_checkpoint(self) -> None:
        self.is_checkpoint_due = False


class ManualClock:
    def __init__(self, now_ms: int = 1_000_000) -> None:
        self.time_ms = now_ms

    def now_ms(self) -> int:
        return self.time_ms


def records(count: int = 1, size_bytes: int = 100) -> RecordBatch:
    return RecordBatch(
        record_count=count,
        size_bytes=size_bytes,
        record_bytes_max=size_bytes,
        timestamp_min_ms=1_000_000,
        timestamp_max_ms=1_000_000,
        has_timestamps=False,
        columns=None,
    )


async def wait_until(condition: Callable[[], bool]) -> None:
    """Let the loop run until `condition` holds; the test's timeout ends it if it never does."""
    while not condition():  # noqa: ASYNC110  # the condition is nobody's event
        await asyncio.sleep(0)
