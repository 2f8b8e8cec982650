"""The queues of all partitions: what is taken in and not settled, and what an answer makes of it.

Guards two promises: a settled chunk gives its bytes back, and chunks that are or may come into the log are sent again
in order.
"""

from __future__ import annotations

import logging
import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence

from bus.client.config.clients import ProducerConfig
from bus.client.connection.produce_requests import LogEnd, Produced
from bus.client.connection.retrying import FAILURES_UNREPORTED
from bus.client.producer.accumulator import BufferPool
from bus.client.producer.connections import Agenda, Identity, Leaders, Resume
from bus.client.producer.metrics import ProducerMetrics
from bus.client.producer.queue import Chunk, Part, PartitionQueue
from bus.client.producer.transaction_manager import Call, TransactionManager, Verdict, judge
from bus.errors import BusError, ErrorCode
from bus.model import ProducerStamp, TopicPartition, sequence_after
from bus.platform.reentry import logger_of

logger = logger_of(__name__)

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
# The topic is gone, or another one has its name: of what belongs together, half must not go there.
_ANOTHER_TOPIC = frozenset(
    {ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_ID, ErrorCode.INCONSISTENT_TOPIC_ID}
)
_FENCED = frozenset({ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.PRODUCER_FENCED})
# In a transaction: every later batch of it would get the same error.
_LOST_IDENTITY = frozenset(
    {
        ErrorCode.INVALID_PRODUCER_EPOCH,
        ErrorCode.INVALID_PRODUCER_ID_MAPPING,
        ErrorCode.UNKNOWN_PRODUCER_ID,
        ErrorCode.INVALID_TXN_STATE,
        ErrorCode.TRANSACTION_ABORTABLE,
    }
)


