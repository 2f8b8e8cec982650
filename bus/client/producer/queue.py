"""One partition's records on their way: what waits, what is under way, and what becomes of it after a failure.

Guards the order of a partition, and with an idempotent producer that each record is in the log once. What was sent is a
`Part`: it keeps its records and its stamp (producer id, epoch, first sequence) as long as it may be in the log. After a
failure nothing more is sent until every part under way has its answer; then what failed is sent again, in the order of
the first time. Without idempotence a failure may reorder and repeat records, as in Kafka.

Where records drop out (refused, timed out), the sequences behind them must close up, and numbers are used a second
time. So the partition is *resumed* first: the leader fences the epoch, so that nothing that is still on its way can
arrive, and says how far the log came; what is not in it is sent again under a new epoch.

Three kinds of queues are strict: they leave no gap at all, and when one record fails, all behind it fail. In that of a
named producer the k-th record has the sequence k, or is not in the log. That of a transaction is never resumed: the
transaction can only be aborted. That of given stamps (`has_given_stamps`) is never resumed either: another run of the
same work uses the same stamps, from 0 on, and the log skips what it has. Such a queue sends a second part only once the
first one is in the log. Otherwise, where the first part is refused, the second could begin at the sequence at which an
older epoch ended, and be taken for its continuation.

Does no I/O, holds no lock and reads no clock: its owner does.
"""

from __future__ import annotations

import bisect
import math
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol

from bus.client.values import BatchMetadata
from bus.errors import BusError, ErrorCode
from bus.model import SEQUENCE_MODULUS, ProducerStamp, TopicPartition, sequence_after

# Waiting bytes of a partition from which on it sends although something of it is under way.
FULL_BYTES = 256 * 1024


class Chunk(Protocol):
    """The unit that is produced or fails as a whole."""

    partition: TopicPartition
    payload: Any  # Arrow bytes, or None: it has rows
    record_count: int
    size_bytes: int
    reserved_bytes: int
    due_at_ms: float  # when it need not wait for company any longer
    deadline_ms: float
    is_settled: bool

    @property
    def failure(self) -> BusError | None:
        """Once it is settled: why it is not in the log."""
        ...

    def settle(
        self, metadata: BatchMetadata | None, error: BusError | None, offsets: Sequence[int] | None = None
    ) -> None: ...

    def announce(self) -> None: ...

    def refuse_records(self, errors: Mapping[int, BusError]) -> None: ...


class Part:
    """One partition's share of one request. `payload` and `timestamp_ms` are its records as they were encoded."""

    __slots__ = (
        "address",
        "attempts",
        "attempts_there",
        "chunks",
        "order",
        "payload",
        "queue",
        "record_count",
        "size_bytes",
        "stamp",
        "timestamp_ms",
    )

    def __init__(self, queue: PartitionQueue, chunks: list[Chunk], order: tuple[int, ...]) -> None:
        self.queue = queue
        self.chunks = chunks
        self.order = order  # the position among the parts of the queue
        self.payload: Any = None  # None: to be encoded
        self.timestamp_ms: int | None = None
        self.stamp: ProducerStamp | None = None
        self.attempts = 0
        self.address: str | None = None  # the address of the last attempt
        self.attempts_there = 0  # since then, one after another
        self.count()

    def count(self) -> None:
        self.record_count = sum(chunk.record_count for chunk in self.chunks)
        self.size_bytes = sum(chunk.size_bytes for chunk in self.chunks)

    @property
    def is_settled(self) -> bool:
        return all(chunk.is_settled for chunk in self.chunks)

    @property
    def deadline_ms(self) -> float:
        return min((chunk.deadline_ms for chunk in self.chunks if not chunk.is_settled), default=math.inf)


Settled = list[Chunk]


