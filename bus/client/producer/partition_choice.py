"""Which partition takes the records that neither the caller nor a key sends anywhere.

Single records: one sticky choice for each topic. What is chosen for at once may be far more than batch.size, since
batches grow while the broker is busy; so bytes are counted. For batches of any sizes, partitions get the same
share of the bytes, and one with a longer queue a smaller one, as KIP-794 weighs them: each choice is drawn among those
that are not ahead of the others. Partitions that do not serve, whose leader is unknown or has taken nothing for
partitioner.availability.timeout.ms, are left out. Batches of a user: the available partitions in turn. Keeps the state
that `partitioning` decides on.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

import pyarrow as pa

from bus.client.config.parsing import ProducerConfig
from bus.client.connection.cluster import TopicInfo
from bus.client.producer.partitioning import StickyPartitioner, round_robin_partitioner, split_by_key
from bus.client.producer.queue import PartitionQueue


class _Topic:
    """The sticky partition of a topic, and what each partition was given so far: bytes, where a partition with a longer
    queue counts each byte more than once."""

    __slots__ = ("costs", "given", "sticky")

    def __init__(self, batch_size: int, partition_count: int) -> None:
        self.sticky = StickyPartitioner(batch_size, random.random)
        self.given = [0.0] * partition_count
        self.costs = [1.0] * partition_count  # of a byte, at the last draw

    def least_given(self, are_available: Sequence[bool], batch_bytes: int) -> list[bool]:
        """Who may be drawn: those available that are no batch ahead of another one. One that is not available falls
        behind no further, so that it need not take all that it missed when it is back."""
        least = min(given for given, is_available in zip(self.given, are_available, strict=True) if is_available)
        for partition, is_available in enumerate(are_available):
            if not is_available:
                self.given[partition] = max(self.given[partition], least)
        return [
            is_available and given < least + batch_bytes
            for given, is_available in zip(self.given, are_available, strict=True)
        ]


class PartitionChoice:
    """`leader_of(info, partition)` is None while it is not known; `queue_of(topic, partition)` is None if nothing was
    ever sent there."""

    def __init__(
        self,
        config: ProducerConfig,
        *,
        leader_of: Callable[[TopicInfo, int], str | None],
        queue_of: Callable[[str, int], PartitionQueue | None],
    ) -> None:
        self._batch_size = config.batch_size
        self._ignores_keys = config.partitioner_ignore_keys
        self._is_adaptive = config.partitioner_adaptive_partitioning_enable
        self._availability_timeout_ms = config.partitioner_availability_timeout_ms
        self._leader_of = leader_of
        self._queue_of = queue_of
        self._topics: dict[str, _Topic] = {}
        self._turns = round_robin_partitioner()

    def choose(self, topic: str, info: TopicInfo, size_bytes: int, now_ms: float) -> int:
        """For `size_bytes` of single records that stay together."""
        count = len(info.partitions)
        found = self._topics.get(topic)
        if found is None or len(found.given) != count:
            found = self._topics[topic] = _Topic(self._batch_size, count)
        if found.sticky.is_switching and count > 1:
            self._weigh(found, topic, info, now_ms)
        partition = found.sticky.partition(count)
        found.sticky.update(size_bytes)
        found.given[partition] += size_bytes * found.costs[partition]
        return partition

    def split(self, topic: str, batch: pa.RecordBatch, info: TopicInfo) -> list[tuple[int, pa.RecordBatch]]:
        """A batch by its keys; rows without one go together to one partition, the next batch's to the next one."""
        count = len(info.partitions)

        def choose() -> int:
            available = [partition for partition in range(count) if self._serves(info, partition)]
            return self._turns.partition(topic, None, None, count, available)

        return [(choose(), batch)] if self._ignores_keys else split_by_key(batch, count, choose)

    def _serves(self, info: TopicInfo, partition: int) -> bool:
        """As far as is known: it has a leader, which has not said that the partition is stopped."""
        return self._leader_of(info, partition) is not None and not info.partitions[partition].error_code

    def _weigh(self, found: _Topic, topic: str, info: TopicInfo, now_ms: float) -> None:
        """Before a draw: who takes part in it, and what a byte costs there (KIP-794: of `n` batches in the longest
        queue, that partition gets one share where an empty one gets `n + 1`)."""
        batch_bytes = max(1, self._batch_size)
        count = len(info.partitions)
        are_available = [self._serves(info, partition) for partition in range(count)]
        if self._is_adaptive:
            queues = [self._queue_of(topic, partition) for partition in range(count)]
            lengths = [0 if queue is None else queue.unsettled_bytes // batch_bytes for queue in queues]
            most = max(lengths) + 1
            found.costs = [most / (most - length) for length in lengths]
            for partition, queue in enumerate(queues):
                are_available[partition] &= queue is None or self._takes(queue, now_ms)
        if not any(are_available):
            are_available = [True] * count
        found.sticky.update_load([0] * count, found.least_given(are_available, batch_bytes))

    def _takes(self, queue: PartitionQueue, now_ms: float) -> bool:
        if self._availability_timeout_ms <= 0 or not queue.in_flight:
            return True
        return now_ms - queue.answered_at_ms < self._availability_timeout_ms
