"""Sends Arrow batches with given stamps to the leaders of their partitions, until each is in the log.

`StampedLanes` decides; the writer is its shell: streams, time, metadata. The calling thread does the work; the
threads that read answers only put them into a line. Memory is bounded: `send` waits while `buffer.memory` is full of
what is not acknowledged.
"""

from __future__ import annotations

import queue
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from bus.client.config.parsing import ProducerConfig
from bus.client.connection.cluster import Cluster, TopicInfo, error_of, hint_of
from bus.client.connection.produce_requests import WireCompression, encode_request, encode_share
from bus.client.connection.request_stream import RequestStream
from bus.client.connection.retrying import monotonic_ms
from bus.errors import BusError, ErrorCode
from bus.model import ProducerStamp, TopicPartition, sequence_after
from bus.spark.sink.options import Application

# The stamps of what a task writes: which producer it is, under which epoch, and the sequences of its rows.
#
# Guards two promises. A task that runs again, in the same attempt of a batch or in a later one, is the same producer
# with the same epoch, and no other task ever is. The producer's name is made of the query and the number of the task,
# the epoch is the number of the batch; epochs are 15 bits wide, so every 32,000 batches another name begins. And the
# sequences of a partition count its rows from 0 in the order in which they were added, without a gap. Rows are cut into
# parts worth a request; memory is bounded, however many partitions there are.

EPOCHS_PER_NAME = 32_000


@dataclass(frozen=True, slots=True)
class TaskIdentity:
    """`batch`: of a streaming query its number, of a batch write its version."""

    producer_name: str
    producer_epoch: int
    batch: int
    task: int

    @property
    def first_turn(self) -> int:
        """Where rows with neither key nor partition begin: tasks and batches take turns."""
        return self.task + self.batch


def task_identity(writer: Application, task: int) -> TaskIdentity:
    generation, epoch = divmod(writer.version, EPOCHS_PER_NAME)
    return TaskIdentity(f"spark.{writer.name}.{task}.{generation}", epoch, writer.version, task)


Send = Callable[[TopicPartition, int, pa.RecordBatch], None]  # partition, sequence of the first record, records


class Numbering:
    def __init__(self, send: Send, *, part_bytes: int, buffered_bytes_max: int) -> None:
        self._send = send
        self._part_bytes = part_bytes
        self._buffered_bytes_max = buffered_bytes_max
        self._buffered: dict[TopicPartition, list[pa.RecordBatch]] = {}
        self._bytes: dict[TopicPartition, int] = {}
        self._total_bytes = 0
        self._next: dict[TopicPartition, int] = {}
        self.record_count = 0

    def add(self, partition: TopicPartition, records: pa.RecordBatch) -> None:
        self._buffered.setdefault(partition, []).append(records)
        self._bytes[partition] = self._bytes.get(partition, 0) + records.nbytes
        self._total_bytes += records.nbytes
        if self._bytes[partition] >= self._part_bytes:
            self._emit(partition)
        while self._total_bytes > self._buffered_bytes_max:
            self._emit(max(self._bytes, key=self._bytes.__getitem__))

    def flush(self) -> None:
        for partition in list(self._buffered):
            self._emit(partition)

    def _emit(self, partition: TopicPartition) -> None:
        batches = self._buffered.pop(partition)
        self._total_bytes -= self._bytes.pop(partition)
        for records in _pieces(pa.concat_batches(batches), self._part_bytes):
            sequence = self._next.get(partition, 0)
            self._next[partition] = sequence_after(sequence, records.num_rows)
            self.record_count += records.num_rows
            self._send(partition, sequence, records)


def _pieces(records: pa.RecordBatch, bytes_max: int) -> Iterator[pa.RecordBatch]:
    """Halves of halves, until each is small enough, or a single record."""
    if records.nbytes <= bytes_max or records.num_rows == 1:
        yield records
        return
    half = records.num_rows // 2
    yield from _pieces(records.slice(0, half), bytes_max)
    yield from _pieces(records.slice(half), bytes_max)