class Queues:
    def __init__(
        self,
        config: ProducerConfig,
        pool: BufferPool,
        metrics: ProducerMetrics,
        identity: Identity,
        leaders: Leaders,
        agenda: Agenda,
        transactions: TransactionManager | None = None,
        *,
        backoff_ms: Callable[[int], float],
    ) -> None:
        self.active: dict[PartitionQueue, None] = {}  # those with anything that is not settled
        self.settled: deque[Chunk] = deque()  # not announced yet, oldest first
        self._queues: dict[tuple[str, int], PartitionQueue] = {}
        self._given_up: dict[tuple[str, int], ProducerStamp] = {}  # partitions that were no more, and the next stamp
        self._config = config
        self._pool = pool
        self._metrics = metrics
        self._identity = identity
        self._leaders = leaders
        self._agenda = agenda
        self._transactions = transactions
        self._backoff_ms = backoff_ms
        self._expires_at_ms = math.inf  # no chunk that is not settled has an earlier deadline

    def get(self, topic: str, partition: int) -> PartitionQueue | None:
        return self._queues.get((topic, partition))

    def push(self, topic: str, partition: int, chunk: Chunk) -> None:
        queue = self._queues.get((topic, partition))
        if queue is None:
            is_strict = self._config.name is not None or self._transactions is not None
            queue = self._queues[topic, partition] = PartitionQueue(
                topic, partition, is_strict=is_strict, has_given_stamps=self._identity.is_given
            )
            self._identity.begin(queue)
            past = self._given_up.pop((topic, partition), None)
            if past is not None:
                queue.begin(past)
                queue.needs_resume = True
        self.settle(queue.push(chunk))
        self.active[queue] = None
        self._expires_at_ms = min(self._expires_at_ms, chunk.deadline_ms)

    def begin_those_without_identity(self) -> None:
        for queue in self._queues.values():
            if queue.stamp_next is None:
                self._identity.begin(queue)

    def count_in_flight(self, topic: str) -> int:
        return sum(len(queue.in_flight) for queue in self.active if queue.topic == topic)

    def unsettled(self) -> Iterator[Chunk]:
        for queue in self.active:
            yield from (chunk for chunk in queue.chunks() if not chunk.is_settled)

    # ------------------------------------------------------------ outcomes

    def settle(self, chunks: Iterable[Chunk]) -> None:
        """Their bytes are free again; the futures come after the lock."""
        for chunk in chunks:
            self._pool.give_back(chunk.reserved_bytes)
            self.settled.append(chunk)

    def fail(self, queue: PartitionQueue, chunks: Sequence[Chunk], now_ms: float) -> None:
        self.settle(chunks)
        if chunks and self._transactions is not None and chunks[0].failure is not None:
            self._transactions.on_failed(Call.PRODUCE, chunks[0].failure)
        if chunks:
            self._metrics.record_errors(queue.topic, sum(chunk.record_count for chunk in chunks), now_ms)

    def expire(self, now_ms: float) -> None:
        """Looks at the queues once in delivery.timeout.ms or so, however often it is called."""
        if now_ms < self._expires_at_ms:
            return
        for queue in list(self.active):
            self.fail(queue, queue.expire(now_ms), now_ms)
        self._expires_at_ms = min((queue.next_deadline() for queue in self.active), default=math.inf)

    def fail_all(self, error: BusError, now_ms: float) -> None:
        for queue in self._queues.values():
            self.fail(queue, queue.fail_all(error), now_ms)
        self.active.clear()

    def forget_all(self) -> None:
        """Between transactions, when all records are settled: the sequences of the next one start again."""
        assert not self.active or not any(self.unsettled()), "a transaction has ended with records under way"
        self._queues.clear()
        self._given_up.clear()
        self.active.clear()

    def give_up(self, topic: str, first_partition: int, error: BusError, now_ms: float) -> None:
        """A new queue of the partition goes on after the sequences of the old one, and resumes first: the topic may
        still be there, and a sequence that is used twice would be taken for a duplicate."""
        for key in [key for key in self._queues if key[0] == topic and key[1] >= first_partition]:
            queue = self._queues[key]
            self.active.pop(queue, None)
            self.fail(queue, queue.fail_all(error), now_ms)
            if queue.broken is not None:
                continue  # it stays broken, also if the topic comes back
            del self._queues[key]
            if queue.stamp_next is not None and self._transactions is None:
                self._given_up[key] = queue.stamp_next

    # ------------------------------------------------------------ answers

    def take_answer(self, part: Part, answer: Produced, now_ms: float) -> BusError | None:
        """Settle a part by its answer. Returns an error that ends the producer for good."""
        queue, error = part.queue, answer.error
        if not queue.in_flight or queue.in_flight[0] is not part:
            return None  # the queue was given up meanwhile
        queue.answered_at_ms = now_ms
        if error is None:
            offset, time_ms = answer.base_offset, answer.log_append_time_ms
            self._note_acknowledged(part)
            self.settle(queue.acknowledge(part, offset, time_ms, answer.version, answer.offsets))
        elif error.code is ErrorCode.DUPLICATE_SEQUENCE_NUMBER:  # it is in the log, or was and is retired
            self._note_acknowledged(part)
            self.settle(queue.acknowledge(part, -1, -1, -1))
        elif error.code is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER:
            if queue.retries or queue.needs_resume:
                self.fail(queue, queue.put_off(part), now_ms)
            elif queue.has_given_stamps:
                self.fail(queue, queue.give_up(part, error), now_ms)  # nothing that came before it is missing
            elif self._transactions is not None:
                self.fail(queue, queue.give_up(part, _part_is_missing(queue, error, self._transactions.error)), now_ms)
            else:
                logger.warning("%s: the log misses what went before; asking where it ends: %s", queue, error)
                self.fail(queue, queue.lose_order(part), now_ms)
        elif error.code in _FENCED and self._identity.is_newer_than(part):
            self.fail(queue, queue.lose_order(part), now_ms)
        elif self._transactions is not None and judge(Call.PRODUCE, error) is Verdict.FATAL:
            self._transactions.on_failed(Call.PRODUCE, error)
            return error
        elif self._transactions is not None and error.code in _LOST_IDENTITY:
            self.fail(queue, queue.give_up(part, error), now_ms)
        elif error.code in _FENCED or error.code is ErrorCode.INVALID_PRODUCER_ID_MAPPING:
            return error
        elif queue.has_given_stamps and error.code in _ANOTHER_TOPIC:
            self.fail(queue, queue.give_up(part, error), now_ms)
        elif answer.leader is not None and self._leaders.has_moved(queue, answer.leader):
            self._send_again(part, error, now_ms)
        elif answer.leader is not None and answer.leader.address == queue.address:
            self._repeat(part, error, now_ms, failures=0)  # it is to lead the partition, and opens it
        elif error.retriable:
            self._repeat(part, error, now_ms)
        else:
            self._metrics.record_split(now_ms)
            self.fail(queue, queue.refuse(part, error, answer.record_errors), now_ms)
        return None

    def _note_acknowledged(self, part: Part) -> None:
        if self._transactions is not None and part.stamp is not None:
            last = sequence_after(part.stamp.base_sequence, part.record_count - 1)
            self._transactions.on_acknowledged(TopicPartition(part.queue.topic, part.queue.partition), last)

    def lose(self, part: Part, error: BusError, now_ms: float, *, is_oldest: bool) -> None:
        """The stream of a part ended with `error`; `is_oldest`: the part was in its oldest request."""
        queue = part.queue
        if not queue.in_flight or queue.in_flight[0] is not part:
            return
        if error.retriable:
            self._repeat(part, error, now_ms)
        elif is_oldest:
            # A broker that ends the stream for what a request contains means the oldest one.
            self.fail(queue, queue.refuse(part, error, {}), now_ms)
        else:
            lost = BusError(ErrorCode.NETWORK_EXCEPTION, f"the stream ended with {error}")
            self._repeat(part, lost, now_ms)

    def take_log_end(self, errand: Resume, end: LogEnd) -> None:
        queue, epoch = errand.queue, errand.producer_epoch
        self.settle(
            queue.resume(epoch, last_epoch=end.last_epoch, last_sequence=end.last_sequence, version=end.version)
        )
        self._identity.on_resumed(queue, epoch)

    def take_no_log_end(self, errand: Resume, error: BusError, now_ms: float) -> BusError | None:
        """Take the failure of a resumption, like `take_answer`."""
        queue, identity = errand.queue, self._identity.current
        queue.is_resuming = False
        if error.retriable:
            if error.code in _STALE_METADATA:
                self._leaders.ask_for(queue.topic)
            self.put_off(queue, now_ms)
        elif error.code in _FENCED and identity is not None and errand.producer_epoch < identity[1]:
            self._agenda.wake_by(now_ms)
        elif error.code is ErrorCode.TOPIC_AUTHORIZATION_FAILED:
            # Its records fail, those of other topics go on; later ones ask again, as the permission may come.
            self.active.pop(queue, None)
            self.fail(queue, queue.fail_all(error), now_ms)
        else:
            return error
        return None

    # ------------------------------------------------------------ going again

    def hurry_moved(self, now_ms: float) -> None:
        """A pause is for the leader that failed: another one is asked at once (KIP-951)."""
        for queue in self.active:
            if queue.retry_at_ms > now_ms and self._leaders.is_elsewhere(queue):
                queue.retry_at_ms = now_ms

    def _repeat(self, part: Part, error: BusError, now_ms: float, *, failures: int | None = None) -> None:
        """`failures`: before this one, if not those of this leader alone."""
        queue = part.queue
        level = logging.WARNING if queue.failures == FAILURES_UNREPORTED else logging.DEBUG
        logger.log(level, "producing to %s is tried again: %s", queue, error)
        if error.code in _STALE_METADATA:
            self._leaders.ask_for(queue.topic)
        self._back_off(queue, now_ms, part.attempts_there - 1 if failures is None else failures)
        self._send_again(part, error, now_ms)

    def _send_again(self, part: Part, error: BusError, now_ms: float) -> None:
        queue = part.queue
        self._metrics.record_retries(queue.topic, part.record_count, now_ms)
        self.fail(queue, queue.repeat(part, error, retries=self._config.retries), now_ms)

    def put_off(self, queue: PartitionQueue, now_ms: float) -> None:
        """Postpone the queue's next step, which is not possible now."""
        self._back_off(queue, now_ms, queue.failures)
        queue.failures += 1

    def _back_off(self, queue: PartitionQueue, now_ms: float, failures: int) -> None:
        """`failures`: before this one."""
        queue.retry_at_ms = max(queue.retry_at_ms, now_ms + self._backoff_ms(failures))
        self._agenda.wake_by(queue.retry_at_ms)

    def next_events(self, now_ms: float, *, has_window: bool) -> Iterator[float]:
        yield self._expires_at_ms
        for queue in self.active:
            if queue.retry_at_ms > now_ms:
                yield queue.retry_at_ms
            elif has_window and queue.pending and queue.pending[0].due_at_ms > now_ms:
                yield queue.pending[0].due_at_ms


def _part_is_missing(queue: PartitionQueue, error: BusError, failure: BusError | None) -> BusError:
    """Return the error for a part whose predecessors are settled and that the leader yet does not have. `failure`: the
    reason why the transaction had failed already."""
    reason = "a part of the transaction is missing, as when a leader dies that has it in memory alone"
    if failure is not None:
        reason = f"the transaction had failed already: {failure.message}"
    return BusError(ErrorCode.TRANSACTION_ABORTABLE, f"{queue}: {reason}: {error.message}")
