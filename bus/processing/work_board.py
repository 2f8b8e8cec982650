"""The one place where the thread that polls and the workers meet: a lock around the flow of records.

Guards that no worker waits in vain: workers are told when records came or one has to wait for its next attempt, the
polling thread when it has something to commit, to resume or to end. A worker that settles a record frees one lane at
most, and looks for work itself, so no other one has to be told. The lock is never held while a handler or `on_error`
runs or the consumer is called.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

from bus.model import TopicPartition
from bus.platform.reentry import OwnCondition, OwnLock
from bus.processing.error_decisions import FailureDecision, TryAgain
from bus.processing.record_flow import RecordFlow
from bus.processing.transactional_output import Outcome
from bus.processing.work import Work


def now_ms() -> int:
    return time.monotonic_ns() // 1_000_000


class WorkBoard:
    """`wake`: ends the poll that is under way, from any thread. `announce`, set by the workers: look for work."""

    def __init__(self, flow: RecordFlow, wake: Callable[[], None], clock: Callable[[], int] = now_ms) -> None:
        self.announce: Callable[[], None] = lambda: None
        self.clock = clock
        self._flow = flow
        self._wake = wake
        self._is_awoken = False
        self._has_left = OwnCondition(OwnLock())

    @contextmanager
    def locked(self) -> Iterator[RecordFlow]:
        """Lock the flow, for the polling thread."""
        with self._has_left:
            yield self._flow

    def start_round(self) -> None:
        """The polling thread is about to look what there is to do."""
        with self._has_left:
            self._is_awoken = False

    # ------------------------------------------------------------ for workers

    def take(self) -> Work | None:
        with self._has_left:
            return self._flow.take(self.clock())

    def seconds_to_retry(self) -> float | None:
        """Return the time until the next retry is due; None: nothing waits."""
        with self._has_left:
            at_ms = self._flow.next_retry_ms()
        return None if at_ms is None else max(0, at_ms - self.clock()) / 1000

    def succeed(self, work: Work, outcome: Outcome | None = None) -> None:
        with self._settling() as flow:
            flow.succeed(work, outcome)

    def fail(self, work: Work, error: BaseException) -> FailureDecision:
        decision = self._flow.decide(work, error)
        with self._settling() as flow:
            decision = flow.fail(work, decision, self.clock())
        if isinstance(decision, TryAgain):
            self.announce()  # workers that wait have to look at the clock
        return decision

    def pass_over_dead_letter(self, work: Work, letter: Outcome | None = None) -> None:
        with self._settling() as flow:
            flow.pass_over(work, is_dead_letter=True, letter=letter)

    def stop_for(self, work: Work, error: BaseException) -> None:
        with self._settling() as flow:
            flow.stop_for(work, error)

    def acknowledge(self, work: Work) -> bool:
        with self._settling() as flow:
            return flow.acknowledge(work)

    @contextmanager
    def _settling(self) -> Iterator[RecordFlow]:
        with self._has_left:
            yield self._flow
            self._has_left.notify_all()
            must_wake = not self._is_awoken and self._flow.needs_attention(self.clock())
            self._is_awoken = self._is_awoken or must_wake
        if must_wake:
            self._wake()

    # ------------------------------------------------------------ for the thread that polls

    def wait_until_left(
        self,
        partitions: Iterable[TopicPartition] | None,
        timeout_ms: int,
        is_hurried: Callable[[], bool],
        serve: Callable[[], object] = lambda: None,
    ) -> int:
        """Wait until no worker has a record of these partitions, or of all; return how many they have when the time is
        over. Stops waiting when `is_hurried`, which is called now and then, returns True. Calls `serve` meanwhile,
        which does what workers wait for."""
        wanted = None if partitions is None else list(partitions)
        deadline_ms = self.clock() + timeout_ms
        while True:
            serve()
            with self._has_left:
                count = self._flow.running_count(wanted)
                left_ms = deadline_ms - self.clock()
                if not count or is_hurried() or left_ms <= 0:
                    return count
                self._has_left.wait(min(left_ms, 100) / 1000)