# What to send next of batches that carry their stamps already, and what to make of the answers.
#
# Guards one promise: of a partition the parts are appended in the order of their sequences, each once, also if a part
# is refused, lost or answered late; else the failure is known. A part keeps its stamp for ever, so sending it again is
# always safe. Decides only: no clock, no thread, no wire.
#
# Of a partition one part is under way until a first one is in the log, then as many as the broker remembers. Else the
# second part could come where the producer's older epoch ended, after the first one was refused, and be taken for its
# continuation.

# The answer says that the records are in the log.
_SETTLED = frozenset({ErrorCode.NONE, ErrorCode.DUPLICATE_SEQUENCE_NUMBER})
# Retriable for most callers. Here the topic is gone, or another one has its name: half a batch must not go there.
_FINAL = frozenset({ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_ID, ErrorCode.INCONSISTENT_TOPIC_ID})
_TICK_S = 0.001  # past the moment itself


@dataclass(slots=True, eq=False)
class Part:
    """Records of one partition that travel together."""

    partition: TopicPartition
    base_sequence: int
    record_count: int
    size_bytes: int
    payload: Any  # encoded records, opaque here
    attempts: int = 0
    number: int = -1  # of all parts; sequences wrap, these do not


@dataclass(slots=True)
class _Lane:
    """Invariant: every part that is not settled is in one of the three; the numbers of `waiting` grow, and are above
    all others. While one has failed, others are under way and the lane is not open."""

    waiting: deque[Part] = field(default_factory=deque)
    under_way: list[Part] = field(default_factory=list)
    failed: list[Part] = field(default_factory=list)  # waits until nothing is under way any more
    is_open: bool = False  # a part was settled, and none failed since
    not_before_s: float = 0.0

    @property
    def first(self) -> Part:
        return min((*self.failed, *self.under_way, *self.waiting), key=_number_of)


