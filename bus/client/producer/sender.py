"""What a producer sends when, what an answer means, what is due: a machine without threads, locks, clock or I/O.

It is told what happened and what time it is, and puts what is to be done into `instructions`, for its owner (`engine`)
to carry out in order; what is settled is in `settled`, for its owner to announce. Guards three promises: every chunk
that is taken in is settled once, by an answer, by a final error, by its delivery time-out or by closing; bytes that are
not settled never exceed buffer.memory; and one connection never has more than max.in.flight.requests.per.connection
requests. `now_ms` and all times are milliseconds of one clock that never goes back.
"""

from __future__ import annotations

import logging
import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from bus.client.config.parsing import ProducerConfig
from bus.client.connection.cluster import TopicInfo
from bus.client.connection.portions import ITEMS_MAX
from bus.client.connection.produce_requests import Produced
from bus.client.producer.accumulator import RecordAccumulator
from bus.client.producer.batch import RecordBatchBuilder
from bus.client.producer.buffer_pool import BufferPool
from bus.client.producer.metrics import ProducerMetrics
from bus.client.producer.partition_choice import PartitionChoice
from bus.client.producer.queue import FULL_BYTES, Chunk, Part, PartitionQueue
from bus.errors import BusError, ErrorCode, count_of
from bus.model import ProducerStamp

logger = logging.getLogger(__name__)

EPOCH_MAX = 2**15 - 1
_BUSY_PARTS = 2

_STALE_METADATA = frozenset(
    {
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.NETWORK_EXCEPTION,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.INCONSISTENT_TOPIC_ID,
    }
)
_FENCED = frozenset({ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.PRODUCER_FENCED})


class Metadata(Protocol):
    """What the sender asks of the cluster: answers from memory only."""

    def cached_topic(self, name: str) -> TopicInfo | None: ...

    def leader_address(self, info: TopicInfo, partition: int) -> str | None: ...

    def is_stale(self, info: TopicInfo) -> bool: ...


@dataclass(slots=True)
class Request:
    """What one call of a stream carries."""

    correlation_id: int
    parts: list[Part]
    sent_at_ms: float
    deadline_ms: float


@dataclass(frozen=True, slots=True)
class RefreshTopics:
    topics: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class InitProducer:
    """`producer_id` and `producer_epoch`: the present identity, to be followed by a higher epoch; None at first."""

    producer_id: int | None
    producer_epoch: int | None


@dataclass(frozen=True, slots=True)
class Resume:
    queue: PartitionQueue
    address: str
    topic_id: str
    producer_id: int
    producer_epoch: int


Errand = RefreshTopics | InitProducer | Resume


class Connection:
    """To one broker: the requests that are not answered, oldest first."""

    __slots__ = ("address", "muted_until_ms", "requests")

    def __init__(self, address: str) -> None:
        self.address = address
        self.requests: deque[Request] = deque()
        self.muted_until_ms = 0.0  # the broker asked for a pause


@dataclass(frozen=True, slots=True)
class Open:
    """`on_opened` or `on_not_opened` follows."""

    address: str


@dataclass(frozen=True, slots=True)
class Send:
    connection: Connection
    request: Request


@dataclass(frozen=True, slots=True)
class Cut:
    """Nothing more is expected of the connection but its end."""

    connection: Connection
    reason: str


@dataclass(frozen=True, slots=True)
class Wake:
    """`tick` is due earlier than it last said: at `wakes_at_ms`."""


Instruction = Open | Send | Cut | Wake | Errand
_WAKE = Wake()


