"""The producer id and epoch of the producer: requests for them, and the epoch under which a partition is resumed.

Guards one promise: one request is under way at a time, repeated with growing pauses. The broker
gives a named producer its epochs, for all partitions; any other producer counts them up here, for one partition, as in
Kafka.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from bus.client.config.parsing import ProducerConfig
from bus.client.producer.instructions import Agenda, InitProducer, Resume
from bus.client.producer.queue import Part, PartitionQueue
from bus.model import ProducerStamp

EPOCH_MAX = 2**15 - 1


class Identity:
    def __init__(self, config: ProducerConfig, agenda: Agenda, backoff_ms: Callable[[int], float]) -> None:
        self.current: tuple[int, int] | None = None  # producer id and epoch
        self._is_named = config.name is not None
        self._is_transactional = config.transactional_id is not None
        self._agenda = agenda
        self._backoff_ms = backoff_ms
        self._is_asking = False
        self._retry_at_ms = 0.0
        self._failures = 0

    def ask(self, now_ms: float) -> None:
        if self._is_transactional:
            return  # the user asks for it, and the end of each transaction gives the next one
        if not self._is_asking and now_ms >= self._retry_at_ms:
            self._is_asking = True
            self._agenda.add(InitProducer(*(self.current or (None, None))))

    def on_given(self, producer_id: int, producer_epoch: int) -> None:
        self._is_asking = False
        self._failures = 0
        self.current = (producer_id, producer_epoch)

    def on_failed(self, now_ms: float, *, is_retriable: bool) -> None:
        self._is_asking = False
        if is_retriable:
            self._retry_at_ms = now_ms + self._backoff_ms(self._failures)
            self._failures += 1
            self._agenda.wake_by(self._retry_at_ms)

    def next_event(self, now_ms: float) -> float:
        return self._retry_at_ms if self._retry_at_ms > now_ms else math.inf

    # ------------------------------------------------------------ of a partition

    def begin(self, queue: PartitionQueue) -> None:
        if self.current is not None:
            queue.begin(ProducerStamp(*self.current, 0))
            queue.needs_resume = self._is_named

    def is_newer_than(self, part: Part) -> bool:
        """A named producer has one epoch for all partitions; those that have not moved to it yet do so now."""
        if not self._is_named or part.stamp is None or self.current is None:
            return False
        return part.stamp.producer_epoch < self.current[1]

    def resume(self, queue: PartitionQueue, address: str, now_ms: float) -> None:
        """Under the next epoch; a named producer asks the broker for it."""
        stamp = queue.stamp_next
        if stamp is None or self.current is None:
            self.ask(now_ms)
            return
        epoch = self.current[1] if self._is_named else stamp.producer_epoch + 1
        if self._is_named and queue.is_resumed and stamp.producer_epoch >= epoch:
            self.ask(now_ms)
            return
        queue.is_resuming = True
        self._agenda.add(Resume(queue, address, queue.topic_id, stamp.producer_id, epoch))

    def on_resumed(self, queue: PartitionQueue, epoch: int) -> None:
        if epoch >= EPOCH_MAX and not self._is_named:
            # What is left is not in the log: it can go under another producer id.
            self.current = queue.stamp_next = None