class StampedLanes:
    """`backoff_s(attempts)` is how long to wait after so many. Times are of one clock that never goes back."""

    def __init__(self, *, in_flight_max: int, patience_s: float, backoff_s: Callable[[int], float]) -> None:
        assert in_flight_max >= 1, f"expected at least one part under way, found {in_flight_max}"
        self._in_flight_max = in_flight_max
        self._patience_s = patience_s
        self._backoff_s = backoff_s
        self._lanes: dict[TopicPartition, _Lane] = {}
        self._last_refusal: BusError | None = None
        self._failure: BusError | None = None
        self._progress_s = 0.0  # when something was settled, or there was nothing to settle
        self._count = 0
        self.unsettled_bytes = 0

    @property
    def failure(self) -> BusError | None:
        """What no repetition helps against. Nothing is sent any more."""
        return self._failure

    @property
    def is_done(self) -> bool:
        return self.unsettled_bytes == 0

    def add(self, part: Part, now_s: float) -> None:
        """Sequences of a partition are added in order."""
        if self.is_done:
            self._progress_s = now_s
        part.number, self._count = self._count, self._count + 1
        self._lanes.setdefault(part.partition, _Lane()).waiting.append(part)
        self.unsettled_bytes += part.size_bytes

    def take_ready(self, now_s: float) -> list[Part]:
        """What may be sent now; it is under way from then on."""
        if self._failure is not None:
            return []
        ready = [part for lane in self._lanes.values() for part in self._take(lane, now_s)]
        for part in ready:
            part.attempts += 1
        return ready

    def _take(self, lane: _Lane, now_s: float) -> Iterator[Part]:
        if lane.not_before_s > now_s:
            return
        while self._has_room(lane) and lane.waiting:
            part = lane.waiting.popleft()
            lane.under_way.append(part)
            yield part

    def _has_room(self, lane: _Lane) -> bool:
        return len(lane.under_way) < (self._in_flight_max if lane.is_open else 1)

    def on_answer(self, part: Part, code: int, message: str, *, throttle_s: float, now_s: float) -> None:
        lane = self._lanes[part.partition]
        lane.not_before_s = max(lane.not_before_s, now_s + throttle_s)
        if code in _SETTLED:
            self._settle(lane, part, now_s)
        else:
            self._refuse(lane, part, error_of(code, f"{part.partition}: {message}"), now_s)

    def on_lost(self, part: Part, error: BusError, now_s: float) -> None:
        """No answer will come: the records are in the log or not."""
        self._refuse(self._lanes[part.partition], part, error, now_s)

    def _settle(self, lane: _Lane, part: Part, now_s: float) -> None:
        lane.under_way.remove(part)
        lane.is_open = not lane.failed
        self.unsettled_bytes -= part.size_bytes
        self._progress_s = now_s
        self._requeue(lane)

    def _refuse(self, lane: _Lane, part: Part, error: BusError, now_s: float) -> None:
        is_first = part is lane.first
        lane.under_way.remove(part)
        lane.failed.append(part)
        lane.is_open = False
        if not _may_retry(error.code, is_first=is_first):
            self._failure = self._failure or error
        if is_first or self._last_refusal is None:
            self._last_refusal = error
        lane.not_before_s = max(lane.not_before_s, now_s + self._backoff_s(part.attempts - 1))
        self._requeue(lane)

    def _requeue(self, lane: _Lane) -> None:
        """First things first: while an earlier part is missing, a later one can only be refused."""
        if lane.failed and not lane.under_way:
            lane.waiting.extendleft(sorted(lane.failed, key=_number_of, reverse=True))
            lane.failed.clear()

    def check_patience(self, now_s: float) -> None:
        """Fails when nothing has been settled for too long."""
        if self.is_done or self._failure is not None:
            return
        if now_s - self._progress_s > self._patience_s:
            why = "no answer" if self._last_refusal is None else str(self._last_refusal)
            self._failure = BusError(
                ErrorCode.REQUEST_TIMED_OUT,
                f"nothing was acknowledged for {self._patience_s:g} s (delivery.timeout.ms); the last refusal: {why}",
            )

    def wait_s(self, now_s: float) -> float | None:
        """Until when there may be something to send without an answer; None: only an answer helps. 0 and a tick if a
        pause of a lane has ended since `take_ready`."""
        if self._failure is not None or self.is_done:
            return None
        held = [lane.not_before_s for lane in self._lanes.values() if lane.waiting and self._has_room(lane)]
        return max(0.0, min([self._progress_s + self._patience_s, *held]) - now_s) + _TICK_S


def _number_of(part: Part) -> int:
    return part.number


def _may_retry(code: ErrorCode, *, is_first: bool) -> bool:
    if code is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER:
        return not is_first  # what comes before it is missing, and will be sent again
    return code.is_retriable and code not in _FINAL


_ACKS_ALL = -1
# A request holds one part of each of several partitions, which commit side by side, up to about this size.
_REQUEST_BYTES = 8 * 1024 * 1024
# The broker answers a request that is late by itself; who hears nothing for this much longer gives the stream up.
_SILENCE_S = 5.0


@dataclass(slots=True, eq=False)
class _Line:
    """A stream to one leader, and the requests on it whose answers are to come, oldest first."""

    stream: RequestStream
    unanswered: deque[tuple[float, Sequence[Part]]] = field(default_factory=deque)


Event = tuple[RequestStream, Any]  # a response, or the `BusError` that ended the stream


