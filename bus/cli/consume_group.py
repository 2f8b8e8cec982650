"""`bus consume --group`: the records that a group gives this member, until it leaves.

Guards one promise: an offset is committed when the operating system has taken all bytes of its record, and not before,
so the reader of the output gets every record at least once, however the command ends. Commits by itself: the
consumer's auto-commit would also commit what could not be printed any more.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING

from bus.cli.group_rows import assignment_text
from bus.cli.record_output import RecordOutput
from bus.model import TopicPartition

if TYPE_CHECKING:
    from bus.client.consumer.consumer import Consumer
    from bus.client.values import ConsumerRecord

_POLL_MS = 500
_COMMIT_INTERVAL_S = 1.0
_SILENCE_S = 2.0


class GroupPrinter:
    """One member's printing. `tell` gets a line for people at each rebalance.

    With `is_finite` it ends where each of its partitions ended when it was given to it.
    """

    def __init__(
        self, consumer: Consumer, output: RecordOutput, *, is_finite: bool, tell: Callable[[str], None]
    ) -> None:
        self._consumer = consumer
        self._output = output
        self._is_finite = is_finite
        self._tell = tell
        self._is_assigned = False  # between a revocation and the next assignment it has nothing, but is not done
        self._ends: dict[TopicPartition, int] = {}
        self._printed: dict[TopicPartition, int] = {}  # the next offset of what was printed and is not committed
        self._committed_at = time.monotonic()
        self._waits_since: float | None = self._committed_at

    def subscribe(self, topics: Sequence[str]) -> None:
        """To these, and to those that match one that begins with ^, now or later."""
        subscribe = partial(
            self._consumer.subscribe, on_assigned=self._take, on_revoked=self._give_back, on_lost=self._lose
        )
        if not any(topic.startswith("^") for topic in topics):
            subscribe(topics)
            return
        patterns = [f"(?:{topic}).*" if topic.startswith("^") else re.escape(topic) for topic in topics]
        subscribe(pattern="|".join(patterns))

    def run(self, *, records_per_poll: int, count_max: int | None) -> Iterator[int]:
        """Print, and say how many there are by now, until the end, or until `count_max` were printed."""
        count = 0
        while (count_max is None or count < count_max) and not self._is_done():
            wanted = records_per_poll if count_max is None else min(records_per_poll, count_max - count)
            records = self._within_ends(self._consumer.poll(_POLL_MS, wanted))
            self._tell_waiting()
            self._output.write(records)
            self._note_printed()
            count += len(records)
            if self._printed and time.monotonic() >= self._committed_at + _COMMIT_INTERVAL_S:
                self._consumer.commit(self._printed, asynchronous=True)
                self._note_committed()
            yield count

    def _tell_waiting(self) -> None:
        """Once, a while after the start: to wait for the other members, or for a topic, looks like hanging."""
        if self._is_assigned:
            self._waits_since = None
        elif self._waits_since is not None and time.monotonic() >= self._waits_since + _SILENCE_S:
            self._waits_since = None
            self._tell("waiting for partitions: the group rebalances, or there is no such topic yet")

    def commit(self) -> None:
        """What was printed, now. Raises `BusError`."""
        self._note_printed()
        if self._printed:
            self._consumer.commit(self._printed)
            self._note_committed()

    def _note_printed(self) -> None:
        """Of the last batch, which an interrupt may have ended anywhere, and this too. Once only: its partitions may be
        lost later."""
        batch = self._output.batch
        for record in batch.records[: batch.count]:
            self._printed[TopicPartition(record.topic, record.partition)] = record.offset + 1
        self._output.forget()

    def _note_committed(self) -> None:
        self._printed = {}
        self._committed_at = time.monotonic()

    def _within_ends(self, records: list[ConsumerRecord]) -> list[ConsumerRecord]:
        if not self._is_finite:
            return records
        self._consumer.pause([one for one in self._consumer.assignment() if self._is_at_end(one)])
        ends = self._ends
        return [one for one in records if one.offset < ends[TopicPartition(one.topic, one.partition)]]

    def _is_done(self) -> bool:
        return self._is_finite and self._is_assigned and all(map(self._is_at_end, self._consumer.assignment()))

    def _is_at_end(self, partition: TopicPartition) -> bool:
        return self._consumer.position(partition) >= self._ends[partition]

    def _take(self, partitions: Sequence[TopicPartition]) -> None:
        self._is_assigned = True
        self._tell(f"assigned: {assignment_text(partitions) or 'nothing'}")
        if self._is_finite and partitions:
            self._ends.update(self._consumer.end_offsets(partitions))

    def _give_back(self, partitions: Sequence[TopicPartition]) -> None:
        self._is_assigned = False
        self._tell(f"revoked: {assignment_text(partitions) or 'nothing'}")
        self.commit()

    def _lose(self, partitions: Sequence[TopicPartition]) -> None:
        """Others may have printed and committed further."""
        self._is_assigned = False
        self._tell(f"lost: {assignment_text(partitions) or 'nothing'}")
        for one in partitions:
            self._printed.pop(one, None)
