"""Which partition takes the records that neither the caller nor a key sends anywhere.

Single records: one sticky choice for each topic, which leaves out partitions whose leader is unknown or has taken
nothing for partitioner.availability.timeout.ms, and draws those with a long queue less often (KIP-794). Batches: the
available partitions in turn. Keeps the state that `partitioning` decides on.
"""

from __future__ import annotations

import random
from collections.abc import Callable

import pyarrow as pa

from bus.client.cluster import TopicInfo
from bus.client.configs import ProducerConfig
from bus.client.partitioning import RoundRobinPartitioner, StickyPartitioner, split_by_key
from bus.client.produce_queue import PartitionQueue


class PartitionChoice:
    """`leader_of(info, partition)` is None while nobody knows; `queue_of(topic, partition)` is None if nothing was ever
    sent there."""

    def __init__(
        self,
        config: ProducerConfig,
        *,
        leader_of: Callable[[TopicInfo, int], str | None],
        queue_of: Callable[[str, int], PartitionQueue | None],
        clock: Callable[[], float],
    ) -> None:
        self._batch_size = config.batch_size
        self._ignores_keys = config.partitioner_ignore_keys
        self._is_adaptive = config.partitioner_adaptive_partitioning_enable
        self._availability_timeout_s = config.partitioner_availability_timeout_ms / 1000
        self._leader_of = leader_of
        self._queue_of = queue_of
        self._clock = clock
        self._sticky: dict[str, StickyPartitioner] = {}
        self._turns = RoundRobinPartitioner()

    def choose(self, topic: str, info: TopicInfo, size_bytes: int) -> int:
        """For `size_bytes` of single records that stay together."""
        sticky = self._sticky.get(topic)
        if sticky is None:
            sticky = self._sticky[topic] = StickyPartitioner(self._batch_size, random.random)
        if sticky.is_switching and self._is_adaptive and len(info.partitions) > 1:
            self._tell_load(sticky, topic, info)
        partition = sticky.partition(len(info.partitions))
        sticky.update(size_bytes)
        return partition

    def split(self, topic: str, batch: pa.RecordBatch, info: TopicInfo) -> list[tuple[int, pa.RecordBatch]]:
        """A batch by its keys; rows without one go together to one partition, the next batch's to the next one."""
        count = len(info.partitions)

        def choose() -> int:
            available = [partition for partition in range(count) if self._leader_of(info, partition) is not None]
            return self._turns.partition(topic, None, None, count, available)

        return [(choose(), batch)] if self._ignores_keys else split_by_key(batch, count, choose)

    def _tell_load(self, sticky: StickyPartitioner, topic: str, info: TopicInfo) -> None:
        queues = [self._queue_of(topic, partition) for partition in range(len(info.partitions))]
        sticky.update_load(
            [0 if queue is None else queue.unsettled_bytes // max(1, self._batch_size) for queue in queues],
            [
                self._leader_of(info, partition) is not None and (queue is None or self._takes(queue))
                for partition, queue in enumerate(queues)
            ],
        )

    def _takes(self, queue: PartitionQueue) -> bool:
        if self._availability_timeout_s <= 0 or not queue.in_flight:
            return True
        return self._clock() - queue.answered_at < self._availability_timeout_s