class Sender:
    def __init__(
        self, metadata: Metadata, config: ProducerConfig, pool: BufferPool, *, backoff_ms: Callable[[int], float]
    ) -> None:
        """`pool`: nothing here waits for it."""
        self.instructions: deque[Instruction] = deque()
        self.settled: deque[Chunk] = deque()  # not announced yet, oldest first
        self.wakes_at_ms = 0.0  # when the next tick is due
        self.connections: dict[str, Connection] = {}
        self.identity: tuple[int, int] | None = None  # producer id and epoch
        self._metadata = metadata
        self._config = config
        self._backoff_ms = backoff_ms
        self._request_timeout_ms = min(config.request_timeout_ms, config.delivery_timeout_ms)
        self._pool = pool
        self.metrics = ProducerMetrics(config, pool)
        self.metrics.add_gauge("requests-in-flight", lambda _: float(self._requests_in_flight()))
        self._choice = PartitionChoice(config, leader_of=metadata.leader_address, queue_of=self._queue_of)
        self.split = self._choice.split
        self.accumulator = RecordAccumulator(config, pool, self._choice.choose)
        self._queues: dict[tuple[str, int], PartitionQueue] = {}
        self._active: dict[PartitionQueue, None] = {}  # those with anything that is not settled
        self._given_up: dict[tuple[str, int], ProducerStamp] = {}  # partitions that were no more, and the next stamp
        self._opening: dict[str, bool] = {}  # addresses of streams to come, and whether what waits there is in a hurry
        self._correlation_id = 0
        self._flushing = 0
        self._stale_topics: set[str] = set()
        self._is_refreshing = False
        self._refresh_at_ms = 0.0
        self._refresh_failures = 0
        self._is_asking_identity = False
        self._identity_at_ms = 0.0
        self._identity_failures = 0
        self._fatal: BusError | None = None
        self._is_closed = False

    # ------------------------------------------------------------ taking in

    @property
    def is_usable(self) -> bool:
        return self._fatal is None and not self._is_closed

    def check_usable(self) -> None:
        if self._fatal is not None:
            raise self._fatal
        if self._is_closed:
            raise BusError(ErrorCode.INVALID_REQUEST, "this producer is closed")

    def make_room(
        self, topic: str, size_bytes: int, partition_count: int, now_ms: float, *, limit_bytes: int, least_bytes: int
    ) -> RecordBatchBuilder | None:
        """An open batch with room for a record of `size_bytes`: the topic's, grown, or a new one of `limit_bytes`, or
        of `least_bytes` if memory is short. None: there is no memory; what frees some is on its way."""
        while (batch := self.accumulator.open.get(topic)) is not None:
            if batch.size_bytes + size_bytes <= batch.limit_bytes:
                return batch
            if not self._grow(batch):
                self._close_batch(batch, now_ms)
                self._drain(now_ms)
        taken = next((size for size in (limit_bytes, least_bytes) if self._pool.try_take(size)), None)
        if taken is None:
            self._drain(now_ms, is_hurried=True)
            return None
        return self.accumulator.open_batch(topic, taken, partition_count, now_ms)

    def has_to_follow_up(self, batch: RecordBatchBuilder, now_ms: float) -> bool:
        """After a record was added to `batch`. Changes nothing, so an interrupt may come: without linger.ms this is
        asked of every record, and most of the time the window is closed."""
        if batch.is_filled or self._pool.waiting_count > 0:
            return True
        if batch.due_at_ms > self.wakes_at_ms:
            return False
        return batch.due_at_ms < self.wakes_at_ms or (batch.due_at_ms <= now_ms and self._has_window(now_ms))

    def follow_up(self, batch: RecordBatchBuilder, now_ms: float) -> None:
        """Closes a full batch, sends what is due, and sees to it that the batch leaves in time."""
        if batch.is_filled and not self._grow(batch):
            self._close_batch(batch, now_ms)  # there is no company to wait for
            self._drain(now_ms)
        elif self._pool.waiting_count > 0 or (
            batch.due_at_ms <= min(now_ms, self.wakes_at_ms) and self._has_window(now_ms)
        ):
            self._drain(now_ms)
        else:
            self._wake_by(batch.due_at_ms)

    def _grow(self, batch: RecordBatchBuilder) -> bool:
        """Room for more in a full batch: it would only wait behind what is under way."""
        return self._is_busy(batch.topic) and self.accumulator.grow(batch)

    def _is_busy(self, topic: str) -> bool:
        """As much of the topic is under way as it takes to hide one answer behind the other."""
        info = self._metadata.cached_topic(topic)
        enough = _BUSY_PARTS if info is None else min(_BUSY_PARTS, len(info.partitions))
        return sum(len(queue.in_flight) for queue in self._active if queue.topic == topic) >= enough

    def take_in(self, topic: str, chunks: Sequence[tuple[int, Chunk]], now_ms: float) -> None:
        """Runs of a batch with their partitions, in order, behind all records before them. Their bytes are taken from
        the pool."""
        batch = self.accumulator.open.get(topic)
        if batch is not None:
            self._close_batch(batch, now_ms)
        for partition, chunk in chunks:
            self._push(topic, partition, chunk)
        self._drain(now_ms)

    def hurry(self, now_ms: float) -> None:
        """Memory is waited for: nothing waits for company."""
        self._drain(now_ms, is_hurried=True)

    def _close_batch(self, batch: RecordBatchBuilder, now_ms: float) -> None:
        info = self._metadata.cached_topic(batch.topic)
        for partition, chunk in self.accumulator.close(batch, info, now_ms):
            self._push(batch.topic, partition, chunk)

    def _push(self, topic: str, partition: int, chunk: Chunk) -> None:
        queue = self._queues.get((topic, partition))
        if queue is None:
            is_strict = self._config.name is not None
            queue = self._queues[topic, partition] = PartitionQueue(topic, partition, is_strict=is_strict)
            self._begin(queue)
            past = self._given_up.pop((topic, partition), None)
            if past is not None:
                queue.begin(past)
                queue.needs_resume = True
        self._note_settled(queue.push(chunk))
        self._active[queue] = None

    def _queue_of(self, topic: str, partition: int) -> PartitionQueue | None:
        return self._queues.get((topic, partition))

    # ------------------------------------------------------------ sending

    def _has_window(self, now_ms: float) -> bool:
        return not self.connections or any(
            self._is_open(connection, now_ms) for connection in self.connections.values()
        )

    def _is_open(self, connection: Connection, now_ms: float) -> bool:
        window = self._config.max_in_flight_requests_per_connection
        return len(connection.requests) < window and now_ms >= connection.muted_until_ms

    def _drain(self, now_ms: float, *, is_hurried: bool = False) -> None:
        """Close what is due, send what may be sent; one request has several partitions of one leader."""
        is_hurried = is_hurried or self._flushing > 0 or self._pool.waiting_count > 0 or self._is_closed
        if self.accumulator.open and (is_hurried or self._has_window(now_ms)):
            for batch in list(self.accumulator.open.values()):
                if is_hurried or now_ms >= batch.due_at_ms or (batch.is_full and not self._is_busy(batch.topic)):
                    self._close_batch(batch, now_ms)
        while True:
            by_address: dict[str, list[PartitionQueue]] = {}
            for queue in list(self._active):
                if not queue.is_ready(now_ms, is_hurried=is_hurried):
                    self._look_after(queue, now_ms)
                    continue
                address = self._address_of(queue, now_ms)
                if address is not None and self._may_send_to(address, now_ms) and self._has_identity(queue, now_ms):
                    by_address.setdefault(address, []).append(queue)
            if not by_address:
                return
            for address, queues in by_address.items():
                connection = self.connections.get(address)
                if connection is not None:
                    self._send(connection, queues, now_ms)
                else:
                    self._opening[address] = is_hurried
                    self.instructions.append(Open(address))

    def on_opened(self, address: str, now_ms: float) -> Connection:
        connection = self.connections[address] = Connection(address)
        self._drain(now_ms, is_hurried=self._opening.pop(address))
        return connection

    def on_not_opened(self, address: str, now_ms: float) -> None:
        """What waits there tries again after a pause."""
        del self._opening[address]
        for queue in self._active:
            if queue.address == address and queue.retry_at_ms <= now_ms:
                self._back_off(queue, now_ms, queue.failures)
                queue.failures += 1

    def on_no_answer(self, errand: Errand, error: BusError, now_ms: float) -> None:
        match errand:
            case RefreshTopics(topics):
                self.on_refreshed(dict.fromkeys(topics, error), now_ms)
            case InitProducer():
                self.on_no_identity(error, now_ms)
            case Resume():
                self.on_not_resumed(errand, error, now_ms)

    def _look_after(self, queue: PartitionQueue, now_ms: float) -> None:
        """A queue that has nothing to send: is it done, or is there something to find out first?"""
        if queue.in_flight:
            return
        if queue.needs_resume and not queue.is_resuming and now_ms >= queue.retry_at_ms:
            self._start_resuming(queue, now_ms)
        elif not queue.pending and not queue.retries and not queue.needs_resume and not queue.is_resuming:
            self._active.pop(queue, None)

    def _may_send_to(self, address: str, now_ms: float) -> bool:
        connection = self.connections.get(address)
        return address not in self._opening if connection is None else self._is_open(connection, now_ms)

    def _address_of(self, queue: PartitionQueue, now_ms: float) -> str | None:
        info = self._metadata.cached_topic(queue.topic)
        address = None
        if info is not None and queue.partition < len(info.partitions):
            address = self._metadata.leader_address(info, queue.partition)
        if info is None or address is None:
            self._back_off(queue, now_ms, queue.failures)
            queue.failures += 1
            self._ask_for_metadata(queue.topic)
            return None
        if queue.in_flight and queue.address != address:
            return None  # the old leader answers first: two streams have no order between them
        queue.address = address
        queue.topic_id = info.topic_id
        return address

    def _send(self, connection: Connection, queues: Sequence[PartitionQueue], now_ms: float) -> None:
        """A part of each queue that fits the request, the longest waiting one first."""
        room = self._config.max_request_size
        parts: list[Part] = []
        for queue in queues:
            # Many small parts cost the broker a commit each; a request that is worth one takes no more of them.
            is_full = len(parts) >= ITEMS_MAX or self._config.max_request_size - room >= FULL_BYTES
            if parts and (queue.next_bytes > room or is_full):
                continue
            if not queue.in_flight:
                queue.answered_at_ms = now_ms
            part = queue.take(room, is_idempotent=self._config.enable_idempotence)
            parts.append(part)
            room -= part.size_bytes
            self._active[queue] = self._active.pop(queue)  # to the end: the others have their turn first
        self._correlation_id += 1
        request = Request(self._correlation_id, parts, now_ms, now_ms + self._request_timeout_ms)
        connection.requests.append(request)
        self.instructions.append(Send(connection, request))

    def _requests_in_flight(self) -> int:
        return sum(len(connection.requests) for connection in list(self.connections.values()))

    # ------------------------------------------------------------ answers

    def on_answer(
        self,
        connection: Connection,
        correlation_id: int,
        throttle_time_ms: int,
        answers: Sequence[Produced],
        now_ms: float,
    ) -> None:
        """Raises `ValueError` if the answers do not fit the oldest request."""
        request = connection.requests[0] if connection.requests else None
        if request is None or request.correlation_id != correlation_id:
            expected = "no answer" if request is None else f"answer {request.correlation_id}"
            raise ValueError(f"expected {expected}, found answer {correlation_id}")
        if len(request.parts) != len(answers):
            raise ValueError(f"expected {count_of(len(request.parts), 'partition')}, found {len(answers)}")
        had_window = self._has_window(now_ms)
        connection.requests.popleft()
        self.metrics.record_response(now_ms - request.sent_at_ms, now_ms)
        if throttle_time_ms > 0:
            connection.muted_until_ms = now_ms + throttle_time_ms
            self.metrics.record_throttle(throttle_time_ms, now_ms)
            self._wake_by(connection.muted_until_ms)
        # What is in the log is settled before an error of another partition can fail everything.
        for part, answer in sorted(
            zip(request.parts, answers, strict=True), key=lambda pair: pair[1].error is not None
        ):
            self._take_answer(part, answer, now_ms)
        self._drain(now_ms)
        if not had_window and self._has_window(now_ms):
            self._wake_by(self._next_event(now_ms))  # what waits for company was no event while nothing could be sent

    def _take_answer(self, part: Part, answer: Produced, now_ms: float) -> None:
        queue = part.queue
        if not queue.in_flight or queue.in_flight[0] is not part:
            return  # the queue was given up meanwhile
        queue.answered_at_ms = now_ms
        error = answer.error
        if error is None:
            settled = queue.acknowledge(
                part, answer.base_offset, answer.log_append_time_ms, answer.version, answer.offsets
            )
            self._note_settled(settled)
            return
        if error.code is ErrorCode.DUPLICATE_SEQUENCE_NUMBER:  # it is in the log, or was and is retired
            self._note_settled(queue.acknowledge(part, -1, -1, -1))
        elif error.code is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER:
            if queue.retries or queue.needs_resume:
                self._note_failed(queue, queue.put_off(part), now_ms)
            else:
                logger.warning("%s: the log misses what went before; asking where it ends: %s", queue, error)
                self._note_failed(queue, queue.lose_order(part), now_ms)
        elif error.code in _FENCED and self._is_older_than_identity(part):
            self._note_failed(queue, queue.lose_order(part), now_ms)
        elif error.code in _FENCED or error.code is ErrorCode.INVALID_PRODUCER_ID_MAPPING:
            self._fail_for_good(error, now_ms)
        elif error.retriable:
            self._repeat(part, error, now_ms)
        else:
            self.metrics.record_split(now_ms)
            self._note_failed(queue, queue.refuse(part, error, answer.record_errors), now_ms)

    def _repeat(self, part: Part, error: BusError, now_ms: float) -> None:
        queue = part.queue
        logger.debug("producing to %s is tried again: %s", queue, error)
        if error.code in _STALE_METADATA:
            self._ask_for_metadata(queue.topic)
        self._back_off(queue, now_ms, part.attempts - 1)
        self.metrics.record_retries(queue.topic, part.record_count, now_ms)
        self._note_failed(queue, queue.repeat(part, error, retries=self._config.retries), now_ms)

    def _back_off(self, queue: PartitionQueue, now_ms: float, failures: int) -> None:
        """`failures`: before this one."""
        queue.retry_at_ms = max(queue.retry_at_ms, now_ms + self._backoff_ms(failures))
        self._wake_by(queue.retry_at_ms)

    def _note_settled(self, chunks: Iterable[Chunk]) -> None:
        """Their bytes are free again; the futures come after the lock."""
        for chunk in chunks:
            self._pool.give_back(chunk.reserved_bytes)
            self.settled.append(chunk)

    def _note_failed(self, queue: PartitionQueue, chunks: Sequence[Chunk], now_ms: float) -> None:
        self._note_settled(chunks)
        if chunks:
            self.metrics.record_errors(queue.topic, sum(chunk.record_count for chunk in chunks), now_ms)

    def on_end(self, connection: Connection, error: BusError, now_ms: float) -> None:
        """What was on the connection has an unknown outcome and is sent again, in order."""
        del self.connections[connection.address]
        lost = error if error.retriable else BusError(ErrorCode.NETWORK_EXCEPTION, f"the stream ended with {error}")
        for number, request in enumerate(connection.requests):
            for part in request.parts:
                if not part.queue.in_flight or part.queue.in_flight[0] is not part:
                    continue
                if number == 0 and not error.retriable:
                    # A broker that ends the stream for what a request contains means the oldest one.
                    self._note_failed(part.queue, part.queue.refuse(part, error, {}), now_ms)
                else:
                    self._repeat(part, lost, now_ms)
        self._wake_by(now_ms)

    # ------------------------------------------------------------ identity

    def _begin(self, queue: PartitionQueue) -> None:
        if self.identity is not None:
            queue.begin(ProducerStamp(*self.identity, 0))
            queue.needs_resume = self._config.name is not None

    def _has_identity(self, queue: PartitionQueue, now_ms: float) -> bool:
        if not self._config.enable_idempotence or queue.stamp_next is not None:
            return True
        self._ask_for_identity(now_ms)
        return False

    def _ask_for_identity(self, now_ms: float) -> None:
        if self._is_asking_identity or now_ms < self._identity_at_ms:
            return
        self._is_asking_identity = True
        producer_id, epoch = self.identity or (None, None)
        self.instructions.append(InitProducer(producer_id, epoch))

    def on_identity(self, producer_id: int, producer_epoch: int, now_ms: float) -> None:
        self._is_asking_identity = False
        self._identity_failures = 0
        self.identity = (producer_id, producer_epoch)
        for queue in self._queues.values():
            if queue.stamp_next is None:
                self._begin(queue)
        self._drain(now_ms)

    def on_no_identity(self, error: BusError, now_ms: float) -> None:
        self._is_asking_identity = False
        if error.retriable:
            self._identity_at_ms = now_ms + self._backoff_ms(self._identity_failures)
            self._identity_failures += 1
            self._wake_by(self._identity_at_ms)
        else:
            self._fail_for_good(error, now_ms)

    def _is_older_than_identity(self, part: Part) -> bool:
        """A named producer has one epoch for all partitions; those that have not moved to it yet do so now."""
        if self._config.name is None or part.stamp is None or self.identity is None:
            return False
        return part.stamp.producer_epoch < self.identity[1]

    def _start_resuming(self, queue: PartitionQueue, now_ms: float) -> None:
        """Under the next epoch: a named producer's comes from the broker, for all partitions; else from here, for this
        one, as in Kafka."""
        address = self._address_of(queue, now_ms)
        if address is None:
            return
        if queue.stamp_next is None or self.identity is None:
            self._ask_for_identity(now_ms)
            return
        stamp = queue.stamp_next
        if self._config.name is None:
            epoch = stamp.producer_epoch + 1
        elif queue.is_resumed and stamp.producer_epoch >= self.identity[1]:
            self._ask_for_identity(now_ms)
            return
        else:
            epoch = self.identity[1]
        queue.is_resuming = True
        self.instructions.append(Resume(queue, address, queue.topic_id, stamp.producer_id, epoch))

    def on_resumed(self, errand: Resume, now_ms: float, *, last_epoch: int, last_sequence: int, version: int) -> None:
        queue, epoch = errand.queue, errand.producer_epoch
        if queue.is_resuming:
            self._note_settled(queue.resume(epoch, last_epoch=last_epoch, last_sequence=last_sequence, version=version))
            if epoch >= EPOCH_MAX and self._config.name is None:
                # What is left is not in the log: it can go under another producer id.
                self.identity = queue.stamp_next = None
            self._drain(now_ms)

    def on_not_resumed(self, errand: Resume, error: BusError, now_ms: float) -> None:
        queue = errand.queue
        queue.is_resuming = False
        if error.retriable:
            if error.code in _STALE_METADATA:
                self._ask_for_metadata(queue.topic)
            self._back_off(queue, now_ms, queue.failures)
            queue.failures += 1
        elif error.code in _FENCED and self.identity is not None and errand.producer_epoch < self.identity[1]:
            self._wake_by(now_ms)
        else:
            self._fail_for_good(error, now_ms)

    def _fail_for_good(self, error: BusError, now_ms: float) -> None:
        """Nothing of this producer can be sent any more."""
        self._fatal = self._fatal or error
        if not self._is_closed:  # else a call that closing ended; what is lost by it, its futures tell
            logger.error("the producer failed for good: %s", error)
        self._pool.close(error)
        self._fail_everything(error, now_ms)

    def _fail_everything(self, error: BusError, now_ms: float) -> None:
        for batch in list(self.accumulator.open.values()):
            self._close_batch(batch, now_ms)
        for queue in self._queues.values():
            self._note_failed(queue, queue.fail_all(error), now_ms)
        self._active.clear()

    # ------------------------------------------------------------ time

    def _wake_by(self, at: float) -> None:
        if at < self.wakes_at_ms:
            self.wakes_at_ms = at
            self.instructions.append(_WAKE)

    def tick(self, now_ms: float) -> None:
        """Do what is due; `wakes_at_ms` says when to come again."""
        if self._is_closed:
            self.wakes_at_ms = math.inf
            return
        for queue in list(self._active):
            self._note_failed(queue, queue.expire(now_ms), now_ms)
        self._cut_silent(now_ms)
        self._refresh_stale(now_ms)
        self._drain(now_ms)
        self.wakes_at_ms = self._next_event(now_ms)

    def _cut_silent(self, now_ms: float) -> None:
        """Streams whose oldest request is overdue, each once: their end comes from their own threads."""
        for connection in self.connections.values():
            if connection.requests and now_ms >= connection.requests[0].deadline_ms:
                connection.requests[0].deadline_ms = math.inf
                reason = f"no answer of the broker at {connection.address} within request.timeout.ms"
                self.instructions.append(Cut(connection, reason))

    def _next_event(self, now_ms: float) -> float:
        # What is sent later cannot be overdue before that.
        events = [now_ms + max(10, self._request_timeout_ms / 2)]
        has_window = self._has_window(now_ms)
        if has_window:
            events += [batch.due_at_ms for batch in self.accumulator.open.values()]
        for queue in self._active:
            events.append(queue.next_deadline())
            if queue.retry_at_ms > now_ms:
                events.append(queue.retry_at_ms)
            elif has_window and queue.pending and queue.pending[0].due_at_ms > now_ms:
                events.append(queue.pending[0].due_at_ms)
        for connection in self.connections.values():
            if connection.requests:
                events.append(connection.requests[0].deadline_ms)
            if connection.muted_until_ms > now_ms:
                events.append(connection.muted_until_ms)
        if self._stale_topics and not self._is_refreshing:
            events.append(self._refresh_at_ms)
        if self._identity_at_ms > now_ms:
            events.append(self._identity_at_ms)
        return min(events)

    # ------------------------------------------------------------ metadata

    def _ask_for_metadata(self, topic: str) -> None:
        self._stale_topics.add(topic)
        self._wake_by(self._refresh_at_ms)

    def _refresh_stale(self, now_ms: float) -> None:
        if now_ms < self._refresh_at_ms or self._is_refreshing:
            return
        for topic in {queue.topic for queue in self._active}:
            info = self._metadata.cached_topic(topic)
            if info is not None and self._metadata.is_stale(info):
                self._stale_topics.add(topic)
        if self._stale_topics:
            self._is_refreshing = True
            self.instructions.append(RefreshTopics(tuple(self._stale_topics)))

    def on_refreshed(self, results: Mapping[str, BusError | None], now_ms: float) -> None:
        """Each topic that was asked for: None, or why nothing is known of it."""
        self._is_refreshing = False
        failed = False
        for topic, error in results.items():
            if error is None:
                self._stale_topics.discard(topic)
                self._fail_missing_partitions(topic, now_ms)
            elif not error.retriable or error.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                self._stale_topics.discard(topic)
                self._fail_queues(topic, 0, error, now_ms)
            else:
                failed = True
        self._refresh_at_ms = now_ms + self._backoff_ms(self._refresh_failures)
        self._refresh_failures = self._refresh_failures + 1 if failed else 0
        self._drain(now_ms)
        self._wake_by(self._refresh_at_ms)

    def _fail_missing_partitions(self, topic: str, now_ms: float) -> None:
        info = self._metadata.cached_topic(topic)
        count = len(info.partitions) if info is not None else 0
        error = BusError(
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"topic {topic!r} has {count_of(count, 'partition')} now"
        )
        self._fail_queues(topic, count, error, now_ms)

    def _fail_queues(self, topic: str, first_partition: int, error: BusError, now_ms: float) -> None:
        """A queue that is begun again goes on after the numbers of the old one, by asking: the topic may not be gone at
        all, and a number that is used twice would be taken for a repetition."""
        for key in [key for key in self._queues if key[0] == topic and key[1] >= first_partition]:
            queue = self._queues[key]
            self._active.pop(queue, None)
            self._note_failed(queue, queue.fail_all(error), now_ms)
            if queue.broken is not None:
                continue  # and so it stays, whatever becomes of the topic
            del self._queues[key]
            if queue.stamp_next is not None:
                self._given_up[key] = queue.stamp_next

    # ------------------------------------------------------------ flushing, closing

    def start_flush(self, now_ms: float) -> list[Chunk]:
        """Send everything without waiting for company, until `end_flush`; what is not settled yet."""
        self._flushing += 1
        self._drain(now_ms)
        return list(self._unsettled())

    def end_flush(self) -> None:
        self._flushing -= 1

    def _unsettled(self) -> Iterator[Chunk]:
        for queue in self._active:
            yield from (chunk for chunk in queue.chunks() if not chunk.is_settled)

    def close(self, error: BusError, now_ms: float) -> tuple[int, list[Connection]]:
        """Fail what is not settled with `error` and take nothing more. Returns how many records failed, and the
        connections, which are to be ended."""
        if not self._is_closed:
            self._is_closed = True
            self._pool.close(BusError(ErrorCode.INVALID_REQUEST, "this producer is closed"))
        for batch in list(self.accumulator.open.values()):
            self._close_batch(batch, now_ms)
        failed = sum(chunk.record_count for chunk in self._unsettled())
        self._fail_everything(error, now_ms)
        connections, self.connections = list(self.connections.values()), {}
        self.wakes_at_ms = 0.0
        self.instructions.append(_WAKE)
        return failed, connections
