"""The decisions of a producer on what to send when: a machine without threads, locks, clock or I/O.

Its owner (`engine`) reports events and the time, carries out the agenda that the machine writes, and announces what is
in `queues.settled`. Guards two promises: every accepted chunk is settled once, by an answer, by a final error, by its
delivery time-out or by closing; and the bytes of unsettled chunks never exceed buffer.memory. `now_ms` and all times
are milliseconds of one clock that never goes back.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Mapping, Sequence

from bus.client.config.clients import ProducerConfig
from bus.client.connection.produce_requests import LogEnd, Produced, ThrottleLog
from bus.client.connection.retrying import ITEMS_MAX
from bus.client.producer.accumulator import BufferPool, RecordAccumulator
from bus.client.producer.batch import Record, RecordBatchBuilder, RecordFuture
from bus.client.producer.connections import (
    Agenda,
    Connection,
    Connections,
    Errand,
    Identity,
    InitProducer,
    Leaders,
    Metadata,
    RefreshTopics,
    Resume,
)
from bus.client.producer.metrics import ProducerMetrics
from bus.client.producer.partitioning import PartitionChoice
from bus.client.producer.queue import FULL_BYTES, Chunk, Part, PartitionQueue
from bus.client.producer.queues import Queues
from bus.client.producer.transaction_manager import Call, TransactionEnd, TransactionManager, Verdict
from bus.errors import BusError, ErrorCode
from bus.platform.reentry import logger_of

logger = logger_of(__name__)

_BUSY_PARTS = 2
_LATE_MAX = 1_000  # records from signal handlers and finalizers that interrupted a step
_LATE_PAUSE_MS = 10


class Sender:
    def __init__(
        self,
        metadata: Metadata,
        config: ProducerConfig,
        pool: BufferPool,
        *,
        backoff_ms: Callable[[int], float],
        given: tuple[int, int] | None = None,
    ) -> None:
        """`pool`: nothing here waits for it. `given`: a producer id and epoch that the caller chooses, so that another
        run of the same work sends the same records with the same stamps."""
        self._metadata = metadata
        self._config = config
        self._pool = pool
        self.agenda = Agenda()
        self.connections = Connections(config, self.agenda)
        self.identity = Identity(config, self.agenda, backoff_ms, given)
        self.metrics = ProducerMetrics(config, pool)
        self.metrics.add_gauge("requests-in-flight", lambda _: float(self.connections.count_requests()))
        self._leaders = Leaders(metadata, self.agenda, backoff_ms)
        self.transactions = None if config.transactional_id is None else TransactionManager(config.transactional_id)
        self.queues = Queues(
            config,
            pool,
            self.metrics,
            self.identity,
            self._leaders,
            self.agenda,
            self.transactions,
            backoff_ms=backoff_ms,
        )
        choice = PartitionChoice(config, leader_of=metadata.leader_address, queue_of=self.queues.get)
        self.split = choice.split
        self.accumulator = RecordAccumulator(config, pool, choice.choose)
        self._topic_ids: dict[str, str] = {}  # by name, as they were first known; of a given identity
        self._throttles = ThrottleLog(config.client_id, "producer_byte_rate")
        self._late: deque[RecordBatchBuilder] = deque()
        self._flushing = 0
        self._fatal: BusError | None = None
        self._is_closed = False

    # ------------------------------------------------------------ taking in

    @property
    def is_usable(self) -> bool:
        return self._fatal is None and not self._is_closed and (self.transactions is None or self.transactions.may_send)

    def check_open(self) -> None:
        if self._fatal is not None:
            raise self._fatal
        if self._is_closed:
            raise BusError(ErrorCode.INVALID_REQUEST, "this producer is closed")

    def check_usable(self) -> None:
        """Check that the producer may send."""
        self.check_open()
        if self.transactions is not None:
            self.transactions.check_may_send()

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
        if batch.due_at_ms > self.agenda.wakes_at_ms:
            return False
        is_due = batch.due_at_ms <= now_ms and self.connections.has_window(now_ms)
        return is_due or batch.due_at_ms < self.agenda.wakes_at_ms

    def follow_up(self, batch: RecordBatchBuilder, now_ms: float) -> None:
        """Closes a full batch, sends what is due, and sees to it that the batch leaves in time."""
        if batch.is_filled and not self._grow(batch):
            self._close_batch(batch, now_ms)  # there is no company to wait for
            self._drain(now_ms)
        elif self._pool.waiting_count > 0 or (
            batch.due_at_ms <= min(now_ms, self.agenda.wakes_at_ms) and self.connections.has_window(now_ms)
        ):
            self._drain(now_ms)
        else:
            self.agenda.wake_by(batch.due_at_ms)

    def _grow(self, batch: RecordBatchBuilder) -> bool:
        """Room for more in a full batch: it would only wait behind what is under way."""
        return self._is_busy(batch.topic) and self.accumulator.grow(batch)

    def _is_busy(self, topic: str) -> bool:
        """True if enough of the topic is under way to hide the time of one answer behind another."""
        info = self._metadata.topic(topic)
        enough = _BUSY_PARTS if info is None else min(_BUSY_PARTS, len(info.partitions))
        return self.queues.count_in_flight(topic) >= enough

    def take_in(self, topic: str, chunks: Sequence[tuple[int, Chunk]], now_ms: float) -> None:
        """Runs of a batch with their partitions, in order, behind all records before them. Their bytes are taken from
        the pool."""
        batch = self.accumulator.open.get(topic)
        if batch is not None:
            self._close_batch(batch, now_ms)
        for partition, chunk in chunks:
            self.queues.push(topic, partition, chunk)
        self._drain(now_ms)

    def add_late(self, topic: str, record: Record, partition_count: int, now_ms: float) -> RecordFuture:
        """Add one that came while its thread was inside of a step: from a signal handler, a finalizer. Nothing that the
        step may be at is read or changed; `take_in_late`, in a later step, does that. Raises `BusError`."""
        self.check_usable()
        size_bytes = record[-1]
        # A copy, which is made in one step: another thread, or a finalizer, may change the queue while it is counted.
        late_bytes = sum(batch.limit_bytes for batch in list(self._late))
        if len(self._late) >= _LATE_MAX or late_bytes + size_bytes > self._config.buffer_memory:
            raise BusError(
                ErrorCode.INVALID_REQUEST,
                f"expected at most {_LATE_MAX} records and buffer.memory={self._config.buffer_memory} bytes at once "
                "from signal handlers and finalizers that interrupted a call of this producer, found more",
            )
        batch = self.accumulator.new_late_batch(topic, size_bytes, partition_count, now_ms)
        future = batch.add(*record)
        self._late.append(batch)
        return future

    def take_in_late(self, now_ms: float) -> None:
        """Put what was added late behind all records before it. It waits for memory here, until its deadline."""
        while self._late:
            batch = self._late[0]
            try:
                self.check_usable()
            except BusError as error:
                self._refuse_late(error)
                continue
            if not self._pool.try_take(batch.limit_bytes):
                if now_ms < batch.deadline_ms:
                    self._drain(now_ms, is_hurried=True)
                    self.agenda.wake_by(now_ms + _LATE_PAUSE_MS)
                    return
                self._refuse_late(BusError(ErrorCode.REQUEST_TIMED_OUT, "there was no buffer.memory in time"))
                continue
            self._late.popleft()
            before = self.accumulator.open.get(batch.topic)
            if before is not None:
                self._close_batch(before, now_ms)
            self.accumulator.open_late(batch)
            self._close_batch(batch, now_ms)

    def _refuse_late(self, error: BusError) -> None:
        """It has no bytes of the pool."""
        for _, chunk in self._late.popleft().close_whole(-1):
            chunk.settle(None, error)
            self.queues.settled.append(chunk)

    def hurry(self, now_ms: float) -> None:
        """Memory is waited for: nothing waits for company."""
        self._drain(now_ms, is_hurried=True)

    def _close_batch(self, batch: RecordBatchBuilder, now_ms: float) -> None:
        info = self._metadata.topic(batch.topic)
        for partition, chunk in self.accumulator.close(batch, info, now_ms):
            self.queues.push(batch.topic, partition, chunk)

    # ------------------------------------------------------------ sending

    def _drain(self, now_ms: float, *, is_hurried: bool = False) -> None:
        """Close what is due, send what may be sent; one request has several partitions of one leader."""
        is_hurried = is_hurried or self._flushing > 0 or self._pool.waiting_count > 0 or self._is_closed
        if self.accumulator.open and (is_hurried or self.connections.has_window(now_ms)):
            for batch in list(self.accumulator.open.values()):
                if is_hurried or now_ms >= batch.due_at_ms or (batch.is_full and not self._is_busy(batch.topic)):
                    self._close_batch(batch, now_ms)
        while True:
            by_address: dict[str, list[PartitionQueue]] = {}
            for queue in list(self.queues.active):
                if not queue.is_ready(now_ms, is_hurried=is_hurried):
                    self._look_after(queue, now_ms)
                    continue
                address = self._address_of(queue, now_ms)
                if (
                    address is not None
                    and self.connections.may_send_to(address, now_ms)
                    and self._has_identity(queue, now_ms)
                ):
                    by_address.setdefault(address, []).append(queue)
            if not by_address:
                return
            for address, queues in by_address.items():
                connection = self.connections.by_address.get(address)
                if connection is not None:
                    self._send(connection, queues, now_ms)
                else:
                    self.connections.open(address, is_hurried=is_hurried)

    def on_opened(self, address: str, now_ms: float) -> Connection:
        connection, is_hurried = self.connections.on_opened(address)
        self._drain(now_ms, is_hurried=is_hurried)
        return connection

    def on_not_opened(self, address: str, now_ms: float) -> None:
        """Postpone the queues that wait for this address."""
        self.connections.on_not_opened(address)
        for queue in self.queues.active:
            if queue.address == address and queue.retry_at_ms <= now_ms:
                self.queues.put_off(queue, now_ms)

    def _look_after(self, queue: PartitionQueue, now_ms: float) -> None:
        """A queue that has nothing to send: is it done, or is there something to find out first?"""
        if queue.in_flight:
            return
        if queue.needs_resume and not queue.is_resuming and now_ms >= queue.retry_at_ms:
            address = self._address_of(queue, now_ms)
            if address is not None:
                self.identity.resume(queue, address, now_ms)
        elif not queue.pending and not queue.retries and not queue.needs_resume and not queue.is_resuming:
            self.queues.active.pop(queue, None)

    def _has_identity(self, queue: PartitionQueue, now_ms: float) -> bool:
        if not self._config.enable_idempotence or queue.stamp_next is not None:
            return True
        self.identity.ask(now_ms)
        return False

    def _address_of(self, queue: PartitionQueue, now_ms: float) -> str | None:
        leader = self._leaders.find(queue)
        if leader is None:
            self.queues.put_off(queue, now_ms)
            return None
        info, address = leader
        if queue.in_flight and queue.address != address:
            return None  # the old leader answers first: two streams have no order between them
        queue.address = address
        is_given = self.identity.is_given
        queue.topic_id = self._topic_ids.setdefault(queue.topic, info.topic_id) if is_given else info.topic_id
        return address

    def _send(self, connection: Connection, queues: Sequence[PartitionQueue], now_ms: float) -> None:
        """A part of each queue that fits the request, the longest waiting one first."""
        room, active = self._config.max_request_size, self.queues.active
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
            if self.transactions is not None:
                self.transactions.on_sending()
            room -= part.size_bytes
            active[queue] = active.pop(queue)  # to the end: the others have their turn first
        self.connections.send(connection, parts, now_ms)

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
        had_window = self.connections.has_window(now_ms)
        request = self.connections.take_answered(connection, correlation_id, len(answers))
        self.metrics.record_response(now_ms - request.sent_at_ms, now_ms)
        if throttle_time_ms > 0:
            self.connections.mute(connection, now_ms + throttle_time_ms)
            self.metrics.record_throttle(throttle_time_ms, now_ms)
            if not any(_is_of_full_queue(answer) for answer in answers):
                self._throttles.note(throttle_time_ms, connection.address, now_ms)
        # Parts that are in the log are settled before an error of another partition can fail everything.
        answered = zip(request.parts, answers, strict=True)
        for part, answer in sorted(answered, key=lambda pair: pair[1].error is not None):
            fatal = self.queues.take_answer(part, answer, now_ms)
            if fatal is not None:
                self._fail_for_good(fatal, now_ms)
        self._drain(now_ms)
        if not had_window and self.connections.has_window(now_ms):
            # Chunks that linger made no event while nothing could be sent.
            self.agenda.wake_by(self._next_event(now_ms))

    def on_end(self, connection: Connection, error: BusError, now_ms: float) -> None:
        """Note the end of a connection: the outcome of its requests is unknown, and they are sent again, in order."""
        del self.connections.by_address[connection.address]
        for number, request in enumerate(connection.requests):
            for part in request.parts:
                self.queues.lose(part, error, now_ms, is_oldest=number == 0)
        self.agenda.wake_by(now_ms)

    # ------------------------------------------------------------ errands

    def on_identity(self, producer_id: int, producer_epoch: int, now_ms: float) -> None:
        self.identity.on_given(producer_id, producer_epoch)
        self.queues.begin_those_without_identity()
        self._drain(now_ms)

    def on_no_identity(self, error: BusError, now_ms: float) -> None:
        self.identity.on_failed(now_ms, is_retriable=error.retriable)
        if not error.retriable:
            self._fail_for_good(error, now_ms)

    def on_resumed(self, errand: Resume, now_ms: float, *, last_epoch: int, last_sequence: int, version: int) -> None:
        if errand.queue.is_resuming:
            self.queues.take_log_end(errand, LogEnd(last_epoch, last_sequence, version))
            self._drain(now_ms)

    def on_not_resumed(self, errand: Resume, error: BusError, now_ms: float) -> None:
        fatal = self.queues.take_no_log_end(errand, error, now_ms)
        if fatal is not None:
            self._fail_for_good(fatal, now_ms)

    def on_refreshed(self, results: Mapping[str, BusError | None], now_ms: float) -> None:
        """Each topic that was asked for: None, or why nothing is known of it."""
        for topic, first_partition, error in self._leaders.on_refreshed(results, now_ms):
            self.queues.give_up(topic, first_partition, error, now_ms)
        self.queues.hurry_moved(now_ms)
        self._drain(now_ms)

    def on_no_answer(self, errand: Errand, error: BusError, now_ms: float) -> None:
        match errand:
            case RefreshTopics(topics):
                self.on_refreshed(dict.fromkeys(topics, error), now_ms)
            case InitProducer():
                self.on_no_identity(error, now_ms)
            case Resume():
                self.on_not_resumed(errand, error, now_ms)

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
        self.queues.fail_all(error, now_ms)

    # ------------------------------------------------------------ transactions

    def start_commit(self, now_ms: float) -> list[Chunk]:
        """Begin to flush for a commit, like `start_flush`; raises `BusError` if nothing may be committed."""
        self.take_in_late(now_ms)
        self._manager.begin_commit()
        return self.start_flush(now_ms)

    def start_abort(self, now_ms: float) -> None:
        """Fail everything that is not acknowledged; parts on their way, or answers that come later, have no effect."""
        self.take_in_late(now_ms)
        self._manager.begin_abort()
        aborted = "the transaction was aborted before this was acknowledged"
        self._fail_everything(BusError(ErrorCode.TRANSACTION_ABORTABLE, aborted), now_ms)

    def end_transaction(self) -> TransactionEnd | None:
        """See `TransactionManager.end`."""
        end = self._manager.end()
        if end is None:
            self.queues.forget_all()
        return end

    def on_initialized(self, producer_id: int, producer_epoch: int) -> None:
        self._manager.on_initialized(producer_id, producer_epoch)
        self.identity.current = producer_id, producer_epoch

    def on_transaction_ended(self, producer_id: int, producer_epoch: int) -> None:
        self._manager.on_ended(producer_id, producer_epoch)
        self.identity.current = producer_id, producer_epoch
        self.queues.forget_all()

    def on_transaction_failed(self, call: Call, error: BusError, now_ms: float) -> Verdict:
        verdict = self._manager.on_failed(call, error)
        if verdict is Verdict.FATAL:
            self._fail_for_good(error, now_ms)
        return verdict

    def on_transaction_timed_out(self, call: Call, error: BusError) -> None:
        self._manager.on_timed_out(call, error)

    @property
    def _manager(self) -> TransactionManager:
        assert self.transactions is not None, "asked of a producer that has a transactional id only"
        return self.transactions

    # ------------------------------------------------------------ time

    def tick(self, now_ms: float) -> None:
        """Do what is due; the agenda says when to come again."""
        if self._is_closed:
            self.agenda.wakes_at_ms = math.inf
            return
        self.take_in_late(now_ms)
        self.queues.expire(now_ms)
        self.connections.cut_silent(now_ms)
        self._leaders.refresh({queue.topic for queue in self.queues.active}, now_ms)
        self._drain(now_ms)
        self.agenda.wakes_at_ms = self._next_event(now_ms)

    def _next_event(self, now_ms: float) -> float:
        # A request that is sent later cannot be overdue before that.
        latest_ms = now_ms + max(10, self.connections.timeout_ms / 2)
        has_window = self.connections.has_window(now_ms)
        lingering = [batch.due_at_ms for batch in self.accumulator.open.values()] if has_window else []
        return min(
            latest_ms,
            *lingering,
            *self.queues.next_events(now_ms, has_window=has_window),
            *self.connections.next_events(now_ms),
            self._leaders.next_event(),
            self.identity.next_event(now_ms),
        )

    # ------------------------------------------------------------ flushing, closing

    def start_flush(self, now_ms: float) -> list[Chunk]:
        """Send everything without waiting for company, until `end_flush`; what is not settled yet."""
        self._flushing += 1
        self.take_in_late(now_ms)
        self._drain(now_ms)
        return list(self.queues.unsettled())

    def end_flush(self) -> None:
        self._flushing -= 1

    def close(self, error: BusError, now_ms: float) -> tuple[int, list[Connection]]:
        """Fail what is not settled with `error` and take nothing more. Returns how many records failed, and the
        connections, which are to be ended."""
        if not self._is_closed:
            self.take_in_late(now_ms)
            self._is_closed = True
            self._pool.close(BusError(ErrorCode.INVALID_REQUEST, "this producer is closed"))
        while self._late:
            self._refuse_late(error)
        for batch in list(self.accumulator.open.values()):
            self._close_batch(batch, now_ms)
        failed = sum(chunk.record_count for chunk in self.queues.unsettled())
        self._fail_everything(error, now_ms)
        connections = self.connections.take_all()
        self.agenda.wake_now()
        return failed, connections


def _is_of_full_queue(answer: Produced) -> bool:
    """The throttle time of the answer is then that of a partition, whose batch is sent again, and of no quota."""
    return answer.error is not None and answer.error.code is ErrorCode.THROTTLING_QUOTA_EXCEEDED