class StampedWriter:
    """The records of one producer under one epoch. For one thread. `close` gives up what is not acknowledged."""

    def __init__(
        self,
        cluster: Cluster,
        config: ProducerConfig,
        *,
        producer_id: int,
        producer_epoch: int,
    ) -> None:
        self._cluster = cluster
        self._config = config
        self._producer_id = producer_id
        self._producer_epoch = producer_epoch
        self._compression = WireCompression.of(config)
        self._lanes = StampedLanes(
            in_flight_max=config.max_in_flight_requests_per_connection,
            patience_s=config.delivery_timeout_ms / 1000,
            backoff_s=lambda attempts: cluster.backoff.ms(attempts) / 1000,
        )
        self._topic_ids: dict[str, str] = {}
        self._lines: dict[str, _Line] = {}
        self._events: queue.SimpleQueue[Event] = queue.SimpleQueue()
        self._correlation_id = 0

    def partition_count(self, topic: str) -> int:
        """Waits for a broker. Raises `BusError`."""
        return len(self._topic(topic).partitions)

    def send(self, partition: TopicPartition, base_sequence: int, records: pa.RecordBatch) -> None:
        """Returns when there is room for more. `records` has the columns of a produce request, and one row at least.

        Sequences of a partition follow one another without a gap. Raises the `BusError` that no repetition helps
        against, of these records or of earlier ones.
        """
        self._topic_ids.setdefault(partition.topic, self._topic(partition.topic).topic_id)
        payload = self._compression.encode(records)
        part = Part(partition, base_sequence, records.num_rows, payload[0].size, payload)
        self._lanes.add(part, time.monotonic())
        # One part is always admitted, however large.
        limit = max(self._config.buffer_memory, part.size_bytes)
        self._work(lambda: self._lanes.unsettled_bytes <= limit)

    def flush(self) -> None:
        """Returns when all records are in the log, committed. Raises as `send`."""
        self._work(lambda: self._lanes.is_done)

    def close(self) -> None:
        for line in self._lines.values():
            if line.unanswered:
                line.stream.cut("the writer was closed")
            else:
                line.stream.finish()
        self._lines.clear()

    # ------------------------------------------------------------ the work

    def _work(self, is_enough: Callable[[], bool]) -> None:
        while True:
            self._take_events()
            self._lanes.check_patience(time.monotonic())
            if self._lanes.failure is not None:
                raise self._lanes.failure
            self._send_ready()
            if is_enough():
                return
            self._wait()

    def _take_events(self) -> None:
        while True:
            try:
                event = self._events.get_nowait()
            except queue.Empty:
                return
            self._take(*event)

    def _wait(self) -> None:
        now_s = time.monotonic()
        waits = [wait for wait in (self._lanes.wait_s(now_s), self._silence_s(now_s)) if wait is not None]
        try:
            event = self._events.get(timeout=min(waits, default=None))
        except queue.Empty:
            self._cut_silent()
        else:
            self._take(*event)

    def _take(self, stream: RequestStream, what: Any) -> None:
        line = self._lines.get(stream.address)
        if line is None or line.stream is not stream:
            return  # of a stream that was given up
        if isinstance(what, BusError):
            self._give_up(line, what)
            return
        _, parts = line.unanswered.popleft()
        now_s = time.monotonic()
        for part, answer in zip(parts, what.partitions, strict=True):
            hint = hint_of(answer)
            name = part.partition
            has_moved = hint is not None and self._cluster.take_hint(name.topic, name.partition, hint)
            if answer.error_code and not has_moved:
                self._cluster.forget([name.topic])
            self._lanes.on_answer(
                part,
                answer.error_code,
                answer.error_message,
                throttle_s=what.throttle_time_ms / 1000,
                now_s=now_s,
            )

    def _give_up(self, line: _Line, error: BusError) -> None:
        del self._lines[line.stream.address]
        for _, parts in line.unanswered:
            for part in parts:
                self._lose(part, error)

    def _lose(self, part: Part, error: BusError) -> None:
        self._cluster.forget([part.partition.topic])
        self._lanes.on_lost(part, error, time.monotonic())

    def _silence_s(self, now_s: float) -> float | None:
        """Until when the oldest request of a stream should have an answer; None: all have theirs."""
        oldest = [line.unanswered[0][0] for line in self._lines.values() if line.unanswered]
        return max(0.0, min(oldest) + self._limit_s - now_s) if oldest else None

    def _cut_silent(self) -> None:
        now_s = time.monotonic()
        for line in list(self._lines.values()):
            if line.unanswered and now_s >= line.unanswered[0][0] + self._limit_s:
                reason = f"no answer of the broker at {line.stream.address} within {self._limit_s:g} s"
                line.stream.cut(reason, is_late=True)
                self._give_up(line, BusError(ErrorCode.NETWORK_EXCEPTION, reason))

    @property
    def _limit_s(self) -> float:
        return self._config.request_timeout_ms / 1000 + _SILENCE_S

    # ------------------------------------------------------------ sending

    def _send_ready(self) -> None:
        by_address: dict[str, list[Part]] = {}
        for part in self._lanes.take_ready(time.monotonic()):
            try:
                address = self._leader(part.partition)
            except BusError as error:
                self._lose(part, error)
            else:
                by_address.setdefault(address, []).append(part)
        for address, parts in by_address.items():
            for together in _requests(parts):
                self._send(address, together)

    def _send(self, address: str, parts: Sequence[Part]) -> None:
        line = self._lines.get(address)
        if line is None:
            try:
                line = self._lines[address] = _Line(self._open(address))
            except Exception as failure:  # it is tried again, as what a stream has lost
                error = BusError(ErrorCode.NETWORK_EXCEPTION, f"no stream to {address}: {failure!r}")
                for part in parts:
                    self._lose(part, failure if isinstance(failure, BusError) else error)
                return
        line.unanswered.append((time.monotonic(), parts))
        line.stream.send(self._encode(parts))

    def _open(self, address: str) -> RequestStream:
        def tell(stream: RequestStream, what: Any) -> None:
            self._events.put((stream, what))

        return RequestStream(self._cluster, address, "Produce", on_answer=tell, on_end=tell)

    def _encode(self, parts: Sequence[Part]) -> bytes:
        self._correlation_id += 1
        timeout_ms = self._config.request_timeout_ms
        return encode_request(
            self._correlation_id, map(self._encode_part, parts), acks=_ACKS_ALL, timeout_ms=timeout_ms
        )

    def _encode_part(self, part: Part) -> list[Any]:
        topic, number = part.partition.topic, part.partition.partition
        stamp = ProducerStamp(self._producer_id, self._producer_epoch, part.base_sequence)
        return encode_share(topic, number, self._topic_ids[topic], part.payload, stamp=stamp)

    # ------------------------------------------------------------ who leads

    def _topic(self, name: str) -> TopicInfo:
        info = self._cluster.cached_topic(name)
        if info is not None and not self._cluster.is_stale(info):
            return info
        deadline_ms = monotonic_ms() + self._config.delivery_timeout_ms
        return self._cluster.retry(lambda: self._cluster.refresh([name])[name], deadline_ms=deadline_ms)

    def _leader(self, partition: TopicPartition) -> str:
        """One question at most: who waits for a broker waits with what was sent."""
        info = self._cluster.cached_topic(partition.topic)
        if info is None or self._cluster.is_stale(info):
            info = self._cluster.refresh([partition.topic])[partition.topic]
        address = self._cluster.leader_address(info, partition.partition)
        if address is None:
            self._cluster.forget([partition.topic])
            raise BusError(ErrorCode.LEADER_NOT_AVAILABLE, f"{partition} has no leader")
        return address


def _requests(parts: Sequence[Part]) -> list[list[Part]]:
    requests: list[list[Part]] = []
    size_bytes = 0
    for part in parts:
        if not requests or size_bytes + part.size_bytes > _REQUEST_BYTES:
            requests.append([])
            size_bytes = 0
        requests[-1].append(part)
        size_bytes += part.size_bytes
    return requests