class PartitionQueue:
    """Invariants: a chunk is in `pending`, in one part of `retries` or `in_flight`, or settled. Each of the three is in
    the order of sending, and what is in `retries` was sent before what is in `pending`."""

    def __init__(self, topic: str, partition: int, *, is_strict: bool = False, has_given_stamps: bool = False) -> None:
        self.topic = topic
        self.partition = partition
        self.is_strict = is_strict or has_given_stamps
        self.has_given_stamps = has_given_stamps
        self._is_single_file = has_given_stamps  # one part under way at a time
        self.broken: BusError | None = None  # the reason why nothing more can be sent; only in a strict queue
        self.pending: deque[Chunk] = deque()
        self.pending_bytes = 0
        self.retries: deque[Part] = deque()
        self.in_flight: deque[Part] = deque()
        self.address: str | None = None  # the address of the parts in flight
        self.answered_at_ms = 0.0  # the last time, or since when an answer is awaited
        self.failures = 0  # one after another
        self.last_failure: BusError | None = None  # the error of the last of them
        self.retry_at_ms = 0.0
        self.is_draining = False  # after a failure, until nothing is under way
        self._part_count = 0
        self.topic_id = ""
        # An idempotent producer's. `stamp_next` None: not idempotent, or no identity yet.
        self.stamp_next: ProducerStamp | None = None  # the stamp of the next new part
        self.needs_resume = False  # stamped records dropped out, or the log's end is not known
        self.is_resuming = False
        self.is_resumed = False  # once at least

    # ------------------------------------------------------------ sending

    def is_ready(self, now_ms: float, *, is_hurried: bool) -> bool:
        """May and should a part be sent now? `is_hurried`: nothing waits for company."""
        if now_ms < self.retry_at_ms or self.needs_resume:
            return False
        if self.in_flight and (self.is_draining or self._is_single_file):
            return False
        if self.retries:
            return True
        if not self.pending:
            return False
        return (
            is_hurried or not self.in_flight or self.pending_bytes >= FULL_BYTES or now_ms >= self.pending[0].due_at_ms
        )

    @property
    def unsettled_bytes(self) -> int:
        return self.pending_bytes + sum(part.size_bytes for part in (*self.retries, *self.in_flight))

    @property
    def next_bytes(self) -> int:
        """The minimum size of the next part."""
        return self.retries[0].size_bytes if self.retries else self.pending[0].size_bytes

    def push(self, chunk: Chunk) -> Settled:
        if self.broken is not None:
            chunk.settle(None, self.broken)
            return [chunk]
        self.pending.append(chunk)
        self.pending_bytes += chunk.size_bytes
        return []

    def take(self, max_bytes: int, *, is_idempotent: bool) -> Part:
        """The next part: one that failed, or as many chunks with rows as fit, or one chunk with a payload."""
        self.is_draining = False
        if self.retries:
            part = self.retries.popleft()
        else:
            self._part_count += 1
            part = Part(self, self._take_chunks(max_bytes), (self._part_count,))
            if is_idempotent:
                assert self.stamp_next is not None, f"{self}: sent without an identity"
                part.stamp = self.stamp_next
                self.stamp_next = _advance(part.stamp, part.record_count)
        part.attempts += 1
        part.attempts_there = part.attempts_there + 1 if part.address == self.address else 1
        part.address = self.address
        self.in_flight.append(part)
        return part

    def _take_chunks(self, max_bytes: int) -> list[Chunk]:
        chunks = [self.pending.popleft()]
        size = chunks[0].size_bytes
        while self.pending and chunks[0].payload is None and self.pending[0].payload is None:
            if size + self.pending[0].size_bytes > max_bytes:
                break
            chunks.append(self.pending.popleft())
            size += chunks[-1].size_bytes
        self.pending_bytes -= size
        return chunks

    # ------------------------------------------------------------ answers

    def acknowledge(
        self, part: Part, base_offset: int, log_append_time_ms: int, version: int, offsets: Sequence[int] = ()
    ) -> Settled:
        """The part is in the log."""
        self._leave(part)
        self._is_single_file = self.has_given_stamps and self.is_draining
        self.failures, self.last_failure = 0, None
        return self._place(part, base_offset, log_append_time_ms, version, offsets)

    def _place(
        self, part: Part, base_offset: int, log_append_time_ms: int, version: int, offsets: Sequence[int] = ()
    ) -> Settled:
        settled: Settled = []
        position = 0
        for chunk in part.chunks:
            if not chunk.is_settled:
                first = base_offset + position if base_offset >= 0 else -1
                own = offsets[position : position + chunk.record_count] if offsets else None
                metadata = BatchMetadata(
                    topic=self.topic,
                    partition=self.partition,
                    base_offset=own[0] if own else first,
                    record_count=chunk.record_count,
                    timestamp_ms=log_append_time_ms,
                    version=version,
                )
                chunk.settle(metadata, None, own)
                settled.append(chunk)
            position += chunk.record_count
        return settled

    def repeat(self, part: Part, error: BusError, *, retries: int) -> Settled:
        """The part failed in a way that may be repeated. Returns what has no attempt left."""
        self._leave(part)
        self.failures += 1
        self.last_failure = error
        if part.attempts <= retries and not part.is_settled and self.broken is None:
            self._back(part)
            return []
        return self._drop(part, self.broken or error)

    def put_off(self, part: Part) -> Settled:
        """The broker would not take the part because of what went before it; it is not in the log."""
        self._leave(part)
        if self.broken is not None:
            return self._drop(part, self.broken)
        self._back(part)
        return []

    def lose_order(self, part: Part) -> Settled:
        """The broker misses what went before the oldest part, which to our knowledge is in the log: ask it."""
        settled = self.put_off(part)
        self.needs_resume = self.broken is None
        return settled

    def refuse(self, part: Part, error: BusError, record_errors: Mapping[int, BusError]) -> Settled:
        """The part will never be taken as it is. With `record_errors` only those records are at fault; without, the
        chunks of a part go on one by one, and a single one fails."""
        self._leave(part)
        if record_errors:
            return self._drop_records(part, error, record_errors)
        if len(part.chunks) == 1 or part.is_settled:
            return self._drop(part, error)
        self._split(part)
        return []

    def give_up(self, part: Part, error: BusError) -> Settled:
        """Nothing of the part will be taken, however it comes."""
        self._leave(part)
        return self._drop(part, error)

    def _split(self, part: Part) -> None:
        """Two halves in its place; the records keep their sequences, unless some of them were given up meanwhile."""
        left = [chunk for chunk in part.chunks if not chunk.is_settled]
        if len(left) < len(part.chunks):
            part.chunks = left
            self.needs_resume = self.needs_resume or part.stamp is not None
        middle = len(part.chunks) // 2
        stamp = part.stamp
        for number, chunks in enumerate((part.chunks[:middle], part.chunks[middle:])):
            half = Part(self, chunks, (*part.order, number))
            half.attempts = part.attempts
            half.stamp = stamp
            stamp = stamp and _advance(stamp, half.record_count)
            if chunks:
                self._back(half)

    def _drop_records(self, part: Part, error: BusError, record_errors: Mapping[int, BusError]) -> Settled:
        settled: Settled = []
        kept: list[Chunk] = []
        start = 0
        for chunk in part.chunks:
            count = chunk.record_count
            own = {index - start: found for index, found in record_errors.items() if start <= index < start + count}
            start += count
            if chunk.is_settled:
                continue  # given up; its records are gone
            if own and (chunk.payload is not None or len(own) == count):
                chunk.settle(None, error if chunk.payload is not None else next(iter(own.values())))
                settled.append(chunk)
                continue
            if own:
                chunk.refuse_records(own)
            kept.append(chunk)
        part.chunks = kept
        part.payload = None
        part.count()
        if self.is_strict:
            return settled + self._drop(part, error)
        self.needs_resume = self.needs_resume or part.stamp is not None
        if kept:
            self._back(part)
        return settled

    def _drop(self, part: Part, error: BusError) -> Settled:
        """The part fails, and is out of the queue."""
        settled = _settle(part.chunks, error)
        if part.stamp is not None:
            self.needs_resume = True
        return settled + self._break(error)

    def _break(self, cause: BusError) -> Settled:
        """Fail everything behind a failure, if the queue is strict."""
        if not self.is_strict:
            return []
        self.needs_resume = False
        self.broken = self.broken or BusError(
            cause.code, f"{self}: not sent, since a record before it failed ({cause.message})"
        )
        settled = _settle((chunk for part in self.retries for chunk in part.chunks), self.broken)
        settled += _settle(self.pending, self.broken)
        self.retries.clear()
        self.pending.clear()
        self.pending_bytes = 0
        return settled

    def _leave(self, part: Part) -> None:
        assert self.in_flight[0] is part, f"{self}: an answer came out of order"
        self.in_flight.popleft()

    def _back(self, part: Part) -> None:
        self.is_draining = True
        self._is_single_file = self.has_given_stamps
        bisect.insort(self.retries, part, key=lambda waiting: waiting.order)

    # ------------------------------------------------------------ time

    def expire(self, now_ms: float) -> Settled:
        """Fail the chunks that were not acknowledged within delivery.timeout.ms, on their way or not."""
        settled: Settled = []
        failure = "" if self.last_failure is None else f"; the last attempt failed with {self.last_failure}"
        message = f"{self}: not acknowledged within delivery.timeout.ms{failure}"
        error = BusError(ErrorCode.REQUEST_TIMED_OUT, message)
        # Sent parts stay in the queue: their answers will come and have their place in the order; the records may be in
        # the log.
        for part in (*self.in_flight, *self.retries):
            settled += _settle((chunk for chunk in part.chunks if now_ms >= chunk.deadline_ms), error)
        self._forget_settled_retries()
        while self.pending and now_ms >= self.pending[0].deadline_ms:
            chunk = self.pending.popleft()
            self.pending_bytes -= chunk.size_bytes
            settled += _settle([chunk], error)
        return settled + self._break(error) if settled else settled

    def _forget_settled_retries(self) -> None:
        for part in [part for part in self.retries if part.is_settled or part.payload is None]:
            left = [chunk for chunk in part.chunks if not chunk.is_settled]
            if len(left) == len(part.chunks):
                continue
            part.chunks = left
            part.count()
            self.needs_resume = self.needs_resume or part.stamp is not None
            if not left:
                self.retries.remove(part)

    def next_deadline(self) -> float:
        """When `expire` has something to do; infinity if never."""
        parts = [*self.in_flight, *self.retries]
        deadlines = [part.deadline_ms for part in parts]
        if self.pending:
            deadlines.append(self.pending[0].deadline_ms)
        return min(deadlines, default=math.inf)

    def fail_all(self, error: BusError) -> Settled:
        settled = _settle(self.chunks(), error)
        self.in_flight.clear()
        self.retries.clear()
        self.pending.clear()
        self.pending_bytes = 0
        return settled + self._break(error) if settled else settled

    def chunks(self) -> Iterator[Chunk]:
        for parts in (self.in_flight, self.retries):
            for part in parts:
                yield from part.chunks
        yield from self.pending

    # ------------------------------------------------------------ sequences

    def begin(self, stamp: ProducerStamp) -> None:
        """The identity of all that is sent from now on. Nothing that was sent before is in the log, or under way."""
        assert not self.in_flight, f"{self}: a new identity with parts under way"
        for part in self.retries:
            part.stamp = stamp
            stamp = _advance(stamp, part.record_count)
        self.stamp_next = stamp

    def resume(self, producer_epoch: int, *, last_epoch: int, last_sequence: int, version: int) -> Settled:
        """The leader has fenced every older epoch, and the log ends for this producer at `last_sequence` of
        `last_epoch` (-1: there is nothing). What is in the log is settled, though its offsets are not known any more;
        the rest goes again under the new epoch."""
        assert self.stamp_next is not None, f"{self}: resumed without an identity"
        settled: Settled = []
        kept: deque[Part] = deque()
        for part in self.retries:
            if last_sequence >= 0 and _is_within(part, last_epoch, last_sequence):
                settled += self._place(part, -1, -1, version)
            else:
                kept.append(part)
        self.retries = kept
        self.needs_resume = self.is_resuming = False
        self.is_resumed = True
        self.failures = 0
        sequence = sequence_after(last_sequence, 1) if last_sequence >= 0 else 0
        self.begin(ProducerStamp(self.stamp_next.producer_id, producer_epoch, sequence))
        return settled

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


def _settle(chunks: Iterable[Chunk], error: BusError) -> Settled:
    settled = [chunk for chunk in chunks if not chunk.is_settled]
    for chunk in settled:
        chunk.settle(None, error)
    return settled


def _advance(stamp: ProducerStamp, count: int) -> ProducerStamp:
    return ProducerStamp(stamp.producer_id, stamp.producer_epoch, sequence_after(stamp.base_sequence, count))


def _is_within(part: Part, last_epoch: int, last_sequence: int) -> bool:
    stamp = part.stamp
    if stamp is None or stamp.producer_epoch != last_epoch:
        return False
    return _is_at_or_before(sequence_after(stamp.base_sequence, part.record_count - 1), last_sequence)


def _is_at_or_before(sequence: int, other: int) -> bool:
    """Sequences go round: what is less than half a round ahead is ahead."""
    return (other - sequence) % SEQUENCE_MODULUS < SEQUENCE_MODULUS // 2
