"""One partition's records on their way: what waits, what is under way, and what happens after a failure.

Guards the order of a partition: records are handed out in the order in which they came, and when a request fails in a
way that may be repeated, that request and all that followed it are handed out again, in their order. So the last copy
of every record in the log is in the order of sending; a record may be there more than once (at least once). Does no
I/O, holds no lock and reads no clock: its owner does.
"""

from __future__ import annotations

import itertools
import math
from collections import deque
from collections.abc import Callable
from typing import Any, Protocol

from bus.client.produce_wire import Row
from bus.client.values import BatchMetadata
from bus.errors import BusError, ErrorCode


class Outcome(Protocol):
    """A future that takes one result for each slot."""

    def resolve(self, slot: int, metadata: BatchMetadata | None, error: BusError | None) -> None: ...


class Chunk:
    """What is produced or fails as one: one record of `send`, or one run of a batch.

    Exactly one of `row` and `payload` is set. `timestamp_ms` None: every record brings its own.
    """

    __slots__ = (
        "attempts",
        "deadline",
        "future",
        "is_alone",
        "is_settled",
        "payload",
        "record_count",
        "row",
        "size_bytes",
        "slot",
        "timestamp_ms",
    )

    def __init__(
        self,
        *,
        future: Outcome,
        slot: int,
        row: Row | None,
        payload: Any,
        record_count: int,
        size_bytes: int,
        timestamp_ms: int | None,
        deadline: float,
    ) -> None:
        self.future = future
        self.slot = slot
        self.row = row
        self.payload = payload
        self.record_count = record_count
        self.size_bytes = size_bytes
        self.timestamp_ms = timestamp_ms
        self.deadline = deadline
        self.attempts = 0
        self.is_settled = False
        self.is_alone = False  # never shares a part again


class Part:
    """One partition's share of one request under way."""

    __slots__ = ("chunks", "generation", "queue")

    def __init__(self, queue: PartitionQueue, chunks: list[Chunk]) -> None:
        self.queue = queue
        self.chunks = chunks
        self.generation = queue.generation


Settled = tuple[Chunk, BatchMetadata | None, BusError | None]


class PartitionQueue:
    """Invariant: every chunk is in `pending`, in one part of `in_flight`, or settled; `in_flight` is in order."""

    def __init__(self, topic: str, partition: int) -> None:
        self.topic = topic
        self.partition = partition
        self.pending: deque[Chunk] = deque()
        self.in_flight: deque[Part] = deque()
        self.address: str | None = None  # where the parts in flight went
        self.generation = 0  # parts of an earlier one were handed out again: their answers count no more
        self.failures = 0  # one after another
        self.retry_at = 0.0
        self.topic_id = ""
        self.wire_head = b""

    def is_sendable(self, *, now: float, window: int) -> bool:
        return bool(self.pending) and len(self.in_flight) < window and now >= self.retry_at

    def take(self, max_bytes: int) -> list[Chunk]:
        """The next chunks that fit one part: a run of a batch alone, single records as many as waited."""
        first = self.pending.popleft()
        chunks = [first]
        if not _may_share(first):
            return chunks
        size = first.size_bytes
        while self.pending and _may_share(self.pending[0]):
            size += self.pending[0].size_bytes
            if size > max_bytes:
                break
            chunks.append(self.pending.popleft())
        return chunks

    def is_current(self, part: Part) -> bool:
        return part.generation == self.generation

    def acknowledge(self, part: Part, base_offset: int, log_append_time_ms: int, version: int) -> list[Settled]:
        self._remove(part)
        self.failures = 0
        settled: list[Settled] = []
        for chunk in part.chunks:
            timestamp_ms = chunk.timestamp_ms if chunk.timestamp_ms is not None else -1
            metadata = BatchMetadata(
                topic=self.topic,
                partition=self.partition,
                base_offset=base_offset,
                record_count=chunk.record_count,
                timestamp_ms=log_append_time_ms if log_append_time_ms >= 0 else timestamp_ms,
                version=version,
            )
            if base_offset >= 0:
                base_offset += chunk.record_count
            settled.append((chunk, metadata, None))
        return settled

    def refuse(self, part: Part, error: BusError) -> list[Settled]:
        """The part failed for good; those behind it go on.

        Records of several calls that shared the part are tried again one by one, and what followed them with them:
        only one of them may be at fault.
        """
        if len(part.chunks) == 1:
            self._remove(part)
            return [(part.chunks[0], None, error)]
        for chunk in part.chunks:
            chunk.is_alone = True
        self._hand_out_again()
        return []

    def repeat(self, *, error: BusError, failed: Callable[[Part], bool], retries: int, now: float) -> list[Settled]:
        """Everything in flight goes back in front. Returns what has no attempt or no time left.

        `failed` tells which parts used up an attempt.
        """
        for part in self.in_flight:
            if failed(part):
                for chunk in part.chunks:
                    chunk.attempts += 1
        self._hand_out_again()
        self.failures += 1
        settled: list[Settled] = []
        for chunk in list(self.pending):
            if chunk.attempts > retries:
                settled.append((chunk, None, error))
            elif now >= chunk.deadline:
                settled.append((chunk, None, self._expired(error)))
        gone = {id(chunk) for chunk, _, _ in settled}
        self.pending = deque(chunk for chunk in self.pending if id(chunk) not in gone)
        return settled

    def _hand_out_again(self) -> None:
        chunks = [chunk for part in self.in_flight for chunk in part.chunks if not chunk.is_settled]
        self.in_flight.clear()
        self.generation += 1
        self.pending.extendleft(reversed(chunks))

    def expire(self, now: float) -> list[Settled]:
        """What has waited for longer than delivery.timeout.ms, on its way or not."""
        settled: list[Settled] = []
        while self.pending and now >= self.pending[0].deadline:
            settled.append((self.pending.popleft(), None, self._expired(None)))
        for part in self.in_flight:
            settled += [
                (chunk, None, self._expired(None))
                for chunk in part.chunks
                if now >= chunk.deadline and not chunk.is_settled
            ]
        return settled

    def fail_all(self, error: BusError) -> list[Settled]:
        chunks = [chunk for part in self.in_flight for chunk in part.chunks] + list(self.pending)
        self.in_flight.clear()
        self.pending.clear()
        self.generation += 1
        return [(chunk, None, error) for chunk in chunks]

    def next_deadline(self) -> float:
        """When `expire` has something to do; infinity if never."""
        chunks = itertools.chain((chunk for part in self.in_flight for chunk in part.chunks), self.pending)
        return next((chunk.deadline for chunk in chunks if not chunk.is_settled), math.inf)

    def _expired(self, cause: BusError | None) -> BusError:
        because = f"; last error: {cause}" if cause is not None else ""
        return BusError(
            ErrorCode.REQUEST_TIMED_OUT,
            f"{self.topic}-{self.partition}: not acknowledged within delivery.timeout.ms{because}",
        )

    def _remove(self, part: Part) -> None:
        assert self.in_flight[0] is part, f"{self.topic}-{self.partition}: an answer came out of order"
        self.in_flight.popleft()


def _may_share(chunk: Chunk) -> bool:
    return chunk.row is not None and not chunk.is_alone
