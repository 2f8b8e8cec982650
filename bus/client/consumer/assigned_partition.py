"""One assigned partition of a consumer: where it is, what was fetched ahead, what keeps it from going on.

Guards the position: `position <= fetch_offset`, and `buffer` holds exactly what lies between, so that no record is
skipped or given twice however seeks, failures and fetches interleave. Holds no lock and does no I/O: its owner does.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, replace

import pyarrow as pa

from bus.client.connection.fetch_requests import FetchedBatch, FetchPosition
from bus.client.consumer.records import open_batch
from bus.errors import BusError
from bus.model import TopicPartition

_SHUN_MS_MIN = 1_000
_SHUN_MS_MAX = 60_000


@dataclass(frozen=True, slots=True)
class ReadReplica:
    """The replica at which a consumer reads a partition: the one that the leader has named (KIP-392), or the leader
    itself if `broker_id` is None. `shunned_id` is a replica that failed, `failures` times in a row.

    Guards two promises: after any answer of a replica without records, the leader is asked next; and a replica that
    fails again and again is asked ever more rarely, although a leader that does not know of the failures continues to
    name it."""

    broker_id: int | None = None
    until_ms: float = 0.0
    shunned_id: int | None = None
    shunned_until_ms: float = 0.0
    failures: int = 0

    def at(self, now_ms: float) -> int | None:
        """Whom to ask now; None: the leader, also once the time of the replica is over, to be told of one anew."""
        return self.broker_id if now_ms < self.until_ms else None


AT_LEADER = ReadReplica()


def note_named(state: ReadReplica, broker_id: int, now_ms: float, *, age_ms_max: float) -> ReadReplica:
    """The leader has named that replica, which is asked for `age_ms_max` unless it failed a moment ago."""
    if broker_id == state.shunned_id and now_ms < state.shunned_until_ms:
        return state
    return replace(state, broker_id=broker_id, until_ms=now_ms + age_ms_max)


def note_served(state: ReadReplica) -> ReadReplica:
    """The replica has given records."""
    if state.failures:
        return replace(state, shunned_id=None, shunned_until_ms=0.0, failures=0)
    return state


def note_failed(state: ReadReplica, broker_id: int, now_ms: float) -> ReadReplica:
    """That replica has refused, or cannot be reached."""
    failures = state.failures + 1 if broker_id == state.shunned_id else 1
    pause_ms = min(_SHUN_MS_MIN * 2 ** min(failures - 1, 10), _SHUN_MS_MAX)
    return ReadReplica(shunned_id=broker_id, shunned_until_ms=now_ms + pause_ms, failures=failures)


class AssignedPartition:
    def __init__(self, partition: TopicPartition, *, has_committed: bool = False) -> None:
        self.partition = partition
        self.has_committed = has_committed  # without a position: what the group committed comes before `reset`
        self.position: int | None = None  # the offset of the next record for the user; None: `reset` finds it
        self.reset: str | None = None  # earliest or latest, asked for by a seek; None: auto.offset.reset
        self.moves = 0  # how often the position was set other than by reading on
        self.fetch_offset = 0  # the offset of the next record to fetch, while there is a position
        self.is_paused = False
        self.topic_id = ""
        self.leader_epoch = -1
        self.read_epoch = -1  # leader epoch of the last batch that was opened
        self.high_watermark: int | None = None
        self.log_start = 0
        # the newest version of the log that a fetch has seen: no broker may answer from an earlier one
        self.version = -1
        self.read_replica: ReadReplica = AT_LEADER
        self.error: BusError | None = None  # to be raised by the next poll
        self.retry_at_ms = 0.0
        self.failures = 0
        self.is_leader_doubtful = False
        self.buffer: deque[FetchedBatch] = deque()
        self.buffered_bytes = 0
        self._opened: pa.RecordBatch | None = None  # the front of `buffer`, from the position at its opening on
        self._row = 0  # the row of `_opened` that comes next

    def seek(self, offset: int) -> None:
        """Read on at `offset`; what was fetched ahead is fetched again."""
        self._drop_buffer()
        self.moves += 1
        self.position = self.fetch_offset = offset
        self.reset = self.error = None
        self.has_committed = False
        self.retry_at_ms, self.failures = 0.0, 0

    def unset_position(self, reset: str | None) -> None:
        self._drop_buffer()
        self.moves += 1
        self.position, self.reset = None, reset
        self.has_committed = False
        self.retry_at_ms, self.failures = 0.0, 0

    def forget_log(self) -> None:
        """Forget what was known of the log: it belonged to an earlier topic of the same name."""
        self.version, self.high_watermark, self.log_start = -1, None, 0
        self.read_replica = AT_LEADER

    def _drop_buffer(self) -> None:
        self.buffer.clear()
        self.buffered_bytes = 0
        self._opened = None

    def is_fetchable(self, now_ms: float) -> bool:
        return self.position is not None and not self.is_paused and self.error is None and now_ms >= self.retry_at_ms

    def next_fetch(self, replica_id: int | None = None) -> FetchPosition:
        return FetchPosition(self.fetch_offset, self.topic_id, self.leader_epoch, self.version, replica_id)

    def take_in(self, batches: Iterable[FetchedBatch]) -> None:
        """Batches as they were fetched, the first from `fetch_offset` on."""
        for batch in batches:
            self.buffer.append(batch)
            self.buffered_bytes += len(batch.payload)
            self.fetch_offset = batch.next_offset
        self.failures = 0

    def peek(self, max_records: int) -> pa.RecordBatch | None:
        """The next rows, at most so many, from one batch; None if nothing is there.

        Raises `BusError` CORRUPT_MESSAGE; then everything from the position on is to be fetched again.
        """
        assert self.position is not None, f"{self.partition} has no position"
        while self.buffer:
            if self._opened is None:
                self._opened, self._row = self._open(self.buffer[0], self.position), 0
                self.read_epoch = self.buffer[0].leader_epoch
            if self._row < self._opened.num_rows:
                return self._opened.slice(self._row, max_records)
            self._drop_front()
        return None

    def _open(self, batch: FetchedBatch, position: int) -> pa.RecordBatch:
        try:
            return open_batch(self.partition, batch, position)
        except BusError:
            self.seek(position)
            raise

    def advance_to(self, count: int, position: int) -> None:
        """The user has the next `count` rows, up to, but not including, offset `position`."""
        assert self._opened is not None, f"{self.partition} has nothing to advance over"
        self._row += count
        self.position = position
        if self._row >= self._opened.num_rows:
            self._drop_front()

    def _drop_front(self) -> None:
        batch = self.buffer.popleft()
        self.buffered_bytes -= len(batch.payload)
        self.position = batch.next_offset
        self._opened = None
